"""Checks, and their counts by direction and layout."""

import sys
from collections import Counter


class Checks:
    """Prints a line for each check, and counts."""

    def __init__(self, only=None):
        self.counts = Counter()
        self.failed = []
        self.position = ("", "")
        self.only = only

    def begin(self, direction, layout):
        """The next checks belong to this direction and this layout."""
        self.position = (direction, layout)
        print(f"# {direction}: {layout}", flush=True)

    def that(self, name, is_good, detail=""):
        """One check. If it fails, the detail is printed."""
        is_good = bool(is_good)
        self.counts[self.position + (is_good,)] += 1
        print(f"{'ok' if is_good else 'not ok'} - {name}", flush=True)
        if not is_good:
            self.failed.append(self.position + (name,))
            for line in str(detail).splitlines()[:12]:
                print(f"#     {line[:300]}", flush=True)
        return is_good

    def equal(self, name, found, expected):
        return self.that(name, found == expected, f"found    {found!r}\nexpected {expected!r}")

    def attempt(self, group, function, *args):
        """Runs a group of checks. A group that ends with an exception counts as one failed check."""
        if not self.wants(group):
            return
        print(f"## {group}", flush=True)
        try:
            function(self, *args)
        except Exception as error:  # The other groups still run.
            self.that(f"{group}: runs to its end", False, f"{type(error).__name__}: {error}")

    def wants(self, group):
        """Whether a group, or a part of a family of groups, is selected."""
        return not self.only or any(part in group or part.split()[0] == group for part in self.only)

    def report(self):
        """Prints the counts, and returns the exit code."""
        print("\n# direction | layout | checks | ok | not ok")
        positions = dict.fromkeys(position[:2] for position in self.counts)
        for direction, layout in positions:
            good, bad = (self.counts[(direction, layout, kind)] for kind in (True, False))
            print(f"# {direction} | {layout} | {good + bad} | {good} | {bad}")
        for direction, layout, name in self.failed:
            print(f"# not ok: {direction} | {layout} | {name}")
        sys.stdout.flush()
        return 1 if self.failed else 0
