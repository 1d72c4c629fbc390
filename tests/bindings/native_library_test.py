#!/usr/bin/env python3
"""What the first call of a language says when its native library is missing, not libkvc's, or of another version; and
that it works with the right one: native_library_test.py java|csharp VM CODE TESTS LIBRARY OTHER_VERSION FOREIGN.

CODE: kvc.jar or Kvc.dll. TESTS: where LibraryTest is. It asks for the version twice, and then opens a model "":
a library that was refused is refused every time."""
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile


def run(command, **environment):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
                          env={**os.environ, "LC_ALL": "C.UTF-8", **environment}, check=False)
    return done.stdout


def java(vm, code, tests, folder):
    """Case -> call with a library (None: without) that it gives the VM."""
    bare = os.path.join(folder, "bare")  # the classes without the library in them
    with zipfile.ZipFile(code) as jar:
        jar.extractall(bare, [name for name in jar.namelist() if name.endswith(".class")])

    def on_path(library):
        place = tempfile.mkdtemp(dir=folder)
        if library:
            shutil.copy(library, os.path.join(place, "libkvc_jni.so"))
        return place, run([vm, "-Xcheck:jni", f"-Djava.library.path={place}", "-cp", f"{bare}:{tests}", "LibraryTest"])

    def named(library):
        path = library or os.path.join(folder, "nowhere.so")
        return path, run([vm, "-Xcheck:jni", f"-Ddev.kvc.library={path}", "-cp", f"{code}:{tests}", "LibraryTest"])

    inside = {"in the JAR": code}
    # A path that no URL can spell as it is; and no JAR at all: the way of resources.
    inside["in a JAR elsewhere"] = shutil.copy(code, os.path.join(tempfile.mkdtemp(" a %20b é", dir=folder), "k#.jar"))
    inside["beside the classes"] = os.path.join(folder, "unpacked")
    with zipfile.ZipFile(code) as jar:
        jar.extractall(inside["beside the classes"])
    return {"on the path": on_path, "named": named, **{
        name: lambda library, place=place: ("", run([vm, "-Xcheck:jni", "-cp", f"{place}:{tests}", "LibraryTest"]))
        for name, place in inside.items()}}


def csharp(vm, code, tests, folder):
    def on_path(library):
        place = tempfile.mkdtemp(dir=folder)
        if library:
            shutil.copy(library, os.path.join(place, "libkvc_csharp.so"))
        return place, run([vm, tests, "library"], LD_LIBRARY_PATH=place, MONO_PATH=os.path.dirname(code))

    return {"on the path": on_path}


def expect(case, output, count, *texts):
    """Every text count times, and the last line is that of an exception, not of a crash."""
    last = output.strip().splitlines()[-1:]
    for text in texts:
        if output.count(text) < count:
            sys.exit(f"{case}: '{text}' is not there {count} times in:\n{output}")
    if not last or not last[0].endswith(("Exception", "Error")):
        sys.exit(f"{case}: it did not come to its end:\n{output}")
    print(f"{case}:\n{output}")


def main():
    language, vm, code, tests, library, other_version, foreign = sys.argv[1:]
    refused = "UnsatisfiedLinkError" if language == "java" else "DllNotFoundException"
    with tempfile.TemporaryDirectory(prefix="kvc-library-") as folder:
        cases = globals()[language](vm, code, tests, folder)
        for name, call in cases.items():
            _, output = call(library)
            expect(f"the right one, {name}", output, 2, "version 0.")
            expect(f"the right one, {name}", output, 1, "KvcException")
            if name not in ("on the path", "named"):  # nobody can give it another
                continue
            where, output = call(None)
            expect(f"missing, {name}", output, 2, where, "Looked for")
            expect(f"missing, {name}", output, 1, refused)
            _, output = call(other_version)
            expect(f"another version, {name}", output, 2, "is libkvc 99.0.0", "made for 0.")
            _, output = call(foreign)
            expect(f"foreign, {name}", output, 2, "libkvc's" if language == "csharp" else "no native library of libkvc")
    if language == "java":
        output = run([vm, "-Xcheck:jni", "-cp", f"{code}:{tests}", "LibraryTest", "IO"])
        if output != "name IO\n":
            sys.exit(f"the name of a status first:\n{output}")


main()
