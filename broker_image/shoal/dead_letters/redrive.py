"""Redrive: send dead letters back to their source topic or to another topic.

A redrive reads the letters in order, up to the end of their topic at its start. So a record that
fails again is not redriven in circles. A ledger (`redrive_ledger`) records what is sent, before and
after. An interrupted redrive continues where it stopped: it sends nothing twice and skips nothing.
A second redrive skips the letters that the first one sent. Only one redrive of a topic runs at a
time. It is the single member of the consumer group `redrive.TOPIC` and waits until the group has no
other member.

With `share.ordering.key.dead.letter=hold` a dead-lettered record blocks its key. The redrive
releases the key once the record is sent, to whichever topic.

A letter without its record (`errors.deadletterqueue.copy.record.enable=false`, or a record that is
too large) is redriven from the source topic while that still has the record.

Anybody who may write to a topic can write the headers of a letter. So a record is a letter only if
the group in them has this topic as its dead-letter topic, which needs DESCRIBE_CONFIGS on the
group. All else is done with the rights of the client, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.configs import ConfigResource, ConfigResourceType, Configs
from shoal.client.admin.groups import GroupDescription, Groups
from shoal.client.admin.share_groups import ShareGroups
from shoal.client.admin.topics import OffsetSpec, Topics
from shoal.client.consume.consumer import ConsumerMembership
from shoal.client.consume.fetcher import Fetcher
from shoal.client.errors import ClientError, KafkaError, is_transient
from shoal.client.net.batches import CorruptRecords
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.net.metadata import Topic
from shoal.client.produce.partitioner import choose_partition
from shoal.client.produce.producer import Producer
from shoal.client.queues.reserved_groups import get_redrive_group as get_redrive_group
from shoal.coordinator.share.dead_letters import estimate_size_bytes
from shoal.dead_letters.dead_letter_topics import TOPIC
from shoal.dead_letters.records import (
    DeadLetter,
    DeadLetterFilter,
    get_redrive_source,
    make_redriven_headers,
    parse_dead_letter,
)
from shoal.dead_letters.redrive_ledger import RedriveLedger, RedriveState, Sending
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.record.offset_set import OffsetSet, to_ranges

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from shoal.client.admin.configs import ConfigEntry
    from shoal.record.records import Record

#: Letters that are sent, and entered in the ledger, together; fewer if they are large. Batches of a
#: few kilobytes may expand to many megabytes, and a redrive may run in the operator.
CHUNK, CHUNK_BYTES = 500, 16 << 20
#: Seconds to wait until another redrive of the topic ends, or until the broker removes a dead one
#: (the session timeout of consumer groups).
TURN_TIMEOUT_S = 60.0
_GONE = (ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition)
#: Groups of letters whose dead-letter topics are asked for together, and are remembered.
GROUPS_ASKED, GROUPS_KEPT = 100, 10_000
#: The longest group in a letter: a string of the protocol has at most 32 KiB.
GROUP_LENGTH_MAX = 8_000


class DeadLetterKind(NamedTuple):
    """The attributes by which letters are counted: source topic, share group and reason."""

    source_topic: str
    group: str
    reason: str


@dataclass(slots=True)
class RedriveResult:
    """The counts of a redrive so far; of a dry run, the letters that it would send.

    `looked_at` counts the records read from the dead-letter topic, `not_dead_letters` those that
    are none, of which `doubted` look like letters; `doubt` says why the last one does not count.
    `filtered` counts letters that the filter excluded, and `redriven_before` letters redriven
    earlier. `records_missing` counts letters whose record no longer exists, `topics_missing` those
    whose topic does not exist, and `refused` those that a broker rejected, with the last reason.
    `not_freed` letters were sent but may still block their keys, because the broker refused to
    release these, with the last reason.
    """

    sent: Counter[DeadLetterKind] = field(default_factory=Counter)
    looked_at: int = 0
    not_dead_letters: int = 0
    doubted: int = 0
    doubt: str = ""
    filtered: int = 0
    redriven_before: int = 0
    records_missing: int = 0
    topics_missing: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    refusal: ClientError | None = None
    not_freed: int = 0
    not_freed_error: KafkaError | None = None

    @property
    def total(self) -> int:
        return self.sent.total()


class RecordEdit(NamedTuple):
    """A record's key and value to send instead of those that failed."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """The letters to redrive and how.

    Selects letters of `topic` that `filter` matches, at most `letters_max`, before the offsets
    `ends` of its partitions (default: the end of the log). Sends them to `to`, or to their source
    topics if None, at `rate` letters per second. `again` ignores the ledger. `edit` replaces key
    and value; the filter then selects one letter.
    """

    topic: str
    to: str | None = None
    filter: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    rate: float | None = None
    letters_max: int | None = None
    note: str = ""
    again: bool = False
    dry_run: bool = False
    ends: Mapping[TopicPartition, int] | None = None
    edit: RecordEdit | None = None


class _SourceRecords(NamedTuple):
    """Records that were read, and the offset behind what was looked at."""

    records: list[Record]
    end: int


class Redrive:
    """One run of a plan. `result` counts during the run."""

    def __init__(self, cluster: Cluster, plan: RedrivePlan) -> None:
        if plan.to == plan.topic:
            raise ValueError(
                f"{plan.topic} is the dead-letter topic itself. Redrive to another topic"
            )
        self.cluster = cluster
        self.plan = plan
        self.result = RedriveResult()
        self._topics = Topics(cluster)
        self._fetcher = Fetcher(cluster, lane="redrive")
        self._ledger = RedriveLedger(cluster)
        self._producer = Producer(cluster)
        self._share_groups = ShareGroups(cluster)
        self._configs = Configs(cluster)
        #: By group: why its letters in this topic do not count, or "".
        self._doubts: dict[str, str] = {}
        self._begun_s = 0.0

    async def count_records(self) -> int:
        """Return the number of records to read. Raises the same errors as `run`."""
        partitions = await self._find_partitions()
        ends = await self._find_offsets(partitions, OffsetSpec.LATEST)
        starts = await self._find_offsets(partitions, OffsetSpec.EARLIEST)
        return sum(ends.values()) - sum(starts.values())

    async def _find_partitions(self) -> list[TopicPartition]:
        topic = await self.cluster.get_topic(self.plan.topic)
        indexes = self.plan.filter.partitions
        for index in indexes:
            topic.get_partition(index)
        partitions = [TopicPartition(topic.name, p.index) for p in topic.partitions]
        return [
            partition for partition in partitions if not indexes or partition.partition in indexes
        ]

    async def run(
        self,
        progress: Callable[[int], None] = lambda _: None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> RedriveResult:
        """Run the plan. `progress` receives the number of records read, `waiting` why the redrive
        waits.

        Raises `KafkaError` if the dead-letter topic does not exist or a broker refuses. The ledger
        keeps what was redriven until then.
        """
        topic = await self.cluster.get_topic(self.plan.topic)
        assert topic.topic_id is not None
        if self.plan.to is not None:
            await self.cluster.get_topic(self.plan.to)
        partitions = await self._find_partitions()
        turn = _RedriveTurn(self.cluster, topic.name)
        if self.plan.dry_run:
            await self._run(topic.topic_id, partitions, progress, turn)
            return self.result
        try:
            await turn.take(waiting)
            await self._ledger.create()
            await self._run(topic.topic_id, partitions, progress, turn)
        finally:
            await turn.leave()
        return self.result

    async def _run(
        self,
        topic_id: UUID,
        partitions: Sequence[TopicPartition],
        progress: Callable[[int], None],
        turn: _RedriveTurn,
    ) -> None:
        states = await self._ledger.read(topic_id)
        ends = await self._find_offsets(partitions, OffsetSpec.LATEST)
        if self.plan.ends is not None:
            ends = {
                partition: min(end, self.plan.ends.get(partition, 0))
                for partition, end in ends.items()
            }
        starts = await self._find_offsets(partitions, OffsetSpec.EARLIEST)
        self._begun_s = self.cluster.now()
        for partition in partitions:
            state = states.get(partition.partition) or RedriveState(
                partition.topic, partition.partition
            )
            state.redriven.forget(starts[partition])
            if state.sending is not None and not self.plan.dry_run:
                await self._take_over(topic_id, state)
            bounds = (starts[partition], ends[partition])
            async for letters in self._read_chunks(partition, state, bounds, progress):
                remaining = letters
                while remaining:
                    turn.check()
                    remaining = await self._send(topic_id, state, remaining)
            if self._is_full:
                break

    @property
    def _remaining(self) -> int:
        """Return the number of letters that may still be sent."""
        limit = self.plan.letters_max
        return CHUNK if limit is None else max(0, limit - self.result.total)

    @property
    def _is_full(self) -> bool:
        return self._remaining == 0

    # Reading.

    async def _read_chunks(
        self,
        partition: TopicPartition,
        state: RedriveState,
        bounds: tuple[int, int],
        progress: Callable[[int], None],
    ) -> AsyncIterator[list[DeadLetter]]:
        """Yield the letters to send of one partition, in order, in chunks of at most one second."""
        start = bounds[0]
        first, last = start, bounds[1] - 1
        if not self.plan.again and not self.plan.dry_run:
            first = state.redriven.find_first_missing(start)
            self.result.redriven_before += first - start
        progress(first - start)
        if (offsets := self.plan.filter.offsets) is not None and len(offsets):
            ranges = [*offsets.iter_ranges()]
            first, last = max(first, ranges[0][0]), min(last, ranges[-1][1])
        chunk: list[DeadLetter] = []
        chunk_bytes = 0
        size = CHUNK if self.plan.rate is None else max(1, min(CHUNK, int(self.plan.rate)))
        if first > last:
            return
        async for fetched in self._fetcher.fetch_range(
            partition.topic, partition.partition, first, last
        ):
            async for record, letter in self._read_dead_letters(partition, fetched.records()):
                progress(1)
                if self._is_wanted(state, record, letter):
                    assert letter is not None
                    chunk.append(letter)
                    chunk_bytes += estimate_size_bytes(record)
                    if len(chunk) >= min(size, self._remaining) or chunk_bytes >= CHUNK_BYTES:
                        yield chunk
                        chunk, chunk_bytes = [], 0
                if self._is_full:
                    return
        if chunk:
            yield chunk

    async def _read_dead_letters(
        self, partition: TopicPartition, records: Iterable[Record]
    ) -> AsyncIterator[tuple[Record, DeadLetter | None]]:
        """Yield each record of the dead-letter topic, with the letter in it if it counts."""
        for some_records in _split(records):
            await asyncio.sleep(0)  # To expand a batch may take long, so others have a turn.
            parsed = [
                (raw_record, parse_dead_letter(partition.topic, partition.partition, raw_record))
                for raw_record in some_records
            ]
            await self._learn_doubts({letter.group for _, letter in parsed if letter is not None})
            for record, letter in parsed:
                doubt = "" if letter is None else self._doubts[letter.group]
                if doubt:
                    self.result.doubted += 1
                    self.result.doubt = doubt
                yield record, None if doubt else letter

    async def _learn_doubts(self, groups: Collection[str]) -> None:
        """Learn whether groups have this topic as their dead-letter topic. Raises `KafkaError`."""
        if len(self._doubts) > GROUPS_KEPT:
            self._doubts.clear()
        new = [group for group in groups if group not in self._doubts]
        nameless = {group for group in new if not 0 < len(group) <= GROUP_LENGTH_MAX}
        self._doubts |= dict.fromkeys(nameless, "the letter names no group")
        resources = [
            ConfigResource(ConfigResourceType.GROUP, group)
            for group in new
            if group not in nameless
        ]
        for first in range(0, len(resources), GROUPS_ASKED):
            chunk = resources[first : first + GROUPS_ASKED]
            for group, entries in (await self._configs.describe(chunk, keys=[TOPIC])).items():
                self._doubts[group.name] = self._find_doubt(group.name, entries)

    def _find_doubt(self, group: str, entries: Mapping[str, ConfigEntry] | KafkaError) -> str:
        """Return why letters of a group in this topic do not count, or ""."""
        if isinstance(entries, KafkaError):
            if is_transient(entries):
                raise entries
            return f"the configs of group {group!r} cannot be read: {entries}"
        topic = entries[TOPIC].value if TOPIC in entries else ""
        if topic == self.plan.topic:
            return ""
        return f"{TOPIC} of group {group!r} is {topic!r}, not {self.plan.topic!r}"

    def _is_wanted(self, state: RedriveState, record: Record, letter: DeadLetter | None) -> bool:
        """Return whether a record is a letter that is to be redriven, and count it."""
        result = self.result
        result.looked_at += 1
        if letter is None:
            result.not_dead_letters += 1
        elif not self.plan.filter.matches(letter):
            result.filtered += 1
        elif not self.plan.again and record.offset in state.redriven:
            result.redriven_before += 1
        else:
            return True
        return False

    async def _read_originals(
        self, letters: Iterable[DeadLetter]
    ) -> tuple[dict[int, Record], set[int]]:
        """Return the existing records of letters by the letter's offset, and the offsets of letters
        whose records do not fit into memory beside these. They come next."""
        originals: dict[int, Record] = {}
        later: set[int] = set()
        room = CHUNK_BYTES
        bare: dict[TopicPartition, list[DeadLetter]] = {}
        for letter in letters:
            if letter.is_bare:
                source = TopicPartition(letter.source_topic, letter.source_partition)
                bare.setdefault(source, []).append(letter)
            else:
                originals[letter.offset] = letter.record
        for source, bare_letters in bare.items():
            by_offset = {letter.source_offset: letter.offset for letter in bare_letters}
            try:
                for first, last in to_ranges(sorted(by_offset)):
                    read = await self._read_source_records(source, first, last, room)
                    room -= sum(map(estimate_size_bytes, read.records))
                    originals |= {by_offset[record.offset]: record for record in read.records}
                    later |= {by_offset[offset] for offset in range(read.end, last + 1)}
            except KafkaError as error:
                if error.code != ErrorCode.topic_authorization_failed:
                    raise
                self._refuse(len(bare_letters), error)
        if (edit := self.plan.edit) is not None:
            originals = {
                letter_offset: original._replace(key=edit.key, value=edit.value)
                for letter_offset, original in originals.items()
            }
        return originals, later

    def _refuse(self, letters: int, error: ClientError) -> None:
        """Count letters that a broker refuses, so that they stop no others."""
        self.result.refused += letters
        self.result.refusal = error

    async def _read_source_records(
        self, partition: TopicPartition, first: int, last: int, bytes_max: int = CHUNK_BYTES
    ) -> _SourceRecords:
        """Read the records that still exist from `first` to `last`, at least one of them if there
        is room for any."""
        records: list[Record] = []
        if bytes_max <= 0:
            return _SourceRecords(records, first)
        try:
            async for fetched in self._fetcher.fetch_range(*partition, first, last):
                for record in fetched.records():
                    records.append(record)
                    bytes_max -= estimate_size_bytes(record)
                    if bytes_max <= 0:
                        return _SourceRecords(records, record.offset + 1)
            return _SourceRecords(records, last + 1)
        except KafkaError as error:
            if error.code not in _GONE:
                raise
        except (CorruptRecords, CorruptBatch):
            pass
        if first == last:
            return _SourceRecords([], last + 1)
        # One record of the range no longer exists.
        return await self._read_each_source_record(partition, first, last, bytes_max)

    async def _read_each_source_record(
        self, partition: TopicPartition, first: int, last: int, bytes_max: int
    ) -> _SourceRecords:
        """Read the records that still exist from `first` to `last`, one by one."""
        records: list[Record] = []
        for offset in range(first, last + 1):
            if bytes_max <= 0:
                return _SourceRecords(records, offset)
            one_record = (await self._read_source_records(partition, offset, offset)).records
            records += one_record
            bytes_max -= sum(map(estimate_size_bytes, one_record))
        return _SourceRecords(records, last + 1)

    # Sending.

    async def _send(
        self, topic_id: UUID, state: RedriveState, letters: list[DeadLetter]
    ) -> list[DeadLetter]:
        """Send letters, and return those that do not fit into memory beside the others."""
        refused = self.result.refused
        originals, later = await self._read_originals(letters)
        remaining = [letter for letter in letters if letter.offset in later]
        letters = [letter for letter in letters if letter.offset not in later]
        refused = self.result.refused - refused
        self.result.records_missing += len(letters) - len(originals) - refused
        targets = {}
        for letter in letters:
            if letter.offset in originals:
                target = await self._find_target(letter, originals[letter.offset].key)
                if target is not None:
                    targets[letter.offset] = target
        letters = [letter for letter in letters if letter.offset in targets]
        if self.plan.dry_run or not letters:
            self.result.sent.update(_make_kind(letter) for letter in letters)
            return remaining
        ends = await self._find_ends(set(targets.values()))
        state.sending = Sending(letters[0].offset, letters[-1].offset, ends)
        await self._ledger.write(topic_id, state)
        stored = await self._produce(letters, originals, targets)
        for letter in stored:
            state.redriven.add(letter.offset)
            state.counts[letter.group] = state.counts.get(letter.group, 0) + 1
        await self._free(stored)
        self.result.sent.update(_make_kind(letter) for letter in stored)
        state.sending = None
        await self._ledger.write(topic_id, state)
        if self.plan.rate is not None:
            due_s = self._begun_s + self.result.total / self.plan.rate
            await asyncio.sleep(max(0.0, due_s - self.cluster.now()))
        return remaining

    async def _find_target(self, letter: DeadLetter, key: bytes | None) -> TopicPartition | None:
        """Return a letter's target: its source partition, or the key's in another topic or for an
        edited key."""
        name = self.plan.to or letter.source_topic
        if name == self.plan.topic:
            self.result.topics_missing[name] += 1
            return None
        try:
            count = len((await self.cluster.get_topic(name)).partitions)
        except KafkaError as error:
            if error.code == ErrorCode.topic_authorization_failed:
                self._refuse(1, error)
            elif error.code == ErrorCode.unknown_topic_or_partition:
                self.result.topics_missing[name] += 1
            else:
                raise
            return None
        is_rekeyed = self.plan.edit is not None and not letter.is_bare and key != letter.record.key
        if name == letter.source_topic and letter.source_partition < count and not is_rekeyed:
            return TopicPartition(name, letter.source_partition)
        index = letter.source_partition % count if key is None else choose_partition(key, count)
        return TopicPartition(name, index)

    async def _produce(
        self,
        letters: Sequence[DeadLetter],
        originals: dict[int, Record],
        targets: dict[int, TopicPartition],
    ) -> list[DeadLetter]:
        """Send letters and return those that are stored. If a batch is rejected because of some
        records, its valid records are sent again individually.
        """
        stored, refused = await self._produce_together(letters, originals, targets)
        for letter in refused:
            again, _ = await self._produce_together([letter], originals, targets)
            stored += again
        self.result.refused += len(letters) - len(stored)
        return stored

    async def _produce_together(
        self,
        letters: Sequence[DeadLetter],
        originals: dict[int, Record],
        targets: dict[int, TopicPartition],
    ) -> tuple[list[DeadLetter], list[DeadLetter]]:
        now_ms = self.cluster.environment.now_ms()
        futures = []
        for letter in letters:
            original, target = originals[letter.offset], targets[letter.offset]
            futures.append(
                await self._producer.send(
                    target.topic,
                    original.value,
                    key=original.key,
                    partition=target.partition,
                    headers=make_redriven_headers(
                        letter,
                        original,
                        now_ms=now_ms,
                        note=self.plan.note,
                        is_edited=self.plan.edit is not None,
                    ),
                )
            )
        await self._producer.flush()
        stored, refused = [], []
        for letter, outcome in zip(
            letters, await asyncio.gather(*futures, return_exceptions=True), strict=True
        ):
            if not isinstance(outcome, BaseException):
                stored.append(letter)
            elif isinstance(outcome, ClientError) and not is_transient(outcome):
                refused.append(letter)
                self.result.refusal = outcome
            else:
                raise outcome  # Sent or not: the ledger shows the next redrive where to look.
        return stored, refused

    async def _free(self, letters: Iterable[DeadLetter]) -> None:
        """Release the keys that these letters' records may block. Raises `ClientError` while the
        brokers are unreachable; the next redrive then releases them.
        """
        offsets: dict[str, dict[TopicPartition, OffsetSet]] = {}
        for letter in letters:
            source = TopicPartition(letter.source_topic, letter.source_partition)
            offsets.setdefault(letter.group, {}).setdefault(source, OffsetSet()).add(
                letter.source_offset
            )
        for group, by_partition in offsets.items():
            topics = await self.cluster.get_topics({partition.topic for partition in by_partition})
            ranges = {
                partition: [*offset_set.iter_ranges()]
                for partition, offset_set in by_partition.items()
                if isinstance(topic := topics[partition.topic], Topic)
                and partition.partition < len(topic.partitions)
            }
            for partition, error in (await self._share_groups.free(group, ranges)).items():
                if error is not None and error.code != ErrorCode.unsupported_version:
                    self.result.not_freed += len(by_partition[partition])
                    self.result.not_freed_error = error

    # Taking over.

    async def _take_over(self, topic_id: UUID, state: RedriveState) -> None:
        """Find the letters that an interrupted redrive sent, by reading the target logs."""
        sending = state.sending
        assert sending is not None
        ours = f"{state.topic}-{state.partition}"
        now = await self._find_ends(sending.ends)
        for partition, end in sending.ends.items():
            if partition not in now or now[partition] <= end:
                continue
            async for fetched in self._fetcher.fetch_range(*partition, end, now[partition] - 1):
                for record in fetched.records():
                    topic, _, offset = get_redrive_source(record.headers).rpartition("@")
                    if topic != ours or not offset.isdigit():
                        continue
                    if sending.first <= int(offset) <= sending.last:
                        state.redriven.add(int(offset))
        source = TopicPartition(state.topic, state.partition)
        end = sending.first
        while end <= sending.last:
            records, end = await self._read_source_records(source, end, sending.last)
            await self._free(
                [
                    letter
                    async for record, letter in self._read_dead_letters(source, records)
                    if letter is not None and record.offset in state.redriven
                ]
            )
        state.sending = None
        await self._ledger.write(topic_id, state)

    async def _find_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends of partitions; deleted partitions are left out."""
        listed = await self._topics.offsets(dict.fromkeys(partitions, int(OffsetSpec.LATEST)))
        return {w: o.offset for w, o in listed.items() if not isinstance(o, KafkaError)}

    async def _find_offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int]:
        offsets = {}
        listed = await self._topics.offsets(dict.fromkeys(partitions, int(spec)))
        for partition, outcome in listed.items():
            if isinstance(outcome, KafkaError):
                raise outcome
            offsets[partition] = outcome.offset
        return offsets


def _split(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records some at a time."""
    some_records: list[Record] = []
    size = 0
    for record in records:
        some_records.append(record)
        size += estimate_size_bytes(record)
        if size >= CHUNK_BYTES or len(some_records) >= CHUNK:
            yield some_records
            some_records, size = [], 0
    if some_records:
        yield some_records


def _make_kind(letter: DeadLetter) -> DeadLetterKind:
    return DeadLetterKind(letter.source_topic, letter.group, letter.reason)


class _RedriveTurn:
    """The exclusive right to redrive a topic: single membership in a consumer group."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._groups = Groups(cluster)
        self._member = ConsumerMembership(cluster, get_redrive_group(topic), [topic])
        self._topic = topic

    async def take(self, waiting: Callable[[str], None]) -> None:
        """Wait until the group has no other member. Raises `KafkaError` after `TURN_TIMEOUT_S`."""
        deadline = self._cluster.now() + TURN_TIMEOUT_S
        warned = False
        while True:
            await self._member.join()
            other_clients = await self._find_others()
            if not other_clients:
                return
            await self._member.leave()
            why = f"another redrive of {self._topic} runs, or was killed, at {other_clients[0]}"
            if self._cluster.now() > deadline:
                raise KafkaError(ErrorCode.non_empty_group, f"{why}. Stop it first")
            if not warned:
                waiting(f"{why}. Waiting for its end")
            warned = True
            await asyncio.sleep(1.0)

    def check(self) -> None:
        """Raise the error that ended the turn: `KafkaError` FENCED_MEMBER_EPOCH if the broker
        removed this member after its session timeout.
        """
        self._member.check()
        if self._member.lost:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                f"the redrive of {self._topic} was removed from its group after its session"
                " timeout. Its progress is stored: start it again",
            )

    async def leave(self) -> None:
        """Leave the group, so that another redrive can start."""
        await self._member.leave()

    async def _find_others(self) -> list[str]:
        """Return the client ids of other members."""
        group = self._member.group
        description = (await self._groups.describe([group]))[group]
        if not isinstance(description, GroupDescription):
            raise description
        return [
            f"{m.client_host.lstrip('/')} ({m.client_id})"
            for m in description.members
            if m.member_id != self._member.member_id
        ]
