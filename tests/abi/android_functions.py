#!/usr/bin/env python3
"""libkvc calls no function that came to Android's C library after the API level of toolchains/android.cmake: those that
its objects import here, with the sources that know Android compiled as for it. The headers of the NDK do not declare a
function before its level, so one of them ends every build for Android, and an NDK is needed to see that.

    android_functions.py COMPILER NM FILE_WITH_NAMES_OF_OBJECTS SOURCE_DIR"""
import os
import re
import subprocess
import sys
import tempfile

# Where bionic's map of its exports says introduced=LEVEL, of what a library like this one may come to want.
INTRODUCED = {
    28: "aligned_alloc fexecve fread_unlocked fwrite_unlocked getentropy getlogin_r getrandom glob hcreate "
        "iconv pthread_attr_setinheritsched pthread_mutexattr_setprotocol pthread_setschedprio posix_spawn "
        "posix_spawnp sigaction64 swab syncfs",
    29: "getloadavg reallocarray timespec_get",
    30: "cnd_wait memfd_create mlock2 mtx_lock pthread_cond_clockwait pthread_mutex_clocklock "
        "pthread_rwlock_clockrdlock renameat2 sem_clockwait statx thrd_create tss_create",
    33: "backtrace backtrace_symbols preadv2 pwritev2",
    34: "close_range copy_file_range memset_explicit",
    36: "pthread_getaffinity_np pthread_setaffinity_np qsort_r",
}


def imports(nm, paths):
    done = subprocess.run([nm, "--undefined-only", *paths], check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in done.stdout.splitlines() if line.startswith(" ")}


def as_for_android(compiler, nm, source, path):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "object.o")
        subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-D__ANDROID__=1", "-I", source, "-c",
                        os.path.join(source, path), "-o", out], check=True)
        return imports(nm, [out])


def knows_android(source):
    for folder, _, names in os.walk(os.path.join(source, "lib")):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                if name.endswith(".cc") and "__ANDROID__" in file.read():
                    yield os.path.relpath(path, source)


def main():
    compiler, nm, listed, source = sys.argv[1:]
    with open(os.path.join(source, "toolchains/android.cmake"), encoding="utf-8") as file:
        promised = int(re.search(r"ANDROID_PLATFORM android-(\d+)", file.read()).group(1))
    probe = subprocess.run([compiler, "-x", "c++", "-fsyntax-only", "-"], text=True, capture_output=True, check=False,
                           input="#include <stdlib.h>\nvoid (*f)(void*, size_t) = arc4random_buf;\n")
    if probe.returncode != 0:
        print("skipped: this C library has no arc4random_buf, as Android's has")
        return 77
    with open(listed, encoding="utf-8") as file:
        objects = file.read().split("\n")[:-1]
    others = list(knows_android(source))
    # lib/base/x.cc is .../base/x.cc.o
    used = imports(nm, [path for path in objects
                        if not any(path.endswith(other.split("/", 1)[1] + ".o") for other in others)])
    for path in others:
        used |= as_for_android(compiler, nm, source, path)
    late = [f"{name} needs API {level}, promised is {promised}" for level, names in INTRODUCED.items()
            if level > promised for name in names.split() if name in used]
    for problem in late:
        print(problem)
    print(f"{len(objects)} objects, {len(others)} of them otherwise for Android, {len(late)} problems")
    return 1 if late or not {"mmap", "memcpy"} <= used else 0


if __name__ == "__main__":
    sys.exit(main())
