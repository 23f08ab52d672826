"""`shoal share`: the records in flight of share groups, and a pause of their delivery.

`redrive` and `skip` are other names of `shoal dlq redrive` and `shoal dlq skip`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import dlq, groups, output, shoal_only
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import ClientError, expect
from shoal.client.groups import SHARE
from shoal.protocol.share import InFlight, InFlightState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PAUSED = "share.delivery.paused"
#: Keys of records that are at most this number of offsets apart are read together.
_NEAR = 1_000


class State(StrEnum):
    """The states of records in flight."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ARCHIVING = "archiving"
    BACKING_OFF = "backing-off"
    HOLDS_KEY = "holds-key"
    DELAYED = "delayed"
    BEHIND_KEY = "behind-key"

    @staticmethod
    def of(state: InFlightState) -> State:
        return State[state.name]


#: The states that `inspect` lists by default. Records in the others wait to be delivered.
_IN_FLIGHT = (State.ACQUIRED, State.BACKING_OFF, State.ARCHIVING, State.HOLDS_KEY)
app = new_app("Show records in flight, pause delivery, and redrive dead letters of share groups.")


@command(app, "inspect")
async def inspect(
    client: Client,
    group: groups.Id,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:0,1]", help="A topic, or some of its partitions."),
    ],
    state: Annotated[
        list[State] | None,
        typer.Option(
            help="List records in this state; may be repeated. Default: those in flight, which are"
            f" {', '.join(_IN_FLIGHT)}."
        ),
    ] = None,
    max_records: Annotated[
        int, typer.Option("--max-records", "-n", min=1, help="Show at most this many records.")
    ] = 1_000,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Read the records' keys, which reads the records."),
    ] = True,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show each record in flight: its state, deliveries, member, key, and the time until its lock,
    back-off or delay ends.

    States of records in flight: acquired by a member; backing-off after a failed delivery;
    archiving until its dead letter is written; holds-key while its dead letter blocks its key.
    Other records wait: delayed by its producer; behind-key of an earlier record; available to the
    next fetch.
    """
    await shoal_only.require(client, "request for records in flight")
    await _require_share_group(client, group)
    where = await groups.partitions(client, [topic], "TOPIC")
    shown, more = await _records(client, group, where, frozenset(state or _IN_FLIGHT), max_records)
    found = await _keys(client, [(w, o) for w, o, _ in shown]) if keys else {}
    rows = [_row(w, offset, entry, found.get((w, offset))) for w, offset, entry in shown]
    columns = ["partition", "offset", "state", "deliveries", "time_left", "member", "key"]
    output.rows(
        format,
        rows if format is Format.JSON else [_cells(row) for row in rows],
        columns,
        empty=f"Group {group} has no such records in flight in {topic}.",
        expendable=["deliveries"],
    )
    if more:
        warn(f"there are more records in flight. Show more with --max-records {2 * max_records}.")


async def _require_share_group(client: Client, group: str) -> None:
    found = expect(await client.admin.groups.describe([group]))[group]
    if found.type != SHARE:
        raise Failed(f"group {group!r} is a {found.type.lower()} group, not a share group.")


async def _records(
    client: Client,
    group: str,
    partitions: Iterable[TopicPartition],
    states: frozenset[State],
    records_max: int,
) -> tuple[list[tuple[TopicPartition, int, InFlight]], bool]:
    """Return records in flight in log order, and whether there are more than `records_max`."""
    found: list[tuple[TopicPartition, int, InFlight]] = []
    for where in partitions:
        start: int | None = 0
        while start is not None:
            page = expect(await client.admin.share_groups.in_flight(group, {where: start}))[where]
            for entry in page.entries:
                if State.of(entry.state) not in states:
                    continue
                room = records_max - len(found)
                last = min(entry.last_offset, entry.first_offset + room - 1)
                found += [(where, offset, entry) for offset in range(entry.first_offset, last + 1)]
                if last < entry.last_offset:
                    return found, True
            start = page.next_offset
    return found, False


async def _keys(
    client: Client, records: Sequence[tuple[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], bytes | None]:
    """Return the keys of records. Those that cannot be read are left out, with a warning."""
    keys: dict[tuple[TopicPartition, int], bytes | None] = {}
    wanted = frozenset(records)
    for where, first, last in _ranges(records):
        try:
            async for fetched in client.fetcher.range(where.topic, where.partition, first, last):
                for record in fetched.records():
                    if (where, record.offset) in wanted:
                        keys[(where, record.offset)] = record.key
        except ClientError as error:
            warn(f"the keys of {where} cannot be read: {error}.")
    return keys


def _ranges(
    records: Sequence[tuple[TopicPartition, int]],
) -> list[tuple[TopicPartition, int, int]]:
    """Join offsets that are near each other to ranges."""
    ranges: list[tuple[TopicPartition, int, int]] = []
    for where, offset in records:
        if ranges and ranges[-1][0] == where and offset - ranges[-1][2] <= _NEAR:
            ranges[-1] = (where, ranges[-1][1], offset)
        else:
            ranges.append((where, offset, offset))
    return ranges


def _row(where: TopicPartition, offset: int, entry: InFlight, key: bytes | None) -> dict[str, Any]:
    return {
        "topic": where.topic,
        "partition": where.partition,
        "offset": offset,
        "key": output.text_or_hex(key),
        "state": State.of(entry.state),
        "delivery_count": entry.delivery_count,
        "member": entry.member_id or None,
        "time_left_ms": None if entry.time_left_ms < 0 else entry.time_left_ms,
    }


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    left_ms = row["time_left_ms"]
    time_left = None if left_ms is None else f"{left_ms / 1000:,.1f} s"
    return row | {"deliveries": row["delivery_count"], "time_left": time_left}


@command(app, "pause")
async def pause(client: Client, group: groups.Id) -> None:
    """Stop delivery to a group. Members keep the records that they hold."""
    await _set_paused(client, group, paused=True)
    say(
        f"Paused delivery to group {group}. Members may still settle and renew the records they"
        " hold. Locks still expire. Records that are released or expire wait until"
        f" `shoal share resume {group}`."
    )


@command(app, "resume")
async def resume(client: Client, group: groups.Id) -> None:
    """Resume delivery to a group."""
    await _set_paused(client, group, paused=False)
    say(f"Resumed delivery to group {group}.")


async def _set_paused(client: Client, group: str, *, paused: bool) -> None:
    await shoal_only.require(client, f"group config {_PAUSED}")
    await _require_share_group(client, group)
    change = ConfigChange(_PAUSED, str(paused).lower())
    expect(await client.admin.configs.alter({Resource(ResourceType.GROUP, group): [change]}))


command(app, "redrive")(dlq.redrive)
command(app, "skip")(dlq.skip)
