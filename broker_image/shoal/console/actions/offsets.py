"""The action that moves the positions of a share group without consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client import resets
from shoal.client.cluster import TopicPartition
from shoal.client.errors import expect
from shoal.client.timestamps import timestamp
from shoal.client.topics import OffsetSpec
from shoal.console import figures
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    Field,
    Given,
    Mistake,
    Plan,
    Result,
    Scene,
    Table,
    hidden,
)
from shoal.console.figures import plural

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.runs import Run

#: Partitions that a plan lists.
SHOWN_MAX = 50
EARLIEST, LATEST, OFFSET, TIME, SHIFT = "earliest", "latest", "offset", "time", "shift"
_WAYS = (
    (EARLIEST, "the start of the log"),
    (LATEST, "the end of the log"),
    (OFFSET, "an offset"),
    (TIME, "a time"),
    (SHIFT, "by a number of records"),
)


class ResetOffsets:
    """Move the start offsets of a group in one topic."""

    name, title = "reset", "Reset offsets"

    async def form(self, scene: Scene, given: Given) -> list[Field]:
        group = await groups.share_group(scene.client, given)
        found = await groups.positions(scene.client, group.group_id)
        topics = sorted({one.where.topic for one in found})
        if not topics:
            raise Mistake(f"Group {group.group_id} has no positions yet. Nothing is to move.")
        if group.members:
            raise Mistake(
                f"Group {group.group_id} has {plural(len(group.members), 'consumer')}. Stop them"
                " first: the positions of a group with consumers cannot be moved."
            )
        return [
            *hidden(given, "group"),
            Field(
                "topic",
                "Topic",
                "select",
                given.one("topic", topics[0]),
                options=tuple((topic, topic) for topic in topics),
            ),
            Field("partition", "Partition", value=given.one("partition"), help="Empty: all."),
            Field("to", "Move to", "select", given.one("to", EARLIEST), options=_WAYS),
            Field(
                "value",
                "Offset, time or number",
                value=given.one("value"),
                help="A time is 2026-01-31T12:00Z, epoch milliseconds, or a period before now such"
                " as 15m, 2h or 7d. A negative number of records moves back.",
            ),
        ]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        group = await groups.share_group(scene.client, given)
        name = group.group_id
        if group.members:
            raise Mistake(
                f"Group {name} has {plural(len(group.members), 'consumer')}. Stop them first."
            )
        topic = given.required("topic", "The topic")
        found = await scene.client.cluster.topic(topic)
        places = [TopicPartition(topic, p.index) for p in found.partitions]
        if given.one("partition").strip():
            index = given.number("partition", "The partition", most=2**31 - 1)
            places = [TopicPartition(topic, found.partition(index).index)]
        current = {p.where: p.offset for p in await groups.positions(scene.client, name)}
        try:
            wanted = await resets.plan(scene.client.admin, places, current, _how(given))
        except resets.NoPosition as error:
            raise Mistake(
                f"The group has no position in {error.where}. Choose an offset."
            ) from None
        return _plan(name, topic, wanted, {where: current.get(where) for where in places})


def _how(given: Given) -> resets.Reset:
    way, text = given.one("to"), given.one("value").strip()
    if way == EARLIEST:
        return resets.Reset(spec=OffsetSpec.EARLIEST)
    if way == LATEST:
        return resets.Reset(spec=OffsetSpec.LATEST)
    if way == OFFSET:
        return resets.Reset(offset=given.number("value", "The offset"))
    if way == SHIFT:
        return resets.Reset(
            shift=given.number("value", "The number of records", least=-(2**62), most=2**62)
        )
    if way != TIME:
        raise Mistake(f"The way must be one of {', '.join(w for w, _ in _WAYS)}, not {way!r:.60}.")
    try:
        return resets.Reset(spec=max(0, timestamp(text)))
    except (ValueError, OverflowError) as error:
        raise Mistake(str(error)) from None


def _offset(offset: int | None) -> int | str:
    return figures.UNKNOWN if offset is None else offset


def _plan(
    group: str,
    topic: str,
    wanted: dict[TopicPartition, int],
    current: dict[TopicPartition, int | None],
) -> Plan:
    moves = {where: at for where, at in sorted(wanted.items()) if current[where] != at}
    if not moves:
        raise Mistake("The positions are there already. Nothing is to move.")
    over = sum(max(0, at - (current[where] or 0)) for where, at in moves.items())
    again = sum(max(0, (current[where] or 0) - at) for where, at in moves.items())
    sentences = [
        f"{plural(len(moves), 'position')} of group {group} in topic {topic}"
        f" {'moves' if len(moves) == 1 else 'move'}."
    ]
    if over:
        sentences.append(f"Up to {plural(over, 'record')} are skipped and never delivered.")
    if again:
        sentences.append(
            f"Up to {plural(again, 'record')} are delivered again, also those that were completed."
        )

    async def run(client: Client, _run: Run) -> Result:
        expect(await client.admin.share_groups.alter_offsets(group, moves))
        return Result(f"Moved {plural(len(moves), 'position')} of group {group} in {topic}.")

    rows = tuple(
        (w.partition, _offset(current[w]), at, at - (current[w] or 0)) for w, at in moves.items()
    )
    return Plan(
        ResetOffsets.title,
        tuple(sentences),
        f"Move {plural(len(moves), 'position')}",
        {
            "group": group,
            "topic": topic,
            "to": ", ".join(f"{w.partition}@{o}" for w, o in moves.items())[:500],
        },
        groups.back_to(group),
        tuple(sorted(current.items())),
        run,
        Table(
            "Positions that move",
            ("Partition", "Start offset", "New start offset", "Moves by"),
            rows[:SHOWN_MAX],
            max(0, len(rows) - SHOWN_MAX),
        ),
    )
