#!/usr/bin/env python3
"""Builds what users install. ./dev package calls this; see docs/packages.md.

Usage: package.py [--check] KIND...        into out/; --check: only whether there are such kinds
  tar            libkvc-VERSION-linux-x86_64.tar.gz: glibc 2.28 or newer
  tar-aarch64    libkvc-VERSION-linux-aarch64.tar.gz
  tar-musl       libkvc-VERSION-linux-musl-x86_64.tar.gz: static programs
  deb            libkvc0, libkvc-dev, kvc-tools for amd64
  deb-arm64      the same for arm64
  source         libkvc-VERSION-source.tar.gz: all of the library as plain files, for other build systems
  wheel          kvc-VERSION-...-manylinux_..._x86_64.whl: Python
  jar            kvc-VERSION.jar: Java, with the native libraries of Linux on x86-64 and on 64-bit Arm inside
  nuget          Kvc.VERSION.nupkg: C#, with the same
  aar            kvc-VERSION.aar: Android; needs KVC_ANDROID_NDK"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import archive  # noqa: E402  (of this folder)
import check_elf  # noqa: E402
import sbom  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.path.join(ROOT, "out")
BUILD = os.path.join(ROOT, "build-package")
THIRD_PARTY = os.path.join(ROOT, "build-third-party")
GLIBC = (2, 28)  # what the toolchain files ask of Zig


def run(*command, **kwargs):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"package.py: {' '.join(command)}\n{done.stdout[-4000:]}")
    return done.stdout


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(kvc VERSION ([0-9.]+)", file.read()).group(1)


def build(toolchain, libdir="lib", options=(), targets=("all",), language="go"):
    """The build folder of a toolchain file, up to date; where it installs to and the language that is bound are set
    anew every time. Go is sources, which every installed tree has."""
    folder = os.path.join(BUILD, toolchain)
    print(f"building build-package/{toolchain}/", flush=True)
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DKVC_TESTS=OFF",
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/toolchains/{toolchain}.cmake", "-DCMAKE_INSTALL_PREFIX=/usr",
        f"-DCMAKE_INSTALL_LIBDIR={libdir}", "-DKVC_MPI=OFF", "-DKVC_WERROR=OFF", f"-DKVC_BINDINGS={language}",
        # Part of a command, so that what was made at another commit is made again.
        f"-DKVC_SOURCE_DATE={archive.source_date()}",
        # A path of the build folder would leave its length behind where installing replaces it.
        "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON", *options)
    jobs = os.environ.get("KVC_JOBS", str(os.cpu_count() or 2))
    run("ninja", "-C", folder, "-j", jobs, *targets)
    return folder


def install(folder, stage):
    """The installed tree below stage/usr, stripped."""
    shutil.rmtree(stage, ignore_errors=True)
    run("cmake", "--install", folder, "--strip", env=dict(os.environ, DESTDIR=stage))
    return os.path.join(stage, "usr")


def stage_folder(kind):
    return os.path.join(BUILD, "stage", kind)


def runtime(musl=False):
    """What Zig puts into a library or program besides: the C++ runtime, helpers of its compiler, the C library."""
    zig = os.path.join(ROOT, "build-tools/ziglang/zig")
    own = run(zig, "version").strip()
    parts = [("LLVM", re.search(r"version ([0-9.]+)", run(zig, "c++", "--version")).group(1),
              "Apache-2.0 WITH LLVM-exception", "libc++, libc++abi and libunwind"), ("Zig", own, "MIT", "compiler-rt")]
    if musl:
        parts.append(("musl", f"as in Zig {own}", "MIT", "the C library"))
    return [{"name": name, "version": number, "licence": licence, "comment": comment, "in_library": True}
            for name, number, licence, comment in parts]


def write_meta(folder, name, files, tools=False, musl=False):
    """LICENSE, NOTICE and the list of parts of what Zig built."""
    sbom.write(folder, name, version(), files, THIRD_PARTY, tools, runtime(musl))


def write_readme(page, folder):
    """The path of the page of the tree as README.md of the folder, for indexes that show it: it links to nothing that
    they have not."""
    path = os.path.join(folder, "README.md")
    os.makedirs(folder, exist_ok=True)
    shutil.copy(os.path.join(ROOT, page), path)
    run("cmake", "-P", os.path.join(ROOT, "cmake/installed_links.cmake"), os.path.dirname(page), folder)
    return path


def strip(path, out):
    """A copy without names and debug information, whatever the processor."""
    os.makedirs(os.path.dirname(out), exist_ok=True)
    run("llvm-strip", "-o", out, path)


def glue(target, language):
    """The library that the VM of a language loads, with all of libkvc inside: {processor: stripped file}."""
    found = {}
    for toolchain, processor in (("release-linux-x86_64", "x86_64"), ("release-linux-aarch64", "aarch64")):
        name = f"lib{target}.so"
        out = os.path.join(stage_folder(f"glue-{language}"), processor, name)
        strip(os.path.join(build(toolchain, targets=(target,), language=language), "lib", name), out)
        problems = check_elf.check_file(out, GLIBC)
        if problems:
            sys.exit("\n".join(problems))
        found[processor] = out
    return found


def tarball(toolchain, platform, floor):
    name = f"libkvc-{version()}-{platform}"
    tree = install(build(toolchain), stage_folder(platform))
    problems = check_elf.check_tree(tree, floor)
    if problems:
        sys.exit("\n".join(problems))
    write_meta(os.path.join(tree, "share/doc/kvc"), "libkvc", tree, tools=True, musl=floor is None)
    return write(f"{name}.tar.gz", tree, name)


def write(name, folder, prefix="", **options):
    os.makedirs(OUT, exist_ok=True)
    out = os.path.join(OUT, name)
    if ".tar" in name:
        archive.write_tar(out, folder, prefix)
    else:
        archive.write_zip(out, folder, prefix, **options)
    print(f"out/{name} ({os.path.getsize(out)} bytes)", flush=True)
    return out


def tar():
    tarball("release-linux-x86_64", "linux-x86_64", GLIBC)


def tar_aarch64():
    tarball("release-linux-aarch64", "linux-aarch64", GLIBC)


def tar_musl():
    tarball("release-linux-musl", "linux-musl-x86_64", None)


def deb():
    import deb as maker  # of this folder
    maker.make("amd64", "release-linux-x86_64", "x86_64-linux-gnu")


def deb_arm64():
    import deb as maker
    maker.make("arm64", "release-linux-aarch64", "aarch64-linux-gnu")


def source():
    import source as maker
    maker.make()


def wheel():
    import wheel as maker
    maker.make()


def jar():
    import jar as maker
    maker.make()


def nuget():
    import nuget as maker
    maker.make()


def aar():
    import aar as maker
    maker.make()


KINDS = {"tar": tar, "tar-aarch64": tar_aarch64, "tar-musl": tar_musl, "deb": deb, "deb-arm64": deb_arm64,
         "source": source, "wheel": wheel, "jar": jar, "nuget": nuget, "aar": aar}


def main():
    check = sys.argv[1:2] == ["--check"]
    kinds = sys.argv[1 + check:]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if not kinds or unknown:
        sys.exit(__doc__ if not unknown else f"package.py: no kind '{unknown[0]}': {', '.join(KINDS)}")
    if check:
        return 0
    for kind in kinds:
        KINDS[kind]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
