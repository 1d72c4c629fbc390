#!/usr/bin/env python3
"""Prints the plain closing line of a ctest run from its JUnit file: "N passed, N failed" and, if any, ", N skipped".
Usage: count_tests.py JUNIT.xml"""
import sys
import xml.etree.ElementTree as ElementTree


def main():
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
        status = case.get("status")
        skipped = case.find("skipped")
        if status == "run":
            counts["passed"] += 1
        elif status == "disabled" or skipped is not None and skipped.get("message", "").startswith("SKIP_"):
            counts["skipped"] += 1
        else:  # "fail", and "notrun": a program that was not there has not passed
            counts["failed"] += 1
            print(f"failed: {case.get('name')}")
    tail = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{tail}")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
