"""Run all linters of the house style: `PYTHONPATH=tools python -m lint`, or `make lint`.

Each file is read once. `build/lint.json` keeps what was found in each file under a checksum of the
file and of the linters, so a run after a change of some files takes about a second. The exit code
is 1 if anything was found.
"""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from lint import (
    architecture,
    decision_records,
    import_cycles,
    locks,
    names,
    prose,
    references,
    tidy,
)
from lint.tree import ROOT, File, list_tracked_files

CACHE = ROOT / "build" / "lint.json"
#: Linters of the tree as a whole.
LINTERS = (
    tidy,
    names,
    prose,
    references,
    import_cycles,
    architecture,
    decision_records,
    locks,
)
#: Files that a process checks at a time.
CHUNK = 40
#: From this number of files on, other processes help.
MANY = 200


def check_file(name: str) -> list[str]:
    """Return what is wrong in a file alone."""
    file = File(name)
    linters = (tidy, prose, locks, names)
    return [problem for linter in linters for problem in linter.check_file(file)]


def check_files(files: list[File]) -> dict[str, list[str]]:
    """Return what is wrong in each file alone, by a checksum of its name, its text and the linters.

    Known results come from the cache, which then holds these files alone.
    """
    linters = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    prefix = hashlib.sha256(linters.encode()).hexdigest()
    keys = {
        hashlib.sha256(f"{prefix}\0{f.name}\0{f.text}".encode()).hexdigest(): f.name for f in files
    }
    cached: dict[str, list[str]] = json.loads(CACHE.read_text()) if CACHE.exists() else {}
    results = {key: cached[key] for key in keys if key in cached}
    new = {key: name for key, name in keys.items() if key not in cached}
    if len(new) < MANY:
        results |= {key: check_file(name) for key, name in new.items()}
    else:
        with ProcessPoolExecutor() as pool:
            checked = pool.map(check_file, new.values(), chunksize=CHUNK)
            results |= dict(zip(new, checked, strict=True))
    CACHE.parent.mkdir(exist_ok=True)
    CACHE.write_text(json.dumps(results))
    return results


def main() -> int:
    files = list_tracked_files()
    problems = [problem for of_file in check_files(files).values() for problem in of_file]
    for linter in LINTERS:
        problems += linter.check_tree(files)
    for problem in sorted(problems):
        print(problem)
    print(f"{len(files)} files, {len(problems)} problems of style.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
