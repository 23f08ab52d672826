"""The action that cancels records of a share group, as `shoal share cancel` does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.net.cluster import TopicPartition
from shoal.client.queues.cancellations import (
    CancelReport,
    RecordMatch,
    cancel_offsets,
    find_matching,
)
from shoal.client.queues.timestamps import parse_timestamp
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
from shoal.protocol.features import CANCELLED_MAX
from shoal.protocol.share import CancelOutcome
from shoal.record.dedup_ids import DEDUP_ID
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun

#: Seconds in which the records of a plan must be found, and the records of one action.
FIND_S, RECORDS_MAX = 30.0, 100_000
ID, KEY, HEADER, OFFSETS = "id", "key", "header", "offsets"
_WAYS = (
    (ID, f"an id (header {DEDUP_ID})"),
    (KEY, "a key"),
    (HEADER, "a header, NAME=VALUE"),
    (OFFSETS, "these offsets, PARTITION:3-7,9"),
)
#: What the result says of each outcome.
_TEXTS = {
    CancelOutcome.CANCELLED: "cancelled",
    CancelOutcome.IN_FLIGHT: "marked while a consumer holds them",
    CancelOutcome.DONE: "done before",
    CancelOutcome.NOT_FOUND: "not in the log",
}


class Cancel:
    """Cancel the records of a topic with an id, a key or a header, or at some offsets."""

    name, title = "cancel", "Cancel records"

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        group = (await groups.find_share_group(context.client, form)).group_id
        group_positions = await groups.find_positions(context.client, group)
        topics = sorted({position.partition.topic for position in group_positions})
        if not topics:
            raise ActionError(f"Group {group} has no positions yet. Nothing is to cancel.")
        return [
            *make_hidden_fields(form, "group"),
            FormField(
                "topic",
                "Topic",
                "select",
                form.get("topic", topics[0]),
                options=tuple((topic, topic) for topic in topics),
            ),
            FormField("by", "Records with", "select", form.get("by", ID), options=_WAYS),
            FormField("value", "Its text", value=form.get("value"), is_required=True),
            FormField(
                "before",
                "Produced before",
                value=form.get("before"),
                help="2026-01-31T12:00Z, epoch milliseconds, or a period before now such as 15m."
                " Empty: any time.",
            ),
            FormField("letters", "Write a dead letter of each", "check", form.get("letters")),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = (await groups.find_share_group(context.client, form)).group_id
        topic = form.require("topic", "The topic")
        if form.get("by") == OFFSETS:
            matches = await _parse_offsets(context, group, topic, form)
        else:
            matches = await _find(context, group, topic, _parse_match(form))
        count = sum(len(offsets) for offsets in matches.values())
        if not count:
            raise ActionError(f"{topic} has no such records for group {group}.")
        letters = form.is_set("letters")
        return ActionPlan(
            self.title,
            (
                f"{format_plural(count, 'record')} of {topic} {'is' if count == 1 else 'are'}"
                f" cancelled for group {group}. Other groups still get them.",
                "A consumer that holds such a record may still finish it. It is not delivered"
                " again.",
                "Each gets a dead letter." if letters else "They get no dead letter.",
            ),
            f"Cancel {format_plural(count, 'record')}",
            {"group": group, "topic": topic, "by": form.get("by"), "records": str(count)},
            groups.make_back_link(group),
            tuple((place, str(offsets)) for place, offsets in matches.items()),
            lambda client, run: _cancel(client, run, group, matches, letters=letters),
            Table(
                "Records that are cancelled",
                ("Partition", "Records"),
                tuple((place.partition, len(offsets)) for place, offsets in matches.items()),
            ),
        )


def _parse_match(form: FormData) -> RecordMatch:
    """Return what selects the records. Raises `ActionError`."""
    way, value = form.get("by", ID), form.require("value", "The id, key or header")
    before_ms = None
    if text := form.get("before").strip():
        try:
            before_ms = parse_timestamp(text)
        except (ValueError, OverflowError) as error:
            raise ActionError(str(error)) from None
    if way == ID:
        return RecordMatch.from_id(value)._replace(before_ms=before_ms)
    if way == KEY:
        return RecordMatch(key=value.encode(errors="replace"), before_ms=before_ms)
    name, sign, text = value.partition("=")
    if way != HEADER or not name or not sign:
        raise ActionError(f"A header must be NAME=VALUE, not {value!r:.60}.")
    return RecordMatch(header=(name, text.encode(errors="replace")), before_ms=before_ms)


async def _parse_offsets(
    context: ActionContext, group: str, topic: str, form: FormData
) -> dict[TopicPartition, OffsetSet]:
    """Return the offsets of a form. Raises `ActionError`."""
    value = form.require("value", "The offsets")
    if form.get("before").strip():
        raise ActionError(
            "Offsets are cancelled whenever they were produced. Leave the time empty."
        )
    index, _, text = value.partition(":")
    try:
        place, offsets = TopicPartition(topic, int(index)), OffsetSet.parse(text)
        count = len(offsets)
    except (ValueError, OverflowError):
        count = 0
    if not count:
        raise ActionError(f"Offsets must be PARTITION:OFFSETS, such as 0:3-7,9, not {value!r:.60}.")
    if place not in {
        position.partition for position in await groups.find_positions(context.client, group)
    }:
        raise ActionError(f"Group {group} does not read partition {place.partition} of {topic}.")
    if count > RECORDS_MAX:
        raise ActionError(_say_too_large(group, topic))
    return {place: offsets}


async def _find(
    context: ActionContext, group: str, topic: str, match: RecordMatch
) -> dict[TopicPartition, OffsetSet]:
    """Return the records that match, as far as the person may see them. Raises `ActionError`."""
    matches: dict[TopicPartition, OffsetSet] = {}
    count, masks = 0, context.view.masks
    try:
        async with asyncio.timeout(FIND_S):
            for partition in (await context.client.cluster.get_topic(topic)).partitions:
                place = TopicPartition(topic, partition.index)
                async for offsets in find_matching(
                    context.client,
                    group,
                    place,
                    lambda record: match.matches(masks.mask_record(topic, record)),
                ):
                    count += len(offsets)
                    if count > RECORDS_MAX:
                        raise ActionError(_say_too_large(group, topic))
                    for offset in offsets:
                        matches.setdefault(place, OffsetSet()).add(offset)
    except TimeoutError:
        raise ActionError(_say_too_large(group, topic)) from None
    return matches


def _say_too_large(group: str, topic: str) -> str:
    return (
        f"The console does not find the records within {FIND_S:.0f} s, or there are more than"
        f" {RECORDS_MAX:,}. Use `shoal share cancel {group} {topic}`."
    )


async def _cancel(
    client: Client,
    run: ActionRun,
    group: str,
    matches: dict[TopicPartition, OffsetSet],
    *,
    letters: bool,
) -> ActionResult:
    report = CancelReport(0)
    run.total = sum(len(offsets) for offsets in matches.values())
    for place, offsets in matches.items():
        every = list(offsets)
        for begin in range(0, len(every), CANCELLED_MAX):
            run.check()
            chunk = every[begin : begin + CANCELLED_MAX]
            await cancel_offsets(client, group, place, chunk, report, dead_letter=letters)
            run.done, run.text = report.total, _format_counts(report)
    return ActionResult(f"Records of group {group}: {_format_counts(report)}.")


def _format_counts(report: CancelReport) -> str:
    counts = report.counts
    return ", ".join(f"{counts[o]:,} {text}" for o, text in _TEXTS.items() if counts[o])
