"""Writes the dead letters of a share partition.

After that, their records leave the window, or hold their keys by the group's config
(`ShareLeader.on_dead_letters_written`). Delivery is at least once, where Kafka's is best effort: a
record is ARCHIVING before its dead letter is appended, and ARCHIVED only after the commit; both are
persisted. The next leader writes what a former one left ARCHIVING, perhaps again.

A failed write is retried with growing pauses. The record stays in the window meanwhile, and metrics
and the log report the reason. A dead letter is dropped only after the group's maximum time, or if
the group has no dead-letter topic any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.client.errors import ClientError
from shoal.coordinator.share.dead_letters import (
    DeadLetterFailure,
    RecordSource,
    build_dead_letters,
    count_within_reasons,
    find_readable,
    infer_cause,
    split_after,
    split_at,
)
from shoal.coordinator.share.delivery_failure import DeadLetterRange
from shoal.log.errors import AppendRefused, LogOffline
from shoal.metadata.topics import NewTopic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.replication.partition import Partition
from shoal.replication.pending_append import PendingAppend
from shoal.server.share.dead_letter_copies import LargeCopy, RecordCopies, copy_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.settings import ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.metadata.image import TopicImage
    from shoal.protocol.responses import topics as responses
    from shoal.record.records import Record
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.peers import BrokerPeers
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.server.timers import Timer

#: Maximum dead letters of one batch; fewer if they are large, or the topic refuses them.
BATCH_RECORDS_MAX = 2000
RETRY_MS, RETRY_MS_MAX = 500, 30_000
COMMIT_TIMEOUT_MS = 30_000
#: The config of a group that names the topic of its dead letters.
TOPIC_NAME = "errors.deadletterqueue.topic.name"
_COPY = "errors.deadletterqueue.copy.record.enable"
_DROP_AFTER = "shoal.errors.deadletterqueue.drop.after.ms"
_PREFIX = "errors.deadletterqueue.topic.name.prefix"
_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
#: A topic config.
_ENABLE = "errors.deadletterqueue.group.enable"
#: The topic configs of a created topic, as in Kafka.
_CREATED_WITH = ((_ENABLE, "true"), ("message.timestamp.type", "CreateTime"))


class DeadLetterMeter:
    """Counts of one broker: dead letters written and dropped by group, attempts by group, and
    failed attempts by group and reason."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()


class RemotePartition(NamedTuple):
    """A dead-letter partition that another broker leads."""

    leader_id: int
    topic: TopicImage
    partition_index: int


class DeadLetterSourcePort(Protocol):
    """The share partition that dead letters come from."""

    key: ShareKey
    partition: Partition
    share: SharePartition

    @property
    def settings(self) -> ShareSettings:
        """The group's configs in force."""

    def on_dead_letters_written(
        self, ranges: Sequence[DeadLetterRange], *, dropped: bool = False
    ) -> None:
        """The dead letters of some records are committed, or `dropped` without being written."""


class TopicCreator(Protocol):
    """Creates topics at the controller."""

    def __call__(
        self, topics: Sequence[NewTopic]
    ) -> asyncio.Future[list[responses.CreateTopicsCreatableTopicResult]]:
        """The entries of CreateTopics. The future fails with `ApiError`."""


@dataclass(frozen=True, slots=True)
class DeadLetterServices:
    """The collaborators of all writers of dead letters on one broker."""

    node: Node
    cache: MetadataCache
    partitions: Partitions
    purgatory: Purgatory
    peers: BrokerPeers
    create_topics: TopicCreator
    meter: DeadLetterMeter
    #: Called with a group and a number of new dead letters.
    count: Callable[[str, int], None]
    #: The client.id of a group's member, "" if unknown.
    client_id: Callable[[str, str], str]


class _PreparedChunk(NamedTuple):
    """The first dead letters of a queue, and their records."""

    chunk: list[DeadLetterRange]
    copies: RecordCopies


class DeadLetters:
    """The dead letters that one share partition still has to write."""

    __slots__ = (
        "_batch_records_max",
        "_busy",
        "_leader",
        "_retries",
        "_services",
        "_timer",
        "_under_way",
        "failure",
        "queue",
    )

    def __init__(self, services: DeadLetterServices, leader: DeadLetterSourcePort) -> None:
        self._services = services
        self._leader = leader
        #: Ranges that wait. Those being written are in `_under_way`.
        self.queue: list[DeadLetterRange] = []
        self._under_way: list[DeadLetterRange] = []
        self.failure: DeadLetterFailure | None = None
        self._busy = False
        self._batch_records_max = BATCH_RECORDS_MAX
        self._retries = 0
        self._timer: Timer | None = None

    @property
    def pending(self) -> bool:
        """Whether there are dead letters yet to be written."""
        return bool(self.queue or self._under_way)

    def add(self, ranges: Sequence[DeadLetterRange]) -> None:
        """Write the dead letters of records that are persisted as ARCHIVING from now on."""
        now_ms, group_id = self._services.node.clock.now_ms(), self._leader.key.group_id
        client_id = self._services.client_id
        count = 0
        for entry in ranges:
            count += entry.last - entry.first + 1
            member_client_id = client_id(group_id, entry.member_id)
            self.queue.append(entry._replace(since_ms=now_ms, client_id=member_client_id))
        self._services.count(group_id, count)
        self.write()

    def load(self) -> None:
        """Write the dead letters that a former leader has not written."""
        limit = self._leader.settings.delivery_count_limit
        now_ms = self._services.node.clock.now_ms()
        self.queue = [
            DeadLetterRange(first, last, count, infer_cause(count, limit), "", since_ms=now_ms)
            for first, last, count in self._leader.share.iterate_archiving()
        ]
        self.write()

    def stop(self) -> None:
        """Write nothing more: the share partition is dropped."""
        self.queue, self._under_way = [], []
        if self._timer is not None:
            self._timer.cancel()

    def write(self, prepared: _PreparedChunk | None = None) -> None:
        """Write the next batch, unless one is under way or a retry is due later. `prepared` are the
        first dead letters of the queue, if their records are read."""
        if self._busy or self._timer is not None or not self.queue:
            return
        config = self._services.cache.image.resolve_group_config(self._leader.key.group_id)
        if not config[TOPIC_NAME]:
            self._drop(self.queue, "the group has no dead-letter topic any more")
            return
        target = self._find_target(config[TOPIC_NAME])
        if isinstance(target, DeadLetterFailure):
            self._on_failure(target)
        elif target is not None:
            self._append(target, prepared, copied=config[_COPY])

    def _find_target(self, name: str) -> Partition | RemotePartition | DeadLetterFailure | None:
        """Return the partition of the dead letters; None while the topic is being created."""
        services, source = self._services, self._leader.partition
        image = services.cache.image
        prefix = image.broker_config[_PREFIX]
        if name.startswith("__") or not name.startswith(prefix) or name == source.topic:
            return DeadLetterFailure(
                "topic-name",
                f"{name} cannot be a dead-letter topic: its name has to begin with {prefix!r},"
                " not with '__', and it cannot be the topic that the records come from",
            )
        topic = image.topics.get(name)
        if topic is None:
            if not image.broker_config[_AUTO_CREATE]:
                return DeadLetterFailure(
                    "topic-missing",
                    f"there is no topic {name}: create it with {_ENABLE}=true, or set"
                    f" the broker config {_AUTO_CREATE}",
                )
            self._create(name)
            return None
        if not image.resolve_topic_config(name)[_ENABLE]:
            return DeadLetterFailure(
                "topic-forbidden",
                f"topic {name} does not allow dead letters; set {_ENABLE}=true on it",
            )
        index = source.index % len(topic.partitions)
        partition = services.partitions.find_by_name(name, index)
        if partition is not None and partition.is_leader:
            return partition
        leader_id = topic.partitions[index].leader
        if leader_id < 0 or leader_id == services.node.id:
            return DeadLetterFailure("topic-offline", f"partition {index} of {name} has no leader")
        return RemotePartition(leader_id, topic, index)

    def _create(self, name: str) -> None:
        self._busy = True
        topic = NewTopic(name, configs=_CREATED_WITH)

        def on_created(future: Any) -> None:
            self._busy = False
            error = None if future.cancelled() else future.exception()
            code = (
                ErrorCode.none if error or future.cancelled() else future.result()[0]["error_code"]
            )
            if error is not None or code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                why = str(error) if error is not None else code.name
                self._on_failure(
                    DeadLetterFailure("topic-not-created", f"{name} was not created: {why}")
                )
            else:
                self.write()

        self._services.create_topics([topic]).add_done_callback(on_created)

    def _append(
        self,
        target: Partition | RemotePartition,
        prepared: _PreparedChunk | None,
        *,
        copied: bool,
    ) -> None:
        reasons = self._leader.share.reasons
        records_max = self._batch_records_max
        if reasons:
            records_max = count_within_reasons(self.queue, reasons.get, records_max)
        chunk, remaining = split_after(self.queue, records_max)
        copies: RecordCopies | LargeCopy | None = RecordCopies({}, None)
        if prepared is not None:
            chunk, remaining = prepared.chunk, self.queue[len(prepared.chunk) :]
            copies = prepared.copies
        elif copied:
            name = target.topic if isinstance(target, Partition) else target.topic.name
            copies = self._read_copies(name, find_readable(chunk))
        if isinstance(copies, LargeCopy):
            read = copies
            self._busy = True
            self._under_way, self.queue = chunk, remaining
            self._services.node.record_worker.run(read.run, lambda: self._on_copied(read))
        elif copies is not None:
            if copies.end is not None:
                chunk, above = split_at(chunk, copies.end)
                remaining = above + remaining
            self._append_chunk(target, chunk, remaining, copies.records)

    def _append_chunk(
        self,
        target: Partition | RemotePartition,
        chunk: list[DeadLetterRange],
        remaining: list[DeadLetterRange],
        records: Mapping[int, Record],
    ) -> None:
        """Append dead letters with the `records` records. `remaining` is the queue without them."""
        leader, now_ms = self._leader, self._services.node.clock.now_ms()
        meter, group_id = self._services.meter, leader.key.group_id
        source = RecordSource(group_id, leader.partition.topic, leader.partition.index)
        meter.attempts[group_id] += 1
        if isinstance(target, RemotePartition):
            self._under_way, self.queue = chunk, remaining
            self._send(target, source, records)
            return
        try:
            try:
                batch = self._build(source, chunk, records)
                appended = target.append(batch, now_ms=now_ms)
            except AppendRefused as refused:
                if refused.code is not ErrorCode.message_too_large:
                    raise
                if self._make_smaller(chunk):
                    self.write()
                    return
                # Only its headers fit: write a dead letter without the record.
                meter.failed[(group_id, "record-too-large")] += 1
                batch = self._build(source, chunk, {})
                appended = target.append(batch, now_ms=now_ms)
        except AppendRefused as refused:
            self._on_failure(DeadLetterFailure("record-refused", refused.message))
            return
        except (OSError, LogOffline) as error:
            self._on_failure(DeadLetterFailure("topic-offline", str(error)))
            return
        self._busy = True
        self._under_way, self.queue = chunk, remaining
        written = PendingAppend.from_partition(target, appended.last_offset + 1)
        committed = self._services.purgatory.park(
            keys=[target.key],
            attempt=lambda: () if written.is_committed or written.is_lost else None,
            expire=lambda: (),
            deadline_ms=now_ms + COMMIT_TIMEOUT_MS,
        )
        committed.add_done_callback(lambda _: self._on_committed(written))
        self._services.purgatory.wake(target.key)

    def _build(
        self,
        source: RecordSource,
        chunk: Sequence[DeadLetterRange],
        records: Mapping[int, Record],
    ) -> bytearray:
        now_ms, get_reason = self._services.node.clock.now_ms(), self._leader.share.reasons.get
        return build_batch(
            build_dead_letters(source, chunk, records, now_ms=now_ms, get_reason=get_reason)
        )

    def _make_smaller(self, chunk: Sequence[DeadLetterRange]) -> bool:
        """Write fewer dead letters at once, or one without its reason, as the topic refuses larger
        batches. Return False if nothing is left to omit but the record itself."""
        if (size := _count(chunk)) > 1:
            self._batch_records_max = size // 2
            return True
        offset, reasons = chunk[0].first, self._leader.share.reasons
        if reasons.get(offset) is None:
            return False
        reasons.forget(offset, offset)
        return True

    def _read_copies(self, topic: str, offsets: Sequence[int]) -> RecordCopies | LargeCopy | None:
        """Return the records for dead letters in `topic`, or None if they cannot be read."""
        bytes_max = self._services.cache.image.resolve_topic_config(topic)["max.message.bytes"]
        try:
            return copy_records(self._leader.partition, offsets, bytes_max)
        except (OSError, LogOffline) as error:
            self._on_failure(DeadLetterFailure("log-unreadable", str(error)))
            return None

    def _on_copied(self, read: LargeCopy) -> None:
        """Continue: the worker thread has read the records of the dead letters under way."""
        self._busy = False
        chunk, self._under_way = self._under_way, []
        self.queue = chunk + self.queue
        if chunk:
            self.write(_PreparedChunk(chunk, read.copies))

    def _send(
        self, target: RemotePartition, source: RecordSource, records: Mapping[int, Record]
    ) -> None:
        """Produce the dead letters under way at the leader of their partition."""
        self._busy = True
        batch = self._build(source, self._under_way, records)
        sent = asyncio.ensure_future(_produce(self._services.peers, target, batch))
        sent.add_done_callback(lambda done: self._on_sent(target, source, bool(records), done))

    def _on_sent(
        self,
        target: RemotePartition,
        source: RecordSource,
        has_records: bool,
        future: asyncio.Future[ErrorCode],
    ) -> None:
        """Handle the leader's answer. `has_records` means that the dead letters had their
        records."""
        self._busy = False
        if future.cancelled() or not self._under_way:
            return  # It was stopped.
        code = future.result()
        is_too_large = code is ErrorCode.message_too_large
        if is_too_large and self._make_smaller(self._under_way):
            self.queue, self._under_way = self._under_way + self.queue, []
            self.write()
            return
        if is_too_large and has_records:
            # Only its headers fit: write a dead letter without the record.
            self._services.meter.failed[(source.group_id, "record-too-large")] += 1
            self._send(target, source, {})
            return
        chunk, self._under_way = self._under_way, []
        if code is ErrorCode.none:
            self._on_written(chunk)
            return
        self.queue = chunk + self.queue
        name = target.topic.name
        self._on_failure(
            DeadLetterFailure("record-refused", f"{name} took no letters: {code.name}")
        )

    def _on_committed(self, written: PendingAppend) -> None:
        self._busy = False
        chunk, self._under_way = self._under_way, []
        if not written.is_committed:
            self.queue = chunk + self.queue
            why = "lost its leader first" if written.is_lost else "did not commit in time"
            self._on_failure(DeadLetterFailure("not-committed", f"{written.partition.topic} {why}"))
            return
        self._on_written(chunk)

    def _on_written(self, chunk: Sequence[DeadLetterRange]) -> None:
        self.failure, self._retries = None, 0
        self._batch_records_max = min(2 * self._batch_records_max, BATCH_RECORDS_MAX)
        self._leader.on_dead_letters_written(chunk)
        self._services.meter.written[self._leader.key.group_id] += _count(chunk)
        self.write()

    def _on_failure(self, failure: DeadLetterFailure) -> None:
        """Retry later, and drop the dead letters that exceed the group's maximum time."""
        group_id, now_ms = self._leader.key.group_id, self._services.node.clock.now_ms()
        self._services.meter.failed[(group_id, failure.reason)] += 1
        if self.failure is None or self.failure.reason != failure.reason:
            self._services.node.log.warning(
                "dead letters cannot be written",
                group=group_id,
                topic=self._leader.partition.topic,
                partition=self._leader.partition.index,
                reason=failure.message,
            )
        self.failure = failure
        patience_ms = self._services.cache.image.resolve_group_config(group_id)[_DROP_AFTER]
        if patience_ms >= 0:
            late = [entry for entry in self.queue if now_ms - entry.since_ms >= patience_ms]
            self._drop(late, failure.message)
        if self.queue:
            delay_ms = min(RETRY_MS << min(self._retries, 10), RETRY_MS_MAX)
            self._retries += 1
            self._timer = self._services.node.timers.call_at(now_ms + delay_ms, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self.write()

    def _drop(self, ranges: list[DeadLetterRange], why: str) -> None:
        if not ranges:
            return
        self.queue = [entry for entry in self.queue if entry not in ranges]
        self._leader.on_dead_letters_written(ranges, dropped=True)
        group_id, count = self._leader.key.group_id, _count(ranges)
        self._services.meter.dropped[group_id] += count
        self._services.node.log.warning(
            "records left their group without a dead letter",
            group=group_id,
            records=count,
            reason=why,
        )


async def _produce(peers: BrokerPeers, target: RemotePartition, batch: bytearray) -> ErrorCode:
    """Produce with acks=all at the leader of a partition."""
    partition = {"index": target.partition_index, "records": bytes(batch)}
    fields = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": COMMIT_TIMEOUT_MS,
        "topic_data": [
            {
                "name": target.topic.name,
                "topic_id": target.topic.topic_id,
                "partition_data": [partition],
            }
        ],
    }
    try:
        answer = await peers.request(
            target.leader_id, ApiKey.PRODUCE, fields, timeout_ms=2 * COMMIT_TIMEOUT_MS
        )
    except ClientError:
        return ErrorCode.not_leader_or_follower
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def _count(ranges: Sequence[DeadLetterRange]) -> int:
    return sum(entry.last - entry.first + 1 for entry in ranges)
