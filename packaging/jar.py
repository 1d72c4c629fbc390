"""The JAR: classes for Java 8 and later and the native libraries of Linux on x86-64 and on 64-bit Arm, from glibc 2.28
on. Nothing in it is compressed: what is loaded first is what costs most, and a JAR is compressed once more wherever it
is shipped from."""
import os
import shutil
import zipfile

import package


def make():
    libraries = package.glue("kvc_jni", "java")
    build = package.build("release-linux-x86_64", targets=("kvc_jar",), language="java")
    folder = package.stage_folder("jar")
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(os.path.join(build, "bindings/java/kvc.jar")) as jar:
        jar.extractall(folder)
    for processor, library in libraries.items():
        place = os.path.join(folder, f"dev/kvc/native/linux-{processor}")
        os.makedirs(place, exist_ok=True)
        shutil.copyfile(library, os.path.join(place, os.path.basename(library)))
    package.write_meta(os.path.join(folder, "META-INF"), "kvc-java", folder)
    return package.write(f"kvc-{package.version()}.jar", folder, store=["*"], first=["META-INF/MANIFEST.MF"])
