"""`shoal dlq`: look at dead letters, send them back to their topics, or give them up.

`redrive` sends dead letters back to their topics. `skip` releases the keys that they hold.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client import dead_letter_topics, lag
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.dead_letters import REASONS, DeadLetter, DeadLetterFilter
from shoal.client.errors import expect
from shoal.client.groups import SHARE
from shoal.client.held_keys import KEYS_MAX, held_keys
from shoal.client.redrive import Plan, Redrive, Redriven
from shoal.record.offset_set import OffsetSet
from shoal.record.records import header_text

app = new_app("List, show, redrive and delete dead letters.")

#: Columns of letters that a narrow terminal leaves out first.
_EXPENDABLE = ("group", "written", "deliveries", "source")
#: Characters of a value in a table.
_VALUE_SHOWN = 60
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]
To = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Send to this topic. Default: each letter's source topic."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be redriven and change nothing.")
]


class LetterOptions(NamedTuple):
    """The options that select dead letters."""

    reason: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(REASONS), help="Only letters with this reason."),
    ] = None
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="Only letters of this group.")
    ] = None
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Only letters from this source topic."),
    ] = None
    key: Annotated[list[str] | None, typer.Option(help="Only letters with this key.")] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="NAME[=VALUE]",
            help="Only letters with this header, one of __dlq.errors.* or the record's.",
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only letters written at this time or later."),
    ] = None
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only letters written before this time.")
    ] = None
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", help="Only letters in this partition of the dead-letter topic."
        ),
    ] = None
    offsets: Annotated[
        str | None, typer.Option(metavar="3-7,9", help="Only these offsets of one --partition.")
    ] = None

    def filter(self) -> DeadLetterFilter:
        """Return the filter. Raises `Failed` for a value that cannot be read."""
        return DeadLetterFilter(
            reasons=_reasons(self.reason),
            groups=self.group or (),
            source_topics=self.source or (),
            keys=[one.encode() for one in self.key or ()],
            headers=_headers(self.header),
            since_ms=timestamps.timestamp(self.since) if self.since else None,
            until_ms=timestamps.timestamp(self.until) if self.until else None,
            partitions=self.partition or (),
            offsets=_offsets(self.offsets, self.partition),
        )


Rate = Annotated[
    float | None, typer.Option(min=0.1, metavar="N", help="At most N letters per second.")
]
MaxLetters = Annotated[
    int | None,
    typer.Option("--max-letters", "-n", min=1, help="Stop after this number of letters."),
]
Note = Annotated[
    str, typer.Option(metavar="TEXT", help="Text for each record's header __dlq.redrive.note.")
]
Again = Annotated[bool, typer.Option("--again", help="Include letters that were redriven before.")]


@command(app, "list")
async def list_topics(client: Client, format: FormatOption = Format.TABLE) -> None:
    """List the topics of dead letters, how many records they have, and the groups that write them.

    Letters that were redriven stay in their topic until its retention or `purge` deletes them.
    """
    found = await dead_letter_topics.dead_letter_topics(client.admin)
    rows = []
    for name, groups in found.items():
        bounds = await dead_letter_topics.bounds(client.admin, name)
        rows.append(
            {
                "topic": name,
                "records": sum(end - start for start, end in bounds.values()),
                "groups": groups,
            }
        )
    output.rows(format, rows, empty="There are no topics of dead letters.")


@command(app, "peek")
async def peek(
    client: Client,
    topic: Topic,
    letters: LetterOptions = LetterOptions(),
    max_letters: Annotated[
        int, typer.Option("--max-letters", "-n", min=1, help="Show at most this many letters.")
    ] = 10,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show dead letters and why they are dead, oldest first; the JSON has all headers."""
    wanted = letters.filter()
    found = []
    async for letter in dead_letter_topics.letters(client, topic):
        if wanted.matches(letter):
            found.append(letter)
            if len(found) == max_letters:
                break
    if format is Format.JSON:
        output.rows(format, [_whole(letter) for letter in found])
        return
    output.rows(
        format,
        [_row(letter) for letter in found],
        empty=f"{topic} has no such letters.",
        expendable=_EXPENDABLE,
    )


@command(app, "purge")
async def purge(
    client: Client,
    topic: Topic,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only letters written before this time. Default: all."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete dead letters permanently, from the start of their topic.

    Keys that the letters hold stay held: release them with `skip`.
    """
    bounds = await dead_letter_topics.bounds(client.admin, topic)
    ends = {where: end for where, (_, end) in bounds.items()}
    if until:
        listed = expect(
            await client.admin.topics.offsets(dict.fromkeys(bounds, timestamps.timestamp(until)))
        )
        # Without a later record, all of them are before that time.
        ends |= {where: o.offset for where, o in listed.items() if o.offset >= 0}
    count = sum(max(0, ends[where] - start) for where, (start, _) in bounds.items())
    if not count:
        say(f"{topic} has no such letters.")
        return
    noun = "record" if count == 1 else "records"
    if not yes:
        if not sys.stdin.isatty():
            raise Failed(f"--yes is missing: {count} {noun} of {topic} would be deleted.", USAGE)
        prompts.confirm(f"Delete {count} {noun} of {topic}?")
    expect(await client.admin.topics.delete_records(ends))
    say(f"Deleted {count} {noun} of {topic}.")


@command(app, "redrive")
async def redrive(
    client: Client,
    topic: Topic,
    to: To = None,
    dry_run: DryRun = False,
    letters: LetterOptions = LetterOptions(),
    rate: Rate = None,
    max_letters: MaxLetters = None,
    note: Note = "",
    again: Again = False,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="Show each letter and ask for it."),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Send dead letters back to their topics: all of them, or those that match a filter. Letters
    that were redriven before are skipped.
    """
    wanted = letters.filter()
    if interactive:
        if format is Format.JSON:
            raise Failed("--interactive prints tables only. Leave out --format json.", USAGE)
        chosen = await _choose(client, topic, wanted, max_letters)
        if not chosen:
            say("No letter was chosen.")
            return
        plans = [
            Plan(
                topic,
                to,
                DeadLetterFilter(partitions=[partition], offsets=offsets),
                rate,
                None,
                note,
                again,
                dry_run,
            )
            for partition, offsets in sorted(chosen.items())
        ]
    else:
        plans = [Plan(topic, to, wanted, rate, max_letters, note, again, dry_run)]
    for plan in plans:
        await _run(client, plan, format)


async def _run(client: Client, plan: Plan, format: Format) -> None:
    try:
        run = Redrive(client.cluster, plan)
    except ValueError as error:
        raise Failed(f"{error}.", USAGE) from None
    with output.progress(await run.size(), f"Redriving {plan.topic}") as progress:
        done = await run.run(progress, warn)
    _print(plan, done, format)
    if done.refused:
        raise Failed(
            f"the broker rejected {done.refused} records. Last error: {done.refusal}. The next "
            "redrive sends them again."
        )
    if done.not_freed:
        raise Failed(
            f"{done.not_freed} redriven records may still hold their keys: {done.not_freed_error}. "
            "Release them with `shoal dlq skip`."
        )


@command(app, "skip")
async def skip(
    client: Client,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The share group.")],
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only records of this topic."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only records of this partition of --topic."),
    ] = None,
    offsets: Annotated[
        str | None, typer.Option(metavar="3-7,9", help="Only these offsets of one --partition.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="Only records with this key.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="All records that hold a key.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be skipped and change nothing.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Release the keys that dead-lettered records hold. The dead letters stay in their topic."""
    if not (all_ or topic or partition or offsets or key):
        raise Failed(
            "select the records with --topic, --partition, --offsets, --key or --all.", USAGE
        )
    if (partition or offsets) and not topic:
        raise Failed("--partition and --offsets need --topic.", USAGE)
    wanted_offsets = _offsets(offsets, partition)
    keys = {one.encode() for one in key or ()}
    expect(await client.admin.groups.describe([group]))
    found = (await lag.positions(client.admin, {group: SHARE}))[group]
    held = [
        one
        for one in await held_keys(client, found, keys_max=sys.maxsize if key else KEYS_MAX)
        if (topic is None or one.where.topic == topic)
        and (not partition or one.where.partition in partition)
        and (wanted_offsets is None or one.offset in wanted_offsets)
        and (not keys or one.key in keys)
    ]
    if not dry_run:
        by_partition: dict[TopicPartition, OffsetSet] = {}
        for one in held:
            by_partition.setdefault(one.where, OffsetSet()).add(one.offset)
        ranges = {where: [*found.ranges()] for where, found in by_partition.items()}
        expect(await client.admin.share_groups.free(group, ranges))
    if format is Format.JSON:
        say(
            json.dumps(
                {"group": group, "dry_run": dry_run, "skipped": [one.row() for one in held]},
                indent=2,
            )
        )
        return
    output.rows(format, [one.row() for one in held])
    noun = "record" if len(held) == 1 else "records"
    verb = "Would skip" if dry_run else "Skipped"
    say(f"{verb} {len(held)} {noun} of group {group} that held a key.")


async def _choose(
    client: Client, topic: str, wanted: DeadLetterFilter, letters_max: int | None
) -> dict[int, OffsetSet]:
    """Ask about each letter; return the offsets of the chosen ones by partition."""
    chosen: dict[int, OffsetSet] = {}
    count = 0
    async for letter in dead_letter_topics.letters(client, topic):
        if not wanted.matches(letter):
            continue
        output.rows(Format.TABLE, [_row(letter)], expendable=_EXPENDABLE)
        answer = prompts.ask("Redrive it? yes, no, or quit", default="no").lower()
        if answer.startswith("q"):
            break
        if answer.startswith("y"):
            chosen.setdefault(letter.partition, OffsetSet()).add(letter.offset)
            count += 1
            if count == letters_max:
                break
    return chosen


def _row(letter: DeadLetter) -> dict[str, Any]:
    record = letter.record
    value = "-" if record.value is None else record.value.decode(errors="replace")
    return {
        "letter": f"{letter.partition}@{letter.offset}",
        "written": output.when(letter.timestamp_ms),
        "reason": letter.reason,
        "group": letter.group,
        "source": f"{letter.source_topic}-{letter.source_partition}@{letter.source_offset}",
        "deliveries": letter.delivery_count,
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value": value,
    }


def _whole(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "written_ms": letter.timestamp_ms,
        "reason": letter.reason,
        "message": letter.message,
        "group": letter.group,
        "source_topic": letter.source_topic,
        "source_partition": letter.source_partition,
        "source_offset": letter.source_offset,
        "deliveries": letter.delivery_count,
        "member": letter.member_id,
        "client_id": letter.client_id,
        "key": letter.record.key,
        "value": letter.record.value,
        "headers": {header_text(name): value for name, value in letter.record.headers},
    }


def _reasons(words: list[str] | None) -> list[str]:
    for word in words or ():
        if word not in REASONS:
            raise Failed(f"--reason must be one of {', '.join(REASONS)}, not {word!r}.", USAGE)
    return words or []


def _headers(words: list[str] | None) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not name:
            raise Failed(f"--header must be NAME or NAME=VALUE, not {word!r}.", USAGE)
        found[name] = value.encode() if sign else None
    return found


def _offsets(text: str | None, partitions: list[int] | None) -> OffsetSet | None:
    if text is None:
        return None
    if len(partitions or ()) != 1:
        raise Failed("--offsets needs exactly one --partition.", USAGE)
    try:
        return OffsetSet.parse(text)
    except ValueError:
        raise Failed(
            f"--offsets must be offsets and ranges like 3-7,9, not {text!r}.", USAGE
        ) from None


def _print(plan: Plan, done: Redriven, format: Format) -> None:
    kinds = [
        {"source_topic": k.source_topic, "group": k.group, "reason": k.reason, "letters": n}
        for k, n in sorted(done.sent.items())
    ]
    passed = {
        "redriven before": done.redriven_before,
        "excluded by the filter": done.filtered,
        "record deleted": done.records_missing,
        "not a dead letter": done.not_dead_letters,
        **{f"topic {name} does not exist": n for name, n in done.topics_missing.items()},
    }
    if format is Format.JSON:
        say(
            json.dumps(
                {
                    "topic": plan.topic,
                    "to": plan.to,
                    "dry_run": plan.dry_run,
                    "redriven": done.total,
                    "kinds": kinds,
                    "before": done.redriven_before,
                    "filtered": done.filtered,
                    "gone": done.records_missing,
                    "homeless": dict(done.topics_missing),
                    "others": done.not_dead_letters,
                    "doubted": done.doubted,
                    "refused": done.refused,
                    "unfreed": done.not_freed,
                },
                indent=2,
            )
        )
        return
    output.rows(format, kinds)
    verb = "Would redrive" if plan.dry_run else "Redrove"
    noun = "letter" if done.total == 1 else "letters"
    where = f"into {plan.to}" if plan.to else "into their source topics"
    say(f"{verb} {done.total} {noun} of {plan.topic} {where}.")
    if skipped := ", ".join(f"{n} ({what})" for what, n in passed.items() if n):
        say(f"Skipped: {skipped}.")
    if done.doubted:
        say(f"Records that look like letters and do not count: {done.doubted}. {done.doubt}.")
