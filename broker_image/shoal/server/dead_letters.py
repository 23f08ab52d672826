"""Writes the dead letters of a share partition, and lets their records leave the window after that.

At-least-once, where Kafka is best-effort: a record is ARCHIVING before its letter is appended, and
ARCHIVED only when the letter is committed; both are persisted. What a former leader left ARCHIVING
is written by the next one, perhaps again. A letter that cannot be written is tried again, ever
later; its record keeps its place meanwhile, and metrics and the log say why. It is dropped only
where the group says after how long, or has no dead-letter topic any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.errors import ClientError
from shoal.coordinator.share.dead_letters import Source, cause_of, letters, take
from shoal.coordinator.share.fate import Cause, Doomed
from shoal.log.errors import AppendRefused, LogOffline, OffsetOutOfRange
from shoal.metadata.image import TopicImage
from shoal.metadata.topics import NewTopic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import CorruptBatch, headers
from shoal.record.records import Record, build_batch, read_records
from shoal.replication.partition import Partition

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.share_leader import ShareLeader
    from shoal.server.timers import Timer

#: Letters of one batch at most; fewer where the topic refuses so large a batch.
LETTERS_MAX = 200
READ_BYTES = 1 << 20
RETRY_MS, RETRY_MS_MAX = 500, 30_000
COMMIT_TIMEOUT_MS = 30_000
_TOPIC_NAME = "errors.deadletterqueue.topic.name"
_COPY = "errors.deadletterqueue.copy.record.enable"
_DROP_AFTER = "shoal.errors.deadletterqueue.drop.after.ms"
_PREFIX = "errors.deadletterqueue.topic.name.prefix"
_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
#: Of the topic.
_ENABLE = "errors.deadletterqueue.group.enable"


class Trouble(NamedTuple):
    """Why letters cannot be written now: a word for metrics, a sentence for people."""

    reason: str
    message: str


class DeadLetterMeter:
    """Counts of one broker, by group, and by group and reason."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()


class Elsewhere(NamedTuple):
    """A dead-letter partition that another broker leads."""

    leader_id: int
    topic: TopicImage
    partition_index: int


class DeadLetters:
    """The letters that one share partition still has to write."""

    __slots__ = (
        "_broker",
        "_busy",
        "_leader",
        "_letters_max",
        "_retries",
        "_timer",
        "queue",
        "trouble",
    )

    def __init__(self, broker: Broker, leader: ShareLeader) -> None:
        self._broker = broker
        self._leader = leader
        #: What is ARCHIVING, with the time since when.
        self.queue: deque[tuple[int, Doomed]] = deque()
        self.trouble: Trouble | None = None
        self._busy = False
        self._letters_max = LETTERS_MAX
        self._retries = 0
        self._timer: Timer | None = None

    def add(self, doomed: Sequence[Doomed]) -> None:
        """Take what has become ARCHIVING; `write` follows when that is persisted."""
        now_ms = self._broker.clock.now_ms()
        self.queue.extend((now_ms, one) for one in doomed)

    def load(self) -> None:
        """Take up what a former leader left ARCHIVING."""
        limit = self._leader.settings.delivery_count_limit
        self.add(
            [
                Doomed(first, last, count, cause_of(count, limit), "")
                for first, last, count in self._leader.share.archiving()
            ]
        )
        self.write()

    def stop(self) -> None:
        """The share partition is dropped."""
        self.queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def write(self) -> None:
        """Write the next batch of letters, unless one is under way or a retry is awaited."""
        if self._busy or self._timer is not None or not self.queue:
            return
        config = self._broker.image.group_config(self._leader.key.group_id)
        if not config[_TOPIC_NAME]:
            self._drop(len(self.queue), "the group has no dead-letter topic any more")
            return
        target = self._target(config[_TOPIC_NAME])
        if isinstance(target, Trouble):
            self._failed(target)
        elif target is not None:
            self._append(target, copied=config[_COPY])

    def _target(self, name: str) -> Partition | Elsewhere | Trouble | None:
        """The partition that the letters go to; None while the topic is being created."""
        broker, source = self._broker, self._leader.partition
        prefix = broker.image.broker_config[_PREFIX]
        if name.startswith("__") or not name.startswith(prefix) or name == source.topic:
            return Trouble(
                "topic-name",
                f"{name} cannot be a dead-letter topic: its name has to begin with {prefix!r},"
                " not with '__', and it cannot be the topic that the records come from",
            )
        topic = broker.image.topics.get(name)
        if topic is None:
            if not broker.image.broker_config[_AUTO_CREATE]:
                return Trouble(
                    "topic-missing",
                    f"there is no topic {name}: create it with {_ENABLE}=true, or set"
                    f" the broker config {_AUTO_CREATE}",
                )
            self._create(name)
            return None
        if not broker.image.topic_config(name)[_ENABLE]:
            return Trouble("topic-forbidden", f"topic {name} takes no dead letters: set {_ENABLE}")
        index = source.index % len(topic.partitions)
        partition = broker.partitions.by_name(name, index)
        if partition is not None and partition.is_leader:
            return partition
        leader_id = topic.partitions[index].leader
        if leader_id < 0 or leader_id == broker.node_id:
            return Trouble("topic-offline", f"partition {index} of {name} has no leader")
        return Elsewhere(leader_id, topic, index)

    def _create(self, name: str) -> None:
        self._busy = True
        topic = NewTopic(name, configs=((_ENABLE, "true"),))

        def created(done: Any) -> None:
            self._busy = False
            error = None if done.cancelled() else done.exception()
            code = ErrorCode.none if error or done.cancelled() else done.result()[0]["error_code"]
            if error is not None or code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                why = str(error) if error is not None else code.name
                self._failed(Trouble("topic-not-created", f"{name} was not created: {why}"))
            else:
                self.write()

        self._broker.create_topics([topic]).add_done_callback(created)

    def _append(self, target: Partition | Elsewhere, *, copied: bool) -> None:
        leader, now_ms = self._leader, self._broker.clock.now_ms()
        chunk = take((one for _, one in self.queue), self._letters_max)
        source = Source(leader.key.group_id, leader.partition.topic, leader.partition.index)
        try:
            found = _records(leader.partition, chunk) if copied else {}
        except (OSError, LogOffline) as error:
            self._failed(Trouble("log-unreadable", str(error)))
            return
        if isinstance(target, Elsewhere):
            self._send(target, source, chunk, found)
            return
        try:
            try:
                batch = build_batch(letters(source, chunk, found, now_ms=now_ms))
                appended = target.append(batch, now_ms=now_ms)
            except AppendRefused as refused:
                if refused.code is not ErrorCode.message_too_large:
                    raise
                if self._letters_max > 1:
                    self._letters_max //= 2
                    self.write()
                    return
                # Nothing but its headers fits: better a letter without the record than none.
                self._broker.share.dead_letters.failed[(source.group_id, "record-too-large")] += 1
                batch = build_batch(letters(source, chunk, {}, now_ms=now_ms))
                appended = target.append(batch, now_ms=now_ms)
        except AppendRefused as refused:
            self._failed(Trouble("record-refused", refused.message))
            return
        except (OSError, LogOffline) as error:
            self._failed(Trouble("topic-offline", str(error)))
            return
        self._busy = True
        end = appended.last_offset + 1
        committed = self._broker.purgatory.park(
            keys=[target.key],
            attempt=lambda: () if target.acknowledged(end) else None,
            expire=lambda: (),
            deadline_ms=now_ms + COMMIT_TIMEOUT_MS,
        )
        committed.add_done_callback(lambda _: self._committed(target, end, chunk))
        self._broker.purgatory.wake(target.key)

    def _send(
        self,
        target: Elsewhere,
        source: Source,
        chunk: Sequence[Doomed],
        found: dict[int, Record],
    ) -> None:
        """Have the letters written by the broker that leads the dead-letter partition."""
        self._busy = True
        now_ms = self._broker.clock.now_ms()
        batch = build_batch(letters(source, chunk, found, now_ms=now_ms))
        sent = asyncio.ensure_future(_produce(self._broker, target, batch))
        sent.add_done_callback(lambda done: self._sent(target, source, chunk, bool(found), done))

    def _sent(
        self,
        target: Elsewhere,
        source: Source,
        chunk: Sequence[Doomed],
        whole: bool,
        done: asyncio.Future[ErrorCode],
    ) -> None:
        """The leader has answered; `whole` tells that letters had their records with them."""
        self._busy = False
        if done.cancelled() or not self.queue:
            return
        code = done.result()
        if code is ErrorCode.none:
            self._written(chunk)
        elif code is ErrorCode.message_too_large and self._letters_max > 1:
            self._letters_max //= 2
            self.write()
        elif code is ErrorCode.message_too_large and whole:
            # Nothing but its headers fits: better a letter without the record than none.
            self._broker.share.dead_letters.failed[(source.group_id, "record-too-large")] += 1
            self._send(target, source, chunk, {})
        else:
            name = target.topic.name
            self._failed(Trouble("record-refused", f"{name} took no letters: {code.name}"))

    def _committed(self, target: Partition, end: int, chunk: Sequence[Doomed]) -> None:
        self._busy = False
        if not target.acknowledged(end):
            self._failed(Trouble("not-committed", f"{target.topic} did not commit in time"))
            return
        self._written(chunk)

    def _written(self, chunk: Sequence[Doomed]) -> None:
        self.trouble, self._retries, self._letters_max = None, 0, LETTERS_MAX
        count = self._leave(chunk)
        self._broker.share.dead_letters.written[self._leader.key.group_id] += count
        self.write()

    def _leave(self, chunk: Sequence[Doomed]) -> int:
        """Let records leave the window; they are the first of the queue."""
        changes, count = [], 0
        for one in chunk:
            count += one.last - one.first + 1
            changes += self._leader.share.archived(one.first, one.last)
            if not self.queue:
                continue  # Stopped meanwhile.
            since_ms, head = self.queue.popleft()
            if head.last > one.last:
                self.queue.appendleft((since_ms, head._replace(first=one.last + 1)))
        if changes:
            self._leader.persist(changes)
            self._broker.share.wake(self._leader)
        return count

    def _failed(self, trouble: Trouble) -> None:
        """Try again later, and drop what has been tried for longer than the group wants."""
        group_id, now_ms = self._leader.key.group_id, self._broker.clock.now_ms()
        self._broker.share.dead_letters.failed[(group_id, trouble.reason)] += 1
        if self.trouble is None or self.trouble.reason != trouble.reason:
            self._broker.log.warning(
                "dead letters cannot be written",
                group=group_id,
                topic=self._leader.partition.topic,
                partition=self._leader.partition.index,
                reason=trouble.message,
            )
        self.trouble = trouble
        config = self._broker.image.group_config(group_id)
        patience_ms = config[_DROP_AFTER]
        if patience_ms >= 0:
            late = sum(now_ms - since_ms >= patience_ms for since_ms, _ in self.queue)
            self._drop(late, trouble.message)
        if self.queue:
            delay_ms = min(RETRY_MS << min(self._retries, 10), RETRY_MS_MAX)
            self._retries += 1
            self._timer = self._broker.timers.at(now_ms + delay_ms, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self.write()

    def _drop(self, rows: int, why: str) -> None:
        if rows:
            dropped = self._leave([one for _, one in list(self.queue)[:rows]])
            group_id = self._leader.key.group_id
            self._broker.share.dead_letters.dropped[group_id] += dropped
            self._broker.log.warning(
                "records left their group without a dead letter",
                group=group_id,
                records=dropped,
                reason=why,
            )


async def _produce(broker: Broker, target: Elsewhere, batch: bytearray) -> ErrorCode:
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
        answer = await broker.peers.request(
            target.leader_id, ApiKey.PRODUCE, fields, timeout_ms=2 * COMMIT_TIMEOUT_MS
        )
    except ClientError:
        return ErrorCode.not_leader_or_follower
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def _records(source: Partition, chunk: Sequence[Doomed]) -> dict[int, Record]:
    """The records of some offsets, as far as the log still has them and can read them."""
    found: dict[int, Record] = {}
    for one in chunk:
        offset = one.first
        while offset <= one.last and one.cause is not Cause.CORRUPT:
            try:
                data, offset = source.log.read(offset, READ_BYTES, max_offset=source.high_watermark)
                for at, header in headers(data):
                    if header.last_offset < one.first or header.base_offset > one.last:
                        continue
                    for record in read_records(data, at):
                        if one.first <= record.offset <= one.last:
                            found[record.offset] = record
            except (OffsetOutOfRange, CorruptBatch):
                break
            if not data:
                break
    return found
