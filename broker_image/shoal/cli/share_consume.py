"""`shoal share-consume`: acquire records from a share group and settle them.

Implicit mode (the default) accepts printed records with the next fetch, as a share consumer in
implicit mode does. Explicit mode (`--ack`) settles each record individually, by a pattern or by
hand. When the command ends, implicit mode accepts the printed records. All others are released.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from shoal.cli.consume import Stop
from shoal.cli.records import AnyRecord, RecordFormat, printer
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client import lag, skipped_records
from shoal.client.batches import CorruptRecords
from shoal.client.blocking_calls import run_in_thread
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.share import (
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    Refusal,
    SharedRecord,
    ShareSession,
)
from shoal.client.topics import OffsetSpec
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.record.offset_set import OffsetSet

app = new_app("Acquire records from a share group and settle them.")

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
    format: RecordFormat = TEMPLATE,
) -> None:
    """Print records with their delivery count and settle them."""
    show = printer(format)
    stop = Stop(max_messages, timeout)
    pattern = _pattern(ack)
    for topic in topics:
        await client.cluster.topic(topic)
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
            await _implicit(session, show, stop, limit)
        else:
            await _explicit(session, show, stop, limit, pattern)


def _pattern(ack: str | None) -> list[AcknowledgeType] | None:
    """Return None for implicit mode, an empty list to ask, else the types of the pattern."""
    if ack is None:
        return None
    if ack == "ask":
        if not sys.stdin.isatty():
            raise Failed("--ack ask needs a terminal.", USAGE)
        return []
    unknown = [word for word in ack.split(",") if word not in _WORDS]
    if unknown:
        raise Failed(
            f"--ack must be accept, release, reject, renew or ask, not {unknown[0]!r}.", USAGE
        )
    return [_WORDS[word] for word in ack.split(",")]


async def _begin_at_the_oldest(client: Client, group: str, topics: list[str]) -> None:
    """Set share partitions without a position to the start of their log (ADR 57).

    A group with members keeps its positions: they were set when the members joined.
    """
    admin = client.admin
    asked = dict.fromkeys(await _unread_partitions(client, group, topics), OffsetSpec.EARLIEST)
    if not asked:
        return
    starts = expect(await admin.topics.offsets(asked))
    try:
        offsets = {p: listed.offset for p, listed in starts.items()}
        expect(await admin.share_groups.alter_offsets(group, offsets))
    except KafkaError as error:
        if error.code is not ErrorCode.non_empty_group:
            raise


async def _unread_partitions(client: Client, group: str, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions in which the group has no position."""
    admin = client.admin
    found = expect(await admin.topics.describe(topics))
    wanted = [TopicPartition(t.name, p.index) for t in found.values() for p in t.partitions]
    have = (await admin.share_groups.offsets([group])).get(group)
    if isinstance(have, KafkaError):
        if have.code is not ErrorCode.group_id_not_found:
            raise have
        have = None  # Its first member, or setting its offsets, creates the group.
    known = {
        p for p, o in (have or {}).items() if not isinstance(o, KafkaError) and o.start_offset >= 0
    }
    return [p for p in wanted if p not in known]


async def _warn_of_skipped_records(client: Client, group: str, topics: list[str]) -> None:
    """Warn if the group starts at the end of a topic that has records."""
    try:
        unread = await _unread_partitions(client, group, topics)
        resource = Resource(ResourceType.GROUP, group)
        configs = (await client.admin.configs.describe([resource], keys=[_RESET]))[resource]
        if isinstance(configs, KafkaError) or configs[_RESET].value != "latest":
            return
        ends = await lag.log_ends(client.admin, unread)
        starts = await skipped_records.read_log_starts(client.admin, unread)
    except ClientError:
        return  # A user who may not see this may still consume.
    positions = [lag.Position(p, ends.get(p), ends.get(p), 0) for p in unread]
    for topic, count in skipped_records.count_before(starts, positions).items():
        warn(skipped_records.say_left_behind(group, topic, count, type="share"))


async def _acquire(
    session: ShareSession, stop: Stop, limit: int, carried: list[Acknowledgement]
) -> tuple[Acquired, ...]:
    if stop.max_messages is not None:
        limit = min(limit, stop.max_messages - stop.count)
    found = await session.acquire(
        max_records=limit,
        max_wait_ms=stop.wait_ms,
        mode=AcquireMode.RECORD_LIMIT,
        acknowledgements=carried,
    )
    _report(found.refusals)
    return found.acquired


async def _implicit(
    session: ShareSession, show: Callable[[AnyRecord], str], stop: Stop, limit: int
) -> None:
    printed: list[Acknowledgement] = []
    try:
        while not stop.full and not stop.idle:
            carried, printed = printed, []
            for acquired in await _acquire(session, stop, limit, carried):
                for record in _records(acquired, printed):
                    say(show(record), flush=True)
                    printed.append(_settled(record, AcknowledgeType.ACCEPT))
                    stop.took()
    finally:
        if printed:
            _report(await session.acknowledge(merged(printed)))


async def _explicit(
    session: ShareSession,
    show: Callable[[AnyRecord], str],
    stop: Stop,
    limit: int,
    pattern: list[AcknowledgeType],
) -> None:
    while not stop.full and not stop.idle:
        for acquired in await _acquire(session, stop, limit, []):
            settled: list[Acknowledgement] = []
            for record in _records(acquired, settled):
                say(show(record), flush=True)
                stop.took()
                if pattern:
                    settled.append(_settled(record, pattern[record.offset % len(pattern)]))
                elif not await _ask(session, record):
                    return
            if settled:
                _report(await session.acknowledge(merged(settled)))


def _records(acquired: Acquired, settled: list[Acknowledgement]) -> list[SharedRecord]:
    """Return the records. Add acknowledgements of gaps and corrupt batches to `settled`."""
    try:
        found = list(acquired.records())
    except (CorruptRecords, CorruptBatch) as error:
        warn(f"{acquired.topic}-{acquired.partition}: {error}. The records are rejected.")
        settled += acquired.acknowledge(AcknowledgeType.REJECT)
        return []
    present = {record.offset for record in found}
    settled += [
        Acknowledgement(acquired.topic, acquired.partition, at, at, AcknowledgeType.GAP)
        for r in acquired.ranges
        for at in range(r.first_offset, r.last_offset + 1)
        if at not in present
    ]
    return found


async def _ask(session: ShareSession, record: SharedRecord) -> bool:
    """Settle one record as the user answers; return whether to continue."""
    while True:
        answer = (await run_in_thread(_prompt)).strip().lower()[:1]
        if answer in ("q", ""):
            return False
        if answer in _ANSWERS:
            _report(await session.acknowledge([_settled(record, _ANSWERS[answer])]))
            if answer != "n":
                return True


def _prompt() -> str:
    try:
        return input(_QUESTION) or "a"
    except EOFError:
        return "q"


def _settled(record: SharedRecord, type: AcknowledgeType) -> Acknowledgement:
    return Acknowledgement(record.topic, record.partition, record.offset, record.offset, type)


def merged(acks: list[Acknowledgement]) -> list[Acknowledgement]:
    """Merge adjacent offsets with the same type into ranges."""
    offsets: dict[tuple[str, int, AcknowledgeType], OffsetSet] = {}
    for ack in acks:
        alike = offsets.setdefault((ack.topic, ack.partition, ack.type), OffsetSet())
        alike.add(ack.first_offset, ack.last_offset)
    return sorted(
        Acknowledgement(topic, partition, first, last, type)
        for (topic, partition, type), alike in offsets.items()
        for first, last in alike.ranges()
    )


def _report(refusals: tuple[Refusal, ...]) -> None:
    for ack, error in refusals:
        many = ack.last_offset > ack.first_offset
        where = (
            f"offsets {ack.first_offset} to {ack.last_offset}"
            if many
            else (f"offset {ack.first_offset}")
        )
        warn(f"{ack.topic}-{ack.partition} {where} not settled, will be delivered again: {error}.")
