#!/usr/bin/env python3
"""Writes a folder as .tar.gz, .tar.xz or .zip (.whl, .jar, .aar, .nupkg are zips) so that the same files give the
same bytes: sorted names, one time, plain modes, no owner.

Usage: archive.py OUT FOLDER [--prefix NAME] [--store PATTERN]... [--first NAME]... [--align PATTERN=BYTES]...
  --prefix NAME     every name in the archive starts with NAME/
  --store PATTERN   zip: these are not compressed
  --first NAME      zip: these come first, in this order (META-INF/MANIFEST.MF, mimetype)
  --align P=BYTES   zip: the content of stored files starts at a multiple of BYTES, so that it can be mapped in place

The time is SOURCE_DATE_EPOCH, otherwise that of the last commit. As a module: write_tar and write_zip."""
import argparse
import fnmatch
import gzip
import io
import lzma
import os
import stat
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

ALIGN_FIELD = 0xD935  # the extra field in which zipalign keeps its padding


def source_date():
    """Seconds since 1970 of everything in an archive."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(["git", "-C", root, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 315532800  # 1980: what a zip can say


def names_below(folder):
    """Relative names of files and links, sorted; folders are implied."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found += [os.path.relpath(os.path.join(place, name), folder) for name in files + links]
    return sorted(name.replace(os.sep, "/") for name in found)


def plain_mode(path):
    return 0o755 if os.stat(path).st_mode & stat.S_IXUSR else 0o644


def with_folders(names):
    """The folders of these names and the names, each folder before what is in it."""
    folders = {name.rsplit("/", i)[0] for name in names for i in range(1, name.count("/") + 1)}
    return sorted(folders | set(names))


def write_tar(out, folder, prefix="", when=None):
    when = source_date() if when is None else when
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        names = {(f"{prefix}/{name}" if prefix else name): name for name in names_below(folder)}
        for entry in with_folders(names):
            info = tarfile.TarInfo(entry)
            info.mtime, info.uname, info.gname = when, "root", "root"
            if entry not in names:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            path = os.path.join(folder, names[entry])
            if os.path.islink(path):
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
                tar.addfile(info)
            else:
                info.size, info.mode = os.path.getsize(path), plain_mode(path)
                with open(path, "rb") as file:
                    tar.addfile(info, file)
    with open(out, "wb") as file:
        if out.endswith(".xz"):
            file.write(lzma.compress(plain.getvalue(), preset=6))
        elif out.endswith(".gz") or out.endswith(".tgz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=when, compresslevel=9) as packed:
                packed.write(plain.getvalue())
        else:
            file.write(plain.getvalue())


def alignment_of(name, align):
    return max((size for pattern, size in align if fnmatch.fnmatch(name, pattern)), default=1)


def write_zip(out, folder, prefix="", store=(), first=(), align=(), when=None):
    when = source_date() if when is None else when
    date = time.gmtime(max(when, 315532800))[:6]
    names = names_below(folder)
    names = [n for n in first if n in names] + [n for n in names if n not in first]
    with zipfile.ZipFile(out, "w") as packed:
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                sys.exit(f"archive.py: {path} is a link to a folder, which no zip holds")
            entry = f"{prefix}/{name}" if prefix else name
            info = zipfile.ZipInfo(entry, date)
            info.create_system = 3
            info.external_attr = (stat.S_IFREG | plain_mode(path)) << 16
            stored = any(fnmatch.fnmatch(name, pattern) for pattern in store)
            info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            size = alignment_of(name, align)
            if stored and size > 1:
                start = packed.fp.tell() + 30 + len(entry.encode()) + 4
                info.extra = struct.pack("<HH", ALIGN_FIELD, -start % size) + b"\0" * (-start % size)
            with open(path, "rb") as file:
                packed.writestr(info, file.read(), compresslevel=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("folder")
    parser.add_argument("--prefix", default="")
    for option in ("--store", "--first", "--align"):
        parser.add_argument(option, action="append", default=[])
    args = parser.parse_args()
    if not os.path.isdir(args.folder) or not names_below(args.folder):
        sys.exit(f"archive.py: nothing below {args.folder}")
    if ".tar" in os.path.basename(args.out) or args.out.endswith(".tgz"):
        write_tar(args.out, args.folder, args.prefix)
    else:
        align = [(pattern, int(size)) for pattern, size in (text.rsplit("=", 1) for text in args.align)]
        write_zip(args.out, args.folder, args.prefix, args.store, args.first, align)
    return 0


if __name__ == "__main__":
    sys.exit(main())
