#!/usr/bin/env python3
"""./dev test --packages: builds every package, twice, compares the two, installs what came out into a folder of its
own and uses it as a user would. Usage: built_packages_test.py ROOT [PART]...   the last line counts

  tar          linux-x86_64: reproducible; glibc floor; a C program with each library
  tar-aarch64  the same under qemu-aarch64
  tar-musl     static programs that run here
  deb          lintian finds nothing; what dpkg-deb unpacks is used; Depends and files fit together
  source       compiled by a loop over cc and c++, then linked with the C sample
  elf          check_elf.py finds planted faults"""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.getcwd()
PROMPT = "Ada lives in Paris. Ada lives in"
QEMU = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]


class Failure(Exception):
    pass


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise Failure(f"({done.returncode}) {shlex.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def expect(condition, message):
    if not condition:
        raise Failure(message)


def make(*kinds):
    """./dev package, twice: the second one has to give the same bytes. Returns the new files."""
    out = os.path.join(ROOT, "out")
    versions = []
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(os.path.join(ROOT, "build-package/stage"), ignore_errors=True)
        run([sys.executable, os.path.join(ROOT, "packaging/package.py"), *kinds])
        files = {}
        for path in sorted(glob.glob(os.path.join(out, "*"))):
            with open(path, "rb") as file:
                files[path] = file.read()
        versions.append(files)
    expect(versions[0] and versions[0].keys() == versions[1].keys(), f"{kinds}: other files the second time")
    for path, content in versions[0].items():
        expect(content == versions[1][path], f"{path}: other bytes the second time")
    return list(versions[0])


def unpack(path, folder):
    with tarfile.open(path) as tar:
        expect(all(not member.name.startswith(("/", "..")) for member in tar), f"{path}: a name leads outside")
        tar.extractall(folder)
    (name,) = os.listdir(folder)
    return os.path.join(folder, name)


def check_meta(folder, parts):
    with open(os.path.join(folder, "sbom.spdx.json"), encoding="utf-8") as file:
        text = json.load(file)
    names = {package["name"] for package in text["packages"]}
    expect(parts <= names and text["spdxVersion"] == "SPDX-2.3", f"{folder}: the parts are {names}")
    expect(os.path.getsize(os.path.join(folder, "NOTICE")) > 1000, f"{folder}: no NOTICE")


def answer_with(program, model, before=(), environment=None):
    return run([*before, program, model, "snapkv:budget=32", PROMPT, "8"], env=environment)


def model_of(kvc, folder, before=()):
    model = os.path.join(folder, "recall.kvc")
    run([*before, kvc, "convert", os.path.join(ROOT, "models/recall"), model])
    return model


def use_tree(tree, folder, cc, before=(), static=()):
    """A C program with each library of an unpacked tarball; returns what it says."""
    model = model_of(os.path.join(tree, "bin/kvc"), folder, before)
    sample = os.path.join(ROOT, "samples/c/run.c")
    include, lib = os.path.join(tree, "include"), os.path.join(tree, "lib")
    shared, archive = os.path.join(folder, "shared"), os.path.join(folder, "static")
    said = []
    run([*cc, sample, "-I", include, os.path.join(lib, "libkvc.a"), "-lm", "-lpthread", *static, "-o", archive])
    said.append(answer_with(archive, model, before))
    if not static:
        run([*cc, sample, "-I", include, "-L", lib, "-lkvc", f"-Wl,-rpath,{lib}", "-o", shared])
        said.append(answer_with(shared, model, before))
    expect(len(set(said)) == 1 and said[0].strip(), f"the programs say {said}")
    run([sys.executable, os.path.join(ROOT, "packaging/check_elf.py"), tree, "2.28"])
    check_meta(os.path.join(tree, "share/doc/kvc"), {"libkvc", "PCRE2", "utf8proc", "xxHash", "FlatBuffers", "CLI11"})
    return said[0]


def test_tar(folder):
    (path,) = make("tar")
    tree = unpack(path, os.path.join(folder, "tree"))
    print(use_tree(tree, folder, ["cc", "-std=c99"]).strip())


def test_tar_aarch64(folder):
    (path,) = make("tar-aarch64")
    tree = unpack(path, os.path.join(folder, "tree"))
    library = os.path.realpath(os.path.join(tree, "lib/libkvc.so"))
    print(use_tree(tree, folder, ["aarch64-linux-gnu-gcc", "-std=c99"], QEMU).strip())
    size = os.path.getsize(library)
    expect(size <= 1_500_000, f"libkvc.so for 64-bit Arm has {size} bytes")
    print(f"libkvc.so: {size} bytes")


def test_tar_musl(folder):
    (path,) = make("tar-musl")
    tree = unpack(path, os.path.join(folder, "tree"))
    needed = run(["readelf", "-d", os.path.join(tree, "bin/kvc")])
    expect("NEEDED" not in needed, f"kvc is not static: {needed}")
    zig = os.path.join(ROOT, "build-tools/ziglang/zig")
    print(use_tree(tree, folder, [zig, "cc", "-target", "x86_64-linux-musl"], static=["-static"]).strip())


def test_deb(folder):
    paths = {os.path.basename(path).split("_")[0]: path for path in make("deb")}
    expect(set(paths) == {"libkvc0", "libkvc-dev", "kvc-tools"}, f"the packages are {set(paths)}")
    if shutil.which("lintian"):
        said = run(["lintian", "--allow-root", "--fail-on", "error,warning", *paths.values()])
        expect(not re.search(r"^[EW]:", said, re.M), said)
    else:
        print("lintian is not installed: not run")
    root = os.path.join(folder, "root")
    for name, path in paths.items():
        run(["dpkg-deb", "-x", path, root])
        run(["dpkg-deb", "-e", path, os.path.join(folder, name)])
    depends = run(["dpkg-deb", "-f", paths["libkvc-dev"], "Depends"])
    expect("libkvc0 (= " in depends, f"libkvc-dev depends on {depends}")
    libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu")
    environment = dict(os.environ, LD_LIBRARY_PATH=libraries, PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"))
    model = model_of(os.path.join(root, "usr/bin/kvc"), folder)
    said = []
    for query in ("kvc", "kvc-static"):
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", query], env=environment))
        program = os.path.join(folder, f"program-{query}")
        run(["cc", "-std=c99", os.path.join(ROOT, "samples/c/run.c"), *flags, "-o", program])
        said.append(answer_with(program, model, environment=environment))
    expect(len(set(said)) == 1 and said[0].strip(), f"the programs say {said}")
    page = run(["man", "--warnings", "-l", os.path.join(root, "usr/share/man/man1/kvc.1.gz")]) \
        if shutil.which("man") else "convert"
    expect("convert" in page, "the manual page says nothing of kvc convert")
    check_meta(os.path.join(root, "usr/share/doc/libkvc0"), {"libkvc0", "PCRE2", "utf8proc"})
    print(said[0].strip())


def test_source(folder):
    (path,) = make("source")
    tree = unpack(path, os.path.join(folder, "tree"))
    run(["sh", os.path.join(tree, "build.sh"), os.path.join(folder, "built")],
        env=dict(os.environ, CXX="ccache c++", CC="ccache cc") if shutil.which("ccache") else None)
    program = os.path.join(folder, "run")
    run(["cc", "-std=c99", "-c", os.path.join(tree, "samples/c/run.c"), "-I", os.path.join(tree, "include"),
         "-o", program + ".o"])
    run(["c++", program + ".o", os.path.join(folder, "built/libkvc.a"), "-lm", "-lpthread", "-o", program])
    kvc = os.path.join(ROOT, "build/bin/kvc")
    if not os.path.exists(kvc):
        kvc = os.path.join(ROOT, "build-package/release-linux-x86_64/bin/kvc")
    print(answer_with(program, model_of(kvc, folder)).strip())
    check_meta(tree, {"libkvc-source", "PCRE2", "utf8proc", "xxHash", "FlatBuffers"})


def test_elf(folder):
    check = [sys.executable, os.path.join(ROOT, "packaging/check_elf.py")]
    good = ["-shared", "-fPIC", "-x", "c", "-", "-Wl,-z,max-page-size=16384"]
    faults = {
        "exports foo": (good, "void foo(void) {}"),
        "is aligned to 0x1000": ([*good[:-1], "-Wl,-z,max-page-size=4096"], "void kvc_x(void) {}"),
        "needs glibc 2.34": (good, "#include <pthread.h>\nvoid kvc_x(void) { pthread_join(0, 0); }"),
        "stack can be executed": ([*good, "-z", "execstack"], "void kvc_x(void) {}"),
        "needs libz": ([*good, "-Wl,--no-as-needed", "-l:libz.so.1"], "void kvc_x(void) {}"),
    }
    for fault, (flags, code) in faults.items():
        path = os.path.join(folder, "libx.so")
        subprocess.run(["cc", *flags, "-o", path], input=code, text=True, check=True)
        done = subprocess.run([*check, path, "2.28"], capture_output=True, text=True, check=False)
        expect(done.returncode == 1 and fault in done.stdout, f"'{fault}' was not found: {done.stdout}")
    subprocess.run(["cc", *good, "-o", path], input="void kvc_x(void) {}", text=True, check=True)
    run([*check, path, "2.28"])


PARTS = {"elf": test_elf, "source": test_source, "tar": test_tar, "deb": test_deb, "tar-aarch64": test_tar_aarch64,
         "tar-musl": test_tar_musl}


def main():
    chosen = sys.argv[2:] or list(PARTS)
    n_failed = 0
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kvc-packages-") as folder:
            try:
                PARTS[part](folder)
            except (Failure, subprocess.CalledProcessError) as error:
                print(f"failed: {part}: {error}", flush=True)
                n_failed += 1
    print(f"{len(chosen) - n_failed} passed, {n_failed} failed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
