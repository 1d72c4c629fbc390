#!/usr/bin/env python3
"""./dev test --packages: builds every package twice, the second time from nothing and under another path, compares the
two, installs what came out into a folder of its own and uses it as a user would. The last line counts.
Usage: built_packages_test.py [PART]...

  tar          linux-x86_64: reproducible; glibc floor; a C program with each library; a Go program with its module
  tar-aarch64  the same under qemu-aarch64, without Go; the size of libkvc.so
  tar-musl     static programs that run here
  deb          lintian finds nothing; installed by dpkg into a root that has glibc 2.28 and nothing else, used by C and
               Go, purged without a trace (where nobody is root: unpacked by dpkg-deb)
  deb-arm64    the same under qemu-aarch64, without Go
  source       compiled by a loop over cc and c++, then linked with the C sample
  wheel        auditwheel says what its tag says; installed by pip, used by the tests of Python
  jar          a program in Java under the JVM; the library for 64-bit Arm loads under qemu-aarch64
  nuget        the same in C# under Mono, and the tests of C# under .NET Core
  aar          its layout, of planted libraries; what is said without an NDK
  a100         its toolchain file: every kernel is compiled for its GPU and no other (skipped without nvcc)
  jetson-orin  its toolchain file: the library is built, and a C program with it runs under qemu-aarch64; kernels for
               its GPU (skipped without nvcc for 64-bit Arm)
  multiarch    the first commands of docs/boards.md, as they stand, in a Debian that has nothing else; its kvc
               answers under qemu-aarch64 (skipped where nobody is root)
  unicode      utf8proc with the tables that are shipped answers as it does with all of them
  elf          check_elf.py finds planted faults"""
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from language_packages import test_aar, test_jar, test_nuget, test_wheel
from packages import (
    ARM_CC, BESIDE_LIBC6, Failure, QEMU, ROOT, Skipped, answer_with, any_kvc, build, check_meta, copy_sources, expect,
    first_lines, make, model_of, models_of_bindings, run, unpack)


def use_go(share, libraries, folder):
    """A Go program with the installed module, which finds the installed library by pkg-config."""
    module = os.path.join(share, "gocode/src/kvc.dev/kvc")
    environment = dict(models_of_bindings(folder), PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
                       LD_LIBRARY_PATH=libraries, GOCACHE=os.path.join(folder, "go-cache"),
                       GOPATH=os.path.join(folder, "go"), GOFLAGS="-mod=mod", GOPROXY="off", GOTOOLCHAIN="local")
    for own in ("LICENSE", "NOTICE", "go.mod", "sbom.spdx.json"):
        expect(os.path.exists(os.path.join(module, own)), f"{module} has no {own}")
    first_lines("go", "go", "main.go",
                ["go mod init hello", f"go mod edit -require kvc.dev/kvc@v0.0.0 -replace kvc.dev/kvc={module}",
                 "go run main.go"], environment)


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
    check_meta(os.path.join(tree, "share/doc/kvc"), {"libkvc", "PCRE2", "utf8proc", "xxHash", "FlatBuffers", "CLI11",
                                                     "LLVM", *(["musl"] if static else [])})
    return said[0]


def test_tar(folder):
    (path,) = make("tar")
    tree = unpack(path, os.path.join(folder, "tree"))
    print(use_tree(tree, folder, ["cc", "-std=c99"]).strip())
    use_go(os.path.join(tree, "share"), os.path.join(tree, "lib"), folder)


def test_tar_aarch64(folder):
    (path,) = make("tar-aarch64")
    tree = unpack(path, os.path.join(folder, "tree"))
    library = os.path.realpath(os.path.join(tree, "lib/libkvc.so"))
    print(use_tree(tree, folder, ARM_CC, QEMU).strip())
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


def dpkg(root, *arguments):
    run(["dpkg", f"--root={root}", "--log=/dev/null", *arguments])


def install_debs(paths, root, architecture):
    """By dpkg, without forcing anything: what they depend on is each other and glibc 2.28."""
    if os.geteuid() != 0:
        print("not root: the packages are unpacked, not installed")
        for path in paths:
            run(["dpkg-deb", "-x", path, root])
        return
    database = os.path.join(root, "var/lib/dpkg")
    os.makedirs(os.path.join(database, "updates"))
    with open(os.path.join(database, "arch"), "w", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in dict.fromkeys([run(["dpkg", "--print-architecture"]).strip(),
                                                               architecture]))
    with open(os.path.join(database, "status"), "w", encoding="utf-8") as file:
        file.write(f"Package: libc6\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 2.28-10\n"
                   "Multi-Arch: same\nMaintainer: nobody <nobody@localhost>\nDescription: stands for glibc\n\n")
    dpkg(root, "-i", *paths)
    dpkg(root, "--verify")


def purge_debs(names, root):
    if os.geteuid() == 0:
        dpkg(root, "-P", *names)
        left = [os.path.join(place, name) for place, _, files in os.walk(os.path.join(root, "usr")) for name in files]
        expect(not left, f"dpkg -P leaves {left}")


def test_deb(folder, kind="deb", triplet="x86_64-linux-gnu", cc=("cc", "-std=c99"), before=()):
    paths = {os.path.basename(path).split("_")[0]: path for path in make(kind)}
    expect(set(paths) == {"libkvc0", "libkvc-dev", "kvc-tools"}, f"the packages are {set(paths)}")
    said = run(["lintian", "--allow-root", "--fail-on", "error,warning", *paths.values()])
    expect(not re.search(r"^[EW]:", said, re.M), said)
    root = os.path.join(folder, "root")
    architecture = run(["dpkg-deb", "-f", paths["libkvc0"], "Architecture"]).strip()
    install_debs(list(paths.values()), root, architecture)
    for name in paths:
        names = {"libkvc0": {"libkvc0"}, "libkvc-dev": {"libkvc-dev"}, "kvc-tools": {"kvc-tools", "CLI11"}}[name]
        check_meta(os.path.join(root, "usr/share/doc", name), {*names, "PCRE2", "utf8proc"},
                   f"sbom.{architecture}.spdx.json")
        licence = os.path.join(root, "usr/share/doc", name, "copyright")
        with open(licence, encoding="utf-8") as file:
            expect("/usr/share/common-licenses/Apache-2.0" in file.read(), f"{licence} does not name the licence")
    depends = run(["dpkg-deb", "-f", paths["libkvc-dev"], "Depends"])
    expect("libkvc0 (= " in depends, f"libkvc-dev depends on {depends}")
    libraries = os.path.join(root, "usr/lib", triplet)
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
                       PKG_CONFIG_LIBDIR=os.path.join(libraries, "pkgconfig"))
    model = model_of(os.path.join(root, "usr/bin/kvc"), folder, before)
    said = []
    for query in ("kvc", "kvc-static"):
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", query], env=environment))
        program = os.path.join(folder, f"program-{query}")
        run([*cc, os.path.join(ROOT, "samples/c/run.c"), *flags, f"-Wl,-rpath,{libraries}", "-o", program])
        said.append(answer_with(program, model, before))
    expect(len(set(said)) == 1 and said[0].strip(), f"the programs say {said}")
    page = run(["man", "--warnings", "-l", os.path.join(root, "usr/share/man/man1/kvc.1.gz")]) \
        if shutil.which("man") else "convert"
    expect("convert" in page, "the manual page says nothing of kvc convert")
    if not before:
        use_go(os.path.join(root, "usr/share"), libraries, folder)
    purge_debs([f"{name}:{architecture}" for name in paths], root)
    print(said[0].strip())


def test_deb_arm64(folder):
    test_deb(folder, "deb-arm64", "aarch64-linux-gnu", ARM_CC, QEMU)


def test_source(folder):
    (path,) = make("source")
    tree = unpack(path, os.path.join(folder, "tree"))
    run(["sh", os.path.join(tree, "build.sh"), os.path.join(folder, "built")],
        env=dict(os.environ, CXX="ccache c++", CC="ccache cc") if shutil.which("ccache") else None)
    program = os.path.join(folder, "run")
    run(["cc", "-std=c99", "-c", os.path.join(tree, "samples/c/run.c"), "-I", os.path.join(tree, "include"),
         "-o", program + ".o"])
    run(["c++", program + ".o", os.path.join(folder, "built/libkvc.a"), "-lm", "-lpthread", "-o", program])
    print(answer_with(program, model_of(any_kvc(), folder)).strip())
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


def architectures(folder, toolchain):
    """What a build with the CUDA backend and this toolchain file compiles kernels for."""
    run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DKVC_CUDA=ON", "-DKVC_TESTS=OFF", "-DKVC_TOOLS=OFF",
         f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/toolchains/{toolchain}.cmake",
         f"-DKVC_THIRD_PARTY={ROOT}/build-third-party", "-DKVC_BINDINGS=OFF"])
    with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as file:
        commands = [entry["command"] for entry in json.load(file) if "/cuda/" in entry["file"]]
    expect(len(commands) > 5, f"{toolchain}: {len(commands)} files of kernels")
    return {tuple(sorted(set(re.findall(r"(?:compute|sm)_\d+", command)))) for command in commands}


def nvcc(*targets):
    """Whether there is one, with the libraries of one of these targets."""
    found = shutil.which("nvcc")
    if not found or not any(os.path.isdir(os.path.join(os.path.dirname(found), "../targets", name))
                            for name in targets):
        raise Skipped(f"no nvcc with the libraries for {targets[0]} in PATH")


def test_a100(folder):
    nvcc("x86_64-linux")
    found = architectures(folder, "a100")
    expect(found == {("compute_80", "sm_80")}, f"kernels are compiled for {found}")


def test_jetson_orin(folder):
    libraries = os.path.join(build("jetson-orin", "kvc", "-DKVC_TOOLS=OFF",
                                   f"-DKVC_THIRD_PARTY={ROOT}/build-third-party", language="OFF"), "lib")
    program = os.path.join(folder, "program")
    run([*ARM_CC, os.path.join(ROOT, "samples/c/run.c"), "-I", os.path.join(ROOT, "include"), "-L", libraries, "-lkvc",
         f"-Wl,-rpath,{libraries}", "-o", program])
    print(answer_with(program, model_of(any_kvc(), folder), QEMU).strip())
    nvcc("aarch64-linux", "sbsa-linux")
    found = architectures(os.path.join(folder, "cuda"), "jetson-orin")
    expect(found == {("compute_87", "sm_87")}, f"kernels are compiled for {found}")


def test_multiarch(folder):
    if os.geteuid() != 0:
        raise Skipped("a root of its own needs root")
    with open(os.path.join(ROOT, "docs/boards.md"), encoding="utf-8") as file:
        commands = re.search(r"```sh\n(sudo dpkg --add-architecture arm64.*?)```", file.read(), re.DOTALL).group(1)
    with open(os.path.join(ROOT, ".ci/packages.txt"), encoding="utf-8") as file:
        packages = [line.split()[1] for line in file if line.startswith("build ")]
    sources, script = os.path.join(folder, "libkvc"), os.path.join(folder, "try.sh")
    copy_sources(sources)
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"set -e\ncd /opt/libkvc\n{commands}\n"
                   # Those commands install libc6:arm64.
                   f'kvc() {{ {shlex.join(BESIDE_LIBC6)} build-arm/bin/kvc "$@"; }}\n'
                   "kvc convert models/recall /tmp/recall.kvc --head-scores models/recall/head_scores.json\n"
                   "kvc run /tmp/recall.kvc --policy cokv:budget=8,window=4 --max-tokens 4 "
                   "--prompt 'The code of Robin is 386. The code of Robin is' >/opt/said.txt\n")
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    run(["mmdebstrap", "--quiet", "--variant=apt", "--format=null", '--aptopt=APT::Get::Assume-Yes "true"',
         "--include=" + ",".join(["sudo", "qemu-user", *packages]),
         f"--customize-hook=copy-in {sources} {script} /opt", '--customize-hook=chroot "$1" sh /opt/try.sh',
         f"--customize-hook=copy-out /opt/said.txt {folder}", codename, "-"])
    with open(os.path.join(folder, "said.txt"), encoding="utf-8") as file:
        said = file.read()
    expect(said.strip() == "386", f"it says {said}")
    print("multiarch: 386")


def test_unicode(folder):
    """For every code point and every pair that composes, in a program compiled with each of the tables."""
    third_party = os.path.join(ROOT, "build-third-party")
    said = []
    for tables in ("original", "utf8proc"):
        place = os.path.join(folder, tables)
        shutil.copytree(os.path.join(third_party, "utf8proc"), place)
        shutil.copy(os.path.join(third_party, tables, "utf8proc_data.c"), place)
        program = os.path.join(place, "program")
        run(["cc", "-O1", "-DUTF8PROC_STATIC", "-I", os.path.join(third_party, "include"), "-I", place,
             os.path.join(ROOT, "tests/package/unicode.c"), os.path.join(place, "utf8proc.c"), "-o", program])
        said.append(run([program]))
    expect(len(said[0]) > 20_000_000 and said[0] == said[1], "the tables that are shipped say something else")
    with open(os.path.join(ROOT, "lib/model/tokenizer_normalize.cc"), encoding="utf-8") as file:
        used = set(re.findall(r"\butf8proc_\w+(?=\()", file.read()))
    tested = {"utf8proc_get_property", "utf8proc_decompose_char", "utf8proc_normalize_utf32",
              "utf8proc_grapheme_break", "utf8proc_errmsg"}
    expect(used <= tested, f"lib/ calls {used - tested}, of which this test knows nothing")
    print(f"{len(said[0].splitlines())} answers, the same")


PARTS = {"elf": test_elf, "unicode": test_unicode, "aar": test_aar, "source": test_source, "tar": test_tar,
         "deb": test_deb, "wheel": test_wheel, "tar-aarch64": test_tar_aarch64, "deb-arm64": test_deb_arm64,
         "jar": test_jar, "nuget": test_nuget, "tar-musl": test_tar_musl, "a100": test_a100,
         "jetson-orin": test_jetson_orin, "multiarch": test_multiarch}


def main():
    chosen = sys.argv[1:] or list(PARTS)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        sys.exit(f"built_packages_test.py: no part '{unknown[0]}': {', '.join(PARTS)}")
    n_failed = n_skipped = 0
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kvc-packages-") as folder:
            try:
                PARTS[part](folder)
            except Skipped as reason:
                print(f"skipped: {part}: {reason}", flush=True)
                n_skipped += 1
            except (Failure, subprocess.CalledProcessError) as error:
                print(f"failed: {part}: {error}", flush=True)
                n_failed += 1
    tail = f", {n_skipped} skipped" if n_skipped else ""
    print(f"{len(chosen) - n_failed - n_skipped} passed, {n_failed} failed{tail}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
