#!/usr/bin/env python3
"""Everything that package kvc can do, once."""
import array
import copy
import logging
import mmap
import os
import tempfile
import threading
import unittest

from checks import RECALL, STORIES, STORY, Case, kvc, main
from kvc import _flat, _native

numpy = _native.numpy


class Library(unittest.TestCase):
    def test_library(self):
        self.assertRegex(kvc.version(), r"^\d+\.\d+\.\d+$")
        self.assertGreater(kvc.schema_version(), 0)
        self.assertEqual(kvc.devices()[0]["name"], "cpu")
        self.assertGreater(kvc.measure_device(0), 1e6)
        for name in kvc.methods():
            self.assertEqual(kvc.describe_method(name)["name"], name)
        with self.assertRaisesRegex(kvc.NotFoundError, "'nothing'; there are .*snapkv"):
            kvc.describe_method("nothing")

    def test_names(self):
        names = {}
        exec("from kvc import *", names)  # pylint: disable=exec-used
        self.assertIn("kept", names)
        self.assertNotIn("eval", names)  # Python's stays

    def test_constants(self):
        for status in kvc.Status:
            self.assertEqual(getattr(_flat, f"KVC_E_{status.name}"), status)
            self.assertEqual(_flat.kvc_status_name(int(status)), status.name)

    def test_log(self):
        kvc.log_poll()
        kvc.log_start(logging.INFO)
        kvc.Model(STORIES).close()
        kvc.log_stop()
        (level, line), *_ = kvc.log_poll()
        self.assertEqual(level, logging.INFO)
        self.assertTrue(line.startswith("opened"), line)
        self.assertEqual(kvc.log_poll(), [])


class Models(Case):
    def test_info(self):
        info = self.model.info
        self.assertEqual((info.n_layers, info.n_kv_heads, info.vocab_size), (6, 4, 2048))
        self.assertIn("tokenizer", self.model.describe())
        self.assertEqual(len(self.model.head_scores()), 6 if numpy else 24)

    def test_tokens(self):
        text = "naïve 🐙"
        tokens = self.model.tokenize(text, bos=True)
        self.assertEqual(tokens[0], self.model.info.bos_token)
        ids = array.array("i", tokens)
        for same in (tokens, list(tokens), tuple(tokens), ids, memoryview(ids)):
            self.assertEqual(self.model.detokenize(same), text)
        if numpy:
            self.assertEqual(tokens.dtype, numpy.int32)
            for other in (numpy.int64, numpy.uint16):
                self.assertEqual(self.model.detokenize(tokens.astype(other)), text)
            self.assertEqual(self.model.detokenize(numpy.repeat(tokens, 2)[::2]), text)  # no array without gaps
        self.assertEqual(list(self.model.tokenize(text.encode(), bos=True)), list(tokens))
        self.assertEqual(self.model.detokenize(iter(ids)), text)
        part = self.model.tokenize("🐙")[:1]  # bytes that are no character
        self.assertEqual(self.model.detokenize_bytes(part), "🐙".encode()[:1])
        self.assertEqual(b"".join(self.model.detokenize_bytes([token]) for token in tokens), text.encode())

    def test_bytes_of_every_token(self):
        """As docs/python.md has them, of a tokenizer that puts a space before a text and one that does not."""
        for path, text in ((RECALL, "Zoë, 🐙 once"), (STORIES, "Once upon a time 🐙")):
            with kvc.Model(path) as model:
                before = list(model.tokenize("a"))
                n = len(model.detokenize_bytes(before))
                vocabulary = [model.detokenize_bytes([*before, token])[n:] for token in range(model.info.vocab_size)]
                joined = b"".join(vocabulary[token] for token in model.tokenize(text))
                self.assertEqual(joined, (" " * (path == STORIES) + text).encode())

    def test_flags_of_every_truth(self):
        for truth in (True, 1, 2, 4, "yes", *((numpy.bool_(True), numpy.int64(4)) if numpy else ())):
            for flag in ("bos", "special", "goes_on"):
                self.assertEqual(list(self.model.tokenize("a", **{flag: truth})),
                                 list(self.model.tokenize("a", **{flag: True})))
            with self.model.session() as session:
                for role in ("user", "assistant"):
                    session.set_turn_marks(role, "<", ">")
                session.say("a", answer=truth)
                self.assertEqual(session.stats.prompt_progress, 1)  # nothing is queued
                self.assertEqual(session.stats.n_tokens, len(self.model.prompt("<a>")) + len(self.model.tokenize("<")))

    def test_ways_to_open(self):
        with open(STORIES, "rb") as file:
            data = file.read()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "in a package 🐙")
            with open(path, "wb") as file:
                file.write(bytes(4096) + data)
            with open(path, "rb") as file, open(STORIES, "rb") as whole, kvc.Loader() as loader:
                fd, size = file.fileno(), len(data)
                mapped = mmap.mmap(whole.fileno(), 0, prot=mmap.PROT_READ)
                models = [kvc.Model(STORIES, "cpu", threads=1), kvc.Model(os.fsencode(STORIES)),
                          kvc.Model.from_fd(fd, 4096, size), kvc.Model.from_memory(mapped),
                          kvc.Model.from_memory(data), kvc.Model.from_memory(bytearray(b"." + data)[1:]),
                          loader.open(STORIES), loader.open_fd(fd, 4096)]
                self.assertEqual(loader.progress, 1)
            del data
            texts = []
            for model in models:
                with model, model.session() as session:
                    texts.append("".join(session.generate("Once upon a time", 20)))
        self.assertEqual(texts, [texts[0]] * len(models))
        self.assertTrue(texts[0])
        mapped.close()  # nobody holds it any more

    def test_memory_stays_until_the_last_session(self):
        mapped = mmap.mmap(os.open(STORIES, os.O_RDONLY), 0, prot=mmap.PROT_READ)
        model = kvc.Model.from_memory(mapped)
        session = model.session()
        model.close()
        with self.assertRaises(BufferError):
            mapped.close()
        session.prefill([1, 2, 3])
        fork = session.fork()
        session.close()
        with self.assertRaises(BufferError):
            mapped.close()
        self.assertIsInstance(fork.step(), int)
        fork.close()
        mapped.close()

    def test_errors(self):
        with self.assertRaises(kvc.OutOfMemoryError):
            kvc.Model(STORIES, memory_limit=1)
        with self.assertRaises(kvc.FileError) as failed:
            kvc.Model("no such file 🐙")
        self.assertIn("no such file 🐙", str(failed.exception))
        self.assertEqual(failed.exception.status, kvc.Status.IO)
        with self.assertRaises(kvc.BadModelError):
            kvc.Model(__file__)

    def test_policies(self):
        with kvc.Policy("cokv:budget=64") as policy:
            self.assertTrue(policy.describe().startswith("cokv:budget=64,"))
            policy.set_head_scores(self.model.head_scores())
            with self.assertRaises(kvc.InvalidError):
                policy.set_table([0] * 24)
        with kvc.Policy("table") as table:
            slots = [[40 + 4 * layer + head for head in range(4)] for layer in range(6)]
            table.set_table(slots)
            plan = self.model.plan(table, 200)
            planned = plan.slots.tolist() if numpy else list(plan.slots)
            self.assertEqual(planned, slots if numpy else [slot for row in slots for slot in row])
            self.assertLess(plan.cache_bytes_end, plan.cache_bytes_full)
            with kvc.Model(RECALL, "cpu", memory_limit=4 << 20, plan_only=True) as alone:
                same = alone.plan(table, 200)
                self.assertEqual(same.workspace_bytes, plan.workspace_bytes)
                self.assertEqual(same.cache_bytes_peak, plan.cache_bytes_peak)
                # The tokenizer's patterns are machine code, which is longer where it lies far from what it calls.
                self.assertAlmostEqual(same.total_bytes_peak, plan.total_bytes_peak, delta=1024)
                with self.assertRaises(kvc.UnsupportedError):
                    alone.session()
        with self.assertRaisesRegex(kvc.InvalidError, "budget"):
            kvc.Policy("cokv:budgett=3")
        with self.assertRaises(LookupError):
            kvc.Policy("nothing-like-it")


    def test_in_a_line(self):
        session = self.reading()
        self.assertRegex(repr(self.model), r"^<kvc.Model, 6 layers, 2048 tokens, \d+ bytes of weights>$")
        self.assertEqual(repr(session), "<kvc.Session>")
        session.close()
        self.assertEqual(repr(session), "<kvc.Session, closed>")
        self.assertRegex(repr(self.model.plan(None, 9)), r"^Plan\(n_prompt=9, weight_bytes=\d+.* slots of \d+ .*\)$")
        with kvc.Policy("snapkv:budget=64") as policy:
            self.assertRegex(repr(policy), "^<kvc.Policy snapkv:budget=64,.*>$")
        self.assertEqual(repr(policy), "<kvc.Policy, closed>")


class Sessions(Case):
    def test_text(self):
        with self.model.session("cokv:budget=64", on_full="slide") as session:
            pieces = list(session.generate("Ada lives in Paris. Ada lives in", 12))
            again = self.model.session("cokv:budget=64")
            again.prefill(self.model.prompt("Ada lives in Paris. Ada lives in"))
            self.steps(again, 12)
            self.assertEqual(again.read_text(), "".join(pieces))
            self.assertTrue("".join(session.generate(" And then", 4)))
            self.assertTrue("".join(session.generate(None, 3)))
            self.assertTrue("".join(session.generate(self.model.tokenize(" And", goes_on=True), 3)))

    def test_character_that_is_cut_off(self):
        session = self.reading()
        info = self.model.info

        def generate(token, prompt=None):
            mask = [0] * ((info.vocab_size + 31) // 32)
            mask[token // 32] = 1 << token % 32
            session.set_token_mask(mask)
            return "".join(session.generate(prompt, 1))
        part = int(self.model.tokenize("🐙")[0])  # its first byte
        self.assertEqual([generate(part), generate(info.eos_token)], ["", "\ufffd"])
        session.accept(part)
        self.assertEqual(generate(info.eos_token, " And"), "")  # the prompt drops it

    def test_same_of_every_kind_of_array(self):
        ids = list(self.model.prompt(STORY))
        kinds = [ids, tuple(ids), array.array("i", ids), iter(ids)]
        if numpy:
            kinds += [numpy.array(ids), numpy.array(ids, numpy.int32)]
        answers = []
        for kind in kinds:
            with self.model.session() as session:
                session.prefill(kind)
                answers.append(self.steps(session, 4))
        self.assertEqual(answers, [answers[0]] * len(kinds))

    @unittest.skipIf(numpy is None, "of numpy")
    def test_numbers_of_numpy(self):
        """One for all that is a number, of every kind, and arrays of no dimension."""
        wanted = self.reading()
        for kind in (numpy.int32, numpy.int64, numpy.uint16, lambda n: numpy.array(n, numpy.int32)):
            with self.model.session("snapkv:budget=20,window=4", max_tokens=kind(60), seed=kind(7), top_k=kind(5),
                                    temperature=numpy.float32(0.5), top_p=numpy.array(0.5)) as session:
                session.prefill(self.model.prompt(STORY))
                self.assertGreater(session.trim(kind(12)), 0)
                self.assertEqual(len(session.kept(kind(5), kind(3))), 12)
                self.assertEqual(len(list(session.generate(" And", kind(2)))), 2)
                with self.assertRaises(kvc.ContextFullError):
                    list(session.generate(None, kind(60)))
            plan = self.model.plan("snapkv:budget=20,window=4", kind(30))
            self.assertEqual(plan.n_prompt, 30)
            session = self.reading()
            session.set_sampling(temperature=numpy.float32(0), repeat_window=kind(3))
            session.accept(kind(int(wanted.logits().argmax())))
            for token in self.model.tokenize(" And", goes_on=True):
                session.accept(token)
            session.rewind(kind(1))
            session.accept(kind(7))
            session.set_logit_bias({kind(3): numpy.float32(1)} if kind(3).__hash__ else {})
            session.accept(session.logits().argmax())
            self.assertEqual(len(kvc.batch_step([session], prompt_tokens=kind(3))), 1)

    def test_words_of_a_mask(self):
        session, wanted = self.reading(), self.model.info.vocab_size - 1
        words = [0] * 63 + [1 << 31]
        kinds = [words, array.array("I", words), [0] * 63 + [-1 << 31]]
        if numpy:
            kinds += [numpy.array(words, numpy.uint32), numpy.array(words, numpy.uint32).view(numpy.int32),
                      numpy.array(words, numpy.int64)]
        for mask in kinds:
            session.set_token_mask(mask)
            self.assertEqual(session.step(), wanted)
        for mask in ([0] * 63 + [1 << 32], [0] * 63 + [-(1 << 31) - 1]):
            with self.assertRaises(OverflowError):
                session.set_token_mask(mask)

    def test_logits_in_place(self):
        session = self.reading()
        logits = session.logits()
        for out in (array.array("f", bytes(4 * 2048)), numpy.zeros(2048, numpy.float32) if numpy else None):
            if out is not None:
                self.assertIs(session.logits(out), out)
                self.assertEqual(list(out), list(logits))
        with self.assertRaises(kvc.BufferTooSmallError):
            session.logits(array.array("f", bytes(4 * 7)))
        with self.assertRaises(kvc.BufferTooSmallError):
            session.logits(array.array("f"))
        if numpy:
            self.assertEqual(session.logits(numpy.zeros((1, 2048), numpy.float32))[0].tolist(), logits.tolist())
            rows = numpy.zeros((2, 2048), numpy.float32)
            session.logits(rows[1])
            self.assertEqual(rows[1].tolist(), logits.tolist())
            self.assertFalse(rows[0].any())
            for wrong in (numpy.zeros(2048), numpy.zeros(2048, numpy.int32), rows[:, ::2][0]):
                with self.assertRaises((TypeError, ValueError)):
                    session.logits(wrong)

    def test_sampling(self):
        session = self.reading()
        best = max(range(2048), key=session.logits().__getitem__)
        with session.fork() as fork:
            fork.set_logit_bias({best: -float("inf")})
            second = fork.step()
            self.assertNotEqual(second, best)
            fork.set_logit_bias(None)
            mask = [0] * 64
            mask[second // 32] = 1 << second % 32
            fork.set_token_mask([word - (word >> 31 << 32) for word in mask])
            self.assertEqual(self.steps(fork, 2), [second, second])
            fork.set_token_mask()
            fork.accept(best)
        runs = []
        for _ in range(2):
            session.reset()
            session.set_sampling(temperature=1, top_k=50, top_p=0.9, min_p=0.01, repeat_penalty=1.2, seed=7)
            session.prefill(self.model.prompt(STORY))
            runs.append(self.steps(session, 8))
        self.assertEqual(*runs)
        with self.assertRaises(kvc.InvalidError):
            session.set_sampling(top_p=2)
        more = dict(min_p=0.02, repeat_penalty=2, repeat_window=9)
        with self.model.session(temperature=1, top_k=50, top_p=0.9, seed=7, **more) as made:
            session.reset()
            session.set_sampling(temperature=1, top_k=50, top_p=0.9, seed=7, **more)
            for each in (made, session):
                each.prefill(self.model.prompt(STORY))
            self.assertEqual(self.steps(made, 16), self.steps(session, 16))
        with self.assertRaises(kvc.InvalidError):
            self.model.session(min_p=2)

    def test_conversation(self):
        with self.model.session("snapkv:budget=64,window=8", on_full="slide") as session:
            with self.assertRaises(kvc.UnsupportedError):
                session.say("hello")
            session.set_turn_marks("user", "Q: ", "\n")
            session.set_turn_marks("assistant", "A:", "\n")
            session.say("Where is 🐙?")
            self.assertTrue("".join(session.generate(max_tokens=5)))
            session.say("And now?", queue=True)
            self.assertLess(session.stats.prompt_progress, 1)
            self.assertTrue("".join(session.generate(max_tokens=5)))
            self.assertEqual(session.progress, 1)
            for role in ("user", "assistant"):
                session.set_turn_marks(role, None, None)
            with self.assertRaises(kvc.UnsupportedError):
                session.say("hello", answer=False)

    def test_only_the_user_is_answered(self):
        said, begun = self.model.prompt("<a>"), self.model.tokenize("<")
        for role, answer, n in (("system", {}, len(said)), ("assistant", {}, len(said)),
                                ("user", {}, len(said) + len(begun)),
                                ("user", {"answer": None}, len(said) + len(begun)),
                                ("user", {"answer": False}, len(said)),
                                ("system", {"answer": True}, len(said) + len(begun))):
            with self.subTest(role=role, **answer), self.model.session() as session:
                for marked in ("system", "user", "assistant"):
                    session.set_turn_marks(marked, "<", ">")
                session.say("a", role, **answer)
                self.assertEqual(session.stats.n_tokens, n)

    def test_branches(self):
        with self.model.session("snapkv:budget=64,window=8") as session, tempfile.TemporaryDirectory() as folder:
            ids = self.model.prompt(STORY * 10)
            session.append(ids)
            session.compress()
            self.assertGreater(session.trim(16), 0)
            self.assertEqual(session.stats.n_slots, 16 * 24)
            self.assertEqual(session.stats.n_prompt, len(ids))
            positions = session.kept(2, 1)
            self.assertEqual(sorted(positions), list(positions))
            path = os.path.join(folder, "Sitzung-ß🐙")
            session.save(path)
            data = session.save_memory()
            with open(path, "rb") as file:
                self.assertEqual(file.read(), data)
            others = [session.fork(), self.model.restore(path), self.model.restore_memory(data),
                      self.model.restore_memory(bytearray(data))]
            wanted = self.steps(session, 5)
            for other in others:
                with other:
                    self.assertEqual(self.steps(other, 5), wanted)
            damaged = bytearray(data)
            damaged[len(data) // 2] ^= 1
            with self.assertRaises(kvc.BadModelError):
                self.model.restore_memory(damaged)
        full = self.reading()
        before = self.steps(full, 3)
        full.rewind(3)
        full.accept(before[0])
        self.assertEqual(self.steps(full, 2), before[1:])
        with self.assertRaises(TypeError):
            copy.copy(full)  # one cache has one owner

    def test_where_a_text_begins(self):
        begun = self.model.session()
        begun.read(STORY)
        n, logits = begun.stats.n_prompt, list(begun.logits())
        begun.rewind(n)  # empty again, though its statistics count a prompt
        self.assertEqual((begun.stats.n_prompt, begun.stats.n_tokens), (n, 0))
        begun.read(STORY)
        self.assertEqual(list(begun.logits()), logits)
        plain, queued = self.model.session(), self.model.session()
        plain.prefill(self.model.prompt(STORY))
        queued.enqueue(self.model.prompt(STORY))
        for session in (plain, queued):  # behind what is only queued a text goes on
            session.read(" The code of")
        self.assertEqual(plain.stats.n_prompt, queued.stats.n_prompt)
        self.assertEqual(list(plain.logits()), list(queued.logits()))

    def test_what_reset_leaves(self):
        session, ids = self.model.session("snapkv:budget=64,window=8"), self.model.prompt(STORY * 9)
        session.prefill(ids)
        session.trim(20)
        session.set_logit_bias({5: 1000.0})
        for role in ("user", "assistant"):
            session.set_turn_marks(role, "<", ">")
        for token in (5, 2016):
            session.reset()
            session.prefill(ids)
            self.assertEqual((len(session.kept(0, 0)), session.step()), (20, token))
            session.set_token_mask([0] * 63 + [1])
        session.reset()
        session.say("a")  # with its marks
        self.assertEqual(session.stats.n_tokens, len(self.model.prompt("<a>")) + len(self.model.tokenize("<")))

    def test_kept_of_dropped_tokens(self):
        with self.model.session("snapkv:budget=64,reducer=rest") as session:
            ids = self.model.prompt(STORY * 9)
            session.prefill(ids)
            first, *others = session.kept(0, 0)
            self.assertEqual(first, len(others) - len(ids))  # minus those that it stands for
            self.assertTrue(all(0 <= position < len(ids) for position in others))

    def test_read_behind_an_answer_that_stopped(self):
        """The token that stopped it comes first, unless a queued prompt is behind it already."""
        stop, one, two = self.model.info.eos_token, *(self.model.tokenize(text, goes_on=True) for text in (" a", " b"))
        queued, read, plain, closed = (self.reading() for _ in range(4))
        for session in (queued, read):
            session.set_token_mask([1 << stop] + [0] * 63)
            self.assertIsNone(session.step())
            self.assertEqual(session.stats.stop_token, stop)
            session.set_token_mask(None)
        queued.enqueue(one)
        queued.read(" b")
        plain.prefill([*one, *two])
        read.read(" b")
        closed.prefill([stop, *two])
        self.assertEqual(list(queued.logits()), list(plain.logits()))
        self.assertEqual(list(read.logits()), list(closed.logits()))

    def test_without_its_model(self):
        with kvc.Model(RECALL) as model:
            session = model.session()
            session.read(STORY)
        self.assertEqual(len(session.logits()), 2048)
        self.assertTrue("".join(session.generate(max_tokens=4)))
        session.close()

    def test_batch(self):
        one, two, three = self.reading(), self.reading(), self.model.session()
        wanted = self.steps(self.reading(), 3)
        three.enqueue(self.model.prompt(STORY * 20))
        self.assertEqual(kvc.batch_step([one, two, three], prompt_tokens=16), [wanted[0], wanted[0], kvc.READING])
        one.cancel()
        failed, token = kvc.batch_step([one, two])
        self.assertIsInstance(failed, kvc.CancelledError)
        self.assertEqual(token, wanted[1])
        logits = numpy.zeros((2, 2048), numpy.float32) if numpy else array.array("f", bytes(4 * 2 * 2048))
        self.assertEqual(kvc.batch_logits([one, two], logits), [None, None])
        self.assertEqual(list(logits[1] if numpy else logits[2048:]), list(two.logits()))
        with self.assertRaises(kvc.BusyError):
            kvc.batch_step([one, one])
        with self.assertRaises(kvc.Error):
            kvc.batch_logits([one, two], array.array("f", bytes(8)))
        with self.assertRaises(kvc.InvalidError):
            kvc.batch_step([])
        self.assertIsInstance(one.step(), int)

    def test_closed_in_a_batch(self):
        """It has its error, and the others go on, their logits where they belong."""
        closed, one, two = self.reading(), self.reading(), self.reading(max_tokens=len(self.model.prompt(STORY)))
        wanted = self.steps(self.reading(), 2)
        two.step()
        closed.close()
        for sessions in ([closed, one, two], [one, closed, two]):
            first, second, last = kvc.batch_step(sessions)
            if sessions[0] is one:
                first, second = second, first
            self.assertIsInstance(first, kvc.ClosedError)
            self.assertEqual(str(first), "the session is closed")
            self.assertEqual(second, wanted.pop(0))
            self.assertIsInstance(last, kvc.ContextFullError)
        self.assertEqual([str(error) for error in kvc.batch_step([closed, closed])], ["the session is closed"] * 2)
        logits = numpy.zeros((3, 2048), numpy.float32) if numpy else array.array("f", bytes(4 * 3 * 2048))
        other = self.reading()
        got = kvc.batch_logits([one, closed, other], logits)
        self.assertEqual(got[::2], [None, None])
        self.assertIsInstance(got[1], kvc.ClosedError)
        rows = logits if numpy else [logits[i * 2048:(i + 1) * 2048] for i in range(3)]
        self.assertEqual(list(rows[0]), list(one.logits()))
        self.assertEqual(list(rows[2]), list(other.logits()))
        with self.assertRaises(kvc.BufferTooSmallError):
            kvc.batch_logits([one, closed, other], array.array("f", bytes(4 * 2 * 2048)))
        with kvc.Model(STORIES) as model:  # of 512 tokens, which says nothing of the rows of others
            foreign = model.session()
            foreign.close()
            got = kvc.batch_logits([foreign, one, other], logits)
        self.assertIsInstance(got[0], kvc.ClosedError)
        self.assertEqual(got[1:], [None, None])
        rows = logits if numpy else [logits[i * 2048:(i + 1) * 2048] for i in range(3)]
        self.assertEqual(list(rows[1]), list(one.logits()))
        self.assertEqual(list(rows[2]), list(other.logits()))

    def test_texts_of_a_batch(self):
        """The last that failed has the library's text, the others a sentence; none has only a name."""
        ids = self.model.prompt(STORY)
        full = [self.reading(max_tokens=len(ids)) for _ in range(3)]
        for session in full:
            session.step()
        empty, cancelled = self.model.session(), self.reading()
        cancelled.cancel()
        first, _, new, asked, last = kvc.batch_step([*full[:2], empty, cancelled, full[2]])
        self.assertEqual(first.message, "the session holds max_tokens tokens")
        self.assertEqual(last.message, f"the session holds max_tokens={len(ids)} tokens")
        self.assertIn("no prompt", new.message)
        self.assertIn("cancelled", asked.message)
        self.assertEqual(str(first), "the session holds max_tokens tokens (CONTEXT_FULL)")

    def test_the_interpreter_goes_on(self):
        """Other threads run while the library works."""
        session = self.model.session(on_full="evict")
        ids = self.model.prompt(STORY * 40)
        counted, done = [0], threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1

        counter = threading.Thread(target=count)
        counter.start()
        before = counted[0]
        session._handle.call(_flat.kvc_session_prefill, ids)  # in this thread
        self.assertGreater(counted[0] - before, 1000)
        done.set()
        counter.join()


if __name__ == "__main__":
    main()
