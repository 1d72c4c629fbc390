#!/usr/bin/env python3
"""Kotlin: the flow of docs/java.md is compiled and runs on recall; the Android sample is compiled with the classes of
kvc.jar, its manifest and resources with those of Android: kotlin_test.py flow|android JAVA JAVAC KVC_JAR

The compiler and the coroutines are those inside the PyPI package kotlin-jupyter-kernel, in build-tools/ or where
KVC_KOTLIN says (./dev test --android sets them up); aapt2 and framework-res.apk are Debian's. Skipped, with the
reason, where one is missing."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.environ["KVC_SOURCE"]
HERE = os.path.join(SOURCE, "tests", "bindings", "kotlin")
APP = os.path.join(SOURCE, "samples", "android", "app", "src", "main")
FRAMEWORK = "/usr/share/android-framework-res/framework-res.apk"
IMPORTS = """import dev.kvc.*
import kotlinx.coroutines.*
import kotlinx.coroutines.channels.*
import kotlinx.coroutines.flow.*
"""


def skip(reason):
    print(f"skipped: {reason}; ./dev test --android installs it")
    sys.exit(77)


def run(command, **kwargs):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8",
                          check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def kotlin_jars():
    """The compiler with the coroutines, and the standard library."""
    place = os.environ.get("KVC_KOTLIN", os.path.join(SOURCE, "build-tools"))
    jars = os.path.join(place, "run_kotlin_kernel", "jars")
    found = [sorted(glob.glob(os.path.join(jars, name))) for name in
             ("kotlin-jupyter-kernel-*-all.jar", "kotlin-stdlib-*.jar")]
    if not all(found):
        skip(f"no Kotlin compiler in {place}")
    return [names[-1] for names in found]


def compile_kotlin(java, jars, class_path, sources, folder):
    said = run([java, "-Xmx1g", "-cp", jars[0], "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-no-stdlib",
                "-no-reflect", "-jvm-target", "1.8", "-Werror", "-cp", ":".join([*jars, *class_path]), "-d", folder,
                *sources])
    if said:
        print(said)


def test_flow(java, _, kvc, folder):
    jars = kotlin_jars()
    with open(os.path.join(SOURCE, "docs", "java.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```kotlin\n(.*?)^```", file.read(), re.M | re.S)
    if len(blocks) != 1:
        sys.exit(f"docs/java.md: {len(blocks)} blocks of Kotlin, one was expected")
    document = os.path.join(folder, "Document.kt")
    with open(document, "w", encoding="utf-8") as file:
        file.write(IMPORTS + blocks[0])
    compile_kotlin(java, jars, [kvc], [document, os.path.join(HERE, "FlowTest.kt")], folder)
    print(run([java, "-Xcheck:jni", "-cp", ":".join([folder, kvc, *jars]), "FlowTestKt"]))


def make_resources(folder):
    """The package of manifest and resources; returns where R.java is."""
    aapt = shutil.which("aapt2")
    if not aapt or not os.path.exists(FRAMEWORK):
        skip("no aapt2 or no framework-res.apk")
    with open(os.path.join(APP, "AndroidManifest.xml"), encoding="utf-8") as file:
        manifest = file.read()
    # Gradle takes the package from build.gradle.kts.
    with open(os.path.join(folder, "AndroidManifest.xml"), "w", encoding="utf-8") as file:
        file.write(manifest.replace("<manifest ", '<manifest package="dev.kvc.sample" ', 1))
    flat, package = os.path.join(folder, "resources.zip"), os.path.join(folder, "app.apk")
    run([aapt, "compile", "--dir", os.path.join(APP, "res"), "-o", flat])
    run([aapt, "link", "-I", FRAMEWORK, "--manifest", os.path.join(folder, "AndroidManifest.xml"), "--min-sdk-version",
         "26", "--target-sdk-version", "29", "--java", folder, "-o", package, flat])
    badging = run([aapt, "dump", "badging", package])
    for wanted in ("launchable-activity: name='dev.kvc.sample.ChatActivity'", "sdkVersion:'26'"):
        if wanted not in badging:
            sys.exit(f"the package of the sample lacks {wanted}:\n{badging}")
    if "uses-permission" in badging:
        sys.exit(f"the sample asks for a permission:\n{badging}")
    return os.path.join(folder, "dev", "kvc", "sample", "R.java")


def test_android(java, javac, kvc, folder):
    jars = kotlin_jars()
    constants = make_resources(folder)
    classes = os.path.join(folder, "classes")
    android = glob.glob(os.path.join(HERE, "android", "android", "**", "*.java"), recursive=True)
    run([javac, "-encoding", "UTF-8", "-Xlint:all", "-Werror", "-cp", kvc, "-d", classes, constants, *android,
         os.path.join(APP, "java", "dev", "kvc", "sample", "Chat.java")])
    compile_kotlin(java, jars, [kvc, classes],
                   [os.path.join(APP, "java", "dev", "kvc", "sample", "ChatActivity.kt")], classes)
    if not os.path.exists(os.path.join(classes, "dev", "kvc", "sample", "ChatActivity.class")):
        sys.exit("no ChatActivity came out")
    print("the sample's sources, manifest and resources compile")


def main():
    what, java, javac, kvc = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="kvc-kotlin-") as folder:
        {"flow": test_flow, "android": test_android}[what](java, javac, kvc, folder)


main()
