#!/usr/bin/env python3
"""Installs the build into a temporary prefix, moves that prefix, and builds a C project against it: find_package(kvc)
with the shared and the static library, and pkg-config with both. Each program must print the same text."""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"failed: {shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--cmake", "--generator", "--cc", "--build", "--source", "--config"):
        parser.add_argument(option, required=True)
    args = parser.parse_args()
    consumer = os.path.join(args.source, "tests/package/consumer")
    program = os.path.join(args.source, "samples/c/run.c")

    with tempfile.TemporaryDirectory(prefix="kvc-package-") as folder:
        first, prefix = os.path.join(folder, "first"), os.path.join(folder, "a b")
        run([args.cmake, "--install", args.build, "--prefix", first, "--config", args.config])
        os.rename(first, prefix)
        libraries = next(root for root, _, files in os.walk(prefix) if "libkvc.so" in files)
        text = {}

        model = os.path.join(folder, "stories.kvc")
        source = os.path.join(args.source, "models/stories260k/stories260K.bin")
        run([os.path.join(prefix, "bin", "kvc"), "convert", source, model])
        arguments = [model, "snapkv:budget=32", "Once upon a time", "12"]
        for kind in ("kvc", "static"):
            build = os.path.join(folder, f"build-{kind}")
            run([args.cmake, "-G", args.generator, "-S", consumer, "-B", build, f"-DKIND={kind}",
                 f"-DPROGRAM={program}", f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={args.cc}",
                 "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"])
            run([args.cmake, "--build", build])
            text[f"find_package, kvc::{kind}"] = run([os.path.join(build, "consumer"), *arguments])

        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"), LD_LIBRARY_PATH=libraries)
        for kind, options in (("shared", []), ("static", ["--static"])):
            flags = shlex.split(run(["pkg-config", "--cflags", "--libs", *options, "kvc"], env=environment))
            built = os.path.join(folder, kind)
            if kind == "static":  # the archive by its own name, the rest as pkg-config says
                flags = [os.path.join(libraries, "libkvc.a") if flag == "-lkvc" else flag for flag in flags]
            run([args.cc, "-std=c99", program, "-o", built, *flags])
            text[f"pkg-config, {kind}"] = run([built, *arguments], env=environment)

        for way, output in text.items():
            print(f"{way}: {output.strip()}")
        if len(set(text.values())) != 1 or not output.strip():
            sys.exit("the programs do not agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
