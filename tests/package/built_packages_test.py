#!/usr/bin/env python3
"""./dev test --packages: builds every package twice, the second time from nothing and under another path, compares the
two, installs what came out into a folder of its own and uses it as a user would. The last line counts.
Usage: built_packages_test.py ROOT [PART]...

  tar          linux-x86_64: reproducible; glibc floor; a C program with each library; a Go program with its module
  tar-aarch64  the same under qemu-aarch64, without Go; the size of libkvc.so
  tar-musl     static programs that run here
  deb          lintian finds nothing; installed by dpkg into a root that has glibc 2.28 and nothing else, used by C and
               Go, purged without a trace (where nobody is root: unpacked by dpkg-deb)
  deb-arm64    the same under qemu-aarch64, without Go
  source       compiled by a loop over cc and c++, then linked with the C sample
  wheel        auditwheel says what its tag says; installed by pip, used by the tests of Python
  jar, nuget   a program in Java under the JVM, in C# under Mono; the library for 64-bit Arm loads under qemu-aarch64
  aar          its layout, of planted libraries; what is said without an NDK
  a100         its toolchain file: every kernel is compiled for its GPU and no other (skipped without nvcc)
  jetson-orin  its toolchain file: the library is built, and a C program with it runs under qemu-aarch64; kernels for
               its GPU (skipped without nvcc for 64-bit Arm)
  unicode      utf8proc with the tables that are shipped answers as it does with all of them
  elf          check_elf.py finds planted faults"""
import glob
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree
import zipfile

ROOT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.getcwd()
PROMPT = "Ada lives in Paris. Ada lives in"
OTHER = []  # the folder of other_root
QEMU = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
ARM_CC = ["aarch64-linux-gnu-gcc", "-std=c99"]


class Failure(Exception):
    pass


class Skipped(Exception):
    """What a part needs is not here."""


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise Failure(f"({done.returncode}) {shlex.join(command)}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def expect(condition, message):
    if not condition:
        raise Failure(message)


def other_root():
    """The same sources under another path, where nothing is built yet; what is set up for both is lent. It stays for
    all the kinds of one call."""
    if not OTHER:
        OTHER.append(tempfile.TemporaryDirectory(prefix="kvc-built-elsewhere-"))
        root = OTHER[0].name
        run(["git", "clone", "-q", "--no-checkout", ROOT, root])
        for name in run(["git", "-C", ROOT, "ls-files", "-z"]).split("\0")[:-1]:
            if os.path.lexists(os.path.join(ROOT, name)):  # as it is now, committed or not
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                shutil.copy2(os.path.join(ROOT, name), os.path.join(root, name), follow_symlinks=False)
        run(["git", "-C", root, "add", "-A"])
        for name in ("build-third-party", "build-tools"):
            os.symlink(os.path.join(ROOT, name), os.path.join(root, name))
    return OTHER[0].name


def make(*kinds):
    """./dev package, here and, from nothing and without a cache of objects, in another folder: both have to give the
    same bytes. Returns the files of this one."""
    versions = []
    for root, more in ((ROOT, {}), (other_root(), {"CCACHE_DISABLE": "1"})):
        out, files = os.path.join(root, "out"), {}
        shutil.rmtree(out, ignore_errors=True)
        run([sys.executable, os.path.join(root, "packaging/package.py"), *kinds], env=dict(os.environ, **more))
        for name in sorted(os.listdir(out)):
            with open(os.path.join(out, name), "rb") as file:
                files[name] = file.read()
        versions.append(files)
    expect(versions[0] and versions[0].keys() == versions[1].keys(), f"{kinds}: other files the second time")
    for name, content in versions[0].items():
        expect(content == versions[1][name], f"{name}: other bytes the second time")
    return [os.path.join(ROOT, "out", name) for name in versions[0]]


def unpack(path, folder):
    with tarfile.open(path) as tar:
        expect(all(not member.name.startswith(("/", "..")) for member in tar), f"{path}: a name leads outside")
        tar.extractall(folder)
    (name,) = os.listdir(folder)
    return os.path.join(folder, name)


def check_meta(folder, parts):
    with open(os.path.join(folder, "sbom.spdx.json"), encoding="utf-8") as file:
        text = json.load(file)
    names = {package["name"] for package in text["packages"]}
    expect(parts <= names and text["spdxVersion"] == "SPDX-2.3", f"{folder}: the parts are {names}")
    with open(os.path.join(folder, "NOTICE"), encoding="utf-8") as file:
        notice = file.read().replace("nlohmann/json", "nlohmann-json")
    unnamed = [package["name"] for package in text["packages"][1:] if package["name"] not in notice]
    expect(not unnamed, f"{folder}: NOTICE does not name {unnamed}")


def answer_with(program, model, before=(), environment=None):
    return run([*before, program, model, "snapkv:budget=32", PROMPT, "8"], env=environment)


def model_of(kvc, folder, before=()):
    model = os.path.join(folder, "recall.kvc")
    run([*before, kvc, "convert", os.path.join(ROOT, "models/recall"), model])
    return model


def build(toolchain, target, *options, language="go"):
    """A target of the build folder of a toolchain file, made as packages are, also where nothing was built before."""
    code = "import sys, package; package.build(sys.argv[1], targets=sys.argv[2:3], language=sys.argv[3], " \
           "options=sys.argv[4:])"
    run([sys.executable, "-c", code, toolchain, target, language, *options], cwd=os.path.join(ROOT, "packaging"))
    return os.path.join(ROOT, "build-package", toolchain)


def any_kvc():
    """A kvc program of this machine, for a package that has none."""
    found = [path for path in (os.path.join(ROOT, "build/bin/kvc"),
                               os.path.join(ROOT, "build-package/release-linux-x86_64/bin/kvc"))
             if os.path.exists(path)]
    return found[0] if found else os.path.join(build("release-linux-x86_64", "bin/kvc"), "bin/kvc")


def models_of_bindings(folder):
    """Environment of the programs in tests/bindings: the models, and nothing that leads to a build."""
    kvc = any_kvc()
    recall = os.path.join(ROOT, "models/recall")
    tables = [os.path.join(recall, "head_scores.json"), *sorted(glob.glob(os.path.join(recall, "scores/*.json")))]
    models = {"KVC_RECALL": os.path.join(folder, "binding-recall.kvc"),
              "KVC_STORIES": os.path.join(folder, "binding-stories.kvc")}
    run([kvc, "convert", recall, models["KVC_RECALL"], *("--head-scores=" + table for table in tables)])
    run([kvc, "convert", os.path.join(ROOT, "models/stories260k/stories260K.bin"), models["KVC_STORIES"]])
    kept = {key: value for key, value in os.environ.items()
            if key not in ("PYTHONPATH", "LD_LIBRARY_PATH", "MONO_PATH", "CLASSPATH", "PKG_CONFIG_PATH")}
    return {**kept, **models, "KVC_SOURCE": ROOT, "PYTHONDONTWRITEBYTECODE": "1"}


def first_lines(language, fence, name, commands, environment):
    """The first program of the document of a language, as a reader would run it."""
    print(run([sys.executable, os.path.join(ROOT, "tests/bindings/first_lines_test.py"), f"docs/{language}.md", fence,
               name, " 386", *commands], env=environment).strip())


def use_go(share, libraries, folder):
    """A Go program with the installed module, which finds the installed library by pkg-config."""
    module = os.path.join(share, "gocode/src/kvc.dev/kvc")
    environment = dict(models_of_bindings(folder), PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
                       LD_LIBRARY_PATH=libraries, GOCACHE=os.path.join(folder, "go-cache"),
                       GOPATH=os.path.join(folder, "go"), GOFLAGS="-mod=mod", GOPROXY="off", GOTOOLCHAIN="local")
    for own in ("LICENSE", "NOTICE", "go.mod", "sbom.spdx.json"):
        expect(os.path.exists(os.path.join(module, own)), f"{module} has no {own}")
    first_lines("go", "go", "main.go",
                ["go mod init hello", f"go mod edit -require kvc.dev/kvc@v0.0.0 -replace kvc.dev/kvc={module}",
                 "go run main.go"], environment)


def load_on_arm(library, function, folder):
    """A library for a VM that is not here for 64-bit Arm: loaded by a program in C, which asks it for its version."""
    program = os.path.join(folder, "load")
    code = ("#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char** a) {\n"
            "  void* library = dlopen(a[1], RTLD_NOW);\n  if (!library) return puts(dlerror()), 1;\n"
            f'  int (*version)(void*, void*) = (int (*)(void*, void*))dlsym(library, "{function}");\n'
            '  return !(n == 2 && version && printf("%d\\n", version(0, 0)));\n}\n')
    subprocess.run([ARM_CC[0], "-x", "c", "-", "-ldl", "-o", program], input=code, text=True, check=True)
    version = run([*QEMU, program, library]).strip()
    expect(version == run([*QEMU, program, library]).strip() and version.isdigit(), f"{library} says {version}")
    print(f"{os.path.basename(library)} for 64-bit Arm: version {version}")


def use_tree(tree, folder, cc, before=(), static=()):
    """A C program with each library of an unpacked tarball; returns what it says."""
    model = model_of(os.path.join(tree, "bin/kvc"), folder, before)
    sample = os.path.join(ROOT, "samples/c/run.c")
    include, lib = os.path.join(tree, "include"), os.path.join(tree, "lib")
    shared, archive = os.path.join(folder, "shared"), os.path.join(folder, "static")
    said = []
    run([*cc, sample, "-I", include, os.path.join(lib, "libkvc.a"), "-lm", "-lpthread", *static, "-o", archive])
    said.append(answer_with(archive, model, before))
    if not static:
        run([*cc, sample, "-I", include, "-L", lib, "-lkvc", f"-Wl,-rpath,{lib}", "-o", shared])
        said.append(answer_with(shared, model, before))
    expect(len(set(said)) == 1 and said[0].strip(), f"the programs say {said}")
    run([sys.executable, os.path.join(ROOT, "packaging/check_elf.py"), tree, "2.28"])
    check_meta(os.path.join(tree, "share/doc/kvc"), {"libkvc", "PCRE2", "utf8proc", "xxHash", "FlatBuffers", "CLI11",
                                                     "LLVM", *(["musl"] if static else [])})
    return said[0]


def test_tar(folder):
    (path,) = make("tar")
    tree = unpack(path, os.path.join(folder, "tree"))
    print(use_tree(tree, folder, ["cc", "-std=c99"]).strip())
    use_go(os.path.join(tree, "share"), os.path.join(tree, "lib"), folder)


def test_tar_aarch64(folder):
    (path,) = make("tar-aarch64")
    tree = unpack(path, os.path.join(folder, "tree"))
    library = os.path.realpath(os.path.join(tree, "lib/libkvc.so"))
    print(use_tree(tree, folder, ARM_CC, QEMU).strip())
    size = os.path.getsize(library)
    expect(size <= 1_500_000, f"libkvc.so for 64-bit Arm has {size} bytes")
    print(f"libkvc.so: {size} bytes")


def test_tar_musl(folder):
    (path,) = make("tar-musl")
    tree = unpack(path, os.path.join(folder, "tree"))
    needed = run(["readelf", "-d", os.path.join(tree, "bin/kvc")])
    expect("NEEDED" not in needed, f"kvc is not static: {needed}")
    zig = os.path.join(ROOT, "build-tools/ziglang/zig")
    print(use_tree(tree, folder, [zig, "cc", "-target", "x86_64-linux-musl"], static=["-static"]).strip())


def dpkg(root, *arguments):
    run(["dpkg", f"--root={root}", "--log=/dev/null", *arguments])


def install_debs(paths, root, architecture):
    """By dpkg, without forcing anything: what they depend on is each other and glibc 2.28."""
    if os.geteuid() != 0:
        print("not root: the packages are unpacked, not installed")
        for path in paths:
            run(["dpkg-deb", "-x", path, root])
        return
    database = os.path.join(root, "var/lib/dpkg")
    os.makedirs(os.path.join(database, "updates"))
    with open(os.path.join(database, "arch"), "w", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in dict.fromkeys([run(["dpkg", "--print-architecture"]).strip(),
                                                               architecture]))
    with open(os.path.join(database, "status"), "w", encoding="utf-8") as file:
        file.write(f"Package: libc6\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: 2.28-10\n"
                   "Multi-Arch: same\nMaintainer: nobody <nobody@localhost>\nDescription: stands for glibc\n\n")
    dpkg(root, "-i", *paths)
    dpkg(root, "--verify")


def purge_debs(names, root):
    if os.geteuid() == 0:
        dpkg(root, "-P", *names)
        left = [os.path.join(place, name) for place, _, files in os.walk(os.path.join(root, "usr")) for name in files]
        expect(not left, f"dpkg -P leaves {left}")


def test_deb(folder, kind="deb", triplet="x86_64-linux-gnu", cc=("cc", "-std=c99"), before=()):
    paths = {os.path.basename(path).split("_")[0]: path for path in make(kind)}
    expect(set(paths) == {"libkvc0", "libkvc-dev", "kvc-tools"}, f"the packages are {set(paths)}")
    said = run(["lintian", "--allow-root", "--fail-on", "error,warning", *paths.values()])
    expect(not re.search(r"^[EW]:", said, re.M), said)
    root = os.path.join(folder, "root")
    architecture = run(["dpkg-deb", "-f", paths["libkvc0"], "Architecture"]).strip()
    install_debs(list(paths.values()), root, architecture)
    for name in paths:
        names = {"libkvc0": {"libkvc0"}, "libkvc-dev": {"libkvc-dev"}, "kvc-tools": {"kvc-tools", "CLI11"}}[name]
        check_meta(os.path.join(root, "usr/share/doc", name), {*names, "PCRE2", "utf8proc"})
        licence = os.path.join(root, "usr/share/doc", name, "copyright")
        with open(licence, encoding="utf-8") as file:
            expect("/usr/share/common-licenses/Apache-2.0" in file.read(), f"{licence} does not name the licence")
    depends = run(["dpkg-deb", "-f", paths["libkvc-dev"], "Depends"])
    expect("libkvc0 (= " in depends, f"libkvc-dev depends on {depends}")
    libraries = os.path.join(root, "usr/lib", triplet)
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(libraries, "pkgconfig"),
                       PKG_CONFIG_LIBDIR=os.path.join(libraries, "pkgconfig"))
    model = model_of(os.path.join(root, "usr/bin/kvc"), folder, before)
    said = []
    for query in ("kvc", "kvc-static"):
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", query], env=environment))
        program = os.path.join(folder, f"program-{query}")
        run([*cc, os.path.join(ROOT, "samples/c/run.c"), *flags, f"-Wl,-rpath,{libraries}", "-o", program])
        said.append(answer_with(program, model, before))
    expect(len(set(said)) == 1 and said[0].strip(), f"the programs say {said}")
    page = run(["man", "--warnings", "-l", os.path.join(root, "usr/share/man/man1/kvc.1.gz")]) \
        if shutil.which("man") else "convert"
    expect("convert" in page, "the manual page says nothing of kvc convert")
    if not before:
        use_go(os.path.join(root, "usr/share"), libraries, folder)
    purge_debs([f"{name}:{architecture}" for name in paths], root)
    print(said[0].strip())


def test_deb_arm64(folder):
    test_deb(folder, "deb-arm64", "aarch64-linux-gnu", ARM_CC, QEMU)


def test_source(folder):
    (path,) = make("source")
    tree = unpack(path, os.path.join(folder, "tree"))
    run(["sh", os.path.join(tree, "build.sh"), os.path.join(folder, "built")],
        env=dict(os.environ, CXX="ccache c++", CC="ccache cc") if shutil.which("ccache") else None)
    program = os.path.join(folder, "run")
    run(["cc", "-std=c99", "-c", os.path.join(tree, "samples/c/run.c"), "-I", os.path.join(tree, "include"),
         "-o", program + ".o"])
    run(["c++", program + ".o", os.path.join(folder, "built/libkvc.a"), "-lm", "-lpthread", "-o", program])
    print(answer_with(program, model_of(any_kvc(), folder)).strip())
    check_meta(tree, {"libkvc-source", "PCRE2", "utf8proc", "xxHash", "FlatBuffers"})


def test_wheel(folder):
    (path,) = make("wheel")
    tag = re.search(r"-(manylinux_\w+)\.whl$", path).group(1)
    said = run([sys.executable, "-m", "auditwheel", "show", path],
               env=dict(os.environ, PYTHONPATH=os.path.join(ROOT, "build-tools")))
    said = " ".join(said.split())
    expect(f'is consistent with the following platform tag: "{tag}"' in said, said)
    print(f"auditwheel: {tag}")
    environment = models_of_bindings(folder)
    system = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    run([system, "-m", "venv", os.path.join(folder, "venv")])
    python = os.path.join(folder, "venv/bin/python")
    run([python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", path], env=environment)
    first_lines("python", "python", "main.py", [f"{python} main.py"], environment)
    for test in ("facade", "misuse"):
        run([python, os.path.join(ROOT, f"tests/bindings/python/{test}_test.py")], env=environment, cwd=folder)
        print(f"{test}_test.py: passed")
    used = run([python, "-c", "import kvc; print(kvc.__file__)"], env=environment).strip()
    expect(used.startswith(folder), f"the tests used {used}")
    (info,) = glob.glob(os.path.join(folder, "venv/lib/python3*/site-packages/kvc-*.dist-info"))
    expect(os.path.exists(os.path.join(info, "licenses/LICENSE")), "no LICENSE in the wheel")
    check_meta(os.path.join(info, "licenses"), {"kvc-python", "PCRE2", "utf8proc"})


def unzip(path, folder):
    with zipfile.ZipFile(path) as packed:
        expect(packed.testzip() is None, f"{path} is damaged")
        packed.extractall(folder)
        return packed.infolist()


def test_jar(folder):
    (path,) = make("jar")
    tree = os.path.join(folder, "tree")
    entries = unzip(path, tree)
    expect(entries[0].filename == "META-INF/MANIFEST.MF", f"the JAR begins with {entries[0].filename}")
    expect(all(entry.compress_type == zipfile.ZIP_STORED for entry in entries), "something in the JAR is compressed")
    native = os.path.join(tree, "dev/kvc/native")
    expect(sorted(os.listdir(native)) == ["linux-aarch64", "linux-x86_64"], f"it is for {os.listdir(native)}")
    run([sys.executable, os.path.join(ROOT, "packaging/check_elf.py"), native, "2.28"])
    check_meta(os.path.join(tree, "META-INF"), {"kvc-java", "PCRE2", "utf8proc"})
    expect(os.path.exists(os.path.join(tree, "META-INF/LICENSE")), "no LICENSE in the JAR")
    environment = models_of_bindings(folder)
    first_lines("java", "java", "Hello.java", [f"java -cp {path} Hello.java"], environment)
    classes = os.path.join(folder, "classes")
    run(["javac", "-encoding", "UTF-8", "-cp", path, "-d", classes, "-XDignore.symbol.file", "-nowarn",
         *glob.glob(os.path.join(ROOT, "tests/bindings/java/*.java")),
         *glob.glob(os.path.join(ROOT, "samples/android/app/src/main/java/dev/kvc/sample/*.java"))])
    run(["java", "-Xcheck:jni", "-cp", f"{path}:{classes}", "FacadeTest"], env=environment)
    print("FacadeTest: passed")
    load_on_arm(os.path.join(native, "linux-aarch64/libkvc_jni.so"), "Java_dev_kvc_FlatJNI_kvc_1version", folder)


def test_nuget(folder):
    (path,) = make("nuget")
    tree = os.path.join(folder, "tree")
    names = {entry.filename for entry in unzip(path, tree)}
    wanted = {"[Content_Types].xml", "_rels/.rels", "Kvc.nuspec", "LICENSE", "NOTICE", "README.md", "sbom.spdx.json",
              "lib/net45/Kvc.dll", "lib/net45/Kvc.xml", "runtimes/linux-x64/native/libkvc_csharp.so",
              "runtimes/linux-arm64/native/libkvc_csharp.so"}
    expect(names == wanted, f"it has {names ^ wanted} too much or too little")
    for name in ("Kvc.nuspec", "[Content_Types].xml", "_rels/.rels", "lib/net45/Kvc.xml"):
        root = xml.etree.ElementTree.parse(os.path.join(tree, name)).getroot()
        if name == "Kvc.nuspec":
            texts = {element.tag.split("}")[1]: element.text for element in root.iter()}
    expect(texts["id"] == "Kvc" and os.path.basename(path) == f"Kvc.{texts['version']}.nupkg", f"Kvc.nuspec: {texts}")
    for named in (texts["license"], texts["readme"]):
        expect(named in names, f"Kvc.nuspec names {named}")
    run([sys.executable, os.path.join(ROOT, "packaging/check_elf.py"), os.path.join(tree, "runtimes"), "2.28"])
    check_meta(tree, {"Kvc", "PCRE2", "utf8proc"})
    # What .NET does with the folders: the assembly, and the library of its own system, in reach of the program.
    assembly, native = os.path.join(tree, "lib/net45"), os.path.join(tree, "runtimes/linux-x64/native")
    environment = dict(models_of_bindings(folder), MONO_PATH=assembly, LD_LIBRARY_PATH=native)
    first_lines("csharp", "csharp", "Hello.cs", [f"mcs -r:{assembly}/Kvc.dll Hello.cs", "mono Hello.exe"], environment)
    load_on_arm(os.path.join(tree, "runtimes/linux-arm64/native/libkvc_csharp.so"), "CSharp_Kvc_kvc_version", folder)


def test_aar(folder):
    """There is no NDK here: what package.py says then, and the archive of libraries that other compilers made."""
    command = [sys.executable, os.path.join(ROOT, "packaging/package.py"), "aar"]
    for ndk in ("", folder):
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              env=dict(os.environ, KVC_ANDROID_NDK=ndk))
        expect(done.returncode == 1 and "set KVC_ANDROID_NDK to the folder of an Android NDK" in done.stderr,
               f"without an NDK: {done.stdout}{done.stderr}")
    jar = os.path.join(folder, "kvc.jar")
    with zipfile.ZipFile(jar, "w") as packed:
        for name in ("dev/kvc/Model.class", "dev/kvc/native/linux-x86_64/libkvc_jni.so"):
            packed.writestr(name, name)
    compilers = {"arm64-v8a": "aarch64-linux-gnu-gcc", "x86_64": "cc"}

    def assemble(page):
        libraries = {}
        for abi, compiler in compilers.items():
            libraries[abi] = []
            for name, code in (("libkvc.so", "void kvc_x(void) {}"), ("libkvc_jni.so", "void Java_dev_kvc_x(void) {}")):
                path = os.path.join(folder, abi, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", path,
                                f"-Wl,-z,max-page-size={page}"], input=code, text=True, check=True)
                libraries[abi].append(path)
        return subprocess.run([sys.executable, "-c", f"import aar; aar.assemble('test.aar', {libraries!r}, {jar!r})"],
                              cwd=os.path.join(ROOT, "packaging"), capture_output=True, text=True, check=False)

    done = assemble(4096)
    expect(done.returncode == 1 and "a segment is aligned to 0x1000, not to 0x4000" in done.stderr, str(done))
    out, versions = os.path.join(ROOT, "out/test.aar"), []
    for _ in range(2):
        done = assemble(16384)
        expect(done.returncode == 0, str(done))
        with open(out, "rb") as file:
            versions.append(file.read())
    os.remove(out)
    expect(versions[0] == versions[1], "other bytes the second time")
    check_aar(versions[0], folder)


def check_aar(data, folder):
    """The layout that Android's build tools read."""
    path, tree = os.path.join(folder, "test.aar"), os.path.join(folder, "tree")
    with open(path, "wb") as file:
        file.write(data)
    for entry in unzip(path, tree):
        if entry.filename.endswith(".so"):
            start = entry.header_offset + 30 + sum(struct.unpack_from("<HH", data, entry.header_offset + 26))
            expect(entry.compress_type == zipfile.ZIP_STORED and start % 16384 == 0,
                   f"{entry.filename} starts at {start}: it cannot be mapped")
    for abi in ("arm64-v8a", "x86_64"):
        for name in (f"jni/{abi}/libkvc.so", f"jni/{abi}/libkvc_jni.so",
                     f"prefab/modules/kvc/libs/android.{abi}/libkvc.so"):
            expect(os.path.exists(os.path.join(tree, name)), f"no {name}")
    with zipfile.ZipFile(os.path.join(tree, "classes.jar")) as classes:
        expect(classes.namelist() == ["dev/kvc/Model.class"], f"classes.jar has {classes.namelist()}")
    manifest = xml.etree.ElementTree.parse(os.path.join(tree, "AndroidManifest.xml")).getroot()
    expect(not list(manifest.iter("uses-permission")), "the manifest asks for a permission")
    for name in ("R.txt", "proguard.txt", "prefab/prefab.json", "prefab/modules/kvc/include/kvc/kvc.h",
                 "META-INF/LICENSE"):
        expect(os.path.exists(os.path.join(tree, name)), f"no {name}")
    check_meta(os.path.join(tree, "META-INF"), {"kvc-android", "PCRE2", "utf8proc"})


def test_elf(folder):
    check = [sys.executable, os.path.join(ROOT, "packaging/check_elf.py")]
    good = ["-shared", "-fPIC", "-x", "c", "-", "-Wl,-z,max-page-size=16384"]
    faults = {
        "exports foo": (good, "void foo(void) {}"),
        "is aligned to 0x1000": ([*good[:-1], "-Wl,-z,max-page-size=4096"], "void kvc_x(void) {}"),
        "needs glibc 2.34": (good, "#include <pthread.h>\nvoid kvc_x(void) { pthread_join(0, 0); }"),
        "stack can be executed": ([*good, "-z", "execstack"], "void kvc_x(void) {}"),
        "needs libz": ([*good, "-Wl,--no-as-needed", "-l:libz.so.1"], "void kvc_x(void) {}"),
    }
    for fault, (flags, code) in faults.items():
        path = os.path.join(folder, "libx.so")
        subprocess.run(["cc", *flags, "-o", path], input=code, text=True, check=True)
        done = subprocess.run([*check, path, "2.28"], capture_output=True, text=True, check=False)
        expect(done.returncode == 1 and fault in done.stdout, f"'{fault}' was not found: {done.stdout}")
    subprocess.run(["cc", *good, "-o", path], input="void kvc_x(void) {}", text=True, check=True)
    run([*check, path, "2.28"])


def architectures(folder, toolchain):
    """What a build with the CUDA backend and this toolchain file compiles kernels for."""
    run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DKVC_CUDA=ON", "-DKVC_TESTS=OFF", "-DKVC_TOOLS=OFF",
         f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/toolchains/{toolchain}.cmake",
         f"-DKVC_THIRD_PARTY={ROOT}/build-third-party", "-DKVC_BINDINGS=OFF"])
    with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as file:
        commands = [entry["command"] for entry in json.load(file) if "/cuda/" in entry["file"]]
    expect(len(commands) > 5, f"{toolchain}: {len(commands)} files of kernels")
    return {tuple(sorted(set(re.findall(r"(?:compute|sm)_\d+", command)))) for command in commands}


def nvcc(*targets):
    """Whether there is one, with the libraries of one of these targets."""
    found = shutil.which("nvcc")
    if not found or not any(os.path.isdir(os.path.join(os.path.dirname(found), "../targets", name))
                            for name in targets):
        raise Skipped(f"no nvcc with the libraries for {targets[0]} in PATH")


def test_a100(folder):
    nvcc("x86_64-linux")
    found = architectures(folder, "a100")
    expect(found == {("compute_80", "sm_80")}, f"kernels are compiled for {found}")


def test_jetson_orin(folder):
    libraries = os.path.join(build("jetson-orin", "kvc", "-DKVC_TOOLS=OFF",
                                   f"-DKVC_THIRD_PARTY={ROOT}/build-third-party", language="OFF"), "lib")
    program = os.path.join(folder, "program")
    run([*ARM_CC, os.path.join(ROOT, "samples/c/run.c"), "-I", os.path.join(ROOT, "include"), "-L", libraries, "-lkvc",
         f"-Wl,-rpath,{libraries}", "-o", program])
    print(answer_with(program, model_of(any_kvc(), folder), QEMU).strip())
    nvcc("aarch64-linux", "sbsa-linux")
    found = architectures(os.path.join(folder, "cuda"), "jetson-orin")
    expect(found == {("compute_87", "sm_87")}, f"kernels are compiled for {found}")


def test_unicode(folder):
    """For every code point and every pair that composes, in a program compiled with each of the tables."""
    third_party = os.path.join(ROOT, "build-third-party")
    said = []
    for tables in ("original", "utf8proc"):
        place = os.path.join(folder, tables)
        shutil.copytree(os.path.join(third_party, "utf8proc"), place)
        shutil.copy(os.path.join(third_party, tables, "utf8proc_data.c"), place)
        program = os.path.join(place, "program")
        run(["cc", "-O1", "-DUTF8PROC_STATIC", "-I", os.path.join(third_party, "include"), "-I", place,
             os.path.join(ROOT, "tests/package/unicode.c"), os.path.join(place, "utf8proc.c"), "-o", program])
        said.append(run([program]))
    expect(len(said[0]) > 20_000_000 and said[0] == said[1], "the tables that are shipped say something else")
    with open(os.path.join(ROOT, "lib/model/tokenizer_normalize.cc"), encoding="utf-8") as file:
        used = set(re.findall(r"\butf8proc_\w+(?=\()", file.read()))
    tested = {"utf8proc_get_property", "utf8proc_decompose_char", "utf8proc_normalize_utf32",
              "utf8proc_grapheme_break", "utf8proc_errmsg"}
    expect(used <= tested, f"lib/ calls {used - tested}, of which this test knows nothing")
    print(f"{len(said[0].splitlines())} answers, the same")


PARTS = {"elf": test_elf, "unicode": test_unicode, "aar": test_aar, "source": test_source, "tar": test_tar,
         "deb": test_deb, "wheel": test_wheel, "tar-aarch64": test_tar_aarch64, "deb-arm64": test_deb_arm64,
         "jar": test_jar, "nuget": test_nuget, "tar-musl": test_tar_musl, "a100": test_a100,
         "jetson-orin": test_jetson_orin}


def main():
    chosen = sys.argv[2:] or list(PARTS)
    n_failed = n_skipped = 0
    for part in chosen:
        print(f"== {part}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kvc-packages-") as folder:
            try:
                PARTS[part](folder)
            except Skipped as reason:
                print(f"skipped: {part}: {reason}", flush=True)
                n_skipped += 1
            except (Failure, subprocess.CalledProcessError) as error:
                print(f"failed: {part}: {error}", flush=True)
                n_failed += 1
    tail = f", {n_skipped} skipped" if n_skipped else ""
    print(f"{len(chosen) - n_failed - n_skipped} passed, {n_failed} failed{tail}")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
