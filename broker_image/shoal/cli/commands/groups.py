"""`shoal groups`: groups of every type, their members and positions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from shoal.cli import output, timestamps
from shoal.cli.group_names import AllGroups, select_groups
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.admin import Admin
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.groups import CLASSIC, SHARE, STREAMS, TYPES, GroupDescription
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag, resets, skipped_records
from shoal.client.queues.gaps import Gap, find_gaps
from shoal.client.queues.held_keys import HeldKey, find_held_keys
from shoal.client.queues.key_range_owners import RangeOwner, find_group_owners, select_sharing
from shoal.monitoring import delays, remedies, scrape, stop_reasons
from shoal.protocol.errors import ErrorCode

#: Number of held keys that `describe` prints.
HELD_SHOWN = 20
#: Number of owners of key ranges that `describe` prints.
OWNERS_SHOWN = 50
#: Number of partitions with a gap that `describe` prints.
GAPS_SHOWN = 20
app = make_app("List, describe, reset and delete groups; show their lag.")

Id = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
Ids = Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of groups.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT",
        help="A broker's metrics listener, for records in flight; https://HOST:PORT with TLS."
        " Default: the listeners that the brokers report.",
    ),
]


@command(app, "list")
async def list_groups(
    client: Client,
    type: Annotated[
        str | None, typer.Option(metavar="classic|consumer|share|streams", help="Only this type.")
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only groups in this state.")
    ] = None,
    all_: AllGroups = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List groups with type and state."""
    if type is not None and type.capitalize() not in TYPES:
        raise CommandError(
            f"--type must be classic, consumer, share or streams, not {type!r}.", USAGE
        )
    groups = await client.admin.groups.list(
        types=[type.lower()] if type else (), states=[state] if state else ()
    )
    rows = [
        {"group": g.group_id, "type": g.type, "state": g.state, "coordinator": g.coordinator}
        for g in select_groups(groups, show_all=all_).values()
    ]
    output.print_rows(format, rows, empty="There are no groups.")


@command(app, "lag")
async def show_lag(
    client: Client,
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="GROUP", help="Ids of groups. Default: all groups."),
    ] = None,
    metrics: Metrics = None,
    all_: AllGroups = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show each group's members, lag and records in flight, one line per group."""
    admin = client.admin
    if groups:
        described = expect(await admin.groups.describe(groups))
    else:
        listed = select_groups(await admin.groups.list(), show_all=all_)
        results = await admin.groups.describe(listed)
        described = {
            g: description
            for g, description in results.items()
            if isinstance(description, GroupDescription)
        }
    positions = await lag.find_positions(
        admin, {g: description.type for g, description in described.items()}
    )
    numbers = await read_numbers(admin, described, metrics)
    rows = [
        {
            "group": group,
            "type": description.type,
            "state": description.state,
            "members": len(description.members),
            "lag": lag.sum_lags(positions.get(group, ())),
            "in_flight": share.in_flight
            if (share := _find_share_numbers(numbers, description, positions.get(group, ())))
            else None,
        }
        for group, description in described.items()
    ]
    output.print_rows(
        format, rows, empty="There are no groups.", expendable=["type", "members", "state"]
    )


async def read_numbers(
    admin: Admin, groups: Mapping[str, GroupDescription], metrics: list[str] | None
) -> scrape.ShareGroupMetrics | None:
    """Read the brokers' metrics if one of these groups is a share group."""
    if any(g.type == SHARE for g in groups.values()):
        return await scrape.read_numbers(admin, metrics, warn)
    return None


def _find_share_numbers(
    numbers: scrape.ShareGroupMetrics | None,
    group: GroupDescription,
    positions: Iterable[lag.Position],
) -> scrape.ShareNumbers | None:
    """Return the numbers of a share group, or None if the brokers do not report them (yet)."""
    if numbers is None or group.type != SHARE:
        return None
    if not delays.is_known(group.group_id, positions, numbers.partitions):
        return None
    return numbers.groups.get(group.group_id, scrape.ShareNumbers())


@command(app, "describe")
async def describe(
    client: Client,
    groups: Ids,
    metrics: Metrics = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the members with their partitions, and the position and lag in each partition."""
    admin = client.admin
    described = expect(await admin.groups.describe(groups))
    positions = await lag.find_positions(
        admin, {g: description.type for g, description in described.items()}
    )
    numbers = await read_numbers(admin, described, metrics)
    paused = await scrape.find_paused_groups(admin, described.values())
    keys_by_group = {
        group: await find_held_keys(client, group_positions)
        for group, group_positions in positions.items()
    }
    owned = await find_group_owners(admin, described.values(), positions)
    if format is not Format.TABLE:
        output.print_rows(
            format,
            [
                _to_json(
                    description,
                    group_positions := positions.get(g, []),
                    _find_share_numbers(numbers, description, group_positions),
                )
                | {
                    "paused": g in paused,
                    "held_keys": [key.to_row() for key in keys_by_group.get(g, ())],
                    "gaps": [gap.to_row() for gap in find_gaps(owned.get(g, ()))],
                    "key_ranges": [owner.to_row() for owner in select_sharing(owned.get(g, ()))],
                }
                for g, description in described.items()
            ],
        )
        return
    for index, (group, description) in enumerate(described.items()):
        if index:
            say()
        group_positions = positions.get(group, [])
        share = _find_share_numbers(numbers, description, group_positions)
        _print_group(
            description, group_positions, share, paused=group in paused, reports=numbers is not None
        )
        await _print_skipped(admin, description, group_positions, share)
        if keys_by_group.get(group):
            await _print_held(client, group, keys_by_group[group])
        _print_owners(select_sharing(owned.get(group, ())))
        _print_gaps(find_gaps(owned.get(group, ())))


def _print_owners(range_owners: list[RangeOwner]) -> None:
    """Print who shares partitions by key ranges, the lowest position of each partition first."""
    if not range_owners:
        return
    say("\nPartitions shared by key ranges:")
    columns = ["topic", "partition", "member", "share", "position", "lag"]
    columns += ["finished_above_stable", "holds_stable"]
    output.print_table([owner.to_row() for owner in range_owners[:OWNERS_SHOWN]], columns)
    if len(range_owners) > OWNERS_SHOWN:
        say(f"... and {len(range_owners) - OWNERS_SHOWN} more. --format json shows all.")


def _print_gaps(lowest_gaps: list[Gap]) -> None:
    """Print the unfinished records below finished ones, the oldest gap first."""
    if not lowest_gaps:
        return
    say("\nUnfinished records below finished ones (individual commits):")
    columns = ["topic", "partition", "gap", "age_s", "finished_above", "ranges", "member"]
    output.print_table([gap.to_row() for gap in lowest_gaps[:GAPS_SHOWN]], columns)
    if len(lowest_gaps) > GAPS_SHOWN:
        say(f"... and {len(lowest_gaps) - GAPS_SHOWN} more. --format json shows all.")


def _to_json(
    group: GroupDescription, positions: list[lag.Position], share: scrape.ShareNumbers | None
) -> dict[str, Any]:
    described = {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "lag": lag.sum_lags(positions),
        "in_flight": share.in_flight if share else None,
        "members": _make_member_rows(group),
        "partitions": _make_position_rows(group, positions),
    }
    if share is not None:
        described |= {
            "backing_off": share.backing_off,
            "archiving": share.archiving,
            "held_by_key": share.held_by_key,
            "delayed": share.delayed,
            "behind_limits": share.behind_limits,
            "keys_held_by_dead_letters": share.keys_held,
            "dead_lettered": share.dead_lettered,
            "redriven": share.redriven,
            "dropped": share.dropped,
            "header_failures": share.header_failures,
            "oldest_lock_age_s": share.oldest_lock_age_s,
            "held": sorted(share.stop_reasons),
        }
    return described


async def _print_held(client: Client, group: str, keys: list[HeldKey]) -> None:
    """Print the keys that dead-lettered records hold, and the commands that release them."""
    config = await client.admin.configs.describe([ConfigResource(ConfigResourceType.GROUP, group)])
    entries = next(iter(config.values()))
    name = "errors.deadletterqueue.topic.name"
    topic = None if isinstance(entries, KafkaError) or name not in entries else entries[name].value
    is_single = len(keys) == 1
    noun = "record holds its key" if is_single else "records hold their keys"
    pronoun = "it" if is_single else "them"
    say(
        f"\n{len(keys)} dead-lettered {noun} (share.ordering.key.dead.letter=hold). "
        f"`shoal dlq redrive {topic or 'TOPIC'} --group {group}` redrives {pronoun}. "
        f"`shoal dlq skip {group} --key KEY` releases the key without {pronoun}."
    )
    say()
    rows = [key.to_row() for key in keys[:HELD_SHOWN]]
    output.print_table(rows, ["topic", "partition", "offset", "key"])
    if len(keys) > HELD_SHOWN:
        say(f"... and {len(keys) - HELD_SHOWN} more. --format json shows all.")


def _format_numbers(share: scrape.ShareNumbers) -> list[str]:
    """Return a share group's numbers other than 0, as text."""
    counts = {
        "backing off": share.backing_off,
        "delayed": share.delayed,
        "held by key": share.held_by_key,
        "behind limits of tenants": share.behind_limits,
        "waiting for a dead letter": share.archiving,
        f"{'key' if share.keys_held == 1 else 'keys'} held by dead letters": share.keys_held,
        "dead-lettered": share.dead_lettered,
        "redriven": share.redriven,
        "dropped without a dead letter": share.dropped,
        "delivered although their headers are invalid": share.header_failures,
    }
    words = [f"{count} {label}" for label, count in counts.items() if count]
    if share.oldest_lock_age_s:
        words.append(f"oldest lock {share.oldest_lock_age_s:.0f} s")
    return words


def _print_group(
    group: GroupDescription,
    positions: list[lag.Position],
    share: scrape.ShareNumbers | None,
    *,
    paused: bool,
    reports: bool,
) -> None:
    """`reports` is whether any broker reports metrics."""
    total = lag.sum_lags(positions)
    facts = [group.type, group.state, f"lag {output.format_cell(total)}"]
    if share is not None:
        facts += [f"{share.in_flight} in flight", *_format_numbers(share)]
    elif reports and group.type == SHARE:
        facts.append("in flight and delayed not known yet")
    if group.assignor:
        facts.append(f"assignor {group.assignor}")
    facts.append(f"coordinator {group.coordinator}")
    say(f"{group.group_id}   {', '.join(facts)}")
    stops = share.stop_reasons if share else frozenset()
    for why in sorted(stops | {"paused"} if paused else stops):
        say(stop_reasons.format_sentence(why, group.group_id))
    if share is not None and delays.is_only_delayed(total, share):
        say(delays.describe(share, time.time_ns() // 1_000_000))
    if positions:
        offset = "start_offset" if group.type == SHARE else "committed_offset"
        columns = ["topic", "partition", offset, "log_end_offset", "lag"]
        columns += [] if group.type == SHARE else ["member"]
        say()
        output.print_table(
            _make_position_rows(group, positions), columns, expendable=["log_end_offset", offset]
        )
    if group.members:
        say()
        member_columns = ["tasks", "standby_tasks"] if group.type == STREAMS else ["partitions"]
        output.print_table(
            _make_member_rows(group),
            ["member", "client", "host", *member_columns],
            expendable=["host", "client"],
        )
    else:
        say("\nThe group has no members.")


async def _print_skipped(
    admin: Admin,
    group: GroupDescription,
    positions: list[lag.Position],
    share: scrape.ShareNumbers | None,
) -> None:
    """Print how many records are before the start of a share group that has not worked yet, as far
    as one can see."""
    has_worked = share is not None and share.acquired
    if group.type != SHARE or has_worked or lag.sum_lags(positions):
        return
    starts = await skipped_records.read_log_starts(
        admin, [p.partition for p in positions if p.offset]
    )
    for topic, count in skipped_records.count_before(starts, positions).items():
        say(f"\n{skipped_records.say_perhaps_left_behind(group.group_id, topic, count)}")


def _make_position_rows(
    group: GroupDescription, positions: list[lag.Position]
) -> list[dict[str, Any]]:
    members = {p: m.member_id for m in group.members for p in m.assignment}
    shared = Counter(p for m in group.members for p in m.key_ranges)
    members |= {p: f"shared by {count}" for p, count in shared.items()}
    name = "start_offset" if group.type == SHARE else "committed_offset"
    rows: list[dict[str, Any]] = []
    for position in positions:
        row = {
            "topic": position.partition.topic,
            "partition": position.partition.partition,
            name: position.offset,
            "log_end_offset": position.log_end_offset,
            "lag": position.lag,
        }
        if group.type != SHARE:
            row["member"] = members.get(position.partition)
        rows.append(row)
    return rows


def _make_member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "member": m.member_id,
            "client": m.client_id,
            "host": m.client_host.lstrip("/"),
            "partitions": [str(p) for p in m.assignment],
            **(
                {"tasks": m.tasks, "standby_tasks": m.standby_tasks}
                if group.type == STREAMS
                else {}
            ),
        }
        for m in sorted(group.members, key=lambda m: m.member_id)
    ]


ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="Move to the start of the log.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="Move to the end of the log.")]
ToOffset = Annotated[int | None, typer.Option(metavar="OFFSET", help="Move to this offset.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Move to the first record at or after a time."),
]
ByDuration = Annotated[
    str | None,
    typer.Option(metavar="15m|2h|7d", help="Move to the first record of this last period."),
]
ShiftBy = Annotated[
    int | None, typer.Option(metavar="N", help="Move by N records; negative moves back.")
]
ResetType = Annotated[
    str | None,
    typer.Option(
        metavar="classic|share", help="Create the group with this type if it does not exist."
    ),
]
Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the plan. Without this it is only shown.")
]


@command(app, "reset-offsets")
async def reset_offsets(
    client: Client,
    group: Id,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions."
        ),
    ],
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    type: ResetType = None,
    execute: Execute = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Move the positions of a group without members, for every type of group."""
    time = by_duration or to_datetime
    chosen = [to_earliest, to_latest, to_offset is not None, time is not None, shift_by is not None]
    if sum(chosen) != 1:
        raise CommandError(
            "use exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime, "
            "--by-duration and --shift-by.",
            USAGE,
        )
    admin = client.admin
    if by_duration is not None and timestamps.parse_duration_ms(by_duration) is None:
        raise CommandError(
            f"--by-duration must be like 15m, 2h, 7d or PT15M, not {by_duration!r}.", USAGE
        )
    kind, members = await _find_kind_to_reset(admin, group, type)
    places = await parse_partitions(client, topic)
    current = {
        p.partition: p.offset for p in (await lag.find_positions(admin, {group: kind}))[group]
    }
    if time is not None:
        target = resets.ResetTarget(spec=timestamps.parse_timestamp(time))
    elif to_offset is not None:
        target = resets.ResetTarget(offset=to_offset)
    elif shift_by is not None:
        target = resets.ResetTarget(shift=shift_by)
    else:
        target = resets.ResetTarget(spec=OffsetSpec.EARLIEST if to_earliest else OffsetSpec.LATEST)
    try:
        plan = await resets.plan(admin, places, current, target)
    except resets.MissingPositionError as error:
        raise CommandError(
            f"group {group!r} has no position in {error.partition}. Use --to-offset, not "
            "--shift-by."
        ) from None
    output.print_rows(format, _make_plan_rows(plan, current))
    if not execute:
        if format is Format.TABLE:
            say("\nNothing has changed. Add --execute to apply the plan.")
        return
    if members:
        raise CommandError(f"group {group!r} has {members} members. Stop them first.")
    change = admin.share_groups.alter_offsets if kind == SHARE else admin.groups.alter_offsets
    expect(await change(group, plan))


def _make_plan_rows(
    plan: Mapping[TopicPartition, int], current: Mapping[TopicPartition, int | None]
) -> list[dict[str, Any]]:
    return [
        {"topic": p.topic, "partition": p.partition, "offset": current.get(p), "new_offset": o}
        for p, o in sorted(plan.items())
    ]


async def _find_kind_to_reset(admin: Admin, group: str, type: str | None) -> tuple[str, int]:
    """Return `_find_kind`, or `type` if the group does not exist."""
    if type is not None and type.capitalize() not in (CLASSIC, SHARE):
        raise CommandError(f"--type must be classic or share, not {type!r}.", USAGE)
    expected_kind = None if type is None else type.capitalize()
    try:
        kind, members = await _find_kind(admin, group)
    except KafkaError as error:
        if error.code != ErrorCode.group_id_not_found:
            raise
        if expected_kind is None:
            raise CommandError(
                f"there is no group {group!r}. To create it with these offsets, add --type share,"
                " or --type classic for a consumer group."
            ) from None
        return expected_kind, 0
    if expected_kind not in (None, kind):
        raise CommandError(f"group {group!r} is a {kind.lower()} group, not a {type} group.")
    return kind, members


async def _find_kind(admin: Admin, group: str) -> tuple[str, int]:
    """Return the group's type and its number of members. Raises GROUP_ID_NOT_FOUND."""
    described = (await admin.groups.describe([group]))[group]
    if isinstance(described, GroupDescription):
        if described.type != SHARE and described.state == "Dead":
            return await _find_listed_kind(admin, group), 0
        return described.type, len(described.members)
    if described.code != ErrorCode.group_id_not_found:
        raise described
    return await _find_listed_kind(admin, group), 0


async def _find_listed_kind(admin: Admin, group: str) -> str:
    listed = await admin.groups.list()
    if group not in listed:
        raise KafkaError(ErrorCode.group_id_not_found, f"there is no group {group!r}")
    return listed[group].type


async def parse_partitions(
    client: Client, words: list[str], option: str = "--topic"
) -> list[TopicPartition]:
    """Return the existing partitions of `topic` or `topic:0,1`, the value of an option."""
    parsed: list[TopicPartition] = []
    for word in words:
        name, colon, numbers = word.partition(":")
        topic = await client.cluster.get_topic(name)
        indexes = [p.index for p in topic.partitions]
        if colon:
            if not all(n.isdigit() for n in numbers.split(",")):
                raise CommandError(f"{option} must be TOPIC or TOPIC:0,1, not {word!r}.", USAGE)
            indexes = [topic.get_partition(int(n)).index for n in numbers.split(",")]
        parsed += [TopicPartition(name, i) for i in indexes]
    return parsed


async def require_share_group(client: Client, group: str) -> None:
    """Raise `CommandError` for a group of another type, and `KafkaError` if there is none."""
    description = expect(await client.admin.groups.describe([group]))[group]
    if description.type != SHARE:
        raise CommandError(
            f"group {group!r} is a {description.type.lower()} group, not a share group."
        )


@command(app, "delete-offsets")
async def delete_offsets(
    client: Client,
    group: Id,
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", help="Delete the positions in this topic.")
    ],
) -> None:
    """Delete a group's positions in topics, for every type of group."""
    admin = client.admin
    kind, _ = await _find_kind(admin, group)
    if kind == SHARE:
        expect(await admin.share_groups.delete_offsets(group, topic))
    else:
        committed = expect(await admin.groups.offsets([group]))[group]
        expect(await admin.groups.delete_offsets(group, [p for p in committed if p.topic in topic]))
    say(f"Deleted the positions of group {group} in {', '.join(topic)}.")


@command(app, "delete")
async def delete(client: Client, groups: Ids) -> None:
    """Delete groups without members and all their positions."""
    failures = []
    for group, error in (await client.admin.groups.delete(groups)).items():
        if error is None:
            say(f"Deleted group {group}.")
        else:
            failures.append(error)
    if failures:
        raise CommandError(" ".join(map(remedies.format_remedy, failures)))
