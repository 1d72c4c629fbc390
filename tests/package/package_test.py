#!/usr/bin/env python3
"""Someone else's project against this build, installed into a temporary prefix that is then moved.

Usage: package_test.py PART --build FOLDER --source FOLDER ...
  install       what is there: docs, samples; kvc without MPI; libkvc.a and libkvc.so with nothing but kvc_* to see
  samples       what an app's own build leaves among the samples is not installed
  swig          what is installed for further languages makes flat layers
  find_package  a project in plain C, shared and static
  pkg_config    cc with the flags of kvc and kvc-static, and a program without any shared library
  own_folders   where kvc.pc says things are, and the list of parts is, when folders are given with their whole paths
  machines      a machine of 32 bits, or with the high byte first, is refused at once
  plain_archive what kvc-static.pc names of a build whose archive is not merged is all that a program needs
  neighbour     beside other versions of PCRE2, utf8proc and FlatBuffers, shared and static
  subproject    FetchContent: only the two libraries, nothing of the parent changes, programs with both say the same
  archives      packaging/archive.py: the same files, the same bytes
  sbom          packaging/sbom.py
  debs          packaging/deb.py: packages of two architectures that are to stand beside each other do
  source_flags  what the source package compiles files with: those for instruction sets have flags of their own"""
import argparse
import filecmp
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile

# The C library, its parts, the loader.
NETWORK = {"socket", "socketpair", "connect", "bind", "listen", "accept", "accept4", "getaddrinfo", "gethostbyname",
           "send", "sendto", "sendmsg", "recv", "recvfrom", "recvmsg"}
C_LIBRARY = re.compile(r"^(libc|libm|libdl|libpthread|ld-linux[^.]*)\.so(\.\d+)?$")
FOREIGN, FOREIGN_TEXT = "include/other/README.md", "Its own [matter](../nothing.md).\n"
PROMPT = "Ada lives in Paris. Ada lives in"


# CMake begins variables with these; a project that takes libkvc in would see them change.
for variable in ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"):
    os.environ.pop(variable, None)


def run(command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}): {shlex.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(condition, message):
    if not condition:
        sys.exit(message)


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", path]))


class Installed:
    """The build below a prefix with a space in its name that is not the one it was installed to."""

    def __init__(self, args, folder):
        self.args, self.folder, self.prefix = args, folder, os.path.join(folder, "a b")
        first = os.path.join(folder, "first")
        os.makedirs(os.path.dirname(os.path.join(first, FOREIGN)))
        with open(os.path.join(first, FOREIGN), "w", encoding="utf-8") as file:
            file.write(FOREIGN_TEXT)
        run([args.cmake, "--install", args.build, "--prefix", first, "--config", args.config])
        os.rename(first, self.prefix)
        self.libraries = next(root for root, _, files in os.walk(self.prefix) if "libkvc.so" in files)
        self.kvc = os.path.join(self.prefix, "bin", "kvc")
        self.program = os.path.join(args.source, "samples/c/run.c")

    def arguments(self):
        """Of samples/c/run.c: a model whose tokenizer needs PCRE2, made on the spot."""
        model = os.path.join(self.folder, "recall.kvc")
        if not os.path.exists(model):
            run([self.kvc, "convert", os.path.join(self.args.source, "models/recall"), model])
        return [model, "snapkv:budget=32", PROMPT, "12"]

    def configure(self, project, name, *options):
        build = os.path.join(self.folder, name)
        run([self.args.cmake, "-G", self.args.generator, "-S", os.path.join(self.args.source, "tests/package", project),
             "-B", build, f"-DPROGRAM={self.program}", f"-DCMAKE_PREFIX_PATH={self.prefix}",
             f"-DCMAKE_C_COMPILER={self.args.cc}", f"-DCMAKE_CXX_COMPILER={self.args.cxx}", *options])
        return build


def test_swig(at):
    """The installed interface, with nothing but the installed tree, makes flat layers whose C has what it includes."""
    if not shutil.which("swig"):
        print("swig was not found")
        sys.exit(77)
    share = os.path.join(at.prefix, "share/kvc")
    include = os.path.join(at.prefix, "include")
    for language, *options in (["java"], ["csharp"], ["go", "-intgosize", "64"], ["python"]):
        code = os.path.join(at.folder, f"{language}.c")
        run(["swig", f"-{language}", *options, "-Wall", "-Werror", "-module", "kvc", f"-I{share}", f"-I{include}",
             "-outdir", at.folder, "-o", code, os.path.join(share, "bindings/kvc.i")])
        with open(code, encoding="utf-8") as file:
            own = re.findall(r'^#include "((?:kvc|bindings)/[^"]+)"', file.read(), re.M)
        missing = [name for name in own
                   if not any(os.path.exists(os.path.join(place, name)) for place in (share, include))]
        expect(own and not missing, f"{language}: {missing} of {own} is not installed")


def check_meta(folder, name, inside):
    """LICENSE, NOTICE and an SPDX document of these parts."""
    for own in ("LICENSE", "NOTICE"):
        with open(os.path.join(folder, own), "rb") as installed:
            expect(len(installed.read()) > 5000, f"{folder}/{own} is not whole")
    with open(os.path.join(folder, "sbom.spdx.json"), encoding="utf-8") as file:
        packages = json.load(file)["packages"]
    expect(packages[0]["name"] == name and {part["name"] for part in packages[1:]} == inside,
           f"{folder}: the parts are {[part['name'] for part in packages]}")


def check_links(prefix):
    """Every relative link of the documents below share leads to a file or folder there; returns them by document."""
    share, found, lost = os.path.join(prefix, "share"), {}, []
    for folder, _, names in os.walk(share):
        for name in (name for name in names if name.endswith(".md")):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                prose = re.sub(r"^```.*?^```", "", file.read(), flags=re.M | re.S)
            links = [link for link in re.findall(r"\]\(([^)]+)\)", prose) if not re.match(r"[a-z]+:|#", link)]
            lost += [f"{path}: {link}" for link in links
                     if not os.path.exists(os.path.join(folder, link.partition("#")[0]))]
            found[os.path.relpath(path, share)] = set(links)
    expect(not lost, "\n".join([*lost, f"{len(lost)} links lead nowhere"]))
    print(f"{len(found)} documents, {sum(map(len, found.values()))} links")
    return found


def test_install(at):
    share = os.path.join(at.prefix, "share")
    check_meta(os.path.join(share, "doc/kvc"), "libkvc",
               {"PCRE2", "utf8proc", "xxHash", "FlatBuffers", "CLI11", "nlohmann-json"})
    module = os.path.join(share, "gocode/src/kvc.dev/kvc")
    if os.path.isdir(module):  # a build without Go says so in a skipped test
        check_meta(module, "kvc-go", set())
    for path in ("man/man1/kvc.1", "bash-completion/completions/kvc", "zsh/site-functions/_kvc",
                 "fish/vendor_completions.d/kvc.fish", "doc/kvc/README.md", "doc/kvc/docs/porting.md",
                 "kvc/samples/c/run.c", "kvc/kvc_model.fbs",
                 "kvc/samples/android/build.gradle.kts", "kvc/samples/android/app/build.gradle.kts"):
        expect(os.path.exists(os.path.join(share, path)), f"share/{path} is not installed")
    readme = check_links(at.prefix)["doc/kvc/README.md"]
    for link in ("docs/sessions.md", "docs/methods.md#which-policy", "docs/report.png", "../../kvc/samples/c/run.c",
                 "../../kvc/samples", "../../../include/kvc/kvc.h", "../../kvc/bindings/kvc.i"):
        expect(link in readme, f"README.md has no link to {link}: {sorted(readme)}")
    with open(os.path.join(share, "doc/kvc/README.md"), encoding="utf-8") as file:
        expect("runs in all of them (tests/bindings)." in file.read(), "what is not installed is not plain text")
    with open(os.path.join(at.prefix, FOREIGN), encoding="utf-8") as file:
        expect(file.read() == FOREIGN_TEXT, f"{FOREIGN}, which is somebody else's, has changed")
    mpi = [name for name in needed(at.kvc) if "mpi" in name]
    expect(not mpi, f"kvc needs {mpi}")
    foreign = [name for name in needed(os.path.join(at.libraries, "libkvc.so")) if not C_LIBRARY.match(name)]
    expect(not foreign, f"libkvc.so needs {foreign}")
    names = run(["nm", "--defined-only", "--extern-only", os.path.join(at.libraries, "libkvc.a")]).splitlines()
    names = [line.split()[-1] for line in names if len(line.split()) == 3]
    strange = [name for name in names if not name.startswith("kvc_")]
    expect(not strange and len(names) > 40, f"libkvc.a defines {len(names)} names, among them {strange[:5]}")
    lost = [name for name in declared(at) if name not in names]
    expect(not lost, f"libkvc.a lacks {lost}, which installed headers declare")
    imported = run(["nm", "-D", "--undefined-only", os.path.join(at.libraries, "libkvc.so")])
    network = [name for name in re.findall(r" U (\w+)", imported) if name in NETWORK]
    expect(not network, f"libkvc.so imports {network}: it has no business with a network")
    print(f"{len(names)} names in libkvc.a, all of them kvc_*")


def test_samples(at):
    """By the script of this build, with a copy of the samples in which the Android app was built."""
    samples, prefix = os.path.join(at.folder, "samples"), os.path.join(at.folder, "planted")
    shutil.copytree(os.path.join(at.args.source, "samples"), samples)
    planted = ("local.properties", ".gradle/8.7/checksums.lock", "build/reports/problems.html", "app/build/x.apk",
               "app/libs/kvc.aar", "app/src/main/assets/model.kvc")
    for name in planted:
        path = os.path.join(samples, "android", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("left by Gradle")
    script = os.path.join(at.folder, "install.cmake")
    with open(os.path.join(at.args.build, "cmake_install.cmake"), encoding="utf-8") as file:
        text = file.read()
    with open(script, "w", encoding="utf-8") as file:
        file.write(text.replace(f'"{os.path.abspath(at.args.source)}/samples"', f'"{samples}"'))
    run([at.args.cmake, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", script])
    android = os.path.join(prefix, "share/kvc/samples/android")
    expect(os.path.exists(os.path.join(android, "app/src/main/AndroidManifest.xml")), "the app is not installed")
    left = [name for name in planted if os.path.exists(os.path.join(android, name))]
    expect(not left, f"{left} are installed")
    empty = [folder for folder, folders, files in os.walk(os.path.join(prefix, "share")) if not folders + files]
    expect(not empty, f"{empty} have nothing in them")


def declared(at):
    """Functions of the installed C headers."""
    names = []
    for header in ("kvc.h", "kvc_experimental.h"):
        with open(os.path.join(at.prefix, "include/kvc", header), encoding="utf-8") as file:
            names += re.findall(r"^(?:KVC_API .*?|kvc_status )\s*\*?(kvc_\w+)\(", file.read(), re.M)
    expect(len(names) > 60, f"{len(names)} functions were found in the headers")
    return names


def compare(texts):
    for way, output in texts.items():
        print(f"{way}: {output.strip()}")
    expect(len(set(texts.values())) == 1 and all(text.strip() for text in texts.values()), "the programs do not agree")


def test_find_package(at):
    texts = {}
    for kind in ("kvc", "static"):
        build = at.configure("consumer", f"build-{kind}", f"-DKIND={kind}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror")
        run([at.args.cmake, "--build", build])
        program = os.path.join(build, "consumer")
        foreign = [n for n in needed(program) if not C_LIBRARY.match(n) and not n.startswith("libkvc")]
        expect(not foreign, f"the program with kvc::{kind} needs {foreign}")
        expect(("libkvc.so.0" in needed(program)) == (kind == "kvc"), f"kvc::{kind} is the other library")
        texts[f"find_package, kvc::{kind}"] = run([program, *at.arguments()])
    compare(texts)


def test_pkg_config(at):
    environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(at.libraries, "pkgconfig"),
                       LD_LIBRARY_PATH=at.libraries)
    texts = {}
    for way, query, more in (("shared", ["kvc"], []), ("kvc-static", ["kvc-static"], []),
                             ("all static", ["--static", "kvc"], ["-static"])):
        flags = shlex.split(run(["pkg-config", "--cflags", "--libs", *query], env=environment))
        built = os.path.join(at.folder, way.replace(" ", "-"))
        run([at.args.cc, "-std=c99", at.program, "-o", built, *more, *flags])
        linked = [] if more else needed(built)
        expect(("libkvc.so.0" in linked) == (way == "shared"), f"{way}: the program needs {linked}")
        texts[f"pkg-config, {way}"] = run([built, *at.arguments()], env=environment)
    compare(texts)


def test_own_folders(at):
    """Configured only: folders that are not all below one prefix."""
    build, place = os.path.join(at.folder, "own"), os.path.join(at.folder, "place")
    folders = {"LIBDIR": f"{place}/lib64", "INCLUDEDIR": "include/deep", "DOCDIR": f"{place}/doc"}
    run([at.args.cmake, "-G", at.args.generator, "-S", at.args.source, "-B", build, "-DKVC_TESTS=OFF",
         "-DKVC_TOOLS=OFF", "-DKVC_BINDINGS=OFF", f"-DCMAKE_INSTALL_PREFIX={place}/usr",
         f"-DCMAKE_C_COMPILER={at.args.cc}", f"-DCMAKE_CXX_COMPILER={at.args.cxx}",
         *(f"-DCMAKE_INSTALL_{name}={path}" for name, path in folders.items())])
    installed = os.path.join(folders["LIBDIR"], "pkgconfig")
    os.makedirs(installed)
    for name, wanted in (("libdir", folders["LIBDIR"]), ("includedir", f"{place}/usr/include/deep")):
        for package in ("kvc", "kvc-static"):
            shutil.copy(os.path.join(build, f"{package}.pc"), installed)
            found = run(["pkg-config", f"--variable={name}", package], env=dict(os.environ, PKG_CONFIG_PATH=installed))
            expect(os.path.normpath(found.strip()) == wanted, f"{package}: {name} is {found.strip()}, not {wanted}")
    with open(os.path.join(build, "cmake_install.cmake"), encoding="utf-8") as file:
        sbom = re.search(r"sbom\.py\]=\]\s+\"(.*)\"", file.read()).group(1)
    expect(sbom == f"$ENV{{DESTDIR}}{folders['DOCDIR']}", f"the list of parts goes to {sbom}")


def test_machines(at):
    """With a compiler that makes code for any machine: nothing is linked, as there are no libraries for them."""
    if not shutil.which("clang") or not shutil.which("clang++"):
        print("clang was not found")
        sys.exit(77)
    for machine in ("i386", "s390x"):
        file = os.path.join(at.folder, f"{machine}.cmake")
        with open(file, "w", encoding="utf-8") as toolchain:
            toolchain.write(f"set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR {machine})\n"
                            "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\n" +
                            "".join(f"set(CMAKE_{language}_COMPILER {compiler})\n"
                                    f"set(CMAKE_{language}_COMPILER_TARGET {machine}-linux-gnu)\n"
                                    for language, compiler in (("C", "clang"), ("CXX", "clang++"))))
        done = subprocess.run([at.args.cmake, "-G", at.args.generator, "-S", at.args.source,
                               "-B", os.path.join(at.folder, machine), f"-DCMAKE_TOOLCHAIN_FILE={file}"],
                              capture_output=True, text=True, check=False)
        said = " ".join(done.stderr.split())
        expect(done.returncode != 0 and f"64-bit little-endian machines only, and this is {machine}" in said,
               f"{machine} was not refused: {done.stderr}")


def test_plain_archive(at):
    """Configured only: the objects are those of this build, as the archive of its tests and programs has them."""
    inside = [os.path.join(root, name) for root, _, files in os.walk(at.args.build) for name in files
              if name == "libkvc_internal.a"]
    build = os.path.join(at.folder, "plain")
    run([at.args.cmake, "-G", at.args.generator, "-S", at.args.source, "-B", build, "-DKVC_BUNDLE=OFF",
         "-DKVC_TESTS=OFF", "-DKVC_TOOLS=OFF", "-DKVC_BINDINGS=OFF", f"-DCMAKE_C_COMPILER={at.args.cc}",
         f"-DCMAKE_CXX_COMPILER={at.args.cxx}"])
    with open(os.path.join(build, "kvc-static.pc"), encoding="utf-8") as file:
        archive, *flags = shlex.split(re.search("^Libs: (.*)$", file.read(), re.M).group(1))
    expect(archive == "${libdir}/libkvc.a", f"{archive} is not the archive")
    built = os.path.join(at.folder, "plain-run")
    run([at.args.cc, "-std=c99", f"-I{at.prefix}/include", at.program, "-o", built, *inside, *flags])
    merged = at.configure("consumer", "build-merged", "-DKIND=static")
    run([at.args.cmake, "--build", merged])
    compare({"all that is named": run([built, *at.arguments()]),
             "merged": run([os.path.join(merged, "consumer"), *at.arguments()])})


def test_neighbour(at):
    texts = {}
    for kind in ("kvc", "static"):
        build = at.configure("neighbour", f"neighbour-{kind}", f"-DKIND={kind}")
        run([at.args.cmake, "--build", build])
        texts[f"beside other versions, kvc::{kind}"] = run([os.path.join(build, "neighbour"), *at.arguments()])
    compare(texts)


def test_subproject(at):
    build = at.configure("subproject", "subproject", f"-DKVC_SOURCE={at.args.source}",
                         "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    if at.args.generator == "Ninja":
        steps = run(["ninja", "-C", build, "-t", "commands", "all"])
        strange = re.findall(r"\S*(?:/tools/|/tests/|/bench/|/models/convert/)\S*\.cc\b", steps)
        expect(not strange, f"the parent would build {strange[:5]}")
        expect("lib/api/c_api.cc" in steps, "the parent would not build libkvc")
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = [entry["command"] for entry in json.load(file) if "/lib/" in entry["file"]]
    expect(commands, "no compile command of libkvc")
    expect(not [c for c in commands if "-Werror" in c or "-Wall" in c], "our warnings are the parent's")
    expect(all("-O3" in c and "-std=c++17" in c for c in commands), "not optimised, or not C++17")
    print(f"{len(commands)} files of libkvc, nothing else")
    # Quick to compile rather than to run, and by way of the cache where there is one.
    cached = [os.path.join("/usr/lib/ccache", os.path.basename(path)) for path in (at.args.cc, at.args.cxx)]
    cached = cached if all(map(os.path.exists, cached)) else [at.args.cc, at.args.cxx]
    source = os.path.join(at.folder, "its source")  # blanks in the paths of sources and of objects
    os.symlink(at.args.source, source)
    build = at.configure("subproject", "quick build", f"-DKVC_SOURCE={source}",
                         f"-DCMAKE_C_COMPILER={cached[0]}", f"-DCMAKE_CXX_COMPILER={cached[1]}",
                         "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O0", "-DCMAKE_CXX_FLAGS_DEBUG=-O0")
    run([at.args.cmake, "--build", build, "--parallel", os.environ.get("KVC_JOBS", str(os.cpu_count() or 2))])
    compare({f"FetchContent, kvc::{kind}": run([os.path.join(build, f"app_{kind}"), *at.arguments()])
             for kind in ("kvc", "static")})


def make_twice(at, name, *options):
    """The archive of a folder, and of a copy with other times and modes, made in another order."""
    packaging = os.path.join(at.args.source, "packaging/archive.py")
    made = []
    for turn in (1, 2):
        tree = os.path.join(at.folder, f"tree{turn}")
        shutil.rmtree(tree, ignore_errors=True)
        for path in ("b/z.txt", "a.h", "b/run.sh", "c/lib.so")[::1 if turn == 1 else -1]:
            full = os.path.join(tree, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(path * 1000)
            os.chmod(full, (0o755 if path.endswith(".sh") else 0o644) & (0o777 if turn == 1 else 0o711))
            os.utime(full, (turn * 10**9, turn * 10**9))
        out = os.path.join(at.folder, f"{turn}-{name}")
        run([sys.executable, packaging, out, tree, *options], env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"))
        with open(out, "rb") as file:
            made.append(file.read())
    expect(made[0] == made[1], f"{name}: two archives of the same files differ")
    return os.path.join(at.folder, f"1-{name}")


def test_archives(at):
    make_twice(at, "x.tar.gz", "--prefix", "libkvc")
    make_twice(at, "x.tar.xz")
    path = make_twice(at, "x.zip", "--store", "*.so", "--align", "*.so=16384", "--first", "b/z.txt")
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        data = file.read()
        entries = archive.infolist()
        expect(archive.testzip() is None and entries[0].filename == "b/z.txt", "the zip is damaged, or not in order")
        library = next(entry for entry in entries if entry.filename == "c/lib.so")
        start = data.find(b"c/lib.so" * 1000)
        expect(library.compress_type == zipfile.ZIP_STORED and start % 16384 == 0, f"lib.so starts at {start}")
        expect(entries[0].compress_type == zipfile.ZIP_DEFLATED, "the rest is compressed")


def test_source_flags(at):
    sys.path.insert(0, os.path.join(at.args.source, "packaging"))
    import source  # noqa: PLC0415

    files = {name for name in os.listdir(os.path.join(at.args.source, "lib/ops/cpu")) if re.match(r"isa_.*\.cc", name)}
    arm = {name for name in files if "neon" in name}
    for processor, wanted in (("x86_64", files - arm), ("aarch64", arm - {"isa_neon.cc"})):
        isa, third = source.flags_of(processor)
        expect(set(isa) == wanted, f"{processor}: files with flags are {sorted(isa)}, not {sorted(wanted)}")
        expect(all(isa.values()), f"{processor}: no flags: {isa}")
        expect({name for _, name, _ in third} == {"pcre2", "utf8proc"}, f"{processor}: parts are missing")


def test_sbom(at):
    out = os.path.join(at.folder, "meta")
    run([sys.executable, os.path.join(at.args.source, "packaging/sbom.py"), out, "--name", "libkvc",
         "--version", "0.1.0", "--files", os.path.join(at.prefix, "include")],
        env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"))
    with open(os.path.join(out, "sbom.spdx.json"), encoding="utf-8") as file:
        text = json.load(file)
    names = {package["name"] for package in text["packages"]}
    expect(names == {"libkvc", "PCRE2", "utf8proc", "xxHash", "FlatBuffers"}, f"the parts are {names}")
    identifiers = [e["SPDXID"] for e in text["packages"] + text["files"]]
    known = set(identifiers) | {"SPDXRef-DOCUMENT"}
    expect(len(identifiers) == len(set(identifiers)), "an identifier is there twice")
    for relation in text["relationships"]:
        expect({relation["spdxElementId"], relation["relatedSpdxElement"]} <= known, f"{relation} leads nowhere")
    expect("./kvc/kvc.h" in {entry["fileName"] for entry in text["files"]}, "kvc.h is not listed")
    with open(os.path.join(at.args.source, "NOTICE"), encoding="utf-8") as file:
        notice = file.read().replace("nlohmann/json", "nlohmann-json")
    for part in text["packages"]:
        expect(part["name"] in notice, f"NOTICE does not name {part['name']}")


def make_debs(at, deb, architecture, triplet):
    """What dpkg-deb packs, of what was installed and of a library that is another one for each architecture."""
    place = os.path.join(at.folder, architecture)
    tree, library = os.path.join(place, "tree"), os.path.join(place, f"tree/lib/{triplet}/libkvc.so.9.8.7")
    for part in ("include", "share"):
        shutil.copytree(os.path.join(at.prefix, part), os.path.join(tree, part))
    for path in (library, os.path.join(tree, "bin/kvc")):
        deb.write_text(path, architecture, 0o755)
    os.symlink(os.path.basename(library), os.path.join(os.path.dirname(library), "libkvc.so"))
    folders = {name: os.path.join(place, name) for name in deb.DESCRIPTIONS}
    deb.split(tree, folders, f"lib/{triplet}")
    for name, folder in folders.items():
        deb.finish(name, folder, architecture, "9.8.7-1", "9.8.7")
    mode = os.stat(os.path.join(folders["libkvc0"], f"usr/lib/{triplet}/libkvc.so.9.8.7")).st_mode & 0o777
    expect(mode == 0o644, f"the library of the package has mode {mode:o}")
    return folders


def test_debs(at):
    sys.path.insert(0, os.path.join(at.args.source, "packaging"))
    import deb  # noqa: PLC0415

    def write_meta(folder, name, files, tools=False):  # without the sources and the compiler of packages
        deb.package.sbom.write(folder, name, "9.8.7", files, tools=tools)

    deb.package.write_meta = write_meta
    amd, arm = (make_debs(at, deb, *pair) for pair in (("amd64", "x86_64-linux-gnu"), ("arm64", "aarch64-linux-gnu")))
    for name, folder in amd.items():
        with open(os.path.join(folder, "DEBIAN/control"), encoding="utf-8") as file:
            if "Multi-Arch: same" not in file.read():
                continue
        places = [set(deb.archive.names_below(os.path.join(top, "usr"))) for top in (folder, arm[name])]
        common = ["usr/" + path for path in sorted(places[0] & places[1])]
        different = [path for path in common
                     if not filecmp.cmp(os.path.join(folder, path), os.path.join(arm[name], path), shallow=False)]
        expect(common and not different, f"{name}: dpkg refuses a second architecture for {different}")
        print(f"{name}: {len(common)} files are shared")
    shared = os.path.join(amd["kvc-tools"], "usr/share")
    with gzip.open(os.path.join(shared, "man/man1/kvc.1.gz"), "rt", encoding="utf-8") as file:
        expect(".SS convert\n" in file.read(), "the manual page says nothing of kvc convert")
    for path in ("bash-completion/completions/kvc", "zsh/vendor-completions/_kvc",
                 "fish/vendor_completions.d/kvc.fish"):
        expect(os.path.exists(os.path.join(shared, path)), f"kvc-tools has no {path}")
    expect(not os.path.exists(os.path.join(shared, "man/man1/kvc.1")), "the manual page is there twice")
    links = check_links(os.path.join(amd["libkvc-dev"], "usr"))
    expect("../examples/c/run.c" in links["doc/libkvc-dev/docs/c.md"], "the samples of the package are not linked to")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part")
    for option in ("--cmake", "--generator", "--cc", "--cxx", "--build", "--source", "--config"):
        parser.add_argument(option, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvc-package-") as folder:
        globals()[f"test_{args.part}"](Installed(args, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
