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

from shoal.cli import output, replica_plan
from shoal.cli.output import Format, FormatOption
from shoal.cli.prompts import interruptible
from shoal.cli.session import REFUSED, USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client import remedies
from shoal.client.admin import Reassignment
from shoal.client.client import Client
from shoal.client.cluster import Broker, Partition, TopicPartition
from shoal.client.configs import (
    AlterOperation,
    ConfigChange,
    ConfigSource,
    Resource,
    ResourceType,
)
from shoal.client.errors import KafkaError, expect

app = new_app("Move replicas to other brokers: plan, apply, verify, cancel.")

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
    running = await _running(client)
    chosen = _ids(brokers) if brokers else sorted(running)
    _check_brokers(chosen, running)
    current = {where: p.replicas for where, p in (await _partitions(client, topics)).items()}
    racks = {id: broker.rack for id, broker in running.items() if broker.rack}
    hosts = {id: broker.host for id, broker in running.items()}
    try:
        planned = replica_plan.plan(current, chosen, racks, replication_factor, hosts)
    except ValueError as error:
        raise Failed(f"{error}. Name more brokers, or lower --replication-factor.") from None
    moves = sum(list(current[where]) != replicas for where, replicas in planned.items())
    new = sum(len({*replicas} - {*current[where]}) for where, replicas in planned.items())
    say(_text(planned))
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
    wanted = _read(file)
    found = await _partitions(client, {where.topic for where in wanted})
    _check_partitions(wanted, found)
    _check_brokers({id for ids in wanted.values() for id in ids}, await _running(client))
    under_way = await client.admin.reassignments()
    if under_way and not additional:
        raise Failed(
            f"{len(under_way)} partitions are being reassigned already ({_some(under_way)}). Wait"
            " for their end, cancel them, or add --additional."
        )
    current = {where: list(found[where].replicas) for where in wanted}
    say("The plan of the current replicas, to go back:")
    say(_text(current))
    sys.stdout.flush()
    if throttle is not None:
        await _set_throttles(client, current, wanted, throttle)
    errors = {w: e for w, e in (await client.admin.reassign(wanted)).items() if e is not None}
    begun = len(wanted) - len(errors)
    if throttle is not None and not begun:
        await _remove_throttles(client, {where.topic for where in wanted})
    noun = "partition" if begun == 1 else "partitions"
    say(f"Began to reassign {begun} {noun}. `shoal topics reassign verify` shows the progress.")
    if errors:
        raise Failed(" ".join(remedies.remedy(error) for _, error in sorted(errors.items())))


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
    wanted = _read(file)
    under_way = await client.admin.reassignments()
    found = await _partitions(client, {where.topic for where in wanted})
    _check_partitions(wanted, found)
    rows = [_row(where, ids, found[where], under_way) for where, ids in sorted(wanted.items())]
    output.rows(format, rows, expendable=["topic"] if len({w.topic for w in wanted}) == 1 else ())
    if not under_way and not preserve_throttles:
        await _remove_throttles(client, {where.topic for where in wanted})
    unfinished = [row for row in rows if row["state"] != "complete"]
    if unfinished:
        raise Failed(f"{len(unfinished)} of {len(rows)} partitions are not complete.", REFUSED)


@command(app, "cancel")
async def cancel(
    client: Client,
    file: File,
    preserve_throttles: KeepThrottles = False,
) -> None:
    """Cancel the moves of a plan that are under way: replicas stay where they were."""
    wanted = _read(file)
    moving = sorted((await client.admin.reassignments()).keys() & wanted.keys())
    done = await client.admin.reassign(dict.fromkeys(moving)) if moving else {}
    failed = [error for error in done.values() if error is not None]
    noun = "partition" if len(moving) == 1 else "partitions"
    say(f"Cancelled the reassignment of {len(moving) - len(failed)} {noun}.")
    if failed:
        raise Failed(" ".join(map(remedies.remedy, failed)))
    if not preserve_throttles and not await client.admin.reassignments():
        await _remove_throttles(client, {where.topic for where in wanted})


@command(app, "list")
async def list_reassignments(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List the partitions that are being reassigned."""
    rows = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "replicas": list(one.replicas),
            "adding": list(one.adding),
            "removing": list(one.removing),
        }
        for where, one in sorted((await client.admin.reassignments()).items())
    ]
    output.rows(format, rows, empty="No partition is being reassigned.", expendable=["replicas"])


def _row(
    where: TopicPartition,
    wanted: list[int],
    found: Partition,
    under_way: Mapping[TopicPartition, Reassignment],
) -> dict[str, Any]:
    moving = under_way.get(where)
    if moving is not None:
        state = "in progress"
    elif list(found.replicas) != wanted:
        state = "not as planned"
    else:
        state = "complete" if set(found.isr) >= set(wanted) else "not in sync"
    return {
        "topic": where.topic,
        "partition": where.partition,
        "state": state,
        "planned": wanted,
        "replicas": list(found.replicas),
        "isr": list(found.isr),
    }


async def _running(client: Client) -> dict[int, Broker]:
    """Return the brokers that run, by id."""
    cluster = await client.admin.describe_cluster()
    return {broker.node_id: broker for broker in cluster.brokers}


async def _partitions(client: Client, topics: Collection[str]) -> dict[TopicPartition, Partition]:
    found = expect(await client.admin.topics.describe(sorted(topics)))
    return {
        TopicPartition(name, p.index): p for name, topic in found.items() for p in topic.partitions
    }


def _check_partitions(wanted: Plan, found: Mapping[TopicPartition, Partition]) -> None:
    if missing := sorted(wanted.keys() - found.keys()):
        raise Failed(f"the plan has partitions that do not exist: {_some(missing)}.")


def _check_brokers(wanted: Collection[int], running: Collection[int]) -> None:
    if missing := sorted({*wanted} - {*running}):
        raise Failed(f"no such brokers run: {_some(missing)}. Those that run: {_some(running)}.")


def _some(things: Collection[Any]) -> str:
    every = sorted(things)
    more = f" and {len(every) - 5} more" if len(every) > 5 else ""
    return ", ".join(map(str, every[:5])) + more


# Plans as files.


def _text(replicas: Mapping[TopicPartition, Collection[int]]) -> str:
    rows = [
        {"topic": where.topic, "partition": where.partition, "replicas": list(ids)}
        for where, ids in sorted(replicas.items())
    ]
    return json.dumps({"version": 1, "partitions": rows})


def _read(file: Path) -> Plan:
    """Read a plan. Raises `Failed` for a file that is none."""
    try:
        with interruptible():
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
        found = json.loads(text)
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}.", USAGE) from None
    except ValueError as error:
        raise Failed(f"{file} is not JSON: {error}.", USAGE) from None
    if not isinstance(found, dict) or found.get("version") != 1 or not found.get("partitions"):
        raise Failed(f'{file} is not a plan: it needs "version": 1 and "partitions".', USAGE)
    wanted: Plan = {}
    for row in found["partitions"]:
        where, ids = _entry(row, file)
        if where in wanted:
            raise Failed(f"{file} has {where} twice.", USAGE)
        wanted[where] = ids
    return wanted


def _entry(row: Any, file: Path) -> tuple[TopicPartition, list[int]]:
    match row:
        case {"topic": str(topic), "partition": int(index), "replicas": [_, *_] as ids} if all(
            type(id) is int for id in ids
        ) and len(set(ids)) == len(ids):
            return TopicPartition(topic, index), ids
    raise Failed(
        f"{file}: an entry needs topic, partition, and replicas, each broker once; not"
        f" {json.dumps(row)}.",
        USAGE,
    )


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise Failed(f"--brokers must be ids such as 1,2,3, not {text!r}.", USAGE)
    return [int(part) for part in parts]


# Throttles (KIP-73).


async def _set_throttles(client: Client, current: Plan, wanted: Plan, rate: int) -> None:
    """Throttle the replicas that are copied: the current ones as leaders, new ones as followers."""
    topics: dict[str, tuple[list[str], list[str]]] = {}
    for where, ids in sorted(wanted.items()):
        leaders, followers = topics.setdefault(where.topic, ([], []))
        leaders += [f"{where.partition}:{id}" for id in current[where]]
        followers += [f"{where.partition}:{id}" for id in ids if id not in current[where]]
    changes = {
        Resource(ResourceType.TOPIC, topic): [
            ConfigChange(name, ",".join(entries))
            for name, entries in zip(_THROTTLED, lists, strict=True)
            if entries
        ]
        for topic, lists in topics.items()
    }
    brokers = {id for plan in (current, wanted) for ids in plan.values() for id in ids}
    for id in sorted(brokers):
        limits = [ConfigChange(name, str(rate)) for name in _RATES]
        changes[Resource(ResourceType.BROKER, str(id))] = limits
    expect(await client.admin.configs.alter(changes))


async def _remove_throttles(client: Client, topics: Collection[str]) -> None:
    """Remove the throttles of these topics and of all brokers, as far as they are set."""
    brokers = await client.admin.describe_cluster(fenced=True)
    names = {Resource(ResourceType.TOPIC, topic): _THROTTLED for topic in sorted(topics)}
    names |= {Resource(ResourceType.BROKER, str(b.node_id)): _RATES for b in brokers.brokers}
    changes: dict[Resource, list[ConfigChange]] = {}
    for resource, keys in names.items():
        if resource.type is ResourceType.BROKER and int(resource.name) in brokers.fenced:
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
