#!/usr/bin/env python3
"""What no program should do ends in an exception that says so."""
import array
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from checks import RECALL, STORIES, STORY, Case, kvc, main
from kvc import _flat, _native


class Misuse(Case):
    def closed(self, *calls):
        for i, call in enumerate(calls):
            with self.assertRaises(kvc.ClosedError, msg=f"call {i}"):
                call()

    def test_closed(self):
        session, model, policy, loader = self.reading(), kvc.Model(STORIES), kvc.Policy("full"), kvc.Loader()
        for thing in (session, model, policy, loader) * 2:  # and twice
            thing.close()
        out = array.array("f", bytes(4 * 2048))
        self.closed(
            session.step, session.read_text, session.fork, session.reset, session.compress, session.cancel,
            session.clear_cancel, session.save_memory, session.set_sampling, session.set_token_mask,
            lambda: session.stats, lambda: session.progress, lambda: session.prefill([1]), lambda: session.append([1]),
            lambda: session.enqueue([1]), lambda: session.say("x"), lambda: session.set_turn_marks("user", "", ""),
            lambda: session.trim(8), lambda: session.accept(1), lambda: session.set_logit_bias({}),
            lambda: session.logits(out), lambda: session.kept(0, 0), lambda: session.rewind(1),
            lambda: session.save("x"), lambda: session.read("x"), lambda: next(session.generate("x")),
            lambda: model.info, model.describe, lambda: model.tokenize("x"), lambda: model.detokenize([1]),
            model.session, lambda: model.plan(None, 3), lambda: model.restore("x"), model.head_scores,
            policy.describe, lambda: policy.set_table([1]), lambda: self.model.session(policy),
            lambda: loader.open(STORIES), lambda: loader.progress, loader.cancel, loader.clear_cancel)
        for name, call in (("session", session.step), ("model", model.describe), ("model", lambda: model.info),
                           ("policy", lambda: self.model.session(policy)), ("loader", loader.cancel)):
            with self.assertRaisesRegex(kvc.ClosedError, f"the {name} is closed"):
                call()
        self.assertTrue(issubclass(kvc.ClosedError, ValueError))
        self.assertIn("closed", repr(policy))

    def test_none_and_wrong_types(self):
        session = self.reading()
        for call in (lambda: kvc.Model(None), lambda: kvc.Policy(3), lambda: session.prefill(None),
                     lambda: session.prefill("text"), lambda: session.prefill(b"text"), lambda: session.prefill([1.5]),
                     lambda: session.prefill(["1"]), lambda: self.model.tokenize(None), lambda: self.model.tokenize(3),
                     lambda: self.model.detokenize(5), lambda: self.model.restore_memory("text"[0:0] or 3),
                     lambda: session.step(1), lambda: session.kept(None, 0), lambda: session.logits([0.0] * 2048),
                     lambda: session.logits(bytes(4 * 2048)), lambda: self.model.session(3.5),
                     lambda: session.accept("1"), lambda: session.set_logit_bias({"a": 1})):
            with self.assertRaises((TypeError, BufferError)):
                call()
        for call in (lambda: kvc.Policy(None), lambda: session.say("x", "nobody"), lambda: session.prefill([]),
                     lambda: session.prefill(()), lambda: session.append([-1]), lambda: session.accept(-1),
                     lambda: session.rewind(-1), lambda: session.set_token_mask([1, 2]),
                     lambda: session.set_logit_bias({1: float("nan")}), lambda: session.kept(99, 0),
                     lambda: self.model.plan(None, 0), lambda: self.model.session(on_full="x")):
            with self.assertRaises(kvc.InvalidError):
                call()
        for name, call in (("", lambda: session.prefill([2**31])), ("token: ", lambda: session.accept(2**40)),
                           ("budget: ", lambda: session.trim(2**31)), ("token: ", lambda: session.accept(-2**80)),
                           ("seed: ", lambda: self.model.session(seed=2**63)),
                           ("temperature: ", lambda: self.model.session(temperature=1e39))):
            with self.assertRaisesRegex(OverflowError, f"^{name}a number does not fit"):
                call()
        for text, call in (("token: an integer is expected, not float", lambda: session.accept(1.0)),
                           ("max_tokens: an integer is expected, not float", lambda: self.model.session(max_tokens=5.)),
                           ("top_p: a number is expected, not str", lambda: self.model.session(top_p="1"))):
            with self.assertRaisesRegex(TypeError, text):
                call()
        numpy = _native.numpy
        for kind in (numpy.int32, numpy.int64) if numpy else ():
            for rows in (numpy.zeros((1, 3), kind), numpy.zeros((3, 2), kind)[:, :1]):
                for call in (session.prefill, session.append, session.step_draft, session.set_token_mask):
                    with self.assertRaisesRegex(TypeError, "a row of numbers is expected, not an array of 2"):
                        call(rows)
            with self.assertRaises(TypeError):
                session.accept(numpy.zeros(2, kind))
        self.assertIsInstance(session.step(), int)

    def test_bad_text(self):
        session = self.reading()
        for call in (lambda: kvc.Model("a\0b"), lambda: kvc.Policy("full\0"), lambda: session.save(b"a\0b"),
                     lambda: session.set_turn_marks("user", "\0", "")):
            with self.assertRaises(ValueError):
                call()
        for call in (lambda: self.model.tokenize("\ud800"), lambda: session.say("\udfff"), lambda: kvc.Policy("\ud800"),
                     lambda: session.set_turn_marks("user", "\ud800", "")):
            with self.assertRaises(UnicodeEncodeError):
                call()
        with self.assertRaises(kvc.FileError):
            kvc.Model("\udcff")  # a file name of any bytes, as os.listdir gives it
        self.assertTrue(len(self.model.tokenize(b"a\xff\0b")))  # text may be any bytes
        self.assertEqual(len(self.model.tokenize("")), 0)
        self.assertEqual(self.model.detokenize([]), "")
        for empty in (b"", bytearray()):
            with self.assertRaises(kvc.Error):
                kvc.Model.from_memory(empty)
            with self.assertRaises(kvc.Error):
                self.model.restore_memory(empty)

    def test_list_that_changes_while_it_is_read(self):
        tokens = list(range(1, 100))

        class Emptying:
            def __index__(self):
                tokens.clear()
                return 5

        tokens[3] = Emptying()
        session = self.model.session()
        session.prefill(tokens)
        self.assertEqual(session.stats.n_prompt, 99)

    def test_closed_while_used(self):
        for _ in range(10):
            session = self.model.session(on_full="evict")
            ids = self.model.prompt(STORY * 30)
            begun, ended = threading.Barrier(3), []

            def use(call):
                begun.wait()
                try:
                    while True:
                        try:
                            call()
                        except (kvc.BusyError, kvc.InvalidError):
                            pass
                except kvc.ClosedError:
                    ended.append(call)

            users = [threading.Thread(target=use, args=(call,))
                     for call in (lambda: session.prefill(ids), session.step)]
            for user in users:
                user.start()
            begun.wait()
            time.sleep(0.002)
            session.close()
            for user in users:
                user.join()
            self.assertEqual(len(ended), 2)
            self.assertIsNone(session._handle.pointer)  # given back

    def test_closed_while_another_clears_cancels(self):
        """Nobody takes back the cancel of a close, whenever they ask."""
        ids = self.model.prompt(STORY * 40)
        for _ in range(30):
            session, ended = self.model.session(on_full="evict"), []

            def until_closed(call, n, of=ended):
                try:
                    for _ in range(n):
                        call()
                except kvc.ClosedError as closed:
                    of.append(closed)

            threads = [threading.Thread(target=until_closed, args=arguments)
                       for arguments in ((lambda: session.prefill(ids), 1), (session.clear_cancel, 10**9))]
            for thread in threads:
                thread.start()
            while session.progress == 1:
                pass
            session.close()
            for thread in threads:
                thread.join()
            self.assertEqual(len(ended), 2)

    def test_exceptions_while_streaming(self):
        session = self.reading()
        stream = session.generate(max_tokens=50)
        next(stream)
        with self.assertRaises(KeyError):
            stream.throw(KeyError("of the program"))
        abandoned = session.generate(max_tokens=50)
        next(abandoned)
        del abandoned
        gc.collect()
        self.assertIsInstance(session.step(), int)
        late = session.generate(max_tokens=50)
        next(late)
        session.close()
        with self.assertRaises(kvc.ClosedError):
            next(late)

    def test_errors_belong_to_their_threads(self):
        wrong = []

        def fail(name):
            for _ in range(300):
                try:
                    kvc.Policy(name)
                except kvc.NotFoundError as failed:
                    if name not in failed.message:
                        wrong.append(failed)

        threads = [threading.Thread(target=fail, args=(name,)) for name in ("alpha", "beta", "gamma", "delta")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def interrupted(self, call, after=0.05):
        main = threading.main_thread().ident
        timer = threading.Timer(after, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            call()
        timer.join()

    def test_keyboard_interrupt(self):
        session = self.model.session(on_full="evict")
        ids = self.model.prompt(STORY * 3000)  # minutes, were it read
        self.interrupted(lambda: session.prefill(ids))
        self.assertEqual(session.stats.n_prompt, 0)
        session.prefill(ids[:40])  # as if nothing had been
        self.interrupted(lambda: list(session.generate(max_tokens=10**9)))
        self.assertIsInstance(session.step(), int)
        for call in (session.step, session.logits, lambda: session.step_draft([1]), lambda: session.accept(1)):
            session.enqueue(ids)  # which the call that needs it reads
            self.interrupted(call)

    def test_keyboard_interrupt_of_a_batch(self):
        ids = self.model.prompt(STORY * 3000)
        sessions = [self.model.session(on_full="evict") for _ in range(3)]
        out = array.array("f", bytes(4 * 3 * 2048))
        for session in sessions:
            session.prefill(ids[:9])
        for call in (lambda: kvc.batch_step(sessions, prompt_tokens=10**6),
                     lambda: kvc.batch_logits(sessions, out, prompt_tokens=10**6)):
            for session in sessions:
                session.enqueue(ids)
            self.interrupted(call)
            for session in sessions:  # as before, and the next call is not meant
                self.assertEqual((session.stats.n_tokens, session.stats.prompt_progress), (9, 1))
        self.assertTrue(all(isinstance(token, int) for token in kvc.batch_step(sessions)))
        many = [sessions[0].fork() for _ in range(20)]  # takes longer than a step, also without a prompt
        self.assertEqual(len(kvc.batch_step(many)), 20)

    def test_closed_during_a_batch(self):
        ids = self.model.prompt(STORY * 40)
        one, two = (self.model.session(on_full="evict") for _ in range(2))
        one.enqueue(ids)
        two.prefill(ids[:9])
        closing = threading.Thread(target=lambda: (time.sleep(0.05), one.close()))
        closing.start()
        failed, token = kvc.batch_step([one, two], prompt_tokens=10**6)
        closing.join()
        self.assertIsInstance(failed, kvc.ClosedError)
        self.assertEqual(str(failed), "the session was closed during the call")
        self.assertIsInstance(token, int)
        self.assertIsNone(one._handle.pointer)

    def test_keyboard_interrupt_while_the_thread_of_a_call_starts(self):
        session = self.model.session(on_full="evict")
        ids = self.model.prompt(STORY * 3000)
        start = threading.Thread.start

        def before(_):
            raise KeyboardInterrupt

        def behind(thread):
            start(thread)
            raise KeyboardInterrupt

        for when in (before, behind):
            with unittest.mock.patch.object(threading.Thread, "start", when), self.assertRaises(KeyboardInterrupt):
                session.prefill(ids)
            self.assertEqual(session.stats.n_prompt, 0)
        session.prefill(ids[:40])

    def test_keyboard_interrupt_when_the_end_of_a_call_was_seen(self):
        session = self.model.session(on_full="evict")
        impatience = [KeyboardInterrupt] * 3

        class Lock:  # as if a signal came behind the lock and before what follows it
            def __init__(self):
                self.lock = made()

            def acquire(self, *arguments, **named):
                got = self.lock.acquire(*arguments, **named)
                if "timeout" in named and got and impatience:
                    raise impatience.pop()
                return got

            def release(self):
                self.lock.release()

        class Threading:  # for the module of calls alone: threads have locks of their own
            def __getattr__(self, name):
                return Lock if name == "Lock" else getattr(threading, name)

        made = threading.Lock
        with unittest.mock.patch.object(_native, "threading", Threading()), self.assertRaises(KeyboardInterrupt):
            session._handle.call_long(lambda pointer: time.sleep(0.05))
        self.assertLess(len(impatience), 3)
        session.prefill([1] * 40)  # as if nothing had been

    def test_keyboard_interrupt_of_a_loader(self):
        with kvc.Loader() as loader:
            # Nothing of the library runs, as when it comes behind the last moment: the next call is not meant.
            self.interrupted(lambda: loader._handle.call_long(lambda pointer: time.sleep(0.2)))
            loader.open(STORIES).close()

    def copy_of_a_model(self):
        """A model file of this test alone, and how often it is mapped: once for every model or session of it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(os.path.realpath(folder.name), "copy.kvc")
        shutil.copyfile(STORIES, path)

        def mapped():
            with open("/proc/self/maps", encoding="utf-8") as file:
                return file.read().count(path) > 0
        return path, mapped

    def test_keyboard_interrupt_while_something_opens(self):
        path, mapped = self.copy_of_a_model()
        with kvc.Model(path) as model, model.session() as session, open(path, "rb") as file:
            self.assertTrue(mapped())
            session.prefill([1, 2, 3])
            saved, data = path + ".saved", session.save_memory()
            session.save(saved)
            whole = file.read()
            calls = [lambda: kvc.Model(path), lambda: kvc.Model.from_fd(file.fileno()),
                     lambda: kvc.Model.from_memory(whole), lambda: model.restore(saved),
                     lambda: model.restore_memory(data)]
            start = threading.Thread.start

            def behind(thread):
                start(thread)
                raise KeyboardInterrupt

            for call in calls:
                with unittest.mock.patch.object(threading.Thread, "start", behind):
                    self.assertRaises(KeyboardInterrupt, call)
                call().close()  # as if nothing had been
        while any(thread.name == "kvc" for thread in threading.enumerate()):
            time.sleep(0.001)  # what nothing can stop ends by itself
        gc.collect()
        self.assertFalse(mapped())

    def test_keyboard_interrupt_right_behind_a_call(self):
        """What the call made is closed, though nobody took it."""
        path, mapped = self.copy_of_a_model()

        def dropped(name):
            function = getattr(_flat, name)

            def interrupted(*arguments):
                function(*arguments)
                raise KeyboardInterrupt
            return unittest.mock.patch.object(_flat, name, interrupted)

        with dropped("kvc_loader_open"):
            self.assertRaises(KeyboardInterrupt, kvc.Model, path)
        self.assertFalse(mapped())
        for name, call in (("kvc_session_create", kvc.Model.session),
                           ("kvc_session_restore_memory", lambda model: model.restore_memory(data))):
            with kvc.Model(path) as model:
                with model.session() as session:
                    data = session.save_memory()
                with dropped(name):
                    self.assertRaises(KeyboardInterrupt, call, model)
                self.assertTrue(mapped())
            self.assertFalse(mapped(), name)  # a session would have kept it
        model = kvc.Model(path)
        pointer = model._handle.pointer
        model.close()
        del model, pointer  # and what was closed is not closed again

    def test_closed_by_a_signal_handler(self):
        session = self.model.session(on_full="evict")
        ids = self.model.prompt(STORY * 3000)
        before = signal.signal(signal.SIGUSR1, lambda *_: session.close())
        try:
            timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
            timer.start()
            with self.assertRaises(kvc.ClosedError):
                session.prefill(ids)
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_busy(self):
        session = self.model.session(on_full="evict")
        reader = threading.Thread(target=lambda: session.prefill(self.model.prompt(STORY * 100)))
        reader.start()
        busy = 0
        while reader.is_alive():
            if 0 < session.progress < 1:
                try:
                    session.stats
                except kvc.BusyError:
                    busy += 1
        reader.join()
        self.assertGreater(busy, 0)

    def test_never_closed(self):
        for i in range(50):
            model = kvc.Model(STORIES)
            session = model.session()
            session.prefill([1, 2, 3])
            if i % 2:
                model.close()
            session.step()
        handle = session._handle
        del model, session
        gc.collect()
        self.assertIsNone(handle.pointer)

    def test_wrong_library(self):
        with self.assertRaisesRegex(ImportError, r"built for libkvc 0\.1\.0 and has loaded libkvc 0\.2\.0"):
            _native.check_version(100, 200)
        for compiled, loaded in ((101, 100), (10203, 10203), (10203, 10204), (10203, 10300)):
            _native.check_version(compiled, loaded)
        for compiled, loaded in ((200, 100), (100, 10000), (10203, 10202), (10203, 10103), (10203, 20000)):
            with self.assertRaises(ImportError):
                _native.check_version(compiled, loaded)
        self.assertIs(_native._flat, _flat)


class Processes(unittest.TestCase):
    def run_python(self, code, **environment):
        return subprocess.run([sys.executable, "-c", code], env=dict(os.environ, **environment), capture_output=True,
                              text=True, check=False, timeout=60)

    def test_end_with_open_sessions(self):
        for ending in ("", "sys.exit(3)", "raise RuntimeError('of the program')", "threads()"):
            done = self.run_python(f"""
import sys, threading, time, kvc
model = kvc.Model({RECALL!r})
session = model.session(on_full="evict")
session.prefill(model.prompt("Once upon a time there was"))
stream = session.generate(max_tokens=100)
next(stream)
def threads():
    other = model.session(on_full="evict")
    ids = model.prompt("Once upon a time. " * 20000)
    threading.Thread(target=lambda: other.prefill(ids), daemon=True).start()
    while not 0 < other.progress < 1: pass
{ending}
""")
            self.assertEqual(done.returncode, {"": 0, "sys.exit(3)": 3, "threads()": 0}.get(ending, 1), done.stderr)
            self.assertEqual(done.stderr.count("Traceback"), int("raise" in ending), done.stderr)

    def test_missing_library(self):
        """The message names what was looked for and where."""
        source = os.path.dirname(os.path.abspath(kvc.__file__))
        done = self.run_python(f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("kvc", {os.path.join(source, '__init__.py')!r})
package = importlib.util.module_from_spec(spec)
package.__path__ = [{source!r}]
sys.modules["kvc"] = package
sys.modules["kvc._flat"] = None
import kvc._native
""", LD_LIBRARY_PATH="nowhere")
        self.assertEqual(done.returncode, 1)
        for part in ("libkvc.so.0", "_flat", source, "LD_LIBRARY_PATH='nowhere'"):
            self.assertIn(part, done.stderr)

    def test_fork(self):
        """A child process goes on with what its parent opened."""
        done = self.run_python(f"""
import os, kvc
model = kvc.Model({RECALL!r})
session = model.session()
session.prefill(model.prompt("Once upon a time there was"))
child = os.fork()
if child == 0:
    os._exit(0 if session.step() is not None else 1)
assert os.waitpid(child, 0)[1] == 0
assert session.step() is not None
""")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    main()
