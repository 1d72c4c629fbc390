#!/usr/bin/env python3
"""What a call costs in Java and C# over C: run.py BUILD_DIR [MODEL]. Wants the targets kvc, kvc_jar and kvc_dll built
there; MODEL is build/models/stories260k.kvc where not given. The best of 20 rounds, three runs each in turns."""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def c(build, folder):
    subprocess.run(["cc", "-O2", "-I", os.path.join(ROOT, "include"), os.path.join(HERE, "bench.c"), "-o",
                    os.path.join(folder, "bench"), "-L", os.path.join(build, "lib"), "-lkvc"], check=True)
    return [os.path.join(folder, "bench")]


def java(build, folder):
    jar = os.path.join(build, "bindings/java/kvc.jar")
    subprocess.run(["javac", "-cp", jar, "-d", folder, os.path.join(HERE, "Bench.java")], check=True)
    return ["java", "-cp", f"{jar}:{folder}", "Bench"]


def csharp(build, folder):
    assembly = os.path.join(build, "bindings/csharp/Kvc.dll")
    subprocess.run(["mcs", "-optimize+", f"-r:{assembly}", f"-out:{folder}/Bench.exe", os.path.join(HERE, "Bench.cs")],
                   check=True)
    return ["env", f"MONO_PATH={os.path.dirname(assembly)}", "mono", os.path.join(folder, "Bench.exe")]


def go(build, folder):
    module, own = os.path.join(build, "bindings/go/kvc"), os.path.join(folder, "go")
    os.mkdir(own)
    shutil.copy(os.path.join(HERE, "bench.go"), own)
    with open(os.path.join(own, "kvc.pc"), "w", encoding="utf-8") as file:
        file.write(f"Name: kvc\nDescription: of a build\nVersion: 0\nLibs: -L{build}/lib -lkvc\n"
                   f"Cflags: -I{ROOT}/include\n")
    for command in (["mod", "init", "bench"], ["build", "-o", "bench", "."]):
        subprocess.run(["go", *command], cwd=own, check=True, env=dict(os.environ, PKG_CONFIG_PATH=own, GOPROXY="off"))
        subprocess.run(["go", "mod", "edit", "-require", "kvc.dev/kvc@v0.0.0", "-replace", f"kvc.dev/kvc={module}"],
                       cwd=own, check=True)
    return [os.path.join(own, "bench")]


def python(build, _):
    return ["env", f"PYTHONPATH={build}/bindings/python/package", "python3", os.path.join(HERE, "bench.py")]


LANGUAGES = {"C": (c, "lib/libkvc.so"), "Java": (java, "bindings/java/kvc.jar"),
             "C#": (csharp, "bindings/csharp/Kvc.dll"),
             "Go": (go, "bindings/go/kvc"), "Go, context": (go, "bindings/go/kvc"),
             "Python": (python, "bindings/python/package/kvc")}


def main():
    build = os.path.abspath(sys.argv[1])
    model = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "build/models/stories260k.kvc")
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "lib"))
    with tempfile.TemporaryDirectory() as top:
        commands = {}
        for language, (make, needs) in LANGUAGES.items():
            if os.path.exists(os.path.join(build, needs)):
                folder = tempfile.mkdtemp(dir=top)
                commands[language] = [*make(build, folder), model, *language.split(", ")[1:]]
        best = {}
        for _ in range(3):
            for language, command in commands.items():
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                figures = [float(word) for word in done.stdout.split()]
                best[language] = [min(pair) for pair in zip(figures, best.get(language, figures))]
    print("| language | a call that does nothing | a step | first call and opening the model |\n|---|---|---|---|")
    for language, (call, step, opening) in best.items():
        print(f"| {language} | {call:.0f} ns | {step / 1000:.2f} us | {opening:.1f} ms |")


main()
