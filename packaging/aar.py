"""The Android archive: classes.jar (the Java facade), jni/ABI/*.so for arm64-v8a and x86_64, and the header with
libkvc.so as a prefab module for apps in C and C++. Needs KVC_ANDROID_NDK; the JAR of the Java binding in KVC_JAR,
without which the archive has no classes and serves C and C++ only."""
import json
import os
import re
import shutil
import sys
import zipfile

import archive
import check_elf
import package
import sbom

MIN_SDK = 26
ABIS = {"arm64-v8a": "android-arm64", "x86_64": "android-x86_64"}
MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="dev.kvc">
  <uses-sdk android:minSdkVersion="{min_sdk}" />
</manifest>
"""  # no permission: libkvc opens no socket and reads the files it is given


def write_text(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def prefab(folder, libraries):
    """The layout that Android's build tools hand to CMake as find_package(kvc)."""
    base = os.path.join(folder, "prefab")
    write_text(os.path.join(base, "prefab.json"), json.dumps(
        {"schema_version": 2, "name": "kvc", "version": package.version(), "dependencies": []}, indent=1) + "\n")
    module = os.path.join(base, "modules/kvc")
    write_text(os.path.join(module, "module.json"), json.dumps(
        {"export_libraries": [], "library_name": "libkvc"}, indent=1) + "\n")
    shutil.copytree(os.path.join(package.ROOT, "include"), os.path.join(module, "include"))
    for abi, files in libraries.items():
        place = os.path.join(module, f"libs/android.{abi}")
        write_text(os.path.join(place, "abi.json"), json.dumps(
            {"abi": abi, "api": MIN_SDK, "ndk": 26, "stl": "none", "static": False}, indent=1) + "\n")
        shutil.copyfile(next(f for f in files if os.path.basename(f) == "libkvc.so"), os.path.join(place, "libkvc.so"))


def classes_of(jar, out):
    """The JAR without the libraries of desktops inside, which Android takes from jni/; an empty one without a JAR."""
    with zipfile.ZipFile(out, "w") as target:
        if not jar:
            target.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", (1980, 1, 1, 0, 0, 0)), "Manifest-Version: 1.0\n\n")
            return
        with zipfile.ZipFile(jar) as source:
            for entry in sorted(source.infolist(), key=lambda e: e.filename):
                if not re.search(r"/native/|/$", entry.filename):
                    info = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
                    info.compress_type = zipfile.ZIP_DEFLATED
                    target.writestr(info, source.read(entry))


def assemble(name, libraries, jar=None):
    """libraries: {abi: [files]}, libkvc.so among them. Returns the path of the archive in out/."""
    folder = package.stage_folder("aar")
    shutil.rmtree(folder, ignore_errors=True)
    for abi, files in libraries.items():
        os.makedirs(os.path.join(folder, "jni", abi))
        for path in files:
            problems = check_elf.check_segments(path, check_elf.PAGE)
            problems = [*problems, *(check_elf.check_exports(path) if os.path.basename(path) == "libkvc.so" else [])]
            if problems:
                sys.exit("\n".join(problems))
            shutil.copyfile(path, os.path.join(folder, "jni", abi, os.path.basename(path)))
    write_text(os.path.join(folder, "AndroidManifest.xml"), MANIFEST.format(min_sdk=MIN_SDK))
    write_text(os.path.join(folder, "R.txt"), "")
    keep = os.path.join(package.ROOT, "bindings/java/keep.pro")
    if os.path.exists(keep):
        shutil.copyfile(keep, os.path.join(folder, "proguard.txt"))
    classes_of(jar, os.path.join(folder, "classes.jar"))
    prefab(folder, libraries)
    sbom.write(os.path.join(folder, "META-INF"), "kvc-android", package.version(), folder, package.THIRD_PARTY)
    out = os.path.join(package.OUT, name)
    os.makedirs(package.OUT, exist_ok=True)
    archive.write_zip(out, folder, store=["*.so"], align=[("*.so", check_elf.PAGE)], first=["AndroidManifest.xml"])
    print(f"out/{name} ({os.path.getsize(out)} bytes)", flush=True)
    return out


def make():
    if not os.environ.get("KVC_ANDROID_NDK"):
        sys.exit("package.py aar: set KVC_ANDROID_NDK to the folder of an Android NDK (r26 or newer)")
    libraries = {}
    for abi, toolchain in ABIS.items():
        folder = package.build(toolchain, options=("-DKVC_TOOLS=OFF",), targets=("kvc",))
        tree = package.install(folder, package.stage_folder(toolchain))
        libraries[abi] = [os.path.realpath(os.path.join(tree, "lib/libkvc.so"))]
    return assemble(f"kvc-{package.version()}.aar", libraries, os.environ.get("KVC_JAR"))
