"""What the tests of packages share: packages are made, unpacked, and asked as a user would."""
import glob
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "packaging"))
from emulate import AARCH64 as QEMU, BESIDE_LIBC6  # noqa: E402,F401

OTHER = []  # the folder of other_root
PROMPT = "Ada lives in Paris. Ada lives in"
ARM_CC = ["aarch64-linux-gnu-gcc", "-std=c99"]


class Failure(Exception):
    pass


class Skipped(Exception):
    """What a part needs is not here."""


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise Failure(f"({done.returncode}) {shlex.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def expect(condition, message):
    if not condition:
        raise Failure(message)


def copy_sources(root):
    """All that git knows, as it is now, committed or not, with the times of a fresh clone."""
    run(["git", "clone", "-q", "--no-checkout", ROOT, root])
    for name in run(["git", "-C", ROOT, "ls-files", "-z"]).split("\0")[:-1]:
        if os.path.lexists(os.path.join(ROOT, name)):
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            shutil.copy(os.path.join(ROOT, name), os.path.join(root, name), follow_symlinks=False)
    run(["git", "-C", root, "add", "-A"])


def other_root():
    """The same sources under another path, where nothing is built yet; what is set up for both is lent. It stays for
    all the kinds of one call."""
    if not OTHER:
        OTHER.append(tempfile.TemporaryDirectory(prefix="kvc-built-elsewhere-"))
        root = OTHER[0].name
        copy_sources(root)
        for name in ("build-third-party", "build-tools"):
            os.symlink(os.path.join(ROOT, name), os.path.join(root, name))
    return OTHER[0].name


def make(*kinds):
    """./dev package, here and, from nothing and without a cache of objects, in another folder: both have to give the
    same bytes. Returns the files of this one."""
    versions = []
    for root, more in ((ROOT, {}), (other_root(), {"CCACHE_DISABLE": "1"})):
        out, files = os.path.join(root, "out"), {}
        shutil.rmtree(out, ignore_errors=True)
        run([sys.executable, os.path.join(root, "packaging/package.py"), *kinds], env=dict(os.environ, **more))
        for name in sorted(os.listdir(out)):
            with open(os.path.join(out, name), "rb") as file:
                files[name] = file.read()
        versions.append(files)
    expect(versions[0] and versions[0].keys() == versions[1].keys(), f"{kinds}: other files the second time")
    for name, content in versions[0].items():
        if content != versions[1][name]:
            second = os.path.join(ROOT, "out", name + ".second")
            with open(second, "wb") as file:
                file.write(versions[1][name])
            raise Failure(f"{name}: other bytes the second time: {second}")
    return [os.path.join(ROOT, "out", name) for name in versions[0]]


def unpack(path, folder):
    with tarfile.open(path) as tar:
        expect(all(not member.name.startswith(("/", "..")) for member in tar), f"{path}: a name leads outside")
        tar.extractall(folder)
    (name,) = os.listdir(folder)
    return os.path.join(folder, name)


def unzip(path, folder):
    with zipfile.ZipFile(path) as packed:
        expect(packed.testzip() is None, f"{path} is damaged")
        packed.extractall(folder)
        return packed.infolist()


def check_meta(folder, parts, sbom="sbom.spdx.json"):
    with open(os.path.join(folder, sbom), encoding="utf-8") as file:
        text = json.load(file)
    names = {package["name"] for package in text["packages"]}
    expect(parts <= names and text["spdxVersion"] == "SPDX-2.3", f"{folder}: the parts are {names}")
    with open(os.path.join(folder, "NOTICE"), encoding="utf-8") as file:
        notice = file.read().replace("nlohmann/json", "nlohmann-json")
    unnamed = [package["name"] for package in text["packages"][1:] if package["name"] not in notice]
    expect(not unnamed, f"{folder}: NOTICE does not name {unnamed}")


def answer_with(program, model, before=(), environment=None):
    return run([*before, program, model, "snapkv:budget=32", PROMPT, "8"], env=environment)


def model_of(kvc, folder, before=()):
    model = os.path.join(folder, "recall.kvc")
    run([*before, kvc, "convert", os.path.join(ROOT, "models/recall"), model])
    return model


def build(toolchain, target, *options, language="go"):
    """A target of the build folder of a toolchain file, made as packages are, also where nothing was built before."""
    code = "import sys, package; package.build(sys.argv[1], targets=sys.argv[2:3], language=sys.argv[3], " \
           "options=sys.argv[4:])"
    run([sys.executable, "-c", code, toolchain, target, language, *options], cwd=os.path.join(ROOT, "packaging"))
    return os.path.join(ROOT, "build-package", toolchain)


def any_kvc():
    """A kvc program of this machine, for a package that has none."""
    found = [path for path in (os.path.join(ROOT, "build/bin/kvc"),
                               os.path.join(ROOT, "build-package/release-linux-x86_64/bin/kvc"))
             if os.path.exists(path)]
    return found[0] if found else os.path.join(build("release-linux-x86_64", "bin/kvc"), "bin/kvc")


def models_of_bindings(folder):
    """Environment of the programs in tests/bindings: the models, and nothing that leads to a build."""
    kvc = any_kvc()
    recall = os.path.join(ROOT, "models/recall")
    tables = [os.path.join(recall, "head_scores.json"), *sorted(glob.glob(os.path.join(recall, "scores/*.json")))]
    models = {"KVC_RECALL": os.path.join(folder, "binding-recall.kvc"),
              "KVC_STORIES": os.path.join(folder, "binding-stories.kvc")}
    run([kvc, "convert", recall, models["KVC_RECALL"], *("--head-scores=" + table for table in tables)])
    run([kvc, "convert", os.path.join(ROOT, "models/stories260k/stories260K.bin"), models["KVC_STORIES"]])
    kept = {key: value for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "LD_LIBRARY_PATH", "MONO_PATH", "CLASSPATH", "PKG_CONFIG_PATH")}
    return {**kept, **models, "KVC_SOURCE": ROOT, "PYTHONDONTWRITEBYTECODE": "1"}


def first_lines(language, fence, name, commands, environment):
    """The first program of the document of a language, as a reader would run it."""
    print(run([sys.executable, os.path.join(ROOT, "tests/bindings/first_lines_test.py"), f"docs/{language}.md", fence,
               name, " 386", *commands], env=environment).strip())
