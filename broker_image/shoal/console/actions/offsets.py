"""The action that moves the positions of a share group without consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import resets
from shoal.client.queues.timestamps import parse_timestamp
from shoal.console import figures
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    ActionContext,
    ActionError,
    ActionPlan,
    ActionResult,
    FormData,
    FormField,
    Table,
    make_hidden_fields,
)
from shoal.console.figures import format_plural

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun

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

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        group = await groups.find_share_group(context.client, form)
        group_positions = await groups.find_positions(context.client, group.group_id)
        topics = sorted({position.partition.topic for position in group_positions})
        if not topics:
            raise ActionError(f"Group {group.group_id} has no positions yet. Nothing is to move.")
        if group.members:
            raise ActionError(
                f"Group {group.group_id} has {format_plural(len(group.members), 'consumer')}. Stop "
                "them first: the positions of a group with consumers cannot be moved."
            )
        return [
            *make_hidden_fields(form, "group"),
            FormField(
                "topic",
                "Topic",
                "select",
                form.get("topic", topics[0]),
                options=tuple((topic, topic) for topic in topics),
            ),
            FormField("partition", "Partition", value=form.get("partition"), help="Empty: all."),
            FormField("to", "Move to", "select", form.get("to", EARLIEST), options=_WAYS),
            FormField(
                "value",
                "Offset, time or number",
                value=form.get("value"),
                help="A time is 2026-01-31T12:00Z, epoch milliseconds, or a period before now such"
                " as 15m, 2h or 7d. A negative number of records moves back.",
            ),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = await groups.find_share_group(context.client, form)
        name = group.group_id
        if group.members:
            raise ActionError(
                f"Group {name} has {format_plural(len(group.members), 'consumer')}. Stop them "
                "first."
            )
        topic = form.require("topic", "The topic")
        topic_metadata = await context.client.cluster.get_topic(topic)
        places = [TopicPartition(topic, p.index) for p in topic_metadata.partitions]
        if form.get("partition").strip():
            index = form.get_number("partition", "The partition", most=2**31 - 1)
            places = [TopicPartition(topic, topic_metadata.get_partition(index).index)]
        current = {p.partition: p.offset for p in await groups.find_positions(context.client, name)}
        try:
            new_offsets = await resets.plan(
                context.client.admin, places, current, _parse_target(form)
            )
        except resets.MissingPositionError as error:
            raise ActionError(
                f"The group has no position in {error.partition}. Choose an offset."
            ) from None
        return _make_plan(
            name, topic, new_offsets, {partition: current.get(partition) for partition in places}
        )


def _parse_target(form: FormData) -> resets.ResetTarget:
    way, text = form.get("to"), form.get("value").strip()
    if way == EARLIEST:
        return resets.ResetTarget(spec=OffsetSpec.EARLIEST)
    if way == LATEST:
        return resets.ResetTarget(spec=OffsetSpec.LATEST)
    if way == OFFSET:
        return resets.ResetTarget(offset=form.get_number("value", "The offset"))
    if way == SHIFT:
        return resets.ResetTarget(
            shift=form.get_number("value", "The number of records", least=-(2**62), most=2**62)
        )
    if way != TIME:
        raise ActionError(
            f"The way must be one of {', '.join(w for w, _ in _WAYS)}, not {way!r:.60}."
        )
    try:
        return resets.ResetTarget(spec=max(0, parse_timestamp(text)))
    except (ValueError, OverflowError) as error:
        raise ActionError(str(error)) from None


def _format_offset(offset: int | None) -> int | str:
    return figures.UNKNOWN if offset is None else offset


def _make_plan(
    group: str,
    topic: str,
    new_offsets: dict[TopicPartition, int],
    current: dict[TopicPartition, int | None],
) -> ActionPlan:
    moves = {
        partition: offset
        for partition, offset in sorted(new_offsets.items())
        if current[partition] != offset
    }
    if not moves:
        raise ActionError("The positions are there already. Nothing is to move.")
    over = sum(max(0, offset - (current[partition] or 0)) for partition, offset in moves.items())
    again = sum(max(0, (current[partition] or 0) - offset) for partition, offset in moves.items())
    sentences = [
        f"{format_plural(len(moves), 'position')} of group {group} in topic {topic}"
        f" {'moves' if len(moves) == 1 else 'move'}."
    ]
    if over:
        sentences.append(f"Up to {format_plural(over, 'record')} are skipped and never delivered.")
    if again:
        sentences.append(
            f"Up to {format_plural(again, 'record')} are delivered again, also those that were "
            "completed."
        )

    async def run(client: Client, _run: ActionRun) -> ActionResult:
        expect(await client.admin.share_groups.alter_offsets(group, moves))
        return ActionResult(
            f"Moved {format_plural(len(moves), 'position')} of group {group} in {topic}."
        )

    rows = tuple(
        (w.partition, _format_offset(current[w]), offset, offset - (current[w] or 0))
        for w, offset in moves.items()
    )
    return ActionPlan(
        ResetOffsets.title,
        tuple(sentences),
        f"Move {format_plural(len(moves), 'position')}",
        {
            "group": group,
            "topic": topic,
            "to": ", ".join(f"{w.partition}@{o}" for w, o in moves.items())[:500],
        },
        groups.make_back_link(group),
        tuple(sorted(current.items())),
        run,
        Table(
            "Positions that move",
            ("Partition", "Start offset", "New start offset", "Moves by"),
            rows[:SHOWN_MAX],
            max(0, len(rows) - SHOWN_MAX),
        ),
    )
