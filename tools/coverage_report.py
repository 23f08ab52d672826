"""Print which lines the tests ran: by package, and those of a change that none of them ran.

`make coverage` runs the tests as `make coverage-map` does, brokers and commands included, and calls
this. It is no part of `make test`, because measured tests take an hour instead of 20 minutes. With
`FILES=tests/unit`, for example, it measures some tests only.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import coverage
from changed_tests import PACKAGES, ROOT, find_changes

if TYPE_CHECKING:
    from collections.abc import Iterable

CONFIG = ROOT / "tools" / "coverage.ini"
DATA = ROOT / "build" / "coverage" / "data"
_FILE = re.compile(r"^\+\+\+ b/(.+)$")
#: The first new line of a hunk, and the number of its new lines, 1 if it is missing.
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def read_hunks(diff: str) -> dict[str, set[int]]:
    """Return the new or changed lines by file, from the output of `git diff --unified=0`."""
    lines: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in diff.splitlines():
        if match := _FILE.match(line):
            file = match[1]
        elif match := _HUNK.match(line):
            first, count = int(match[1]), int(match[2] or 1)
            lines[file].update(range(first, first + count))
    return lines


def find_changed_lines(since: str) -> dict[str, set[int]]:
    """Return the lines that differ from a commit by file; all lines of files that are new to git.

    Raises `subprocess.CalledProcessError` if git does not know the commit.
    """
    command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", since]
    diff = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = read_hunks(diff)
    for name in find_changes(since) - lines.keys():
        path = ROOT / name
        if path.suffix == ".py" and path.is_file():
            lines[name] = set(range(1, path.read_text().count("\n") + 1))
    return lines


def format_ranges(lines: Iterable[int]) -> str:
    """Return line numbers as text, such as `3-5, 9`."""
    runs = itertools.groupby(enumerate(sorted(lines)), lambda pair: pair[1] - pair[0])
    ends = [[line for _, line in run] for _, run in runs]
    return ", ".join(f"{e[0]}-{e[-1]}" if len(e) > 1 else str(e[0]) for e in ends)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("since", nargs="?", default="HEAD", help="a commit (HEAD)")
    since = parser.parse_args().since
    measured = coverage.Coverage(data_file=str(DATA), config_file=str(CONFIG))
    measured.load()
    changed = find_changed_lines(since)
    missed: dict[str, set[int]] = {}
    changed_count = 0
    for package, folder in PACKAGES.items():
        total = ran = 0
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            _, statements, _, missing, _ = measured.analysis2(str(path))
            total += len(statements)
            ran += len(statements) - len(missing)
            name = path.relative_to(ROOT).as_posix()
            changed_count += len(changed.get(name, set()) & set(statements))
            if lines := changed.get(name, set()) & set(missing):
                missed[name] = lines
        print(f"{package:16} {ran / max(1, total):6.1%} of {total:,} statements")
    count = sum(map(len, missed.values()))
    print(f"changed since {since}: {changed_count} statements, of which {count} did not run")
    for name, lines in missed.items():
        print(f"  {name}: {format_ranges(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
