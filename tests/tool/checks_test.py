#!/usr/bin/env python3
"""The checks of sources and documents (.ci/check_*.py) find what they are there for: a tree with one fault each.
Usage: checks_test.py SOURCE"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1))


class Checks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvc checks ")
        self.addCleanup(folder.cleanup)
        self.tree = folder.name

    def take(self, *paths):
        for path in paths:
            source, target = os.path.join(SOURCE, path), os.path.join(self.tree, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(source):
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("build*", "__pycache__"))
            else:
                shutil.copy(source, target)

    def change(self, path, old, new):
        path = os.path.join(self.tree, path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new, 1))

    def check(self, name, **environment):
        done = subprocess.run([sys.executable, os.path.join(SOURCE, ".ci", name), self.tree], capture_output=True,
                              text=True, check=False, env={**os.environ, **environment})
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def expect(self, name, *problems):
        code, text = self.check(name)
        self.assertEqual(code, 1, text)
        for problem in problems:
            self.assertIn(problem, text)
        self.assertIn(f" {len(problems)} problems", text)

    def test_layers(self):
        self.take("lib", "include")
        self.assertEqual(self.check("check_layers.py")[0], 0)
        self.change("lib/ops/rope.cc", "#include", '#include "lib/ops/cpu/cpu_device.h"\n#include')
        self.expect("check_layers.py", '"lib/ops/cpu/cpu_device.h": lib/ops may not include lib/ops/cpu')

    def test_layers_know_every_row(self):
        self.take("lib", "include")
        self.change("lib/compress/scorers/key_norm.cc", "extern const Scorer kScorerKeyNorm", "const Scorer kScorerKey")
        self.change("lib/compress/methods/knorm.cc", "constexpr Method kMethodKnorm", "const Method kMethodKnorm")
        self.expect("check_layers.py", "scorers: no row kScorerKeyNorm", "methods: no row kMethodKnorm")

    def test_layers_keep_scorers_apart(self):
        self.take("lib", "include")
        self.change("lib/engine/session.cc", "namespace kvc {", "namespace kvc {\nconst void* k = &kScorerKeyNorm;")
        self.expect("check_layers.py", "kScorerKeyNorm: only a method's own files, and the lists, name it")

    def test_bindings_hand_on_every_field(self):
        self.take("include", "bindings")
        self.assertEqual(self.check("check_bindings.py")[0], 0)
        self.change("include/kvc/kvc.h", "n_compactions", "n_new")
        self.expect("check_bindings.py", *(f"{language}: kvc_session_stats.n_new is not handed on"
                                           for language in ("java", "csharp", "go", "python")))

    def test_sections_of_methods(self):
        sys.path.insert(0, os.path.join(SOURCE, ".ci"))
        import check_docs  # all of it needs the whole tree
        for text, missing in (("// PAGE 1.7, 2.5", []), ("# PAGE 4\n// PAGE 4.4 b", []),
                              ("// (PAGE 1.7, 9.1 and 2.99)", ["9.1", "2.99"])):
            self.take("docs/methods.md")
            os.makedirs(os.path.join(self.tree, "lib"), exist_ok=True)
            with open(os.path.join(self.tree, "lib/a.cc"), "w", encoding="utf-8") as file:
                file.write(text.replace("PAGE", "methods.md") + "\n")
            self.assertEqual(list(check_docs.check_sections(self.tree)),
                             [f"lib/a.cc:1: methods.md {number}, and docs/methods.md has no such section"
                              for number in missing])

    def test_paths_in_documents(self):
        sys.path.insert(0, os.path.join(SOURCE, ".ci"))
        import check_docs
        text = "`lib/ops/rope.cc` `lib/ops/rope` `lib/ops/NAME.cc` `lib/net45` `tools/none.cc` `lib/ops/none`"
        self.assertEqual(list(check_docs.check_paths(SOURCE, "docs/a.md", text)),
                         ["docs/a.md: `tools/none.cc` does not exist", "docs/a.md: `lib/ops/none` does not exist"])

    def test_format(self):
        self.take("lib/base/half.h", ".clang-format")
        self.assertEqual(self.check("check_format.py", PATH=self.tree),
                         (0, "skipped: clang-format 14 was not found\n"))
        code, text = self.check("check_format.py")
        if text.startswith("skipped"):
            self.skipTest(text)
        self.assertEqual((code, text), (0, "format: 1 files, 0 problems\n"))
        self.change("lib/base/half.h", "namespace kvc {", "namespace  kvc {")
        self.expect("check_format.py", "lib/base/half.h: clang-format lays it out otherwise: ./dev format")


unittest.main()
