#!/usr/bin/env python3
"""What attacks cost a service with default settings, as described in README.md."""

import sys

sys.dont_write_bytecode = True  # No files are added to the checkout.

import argparse
import os

from attacks import ALL
from service import Service, programs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=f"all by default: {', '.join(ALL)}")
    parser.add_argument("--turns", type=int, default=3, help="turns with and without each attack (3)")
    parser.add_argument("--seconds", type=float, default=1, help="of a turn (1)")
    args = parser.parse_args()
    unknown = [name for name in args.attacks if name not in ALL]
    if unknown:
        parser.error(f"no attack {unknown[0]}")
    sys.stdout.reconfigure(line_buffering=True)
    print(f"# {programs()}, {os.cpu_count()} processors, loopback")
    with Service() as service:
        for name in args.attacks or ALL:
            ALL[name](service, args)


if __name__ == "__main__":
    main()
