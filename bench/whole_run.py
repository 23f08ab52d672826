"""The frame of a bench: its options, its folder, and what it leaves behind."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from load_checks import LoadFailed
from report import show
from results import Clock, Results, document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from results import Goal

FOLDER = Path(__file__).resolve().parent / "results"
SIDES = ("both", "shoal", "kafka")


def options_of(
    description: str | None, *, rounds: int = 3, sides: Sequence[str] = SIDES
) -> argparse.ArgumentParser:
    """Return a parser with the options of every bench. Without `sides` there is no `--side`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", action="append", default=[])
    if sides:
        parser.add_argument("--side", choices=sides, default=sides[0])
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder of the tables")
    return parser


def is_wanted(only: Sequence[str], *names: str) -> bool:
    """Whether a word of `--only` is a part of one of these names, or there is no word."""
    return not only or any(word in name for word in only for name in names)


def run_bench(
    bench: str,
    measure: Callable[[Path, Results], None],
    figures: Sequence[str],
    goal_of: Callable[[str, str], Goal | None],
    *,
    into: Path,
    **more: Any,
) -> NoReturn:
    """Measure in a folder that is deleted afterwards, write the tables into a folder, and exit. The
    exit code is 1 if a load failed. `more` has fields of this bench's document."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    clock, results = Clock(), Results()
    try:
        measure(folder, results)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except LoadFailed as error:
        results.fail("start of a broker", "both", error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = results.rows(figures, goal_of)
    show(document(bench, clock, rows, **more, notes=results.notes), into)
    print(clock.took())
    sys.exit(results.failed)
