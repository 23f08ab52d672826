"""TLS, logins and permissions against Apache Kafka, alternating in one run: `make bench-security`.

The loads are those of `make bench` over SSL and SASL_SSL, with the same certificates, TLS versions
and cipher on both sides. More rows: a thousand clients that reconnect at once with certificates,
Metadata with ten thousand access control entries, and producers of three brokers whose listeners
all need certificates, those for controllers too. `security_costs.py` has rows of Shoal alone: what
TLS, entries, and the code for both cost. `--only WORD` selects rows by a word of their name,
`--rounds N` and `--scale 0.2` shorten the run, `--side shoal` leaves Kafka out.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import socket
import statistics
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

import cluster_loads
import security_costs
from brokers import METADATA, WAIT_S, Broker, Kafka, Shoal, describe_kafka
from clusters import Cluster, KafkaNode, ShoalNode
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from in_turn import in_turn
from load_checks import LoadFailed
from load_setup import QUIET, log_in
from results import Figures, Goal, Results
from run import FIGURES, alternate
from security import AUTHORIZER, MUTUAL, PRINCIPALS, SASL_SSL, SSL, Security
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from multiprocessing.connection import Connection
    from pathlib import Path

LOADS = [
    "produce 1 KB acks=all",
    "consume 1 KB, 1 partition, classic",
    "consume 1 KB, 12 partitions, classic",
    "share 1 KB implicit",
    "jobs, 2 partitions, commit a record",
]
#: Goals by the first words of a row: ratios to Kafka, and absolute goals.
GOALS: dict[str, dict[str, Goal]] = {
    "produce": {"rate": Goal(1.2), "cpu_s": Goal(0.7, more=False)},
    "consume": {"rate": Goal(1.0), "cpu_s": Goal(0.8, more=False)},
    "share": {"rate": Goal(1.2)},
    "jobs": {"rate": Goal(2.0)},
    "1,000 clients": {
        "whole_s": Goal(1.0, more=False),
        "others_p99_ms": Goal(50, more=False, alone=True),
    },
    "Metadata": {"p50_ms": Goal(0.2, more=False)},
    "three brokers": {"rate": Goal(1.0), "cpu_s_gb": Goal(0.8, more=False)},
    **security_costs.GOALS,
}
RECONNECTS, RECONNECT = 1_000, "1,000 clients with certificates reconnect"
#: Seconds between the requests of a client that is connected already.
EVERY_S = 0.01
ENTRIES, TOPICS = 10_000, 1_000
METADATA_ROW = "Metadata of 1,000 topics, 10,000 access control entries"
ASKED = 100
CLUSTER_ROW = "three brokers, TLS everywhere, produce 1 KB acks=all"
#: Metadata v1 of all topics: a null array.
ALL_TOPICS = bytes.fromhex("0000000e00030001000000010000ffffffff")


def goal_of(name: str, figure: str) -> Goal | None:
    found = next((goals for prefix, goals in GOALS.items() if name.startswith(prefix)), {})
    return found.get(figure)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    await writer.drain()
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def keep_asking(port: int, parent: Connection) -> None:
    """Send requests over one connection until the parent asks for their times."""
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
        stream = one.makefile("rb")
        parent.send("begun")
        while not parent.poll(EVERY_S):
            began = time.perf_counter()
            one.sendall(METADATA)
            stream.read(struct.unpack(">i", stream.read(4))[0])
            times.append(time.perf_counter() - began)
    parent.recv()
    parent.send(times)


async def reconnect(broker: Broker, security: Security) -> Figures:
    """Measure until a thousand new connections have an answer, and how long another client waits.

    One process has all new connections, and its handshakes take as much time with either broker.
    """
    context = security.context()
    port = broker.secured_port

    async def connect() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await ask(reader, writer, METADATA)
        return writer

    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.Process(target=keep_asking, args=(broker.port, theirs))
    other.start()
    ours.recv()
    before, began = broker.cpu_s(), time.perf_counter()
    writers = await asyncio.gather(*(connect() for _ in range(RECONNECTS)))
    whole, used = time.perf_counter() - began, broker.cpu_s() - before
    ours.send("end")
    times = sorted(ours.recv())
    other.join()
    for writer in writers:
        writer.transport.abort()
    return {"whole_s": whole, "cpu_s": used, "others_p99_ms": 1000 * times[len(times) * 99 // 100]}


async def ask_metadata(broker: Broker) -> Figures:
    """Measure Metadata of all topics for a client without a login, who may describe each topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    times: list[float] = []
    end = time.monotonic() + WAIT_S
    while len(times) < ASKED:
        began = time.perf_counter()
        answer = await ask(reader, writer, ALL_TOPICS)
        times.append(time.perf_counter() - began)
        if (found := answer.count(b"topic-")) != TOPICS:
            # The broker has not applied all entries yet.
            times.clear()
            if time.monotonic() > end:
                raise LoadFailed(f"Metadata has {found} of {TOPICS} topics")
    writer.close()
    return {"p50_ms": 1000 * statistics.median(times)}


def grant(broker: Broker) -> None:
    """Create topics, and an entry for each and many more."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
    topics = [NewTopic(f"topic-{n}", 1, 1) for n in range(TOPICS)]
    for future in admin.create_topics(topics).values():
        future.result(60)
    users = ["User:ANONYMOUS", *(f"User:user-{n}" for n in range(ENTRIES // TOPICS - 1))]
    entries = [
        AclBinding(
            ResourceType.TOPIC,
            topic.topic,
            ResourcePatternType.LITERAL,
            user,
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.ALLOW,
        )
        for topic in topics
        for user in users
    ]
    security_costs.create_entries(admin, entries)


def replicate(cluster: Cluster, scale: float) -> dict[str, Figures]:
    """Produce to three brokers."""
    figures = cluster_loads.produce(cluster, scale)
    cluster.check_alive()
    return {CLUSTER_ROW: figures}


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """Run all rounds of all loads and add them to `results`."""
    kinds: list[type[Broker]] = [k for k in (Shoal, Kafka) if options.side in ("both", k.name)]

    def wanted(name: str) -> bool:
        return is_wanted(options.only, name)

    for kind in (SSL, SASL_SSL):
        security = Security(folder / "certificates", kind)
        label = f", {kind}"
        log_in(security.client_properties())
        brokers = [one(folder / f"{kind}-{one.name}", security) for one in kinds]
        if loads := [name for name in LOADS if wanted(name + label)]:
            alternate(loads, options, brokers, results, label)
    security = Security(folder / "certificates", MUTUAL)
    log_in(security.client_properties())
    if wanted(RECONNECT):
        brokers = [one(folder / f"mutual-{one.name}", security) for one in kinds]
        in_turn(
            RECONNECT,
            options.rounds,
            brokers,
            results,
            lambda broker: {RECONNECT: asyncio.run(reconnect(broker, security))},
        )
    if wanted(METADATA_ROW):
        configs = {"authorizer.class.name": AUTHORIZER, "super.users": ";".join(PRINCIPALS)}
        brokers = [one(folder / f"entries-{one.name}", security, configs) for one in kinds]
        in_turn(
            METADATA_ROW,
            options.rounds,
            brokers,
            results,
            lambda broker: {METADATA_ROW: asyncio.run(ask_metadata(broker))},
            grant,
        )
    if wanted(CLUSTER_ROW):
        nodes = [k for k in (ShoalNode, KafkaNode) if options.side in ("both", k.name)]
        clusters = [Cluster(kind, folder / f"three-{kind.name}", security) for kind in nodes]
        in_turn(
            CLUSTER_ROW,
            options.rounds,
            clusters,
            results,
            lambda cluster: replicate(cluster, options.scale),
        )
    if options.side != "kafka":
        security_costs.measure(options.rounds, folder, results, wanted)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    more_figures = ["cpu_s_gb", "whole_s", "others_p99_ms", *security_costs.FIGURES]
    run_bench(
        "security",
        partial(measure, options),
        [*FIGURES, *more_figures],
        goal_of,
        into=options.into,
        **describe_kafka(),
        scale=options.scale,
    )


if __name__ == "__main__":
    main()
