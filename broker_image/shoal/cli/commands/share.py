"""`shoal share`: the records in flight of share groups, cancelling, and a pause of delivery.

`redrive` and `skip` are other names of `shoal dlq redrive` and `shoal dlq skip`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.commands import dlq, groups, share_cancel
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, require_shoal, warn
from shoal.cli.terminal import say
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.client import Client
from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.console.sampling import tenants
from shoal.protocol.share import InFlightRecords, InFlightState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PAUSED = "share.delivery.paused"
#: Records that `inspect` lists, and that it counts, by default: a broker knows as many.
_SHOWN_MAX, _COUNTED_MAX = 1_000, 100_000
#: Keys of records that are at most this number of offsets apart are read together.
_NEAR = 1_000


class RecordStateName(StrEnum):
    """The states of records in flight."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ARCHIVING = "archiving"
    BACKING_OFF = "backing-off"
    HOLDS_KEY = "holds-key"
    DELAYED = "delayed"
    BEHIND_KEY = "behind-key"
    BEHIND_LIMIT = "behind-limit"

    @staticmethod
    def from_in_flight(state: InFlightState) -> RecordStateName:
        return RecordStateName[state.name]


class Grouping(StrEnum):
    """What `inspect` counts records by."""

    TENANT = "tenant"


#: The states that `inspect` lists by default. Records in the others wait to be delivered.
_IN_FLIGHT = (
    RecordStateName.ACQUIRED,
    RecordStateName.BACKING_OFF,
    RecordStateName.ARCHIVING,
    RecordStateName.HOLDS_KEY,
)
app = make_app(
    "Show records in flight, cancel records, pause delivery, and redrive dead letters of share"
    " groups."
)


@command(app, "inspect")
async def inspect(
    client: Client,
    group: groups.Id,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:0,1]", help="A topic, or some of its partitions."),
    ],
    state: Annotated[
        list[RecordStateName] | None,
        typer.Option(
            help="List records in this state; may be repeated. Default: those in flight, which are"
            f" {', '.join(_IN_FLIGHT)}."
        ),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            "-n",
            min=1,
            help=f"Show at most this many records. Default: {_SHOWN_MAX}, or {_COUNTED_MAX} with"
            " --by.",
        ),
    ] = None,
    by: Annotated[
        Grouping | None,
        typer.Option(
            help="Count the records of each tenant (share.fairness.by), the busiest first, and"
            " also those that wait."
        ),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys/--no-keys", help="Read the records' keys, which reads the records."),
    ] = True,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show each record in flight: its state, deliveries, member, key, the time until its lock,
    back-off or delay ends, and why it failed last, if a worker said so to the partition's leader.

    States of records in flight: acquired by a member; backing-off after a failed delivery;
    archiving until its dead letter is written; holds-key while its dead letter blocks its key.
    Other records wait: delayed by its producer; behind-key of an earlier record; behind-limit of
    its tenant; available to the next fetch.
    """
    await require_shoal(client, "request for records in flight")
    await groups.require_share_group(client, group)
    partitions = await groups.parse_partitions(client, [topic], "TOPIC")
    states = state or (_IN_FLIGHT if by is None else RecordStateName)
    limit = max_records or (_SHOWN_MAX if by is None else _COUNTED_MAX)
    shown, more = await _list_records(client, group, partitions, frozenset(states), limit)
    if by is Grouping.TENANT:
        if more:
            warn(f"only the first {limit} records are counted. See --max-records.")
        await _print_tenants(client, group, topic, shown, format)
        return
    if more:
        warn(f"there are more records in flight. Show more with --max-records {2 * limit}.")
    record_keys = await _read_keys(client, [(w, o) for w, o, _ in shown]) if keys else {}
    rows = [_make_row(w, offset, entry, record_keys.get((w, offset))) for w, offset, entry in shown]
    columns = ["partition", "offset", "state", "deliveries", "time_left", "member", "key"]
    if any(row["failure"] for row in rows):
        columns.append("failure")
    output.print_rows(
        format,
        rows if format is not Format.TABLE else [_format_cells(row) for row in rows],
        columns,
        empty=f"Group {group} has no such records in flight in {topic}.",
        expendable=["deliveries"],
    )


async def _print_tenants(
    client: Client,
    group: str,
    topic: str,
    shown: Sequence[tuple[TopicPartition, int, InFlightRecords]],
    format: Format,
) -> None:
    """Print the numbers of records by tenant and state."""
    fairness_by = await _read_fairness(client, group)
    header = fairness_by.removeprefix("header:") if fairness_by != "key" else ""
    names = await _read_keys(client, [(w, o) for w, o, _ in shown], header)
    counts: dict[str, Counter[str]] = {}
    for partition, offset, entry in shown:
        name = output.to_text_or_hex(names.get((partition, offset))) or ""
        state = RecordStateName.from_in_flight(entry.state)
        counts.setdefault(name, Counter())[state] += 1
    states = [s for s in RecordStateName if any(s in of_tenant for of_tenant in counts.values())]
    rows: list[dict[str, Any]] = [
        {"tenant": name, "records": of_tenant.total(), **{s: of_tenant[s] for s in states}}
        for name, of_tenant in sorted(counts.items(), key=lambda x: -x[1].total())
    ]
    empty = f"Group {group} has no such records in flight in {topic}."
    output.print_rows(format, rows, ["tenant", "records", *states], empty=empty)


async def _read_fairness(client: Client, group: str) -> str:
    """Return what names the tenants of a group. Raises `CommandError` if nothing does."""
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    configs = expect(await client.admin.configs.describe([resource]))[resource]
    fairness_by = configs[tenants.FAIRNESS_BY].value or "none"
    if fairness_by == "none":
        raise CommandError(
            f"group {group!r} does not tell tenants apart. Set {tenants.FAIRNESS_BY} to key or to"
            " header:NAME."
        )
    return fairness_by


async def _list_records(
    client: Client,
    group: str,
    partitions: Iterable[TopicPartition],
    states: frozenset[RecordStateName],
    records_max: int,
) -> tuple[list[tuple[TopicPartition, int, InFlightRecords]], bool]:
    """Return records in flight in log order, and whether there are more than `records_max`."""
    records: list[tuple[TopicPartition, int, InFlightRecords]] = []
    for partition in partitions:
        start: int | None = 0
        while start is not None:
            page = expect(await client.admin.share_groups.in_flight(group, {partition: start}))[
                partition
            ]
            for entry in page.entries:
                if RecordStateName.from_in_flight(entry.state) not in states:
                    continue
                room = records_max - len(records)
                last = min(entry.last_offset, entry.first_offset + room - 1)
                records += [
                    (partition, offset, entry) for offset in range(entry.first_offset, last + 1)
                ]
                if last < entry.last_offset:
                    return records, True
            start = page.next_offset
    return records, False


async def _read_keys(
    client: Client, records: Sequence[tuple[TopicPartition, int]], header: str = ""
) -> dict[tuple[TopicPartition, int], bytes | None]:
    """Return the keys of records, or the values of a header. Those that cannot be read are left
    out, with a warning."""
    keys: dict[tuple[TopicPartition, int], bytes | None] = {}
    positions = frozenset(records)
    for partition, first, last in _join_ranges(records):
        try:
            async for fetched in client.fetcher.fetch_range(
                partition.topic, partition.partition, first, last
            ):
                for record in fetched.records():
                    if (partition, record.offset) in positions:
                        key = dict(record.headers).get(header) if header else record.key
                        keys[(partition, record.offset)] = key
        except ClientError as error:
            warn(f"the keys of {partition} cannot be read: {error}.")
    return keys


def _join_ranges(
    records: Sequence[tuple[TopicPartition, int]],
) -> list[tuple[TopicPartition, int, int]]:
    """Join offsets that are near each other to ranges."""
    ranges: list[tuple[TopicPartition, int, int]] = []
    for partition, offset in records:
        if ranges and ranges[-1][0] == partition and offset - ranges[-1][2] <= _NEAR:
            ranges[-1] = (partition, ranges[-1][1], offset)
        else:
            ranges.append((partition, offset, offset))
    return ranges


def _make_row(
    partition: TopicPartition, offset: int, entry: InFlightRecords, key: bytes | None
) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": offset,
        "key": output.to_text_or_hex(key),
        "state": RecordStateName.from_in_flight(entry.state),
        "delivery_count": entry.delivery_count,
        "member": entry.member_id or None,
        "failure": entry.failure or None,
        "time_left_ms": None if entry.time_left_ms < 0 else entry.time_left_ms,
    }


def _format_cells(row: dict[str, Any]) -> dict[str, Any]:
    left_ms = row["time_left_ms"]
    time_left = None if left_ms is None else f"{left_ms / 1000:,.1f} s"
    return row | {"deliveries": row["delivery_count"], "time_left": time_left}


Tenant = Annotated[
    str | None,
    typer.Option(help="Only records of this tenant (share.fairness.by). Other tenants go on."),
]


@command(app, "pause")
async def pause(client: Client, group: groups.Id, tenant: Tenant = None) -> None:
    """Stop delivery to a group, or of one tenant. Members keep the records that they hold."""
    await _set_paused(client, group, tenant, paused=True)
    again = f"shoal share resume {group}" + (f" --tenant {shlex.quote(tenant)}" if tenant else "")
    say(
        f"Paused {f'tenant {tenant} of' if tenant else 'delivery to'} group {group}. Members may"
        " still settle and renew the records they hold. Locks still expire. Records that are"
        f" released or expire wait until `{again}`."
    )


@command(app, "resume")
async def resume(client: Client, group: groups.Id, tenant: Tenant = None) -> None:
    """Resume delivery to a group, or of one tenant."""
    await _set_paused(client, group, tenant, paused=False)
    say(f"Resumed {f'tenant {tenant} of' if tenant else 'delivery to'} group {group}.")


async def _set_paused(client: Client, group: str, tenant: str | None, *, paused: bool) -> None:
    config = _PAUSED if tenant is None else tenants.PAUSED
    if tenant is not None and not tenants.is_nameable(tenant):
        raise CommandError(
            f"--tenant cannot be {tenant!r}: a name in {config} has no comma and no blank at its"
            " ends.",
            USAGE,
        )
    await require_shoal(client, f"group config {config}")
    await groups.require_share_group(client, group)
    change = ConfigChange(config, str(paused).lower())
    if tenant is not None:
        await _read_fairness(client, group)
        operation = AlterOperation.APPEND if paused else AlterOperation.SUBTRACT
        change = ConfigChange(config, tenant, operation)
    expect(
        await client.admin.configs.alter(
            {ConfigResource(ConfigResourceType.GROUP, group): [change]}
        )
    )


command(app, "cancel")(share_cancel.cancel)
command(app, "redrive")(dlq.redrive)
command(app, "skip")(dlq.skip)
