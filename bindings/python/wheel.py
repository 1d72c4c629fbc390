#!/usr/bin/env python3
"""Makes the wheel: wheel.py VERSION TAG SOURCE PACKAGE LIBKVC README OUT_FOLDER [OTHER...]

PACKAGE is the folder kvc with its compiled module, LIBKVC the library that goes beside it, README the page that package
indexes show, OTHER files that go to licenses/. TAG says where the wheel runs, e.g. cp311-cp311-linux_x86_64. The same
input gives the same bytes: files are sorted, and their times are SOURCE_DATE_EPOCH or 1980."""
import base64
import hashlib
import os
import sys
import time
import zipfile

METADATA = """\
Metadata-Version: 2.1
Name: kvc
Version: {version}
Summary: Language models on a compressed KV cache
License: Apache-2.0
Requires-Python: >=3.11
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""
WHEEL = """\
Wheel-Version: 1.0
Generator: kvc
Root-Is-Purelib: false
Tag: {tag}
"""


def content(version, tag, source, package, library, readme, others):
    """Name in the wheel -> bytes."""
    def read(path):
        with open(path, "rb") as file:
            return file.read()
    info = f"kvc-{version}.dist-info"
    files = {f"kvc/{name}": read(os.path.join(package, name)) for name in os.listdir(package)
             if name.endswith((".py", ".pyi", ".typed", ".so", ".pyd")) and not name.startswith("libkvc")}
    files["kvc/libkvc.so.0"] = read(library)
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode() + read(readme)
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    for path in [os.path.join(source, "LICENSE"), os.path.join(source, "NOTICE"), *others]:
        files[f"{info}/licenses/{os.path.basename(path)}"] = read(path)
    return info, files


def record(info, files):
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(files[name])}\n")
    return "".join(lines + [f"{info}/RECORD,,\n"]).encode()


def main():
    version, tag, source, package, library, readme, folder, *others = sys.argv[1:]
    info, files = content(version, tag, source, package, library, readme, others)
    # Metadata behind the rest, as readers of wheels like it; the record last.
    names = sorted(files, key=lambda name: (name.startswith(info), name))
    files[f"{info}/RECORD"] = record(info, files)
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)  # no zip before 1980
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"kvc-{version}-{tag}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in [*names, f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            entry.create_system = 3  # whatever makes it
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            wheel.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    print(path)


main()
