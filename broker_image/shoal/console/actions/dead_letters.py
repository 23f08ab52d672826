"""Actions on dead letters: send them back, send one back edited, delete them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.client import dead_letter_topics
from shoal.client.cluster import TopicPartition
from shoal.client.dead_letters import REASONS, DeadLetter, DeadLetterFilter
from shoal.client.errors import expect
from shoal.client.redrive import Edit, Redrive, Redriven
from shoal.client.redrive import Plan as RedrivePlan
from shoal.console import letters
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
from shoal.console.actions.records import FORMATS, HEX, NULL, TEXT, size, typed
from shoal.console.figures import plural
from shoal.console.payloads import Masked
from shoal.console.render import link
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.runs import Run

#: Letters per second, unless the person chooses another rate.
RATE, RATE_MAX = 100, 10_000
#: Seconds in which the letters of a plan must be counted.
COUNT_S = 30.0
#: Bytes of a key or a value that can be edited.
EDITED_BYTES_MAX = 256 << 10
#: The value of `only` if the person wants chosen letters.
CHOSEN = "chosen"
_RATE = Field(
    "rate",
    "Letters per second, at most",
    "number",
    str(RATE),
    "A low rate protects consumers that have just recovered.",
    is_required=True,
)
_AGAIN = Field("again", "Also letters that were sent back before", "check")


def _topic(given: Given) -> str:
    return given.required("topic", "The dead-letter topic")


def _back_to(topic: str) -> tuple[str, str]:
    return link("letters", topic=topic), f"Dead letters in {topic}"


class RedriveLetters:
    """Send letters back to their topics: chosen ones, those of a filter, or all."""

    name, title = "redrive", "Send dead letters back"

    async def form(self, _scene: Scene, given: Given) -> list[Field]:
        _topic(given)
        if not _chosen(given) and given.one("only") == CHOSEN:
            raise Mistake("No letter is chosen. Check the boxes of the letters to send back.")
        rate = given.one("rate", str(RATE))
        return [
            *hidden(given, "topic", "letter", "only", "reason", "group", "source", "same"),
            replace(_RATE, value=rate),
            replace(_AGAIN, value=given.one("again")),
            Field(
                "note",
                "Note",
                value=given.one("note"),
                help="Each record gets it as the header __dlq.redrive.note.",
            ),
        ]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        topic = _topic(given)
        rate = given.number("rate", "The rate", least=1, most=RATE_MAX)
        ends = _ends(topic, given)
        if not ends:
            limits = await dead_letter_topics.bounds(scene.client.admin, topic)
            ends = {where: end for where, (_, end) in limits.items()}
        wanted = RedrivePlan(
            topic,
            filter=await _filter(scene, topic, given),
            rate=float(rate),
            note=given.one("note").strip(),
            again=given.is_set("again"),
            ends=ends,
        )
        plans = [
            replace(wanted, filter=replace(wanted.filter, partitions=[index], offsets=offsets))
            for index, offsets in sorted(_chosen(given).items())
        ] or [wanted]
        found = await _counted(scene.client, plans)
        plan = _redrive_plan(topic, plans, found, rate, _selection(given))
        fixed = [f"{where.partition}@{end}" for where, end in sorted(ends.items())]
        return replace(plan, fixed={"end": fixed})


async def _filter(scene: Scene, topic: str, given: Given) -> DeadLetterFilter:
    """Return the filter of a form. Raises `Mistake`."""
    for reason in given.all("reason"):
        if reason not in REASONS:
            raise Mistake(f"The reason must be one of {', '.join(REASONS)}, not {reason!r:.60}.")
    keys = []
    for place in given.all("same"):
        try:
            keys.append(await letters.same_key(scene.client, scene.view, topic, place))
        except ValueError as error:
            raise Mistake(str(error)) from None
    return DeadLetterFilter(
        keys=keys,
        reasons=given.all("reason"),
        groups=given.all("group"),
        source_topics=given.all("source"),
    )


def _chosen(given: Given) -> dict[int, OffsetSet]:
    """Return the offsets of chosen letters, PARTITION@OFFSET each. Raises `Mistake`."""
    found: dict[int, OffsetSet] = {}
    for text in given.all("letter"):
        partition, sign, offset = text.partition("@")
        numbers = (partition, offset)
        if not sign or not all(n.isdecimal() and len(n) < 19 for n in numbers):
            raise Mistake(f"A letter must be PARTITION@OFFSET, not {text!r:.60}.")
        found.setdefault(int(partition), OffsetSet()).add(int(offset))
    return found


def _ends(topic: str, given: Given) -> dict[TopicPartition, int]:
    """Return the ends of an earlier plan, PARTITION@OFFSET each; empty in a new plan."""
    pairs = (text.partition("@") for text in given.all("end"))
    return {TopicPartition(topic, int(partition)): int(end) for partition, _, end in pairs}


def _selection(given: Given) -> dict[str, str]:
    """Return what a form selects, for the audit line."""
    names = ("letter", "reason", "group", "source", "same")
    return {name: ",".join(some)[:500] for name in names if (some := given.all(name))}


async def _counted(client: Client, plans: list[RedrivePlan]) -> list[Redriven]:
    """Return what plans would send. Raises `Mistake`."""
    try:
        async with asyncio.timeout(COUNT_S):
            return [
                await Redrive(client.cluster, replace(plan, dry_run=True)).run() for plan in plans
            ]
    except TimeoutError:
        raise Mistake(
            f"The letters were not counted within {COUNT_S:.0f} s: the topic is too large for the"
            f" console. Use `shoal dlq redrive {plans[0].topic} --dry-run`."
        ) from None


def _redrive_plan(
    topic: str, plans: list[RedrivePlan], found: list[Redriven], rate: int, chosen: dict[str, str]
) -> Plan:
    total = sum(one.total for one in found)
    if not total:
        raise Mistake(_nothing(topic, found))
    kinds: dict[tuple[str, str, str], int] = {}
    for one in found:
        for kind, number in one.sent.items():
            kinds[kind] = kinds.get(kind, 0) + number
    is_one = total == 1
    seconds = f" At {rate:,} per second it takes about {max(1, total // rate):,} s."
    sentences = [
        f"{plural(total, 'letter')} of {topic} {'is' if is_one else 'are'} sent back to"
        f" {'its topic' if is_one else 'their topics'}.{'' if is_one else seconds}",
        "Consumers receive the records again, and the keys that the letters hold are released."
        " The letters stay in their topic, marked as sent back.",
    ]
    warnings = [
        f"{plural(sum(getattr(one, name) for one in found), 'letter')} left out: {why}."
        for name, why in (
            ("redriven_before", "sent back before"),
            ("records_missing", "their record is deleted"),
        )
        if any(getattr(one, name) for one in found)
    ]
    warnings += [
        f"{plural(one.doubted, 'letter')} left out: {one.doubt}." for one in found if one.doubted
    ]
    for one in found:
        warnings += [
            f"{plural(number, 'letter')} left out: topic {name} does not exist."
            for name, number in one.topics_missing.items()
        ]

    async def run(client: Client, run: Run) -> Result:
        return await _redrive(client, run, topic, plans, total)

    return Plan(
        RedriveLetters.title,
        tuple(sentences),
        f"Send {plural(total, 'letter')} back",
        {"topic": topic, **chosen},
        _back_to(topic),
        tuple(sorted(kinds.items())),
        run,
        Table(
            "Letters that are sent",
            ("Source topic", "Share group", "Reason", "Letters"),
            tuple((*kind, number) for kind, number in sorted(kinds.items())),
        ),
        warnings=tuple(warnings),
    )


def _nothing(topic: str, found: list[Redriven]) -> str:
    before = sum(one.redriven_before for one in found)
    if before:
        return (
            f"{plural(before, 'letter')} of {topic} {'was' if before == 1 else 'were'} sent back"
            " before, and there are no others. To send them again, check that box."
        )
    doubts = "".join(f" {one.doubted} do not count: {one.doubt}." for one in found if one.doubted)
    return f"Topic {topic} has no such letters that can be sent back.{doubts}"


async def _redrive(
    client: Client, run: Run, topic: str, plans: list[RedrivePlan], total: int
) -> Result:
    """Send the letters of plans, and count them in `run`."""
    run.total = total
    sent = refused = not_freed = 0
    reasons: list[str] = []
    for plan in plans:
        one = Redrive(client.cluster, plan)

        def progress(_read: int, one: Redrive = one, before: int = sent) -> None:
            run.check()
            run.done = before + one.result.total
            run.text = f"{run.done:,} of {total:,} letters are sent."

        def waiting(why: str) -> None:
            run.text = f"{why}."

        done = await one.run(progress, waiting)
        sent, refused = sent + done.total, refused + done.refused
        not_freed += done.not_freed
        reasons += [str(why) for why in (done.refusal, done.not_freed_error) if why is not None]
        run.done = sent
    text = f"Sent {plural(sent, 'letter')} of {topic} back."
    if sent + refused < total:
        left = total - sent - refused
        text += f" {plural(left, 'letter')} had been sent or deleted by somebody else."
    if refused:
        text += f" The brokers refused {plural(refused, 'record')}: {reasons[0]}."
    if not_freed:
        text += f" {plural(not_freed, 'record')} may still hold keys: {reasons[-1]}. Skip them."
    return Result(text, failed=bool(refused or not_freed))


class EditLetter:
    """Send one letter back with another key or value."""

    name, title = "edit", "Edit a dead letter and send it back"

    async def form(self, scene: Scene, given: Given) -> list[Field]:
        letter = await _letter(scene.client, given)
        fields = hidden(given, "topic", "partition", "offset")
        for name, payload in _editable(scene, letter).items():
            fields += _inputs(given, name, payload)
        return [*fields, replace(_AGAIN, label="Also if it was sent back before")]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        letter = await _letter(scene.client, given)
        record, editable = letter.record, _editable(scene, letter)
        # What is masked stays as it is, whatever was sent.
        edit = Edit(
            typed(given, "key", "key") if "key" in editable else record.key,
            typed(given, "value", "value") if "value" in editable else record.value,
        )
        if (edit.key, edit.value) == (record.key, record.value):
            raise Mistake(
                "Nothing was edited. Change the key or the value, or send the letter as it is."
            )
        plan = RedrivePlan(
            letter.topic,
            filter=DeadLetterFilter(
                partitions=[letter.partition], offsets=OffsetSet.parse(str(letter.offset))
            ),
            again=given.is_set("again"),
            edit=edit,
        )
        (found,) = await _counted(scene.client, [plan])
        if not found.total:
            raise Mistake(_nothing(letter.topic, [found]))
        changes = tuple(
            (name, size(old), size(new), "changed" if old != new else "as it was")
            for name, old, new in (
                ("Key", record.key, edit.key),
                ("Value", record.value, edit.value),
            )
        )

        async def run(client: Client, run: Run) -> Result:
            return await _redrive(client, run, letter.topic, [plan], 1)

        return Plan(
            self.title,
            (
                f"Letter {letter.name} is sent back to topic {letter.source_topic} with the edited"
                " payload. The record gets the header __dlq.redrive.edited.",
                "The key that the letter holds is released. The letter itself stays unchanged in"
                " its topic, marked as sent back.",
            ),
            "Send 1 edited letter back",
            {"topic": letter.topic, "letter": f"{letter.partition}@{letter.offset}"},
            _back_to(letter.topic),
            found.redriven_before,
            run,
            Table("What changes", ("Part", "Was", "Becomes", ""), changes),
        )


async def _letter(client: Client, given: Given) -> DeadLetter:
    """Return the letter of a form. Raises `Mistake`."""
    where = TopicPartition(
        _topic(given), given.number("partition", "The partition", most=2**31 - 1)
    )
    offset = given.number("offset", "The offset")
    letter = await letters.read(client, where, offset)
    if letter is None:
        raise Mistake(f"There is no dead letter {where}@{offset}.")
    if letter.is_bare:
        raise Mistake(
            f"Letter {letter.name} has no copy of its record, so there is nothing to edit. Produce"
            " a record instead."
        )
    payloads = (letter.record.key or b"", letter.record.value or b"")
    if max(map(len, payloads)) > EDITED_BYTES_MAX:
        raise Mistake(
            f"Letter {letter.name} is too large to edit here: at most"
            f" {EDITED_BYTES_MAX >> 10} KiB. Download it, and use `shoal produce`."
        )
    return letter


def _editable(scene: Scene, letter: DeadLetter) -> dict[str, bytes | None]:
    """Return the parts of a letter that are shown as they are. Raises `Mistake` if none is."""
    shown = scene.view.masks.shown(letter.topic, letter.record)
    parts = {"key": shown.key, "value": shown.value}
    found = {name: part for name, part in parts.items() if not isinstance(part, Masked)}
    if not found:
        raise Mistake(
            f"Key and value of letter {letter.name} are masked, so they cannot be edited here."
            " Send the letter back as it is, or produce a record with `shoal produce`."
        )
    return found


def _inputs(given: Given, name: str, payload: bytes | None) -> list[Field]:
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
        Field(name, label, "area", given.one(name, text)),
        Field(
            f"{name}-format",
            f"Format of the {name}",
            "select",
            given.one(f"{name}-format", format),
            options=FORMATS,
        ),
    ]


class Purge:
    """Delete all letters that a topic has now."""

    name, title = "purge", "Delete dead letters"

    async def form(self, _scene: Scene, given: Given) -> list[Field]:
        return hidden(given, "topic")

    async def plan(self, scene: Scene, given: Given) -> Plan:
        topic = _topic(given)
        known = await dead_letter_topics.dead_letter_topics(scene.client.admin)
        if topic not in known:
            raise Mistake(
                f"Topic {topic} is not a topic of dead letters. The console deletes no others."
            )
        limits = await dead_letter_topics.bounds(scene.client.admin, topic)
        count = sum(end - start for start, end in limits.values())
        if not count:
            raise Mistake(f"Topic {topic} has no letters. Nothing is to do.")
        done = await letters.redriven(scene.client, topic)
        for where, (start, _) in limits.items():
            if where.partition in done:
                done[where.partition].forget(start)
        before = sum(len(some) for some in done.values())
        ends = {where: end for where, (_, end) in limits.items()}

        async def run(client: Client, _run: Run) -> Result:
            expect(await client.admin.topics.delete_records(ends))
            return Result(f"Deleted {plural(count, 'record')} of {topic}.")

        return Plan(
            self.title,
            (
                f"{plural(count, 'record')} of {topic} {'is' if count == 1 else 'are'} deleted"
                f" permanently, and cannot be sent back afterwards. {plural(before, 'letter')}"
                f" of them {'was' if before == 1 else 'were'} sent back before.",
                "Keys that the letters hold stay held until they are skipped. Letters that arrive"
                " from now on stay.",
            ),
            f"Delete {plural(count, 'record')}",
            {"topic": topic},
            _back_to(topic),
            tuple(sorted((where, start) for where, (start, _) in limits.items())),
            run,
            typed=topic,
        )
