"""`shoal cluster`: run a test cluster on this machine, and describe any cluster."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import local_cluster, output
from shoal.cli.client_properties import pairs
from shoal.cli.local_cluster import STOP_TIMEOUT_S, LocalCluster
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, guarded, new_app, warn
from shoal.cli.terminal import say
from shoal.client import cluster_health
from shoal.client.admin import ClusterDescription
from shoal.client.client import Client
from shoal.client.cluster import Partition, TopicPartition
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.topics import OffsetSpec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

app = new_app("Run a test cluster on this machine, or describe any cluster.")

Folder = Annotated[
    Path,
    typer.Option("--dir", envvar="SHOAL_CLUSTER_DIR", help="The folder of the cluster's files."),
]
Id = Annotated[int, typer.Argument(metavar="N", help="The broker's number.")]
_FOLDER = Path("shoal-cluster")
#: ListOffsets' replica id of a debugging client, which any replica answers from its own log.
_DEBUGGING_REPLICA = -2


def _known(folder: Path) -> LocalCluster:
    cluster = local_cluster.found(folder)
    if cluster is None:
        raise Failed(f"there is no cluster in {folder}. Create one with `shoal cluster start`.")
    return cluster


@app.command()
def start(
    brokers: Annotated[
        int | None, typer.Option(help="Number of brokers of a new cluster. Default: 3.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            help="Port of the first broker of a new cluster. The other brokers use the next ports,"
            " the controllers the ports after those, all on 127.0.0.1."
        ),
    ] = 9092,
    dir: Folder = _FOLDER,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A config of all brokers of a new cluster."
        ),
    ] = None,
) -> None:
    """Start a new cluster, or restart a stopped one with its data."""

    def run() -> None:
        cluster = local_cluster.found(dir)
        if cluster is None:
            cluster = local_cluster.made(dir, brokers or 3, port, pairs(set_, "--set"))
        elif brokers is not None and brokers != len(cluster.nodes):
            raise Failed(
                f"the cluster in {dir} has {len(cluster.nodes)} brokers. Omit --brokers, or use"
                " another --dir for a new cluster."
            )
        if cluster.number_controllers():
            say(f"The controllers move to their own ports: {cluster.quorum}")
        starting = [node for node in cluster.nodes if not cluster.runs(node)]
        for node in starting:
            cluster.launch(node)
        try:
            for node in starting:
                cluster.wait(node)
        except KeyboardInterrupt:
            warn(f"the brokers still start. Stop them with `shoal cluster stop --dir {dir}`.")
            raise
        say(f"{len(cluster.nodes)} brokers are running. Bootstrap servers: {cluster.bootstrap}")

    guarded(run)


@app.command()
def stop(
    dir: Folder = _FOLDER,
    timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Brokers that take longer are killed."),
    ] = STOP_TIMEOUT_S,
) -> None:
    """Stop all brokers and keep their data."""

    def run() -> None:
        cluster = _known(dir)
        for sentence in cluster.stop(cluster.nodes, timeout_s=timeout):
            say(sentence)
        say(f"Stopped. The data stays in {cluster.folder}. Restart with `shoal cluster start`.")

    guarded(run)


@app.command()
def status(dir: Folder = _FOLDER, format: FormatOption = Format.TABLE) -> None:
    """Show which brokers run."""

    def run() -> None:
        cluster = _known(dir)
        found = [
            {
                "broker": node.id,
                "address": f"127.0.0.1:{node.port}",
                "state": "running" if cluster.runs(node) else "stopped",
                "pid": node.pid if cluster.runs(node) else None,
                "log": str(cluster.log(node)),
            }
            for node in cluster.nodes
        ]
        output.rows(format, found, expendable=["log", "pid"])

    guarded(run)


@app.command()
def kill(id: Id, dir: Folder = _FOLDER) -> None:
    """Kill a broker as a crash would (kill -9)."""

    def run() -> None:
        cluster = _known(dir)
        node = cluster.node(id)
        if not cluster.runs(node):
            raise Failed(f"broker {id} is not running. Start it with `shoal cluster restart {id}`.")
        cluster.kill([node])
        say(f"Killed broker {id}. Restart it with `shoal cluster restart {id}`.")

    guarded(run)


@app.command()
def restart(id: Id, dir: Folder = _FOLDER) -> None:
    """Restart a broker, or start it if it is stopped."""

    def run() -> None:
        cluster = _known(dir)
        node = cluster.node(id)
        if cluster.runs(node):
            for sentence in cluster.stop([node]):
                say(sentence)
        cluster.number_controllers()
        cluster.launch(node)
        cluster.wait(node)
        say(f"Broker {id} is running.")

    guarded(run)


@command(app, "describe")
async def describe(client: Client, format: FormatOption = Format.TABLE) -> None:
    """Show brokers, their partitions and their metadata lag. List the partitions without a leader
    or with too few in-sync replicas, and how many records each other replica lags.
    """
    cluster = await client.admin.describe_cluster(fenced=True)
    topics = await client.admin.topics.list(internal=True)
    partitions = [(topic.name, p) for topic in topics.values() for p in topic.partitions]
    lags = await _lags(client)
    rows = [
        {
            "broker": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "state": "fenced" if broker.node_id in cluster.fenced else "running",
            "leads": sum(p.leader_id == broker.node_id for _, p in partitions),
            "replicas": sum(broker.node_id in p.replicas for _, p in partitions),
            "in_sync": sum(broker.node_id in p.isr for _, p in partitions),
            "metadata_lag": lags.get(broker.node_id),
        }
        for broker in sorted(cluster.brokers, key=lambda b: b.node_id)
    ]
    behind = await _behind(client, cluster, partitions)
    lacking = [
        {
            "topic": name,
            "partition": p.index,
            "leader": None if p.leader_id < 0 else p.leader_id,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "lag": behind.get((name, p.index), {}),
            "state": "offline" if p.leader_id < 0 else "under-replicated",
        }
        for name, p in partitions
        if p.leader_id < 0 or len(p.isr) < len(p.replicas)
    ]
    if format is Format.JSON:
        whole = [
            {
                "cluster_id": cluster.cluster_id,
                "controller": cluster.controller_id,
                "brokers": rows,
                "partitions": len(partitions),
                "lacking": lacking,
            }
        ]
        output.rows(format, whole)
        return
    say(f"Cluster {cluster.cluster_id}, controller {cluster.controller_id}")
    output.rows(format, rows, expendable=["rack", "leads", "replicas", "in_sync"])
    say(
        f"\n{len(partitions)} partitions, {sum(r['state'] == 'offline' for r in lacking)} offline,"
        f" {sum(r['state'] != 'offline' for r in lacking)} under-replicated"
    )
    if lacking:
        output.rows(format, [_shown(row) for row in lacking])


@command(app, "health")
async def health(client: Client, format: FormatOption = Format.TABLE) -> None:
    """Show whether the cluster serves all that it should. The exit code is 1 if it does not."""
    found = await cluster_health.examine(client)
    problems = found.problems
    if format is Format.JSON:
        output.rows(format, [{"healthy": not problems, **found._asdict()}])
    else:
        leader = found.controller if found.controller >= 0 else "none"
        say(
            f"{'Not healthy' if problems else 'Healthy'}: controller {leader},"
            f" {found.brokers} brokers, {found.partitions} partitions"
        )
    if problems:
        raise Failed(" ".join(problems))


@command(app, "features")
async def features(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List the finalized features of the cluster, such as share.version, and their levels."""
    found = await client.admin.features()
    rows = [{"feature": name, "level": level} for name, level in sorted(found.items())]
    output.rows(format, rows, empty="The cluster has no finalized features.")


@command(app, "elect-leaders")
async def elect_leaders(
    client: Client,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Default: all topics.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Let a replica out of sync lead partitions that have no leader. Records that only"
            " other replicas have are lost.",
        ),
    ] = False,
) -> None:
    """Let the preferred replicas lead their partitions again, the first ones in their lists."""
    wanted = None
    if unclean and not topics:
        raise Failed("--unclean may lose records, so it needs the names of topics.", USAGE)
    if topics:
        known = expect(await client.admin.topics.describe(topics))
        wanted = [TopicPartition(name, p.index) for name in topics for p in known[name].partitions]
    done = await client.admin.elect_leaders(wanted, unclean=unclean)
    errors = {
        where: error
        for where, error in done.items()
        if error and error.code != ErrorCode.election_not_needed
    }
    elected = sum(error is None for error in done.values())
    say(f"{elected} partitions have another leader.")
    if errors:
        raise Failed(" ".join(f"{where}: {error}." for where, error in sorted(errors.items())))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    lists = {name: ",".join(map(str, row[name])) for name in ("replicas", "isr")}
    return row | lists | {"lag": ",".join(f"{id}:{lag}" for id, lag in row["lag"].items())}


async def _behind(
    client: Client, cluster: ClusterDescription, partitions: list[tuple[str, Partition]]
) -> dict[tuple[str, int], dict[int, int]]:
    """Return the lag in records of out-of-sync replicas on running brokers, by partition and
    broker.
    """
    lacking = {
        (name, p.index): p
        for name, p in partitions
        if p.leader_id >= 0 and len(p.isr) < len(p.replicas)
    }
    running = {b.node_id for b in cluster.brokers} - cluster.fenced
    ends: dict[int, dict[tuple[str, int], int]] = {}
    for node in sorted(running & {id for p in lacking.values() for id in p.replicas}):
        keys = [key for key, p in lacking.items() if node in p.replicas]
        with contextlib.suppress(ClientError):
            ends[node] = await _ends(client, node, keys)
    return {
        key: {
            id: max(0, ends[p.leader_id][key] - ends[id][key])
            for id in p.replicas
            if id not in p.isr and key in ends.get(id, {}) and key in ends.get(p.leader_id, {})
        }
        for key, p in lacking.items()
    }


async def _ends(
    client: Client, node: int, keys: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the end offsets of a broker's logs."""
    topics: dict[str, list[dict[str, int]]] = {}
    for name, index in keys:
        row = {"partition_index": index, "current_leader_epoch": -1, "timestamp": OffsetSpec.LATEST}
        topics.setdefault(name, []).append(row)
    body = {
        "replica_id": _DEBUGGING_REPLICA,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
    answer = await client.cluster.request(node, ApiKey.LIST_OFFSETS, body)
    return {
        (topic.name, row.partition_index): row.offset
        for topic in answer.topics
        for row in topic.partitions
        if not row.error_code
    }


async def _lags(client: Client) -> dict[int, int]:
    """Return each node's lag in metadata records."""
    try:
        quorum = await client.admin.describe_quorum()
    except KafkaError:
        return {}
    end = max((v.log_end_offset for v in quorum.voters), default=0)
    return {r.node_id: end - r.log_end_offset for r in (*quorum.voters, *quorum.observers)}
