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

from shoal.client.batches import CorruptRecords
from shoal.client.cluster import Cluster, Topic, TopicPartition
from shoal.client.configs import Configs, Resource, ResourceType
from shoal.client.consumer import ConsumerMembership
from shoal.client.dead_letter_topics import TOPIC
from shoal.client.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    parse_dead_letter,
    redriven_from,
    redriven_headers,
)
from shoal.client.errors import ClientError, KafkaError, transient
from shoal.client.fetcher import Fetcher
from shoal.client.groups import Group, Groups
from shoal.client.partitioner import partition_of
from shoal.client.producer import Producer
from shoal.client.redrive_ledger import RedriveLedger, RedriveState, Sending
from shoal.client.share_groups import ShareGroups
from shoal.client.topics import OffsetSpec, Topics
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch
from shoal.record.offset_set import OffsetSet, ranges_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.client.configs import ConfigEntry
    from shoal.record.records import Record

#: Letters that are sent, and entered in the ledger, together.
CHUNK = 500
#: Seconds to wait until another redrive of the topic ends, or until the broker removes a dead one
#: (the session timeout of consumer groups).
TURN_TIMEOUT_S = 60.0
_GONE = (ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition)
#: Groups of letters whose dead-letter topics are asked for together, and are remembered.
GROUPS_ASKED, GROUPS_KEPT = 100, 10_000
#: The longest group in a letter: a string of the protocol has at most 32 KiB.
GROUP_LENGTH_MAX = 8_000


def group_of(topic: str) -> str:
    """Return the consumer group of the redrives of a dead-letter topic."""
    return f"redrive.{topic}"


class Kind(NamedTuple):
    """The attributes by which letters are counted: source topic, share group and reason."""

    source_topic: str
    group: str
    reason: str


@dataclass(slots=True)
class Redriven:
    """The counts of a redrive so far; of a dry run, the letters that it would send.

    `looked_at` counts the records read from the dead-letter topic, `not_dead_letters` those that
    are none, of which `doubted` look like letters; `doubt` says why the last one does not count.
    `filtered` counts letters that the filter excluded, and `redriven_before` letters redriven
    earlier. `records_missing` counts letters whose record no longer exists, `topics_missing` those
    whose topic does not exist, and `refused` those that a broker rejected, with the last reason.
    `not_freed` letters were sent but may still block their keys, because the broker refused to
    release these, with the last reason.
    """

    sent: Counter[Kind] = field(default_factory=Counter)
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


class Edit(NamedTuple):
    """A record's key and value to send instead of those that failed."""

    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Plan:
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
    edit: Edit | None = None


class Redrive:
    """One run of a plan. `result` counts during the run."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        if plan.to == plan.topic:
            raise ValueError(
                f"{plan.topic} is the dead-letter topic itself. Redrive to another topic"
            )
        self.cluster = cluster
        self.plan = plan
        self.result = Redriven()
        self._topics = Topics(cluster)
        self._fetcher = Fetcher(cluster, lane="redrive")
        self._ledger = RedriveLedger(cluster)
        self._producer = Producer(cluster)
        self._share_groups = ShareGroups(cluster)
        self._configs = Configs(cluster)
        #: By group: why its letters in this topic do not count, or "".
        self._doubts: dict[str, str] = {}
        self._begun_s = 0.0

    async def size(self) -> int:
        """Return the number of records to read. Raises the same errors as `run`."""
        where = await self._partitions()
        ends = await self._offsets(where, OffsetSpec.LATEST)
        starts = await self._offsets(where, OffsetSpec.EARLIEST)
        return sum(ends.values()) - sum(starts.values())

    async def _partitions(self) -> list[TopicPartition]:
        topic = await self.cluster.topic(self.plan.topic)
        wanted = self.plan.filter.partitions
        for index in wanted:
            topic.partition(index)
        found = [TopicPartition(topic.name, p.index) for p in topic.partitions]
        return [where for where in found if not wanted or where.partition in wanted]

    async def run(
        self,
        progress: Callable[[int], None] = lambda _: None,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> Redriven:
        """Run the plan. `progress` receives the number of records read, `waiting` why the redrive
        waits.

        Raises `KafkaError` if the dead-letter topic does not exist or a broker refuses. The ledger
        keeps what was redriven until then.
        """
        topic = await self.cluster.topic(self.plan.topic)
        assert topic.topic_id is not None
        if self.plan.to is not None:
            await self.cluster.topic(self.plan.to)
        where = await self._partitions()
        turn = _Turn(self.cluster, topic.name)
        if self.plan.dry_run:
            await self._run(topic.topic_id, where, progress, turn)
            return self.result
        try:
            await turn.take(waiting)
            await self._ledger.create()
            await self._run(topic.topic_id, where, progress, turn)
        finally:
            await turn.leave()
        return self.result

    async def _run(
        self,
        topic_id: UUID,
        partitions: Sequence[TopicPartition],
        progress: Callable[[int], None],
        turn: _Turn,
    ) -> None:
        states = await self._ledger.read(topic_id)
        ends = await self._offsets(partitions, OffsetSpec.LATEST)
        if self.plan.ends is not None:
            ends = {where: min(end, self.plan.ends.get(where, 0)) for where, end in ends.items()}
        starts = await self._offsets(partitions, OffsetSpec.EARLIEST)
        self._begun_s = self.cluster.now()
        for where in partitions:
            state = states.get(where.partition) or RedriveState(where.topic, where.partition)
            state.done.forget(starts[where])
            if state.sending is not None and not self.plan.dry_run:
                await self._take_over(topic_id, state)
            bounds = (starts[where], ends[where])
            async for letters in self._chunks(where, state, bounds, progress):
                turn.check()
                await self._send(topic_id, state, letters)
            if self._is_full:
                break

    @property
    def _left(self) -> int:
        """Return the number of letters that may still be sent."""
        limit = self.plan.letters_max
        return CHUNK if limit is None else max(0, limit - self.result.total)

    @property
    def _is_full(self) -> bool:
        return self._left == 0

    # Reading.

    async def _chunks(
        self,
        where: TopicPartition,
        state: RedriveState,
        bounds: tuple[int, int],
        progress: Callable[[int], None],
    ) -> AsyncIterator[list[DeadLetter]]:
        """Yield the letters to send of one partition, in order, in chunks of at most one second."""
        start = bounds[0]
        first, last = start, bounds[1] - 1
        if not self.plan.again and not self.plan.dry_run:
            first = state.done.first_missing(start)
            self.result.redriven_before += first - start
        progress(first - start)
        if (offsets := self.plan.filter.offsets) is not None and len(offsets):
            ranges = [*offsets.ranges()]
            first, last = max(first, ranges[0][0]), min(last, ranges[-1][1])
        chunk: list[DeadLetter] = []
        size = CHUNK if self.plan.rate is None else max(1, min(CHUNK, int(self.plan.rate)))
        if first > last:
            return
        async for fetched in self._fetcher.range(where.topic, where.partition, first, last):
            async for record, letter in self._letters(where, fetched.records()):
                progress(1)
                if self._is_wanted(state, record, letter):
                    assert letter is not None
                    chunk.append(letter)
                    if len(chunk) >= min(size, self._left):
                        yield chunk
                        chunk = []
                if self._is_full:
                    return
        if chunk:
            yield chunk

    async def _letters(
        self, where: TopicPartition, records: Iterable[Record]
    ) -> AsyncIterator[tuple[Record, DeadLetter | None]]:
        """Yield each record of the dead-letter topic, with the letter in it if it counts."""
        found = [(one, parse_dead_letter(where.topic, where.partition, one)) for one in records]
        await self._ask({letter.group for _, letter in found if letter is not None})
        for record, letter in found:
            doubt = "" if letter is None else self._doubts[letter.group]
            if doubt:
                self.result.doubted += 1
                self.result.doubt = doubt
            yield record, None if doubt else letter

    async def _ask(self, groups: Collection[str]) -> None:
        """Learn whether groups have this topic as their dead-letter topic. Raises `KafkaError`."""
        if len(self._doubts) > GROUPS_KEPT:
            self._doubts.clear()
        new = [group for group in groups if group not in self._doubts]
        nameless = {group for group in new if not 0 < len(group) <= GROUP_LENGTH_MAX}
        self._doubts |= dict.fromkeys(nameless, "the letter names no group")
        asked = [Resource(ResourceType.GROUP, group) for group in new if group not in nameless]
        for first in range(0, len(asked), GROUPS_ASKED):
            some = asked[first : first + GROUPS_ASKED]
            for group, entries in (await self._configs.describe(some, keys=[TOPIC])).items():
                self._doubts[group.name] = self._doubt(group.name, entries)

    def _doubt(self, group: str, entries: Mapping[str, ConfigEntry] | KafkaError) -> str:
        """Return why letters of a group in this topic do not count, or ""."""
        if isinstance(entries, KafkaError):
            if transient(entries):
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
        elif not self.plan.again and record.offset in state.done:
            result.redriven_before += 1
        else:
            return True
        return False

    async def _originals(self, letters: Iterable[DeadLetter]) -> dict[int, Record]:
        """Return the existing records of letters by the letter's offset."""
        found: dict[int, Record] = {}
        bare: dict[TopicPartition, list[DeadLetter]] = {}
        for letter in letters:
            if letter.is_bare:
                source = TopicPartition(letter.source_topic, letter.source_partition)
                bare.setdefault(source, []).append(letter)
            else:
                found[letter.offset] = letter.record
        for source, some in bare.items():
            by_offset = {letter.source_offset: letter.offset for letter in some}
            try:
                found |= {
                    by_offset[record.offset]: record
                    for first, last in ranges_of(sorted(by_offset))
                    for record in await self._source_records(source, first, last)
                    if record.offset in by_offset
                }
            except KafkaError as error:
                if error.code != ErrorCode.topic_authorization_failed:
                    raise
                self._refuse(len(some), error)
        if (edit := self.plan.edit) is not None:
            found = {at: one._replace(key=edit.key, value=edit.value) for at, one in found.items()}
        return found

    def _refuse(self, letters: int, error: ClientError) -> None:
        """Count letters that a broker refuses, so that they stop no others."""
        self.result.refused += letters
        self.result.refusal = error

    async def _source_records(self, where: TopicPartition, first: int, last: int) -> list[Record]:
        try:
            return [
                record
                async for fetched in self._fetcher.range(*where, first, last)
                for record in fetched.records()
            ]
        except KafkaError as error:
            if error.code not in _GONE:
                raise
        except (CorruptRecords, CorruptBatch):
            pass
        if first == last:
            return []
        # One record of the range no longer exists: read each record individually.
        return [r for o in range(first, last + 1) for r in await self._source_records(where, o, o)]

    # Sending.

    async def _send(self, topic_id: UUID, state: RedriveState, letters: list[DeadLetter]) -> None:
        refused = self.result.refused
        originals = await self._originals(letters)
        refused = self.result.refused - refused
        self.result.records_missing += len(letters) - len(originals) - refused
        targets = {}
        for letter in letters:
            if letter.offset in originals:
                target = await self._target(letter, originals[letter.offset].key)
                if target is not None:
                    targets[letter.offset] = target
        letters = [letter for letter in letters if letter.offset in targets]
        if self.plan.dry_run or not letters:
            self.result.sent.update(_kind(letter) for letter in letters)
            return
        ends = await self._ends(set(targets.values()))
        state.sending = Sending(letters[0].offset, letters[-1].offset, ends)
        await self._ledger.write(topic_id, state)
        stored = await self._produce(letters, originals, targets)
        for letter in stored:
            state.done.add(letter.offset)
            state.counts[letter.group] = state.counts.get(letter.group, 0) + 1
        await self._free(stored)
        self.result.sent.update(_kind(letter) for letter in stored)
        state.sending = None
        await self._ledger.write(topic_id, state)
        if self.plan.rate is not None:
            due_s = self._begun_s + self.result.total / self.plan.rate
            await asyncio.sleep(max(0.0, due_s - self.cluster.now()))

    async def _target(self, letter: DeadLetter, key: bytes | None) -> TopicPartition | None:
        """Return a letter's target: its source partition, or the key's in another topic or for an
        edited key."""
        name = self.plan.to or letter.source_topic
        if name == self.plan.topic:
            self.result.topics_missing[name] += 1
            return None
        try:
            count = len((await self.cluster.topic(name)).partitions)
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
        index = letter.source_partition % count if key is None else partition_of(key, count)
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
                    headers=redriven_headers(
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
            elif isinstance(outcome, ClientError) and not transient(outcome):
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
            known = await self.cluster.topics({where.topic for where in by_partition})
            ranges = {
                where: [*found.ranges()]
                for where, found in by_partition.items()
                if isinstance(topic := known[where.topic], Topic)
                and where.partition < len(topic.partitions)
            }
            for where, error in (await self._share_groups.free(group, ranges)).items():
                if error is not None and error.code != ErrorCode.unsupported_version:
                    self.result.not_freed += len(by_partition[where])
                    self.result.not_freed_error = error

    # Taking over.

    async def _take_over(self, topic_id: UUID, state: RedriveState) -> None:
        """Find the letters that an interrupted redrive sent, by reading the target logs."""
        sending = state.sending
        assert sending is not None
        ours = f"{state.topic}-{state.partition}"
        now = await self._ends(sending.ends)
        for where, end in sending.ends.items():
            if where not in now or now[where] <= end:
                continue
            async for fetched in self._fetcher.range(*where, end, now[where] - 1):
                for record in fetched.records():
                    topic, _, offset = redriven_from(record.headers).rpartition("@")
                    if topic != ours or not offset.isdigit():
                        continue
                    if sending.first <= int(offset) <= sending.last:
                        state.done.add(int(offset))
        source = TopicPartition(state.topic, state.partition)
        records = await self._source_records(source, sending.first, sending.last)
        await self._free(
            [
                letter
                async for record, letter in self._letters(source, records)
                if letter is not None and record.offset in state.done
            ]
        )
        state.sending = None
        await self._ledger.write(topic_id, state)

    async def _ends(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log ends of partitions; deleted partitions are left out."""
        listed = await self._topics.offsets(dict.fromkeys(wanted, int(OffsetSpec.LATEST)))
        return {w: o.offset for w, o in listed.items() if not isinstance(o, KafkaError)}

    async def _offsets(
        self, wanted: Iterable[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int]:
        found = {}
        listed = await self._topics.offsets(dict.fromkeys(wanted, int(spec)))
        for where, outcome in listed.items():
            if isinstance(outcome, KafkaError):
                raise outcome
            found[where] = outcome.offset
        return found


def _kind(letter: DeadLetter) -> Kind:
    return Kind(letter.source_topic, letter.group, letter.reason)


class _Turn:
    """The exclusive right to redrive a topic: single membership in a consumer group."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._groups = Groups(cluster)
        self._member = ConsumerMembership(cluster, group_of(topic), [topic])
        self._topic = topic

    async def take(self, waiting: Callable[[str], None]) -> None:
        """Wait until the group has no other member. Raises `KafkaError` after `TURN_TIMEOUT_S`."""
        deadline = self._cluster.now() + TURN_TIMEOUT_S
        warned = False
        while True:
            await self._member.join()
            others = await self._others()
            if not others:
                return
            await self._member.leave()
            why = f"another redrive of {self._topic} runs, or was killed, at {others[0]}"
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

    async def _others(self) -> list[str]:
        """Return the client ids of other members."""
        group = self._member.group
        found = (await self._groups.describe([group]))[group]
        if not isinstance(found, Group):
            raise found
        return [
            f"{m.client_host.lstrip('/')} ({m.client_id})"
            for m in found.members
            if m.member_id != self._member.member_id
        ]
