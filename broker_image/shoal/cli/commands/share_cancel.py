"""`shoal share cancel`: take records from a share group before it has processed them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.cli import output, timestamps
from shoal.cli.commands import groups
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, require_shoal, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.queues import cancellations
from shoal.client.queues.cancellations import CancelReport, RecordMatch
from shoal.protocol.share import CancelOutcome
from shoal.record.dedup_ids import DEDUP_ID
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.net.cluster import TopicPartition

#: The words of the output, and what a table says of each outcome.
_WORDS = {
    CancelOutcome.CANCELLED: ("cancelled", "cancelled"),
    CancelOutcome.IN_FLIGHT: ("in-flight", "marked while a member holds them"),
    CancelOutcome.DONE: ("done", "done before"),
    CancelOutcome.NOT_FOUND: ("not-found", "not in the log"),
}


class Selector(NamedTuple):
    """The options that select records."""

    id: Annotated[
        str | None,
        typer.Option("--id", help=f"Records with this {DEDUP_ID} header."),
    ] = None
    offsets: Annotated[
        str | None, typer.Option(metavar="3-7,9", help="These offsets of one partition.")
    ] = None
    key: Annotated[str | None, typer.Option(help="Records with this key.")] = None
    header: Annotated[
        str | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Records with this header."),
    ] = None
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only records produced before: 2026-01-31T12:00, epoch ms, or 15m ago.",
        ),
    ] = None

    def make_match(self) -> RecordMatch:
        """Return what the records contain. Raises `CommandError`."""
        before_ms = timestamps.parse_timestamp(self.before) if self.before else None
        if self.id is not None:
            return RecordMatch.from_id(self.id)._replace(before_ms=before_ms)
        if self.key is not None:
            return RecordMatch(key=self.key.encode(), before_ms=before_ms)
        name, sign, value = (self.header or "").partition("=")
        if not name or not sign:
            raise CommandError(f"--header must be NAME=VALUE, not {self.header!r}.", USAGE)
        return RecordMatch(header=(name, value.encode()), before_ms=before_ms)

    def parse_offsets(self, partitions: list[TopicPartition]) -> OffsetSet | None:
        """Return the offsets, or None without them. Raises `CommandError`."""
        if self.offsets is None:
            return None
        if len(partitions) != 1:
            raise CommandError("--offsets needs one partition, such as orders:0.", USAGE)
        try:
            return OffsetSet.parse(self.offsets)
        except ValueError:
            raise CommandError(
                f"--offsets must be offsets and ranges like 3-7,9, not {self.offsets!r}.", USAGE
            ) from None

    def check(self) -> None:
        """Raise `CommandError` unless one option selects the records."""
        selectors = [
            selector
            for selector in (self.id, self.offsets, self.key, self.header)
            if selector is not None
        ]
        if len(selectors) != 1:
            raise CommandError(
                "select the records with one of --id, --offsets, --key and --header.", USAGE
            )
        if self.before is not None and self.offsets is not None:
            raise CommandError("--before does not work with --offsets.", USAGE)


async def cancel(
    client: Client,
    group: groups.Id,
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:0,1]", help="A topic, or some of its partitions."),
    ],
    selector: Selector,
    dead_letter: Annotated[
        bool,
        typer.Option("--dead-letter", help="Write a dead letter of each record that is cancelled."),
    ] = False,
    max_rows: Annotated[
        int, typer.Option("--max-rows", "-n", min=0, help="List at most this many records.")
    ] = cancellations.ROWS_MAX,
    format: FormatOption = Format.TABLE,
) -> None:
    """Cancel records: the group does not get them, or not again if a member holds them.

    A member that holds a record may still accept it. Its lock is not renewed, and once it gives the
    record back, the record is archived. Ctrl-C stops between two requests; run the command again to
    continue. Cancelling a record twice changes nothing.
    """
    selector.check()
    await require_shoal(client, "request to cancel records")
    await groups.require_share_group(client, group)
    partitions = await groups.parse_partitions(client, [topic], "TOPIC")
    offsets = selector.parse_offsets(partitions)
    match = selector.make_match() if offsets is None else None
    report = CancelReport(max_rows)
    try:
        for partition in partitions:
            if offsets is not None:
                await cancellations.cancel_offsets(
                    client, group, partition, offsets, report, dead_letter=dead_letter
                )
            elif match is not None:
                await cancellations.cancel_matching(
                    client, group, partition, match, report, dead_letter=dead_letter
                )
    except (asyncio.CancelledError, ClientError):
        if report.total:
            _print(format, group, topic, report)
        warn("stopped. Run the command again to continue.")
        raise
    _print(format, group, topic, report)


def _print(format: Format, group: str, topic: str, report: CancelReport) -> None:
    rows = [
        {
            "topic": record.partition.topic,
            "partition": record.partition.partition,
            "offset": record.offset,
            "outcome": _WORDS[record.outcome][0],
        }
        for record in report.rows
    ]
    if format is not Format.TABLE:
        counts: dict[str, Any] = {
            word.replace("-", "_"): report.counts[outcome] for outcome, (word, _) in _WORDS.items()
        }
        output.print_document(format, {"group": group, **counts, "records": rows})
        return
    if not report.total:
        say(f"{topic} has no such records for group {group}.")
        return
    output.print_rows(format, rows, ["partition", "offset", "outcome"])
    say(_format_counts(report))
    if report.total > len(rows):
        warn(f"{len(rows)} of {report.total:,} records are listed; see --max-rows.")


def _format_counts(report: CancelReport) -> str:
    """Return the sentence with the number of records for each outcome."""
    parts = [
        f"{report.counts[outcome]:,} {text}"
        for outcome, (_, text) in _WORDS.items()
        if report.counts[outcome]
    ]
    return f"Records: {', '.join(parts) or 'none cancelled'}."
