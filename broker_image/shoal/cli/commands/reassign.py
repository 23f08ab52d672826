"""`shoal topics reassign`: move replicas to other brokers, as `kafka-reassign-partitions` does.

Plans are files in the format of Kafka's tool, which reads them too:
`{"version": 1, "partitions": [{"topic": "jobs", "partition": 0, "replicas": [1, 2]}]}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.commands import replica_plan
from shoal.cli.output import Format, FormatOption
from shoal.cli.prompts import interruptible
from shoal.cli.session import REFUSED, USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.admin import Reassignment
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.metadata import BrokerInfo, PartitionInfo
from shoal.monitoring import remedies

app = make_app("Move replicas to other brokers: plan, apply, verify, cancel.")

Plan = dict[TopicPartition, list[int]]
#: Topic configs that name throttled replicas, and broker configs with the rate in bytes per second.
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: Sources of configs that the resource itself has.
_OWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
File = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A file with a plan; - is standard input.")
]
KeepThrottles = Annotated[
    bool, typer.Option("--preserve-throttles", help="Do not remove the throttles.")
]


@command(app, "plan")
async def plan(
    client: Client,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")],
    brokers: Annotated[
        str | None,
        typer.Option(metavar="1,2,3", help="Ids of the brokers to use. Default: all that run."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="Replicas of each partition. Default: as many as it has."),
    ] = None,
) -> None:
    """Print a plan as JSON that spreads topics over brokers and moves few replicas. Nothing
    changes.
    """
    running = await _find_running(client)
    chosen = _parse_ids(brokers) if brokers else sorted(running)
    _check_brokers(chosen, running)
    current = {
        partition: p.replicas
        for partition, p in (await _describe_partitions(client, topics)).items()
    }
    racks = {id: broker.rack for id, broker in running.items() if broker.rack}
    hosts = {id: broker.host for id, broker in running.items()}
    try:
        planned = replica_plan.plan(current, chosen, racks, replication_factor, hosts)
    except ValueError as error:
        raise CommandError(f"{error}. Name more brokers, or lower --replication-factor.") from None
    moves = sum(list(current[partition]) != replicas for partition, replicas in planned.items())
    new = sum(len({*replicas} - {*current[partition]}) for partition, replicas in planned.items())
    say(_to_json(planned))
    warn(f"{moves} of {len(planned)} partitions change, {new} replicas are copied.")


@command(app, "apply")
async def apply(
    client: Client,
    file: File,
    throttle: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="BYTES", help="Bytes per second that each broker may copy. Default: all."
        ),
    ] = None,
    additional: Annotated[
        bool,
        typer.Option("--additional", help="Also while other partitions are being reassigned."),
    ] = False,
) -> None:
    """Begin to move replicas as a plan says, and print the plan that undoes it.

    `verify` removes the throttle at the end.
    """
    planned = _read_plan(file)
    states = await _describe_partitions(client, {partition.topic for partition in planned})
    _check_partitions(planned, states)
    _check_brokers({id for ids in planned.values() for id in ids}, await _find_running(client))
    under_way = await client.admin.reassignments()
    if under_way and not additional:
        raise CommandError(
            f"{len(under_way)} partitions are being reassigned already "
            f"({_format_some(under_way)}). Wait"
            " for their end, cancel them, or add --additional."
        )
    current = {partition: list(states[partition].replicas) for partition in planned}
    say("The plan of the current replicas, to go back:")
    say(_to_json(current))
    sys.stdout.flush()
    if throttle is not None:
        await _set_throttles(client, current, planned, throttle)
    errors = {w: e for w, e in (await client.admin.reassign(planned)).items() if e is not None}
    begun = len(planned) - len(errors)
    if throttle is not None and not begun:
        await _remove_throttles(client, {partition.topic for partition in planned})
    noun = "partition" if begun == 1 else "partitions"
    say(f"Began to reassign {begun} {noun}. `shoal topics reassign verify` shows the progress.")
    if errors:
        raise CommandError(
            " ".join(remedies.format_remedy(error) for _, error in sorted(errors.items()))
        )


@command(app, "verify")
async def verify(
    client: Client,
    file: File,
    preserve_throttles: KeepThrottles = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show how far a plan is, and remove its throttles once nothing is being reassigned. The exit
    code is 1 until all replicas are where the plan says, in sync.
    """
    planned = _read_plan(file)
    under_way = await client.admin.reassignments()
    states = await _describe_partitions(client, {partition.topic for partition in planned})
    _check_partitions(planned, states)
    rows = [
        _make_row(partition, ids, states[partition], under_way)
        for partition, ids in sorted(planned.items())
    ]
    output.print_rows(
        format, rows, expendable=["topic"] if len({w.topic for w in planned}) == 1 else ()
    )
    if not under_way and not preserve_throttles:
        await _remove_throttles(client, {partition.topic for partition in planned})
    unfinished = [row for row in rows if row["state"] != "complete"]
    if unfinished:
        raise CommandError(
            f"{len(unfinished)} of {len(rows)} partitions are not complete.", REFUSED
        )


@command(app, "cancel")
async def cancel(
    client: Client,
    file: File,
    preserve_throttles: KeepThrottles = False,
) -> None:
    """Cancel the moves of a plan that are under way: replicas stay where they were."""
    planned = _read_plan(file)
    moving = sorted((await client.admin.reassignments()).keys() & planned.keys())
    results = await client.admin.reassign(dict.fromkeys(moving)) if moving else {}
    failed = [error for error in results.values() if error is not None]
    noun = "partition" if len(moving) == 1 else "partitions"
    say(f"Cancelled the reassignment of {len(moving) - len(failed)} {noun}.")
    if failed:
        raise CommandError(" ".join(map(remedies.format_remedy, failed)))
    if not preserve_throttles and not await client.admin.reassignments():
        await _remove_throttles(client, {partition.topic for partition in planned})


@command(app, "list")
async def list_reassignments(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List the partitions that are being reassigned."""
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(reassignment.replicas),
            "adding": list(reassignment.adding),
            "removing": list(reassignment.removing),
        }
        for partition, reassignment in sorted((await client.admin.reassignments()).items())
    ]
    output.print_rows(
        format, rows, empty="No partition is being reassigned.", expendable=["replicas"]
    )


def _make_row(
    partition: TopicPartition,
    planned: list[int],
    current: PartitionInfo,
    under_way: Mapping[TopicPartition, Reassignment],
) -> dict[str, Any]:
    moving = under_way.get(partition)
    if moving is not None:
        state = "in progress"
    elif list(current.replicas) != planned:
        state = "not as planned"
    else:
        state = "complete" if set(current.isr) >= set(planned) else "not in sync"
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "state": state,
        "planned": planned,
        "replicas": list(current.replicas),
        "isr": list(current.isr),
    }


async def _find_running(client: Client) -> dict[int, BrokerInfo]:
    """Return the brokers that run, by id."""
    cluster = await client.admin.describe_cluster()
    return {broker.node_id: broker for broker in cluster.brokers}


async def _describe_partitions(
    client: Client, topics: Collection[str]
) -> dict[TopicPartition, PartitionInfo]:
    described = expect(await client.admin.topics.describe(sorted(topics)))
    return {
        TopicPartition(name, p.index): p
        for name, topic in described.items()
        for p in topic.partitions
    }


def _check_partitions(planned: Plan, existing: Mapping[TopicPartition, PartitionInfo]) -> None:
    if missing := sorted(planned.keys() - existing.keys()):
        raise CommandError(f"the plan has partitions that do not exist: {_format_some(missing)}.")


def _check_brokers(broker_ids: Collection[int], running: Collection[int]) -> None:
    if missing := sorted({*broker_ids} - {*running}):
        raise CommandError(
            f"no such brokers run: {_format_some(missing)}. Those that run: "
            f"{_format_some(running)}."
        )


def _format_some(things: Collection[Any]) -> str:
    all_things = sorted(things)
    more = f" and {len(all_things) - 5} more" if len(all_things) > 5 else ""
    return ", ".join(map(str, all_things[:5])) + more


# Plans as files.


def _to_json(replicas: Mapping[TopicPartition, Collection[int]]) -> str:
    rows = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(ids)}
        for partition, ids in sorted(replicas.items())
    ]
    return json.dumps({"version": 1, "partitions": rows})


def _read_plan(file: Path) -> Plan:
    """Read a plan. Raises `CommandError` for a file that is none."""
    try:
        with interruptible():
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
        document = json.loads(text)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}.", USAGE) from None
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}.", USAGE) from None
    if (
        not isinstance(document, dict)
        or document.get("version") != 1
        or not document.get("partitions")
    ):
        raise CommandError(f'{file} is not a plan: it needs "version": 1 and "partitions".', USAGE)
    planned: Plan = {}
    for row in document["partitions"]:
        partition, ids = _parse_entry(row, file)
        if partition in planned:
            raise CommandError(f"{file} has {partition} twice.", USAGE)
        planned[partition] = ids
    return planned


def _parse_entry(row: Any, file: Path) -> tuple[TopicPartition, list[int]]:
    match row:
        case {"topic": str(topic), "partition": int(index), "replicas": [_, *_] as ids} if all(
            type(id) is int for id in ids
        ) and len(set(ids)) == len(ids):
            return TopicPartition(topic, index), ids
    raise CommandError(
        f"{file}: an entry needs topic, partition, and replicas, each broker once; not"
        f" {json.dumps(row)}.",
        USAGE,
    )


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise CommandError(f"--brokers must be ids such as 1,2,3, not {text!r}.", USAGE)
    return [int(part) for part in parts]


# Throttles (KIP-73).


async def _set_throttles(client: Client, current: Plan, planned: Plan, rate: int) -> None:
    """Throttle the replicas that are copied: the current ones as leaders, new ones as followers."""
    topics: dict[str, tuple[list[str], list[str]]] = {}
    for partition, ids in sorted(planned.items()):
        leaders, followers = topics.setdefault(partition.topic, ([], []))
        leaders += [f"{partition.partition}:{id}" for id in current[partition]]
        followers += [f"{partition.partition}:{id}" for id in ids if id not in current[partition]]
    changes = {
        ConfigResource(ConfigResourceType.TOPIC, topic): [
            ConfigChange(name, ",".join(entries))
            for name, entries in zip(_THROTTLED, lists, strict=True)
            if entries
        ]
        for topic, lists in topics.items()
    }
    brokers = {id for plan in (current, planned) for ids in plan.values() for id in ids}
    for id in sorted(brokers):
        limits = [ConfigChange(name, str(rate)) for name in _RATES]
        changes[ConfigResource(ConfigResourceType.BROKER, str(id))] = limits
    expect(await client.admin.configs.alter(changes))


async def _remove_throttles(client: Client, topics: Collection[str]) -> None:
    """Remove the throttles of these topics and of all brokers, as far as they are set."""
    brokers = await client.admin.describe_cluster(fenced=True)
    names = {
        ConfigResource(ConfigResourceType.TOPIC, topic): _THROTTLED for topic in sorted(topics)
    }
    names |= {
        ConfigResource(ConfigResourceType.BROKER, str(b.node_id)): _RATES for b in brokers.brokers
    }
    changes: dict[ConfigResource, list[ConfigChange]] = {}
    for resource, keys in names.items():
        if resource.type is ConfigResourceType.BROKER and int(resource.name) in brokers.fenced:
            continue  # A fenced broker does not answer.
        entries = (await client.admin.configs.describe([resource], keys=list(keys)))[resource]
        if isinstance(entries, KafkaError):
            raise entries
        set_here = [name for name in keys if name in entries and entries[name].source in _OWN]
        if set_here:
            changes[resource] = [
                ConfigChange(name, None, AlterOperation.DELETE) for name in set_here
            ]
    if changes:
        expect(await client.admin.configs.alter(changes))
        warn(f"removed the throttles of {', '.join(map(str, changes))}.")
