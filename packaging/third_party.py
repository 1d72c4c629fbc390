#!/usr/bin/env python3
"""Gathers what libkvc is made of besides its own sources, for builds that cannot use the system's libraries (another
processor, an older C library, another system): the sources of PCRE2 and utf8proc, from the source packages of the
distribution, and the headers of the rest, from its installed packages.

Usage: third_party.py FOLDER        then configure with -DKVC_THIRD_PARTY=FOLDER

FOLDER/parts.json says what it holds: names, versions, licences, hashes. utf8proc's tables are reduced to what libkvc
asks for (utf8proc_tables.py); original/ has them as they were."""
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import utf8proc_tables  # noqa: E402  (of this folder)

# Name, Debian's source package, its licence (SPDX), files: pattern below the source -> folder below FOLDER.
SOURCES = [
    ("PCRE2", "pcre2", "BSD-3-Clause", [("src/pcre2_*.[ch]", "pcre2"), ("src/sljit/*.[ch]", "pcre2/sljit")]),
    ("utf8proc", "utf8proc", "MIT AND Unicode-DFS-2015", [("utf8proc*.[ch]", "utf8proc")]),
]
RENAMED = [("src/pcre2.h.generic", "include/pcre2.h"), ("src/pcre2_chartables.c.dist", "pcre2/pcre2_chartables.c"),
           ("utf8proc.h", "include/utf8proc.h")]
CHANGES = {"utf8proc": {"comment": "its tables have only what normalisation to NFC and grapheme borders ask for"}}
NOT_LIBRARY = re.compile(r"pcre2_(dftables|fuzzsupport|jit_test)\.c$")
# Name, Debian's package, licence, what of /usr/include is taken, whether it ends up in the library.
HEADERS = [
    ("xxHash", "libxxhash-dev", "BSD-2-Clause", ["xxhash.h", "xxh3.h"], True),
    ("FlatBuffers", "libflatbuffers-dev", "Apache-2.0", ["flatbuffers"], True),
    ("CLI11", "libcli11-dev", "BSD-3-Clause", ["CLI"], False),
    ("nlohmann-json", "nlohmann-json3-dev", "MIT", ["nlohmann"], False),
]


def run(*command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def source_lists(folder):
    """The system's package sources again, as sources of source packages; the system itself is left as it is."""
    lines = []
    for path in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                lines += [re.sub(r"^deb\b", "deb-src", line) for line in file if re.match(r"deb\s", line)]
    with open(os.path.join(folder, "lists.list"), "w", encoding="utf-8") as file:
        file.writelines(lines)
    for path in glob.glob("/etc/apt/sources.list.d/*.sources"):
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"^Types:.*$", "Types: deb-src", file.read(), flags=re.M)
        with open(os.path.join(folder, os.path.basename(path)), "w", encoding="utf-8") as file:
            file.write(text)


def apt_options(folder):
    for name in ("parts", "lists/partial", "cache"):
        os.makedirs(os.path.join(folder, name))
    source_lists(os.path.join(folder, "parts"))
    return ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={folder}/parts",
            "-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache",
            "-o", "APT::Sandbox::User=root"]


def fetch(options, package, folder):
    """Unpacks the newest version that can be had: an index may name one that its mirror has no more."""
    shown = run("apt-cache", *options, "showsrc", package)
    versions = []
    for record in shown.split("\n\n"):
        if re.search(rf"^Package: {re.escape(package)}$", record, re.M):
            versions.append(re.search(r"^Version: (.+)$", record, re.M).group(1))
    versions.sort(key=lambda v: [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", v)], reverse=True)
    problems = []
    for version in dict.fromkeys(versions):
        place = os.path.join(folder, f"{package}-{len(problems)}")
        os.makedirs(place)
        try:
            run("apt-get", *options, "source", f"{package}={version}", cwd=place)
        except RuntimeError as error:
            problems.append(str(error))
            continue
        archive = glob.glob(os.path.join(place, "*.orig.tar.*"))[0]
        tree = next(entry for entry in glob.glob(os.path.join(place, "*")) if os.path.isdir(entry))
        return version, archive, tree
    sys.exit(f"third_party.py: no source of {package} can be had\n" + "\n".join(problems))


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def made_by():
    """What a folder was made by: it is made again by another version of these programs."""
    return "".join(sha256(path) + "\n" for path in (os.path.abspath(__file__), utf8proc_tables.__file__))


def is_made(out):
    stamp = os.path.join(out, "made_by")
    if not os.path.exists(stamp):
        return False
    with open(stamp, encoding="utf-8") as file:
        return file.read() == made_by()


def reduce_tables(making):
    tables, original = os.path.join(making, "utf8proc/utf8proc_data.c"), os.path.join(making, "original")
    os.makedirs(original)
    shutil.move(tables, original)
    with open(os.path.join(original, "utf8proc_data.c"), encoding="utf-8") as file:
        text = utf8proc_tables.reduce(file.read())
    with open(tables, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = os.path.abspath(sys.argv[1])
    if is_made(out):
        return 0
    making = out + ".making"
    shutil.rmtree(making, ignore_errors=True)
    os.makedirs(os.path.join(making, "include"))
    parts = []
    with tempfile.TemporaryDirectory(prefix="kvc-sources-") as folder:
        options = apt_options(folder)
        run("apt-get", *options, "update")
        for name, package, licence, patterns in SOURCES:
            version, archive, tree = fetch(options, package, folder)
            for pattern, target in patterns:
                os.makedirs(os.path.join(making, target), exist_ok=True)
                for path in glob.glob(os.path.join(tree, pattern)):
                    if not NOT_LIBRARY.search(path):
                        shutil.copy(path, os.path.join(making, target))
            for source, target in RENAMED:
                if os.path.exists(os.path.join(tree, source)):
                    shutil.copy(os.path.join(tree, source), os.path.join(making, target))
            parts.append({"name": name, "version": version, "licence": licence, "in_library": True,
                          "source": os.path.basename(archive), "sha256": sha256(archive), **CHANGES.get(name, {})})
            print(f"{name} {version}")
    for name, package, licence, entries, in_library in HEADERS:
        version = run("dpkg-query", "-W", "-f=${Version}\n", package).split()[0]
        for entry in entries:
            source, target = os.path.join("/usr/include", entry), os.path.join(making, "include", entry)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, target)
        parts.append({"name": name, "version": version, "licence": licence, "in_library": in_library})
        print(f"{name} {version} (headers)")
    reduce_tables(making)
    with open(os.path.join(making, "parts.json"), "w", encoding="utf-8") as file:
        json.dump(parts, file, indent=1)
        file.write("\n")
    with open(os.path.join(making, "made_by"), "w", encoding="utf-8") as file:
        file.write(made_by())
    shutil.rmtree(out, ignore_errors=True)
    os.rename(making, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
