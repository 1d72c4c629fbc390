"""The NuGet package: Kvc.dll for .NET Framework 4.5, the same with GenerateAsync and spans for .NET Standard 2.1, and
under runtimes/ the native libraries of Linux on x86-64 and on 64-bit Arm, from glibc 2.28 on. Mono's compiler makes
both assemblies, netstandard.cs the second one of what it made over Mono's own class library."""
import glob
import os
import re
import shutil
import sys

import package

# As NuGet calls them: where the build has the assembly, and the target that makes it.
ASSEMBLIES = {"net45": ("framework", "kvc_dll_framework"), "netstandard2.1": ("", "kvc_dll")}
DOTNET = os.path.join(package.ROOT, "build-tools/dotnetcore2/bin")
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
      <group targetFramework=".NETStandard2.1" />
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


def newest(pattern, what):
    """The last of the files, which are of several versions."""
    found = sorted(glob.glob(pattern), key=lambda path: [int(number) for number in re.findall(r"\d+", path)])
    if not found:
        sys.exit(f"nuget: no {what}: ./dev package nuget installs it")
    return found[-1]


def to_netstandard(assembly, out):
    """What was compiled over Mono's class library, over .NET Standard 2.1; ends with what .NET Core has not."""
    cecil = newest("/usr/lib/mono/gac/Mono.Cecil/*/Mono.Cecil.dll", "Mono.Cecil (libmono-cecil-private-cil)")
    core = newest(f"{DOTNET}/shared/Microsoft.NETCore.App/*", ".NET Core (dotnetcore2 from PyPI)")
    program = os.path.join(package.stage_folder("netstandard"), "netstandard.exe")
    os.makedirs(os.path.dirname(program), exist_ok=True)
    package.run("mcs", "-langversion:7", "-warn:4", "-warnaserror", f"-r:{cecil}", f"-out:{program}",
                os.path.join(package.ROOT, "packaging/netstandard.cs"))
    package.run("mono", program, assembly, out, core)


def make():
    libraries = package.glue("kvc_csharp", "csharp")
    build = package.build("release-linux-x86_64", targets=[target for _, target in ASSEMBLIES.values()],
                          language="csharp")
    folder = package.stage_folder("nuget")
    shutil.rmtree(folder, ignore_errors=True)
    for framework, (place, _) in ASSEMBLIES.items():
        assembly, made = os.path.join(folder, "lib", framework), os.path.join(build, "bindings/csharp", place)
        os.makedirs(assembly)
        shutil.copy(os.path.join(made, "Kvc.xml"), assembly)
        if framework.startswith("netstandard"):
            to_netstandard(os.path.join(made, "Kvc.dll"), os.path.join(assembly, "Kvc.dll"))
        else:
            shutil.copy(os.path.join(made, "Kvc.dll"), assembly)
    for processor, library in libraries.items():
        place = os.path.join(folder, "runtimes", SYSTEMS[processor], "native")
        os.makedirs(place)
        shutil.copy(library, place)
    package.write_readme("docs/csharp.md", folder)
    write_text(os.path.join(folder, "Kvc.nuspec"), NUSPEC.format(version=package.version()))
    package.write_meta(folder, "Kvc", folder)
    types = content_types(folder)
    write_text(os.path.join(folder, "_rels/.rels"), RELATIONS)
    write_text(os.path.join(folder, "[Content_Types].xml"), types)
    return package.write(f"Kvc.{package.version()}.nupkg", folder, first=["[Content_Types].xml", "_rels/.rels"])
