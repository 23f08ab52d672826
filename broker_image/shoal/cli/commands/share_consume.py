"""`shoal share-consume`: acquire records from a share group and settle them.

Implicit mode (the default) accepts printed records with the next fetch, as a share consumer in
implicit mode does. Explicit mode (`--ack`) settles each record individually, by a pattern or by
hand. When the command ends, implicit mode accepts the printed records. All others are released.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from shoal.cli.commands.consume import StopCondition
from shoal.cli.commands.share_exec import ExecOptions, run_commands
from shoal.cli.group_names import check_group
from shoal.cli.records import AnyRecord, RecordFormat, make_printer
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import OffsetSpec
from shoal.client.blocking_calls import run_in_thread
from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.batches import CorruptRecords
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag, skipped_records
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    AcquireMode,
    RejectedAcknowledgement,
    SharedRecord,
    ShareSession,
)
from shoal.protocol.errors import ErrorCode
from shoal.protocol.reasons import FailureReason
from shoal.record.batch import CorruptBatch
from shoal.record.offset_set import OffsetSet

app = make_app("Acquire records from a share group and settle them.")

#: Records per fetch, few enough that several consumers in several terminals all get some.
MAX_RECORDS = 20
_RESET = "share.auto.offset.reset"
TEMPLATE = "{topic}-{partition} @{offset} delivery {delivery_count}: {value}"
_WORDS = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
    "renew": AcknowledgeType.RENEW,
}
_QUESTION = "[a]ccept, re[l]ease, re[j]ect, re[n]ew, [q]uit? "
_ANSWERS = {
    "a": AcknowledgeType.ACCEPT,
    "l": AcknowledgeType.RELEASE,
    "j": AcknowledgeType.REJECT,
    "n": AcknowledgeType.RENEW,
}


@command(app)
async def share_consume(
    client: Client,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to consume.")],
    group: Annotated[str, typer.Option("--group", "-g", help="The share group.")],
    ack: Annotated[
        str | None,
        typer.Option(
            "--ack",
            "-a",
            metavar="accept|release|reject|renew|ask|PATTERN",
            help="Settle each record individually. A pattern such as accept,accept,release "
            "applies by offset modulo its length; ask prompts for each record.",
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="With --ack: why records are released or rejected, for their dead letters.",
        ),
    ] = "",
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the oldest record in partitions without a position. Sets these "
            "positions once and does not change the group's configs.",
        ),
    ] = False,
    max_messages: Annotated[
        int | None,
        typer.Option("--max-messages", "-n", min=1, help="Stop after this number of records."),
    ] = None,
    max_records: Annotated[
        int,
        typer.Option("--max-records", min=1, help="Lock at most this number of records at a time."),
    ] = MAX_RECORDS,
    timeout: Annotated[
        str | None, typer.Option(metavar="5s", help="Stop after this time without a record.")
    ] = None,
    commands: ExecOptions = ExecOptions(),
    format: RecordFormat = TEMPLATE,
) -> None:
    """Print records with their delivery count and settle them, or run a command for each."""
    check_group(group)
    if commands.exec is not None:
        if ack is not None:
            raise CommandError("--ack and --exec exclude each other: the exit code decides.", USAGE)
        await run_commands(client, group, topics, commands, max_messages)
        return
    show = make_printer(format)
    stop = StopCondition(max_messages, timeout)
    pattern = _parse_pattern(ack)
    if reason and pattern is None:
        raise CommandError("--reason needs --ack: printed records are accepted.", USAGE)
    for topic in topics:
        await client.cluster.get_topic(topic)
    if from_beginning:
        await _begin_at_the_oldest(client, group, topics)
    else:
        await _warn_of_skipped_records(client, group, topics)
    if pattern is None and sys.stdin.isatty() and sys.stdout.isatty():
        looking = f"shoal consume {' '.join(topics)} --from-beginning"
        warn(f"printed records are accepted and leave the queue. To only look, use `{looking}`.")
    limit = 1 if pattern == [] else max_records
    async with await client.share(group, topics) as session:
        if pattern is None:
            await _consume_implicitly(session, show, stop, limit)
        else:
            await _consume_explicitly(session, show, stop, limit, pattern, reason)


def _parse_pattern(ack: str | None) -> list[AcknowledgeType] | None:
    """Return None for implicit mode, an empty list to ask, else the types of the pattern."""
    if ack is None:
        return None
    if ack == "ask":
        if not sys.stdin.isatty():
            raise CommandError("--ack ask needs a terminal.", USAGE)
        return []
    unknown = [word for word in ack.split(",") if word not in _WORDS]
    if unknown:
        raise CommandError(
            f"--ack must be accept, release, reject, renew or ask, not {unknown[0]!r}.", USAGE
        )
    return [_WORDS[word] for word in ack.split(",")]


async def _begin_at_the_oldest(client: Client, group: str, topics: list[str]) -> None:
    """Set share partitions without a position to the start of their log (ADR 57).

    A group with members keeps its positions: they were set when the members joined.
    """
    admin = client.admin
    specs = dict.fromkeys(await _find_unread_partitions(client, group, topics), OffsetSpec.EARLIEST)
    if not specs:
        return
    starts = expect(await admin.topics.offsets(specs))
    try:
        offsets = {p: listed.offset for p, listed in starts.items()}
        expect(await admin.share_groups.alter_offsets(group, offsets))
    except KafkaError as error:
        if error.code is not ErrorCode.non_empty_group:
            raise


async def _find_unread_partitions(
    client: Client, group: str, topics: list[str]
) -> list[TopicPartition]:
    """Return the partitions in which the group has no position."""
    admin = client.admin
    described = expect(await admin.topics.describe(topics))
    partitions = [TopicPartition(t.name, p.index) for t in described.values() for p in t.partitions]
    have = (await admin.share_groups.offsets([group])).get(group)
    if isinstance(have, KafkaError):
        if have.code is not ErrorCode.group_id_not_found:
            raise have
        have = None  # Its first member, or setting its offsets, creates the group.
    positioned = {
        p for p, o in (have or {}).items() if not isinstance(o, KafkaError) and o.start_offset >= 0
    }
    return [p for p in partitions if p not in positioned]


async def _warn_of_skipped_records(client: Client, group: str, topics: list[str]) -> None:
    """Warn if the group starts at the end of a topic that has records."""
    try:
        unread = await _find_unread_partitions(client, group, topics)
        resource = ConfigResource(ConfigResourceType.GROUP, group)
        configs = (await client.admin.configs.describe([resource], keys=[_RESET]))[resource]
        if isinstance(configs, KafkaError) or configs[_RESET].value != "latest":
            return
        ends = await lag.find_log_ends(client.admin, unread)
        starts = await skipped_records.read_log_starts(client.admin, unread)
    except ClientError:
        return  # A user who may not see this may still consume.
    positions = [lag.Position(p, ends.get(p), ends.get(p), 0) for p in unread]
    for topic, count in skipped_records.count_before(starts, positions).items():
        warn(skipped_records.say_left_behind(group, topic, count, type="share"))


async def _acquire(
    session: ShareSession, stop: StopCondition, limit: int, carried: list[Acknowledgement]
) -> tuple[AcquiredRecords, ...]:
    if stop.max_messages is not None:
        limit = min(limit, stop.max_messages - stop.count)
    acquisition = await session.acquire(
        max_records=limit,
        max_wait_ms=stop.wait_ms,
        mode=AcquireMode.RECORD_LIMIT,
        acknowledgements=carried,
    )
    _report(acquisition.refusals)
    return acquisition.acquired


async def _consume_implicitly(
    session: ShareSession, show: Callable[[AnyRecord], str], stop: StopCondition, limit: int
) -> None:
    printed: list[Acknowledgement] = []
    try:
        while not stop.full and not stop.idle:
            carried, printed = printed, []
            for acquired in await _acquire(session, stop, limit, carried):
                for record in _decode_records(acquired, printed):
                    say(show(record), flush=True)
                    printed.append(_make_acknowledgement(record, AcknowledgeType.ACCEPT))
                    stop.count_record()
    finally:
        if printed:
            _report(await session.acknowledge(merge(printed)))


async def _consume_explicitly(
    session: ShareSession,
    show: Callable[[AnyRecord], str],
    stop: StopCondition,
    limit: int,
    pattern: list[AcknowledgeType],
    reason: str,
) -> None:
    while not stop.full and not stop.idle:
        for acquired in await _acquire(session, stop, limit, []):
            settled: list[Acknowledgement] = []
            for record in _decode_records(acquired, settled):
                say(show(record), flush=True)
                stop.count_record()
                if pattern:
                    kind = pattern[record.offset % len(pattern)]
                    settled.append(_make_acknowledgement(record, kind, reason))
                elif not await _ask(session, record, reason):
                    return
            if settled:
                _report(await session.acknowledge(merge(settled)))


def _decode_records(
    acquired: AcquiredRecords, settled: list[Acknowledgement]
) -> list[SharedRecord]:
    """Return the records. Add acknowledgements of gaps and corrupt batches to `settled`."""
    try:
        records = list(acquired.records())
    except (CorruptRecords, CorruptBatch) as error:
        warn(f"{acquired.topic}-{acquired.partition}: {error}. The records are rejected.")
        reason = FailureReason(type(error).__name__, str(error), worker=socket.gethostname())
        settled += acquired.acknowledge(AcknowledgeType.REJECT, reason=reason)
        return []
    present = {record.offset for record in records}
    settled += [
        Acknowledgement(acquired.topic, acquired.partition, offset, offset, AcknowledgeType.GAP)
        for r in acquired.ranges
        for offset in range(r.first_offset, r.last_offset + 1)
        if offset not in present
    ]
    return records


async def _ask(session: ShareSession, record: SharedRecord, reason: str) -> bool:
    """Settle one record as the user answers; return whether to continue. A reason may follow the
    answer, as in `j no such customer`."""
    while True:
        word, _, why = (await run_in_thread(_prompt)).strip().partition(" ")
        answer = word.lower()[:1]
        if answer in ("q", ""):
            return False
        if answer in _ANSWERS:
            ack = _make_acknowledgement(record, _ANSWERS[answer], why.strip() or reason)
            _report(await session.acknowledge([ack]))
            if answer != "n":
                return True


def _prompt() -> str:
    try:
        return input(_QUESTION) or "a"
    except EOFError:
        return "q"


def _make_acknowledgement(
    record: SharedRecord, type: AcknowledgeType, reason: str = ""
) -> Acknowledgement:
    why = None
    if reason and type in (AcknowledgeType.RELEASE, AcknowledgeType.REJECT):
        why = FailureReason(message=reason, worker=socket.gethostname())
    place = (record.topic, record.partition, record.offset, record.offset)
    return Acknowledgement(*place, type, reason=why)


def merge(acks: list[Acknowledgement]) -> list[Acknowledgement]:
    """Merge adjacent offsets with the same type and reason into ranges."""
    offsets: dict[tuple[str, int, AcknowledgeType, FailureReason | None], OffsetSet] = {}
    for ack in acks:
        alike = offsets.setdefault((ack.topic, ack.partition, ack.type, ack.reason), OffsetSet())
        alike.add(ack.first_offset, ack.last_offset)
    merged = [
        Acknowledgement(topic, partition, first, last, type, reason=reason)
        for (topic, partition, type, reason), alike in offsets.items()
        for first, last in alike.iter_ranges()
    ]
    return sorted(merged, key=lambda ack: ack[:4])


def _report(refusals: tuple[RejectedAcknowledgement, ...]) -> None:
    for ack, error in refusals:
        many = ack.last_offset > ack.first_offset
        span = (
            f"offsets {ack.first_offset} to {ack.last_offset}"
            if many
            else (f"offset {ack.first_offset}")
        )
        warn(f"{ack.topic}-{ack.partition} {span} not settled, will be delivered again: {error}.")
