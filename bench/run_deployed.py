"""Three brokers as they are deployed, against Apache Kafka and NATS JetStream: `make
bench-deployed`.

All have three replicas, of which two must be in sync. The loads are small records: jobs that are
acknowledged one by one and by poll, producers that wait for each record, and records at a steady
pace. They run on clusters without encryption, and again on clusters whose clients log in with SCRAM
over TLS and have access control entries, while brokers show certificates to each other. At the end
the loads of one broker run, against Kafka and a Redis that writes to the disk every second.

The sides alternate: after a warm-up round of half the size, `--rounds N` or BENCH_ROUNDS rounds, by
default three. Before its first round of a load, Kafka runs it for BENCH_WARM seconds, by default
40, so that its compiler is done. `--only WORD` selects rows by a word of their name, `--group
secured` those of a kind, `--scale 0.2` shortens the loads, and `--side shoal` runs without the
others. NATS needs Go, to build `nats-server` from its module, and Redis needs `redis-server`. What
cannot run is left out, and the result says so.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import deployed_loads
import nats_loads
import nats_servers
import redis_loads
import redis_servers
from brokers import Kafka, Shoal, describe_kafka
from clusters import Cluster, KafkaNode, ShoalNode
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from load_checks import LoadFailed
from load_setup import PREFIX, Run, log_in
from results import PEERS, Figures, Goal, Results
from run import Measurable, alternate, run_load
from security import DEPLOYED, USER, Security
from security_costs import create_entries
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

JOBS = "jobs, 8 partitions, commit a record"
ONE, TEN = "synchronous produce, 1 producer", "synchronous produce, 10 producers"
PACED = "end to end, 500/s, each awaited"
SECURED, ALONE = f", {DEPLOYED}", ", one broker"
#: The groups of rows by `--group`: their loads, and what follows their names.
GROUPS = {
    "plain": ("", list(deployed_loads.LOADS)),
    "secured": (SECURED, list(deployed_loads.LOADS)),
    "alone": (ALONE, [JOBS, ONE, TEN]),
}
#: The scripts with the loads of a side, and their names.
SCRIPTS = {
    "shoal": ("deployed_loads.py", deployed_loads.LOADS),
    "kafka": ("deployed_loads.py", deployed_loads.LOADS),
    "nats": ("nats_loads.py", nats_loads.LOADS),
    "redis": ("redis_loads.py", redis_loads.LOADS),
}
_WAITING = {"p50_ms": Goal(0.8, more=False), "record_cpu_ms": Goal(0.4, more=False)}
GOALS: dict[str, dict[str, Goal]] = {
    JOBS: {
        "rate": Goal(1.2, peer="nats"),
        "record_cpu_ms": Goal(1.0, more=False, peer="nats"),
    },
    ONE: {"rate": Goal(1.4), **_WAITING},
    TEN: {"rate": Goal(2.0), **_WAITING},
    PACED: {
        "p50_ms": Goal(0.7, more=False, peer="nats"),
        "p99_ms": Goal(0.7, more=False, peer="nats"),
    },
    JOBS + ALONE: {
        "rate": Goal(1.5, peer="redis"),
        "record_cpu_ms": Goal(1.0, more=False, peer="redis"),
    },
    ONE + ALONE: {"rate": Goal(1.4)},
    TEN + ALONE: {"rate": Goal(1.4)},
}
#: Goals of each load as deployed.
SECURED_GOALS = {"secured_times": Goal(1.25, more=False, alone=True)}
FIGURES = ("rate", "p50_ms", "p99_ms", "record_cpu_ms", "secured_times", "repeated")
#: The seconds that Kafka runs a load before its rounds.
WARM_S = float(os.environ.get("BENCH_WARM", "40"))
#: Seconds of a load on one side, with its start, on an idle machine of two cores.
LOAD_S = 15


def goal_of(name: str, figure: str) -> Goal | None:
    goals = SECURED_GOALS if name.endswith(SECURED) else GOALS.get(name, {})
    return goals.get(figure)


class Loads:
    """Runs the loads of a group of sides, each by its script.

    `base` has the CPU of a record without security by side and load, for those with it.
    """

    def __init__(self, base: Mapping[tuple[str, str], list[float]] | None = None) -> None:
        self.record_cpu_ms: dict[tuple[str, str], list[float]] = {}
        self._base = base or {}
        self._warmed: set[str] = set()

    def __call__(self, side: Measurable, name: str, scale: float) -> Figures | None:
        """Run a load once, and return its figures; None if the side does not have it."""
        script, known = SCRIPTS[side.name]
        if name not in known:
            return None
        if side.name == "kafka" and name not in self._warmed:
            self._warmed.add(name)
            end = time.monotonic() + WARM_S
            while time.monotonic() < end:
                _run(side, name, scale, script)
        figures = _run(side, name, scale, script)
        record_cpu_ms = figures["cpu_s"] / figures["records"] * 1000
        found = {**figures, "record_cpu_ms": record_cpu_ms}
        self.record_cpu_ms.setdefault((side.name, name), []).append(record_cpu_ms)
        if before := self._base.get((side.name, name)):
            found["secured_times"] = record_cpu_ms / statistics.median(before)
        return found


def _run(side: Measurable, name: str, scale: float, script: str) -> Figures:
    figures = run_load(side, name, scale, script)
    if side.name in ("shoal", "kafka"):
        Run(side.bootstrap, scale).remove_topics()
    return figures


def grant(cluster: Cluster, security: Security) -> None:
    """Create the entries that the loads' user needs, and no others."""
    properties = security.broker_properties()
    bootstrap = ",".join(node.address for node in cluster.nodes.values())
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **properties})
    resources = (
        (ResourceType.TOPIC, PREFIX, ResourcePatternType.PREFIXED),
        (ResourceType.GROUP, "*", ResourcePatternType.LITERAL),
        (ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL),
    )
    entries = [
        AclBinding(
            kind, name, pattern, f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind, name, pattern in resources
    ]
    create_entries(admin, entries)


class SecuredCluster(Cluster):
    """A cluster of Shoal or Kafka as deployed. It has the entries once it has started."""

    def start(self) -> None:
        super().start()
        security = next(iter(self.nodes.values())).security
        assert security is not None
        grant(self, security)


def clusters(
    options: argparse.Namespace, folder: Path, results: Results, security: Security | None = None
) -> list[Cluster]:
    """Return the clusters of the wanted sides. Those that cannot run have a note."""
    kind = SecuredCluster if security else Cluster
    label = "secured" if security else "plain"
    nodes = [n for n in (ShoalNode, KafkaNode) if options.side in ("all", n.name)]
    found = [kind(one, folder / f"{label}-{one.name}", security) for one in nodes]
    if options.side == "all" or options.side == "nats":
        try:
            nats_servers.find_server()
            found.append(nats_servers.NatsCluster(folder / f"{label}-nats", security))
        except LoadFailed as error:
            note(results, f"NATS is left out: {error}")
    return found


def brokers(
    options: argparse.Namespace, folder: Path, results: Results
) -> list[Shoal | Kafka | redis_servers.Redis]:
    """Return one broker of each wanted side."""
    kinds = [k for k in (Shoal, Kafka, redis_servers.Redis) if options.side in ("all", k.name)]
    if redis_servers.Redis in kinds and redis_servers.find_server() is None:
        kinds.remove(redis_servers.Redis)
        note(results, "Redis is left out: there is no redis-server.")
    return [kind(folder / f"one-{kind.name}") for kind in kinds]


def note(results: Results, text: str) -> None:
    """Add a sentence about the run once."""
    if text not in results.notes:
        results.notes.append(text)
        print(text, flush=True)


def note_missing(sides: Sequence[Measurable], loads: Sequence[str], results: Results) -> None:
    """Note the loads that a side does not have."""
    for side in sides:
        missing = [name for name in loads if name not in SCRIPTS[side.name][1]]
        if missing:
            note(results, f"{PEERS[side.name]} has no {'; '.join(missing)}.")


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """Run all rounds of all loads and add them to `results`."""
    wanted = {
        label: [name for name in names if is_wanted(options.only, name + label)]
        for group, (label, names) in GROUPS.items()
        if group in options.groups
    }
    sides = 3 if options.side == "all" else 1
    count = sum(map(len, wanted.values()))
    warm_s = WARM_S if options.side in ("all", "kafka") else 0
    whole_s = count * (sides * LOAD_S * (options.rounds + 1) * options.scale + warm_s)
    print(f"About {whole_s / 60:.0f} minutes on a quiet machine.", flush=True)
    plain = Loads()
    log_in({})
    if wanted.get(""):
        _alternate(wanted[""], options, clusters(options, folder, results), results, "", plain)
    if wanted.get(SECURED):
        security = Security(folder / "certificates", DEPLOYED)
        log_in(security.client_properties())
        found = clusters(options, folder, results, security)
        loads = Loads(plain.record_cpu_ms)
        _alternate(wanted[SECURED], options, found, results, SECURED, loads)
        log_in({})
    if wanted.get(ALONE):
        one = brokers(options, folder, results)
        _alternate(wanted[ALONE], options, one, results, ALONE, Loads())


def _alternate(
    names: list[str],
    options: argparse.Namespace,
    sides: Sequence[Measurable],
    results: Results,
    label: str,
    loads: Loads,
) -> None:
    note_missing(sides, names, results)
    alternate(names, options, sides, results, label, loads)


def main() -> None:
    rounds = int(os.environ.get("BENCH_ROUNDS", "3"))
    parser = options_of(__doc__, rounds=rounds, sides=("all", "shoal", *PEERS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--group", action="append", choices=GROUPS)
    options = parser.parse_args()
    options.groups = options.group or list(GROUPS)
    titles = {"shoal": "Shoal", **PEERS}
    run_bench(
        "deployed",
        partial(measure, options),
        FIGURES,
        goal_of,
        into=options.into,
        **describe_kafka(),
        scale=options.scale,
        sides={s: t for s, t in titles.items() if options.side in ("all", s)},
    )


if __name__ == "__main__":
    main()
