"""`shoal consume`: read records from chosen offsets or as a member of a consumer group."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from shoal.cli import output, timestamps
from shoal.cli.group_names import check_group
from shoal.cli.records import AnyRecord, RecordFormat, make_printer
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer, Reader
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.membership import FENCED
from shoal.client.queues import lag, skipped_records
from shoal.record.key_ranges import InvalidKeyRanges, KeyRanges

app = make_app("Read records, by offset or in a consumer group.")

POLL_MS = 500
GroupName = Annotated[
    str | None, typer.Option("--group", "-g", help="Join this consumer group and commit offsets.")
]
#: The key ranges that a group assigns to its member.
ASSIGNED = "assigned"
_NOT_IN_A_GROUP = (
    "--partition, --offset, --timestamp and --exit-at-end do not work with --group, and "
    f"--key-ranges only with {ASSIGNED}. "
    "To move the group's positions, use `shoal groups reset-offsets`."
)


@command(app)
async def consume(
    client: Client,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to read.")],
    group: GroupName = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record.")
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(help="Start at this offset; -N starts N records before the end."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start at a time, or a duration ago such as 15m."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this partition; may be repeated."),
    ] = None,
    key_ranges: Annotated[
        str | None,
        typer.Option(
            metavar="1/4",
            help="Only records of these key ranges: 1/4, FIRST-LAST; with --group: assigned.",
        ),
    ] = None,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, help="Stop after this number of records."),
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of the log.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="5s", help="Stop after this time without a record.")
    ] = None,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Skip records of aborted transactions.")
    ] = False,
    format: RecordFormat = "text",
) -> None:
    """Print records as they arrive, by default only new ones."""
    show = make_printer(format)
    stop = StopCondition(max_messages, timeout)
    isolation = Isolation(int(read_committed))
    if sum([from_beginning, offset is not None, timestamp is not None]) > 1:
        raise CommandError("use only one of --from-beginning, --offset and --timestamp.", USAGE)
    reset = Reset.EARLIEST if from_beginning else Reset.LATEST
    if group is not None:
        check_group(group)
        chosen = key_ranges not in (None, ASSIGNED)
        if partition or offset is not None or timestamp is not None or exit_at_end or chosen:
            raise CommandError(_NOT_IN_A_GROUP, USAGE)
        all_partitions = await _find_partitions(client, topics, None)
        await _warn_of_skipped_records(client, group, all_partitions, reset)
        shares = key_ranges == ASSIGNED
        async with await GroupConsumer.join(
            client.cluster, group, topics, reset=reset, isolation=isolation, key_ranges=shares
        ) as consumer:
            await _consume_in_group(consumer, show, stop)
        return
    partitions = await _find_partitions(client, topics, partition)
    positions = await _find_positions(client, partitions, reset, offset, timestamp)
    reader = Reader(client.cluster, positions, isolation=isolation)
    if key_ranges is not None:
        await reader.assign(dict.fromkeys(partitions, _parse_key_ranges(key_ranges)))
    ends = await find_start_offsets(client.cluster, partitions, Reset.LATEST) if exit_at_end else {}
    await _consume_alone(reader, ends, show, stop)


async def _warn_of_skipped_records(
    client: Client, group: str, partitions: list[TopicPartition], reset: Reset
) -> None:
    """Warn if the group starts at the end of a topic that has records."""
    if reset is not Reset.LATEST:
        return
    unread = set(partitions)
    try:
        committed = (await client.admin.groups.offsets([group])).get(group)
        if not isinstance(committed, KafkaError):
            unread -= {p for p, position in (committed or {}).items() if position.offset >= 0}
        ends = await lag.find_log_ends(client.admin, unread)
        starts = await skipped_records.read_log_starts(client.admin, unread)
    except ClientError:
        return  # A user who may not see this may still consume.
    positions = [lag.Position(p, ends.get(p), ends.get(p), 0) for p in sorted(unread)]
    for topic, count in skipped_records.count_before(starts, positions).items():
        warn(skipped_records.say_left_behind(group, topic, count))


def _parse_key_ranges(text: str) -> KeyRanges:
    if text == ASSIGNED:
        raise CommandError(f"--key-ranges {ASSIGNED} needs --group.", USAGE)
    try:
        return KeyRanges.parse(text)
    except InvalidKeyRanges as error:
        raise CommandError(f"--key-ranges: {error}.", USAGE) from None


class StopCondition:
    """Decides when the command has read enough."""

    def __init__(self, max_messages: int | None, timeout: str | None) -> None:
        self.count = 0
        self.max_messages = max_messages
        self._timeout_s = None
        if timeout is not None:
            timeout_ms = timestamps.parse_duration_ms(timeout)
            if timeout_ms is None:
                raise CommandError(f"--timeout {timeout!r}: write 500ms, 5s or 2m.", USAGE)
            self._timeout_s = timeout_ms / 1000
        self._last = time.monotonic()

    def count_record(self) -> bool:
        """Count one record; return whether it was the last one."""
        self.count += 1
        self._last = time.monotonic()
        return self.full

    @property
    def full(self) -> bool:
        return self.max_messages is not None and self.count >= self.max_messages

    @property
    def idle(self) -> bool:
        return self._timeout_s is not None and time.monotonic() - self._last >= self._timeout_s

    @property
    def wait_ms(self) -> int:
        """The maximum wait of one poll in milliseconds."""
        if self._timeout_s is None:
            return POLL_MS
        left_s = self._last + self._timeout_s - time.monotonic()
        return max(1, min(POLL_MS, int(left_s * 1000)))


async def _consume_alone(
    reader: Reader,
    ends: dict[TopicPartition, int],
    show: Callable[[AnyRecord], str],
    stop: StopCondition,
) -> None:
    flush = sys.stdout.isatty() or stop.max_messages is None
    with output.progress(stop.max_messages, "Reading", prints=True) as advance:
        while not _is_at_end(reader, ends) and not stop.idle:
            before = stop.count
            for record in await reader.poll(stop.wait_ms):
                if ends and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                    continue
                say(show(record))
                if stop.count_record():
                    return
            if flush:
                sys.stdout.flush()
            advance(stop.count - before)


def _is_at_end(reader: Reader, ends: dict[TopicPartition, int]) -> bool:
    return bool(ends) and all(reader.positions[p] >= end for p, end in ends.items())


async def _consume_in_group(
    consumer: GroupConsumer, show: Callable[[AnyRecord], str], stop: StopCondition
) -> None:
    while not stop.idle:
        polled = await consumer.poll(stop.wait_ms)
        for record in polled:
            say(show(record), flush=True)
            if stop.count_record():
                # Leave the rest of the poll to the group's next member.
                for unread in polled:
                    consumer.rewind(TopicPartition(*unread[:2]), unread.offset)
                return
        try:
            await consumer.commit()
        except KafkaError as error:
            if error.code not in FENCED:
                raise
            # The member joins again. The new owner of a partition gets the uncommitted records
            # again.
            warn(f"{error}: records printed since the last commit are delivered again.")


async def _find_partitions(
    client: Client, topics: list[str], partition: list[int] | None
) -> list[TopicPartition]:
    partitions = []
    for name in topics:
        topic = await client.cluster.get_topic(name)
        indexes = [p.index for p in topic.partitions] if partition is None else partition
        partitions += [TopicPartition(name, topic.get_partition(i).index) for i in indexes]
    return partitions


async def _find_positions(
    client: Client,
    partitions: list[TopicPartition],
    reset: Reset,
    offset: int | None,
    timestamp: str | None,
) -> dict[TopicPartition, int]:
    if timestamp is not None:
        timestamp_ms = timestamps.parse_timestamp(timestamp)
        listed = expect(await client.admin.topics.offsets(dict.fromkeys(partitions, timestamp_ms)))
        ends = await find_start_offsets(client.cluster, partitions, Reset.LATEST)
        return {p: ends[p] if o.offset < 0 else o.offset for p, o in listed.items()}
    if offset is None:
        return await find_start_offsets(client.cluster, partitions, reset)
    first = await find_start_offsets(client.cluster, partitions, Reset.EARLIEST)
    ends = await find_start_offsets(client.cluster, partitions, Reset.LATEST)
    return {p: max(first[p], offset if offset >= 0 else ends[p] + offset) for p in partitions}
