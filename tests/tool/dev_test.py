#!/usr/bin/env python3
"""./dev in a tree of its own, with programs that stand for CMake, Ninja and apt-get: dev_test.py SOURCE

What it says on a machine that lacks something, of arguments that mean nothing, and that it waits for whoever works in
the same build folder or installs packages."""
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))
REAL = ["awk", "basename", "bash", "cat", "dirname", "env", "flock", "grep", "ls", "mkdir", "mktemp", "nproc", "paste",
        "rm", "sed", "tail"]


class Dev(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvc dev ")  # with a blank
        self.addCleanup(folder.cleanup)
        self.tree, self.bin = os.path.join(folder.name, "tree"), os.path.join(folder.name, "bin")
        os.makedirs(os.path.join(self.tree, ".ci"))
        os.mkdir(self.bin)
        for name in ("dev", ".ci/packages.txt", "CMakePresets.json"):
            shutil.copy(os.path.join(SOURCE, name), os.path.join(self.tree, name))
        for name in REAL:
            path = shutil.which(name)
            if path is None:
                self.skipTest(f"no {name} here")
            os.symlink(path, os.path.join(self.bin, name))

    def program(self, name, text="exit 0"):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{shutil.which('bash')}\n{text}\n")
        os.chmod(path, 0o755)

    def start(self, *arguments):
        return subprocess.Popen([os.path.join(self.tree, "dev"), *arguments], env={"PATH": self.bin, "HOME": self.tree},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run_dev(self, *arguments):
        process = self.start(*arguments)
        return process.communicate(timeout=60)[0], process.returncode

    def test_arguments_that_mean_nothing(self):
        for arguments in (["build", "foo"], ["lint", "--tdy"], ["docs", "--model"], ["format", "."],
                          ["test", "--go", "x"], ["test", "--aarch64", "x"], ["test", "--emu", "x", "y"],
                          ["test", "x", "y"],
                          ["fuzz", "60", "model", "more"]):
            text, code = self.run_dev(*arguments)
            self.assertEqual(code, 1, arguments)
            self.assertEqual(text, f"dev: '{arguments[-1]}' means nothing here: ./dev {arguments[0]} --help\n")

    def test_refuses_before_it_installs(self):
        self.program("apt-get", "echo asked to install")
        self.program("dpkg-query", "exit 1")
        os.symlink(sys.executable, os.path.join(self.bin, "python3"))
        shutil.copytree(os.path.join(SOURCE, "packaging"), os.path.join(self.tree, "packaging"))
        os.makedirs(os.path.join(self.tree, "tests/fuzz"))
        for arguments, said in ((["package", "foo"], "no kind 'foo': tar, "),
                                (["fuzz", "60", "foo"], "no fuzz target 'foo'")):
            text, code = self.run_dev(*arguments)
            self.assertEqual(code, 1, text)
            self.assertIn(said, text)
            self.assertNotIn("install", text)

    def test_explains_the_demo_without_building(self):
        text, code = self.run_dev("demo", "--help")
        self.assertEqual(code, 0, text)
        self.assertTrue(text.startswith("  demo [OPTIONS] "), text)
        os.makedirs(os.path.join(self.tree, "build/bin"))
        kvc = os.path.join(self.tree, "build/bin/kvc")
        with open(kvc, "w", encoding="utf-8") as program:
            program.write("#!/bin/sh\necho '  --model FILE REQUIRED'\n")
        os.chmod(kvc, 0o755)
        text, code = self.run_dev("demo", "--help")
        self.assertEqual(code, 0, text)
        self.assertTrue(text.endswith("it gives by itself:\n  --model FILE\n"), text)
        self.assertNotIn("building", text)

    def test_names_what_is_missing(self):
        self.program("cmake")
        text, code = self.run_dev("build")
        self.assertEqual(code, 1)
        self.assertIn("this is no Debian or Ubuntu, and it lacks ninja c++;", text)
        self.program("dpkg-query")  # alone it is no Debian
        self.assertIn("it lacks ninja c++;", self.run_dev("build")[0])

    def build_with_stand_ins(self):
        for name in ("cmake", "ninja", "c++"):
            self.program(name)

    def test_waits_for_who_builds_there(self):
        self.build_with_stand_ins()
        self.assertEqual(self.run_dev("build"), ("configuring build/\nbuilding build/\n", 0))
        with open(os.path.join(self.tree, "build", ".lock"), "w", encoding="utf-8") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            process = self.start("build")
            self.assertEqual(process.stdout.readline(), "waiting for another ./dev that works in build/\n")
            self.assertIsNone(process.poll())
        self.assertEqual(process.communicate(timeout=60)[0], "configuring build/\nbuilding build/\n")
        self.assertEqual(process.returncode, 0)

    def test_builds_what_a_pattern_needs(self):
        self.build_with_stand_ins()
        shutil.copy(os.path.join(SOURCE, ".ci/count_tests.py"), os.path.join(self.tree, ".ci"))
        self.program("ninja", f"""[[ " $* " != *' -t '* ]] || {{ echo 'a_test: phony'; echo 'bin/kvc: LINKER'; exit; }}
[[ "$*" == *build.ninja ]] || echo "$*" >'{self.tree}/built'""")
        listed = os.path.join(self.tree, "listed")
        self.program("ctest", f"""[[ " $* " == *' -N '* ]] && {{ cat '{listed}'; exit; }}
echo "ran $*"; echo '<a><testcase status="run" name="a"/></a>' >'{self.tree}/build-test/junit.xml'""")
        folder = os.path.join(self.tree, "build-test")
        program, check = f"1: Test command: {folder}/tests/a\n  Test   #1: a_test\n", \
            "2: Test command: /usr/bin/python3 \"/x/check.py\" \"/x\"\n  Test  #2: check\n"
        absent = f"Could not find executable {folder}/bin/kvc\n3: Test command:  \"convert\"\n  Test #3: convert\n"
        script = f"4: Test command: /usr/bin/python3 \"/x/y.py\" \"{folder}/bin/kvc\"\n  Test  #4: script\n"
        for tests, built in ((program, "a_test"), (check, None), (program + check, "a_test"),
                             (program + script, ""), (script, ""), (absent, "bin/kvc")):
            with open(listed, "w", encoding="utf-8") as file:
                file.write(tests)
            self.assert_built("x", built)

    def assert_built(self, pattern, wanted):
        path = os.path.join(self.tree, "built")
        if os.path.exists(path):
            os.remove(path)
        text, code = self.run_dev("test", pattern)
        self.assertEqual(code, 0, text)
        self.assertIn(f" -R {pattern} ", text)
        self.assertTrue(text.endswith("1 passed, 0 failed\n"), text)
        if wanted is None:
            self.assertFalse(os.path.exists(path), text)
            return
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read().split("--quiet")[1].strip(), wanted)

    def test_what_a_build_leaves_running_holds_nothing(self):
        self.build_with_stand_ins()
        self.program("ninja", f"sleep 600 >/dev/null 2>&1 & echo $! >'{self.tree}/left'")
        os.symlink(shutil.which("sleep"), os.path.join(self.bin, "sleep"))
        for _ in range(2):  # the second would wait for what the first has left
            self.assertEqual(self.run_dev("build"), ("configuring build/\nbuilding build/\n", 0))
            with open(os.path.join(self.tree, "left"), encoding="utf-8") as file:
                left = int(file.read())
            self.addCleanup(os.kill, left, signal.SIGKILL)
            os.kill(left, 0)  # it runs

    def test_waits_for_who_installs(self):
        self.build_with_stand_ins()
        for name in ("dpkg-query", "dpkg", "sleep"):
            self.program(name)
        self.program("id", "echo 0")
        self.program("apt-get", f"""tries=$(cat '{self.tree}/tries' 2>/dev/null)
echo "x$tries" >'{self.tree}/tries'
[[ ${{#tries}} -ge 3 ]] || {{ echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1 (apt)'
exit 100; }}""")
        text, code = self.run_dev("build")
        self.assertEqual(code, 0, text)
        self.assertEqual(text.count("waiting for another installation to end\n"), 1)
        self.program("apt-get", "echo 'E: Unable to locate package cmake'; exit 100")
        text, code = self.run_dev("build")
        self.assertEqual(code, 1)
        self.assertIn("E: Unable to locate package cmake\ndev: apt-get could not install: cmake", text)

    @unittest.skipIf(shutil.which("ctest") is None, "no ctest here")
    def test_patterns_are_what_ctest_takes(self):
        """CTest has room for nine groups in parentheses, and finds no test by a pattern that has more."""
        with open(os.path.join(SOURCE, "dev"), encoding="utf-8") as file:
            lines = [line for line in file if re.match(r"\w+_tests\+?='", line)]
        names = sorted({line.split("=")[0].rstrip("+") for line in lines})
        self.assertEqual(names, ["device_tests", "kernel_tests", "not_device_tests"])
        with open(os.path.join(self.tree, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write("add_test(device_parity_test true)\nadd_test(engine_idle_test true)\n")
        for name, found in (("device_tests", 2), ("kernel_tests", 1), ("not_device_tests", 1)):
            done = subprocess.run(["bash", "-c", f'{"".join(lines)}ctest --test-dir "$1" -N -R "${name}"', "bash",
                                   self.tree], capture_output=True, text=True, check=True)
            self.assertIn(f"Total Tests: {found}", done.stdout + done.stderr, name)


unittest.main()
