"""`shoal cluster`: run a test cluster on this machine, and describe any cluster."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.client_properties import parse_pairs
from shoal.cli.commands import local_cluster
from shoal.cli.commands.local_cluster import STOP_TIMEOUT_S, LocalCluster
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, run_guarded, warn
from shoal.cli.terminal import say
from shoal.client.admin.admin import ClusterDescription
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.metadata import PartitionInfo
from shoal.monitoring import cluster_health
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

app = make_app("Run a test cluster on this machine, or describe any cluster.")

Folder = Annotated[
    Path,
    typer.Option("--dir", envvar="SHOAL_CLUSTER_DIR", help="The folder of the cluster's files."),
]
Id = Annotated[int, typer.Argument(metavar="N", help="The broker's number.")]
_FOLDER = Path("shoal-cluster")
#: ListOffsets' replica id of a debugging client, which any replica answers from its own log.
_DEBUGGING_REPLICA = -2


def _load_cluster(folder: Path) -> LocalCluster:
    cluster = local_cluster.load_cluster(folder)
    if cluster is None:
        raise CommandError(
            f"there is no cluster in {folder}. Create one with `shoal cluster start`."
        )
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
        cluster = local_cluster.load_cluster(dir)
        if cluster is None:
            cluster = local_cluster.create_cluster(
                dir, brokers or 3, port, parse_pairs(set_, "--set")
            )
        elif brokers is not None and brokers != len(cluster.nodes):
            raise CommandError(
                f"the cluster in {dir} has {len(cluster.nodes)} brokers. Omit --brokers, or use"
                " another --dir for a new cluster."
            )
        if cluster.number_controllers():
            say(f"The controllers move to their own ports: {cluster.quorum}")
        starting = [node for node in cluster.nodes if not cluster.is_running(node)]
        for node in starting:
            cluster.launch(node)
        try:
            for node in starting:
                cluster.wait_until_ready(node)
        except KeyboardInterrupt:
            warn(f"the brokers still start. Stop them with `shoal cluster stop --dir {dir}`.")
            raise
        say(f"{len(cluster.nodes)} brokers are running. Bootstrap servers: {cluster.bootstrap}")

    run_guarded(run)


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
        cluster = _load_cluster(dir)
        for sentence in cluster.stop(cluster.nodes, timeout_s=timeout):
            say(sentence)
        say(f"Stopped. The data stays in {cluster.folder}. Restart with `shoal cluster start`.")

    run_guarded(run)


@app.command()
def status(dir: Folder = _FOLDER, format: FormatOption = Format.TABLE) -> None:
    """Show which brokers run."""

    def run() -> None:
        cluster = _load_cluster(dir)
        rows = [
            {
                "broker": node.id,
                "address": f"127.0.0.1:{node.port}",
                "state": "running" if cluster.is_running(node) else "stopped",
                "pid": node.pid if cluster.is_running(node) else None,
                "log": str(cluster.get_log_path(node)),
            }
            for node in cluster.nodes
        ]
        output.print_rows(format, rows, expendable=["log", "pid"])

    run_guarded(run)


@app.command()
def kill(id: Id, dir: Folder = _FOLDER) -> None:
    """Kill a broker as a crash would (kill -9)."""

    def run() -> None:
        cluster = _load_cluster(dir)
        node = cluster.find_node(id)
        if not cluster.is_running(node):
            raise CommandError(
                f"broker {id} is not running. Start it with `shoal cluster restart {id}`."
            )
        cluster.kill([node])
        say(f"Killed broker {id}. Restart it with `shoal cluster restart {id}`.")

    run_guarded(run)


@app.command()
def restart(id: Id, dir: Folder = _FOLDER) -> None:
    """Restart a broker, or start it if it is stopped."""

    def run() -> None:
        cluster = _load_cluster(dir)
        node = cluster.find_node(id)
        if cluster.is_running(node):
            for sentence in cluster.stop([node]):
                say(sentence)
        cluster.number_controllers()
        cluster.launch(node)
        cluster.wait_until_ready(node)
        say(f"Broker {id} is running.")

    run_guarded(run)


@command(app, "describe")
async def describe(client: Client, format: FormatOption = Format.TABLE) -> None:
    """Show brokers, their partitions and their metadata lag. List the partitions without a leader
    or with too few in-sync replicas, and how many records each other replica lags.
    """
    cluster = await client.admin.describe_cluster(fenced=True)
    topics = await client.admin.topics.list(internal=True)
    partitions = [(topic.name, p) for topic in topics.values() for p in topic.partitions]
    lags = await _read_metadata_lags(client)
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
    replica_lags = await _find_replica_lags(client, cluster, partitions)
    lacking = [
        {
            "topic": name,
            "partition": p.index,
            "leader": None if p.leader_id < 0 else p.leader_id,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "lag": replica_lags.get((name, p.index), {}),
            "state": "offline" if p.leader_id < 0 else "under-replicated",
        }
        for name, p in partitions
        if p.leader_id < 0 or len(p.isr) < len(p.replicas)
    ]
    if format is not Format.TABLE:
        descriptions = [
            {
                "cluster_id": cluster.cluster_id,
                "controller": cluster.controller_id,
                "brokers": rows,
                "partitions": len(partitions),
                "lacking": lacking,
            }
        ]
        output.print_rows(format, descriptions)
        return
    say(f"Cluster {cluster.cluster_id}, controller {cluster.controller_id}")
    output.print_rows(format, rows, expendable=["rack", "leads", "replicas", "in_sync"])
    say(
        f"\n{len(partitions)} partitions, {sum(r['state'] == 'offline' for r in lacking)} offline,"
        f" {sum(r['state'] != 'offline' for r in lacking)} under-replicated"
    )
    if lacking:
        output.print_rows(format, [_format_lists(row) for row in lacking])


@command(app, "health")
async def health(client: Client, format: FormatOption = Format.TABLE) -> None:
    """Show whether the cluster serves all that it should. The exit code is 1 if it does not."""
    report = await cluster_health.examine(client)
    problems = report.problems
    if format is not Format.TABLE:
        output.print_rows(format, [{"healthy": not problems, **report._asdict()}])
    else:
        leader = report.controller if report.controller >= 0 else "none"
        say(
            f"{'Not healthy' if problems else 'Healthy'}: controller {leader},"
            f" {report.brokers} brokers, {report.partitions} partitions"
        )
    if problems:
        raise CommandError(" ".join(problems))


@command(app, "features")
async def features(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List the finalized features of the cluster, such as share.version, and their levels."""
    levels = await client.admin.features()
    rows = [{"feature": name, "level": level} for name, level in sorted(levels.items())]
    output.print_rows(format, rows, empty="The cluster has no finalized features.")


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
    partitions = None
    if unclean and not topics:
        raise CommandError("--unclean may lose records, so it needs the names of topics.", USAGE)
    if topics:
        descriptions = expect(await client.admin.topics.describe(topics))
        partitions = [
            TopicPartition(name, p.index) for name in topics for p in descriptions[name].partitions
        ]
    results = await client.admin.elect_leaders(partitions, unclean=unclean)
    errors = {
        partition: error
        for partition, error in results.items()
        if error and error.code != ErrorCode.election_not_needed
    }
    elected = sum(error is None for error in results.values())
    say(f"{elected} partitions have another leader.")
    if errors:
        raise CommandError(
            " ".join(f"{partition}: {error}." for partition, error in sorted(errors.items()))
        )


def _format_lists(row: dict[str, Any]) -> dict[str, Any]:
    lists = {name: ",".join(map(str, row[name])) for name in ("replicas", "isr")}
    return row | lists | {"lag": ",".join(f"{id}:{lag}" for id, lag in row["lag"].items())}


async def _find_replica_lags(
    client: Client, cluster: ClusterDescription, partitions: list[tuple[str, PartitionInfo]]
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
            ends[node] = await _read_end_offsets(client, node, keys)
    return {
        key: {
            id: max(0, ends[p.leader_id][key] - ends[id][key])
            for id in p.replicas
            if id not in p.isr and key in ends.get(id, {}) and key in ends.get(p.leader_id, {})
        }
        for key, p in lacking.items()
    }


async def _read_end_offsets(
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


async def _read_metadata_lags(client: Client) -> dict[int, int]:
    """Return each node's lag in metadata records."""
    try:
        quorum = await client.admin.describe_quorum()
    except KafkaError:
        return {}
    end = max((v.log_end_offset for v in quorum.voters), default=0)
    return {r.node_id: end - r.log_end_offset for r in (*quorum.voters, *quorum.observers)}
