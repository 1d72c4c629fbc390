#!/usr/bin/env python3
"""Writes what a package is made of: LICENSE, NOTICE and an SPDX 2.3 document (JSON) with the third parties inside and
the hash of every file.

Usage: sbom.py OUT_FOLDER --name PACKAGE --version VERSION [--files FOLDER] [--third-party FOLDER] [--tools]
       [--alone]
  --files FOLDER        the files of the package; their hashes stand in the document
  --third-party FOLDER  of third_party.py: exact versions; otherwise those of the installed packages, or none
  --tools               the kvc program is inside, so its libraries are too
  --alone               nothing of third parties is inside"""
import argparse
import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import archive  # noqa: E402  (of this folder)
import third_party  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUPPLIERS = {
    "PCRE2": "University of Cambridge and Zoltan Herczeg",
    "utf8proc": "Public Software Group e. V. and contributors",
    "xxHash": "Yann Collet",
    "FlatBuffers": "Google Inc.",
    "CLI11": "University of Cincinnati",
    "nlohmann-json": "Niels Lohmann",
    "LLVM": "LLVM project",
    "Zig": "Zig contributors",
    "musl": "Rich Felker and contributors",
}


def installed_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f=${Version}\n", package], capture_output=True, text=True, check=False)
    return done.stdout.split()[0] if done.returncode == 0 and done.stdout.strip() else "NOASSERTION"


def parts_of(folder):
    """Name, version, licence, in_library (else only in the kvc program), perhaps sha256 of the source."""
    if folder:
        with open(os.path.join(folder, "parts.json"), encoding="utf-8") as file:
            return json.load(file)
    dev = {"PCRE2": "libpcre2-dev", "utf8proc": "libutf8proc-dev"}
    parts = [{"name": name, "version": installed_version(dev[name]), "licence": licence, "in_library": True}
             for name, _, licence, _ in third_party.SOURCES]
    parts += [{"name": name, "version": installed_version(package), "licence": licence, "in_library": in_library}
              for name, package, licence, _, in_library in third_party.HEADERS]
    return parts


def spdx_id(text):
    return "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in text)


def package(name, version, licence, supplier, sha256=None, comment=None):
    entry = {"SPDXID": spdx_id(name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
             "supplier": f"Organization: {supplier}", "licenseConcluded": licence, "licenseDeclared": licence,
             "copyrightText": "NOASSERTION", "filesAnalyzed": False}
    if sha256:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    if comment:
        entry["comment"] = comment
    return entry


def document(name, version, files, parts):
    """The SPDX document; files: folder, or None."""
    when = datetime.datetime.fromtimestamp(archive.source_date(), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    listed = []
    for path in archive.names_below(files) if files else []:
        full = os.path.join(files, path)
        if os.path.islink(full) or not os.path.isfile(full):
            continue
        with open(full, "rb") as file:
            data = file.read()
        listed.append({"SPDXID": spdx_id("file-" + hashlib.sha256(path.encode()).hexdigest()[:16]),
                       "fileName": "./" + path, "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION",
                       "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                                     {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}]})
    own = package(name, version, "Apache-2.0", "libkvc contributors")
    own["copyrightText"] = "Copyright the libkvc contributors"
    text = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
        "creationInfo": {"created": when, "creators": ["Organization: libkvc contributors"]},
        "packages": [own] + [package(p["name"], p["version"], p["licence"], SUPPLIERS[p["name"]], p.get("sha256"),
                                     p.get("comment")) for p in parts],
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": own["SPDXID"]}]
        + [{"spdxElementId": own["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": spdx_id(p["name"])}
           for p in parts]
        + [{"spdxElementId": own["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": f["SPDXID"]}
           for f in listed],
    }
    if listed:
        text["files"] = listed
    # The same content has the same name: no random number, no time of day.
    unique = hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:32]
    text["documentNamespace"] = f"urn:libkvc:spdx:{name}-{version}-{unique}"
    return text


def write(folder, name, version, files=None, third_party_folder=None, tools=False, more=(), alone=False):
    """LICENSE, NOTICE and sbom.spdx.json in folder, which may lie in files: the three are not listed themselves. more:
    parts besides those of third_party_folder. alone: there are none of either."""
    os.makedirs(folder, exist_ok=True)
    for own in ("LICENSE", "NOTICE", "sbom.spdx.json"):
        if os.path.exists(os.path.join(folder, own)):
            os.remove(os.path.join(folder, own))
    parts = [p for p in [*parts_of(third_party_folder), *more] if p["in_library"] or tools]
    text = document(name, version, files, [] if alone else parts)
    for own in ("LICENSE", "NOTICE"):
        shutil.copyfile(os.path.join(ROOT, own), os.path.join(folder, own))
    with open(os.path.join(folder, "sbom.spdx.json"), "w", encoding="utf-8") as file:
        json.dump(text, file, indent=1, sort_keys=True)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--files")
    parser.add_argument("--third-party")
    parser.add_argument("--tools", action="store_true")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    write(args.out, args.name, args.version, args.files, args.third_party, args.tools, alone=args.alone)
    return 0


if __name__ == "__main__":
    sys.exit(main())
