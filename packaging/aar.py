"""The Android archive: classes.jar (the Java facade), jni/ABI/*.so for arm64-v8a and x86_64, and the header with
libkvc.so as a prefab module for apps in C and C++. Needs KVC_ANDROID_NDK."""
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
    """The JAR without the libraries of desktops inside, which Android takes from jni/."""
    with zipfile.ZipFile(out, "w") as target, zipfile.ZipFile(jar) as source:
        for entry in sorted(source.infolist(), key=lambda e: e.filename):
            if not re.search(r"/native/|/$", entry.filename):
                info = zipfile.ZipInfo(entry.filename, (1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                target.writestr(info, source.read(entry))


def runtime(ndk):
    """What the NDK puts into a library besides: c++_static (toolchains/android.cmake), helpers of its compiler."""
    with open(os.path.join(ndk, "source.properties"), encoding="utf-8") as file:
        revision = re.search(r"^Pkg\.Revision *= *(\S+)", file.read(), re.M).group(1)
    return [{"name": "LLVM", "version": f"as in Android NDK {revision}", "licence": "Apache-2.0 WITH LLVM-exception",
             "comment": "libc++, libc++abi, libunwind and compiler-rt", "in_library": True}]


def assemble(name, libraries, jar, parts):
    """libraries: {abi: [files]}, libkvc.so among them; parts: of runtime. Returns the path of the archive in out/."""
    folder = package.stage_folder("aar")
    shutil.rmtree(folder, ignore_errors=True)
    for abi, files in libraries.items():
        os.makedirs(os.path.join(folder, "jni", abi))
        for path in files:
            problems = check_elf.check_file(path)
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
    sbom.write(os.path.join(folder, "META-INF"), "kvc-android", package.version(), folder, package.THIRD_PARTY,
               more=parts)
    out = os.path.join(package.OUT, name)
    os.makedirs(package.OUT, exist_ok=True)
    archive.write_zip(out, folder, store=["*.so"], align=[("*.so", check_elf.PAGE)], first=["AndroidManifest.xml"])
    print(f"out/{name} ({os.path.getsize(out)} bytes)", flush=True)
    return out


def make():
    ndk = os.environ.get("KVC_ANDROID_NDK")
    if not ndk or not os.path.exists(os.path.join(ndk, "build/cmake/android.toolchain.cmake")):
        sys.exit("package.py aar: set KVC_ANDROID_NDK to the folder of an Android NDK (r26 or newer), the one that has "
                 f"build/cmake/android.toolchain.cmake; it is {ndk!r}")
    libraries = {}
    for abi, toolchain in ABIS.items():
        folder = package.build(toolchain, options=("-DKVC_TOOLS=OFF",), targets=("kvc", "kvc_jni", "kvc_jar"),
                               language="java")
        stage = package.stage_folder(toolchain)
        libraries[abi] = [os.path.join(stage, name) for name in ("libkvc.so", "libkvc_jni.so")]
        for path in libraries[abi]:
            package.strip(os.path.join(folder, "lib", os.path.basename(path)), path)
    return assemble(f"kvc-{package.version()}.aar", libraries, os.path.join(folder, "bindings/java/kvc.jar"),
                    runtime(ndk))
