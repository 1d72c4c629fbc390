#!/usr/bin/env python3
"""The site: make_site.py OUT. Runs Doxygen over README.md, docs/, the headers, what classes the bindings have and what
go doc says; a warning is an error, and so is a name of the headers without a text."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import go_page  # of this folder

HEADERS = ["include/kvc/kvc.h", "include/kvc/kvc.hpp"]
PARTS = ["README.md", "docs", *HEADERS, "bindings/java/dev", "bindings/csharp", "bindings/python/kvc"]
# What a second run warns of, which makes no page: names without a text are pages without one otherwise.
UNDOCUMENTED = """
USE_MDFILE_AS_MAINPAGE =
GENERATE_HTML          = NO
GENERATE_XML           = YES
EXTRACT_ALL            = NO
EXCLUDE_SYMBOLS        = kvc::detail
WARN_IF_UNDOCUMENTED   = YES
"""


def doxygen(settings, **values):
    for name, value in values.items():
        settings = settings.replace(f"@{name}@", value)
    with tempfile.NamedTemporaryFile("w", suffix=".doxyfile", encoding="utf-8") as file:
        file.write(settings)
        file.flush()
        done = subprocess.run(["doxygen", file.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit("the site has warnings")


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
    with tempfile.TemporaryDirectory(prefix="kvc-site-") as folder:
        doxygen(settings + UNDOCUMENTED, VERSION=version, OUT=folder, STRIP=root, INPUT=" ".join(HEADERS))
        page = os.path.join(folder, "go-api.md")
        with open(page, "w", encoding="utf-8") as file:
            file.write(go_page.page("bindings/go"))
        doxygen(settings, VERSION=version, OUT=out, STRIP=f"{root} {folder}", INPUT=" ".join([*PARTS, page]))
    os.makedirs(os.path.join(out, "docs"), exist_ok=True)
    for picture in glob.glob("docs/*.svg") + glob.glob("docs/*.png"):  # a page may link to one that it does not show
        shutil.copy(picture, out)
        shutil.copy(picture, os.path.join(out, "docs"))  # where the README has it
    print(f"{len([n for n in os.listdir(out) if n.endswith('.html')])} pages in {out}/index.html")


main()
