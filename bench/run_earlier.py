"""This tree against an earlier one, alternating in one run: `make bench-earlier COMMIT=...`.

Both brokers run with the packages and the clients of this tree, and the extension modules of the
earlier tree are compiled as its own `make venv` would. `--only WORD` selects loads by a word of
their name, of all that `make bench` has. `--rounds N` sets the number of pairs, `--scale 0.2`
shortens the loads, `--set NAME=VALUE` sets a config of both brokers. `--tree COMMIT` takes another
tree instead of this one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from brokers import Shoal
from earlier_tree import NoHistory, OfTree, compiled, extract
from load_checks import LoadFailed
from loads import LOADS
from report import show
from results import Clock, Goal, Results, document
from run import FIGURES, alternate

HERE = Path(__file__).resolve().parent
#: One load of each kind: produce, consume, share, jobs.
KINDS = [
    "produce 1 KB acks=all",
    "consume 1 KB, 1 partition, classic",
    "share 1 KB explicit",
    "share 100 B implicit",
    "jobs, 2 partitions, commit a record",
]
#: CPU stays within 3 %; the ranges of the rates show whether these differ.
GOALS = {"cpu_s": Goal(1.03, more=False)}


class Later(OfTree):
    """A broker of `--tree`."""


class Earlier(OfTree):
    """A broker of the earlier tree. Its side is the peer's, which is "kafka" in every document."""

    name = "kafka"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the earlier tree")
    parser.add_argument("--tree", help="the later tree, by default this one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--into", type=Path, default=HERE / "results", help="folder of the tables")
    options = parser.parse_args()
    configs = dict(pair.split("=", 1) for pair in options.set)
    # A whole name selects this load alone.
    chosen = [
        name
        for name in LOADS
        if any(word == name if word in LOADS else word in name for word in options.only)
    ]
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    clock, results = Clock(), Results()
    try:
        Earlier.packages = compiled(extract(folder / "earlier", options.commit))
        if options.tree:
            Later.packages = compiled(extract(folder / "later", options.tree))
        kinds = (Later if options.tree else Shoal, Earlier)
        sides = [kind(folder / kind.__name__, configs=configs) for kind in kinds]
        alternate(chosen or KINDS, options, sides, results)
    except NoHistory as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except LoadFailed as error:
        results.fail("start of a broker", "both", error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = results.rows(FIGURES, lambda _, figure: GOALS.get(figure))
    results.notes += [f"Both brokers have {name}={value}." for name, value in configs.items()]
    titles = {"shoal": options.tree or "this tree", "kafka": options.commit}
    more = {"sides": titles, "scale": options.scale, "notes": results.notes}
    show(document("earlier", clock, rows, **more), options.into)
    print(clock.took())
    sys.exit(results.failed)


if __name__ == "__main__":
    main()
