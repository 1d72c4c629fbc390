#!/usr/bin/env python3
"""The site: make_site.py OUT. Runs Doxygen over README.md, docs/, the headers and what classes the bindings have; a
warning is an error."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

PARTS = ["README.md", "docs", "include/kvc/kvc.h", "include/kvc/kvc.hpp", "bindings/java/dev", "bindings/csharp",
         "bindings/python/kvc"]


def main():
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    out = os.path.abspath(sys.argv[1])
    os.chdir(root)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    with open("CMakeLists.txt", encoding="utf-8") as file:
        version = re.search(r"project\(kvc VERSION ([\d.]+)", file.read()).group(1)
    with open("docs/site/Doxyfile.in", encoding="utf-8") as file:
        settings = file.read()
    parts = " ".join(part for part in PARTS if os.path.exists(part))
    for name, value in (("VERSION", version), ("OUT", out), ("INPUT", parts)):
        settings = settings.replace(f"@{name}@", value)
    with tempfile.NamedTemporaryFile("w", suffix=".doxyfile", encoding="utf-8") as file:
        file.write(settings)
        file.flush()
        done = subprocess.run(["doxygen", file.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit("the site has warnings")
    os.makedirs(os.path.join(out, "docs"), exist_ok=True)
    for picture in glob.glob("docs/*.svg") + glob.glob("docs/*.png"):
        shutil.copy(picture, out)
        shutil.copy(picture, os.path.join(out, "docs"))  # for the README
    print(f"{len([n for n in os.listdir(out) if n.endswith('.html')])} pages in {out}/index.html")


main()
