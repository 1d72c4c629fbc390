"""The NuGet package: Kvc.dll for .NET Framework 4.5, Mono and .NET, and under runtimes/ the native libraries of Linux
on x86-64 and on 64-bit Arm, from glibc 2.28 on. The assembly is what Mono's compiler makes of the sources without
GenerateAsync, whose types that framework has not."""
import os
import shutil

import package

FRAMEWORK = "net45"
SYSTEMS = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}  # as .NET calls them
NUSPEC = """\
<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://schemas.microsoft.com/packaging/2013/05/nuspec.xsd">
  <metadata minClientVersion="2.12">
    <id>Kvc</id>
    <version>{version}</version>
    <authors>libkvc contributors</authors>
    <license type="file">LICENSE</license>
    <requireLicenseAcceptance>false</requireLicenseAcceptance>
    <readme>README.md</readme>
    <description>Language models on a compressed KV cache</description>
    <dependencies>
      <group targetFramework=".NETFramework4.5" />
    </dependencies>
  </metadata>
</package>
"""
# A .nupkg is an Open Packaging archive: these two say so.
RELATIONS = """\
<?xml version="1.0" encoding="utf-8"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
  <Relationship Type="http://schemas.microsoft.com/packaging/2010/07/manifest" Target="/Kvc.nuspec" Id="R1" />
</Relationships>
"""
TYPES = """\
<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml" />
{rows}</Types>
"""


def write_text(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def content_types(folder):
    """A row for every ending, and for every name without one."""
    rows = set()
    for place, _, names in os.walk(folder):
        for name in names:
            part = "/" + os.path.relpath(os.path.join(place, name), folder).replace(os.sep, "/")
            ending = os.path.splitext(name)[1][1:]
            rows.add(f'  <Default Extension="{ending}" ContentType="application/octet" />\n' if ending else
                     f'  <Override PartName="{part}" ContentType="application/octet" />\n')
    return TYPES.format(rows="".join(sorted(rows)))


def make():
    libraries = package.glue("kvc_csharp", "csharp")
    build = package.build("release-linux-x86_64", targets=("kvc_dll_framework",), language="csharp")
    folder = package.stage_folder("nuget")
    shutil.rmtree(folder, ignore_errors=True)
    assembly = os.path.join(folder, "lib", FRAMEWORK)
    os.makedirs(assembly)
    for name in ("Kvc.dll", "Kvc.xml"):
        shutil.copy(os.path.join(build, "bindings/csharp/framework", name), assembly)
    for processor, library in libraries.items():
        place = os.path.join(folder, "runtimes", SYSTEMS[processor], "native")
        os.makedirs(place)
        shutil.copy(library, place)
    shutil.copy(os.path.join(package.ROOT, "docs/csharp.md"), os.path.join(folder, "README.md"))
    write_text(os.path.join(folder, "Kvc.nuspec"), NUSPEC.format(version=package.version()))
    package.write_meta(folder, "Kvc", folder)
    types = content_types(folder)
    write_text(os.path.join(folder, "_rels/.rels"), RELATIONS)
    write_text(os.path.join(folder, "[Content_Types].xml"), types)
    return package.write(f"Kvc.{package.version()}.nupkg", folder, first=["[Content_Types].xml", "_rels/.rels"])
