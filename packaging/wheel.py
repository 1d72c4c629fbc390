"""The wheel for this machine's Python: the package kvc with its compiled module and libkvc.so.0 beside it, for Linux on
x86-64. The tag is what PyPI's auditwheel reads off its files: glibc 2.28, which Zig builds against, or less."""
import os
import re
import shutil
import sys

import archive
import check_elf
import package

# Version, flags of its ABI ("t": without the GIL), folder of Python.h, pyconfig.h of this processor: Debian's own
# chooses among several below /usr/include.
ASK = """import os, sys, sysconfig
config = sysconfig.get_config_h_filename()
multi = os.path.join("/usr/include", sysconfig.get_config_var("MULTIARCH") or "", "python" +
                     sysconfig.get_python_version(), "pyconfig.h")
print("%d%d" % sys.version_info[:2], sys.abiflags, os.path.dirname(config),
      multi if os.path.exists(multi) else config, sep="\\n")"""


def python():
    """The system's, whose headers the package python3-dev has; elsewhere the one that runs this."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def headers(source, config):
    """A copy of Python's headers: the folder they lie in has those of the system's C library too."""
    folder = os.path.join(package.BUILD, "python-headers")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    shutil.copyfile(config, os.path.join(folder, "pyconfig.h"))
    return folder


def write(tag, stage, out):
    """Returns the path of the wheel of the package in stage."""
    folder = os.path.join(stage, "kvc")
    readme = package.write_readme("docs/python.md", os.path.join(stage, "page"))
    return package.run(
        sys.executable, os.path.join(package.ROOT, "bindings/python/wheel.py"), package.version(), tag, package.ROOT,
        folder, os.path.join(folder, "libkvc.so.0"), readme, out, os.path.join(stage, "meta/sbom.spdx.json"),
        env=dict(os.environ, SOURCE_DATE_EPOCH=str(archive.source_date()))).strip()


def platform(path):
    """The oldest systems that auditwheel lets a wheel run on."""
    said = " ".join(package.run(sys.executable, "-m", "auditwheel", "show", path, env=dict(
        os.environ, PYTHONPATH=os.path.join(package.ROOT, "build-tools"))).split())
    found = re.search(r'is consistent with the following platform tag: "(manylinux_(\d+)_(\d+)_x86_64)"', said)
    if not found or (int(found.group(2)), int(found.group(3))) > package.GLIBC:
        sys.exit(f"package.py wheel: glibc {package.GLIBC} is promised, and auditwheel says: {said}")
    return found.group(1)


def make():
    version, flags, source, config = package.run(python(), "-c", ASK).splitlines()
    if not os.path.exists(os.path.join(source, "Python.h")):
        sys.exit(f"package.py wheel: no Python.h in {source} (Debian's package python3-dev)")
    build = package.build("release-linux-x86_64", targets=("kvc", "kvc_python"), language="python", options=(
        f"-DPython_EXECUTABLE={python()}", f"-DPython_INCLUDE_DIR={headers(source, config)}"))
    stage = package.stage_folder("wheel")
    shutil.rmtree(stage, ignore_errors=True)
    package.run("cmake", "--install", build, "--component", "python", "--strip", "--prefix", stage)
    folder, library = os.path.join(stage, "kvc"), os.path.join(stage, "kvc/libkvc.so.0")
    # For another system CMake does not know the ending, by which Python tells a module for another version.
    module = f"_flat.cpython-{version}{flags}-x86_64-linux-gnu.so"
    os.rename(os.path.join(folder, "_flat.so"), os.path.join(folder, module))
    package.strip(os.path.join(build, "lib/libkvc.so.0"), library)
    problems = check_elf.check_tree(folder, package.GLIBC)
    if problems:
        sys.exit("\n".join(problems))
    package.write_meta(os.path.join(stage, "meta"), "kvc-python", folder)
    python_tag = f"cp{version}-cp{version}{flags}"
    tag = platform(write(f"{python_tag}-linux_x86_64", stage, stage))
    out = write(f"{python_tag}-{tag}", stage, package.OUT)
    print(f"out/{os.path.basename(out)} ({os.path.getsize(out)} bytes)", flush=True)
    return out
