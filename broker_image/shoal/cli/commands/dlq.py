"""`shoal dlq`: look at dead letters, send them back to their topics, or give them up.

`redrive` sends dead letters back to their topics. `skip` releases the keys that they hold.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.cli import output, prompts, timestamps
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.groups import SHARE
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag
from shoal.client.queues.held_keys import KEYS_MAX, find_held_keys
from shoal.dead_letters import dead_letter_topics
from shoal.dead_letters.failure_groups import FailureGroup, FailureGroups
from shoal.dead_letters.records import REASONS, DeadLetter, DeadLetterFilter
from shoal.dead_letters.redrive import Redrive, RedrivePlan, RedriveResult
from shoal.dead_letters.redrive_ledger import RedriveLedger, count_redriven
from shoal.record.offset_set import OffsetSet
from shoal.record.records import format_header_key

if TYPE_CHECKING:
    from collections.abc import Sequence

app = make_app("List, show, redrive and delete dead letters.")

#: Topics that an error names.
TOPICS_NAMED = 5
#: Columns of letters that a narrow terminal leaves out first.
_EXPENDABLE = ("group", "groups", "newest", "written", "deliveries", "redriven", "source")
#: The letters of a topic that were redriven, by partition; None for unknown.
Redriven = Mapping[int, OffsetSet] | None
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


class DeadLetterOptions(NamedTuple):
    """The options that select dead letters."""

    reason: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(REASONS), help="Only letters with this reason."),
    ] = None
    exception: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS", help="Only letters that failed with this exception, as in ValueError."
        ),
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

    def make_filter(self) -> DeadLetterFilter:
        """Return the filter. Raises `CommandError` for a value that cannot be read."""
        return DeadLetterFilter(
            reasons=_parse_reasons(self.reason),
            exceptions=self.exception or (),
            groups=self.group or (),
            source_topics=self.source or (),
            keys=[key.encode() for key in self.key or ()],
            headers=_parse_headers(self.header),
            since_ms=timestamps.parse_timestamp(self.since) if self.since else None,
            until_ms=timestamps.parse_timestamp(self.until) if self.until else None,
            partitions=self.partition or (),
            offsets=_parse_offsets(self.offsets, self.partition),
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
    """List the topics of dead letters, how many records they have, how many of these were redriven,
    and the groups that write them.

    Letters that were redriven stay in their topic until its retention or `purge` deletes them.
    """
    groups_by_topic = await dead_letter_topics.list_dead_letter_topics(client.admin)
    rows = []
    for name, groups in groups_by_topic.items():
        bounds = await dead_letter_topics.find_bounds(client.admin, name)
        redriven = await _read_redriven(client, name)
        rows.append(
            {
                "topic": name,
                "records": sum(end - start for start, end in bounds.values()),
                "redriven": None if redriven is None else count_redriven(redriven, bounds),
                "groups": groups,
            }
        )
    output.print_rows(format, rows, empty="There are no topics of dead letters.")


@command(app, "peek")
async def peek(
    client: Client,
    topic: Topic,
    letters: DeadLetterOptions = DeadLetterOptions(),
    max_letters: Annotated[
        int, typer.Option("--max-letters", "-n", min=1, help="Show at most this many letters.")
    ] = 10,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show dead letters and why they are dead, oldest first; the JSON has all headers."""
    letter_filter = letters.make_filter()
    redriven = await _read_redriven(client, topic)
    matching = []
    async for letter in dead_letter_topics.read_dead_letters(client, topic):
        if letter_filter.matches(letter):
            matching.append(letter)
            if len(matching) == max_letters:
                break
    if format is not Format.TABLE:
        output.print_rows(format, [_make_full_row(letter, redriven) for letter in matching])
        return
    output.print_rows(
        format,
        _make_rows(matching, redriven),
        empty=f"{topic} has no such letters.",
        expendable=_EXPENDABLE,
    )


@command(app, "reasons")
async def list_reasons(
    client: Client,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Dead-letter topics. Default: all of them."),
    ] = None,
    letters: DeadLetterOptions = DeadLetterOptions(),
    format: FormatOption = Format.TABLE,
) -> None:
    """Count dead letters by the exception that they failed with, the most frequent first.

    This reads the topics. A cause in parentheses stands for letters whose members gave no reason.
    """
    letter_filter, failures = letters.make_filter(), FailureGroups()
    for topic in topics or await dead_letter_topics.list_dead_letter_topics(client.admin):
        async for letter in dead_letter_topics.read_dead_letters(client, topic):
            if letter_filter.matches(letter):
                failures.add(letter)
    largest_groups = failures.list_largest()
    if format is not Format.TABLE:
        output.print_rows(format, [_make_group_row(group) for group in largest_groups])
        return
    rows = [
        {
            "letters": group.letters,
            "exception": group.exception,
            "in": group.place,
            "groups": sorted(group.groups),
            "newest": output.format_timestamp(group.newest.timestamp_ms),
            "message": str(group.newest.failure._replace(exception_class="")),
        }
        for group in largest_groups
    ]
    output.print_rows(format, rows, empty="There are no such letters.", expendable=_EXPENDABLE)


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
    await _check_dead_letter_topic(client, topic)
    bounds = await dead_letter_topics.find_bounds(client.admin, topic)
    ends = {partition: end for partition, (_, end) in bounds.items()}
    if until:
        listed = expect(
            await client.admin.topics.offsets(
                dict.fromkeys(bounds, timestamps.parse_timestamp(until))
            )
        )
        # Without a later record, all of them are before that time.
        ends |= {partition: o.offset for partition, o in listed.items() if o.offset >= 0}
    count = sum(max(0, ends[partition] - start) for partition, (start, _) in bounds.items())
    if not count:
        say(f"{topic} has no such letters.")
        return
    noun = "record" if count == 1 else "records"
    if not yes:
        if not sys.stdin.isatty():
            raise CommandError(
                f"--yes is missing: {count} {noun} of {topic} would be deleted.", USAGE
            )
        prompts.confirm(f"Delete {count} {noun} of {topic}?")
    expect(await client.admin.topics.delete_records(ends))
    say(f"Deleted {count} {noun} of {topic}.")


@command(app, "redrive")
async def redrive(
    client: Client,
    topic: Topic,
    to: To = None,
    dry_run: DryRun = False,
    letters: DeadLetterOptions = DeadLetterOptions(),
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
    letter_filter = letters.make_filter()
    await _check_dead_letter_topic(client, topic)
    if interactive:
        if format is not Format.TABLE:
            raise CommandError(
                f"--interactive prints tables only. Leave out --format {format}.", USAGE
            )
        chosen = await _choose(client, topic, letter_filter, max_letters)
        if not chosen:
            say("No letter was chosen.")
            return
        plans = [
            RedrivePlan(
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
        plans = [RedrivePlan(topic, to, letter_filter, rate, max_letters, note, again, dry_run)]
    for plan in plans:
        await _run(client, plan, format)


async def _run(client: Client, plan: RedrivePlan, format: Format) -> None:
    try:
        run = Redrive(client.cluster, plan)
    except ValueError as error:
        raise CommandError(f"{error}.", USAGE) from None
    with output.progress(await run.count_records(), f"Redriving {plan.topic}") as progress:
        result = await run.run(progress, warn)
    _print_result(plan, result, format)
    if result.refused:
        raise CommandError(
            f"the broker rejected {result.refused} records. Last error: {result.refusal}. The next "
            "redrive sends them again."
        )
    if result.not_freed:
        raise CommandError(
            f"{result.not_freed} redriven records may still hold their keys: "
            f"{result.not_freed_error}. "
            "Release them with `shoal dlq skip`."
        )


async def _check_dead_letter_topic(client: Client, topic: str) -> None:
    """Raise `CommandError` for a topic that no group can use for dead letters."""
    await client.cluster.get_topic(topic)
    if await dead_letter_topics.may_hold_dead_letters(client.admin, topic):
        return
    topics = [*await dead_letter_topics.list_dead_letter_topics(client.admin)]
    raise CommandError(
        f"{topic} is not a topic of dead letters: its {dead_letter_topics.ENABLED} is not true, and"
        " no share group sends its letters there. "
        + (
            f"The topics of dead letters are {', '.join(topics[:TOPICS_NAMED])}."
            if topics
            else "There are no topics of dead letters. See `shoal queue create --dead-letters`."
        )
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
        raise CommandError(
            "select the records with --topic, --partition, --offsets, --key or --all.", USAGE
        )
    if (partition or offsets) and not topic:
        raise CommandError("--partition and --offsets need --topic.", USAGE)
    wanted_offsets = _parse_offsets(offsets, partition)
    keys = {text.encode() for text in key or ()}
    expect(await client.admin.groups.describe([group]))
    positions = (await lag.find_positions(client.admin, {group: SHARE}))[group]
    selected = [
        held_key
        for held_key in await find_held_keys(
            client, positions, keys_max=sys.maxsize if key else KEYS_MAX
        )
        if (topic is None or held_key.partition.topic == topic)
        and (not partition or held_key.partition.partition in partition)
        and (wanted_offsets is None or held_key.offset in wanted_offsets)
        and (not keys or held_key.key in keys)
    ]
    if not dry_run:
        by_partition: dict[TopicPartition, OffsetSet] = {}
        for held_key in selected:
            by_partition.setdefault(held_key.partition, OffsetSet()).add(held_key.offset)
        ranges = {
            topic_partition: [*offset_set.iter_ranges()]
            for topic_partition, offset_set in by_partition.items()
        }
        expect(await client.admin.share_groups.free(group, ranges))
    if format is not Format.TABLE:
        rows = [held_key.to_row() for held_key in selected]
        output.print_document(format, {"group": group, "dry_run": dry_run, "skipped": rows})
        return
    output.print_rows(format, [held_key.to_row() for held_key in selected])
    noun = "record" if len(selected) == 1 else "records"
    verb = "Would skip" if dry_run else "Skipped"
    say(f"{verb} {len(selected)} {noun} of group {group} that held a key.")


async def _choose(
    client: Client, topic: str, letter_filter: DeadLetterFilter, letters_max: int | None
) -> dict[int, OffsetSet]:
    """Ask about each letter; return the offsets of the chosen ones by partition."""
    chosen: dict[int, OffsetSet] = {}
    count = 0
    redriven = await _read_redriven(client, topic)
    async for letter in dead_letter_topics.read_dead_letters(client, topic):
        if not letter_filter.matches(letter):
            continue
        output.print_rows(Format.TABLE, _make_rows([letter], redriven), expendable=_EXPENDABLE)
        answer = prompts.ask("Redrive it? yes, no, or quit", default="no").lower()
        if answer.startswith("q"):
            break
        if answer.startswith("y"):
            chosen.setdefault(letter.partition, OffsetSet()).add(letter.offset)
            count += 1
            if count == letters_max:
                break
    return chosen


def _make_rows(letters: Sequence[DeadLetter], redriven: Redriven) -> list[dict[str, Any]]:
    """Return the rows of a table, with a column for failures if a worker gave a reason."""
    rows = [_make_row(letter, redriven) for letter in letters]
    if not any(row["failure"] for row in rows):
        for row in rows:
            del row["failure"]
    return rows


async def _read_redriven(client: Client, topic: str) -> Redriven:
    """Return the letters that were redriven, by partition; None if the client may not read this."""
    try:
        return await RedriveLedger(client.cluster).read_redriven(topic)
    except KafkaError:
        return None


def _is_redriven(letter: DeadLetter, redriven: Redriven) -> bool | None:
    return None if redriven is None else letter.offset in redriven.get(letter.partition, ())


def _make_row(letter: DeadLetter, redriven: Redriven) -> dict[str, Any]:
    record = letter.record
    value = "-" if record.value is None else record.value.decode(errors="replace")
    return {
        "letter": f"{letter.partition}@{letter.offset}",
        "written": output.format_timestamp(letter.timestamp_ms),
        "reason": letter.reason,
        "failure": str(letter.failure) or None,
        "group": letter.group,
        "source": f"{letter.source_topic}-{letter.source_partition}@{letter.source_offset}",
        "deliveries": letter.delivery_count,
        "redriven": _is_redriven(letter, redriven),
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value": value,
    }


def _make_group_row(group: FailureGroup) -> dict[str, Any]:
    return {
        "letters": group.letters,
        "exception": group.exception,
        "source_topics": sorted(group.source_topics),
        "groups": sorted(group.groups),
        "newest_ms": group.newest.timestamp_ms,
        "newest": group.newest.name,
        "newest_message": group.newest.failure.message,
    }


def _make_full_row(letter: DeadLetter, redriven: Redriven) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "written_ms": letter.timestamp_ms,
        "reason": letter.reason,
        "message": letter.message,
        "disposition": letter.disposition,
        "exception": letter.failure.exception_class,
        "exception_message": letter.failure.message,
        "stacktrace": letter.failure.stacktrace,
        "code": letter.failure.code,
        "worker": letter.failure.worker,
        "group": letter.group,
        "source_topic": letter.source_topic,
        "source_partition": letter.source_partition,
        "source_offset": letter.source_offset,
        "deliveries": letter.delivery_count,
        "redriven": _is_redriven(letter, redriven),
        "member": letter.member_id,
        "client_id": letter.client_id,
        "key": letter.record.key,
        "value": letter.record.value,
        "headers": {format_header_key(name): value for name, value in letter.record.headers},
    }


def _parse_reasons(words: list[str] | None) -> list[str]:
    for word in words or ():
        if word not in REASONS:
            raise CommandError(
                f"--reason must be one of {', '.join(REASONS)}, not {word!r}.", USAGE
            )
    return words or []


def _parse_headers(words: list[str] | None) -> dict[str, bytes | None]:
    headers: dict[str, bytes | None] = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not name:
            raise CommandError(f"--header must be NAME or NAME=VALUE, not {word!r}.", USAGE)
        headers[name] = value.encode() if sign else None
    return headers


def _parse_offsets(text: str | None, partitions: list[int] | None) -> OffsetSet | None:
    if text is None:
        return None
    if len(partitions or ()) != 1:
        raise CommandError("--offsets needs exactly one --partition.", USAGE)
    try:
        return OffsetSet.parse(text)
    except ValueError:
        raise CommandError(
            f"--offsets must be offsets and ranges like 3-7,9, not {text!r}.", USAGE
        ) from None


def _print_result(plan: RedrivePlan, result: RedriveResult, format: Format) -> None:
    kinds = [
        {"source_topic": k.source_topic, "group": k.group, "reason": k.reason, "letters": n}
        for k, n in sorted(result.sent.items())
    ]
    passed = {
        "redriven before": result.redriven_before,
        "excluded by the filter": result.filtered,
        "record deleted": result.records_missing,
        "not a dead letter": result.not_dead_letters,
        **{f"topic {name} does not exist": n for name, n in result.topics_missing.items()},
    }
    if format is not Format.TABLE:
        document = {
            "topic": plan.topic,
            "to": plan.to,
            "dry_run": plan.dry_run,
            "redriven": result.total,
            "kinds": kinds,
            "before": result.redriven_before,
            "filtered": result.filtered,
            "gone": result.records_missing,
            "homeless": dict(result.topics_missing),
            "others": result.not_dead_letters,
            "doubted": result.doubted,
            "refused": result.refused,
            "unfreed": result.not_freed,
        }
        output.print_document(format, document)
        return
    output.print_rows(format, kinds)
    verb = "Would redrive" if plan.dry_run else "Redrove"
    noun = "letter" if result.total == 1 else "letters"
    target = f"into {plan.to}" if plan.to else "into their source topics"
    say(f"{verb} {result.total} {noun} of {plan.topic} {target}.")
    if skipped := ", ".join(f"{n} ({reason})" for reason, n in passed.items() if n):
        say(f"Skipped: {skipped}.")
    if result.doubted:
        say(f"Records that look like letters and do not count: {result.doubted}. {result.doubt}.")
