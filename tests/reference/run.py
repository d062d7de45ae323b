#!/usr/bin/env python3
"""Tests against the reference implementation, as described in README.md."""

import sys

sys.dont_write_bytecode = True  # No files are added to the checkout.

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import differences
import foreign
import mirroring
import moving
import ours
import tables
import together
from checks import Checks
from processes import binaries
from records import starting_records
from services import REFERENCE, Ours, Reference

LAYOUTS = ("two-ports", "one-port", "reference")
# Directions that involve both services.
BOTH = {"moving": moving.all_groups, "together": together.all_groups, "mirroring": mirroring.all_groups,
        "differences": differences.all_groups}
DIRECTIONS = {"foreign": ("programs of the reference", foreign.all_groups), "ours": ("our programs", ours.all_groups)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="all by default")
    parser.add_argument("--direction", action="append", choices=[*DIRECTIONS, *BOTH, "tables"], help="all by default")
    parser.add_argument("--only", action="append", metavar="WORD", help="groups of checks with this word in their name")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the run")
    return parser.parse_args()


def service_of(layout, directory):
    if layout == "reference":
        return Reference(directory / layout, "20.500.9")
    return Ours(directory / layout, "20.500.8", layout)


def main():
    args = arguments()
    if not REFERENCE:
        print("skipped: REFERENCE is not set to the directory of the distribution")
        return 0
    checks = Checks(args.only)
    directory = Path(tempfile.mkdtemp(prefix="handle-reference-"))
    print(f"# {binaries()} and {REFERENCE}, in {directory}")
    services = []
    try:
        if "tables" in (args.direction or ["tables"]) and "reference" in (args.layout or LAYOUTS):
            checks.begin("tables", "reference")
            tables.all_groups(checks, directory / "tables")
        for layout in args.layout or LAYOUTS:
            for name, groups in BOTH.items():
                if name in (args.direction or BOTH) and layout != "reference":
                    checks.begin(name, layout)
                    groups(checks, layout, directory / name / layout)
            for direction in args.direction or DIRECTIONS:
                if direction in BOTH or direction == "tables":
                    continue
                # Each direction has its own service, without the changes of another.
                service = service_of(layout, directory / direction)
                services.append(service)
                service.make(starting_records).start()
                name, groups = DIRECTIONS[direction]
                checks.begin(name, layout)
                groups(checks, service)
                service.stop()
    finally:
        for service in services:
            service.stop()
        if not args.keep:
            shutil.rmtree(directory, ignore_errors=True)
    return checks.report()


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
