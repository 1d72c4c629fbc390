#!/usr/bin/env python3
"""Fetches llama.cpp as the source package of llama-cpp-python carries it (PyPI, pinned and checked), and builds what
compare_llama.py needs, for this machine. Again: does only what is missing. Minutes on a few cores, 0.4 GB.

Built with upstream's defaults. One thing is tried: where llama-bench ends with a signal on a model of this type, which
the code for AMX does on some virtual machines, it is built again without that code, and the build says so."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile

VERSION = "0.3.36"  # of llama-cpp-python; it carries llama.cpp at COMMIT (0.5.0-dev, ggml 0.25.3)
COMMIT = "0c1e57098"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PROGRAMS = ("llama-bench", "llama-tokenize", "llama-completion")
# What ggml can be told to use one by one, by the name the system has for it.
FLAGS = {
    "avx": "AVX", "avx2": "AVX2", "bmi2": "BMI2", "f16c": "F16C", "fma": "FMA", "sse4_2": "SSE42",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512", "avx512_vbmi": "AVX512_VBMI", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
}  # fmt: skip


class Failure(Exception):
    """Ends the program with a message."""


def ran(command, log):
    """Runs a command; what it said goes to the end of `log`."""
    with open(log, "ab") as file:
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
        except OSError as error:
            raise Failure(f"cannot run {command[0]}: {error.strerror}") from error
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            tail = "".join(file.readlines()[-15:])
        raise Failure(f"{tail}\n{' '.join(command)}\nended with {status}; everything it said: {log}")


def checked(path):
    if not os.path.exists(path):
        return False
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest() == SHA256


def fetched(folder, say):
    """The folder of the sources."""
    name = f"llama_cpp_python-{VERSION}"
    archive, top = os.path.join(folder, f"{name}.tar.gz"), os.path.join(folder, name, "vendor", "llama.cpp")
    if not checked(archive):
        say(f"fetching llama-cpp-python {VERSION}, which carries llama.cpp {COMMIT}")
        ran(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
            + [f"llama-cpp-python=={VERSION}", "-d", folder],
            os.path.join(folder, "fetch.log"),
        )
        if not checked(archive):
            raise Failure(f"{archive} is not the file that was pinned: its SHA-256 differs")
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    if not os.path.exists(os.path.join(top, "CMakeLists.txt")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, [m for m in tar.getmembers() if m.name.startswith(f"{name}/vendor/llama.cpp/")])
    return top


def cpu_flags():
    """What this processor can do, as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].split() for line in file if line.startswith("flags"))
    except (OSError, StopIteration):
        return []


def without_amx():
    known = cpu_flags()
    return ["-DGGML_NATIVE=OFF"] + [f"-DGGML_{name}={'ON' if flag in known else 'OFF'}" for flag, name in FLAGS.items()]


def built(sources, build, options, say):
    """The folder of the programs."""
    programs = os.path.join(build, "bin")
    if all(os.path.exists(os.path.join(programs, name)) for name in PROGRAMS):
        return programs
    os.makedirs(build, exist_ok=True)
    say(f"building llama.cpp in {build}")
    log = os.path.join(build, "build.log")
    off = ("GGML_CCACHE", "LLAMA_OPENSSL", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI")
    off += ("LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "BUILD_SHARED_LIBS")
    ran(
        ["cmake", "-S", sources, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *(f"-D{name}=OFF" for name in off)]
        + [f"-DLLAMA_BUILD_COMMIT={COMMIT}", "-DLLAMA_BUILD_NUMBER=0", *options],
        log,
    )
    ran(["cmake", "--build", build, "-j", str(os.cpu_count() or 1), "--target", *PROGRAMS], log)
    return programs


def runs(programs, model):
    """False when llama-bench is ended by a signal on that model; a Failure when it fails otherwise."""
    command = [os.path.join(programs, "llama-bench"), "-m", model, "-p", "32", "-n", "1", "-r", "1", "-o", "jsonl"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode > 0:
        said = done.stderr.decode(errors="replace")[-400:]
        raise Failure(f"{' '.join(command)}\nended with {done.returncode}: {said}")
    return done.returncode == 0


def get(folder, model, say):
    """(folder of the programs, what has to be said of the build or ""). `model`: a GGUF file it must be able to run."""
    os.makedirs(folder, exist_ok=True)
    sources = fetched(folder, say)
    programs = built(sources, os.path.join(folder, "native"), ["-DGGML_NATIVE=ON"], say)
    if runs(programs, model):
        return programs, ""
    say("llama-bench as built for this machine is ended by a signal; without AMX:")
    programs = built(sources, os.path.join(folder, "without-amx"), without_amx(), say)
    if not runs(programs, model):
        raise Failure(f"llama.cpp does not run {model} here, with AMX or without")
    return programs, "built without AMX, with which its llama-bench crashes on this machine"
