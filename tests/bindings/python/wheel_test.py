#!/usr/bin/env python3
"""The wheel of this build, twice the same, installed by pip into an environment of its own, and used there without a
path to the build: wheel_test.py CMAKE BUILD CONFIG WHEEL."""
import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile

USE = """
import kvc, os, sys
folder = os.path.dirname(kvc.__file__)
assert folder.startswith(sys.prefix), folder
with open("/proc/self/maps", encoding="utf-8") as maps:
    loaded = {line.split()[-1] for line in maps if "libkvc" in line}
assert loaded == {os.path.join(folder, "libkvc.so.0")}, loaded
with kvc.Model(os.environ["KVC_RECALL"]) as model, model.session("cokv:budget=64,window=8") as session:
    print("".join(session.generate("Ada lives in Paris. Ada lives in", 8)))
"""


def make(cmake, build, config, wheel):
    subprocess.run([cmake, "--build", build, "--config", config, "--target", "kvc_python_wheel"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(wheel, "rb") as file:
        return file.read()


def check_tag(data, wheel):
    """That of the file's name is that of its module, by which Python takes it or leaves it."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        (abi,) = re.findall(r"^kvc/_flat\.cpython-(\w+)-", "\n".join(packed.namelist()), re.M)
    python, tag = os.path.basename(wheel).split("-")[2:4]
    assert tag == f"cp{abi}" and python == f"cp{abi.rstrip('dt')}", (python, tag, abi)


def check_record(data):
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        (record,) = [name for name in wheel.namelist() if name.endswith("/RECORD")]
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(wheel.read(record).decode()))}
        assert set(rows) == set(wheel.namelist()), set(rows) ^ set(wheel.namelist())
        for name, (digest, size) in rows.items():
            if name != record:
                own = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={own}", len(wheel.read(name))), name


def check_page(data):
    """What package indexes show has no links into a tree that is not there."""
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        links = re.findall(r"\]\(([^)]+)\)", wheel.read(name).decode().split("\n\n", 1)[1])
    lost = [link for link in links if not re.match(r"[a-z]+:|#", link)]
    assert not lost, f"links that lead nowhere: {lost}"


def main():
    cmake, build, config, wheel = sys.argv[1:]
    data = make(cmake, build, config, wheel)
    if make(cmake, build, config, wheel) != data:
        sys.exit("two wheels of one build differ")
    check_record(data)
    check_tag(data, wheel)
    check_page(data)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    with tempfile.TemporaryDirectory(prefix="kvc-wheel-") as folder:
        made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            print(f"no environment could be made: {made.stdout}{made.stderr}")
            sys.exit(77)
        python = os.path.join(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel],
                       check=True, env=environment)
        done = subprocess.run([python, "-c", USE], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True,
                              check=True)
    if done.stdout != " the case, and the case\n":
        sys.exit(f"the package in the wheel says {done.stdout!r}")
    print(f"{os.path.basename(wheel)}: {len(data)} bytes, the same twice, installed and used")


main()
