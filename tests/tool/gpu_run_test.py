"""bench/gpu_run.py: programs that end, fail, hang and cannot be killed, and files that are whole; and that the runner
of the tests leaves its results behind whenever it is cut off."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_run  # noqa: E402
import gpu_tests  # noqa: E402

HANGS = ["sh", "-c", "exec sleep 1000"]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def read(self, *names):
        with open(os.path.join(self.folder, *names), encoding="utf-8") as file:
            return file.read()


class Programs(unittest.TestCase):
    def setUp(self):
        self.addCleanup(gpu_run.left_behind.clear)

    def stuck(self, name):
        """As in a driver: signals are no end of it. What was started is ended behind the test."""
        started = []
        begin = subprocess.Popen.__init__

        def note(program, *args, **options):
            begin(program, *args, **options)
            started.append(program)

        for change in (mock.patch.object(subprocess.Popen, "__init__", note), mock.patch.object(gpu_run, "GRACE", 0.1),
                       mock.patch.object(gpu_run, "LAST_WORDS", 0.1), mock.patch.object(subprocess.Popen, name),
                       mock.patch.object(subprocess.Popen, "terminate"), mock.patch.object(os, "killpg")):
            change.start()
            self.addCleanup(change.stop)

        def stop():
            for program in started:
                os.kill(program.pid, 9)
                program.wait()

        self.addCleanup(stop)

    def test_a_program_says_what_it_wrote(self):
        self.assertEqual(gpu_run.run(["sh", "-c", "echo 1; echo 2 >&2"], 60), ("1\n", None))
        self.assertEqual(gpu_run.run(["sh", "-c", "echo 1; echo 2 >&2; exit 3"], 60), (None, "2"))
        self.assertEqual(gpu_run.run(["sh", "-c", "exit 3"]), (None, "exit code 3"))
        self.assertIn("No such file", gpu_run.run(["/none"])[1])

    def test_one_that_hangs_is_killed(self):
        done = gpu_run.finished(["sh", "-c", "echo 1; exec sleep 1000"], 0.5)
        self.assertEqual((done.code, done.out), (None, "1\n"))
        with self.assertRaises(ProcessLookupError):
            os.kill(done.pid, 0)
        self.assertEqual(gpu_run.run(HANGS, 0.1), (None, "stopped after 0 s: out of time"))
        self.assertEqual(gpu_run.left_behind, [])

    def test_one_whose_child_holds_its_pipes_is_not_waited_for(self):
        out, error = gpu_run.run(["sh", "-c", "sleep 1000 & echo $!"], 60)
        self.assertIsNone(error)
        os.kill(int(out), 9)  # it is there

    def test_one_that_cannot_be_killed_is_left_behind_and_told(self):
        self.stuck("kill")
        self.assertIsNone(gpu_run.finished(HANGS, 0.1).code)
        self.assertRegex(gpu_run.left_behind[0], r"^sh \(process \d+\)$")
        lines = gpu_run.Lines(HANGS)
        self.assertIsNone(lines.next(0.1))
        self.assertEqual(gpu_run.last_word(*lines.close()), "it did not end when it was killed")
        self.assertEqual(len(gpu_run.left_behind), 2)

    def test_a_test_that_cannot_be_killed_takes_no_other_along(self):
        self.stuck("kill")
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "logs"))
            path = os.path.join(folder, "hangs")
            with open(path, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\nexec sleep 1000\n")
            os.chmod(path, 0o755)
            test = {"name": "hangs", "program": "hangs", "environment": [], "timeout": 0.2}
            verdict, _ = gpu_tests.run_one(folder, test, time.monotonic() + 60)
            self.assertEqual(verdict, "failed: took too long, and it did not end when it was killed")

    def test_lines_are_given_as_they_come(self):
        kept = []
        rows, error = gpu_run.lines_of(["sh", "-c", "echo '{\"a\": 1}'; echo '{\"a\": 2}'; echo why >&2; exit 1"], 60,
                                       keep=lambda row: kept.append(row["a"]))
        self.assertEqual((rows, kept, error), ([{"a": 1}, {"a": 2}], [1, 2], "why"))


class Files(Folder):
    def test_what_was_there_stays_until_the_new_one_is_whole(self):
        path, copies = os.path.join(self.folder, "a.json"), os.path.join(self.folder, "copies")
        gpu_run.write_whole(path, "1", copies)
        self.assertEqual((self.read("a.json"), self.read("copies", "a.json")), ("1", "1"))
        with mock.patch.object(os, "replace", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            gpu_run.write_whole(path, "2", copies)
        self.assertEqual((self.read("a.json"), self.read("copies", "a.json")), ("1", "1"))
        gpu_run.write_whole(path, "3", copies)
        self.assertEqual((self.read("a.json"), self.read("copies", "a.json")), ("3", "3"))
        self.assertEqual(os.listdir(copies), ["a.json"])

    def test_a_folder_that_takes_no_copy_is_told(self):
        path = os.path.join(self.folder, "a")
        with mock.patch("sys.stderr") as said:
            gpu_run.write_whole(path, "1", os.path.join(path, "below a file"))
        self.assertIn("no copy of", "".join(call.args[0] for call in said.write.call_args_list))
        self.assertEqual(self.read("a"), "1")


class Tests(Folder):
    def test_results_are_there_after_every_test(self):
        os.makedirs(os.path.join(self.folder, "tests"))
        tests = []
        for name, script in (("a", "echo word"), ("b", "cp ../tests.txt ../seen.txt")):
            path = os.path.join(self.folder, "tests", name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\ncd tests\n{script}\n")
            os.chmod(path, 0o755)
            tests.append({"name": name, "program": f"tests/{name}", "environment": [], "timeout": 60})
        with open(os.path.join(self.folder, "tests.json"), "w", encoding="ascii") as file:
            json.dump(tests, file)
        results = gpu_tests.Results(self.folder, 2, 1, None)
        self.assertIn("0 of 2 test programs passed, 0 failed, 0 out of time, 2 to come;", self.read("tests.txt"))
        results.add("a", "passed", 1.0)
        self.assertIn("a: passed, 1.0 s\n1 of 2 test programs passed, 0 failed, 0 out of time, 1 to come;",
                      self.read("tests.txt"))
        copies = os.path.join(self.folder, "copies")
        self.assertTrue(gpu_tests.run(self.folder, 1, None, copies))
        self.assertIn("to come", self.read("seen.txt"))
        self.assertEqual(self.read("copies", "tests.txt"), self.read("tests.txt"))
        self.assertEqual(self.read("copies", "logs", "a.txt"), "word\n")
        self.assertIn("2 of 2 test programs passed, 0 failed, 0 out of time; ", self.read("tests.txt"))


if __name__ == "__main__":
    unittest.main()
