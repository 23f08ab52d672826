"""This tree against an earlier one, alternating in one run: `make bench-earlier COMMIT=...`.

Both brokers run with the packages and the clients of this tree, and the extension modules of the
earlier tree are compiled as its own `make venv` would. `--only WORD` selects loads by a word of
their name, of all that `make bench` has. `--rounds N` sets the number of pairs, `--scale 0.2`
shortens the loads, `--set NAME=VALUE` sets a config of both brokers. `--tree COMMIT` takes another
tree instead of this one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from brokers import Shoal
from earlier_tree import NoHistory, OfTree, compiled, extract
from loads import LOADS
from results import Goal, Results
from run import FIGURES, alternate
from whole_run import options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

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


def measure(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    configs: dict[str, str],
    folder: Path,
    results: Results,
) -> None:
    # A whole name selects this load alone.
    chosen = [
        name
        for name in LOADS
        if any(word == name if word in LOADS else word in name for word in options.only)
    ]
    try:
        Earlier.packages = compiled(extract(folder / "earlier", options.commit))
        if options.tree:
            Later.packages = compiled(extract(folder / "later", options.tree))
    except NoHistory as error:
        parser.error(str(error))
    kinds = (Later if options.tree else Shoal, Earlier)
    sides = [kind(folder / kind.__name__, configs=configs) for kind in kinds]
    results.notes += [f"Both brokers have {name}={value}." for name, value in configs.items()]
    alternate(chosen or KINDS, options, sides, results)


def main() -> None:
    parser = options_of(__doc__, rounds=10, sides=())
    parser.add_argument("commit", help="the earlier tree")
    parser.add_argument("--tree", help="the later tree, by default this one")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    configs = dict(pair.split("=", 1) for pair in options.set)
    run_bench(
        "earlier",
        partial(measure, parser, options, configs),
        FIGURES,
        lambda _, figure: GOALS.get(figure),
        into=options.into,
        sides={"shoal": options.tree or "this tree", "kafka": options.commit},
        scale=options.scale,
    )


if __name__ == "__main__":
    main()
