"""Parts of built_packages_test.py: packages for Python, Java, C# and Android."""
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree
import zipfile

from packages import (
    ARM_CC, QEMU, ROOT, any_kvc, check_meta, expect, first_lines, make, models_of_bindings, run, unzip)


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
    run([system, "-m", "venv", "--system-site-packages", os.path.join(folder, "venv")])  # numpy is the system's
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
              "lib/net45/Kvc.dll", "lib/net45/Kvc.xml", "lib/netstandard2.1/Kvc.dll", "lib/netstandard2.1/Kvc.xml",
              "runtimes/linux-x64/native/libkvc_csharp.so",
              "runtimes/linux-arm64/native/libkvc_csharp.so"}
    expect(names == wanted, f"it has {names ^ wanted} too much or too little")
    for name in ("Kvc.nuspec", "[Content_Types].xml", "_rels/.rels", "lib/net45/Kvc.xml"):
        root = xml.etree.ElementTree.parse(os.path.join(tree, name)).getroot()
        if name == "Kvc.nuspec":
            texts = {element.tag.split("}")[1]: element.text for element in root.iter()}
    expect(texts["id"] == "Kvc" and os.path.basename(path) == f"Kvc.{texts['version']}.nupkg", f"Kvc.nuspec: {texts}")
    for named in (texts["license"], texts["readme"]):
        expect(named in names, f"Kvc.nuspec names {named}")
    with open(os.path.join(tree, "README.md"), encoding="utf-8") as file:
        dangling = [link for link in re.findall(r"\]\(([^)#]+)", file.read()) if ":" not in link and link not in names]
    expect(not dangling, f"README.md links to {dangling}")
    run([sys.executable, os.path.join(ROOT, "packaging/check_elf.py"), os.path.join(tree, "runtimes"), "2.28"])
    check_meta(tree, {"Kvc", "PCRE2", "utf8proc"})
    # What .NET does with the folders: the assembly, and the library of its own system, in reach of the program.
    assembly, native = os.path.join(tree, "lib/net45"), os.path.join(tree, "runtimes/linux-x64/native")
    environment = dict(models_of_bindings(folder), MONO_PATH=assembly, LD_LIBRARY_PATH=native)
    first_lines("csharp", "csharp", "Hello.cs", [f"mcs -r:{assembly}/Kvc.dll Hello.cs", "mono Hello.exe"], environment)
    load_on_arm(os.path.join(tree, "runtimes/linux-arm64/native/libkvc_csharp.so"), "CSharp_Kvc_kvc_version", folder)
    use_dotnet(tree, texts["version"], folder)


def to_netstandard(assembly, out):
    return subprocess.run([sys.executable, "-c", f"import nuget; nuget.to_netstandard({assembly!r}, {out!r})"],
                          cwd=os.path.join(ROOT, "packaging"), capture_output=True, text=True, check=False)


def restored(version):
    """What NuGet writes for a program that refers to the package: where the host looks for its parts, in the folder of
    restored packages."""
    target = ".NETCoreApp,Version=v3.1"
    natives = {f"runtimes/{system}/native/libkvc_csharp.so": {"rid": system, "assetType": "native"}
               for system in ("linux-x64", "linux-arm64")}
    return {"runtimeTarget": {"name": target, "signature": ""}, "compilationOptions": {},
            "targets": {target: {
                "KvcTests/1.0.0": {"dependencies": {"Kvc": version}, "runtime": {"KvcTests.dll": {}}},
                f"Kvc/{version}": {"runtime": {"lib/netstandard2.1/Kvc.dll": {}}, "runtimeTargets": natives}}},
            "libraries": {
                "KvcTests/1.0.0": {"type": "project", "serviceable": False, "sha512": ""},
                f"Kvc/{version}": {"type": "package", "serviceable": True, "sha512": "", "path": f"kvc/{version}"}}}


def use_dotnet(tree, version, folder):
    """The tests of C#, compiled and made one of .NET Standard as Kvc.dll is, under .NET Core with the package's."""
    place, mono = os.path.join(folder, "dotnet"), os.path.join(folder, "mono")
    for made in (place, mono):
        os.mkdir(made)
    packages = os.path.join(folder, "packages")
    shutil.copytree(tree, os.path.join(packages, "kvc", version))
    shutil.copy(os.path.join(ROOT, "build-package/release-linux-x86_64/bindings/csharp/Kvc.dll"), mono)
    run(["mcs", "-langversion:7", "-unsafe", f"-r:{mono}/Kvc.dll", f"-out:{mono}/KvcTests.exe",
         *glob.glob(os.path.join(ROOT, "tests/bindings/csharp/*.cs"))])
    program = os.path.join(place, "KvcTests.dll")
    done = to_netstandard(os.path.join(mono, "KvcTests.exe"), program)
    expect(done.returncode == 0, done.stderr)
    options = {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
               "configProperties": {"System.Globalization.Invariant": True}}
    for name, content in (("runtimeconfig", {"runtimeOptions": options}), ("deps", restored(version))):
        with open(os.path.join(place, f"KvcTests.{name}.json"), "w", encoding="utf-8") as file:
            json.dump(content, file)
    dotnet = [os.path.join(ROOT, "build-tools/dotnetcore2/bin/dotnet"), "exec", "--additionalprobingpath", packages,
              program]
    environment = models_of_bindings(folder)
    for test in ("facade", "misuse", "endurance"):
        print(f".NET Core: {test}: {run([*dotnet, test], env=environment).splitlines()[-1]}")
    said = run([sys.executable, os.path.join(ROOT, "tests/bindings/run_scenario.py"), any_kvc(), ROOT, *dotnet,
                "scenario"], env=environment)
    print(f".NET Core: {said.splitlines()[-1]}")
    # What Mono has and .NET Core has not is found before it is shipped.
    fault = os.path.join(folder, "fault.cs")
    with open(fault, "w", encoding="utf-8") as file:
        file.write("class P { static void Main() { new System.Runtime.Remoting.ObjRef(); } }")
    run(["mcs", fault])
    done = to_netstandard(os.path.join(folder, "fault.exe"), os.path.join(folder, "fault.dll"))
    expect(done.returncode == 1 and ".NET Core has no System.Runtime.Remoting.ObjRef" in done.stderr,
           f"a fault was not found: {done}")


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
    with open(os.path.join(folder, "source.properties"), "w", encoding="utf-8") as file:
        file.write("Pkg.Desc = Android NDK\nPkg.Revision = 26.3.11579264\n")
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
        code = f"import aar; aar.assemble('test.aar', {libraries!r}, {jar!r}, aar.runtime({folder!r}))"
        return subprocess.run([sys.executable, "-c", code],
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
    check_meta(os.path.join(tree, "META-INF"), {"kvc-android", "PCRE2", "utf8proc", "LLVM"})
