#!/usr/bin/env python3
"""What a step costs in each language over C: run.py BUILD [--model MODEL] [--keep FOLDER] [--once]

Wants the targets kvc, kvc_tool, kvc_jar, kvc_dll, kvc_go_module and kvc_python built in BUILD; a language that is not
there is left out. MODEL is one with next to nothing in it where not given, whose steps are little but calls. The best
of 20 rounds, three runs each in turns, all on one processor. FOLDER keeps the programs: a second call compiles nothing.
Ends with 1 where a step costs more over C than it may, or the JVM's first call. With --once each runs once and nothing
is judged: whether all of them run."""
import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
MOST_OF_A_STEP = {"Java": 2, "C#": 2, "Go": 2, "Python": 10}  # us over C
MOST_OF_A_START = {"Java": 50}  # ms over C: the first call and opening the model


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
    return ["env", f"PYTHONPATH={build}/bindings/python/package", sys.executable, os.path.join(HERE, "bench.py")]


LANGUAGES = {"C": (c, "lib/libkvc.so"), "Java": (java, "bindings/java/kvc.jar"),
             "C#": (csharp, "bindings/csharp/Kvc.dll"),
             "Go": (go, "bindings/go/kvc"), "Go, context": (go, "bindings/go/kvc"),
             "Python": (python, "bindings/python/package/kvc")}


def empty_model(build, folder):
    """One layer of width 8 whose weights are zeros, with the tokenizer of stories260k."""
    source, out = os.path.join(folder, "empty.bin"), os.path.join(folder, "empty.kvc")
    width, n_layers, n_heads, vocab, context = 8, 1, 1, 512, 512
    weights = vocab * width + n_layers * (2 * width + 4 * width * width + 3 * width * width) + width + context * width
    with open(source, "wb") as file:
        file.write(struct.pack("<7i", width, width, n_layers, n_heads, n_heads, vocab, context) + bytes(4 * weights))
    shutil.copy(os.path.join(ROOT, "models/stories260k/tok512.bin"), folder)
    subprocess.run([os.path.join(build, "bin/kvc"), "convert", source, out], check=True, stdout=subprocess.DEVNULL)
    return out


def programs(build, top):
    """Language -> its command; what was made in an earlier call is taken as it is."""
    commands = {}
    for language, (make, needs) in LANGUAGES.items():
        if not os.path.exists(os.path.join(build, needs)):
            continue
        folder = os.path.join(top, make.__name__)
        kept = os.path.join(folder, "command")
        if not os.path.exists(kept):
            os.makedirs(folder)
            command = make(build, folder)
            with open(kept, "w", encoding="utf-8") as file:
                file.write("\0".join(command))
        with open(kept, encoding="utf-8") as file:
            commands[language] = file.read().split("\0")
    return commands


def measure(commands, model, build, n_runs):
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "lib"))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # threads that wait for each other are no binding's cost
    best = {}
    for _ in range(n_runs):
        for language, command in commands.items():
            done = subprocess.run([*command, model, *language.split(", ")[1:]], env=environment, check=True, text=True,
                                  stdout=subprocess.PIPE)
            figures = [float(word) for word in done.stdout.split()]
            best[language] = [min(pair) for pair in zip(figures, best.get(language, figures))]
    return best


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--model")
    parser.add_argument("--keep")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.abspath(options.keep or temporary)
        os.makedirs(folder, exist_ok=True)
        commands = programs(build, folder)
        best = measure(commands, options.model or empty_model(build, folder), build,
                       1 if options.once else 3)
    _, c_step, c_opening = best["C"]
    too_much = []
    print("| language | a call that does nothing | a step | over C | first call and opening the model | over C |\n"
          "|---|---|---|---|---|---|")
    for language, (call, step, opening) in best.items():
        over, late = (step - c_step) / 1000, opening - c_opening
        print(f"| {language} | {call:.0f} ns | {step / 1000:.2f} us | {over:.2f} us "
              f"| {opening:.1f} ms | {late:.1f} ms |")
        if over > MOST_OF_A_STEP.get(language, over) or late > MOST_OF_A_START.get(language, late):
            too_much.append(language)
    if options.once:
        return 0
    return f"more than it may be: {', '.join(too_much)}" if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
