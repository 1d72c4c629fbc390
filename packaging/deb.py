"""The three Debian packages: libkvc0 (the shared library), libkvc-dev (header, archive, what build systems read,
docs, samples) and kvc-tools (the kvc program). Written with dpkg-deb from an installed tree; the same binaries as the
tarballs, so they run on every release with glibc 2.28 or newer."""
import datetime
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys

import archive
import check_elf
import package

HERE = os.path.dirname(os.path.abspath(__file__))
REVISION = "0kvc1"  # before any of Debian's own
GLIBC = "{}.{}".format(*package.GLIBC)
MAINTAINER = os.environ.get("KVC_MAINTAINER", "libkvc contributors <contributors@kvc.dev>")
DESCRIPTIONS = {
    "libkvc0": ("libs", "language models on a compressed KV cache - shared library", """\
 libkvc runs decoder-only language models on a key-value cache that is
 compressed per head: what a method drops is freed, so memory falls and
 every step gets faster. It opens no socket and prints nothing.
 .
 This package has the shared library."""),
    "libkvc-dev": ("libdevel", "language models on a compressed KV cache - development files", """\
 libkvc runs decoder-only language models on a key-value cache that is
 compressed per head.
 .
 This package has the C header, a static library that links in a plain C
 project, the files for CMake and pkg-config, the Go module, the documents
 and samples."""),
    "kvc-tools": ("utils", "language models on a compressed KV cache - the kvc program", """\
 libkvc runs decoder-only language models on a key-value cache that is
 compressed per head.
 .
 This package has kvc, which converts, inspects, measures and runs models."""),
}
# What goes where, below /usr; the rest of the installed tree is an error, so that nothing is forgotten.
CONTENTS = [
    ("kvc-tools", r"bin/kvc$|share/(man|bash-completion|zsh|fish)/"),
    ("libkvc0", r"lib/[^/]+/libkvc\.so\.[0-9.]+$"),
    ("libkvc-dev", r"include/|lib/[^/]+/(libkvc\.(so|a)$|pkgconfig/|cmake/)|share/kvc/|share/gocode/"),
    ("libkvc-dev", r"share/doc/kvc/"),
]
SAMPLES, EXAMPLES = "share/kvc/samples", "examples"  # below /usr, and below the folder of documents
OVERRIDES = {  # PCRE2 and utf8proc are inside on purpose: no clash with a program's own, one file on a device
    "libkvc0": "embedded-library",
    "libkvc-dev": None,
    "kvc-tools": "embedded-library",
}


def release_date():
    when = datetime.datetime.fromtimestamp(archive.source_date(), datetime.timezone.utc)
    return when.strftime("%a, %d %b %Y %H:%M:%S +0000")


def write_text(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def write_gzip(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=9) as out:
        out.write(text.encode())


def copyright_text():
    """NOTICE as a copyright file: it has every third party and every licence text."""
    with open(os.path.join(package.ROOT, "NOTICE"), encoding="utf-8") as file:
        notice = file.read()
    lines = "".join(f" {line}\n" if line else " .\n" for line in notice.rstrip().split("\n"))
    return ("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: libkvc\n\n"
            "Files: *\nCopyright: the libkvc contributors\nLicense: Apache-2.0\n"
            " On Debian systems the text of the Apache License 2.0 is in\n"
            " /usr/share/common-licenses/Apache-2.0.\nComment:\n" + lines)


def control(name, architecture, version, installed_kib, depends):
    section, summary, text = DESCRIPTIONS[name]
    multi = "Multi-Arch: same\n" if name.startswith("lib") else ""
    return (f"Package: {name}\nSource: kvc\nVersion: {version}\nArchitecture: {architecture}\n"
            f"Maintainer: {MAINTAINER}\nInstalled-Size: {installed_kib}\nDepends: {depends}\n{multi}"
            f"Section: {section}\nPriority: optional\nDescription: {summary}\n{text}\n")


def shlibs_files(folder, version):
    """What programs that link libkvc.so.0 depend on."""
    debian = os.path.join(folder, "DEBIAN")
    write_text(os.path.join(debian, "shlibs"), f"libkvc 0 libkvc0 (>= {version})\n")
    write_text(os.path.join(debian, "triggers"), "activate-noawait ldconfig\n")
    with open(os.path.join(package.ROOT, "tests/abi/symbols.txt"), encoding="utf-8") as file:
        symbols = sorted(file.read().split())
    rows = "".join(f" {symbol}@KVC_0 {version}\n" for symbol in symbols)
    write_text(os.path.join(debian, "symbols"), f"libkvc.so.0 libkvc0 #MINVER#\n KVC_0@KVC_0 {version}\n{rows}")


def split(tree, folders, libdir):
    """Moves the installed tree below the folders of the packages."""
    for name in archive.names_below(tree):
        owner = next((package_name for package_name, pattern in CONTENTS if re.match(pattern, name)), None)
        if owner is None:
            sys.exit(f"deb.py: no package takes {name}")
        target = "usr/" + name
        if name.startswith("share/doc/kvc/"):
            if os.path.basename(name) in ("LICENSE", "NOTICE", "sbom.spdx.json", "CHANGELOG.md"):
                continue
            target = "usr/share/doc/libkvc-dev/" + name[len("share/doc/kvc/"):]
        # Where Debian's zsh looks.
        target = target.replace("share/zsh/site-functions/", "share/zsh/vendor-completions/")
        path = os.path.join(folders[owner], target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.move(os.path.join(tree, name), path)
        if name.startswith("share/man/"):
            with open(path, encoding="utf-8") as file:
                write_gzip(path + ".gz", file.read())
            os.remove(path)
    samples = os.path.join(folders["libkvc-dev"], "usr", SAMPLES)
    if os.path.isdir(samples):
        shutil.move(samples, os.path.join(folders["libkvc-dev"], "usr/share/doc/libkvc-dev", EXAMPLES))
    link = os.path.join(folders["libkvc-dev"], "usr", libdir, "libkvc.so")
    if not os.path.islink(link):
        sys.exit(f"deb.py: {link} is no link")


def mend_links(usr, doc):
    """The links of the documents were written for the installed tree, which has the samples elsewhere."""
    package.run("cmake", "-P", os.path.join(package.ROOT, "cmake/installed_links.cmake"),
                "share/doc/kvc", doc, SAMPLES, os.path.join(doc, EXAMPLES), ".", usr)


def finish(name, folder, architecture, debian_version, upstream):
    doc = os.path.join(folder, "usr/share/doc", name)
    change = (f"kvc ({debian_version}) unstable; urgency=medium\n\n  * Release {upstream}.\n\n"
              f" -- {MAINTAINER}  {release_date()}\n")
    write_gzip(os.path.join(doc, "changelog.Debian.gz"), change)
    with open(os.path.join(package.ROOT, "CHANGELOG.md"), encoding="utf-8") as file:
        write_gzip(os.path.join(doc, "changelog.gz"), file.read())
    write_text(os.path.join(doc, "copyright"), copyright_text())
    package.write_meta(doc, name, folder, tools=name == "kvc-tools")
    os.remove(os.path.join(doc, "LICENSE"))  # /usr/share/common-licenses has it, copyright says so
    # It has the hash of the library: packages of two architectures may share a path only where they share the file.
    os.rename(os.path.join(doc, "sbom.spdx.json"), os.path.join(doc, f"sbom.{architecture}.spdx.json"))
    mend_links(os.path.join(folder, "usr"), doc)
    if OVERRIDES[name]:
        write_text(os.path.join(folder, "usr/share/lintian/overrides", name), f"{name}: {OVERRIDES[name]}\n")
    for place, folders, files in os.walk(folder):
        folders.sort()
        for entry in files:
            path = os.path.join(place, entry)
            if not os.path.islink(path):
                os.chmod(path, 0o644 if re.search(r"\.a$|\.so(\.\d+)*$", entry) else archive.plain_mode(path))
    sums, n_bytes = "", 0
    for entry in archive.names_below(folder):
        path = os.path.join(folder, entry)
        if entry.startswith("DEBIAN/") or os.path.islink(path):
            continue
        with open(path, "rb") as file:
            data = file.read()
        n_bytes += len(data)
        sums += f"{hashlib.md5(data).hexdigest()}  {entry}\n"
    depends = {"libkvc0": f"libc6 (>= {GLIBC})", "kvc-tools": f"libc6 (>= {GLIBC})",
               "libkvc-dev": f"libkvc0 (= {debian_version})"}[name]
    write_text(os.path.join(folder, "DEBIAN/md5sums"), sums)
    write_text(os.path.join(folder, "DEBIAN/control"),
               control(name, architecture, debian_version, (n_bytes + 1023) // 1024, depends))


def set_times(folder, when):
    """dpkg-deb takes the date only from files that are newer: what was checked out earlier would keep its own."""
    for place, folders, files in os.walk(folder, topdown=False):
        for entry in (*files, *folders, ""):
            os.utime(os.path.join(place, entry), (when, when), follow_symlinks=False)


def make(architecture, toolchain, triplet):
    upstream = package.version()
    debian_version = f"{upstream}-{REVISION}"
    libdir = f"lib/{triplet}"
    stage = package.stage_folder(f"deb-{architecture}")
    build = package.build(toolchain, libdir)
    tree = package.install(build, stage)
    problems = check_elf.check_tree(tree, package.GLIBC)
    if problems:
        sys.exit("\n".join(problems))
    folders = {name: os.path.join(stage, name) for name in DESCRIPTIONS}
    split(tree, folders, libdir)
    shlibs_files(folders["libkvc0"], upstream)
    os.makedirs(package.OUT, exist_ok=True)
    written, when = [], archive.source_date()
    for name, folder in folders.items():
        finish(name, folder, architecture, debian_version, upstream)
        set_times(folder, when)
        out = os.path.join(package.OUT, f"{name}_{debian_version}_{architecture}.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", folder, out], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, SOURCE_DATE_EPOCH=str(when)))
        print(f"out/{os.path.basename(out)} ({os.path.getsize(out)} bytes)", flush=True)
        written.append(out)
    return written
