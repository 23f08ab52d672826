"""Actions on dead letters: send them back, send one back edited, delete them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
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
from shoal.console.actions.records import FORMATS, HEX, NULL, TEXT, format_size, parse_payload
from shoal.console.figures import format_plural
from shoal.console.reading import dead_letters
from shoal.console.reading.payloads import MaskedPayload
from shoal.console.render import make_link
from shoal.dead_letters import dead_letter_topics
from shoal.dead_letters.records import REASONS, DeadLetter, DeadLetterFilter
from shoal.dead_letters.redrive import RecordEdit, Redrive, RedriveResult
from shoal.dead_letters.redrive import RedrivePlan as RedrivePlan
from shoal.dead_letters.redrive_ledger import count_redriven
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun

#: Letters per second, unless the person chooses another rate.
RATE, RATE_MAX = 100, 10_000
#: Seconds in which the letters of a plan must be counted.
COUNT_S = 30.0
#: Bytes of a key or a value that can be edited.
EDITED_BYTES_MAX = 256 << 10
#: The value of `only` if the person wants chosen letters.
CHOSEN = "chosen"
_RATE = FormField(
    "rate",
    "Letters per second, at most",
    "number",
    str(RATE),
    "A low rate protects consumers that have just recovered.",
    is_required=True,
)
_AGAIN = FormField("again", "Also letters that were sent back before", "check")


def _require_topic(form: FormData) -> str:
    return form.require("topic", "The dead-letter topic")


def _make_back_link(topic: str) -> tuple[str, str]:
    return make_link("letters", topic=topic), f"Dead letters in {topic}"


class RedriveDeadLetters:
    """Send letters back to their topics: chosen ones, those of a filter, or all."""

    name, title = "redrive", "Send dead letters back"

    async def build_fields(self, _scene: ActionContext, form: FormData) -> list[FormField]:
        _require_topic(form)
        if not _parse_chosen(form) and form.get("only") == CHOSEN:
            raise ActionError("No letter is chosen. Check the boxes of the letters to send back.")
        rate = form.get("rate", str(RATE))
        return [
            *make_hidden_fields(
                form, "topic", "letter", "only", "reason", "exception", "group", "source", "same"
            ),
            replace(_RATE, value=rate),
            replace(_AGAIN, value=form.get("again")),
            FormField(
                "note",
                "Note",
                value=form.get("note"),
                help="Each record gets it as the header __dlq.redrive.note.",
            ),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        topic = _require_topic(form)
        rate = form.get_number("rate", "The rate", least=1, most=RATE_MAX)
        ends = _parse_ends(topic, form)
        if not ends:
            limits = await dead_letter_topics.find_bounds(context.client.admin, topic)
            ends = {partition: end for partition, (_, end) in limits.items()}
        base_plan = RedrivePlan(
            topic,
            filter=await _make_filter(context, topic, form),
            rate=float(rate),
            note=form.get("note").strip(),
            again=form.is_set("again"),
            ends=ends,
        )
        plans = [
            replace(
                base_plan, filter=replace(base_plan.filter, partitions=[index], offsets=offsets)
            )
            for index, offsets in sorted(_parse_chosen(form).items())
        ] or [base_plan]
        results = await _count_dead_letters(context.client, plans)
        plan = _make_redrive_plan(topic, plans, results, rate, _describe_selection(form))
        fixed = [f"{partition.partition}@{end}" for partition, end in sorted(ends.items())]
        return replace(plan, fixed={"end": fixed})


async def _make_filter(context: ActionContext, topic: str, form: FormData) -> DeadLetterFilter:
    """Return the filter of a form. Raises `ActionError`."""
    for reason in form.get_all("reason"):
        if reason not in REASONS:
            raise ActionError(
                f"The reason must be one of {', '.join(REASONS)}, not {reason!r:.60}."
            )
    keys = []
    for place in form.get_all("same"):
        try:
            keys.append(
                await dead_letters.find_same_key(context.client, context.view, topic, place)
            )
        except ValueError as error:
            raise ActionError(str(error)) from None
    return DeadLetterFilter(
        keys=keys,
        reasons=form.get_all("reason"),
        exceptions=form.get_all("exception"),
        groups=form.get_all("group"),
        source_topics=form.get_all("source"),
    )


def _parse_chosen(form: FormData) -> dict[int, OffsetSet]:
    """Return the offsets of chosen letters, PARTITION@OFFSET each. Raises `ActionError`."""
    offsets_by_partition: dict[int, OffsetSet] = {}
    for text in form.get_all("letter"):
        partition, sign, offset = text.partition("@")
        numbers = (partition, offset)
        if not sign or not all(n.isdecimal() and len(n) < 19 for n in numbers):
            raise ActionError(f"A letter must be PARTITION@OFFSET, not {text!r:.60}.")
        offsets_by_partition.setdefault(int(partition), OffsetSet()).add(int(offset))
    return offsets_by_partition


def _parse_ends(topic: str, form: FormData) -> dict[TopicPartition, int]:
    """Return the ends of an earlier plan, PARTITION@OFFSET each; empty in a new plan."""
    pairs = (text.partition("@") for text in form.get_all("end"))
    return {TopicPartition(topic, int(partition)): int(end) for partition, _, end in pairs}


def _describe_selection(form: FormData) -> dict[str, str]:
    """Return what a form selects, for the audit line."""
    names = ("letter", "reason", "exception", "group", "source", "same")
    return {name: ",".join(values)[:500] for name in names if (values := form.get_all(name))}


async def _count_dead_letters(client: Client, plans: list[RedrivePlan]) -> list[RedriveResult]:
    """Return what plans would send. Raises `ActionError`."""
    try:
        async with asyncio.timeout(COUNT_S):
            return [
                await Redrive(client.cluster, replace(plan, dry_run=True)).run() for plan in plans
            ]
    except TimeoutError:
        raise ActionError(
            f"The letters were not counted within {COUNT_S:.0f} s: the topic is too large for the"
            f" console. Use `shoal dlq redrive {plans[0].topic} --dry-run`."
        ) from None


def _make_redrive_plan(
    topic: str,
    plans: list[RedrivePlan],
    results: list[RedriveResult],
    rate: int,
    chosen: dict[str, str],
) -> ActionPlan:
    total = sum(result.total for result in results)
    if not total:
        raise ActionError(_explain_nothing(topic, results))
    kinds: dict[tuple[str, str, str], int] = {}
    for result in results:
        for kind, number in result.sent.items():
            kinds[kind] = kinds.get(kind, 0) + number
    is_one = total == 1
    seconds = f" At {rate:,} per second it takes about {max(1, total // rate):,} s."
    sentences = [
        f"{format_plural(total, 'letter')} of {topic} {'is' if is_one else 'are'} sent back to"
        f" {'its topic' if is_one else 'their topics'}.{'' if is_one else seconds}",
        "Consumers receive the records again, and the keys that the letters hold are released."
        " The letters stay in their topic, marked as sent back.",
    ]
    warnings = [
        f"{format_plural(sum(getattr(result, name) for result in results), 'letter')} left out: "
        f"{why}."
        for name, why in (
            ("redriven_before", "sent back before"),
            ("records_missing", "their record is deleted"),
        )
        if any(getattr(result, name) for result in results)
    ]
    warnings += [
        f"{format_plural(result.doubted, 'letter')} left out: {result.doubt}."
        for result in results
        if result.doubted
    ]
    for result in results:
        warnings += [
            f"{format_plural(number, 'letter')} left out: topic {name} does not exist."
            for name, number in result.topics_missing.items()
        ]

    async def run(client: Client, run: ActionRun) -> ActionResult:
        return await _redrive(client, run, topic, plans, total)

    return ActionPlan(
        RedriveDeadLetters.title,
        tuple(sentences),
        f"Send {format_plural(total, 'letter')} back",
        {"topic": topic, **chosen},
        _make_back_link(topic),
        tuple(sorted(kinds.items())),
        run,
        Table(
            "Letters that are sent",
            ("Source topic", "Share group", "Reason", "Letters"),
            tuple((*kind, number) for kind, number in sorted(kinds.items())),
        ),
        warnings=tuple(warnings),
    )


def _explain_nothing(topic: str, results: list[RedriveResult]) -> str:
    before = sum(result.redriven_before for result in results)
    if before:
        return (
            f"{format_plural(before, 'letter')} of {topic} {'was' if before == 1 else 'were'} sent "
            "back before, and there are no others. To send them again, check that box."
        )
    doubts = "".join(
        f" {result.doubted} do not count: {result.doubt}." for result in results if result.doubted
    )
    return f"Topic {topic} has no such letters that can be sent back.{doubts}"


async def _redrive(
    client: Client, run: ActionRun, topic: str, plans: list[RedrivePlan], total: int
) -> ActionResult:
    """Send the letters of plans, and count them in `run`."""
    run.total = total
    sent = refused = not_freed = 0
    reasons: list[str] = []
    for plan in plans:
        redrive = Redrive(client.cluster, plan)

        def report_progress(_read: int, redrive: Redrive = redrive, before: int = sent) -> None:
            run.check()
            run.done = before + redrive.result.total
            run.text = f"{run.done:,} of {total:,} letters are sent."

        def report_waiting(why: str) -> None:
            run.text = f"{why}."

        result = await redrive.run(report_progress, report_waiting)
        sent, refused = sent + result.total, refused + result.refused
        not_freed += result.not_freed
        reasons += [str(why) for why in (result.refusal, result.not_freed_error) if why is not None]
        run.done = sent
    text = f"Sent {format_plural(sent, 'letter')} of {topic} back."
    if sent + refused < total:
        lost = total - sent - refused
        text += f" {format_plural(lost, 'letter')} had been sent or deleted by somebody else."
    if refused:
        text += f" The brokers refused {format_plural(refused, 'record')}: {reasons[0]}."
    if not_freed:
        text += (
            f" {format_plural(not_freed, 'record')} may still hold keys: {reasons[-1]}. Skip them."
        )
    return ActionResult(text, failed=bool(refused or not_freed))


class EditDeadLetter:
    """Send one letter back with another key or value."""

    name, title = "edit", "Edit a dead letter and send it back"

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        dead_letter = await _read_dead_letter(context.client, form)
        fields = make_hidden_fields(form, "topic", "partition", "offset")
        for name, payload in _find_editable(context, dead_letter).items():
            fields += _make_inputs(form, name, payload)
        return [*fields, replace(_AGAIN, label="Also if it was sent back before")]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        dead_letter = await _read_dead_letter(context.client, form)
        record, editable = dead_letter.record, _find_editable(context, dead_letter)
        # What is masked stays as it is, whatever was sent.
        edit = RecordEdit(
            parse_payload(form, "key", "key") if "key" in editable else record.key,
            parse_payload(form, "value", "value") if "value" in editable else record.value,
        )
        if (edit.key, edit.value) == (record.key, record.value):
            raise ActionError(
                "Nothing was edited. Change the key or the value, or send the letter as it is."
            )
        plan = RedrivePlan(
            dead_letter.topic,
            filter=DeadLetterFilter(
                partitions=[dead_letter.partition], offsets=OffsetSet.parse(str(dead_letter.offset))
            ),
            again=form.is_set("again"),
            edit=edit,
        )
        (result,) = await _count_dead_letters(context.client, [plan])
        if not result.total:
            raise ActionError(_explain_nothing(dead_letter.topic, [result]))
        changes = tuple(
            (name, format_size(old), format_size(new), "changed" if old != new else "as it was")
            for name, old, new in (
                ("Key", record.key, edit.key),
                ("Value", record.value, edit.value),
            )
        )

        async def run(client: Client, run: ActionRun) -> ActionResult:
            return await _redrive(client, run, dead_letter.topic, [plan], 1)

        return ActionPlan(
            self.title,
            (
                f"Letter {dead_letter.name} is sent back to topic {dead_letter.source_topic} with "
                "the edited payload. The record gets the header __dlq.redrive.edited.",
                "The key that the letter holds is released. The letter itself stays unchanged in"
                " its topic, marked as sent back.",
            ),
            "Send 1 edited letter back",
            {"topic": dead_letter.topic, "letter": f"{dead_letter.partition}@{dead_letter.offset}"},
            _make_back_link(dead_letter.topic),
            result.redriven_before,
            run,
            Table("What changes", ("Part", "Was", "Becomes", ""), changes),
        )


async def _read_dead_letter(client: Client, form: FormData) -> DeadLetter:
    """Return the letter of a form. Raises `ActionError`."""
    partition = TopicPartition(
        _require_topic(form), form.get_number("partition", "The partition", most=2**31 - 1)
    )
    offset = form.get_number("offset", "The offset")
    dead_letter = await dead_letters.read_dead_letter(client, partition, offset)
    if dead_letter is None:
        raise ActionError(f"There is no dead letter {partition}@{offset}.")
    if dead_letter.is_bare:
        raise ActionError(
            f"Letter {dead_letter.name} has no copy of its record, so there is nothing to edit. "
            "Produce a record instead."
        )
    payloads = (dead_letter.record.key or b"", dead_letter.record.value or b"")
    if max(map(len, payloads)) > EDITED_BYTES_MAX:
        raise ActionError(
            f"Letter {dead_letter.name} is too large to edit here: at most"
            f" {EDITED_BYTES_MAX >> 10} KiB. Download it, and use `shoal produce`."
        )
    return dead_letter


def _find_editable(context: ActionContext, dead_letter: DeadLetter) -> dict[str, bytes | None]:
    """Return the parts of a letter that are shown as they are. Raises `ActionError` if none is."""
    shown = context.view.masks.mask_record(dead_letter.topic, dead_letter.record)
    parts = {"key": shown.key, "value": shown.value}
    editable = {name: part for name, part in parts.items() if not isinstance(part, MaskedPayload)}
    if not editable:
        raise ActionError(
            f"Key and value of letter {dead_letter.name} are masked, so they cannot be edited here."
            " Send the letter back as it is, or produce a record with `shoal produce`."
        )
    return editable


def _make_inputs(form: FormData, name: str, payload: bytes | None) -> list[FormField]:
    """Return the inputs for a payload: text if a browser returns it unchanged, else hex."""
    text, format = "", NULL
    if payload is not None:
        text, format = payload.hex(" "), HEX
        try:
            decoded = payload.decode()
        except UnicodeDecodeError:
            pass
        else:
            if all(c in "\n\t" or c.isprintable() for c in decoded):
                text, format = decoded, TEXT
    label = name.capitalize()
    return [
        FormField(name, label, "area", form.get(name, text)),
        FormField(
            f"{name}-format",
            f"Format of the {name}",
            "select",
            form.get(f"{name}-format", format),
            options=FORMATS,
        ),
    ]


class PurgeDeadLetters:
    """Delete all letters that a topic has now."""

    name, title = "purge", "Delete dead letters"

    async def build_fields(self, _scene: ActionContext, form: FormData) -> list[FormField]:
        return make_hidden_fields(form, "topic")

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        topic = _require_topic(form)
        topics = await dead_letter_topics.list_dead_letter_topics(context.client.admin)
        if topic not in topics:
            raise ActionError(
                f"Topic {topic} is not a topic of dead letters. The console deletes no others."
            )
        limits = await dead_letter_topics.find_bounds(context.client.admin, topic)
        count = sum(end - start for start, end in limits.values())
        if not count:
            raise ActionError(f"Topic {topic} has no letters. Nothing is to do.")
        redriven = await dead_letters.read_redriven(context.client, topic)
        before = count_redriven(redriven, limits)
        ends = {partition: end for partition, (_, end) in limits.items()}

        async def run(client: Client, _run: ActionRun) -> ActionResult:
            expect(await client.admin.topics.delete_records(ends))
            return ActionResult(f"Deleted {format_plural(count, 'record')} of {topic}.")

        return ActionPlan(
            self.title,
            (
                f"{format_plural(count, 'record')} of {topic} {'is' if count == 1 else 'are'} "
                "deleted permanently, and cannot be sent back afterwards. "
                f"{format_plural(before, 'letter')}"
                f" of them {'was' if before == 1 else 'were'} sent back before.",
                "Keys that the letters hold stay held until they are skipped. Letters that arrive"
                " from now on stay.",
            ),
            f"Delete {format_plural(count, 'record')}",
            {"topic": topic},
            _make_back_link(topic),
            tuple(sorted((partition, start) for partition, (start, _) in limits.items())),
            run,
            typed=topic,
        )
