"""`shoal share`: handle the dead letters of share groups.

`redrive` sends dead letters back to their topics. `skip` releases the keys that they hold.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from shoal.cli import lag, output, timestamps
from shoal.cli.held_keys import KEYS_MAX, held_keys
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.dead_letters import REASONS, DeadLetterFilter
from shoal.client.errors import expect
from shoal.client.groups import SHARE
from shoal.client.redrive import Plan, Redrive, Redriven
from shoal.record.offset_set import OffsetSet

app = new_app("Redrive dead letters, or release the keys that they hold.")


@app.callback()
def _share() -> None:
    """Redrive dead letters, or release the keys that they hold."""


To = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Send to this topic. Default: each letter's source topic."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be redriven and change nothing.")
]
Reason = Annotated[
    list[str] | None, typer.Option(metavar="|".join(REASONS), help="Only letters with this reason.")
]
Group = Annotated[
    list[str] | None, typer.Option("--group", "-g", help="Only letters of this group.")
]
Source = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC", help="Only letters from this source topic.")
]
Key = Annotated[list[str] | None, typer.Option(help="Only letters with this key.")]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME[=VALUE]",
        help="Only letters with this header, one of __dlq.errors.* or the record's.",
    ),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only letters written at this time or later.")
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only letters written before this time.")
]
Partition = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", "-p", help="Only letters in this partition of the dead-letter topic."
    ),
]
Offsets = Annotated[
    str | None, typer.Option(metavar="3-7,9", help="Only these offsets of one --partition.")
]
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


@command(app, "redrive")
async def redrive(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")],
    to: To = None,
    dry_run: DryRun = False,
    reason: Reason = None,
    group: Group = None,
    source: Source = None,
    key: Key = None,
    header: Header = None,
    since: Since = None,
    until: Until = None,
    partition: Partition = None,
    offsets: Offsets = None,
    rate: Rate = None,
    max_letters: MaxLetters = None,
    note: Note = "",
    again: Again = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Send dead letters back to their topics: all of them, or those that match a filter. Letters
    that were redriven before are skipped.
    """
    wanted = DeadLetterFilter(
        reasons=_reasons(reason),
        groups=group or (),
        source_topics=source or (),
        keys=[one.encode() for one in key or ()],
        headers=_headers(header),
        since_ms=timestamps.timestamp(since) if since else None,
        until_ms=timestamps.timestamp(until) if until else None,
        partitions=partition or (),
        offsets=_offsets(offsets, partition),
    )
    plan = Plan(topic, to, wanted, rate, max_letters, note, again, dry_run)
    try:
        run = Redrive(client.cluster, plan)
    except ValueError as error:
        raise Failed(f"{error}.", USAGE) from None
    with output.progress(await run.size(), f"Redriving {topic}") as progress:
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
            "Release them with `shoal share skip`."
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
        print(
            json.dumps(
                {"group": group, "dry_run": dry_run, "skipped": [one.row() for one in held]},
                indent=2,
            )
        )
        return
    output.rows(format, [one.row() for one in held])
    noun = "record" if len(held) == 1 else "records"
    verb = "Would skip" if dry_run else "Skipped"
    print(f"{verb} {len(held)} {noun} of group {group} that held a key.")


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
        print(
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
    print(f"{verb} {done.total} {noun} of {plan.topic} {where}.")
    if skipped := ", ".join(f"{n} ({what})" for what, n in passed.items() if n):
        print(f"Skipped: {skipped}.")
