"""Batches of idempotent producers that this broker refused, and that will be sent again.

An idempotent producer has up to five batches under way. When one is refused and may be sent again,
because this broker does not lead yet or has too few replicas in sync, those behind it are still to
come. If the reason for the refusal has gone by then, they break the sequence, and Kafka answers
OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then takes a new epoch and sends all of them again, also a
batch that had been written and whose answer was lost: it is in the log twice. And a log that does
not know the producer takes any sequence first, and refuses the batches before it for ever.

So the batches behind a refused one get its error, until the producer sends it again (ADR 136).

The former leader may be the one that refused it, or have it still. Then the first batch that breaks
the sequence here gets NOT_LEADER_OR_FOLLOWER, and those behind it do too (ADR 139).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shoal.log.producers import BATCHES_MAX
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    HEADER,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    SEQUENCE_MAX,
    BatchHeader,
    Buffer,
    advance_sequence,
    read_header,
)

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.log.producers import ProducerStateManager

#: The topic's name, or its id, and the partition, as the request has them.
PartitionKey = tuple[str, "UUID | None", int]
#: A partition and the id of one of its producers.
_Key = tuple[PartitionKey, int]
_Entry = TypeVar("_Entry")
#: Errors after which a producer sends the same batch again.
SENT_AGAIN = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
    }
)
#: How long a refusal counts, in milliseconds. Batches under way arrive far sooner.
REMEMBERED_MS = 10_000
#: Producers of partitions that are remembered; the oldest are forgotten first.
REMEMBERED_MAX = 10_000


class _Refusal(NamedTuple):
    epoch: int
    #: The first sequence of the first refused batch, and the last one of the last.
    first: int
    last: int
    code: ErrorCode
    at_ms: int
    #: How many more batches can be under way.
    behind: int


class RejectedBatches:
    """Owns the first refused batch of each producer and partition."""

    def __init__(self) -> None:
        self._refusals: dict[_Key, _Refusal] = {}
        #: The epoch and first sequence of each producer's last batch that may have overtaken
        #: others.
        self._reordered: dict[_Key, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def note(
        self, partition_key: PartitionKey, data: Buffer | None, code: ErrorCode, now_ms: int
    ) -> None:
        """Note that a batch was refused with an error after which it is sent again, also for one
        that is `predecessor_error` it. Any other error changes nothing."""
        header = _read_header(data) if code in SENT_AGAIN else None
        if header is None:
            return
        key = (partition_key, header.producer_id)
        rejection = self._refusals.pop(key, None)
        if rejection is not None and _is_behind(header, rejection):
            # The last one that can be under way ends it.
            if rejection.behind > 1:
                self._refusals[key] = rejection._replace(
                    last=header.last_sequence, behind=rejection.behind - 1
                )
            return
        first, last = header.base_sequence, header.last_sequence
        refusal = _Refusal(header.producer_epoch, first, last, code, now_ms, BATCHES_MAX - 1)
        _remember(self._refusals, key, refusal)

    def predecessor_error(
        self,
        partition_key: PartitionKey,
        data: Buffer,
        producers: ProducerStateManager,
        now_ms: int,
    ) -> ErrorCode | None:
        """Return the error of the refused batch that the producer sent before this one and that the
        log lacks; None without one."""
        self._forget(now_ms)
        header = _read_header(data)
        rejection = (
            None if header is None else self._refusals.get((partition_key, header.producer_id))
        )
        if header is None or rejection is None:
            return None
        if not _is_behind(header, rejection) or now_ms - rejection.at_ms > REMEMBERED_MS:
            del self._refusals[partition_key, header.producer_id]
            return None
        return rejection.code if _is_missing(producers, header, rejection) else None

    def is_reordered(
        self,
        partition_key: PartitionKey,
        data: Buffer,
        producers: ProducerStateManager,
        start_offset: int,
    ) -> bool:
        """Whether a batch that breaks its producer's sequence may only have overtaken the batches
        before it, which are on the way from the former leader.

        This is so if the producer has written nothing since this broker leads, from `start_offset`
        on. The same batch gets this answer once.
        """
        header = read_header(data)
        producer = producers.get(header.producer_id)
        if producer is None or producer.last_offset >= start_offset:
            return False
        key, batch = (
            (partition_key, header.producer_id),
            (header.producer_epoch, header.base_sequence),
        )
        if self._reordered.get(key) == batch:
            return False
        _remember(self._reordered, key, batch)
        return True

    def _forget(self, now_ms: int) -> None:
        """Forget the oldest refusal if it counts no more."""
        oldest = next(iter(self._refusals), None)
        if oldest is not None and now_ms - self._refusals[oldest].at_ms > REMEMBERED_MS:
            del self._refusals[oldest]


def _remember(entries: dict[_Key, _Entry], key: _Key, entry: _Entry) -> None:
    """Add an entry as the newest one. If there are too many, the oldest is forgotten."""
    entries.pop(key, None)
    if len(entries) >= REMEMBERED_MAX:
        del entries[next(iter(entries))]
    entries[key] = entry


def _read_header(data: Buffer | None) -> BatchHeader | None:
    """The header of a producer's batch; None without a producer id."""
    if data is None or len(data) < HEADER_SIZE:
        return None
    header = BatchHeader._make(HEADER.unpack_from(data))
    return None if header.producer_id == NO_PRODUCER_ID else header


def _is_behind(header: BatchHeader, rejection: _Refusal) -> bool:
    """Whether a batch comes after the first refused one in the same epoch of its producer."""
    return header.producer_epoch == rejection.epoch and _is_after(
        header.base_sequence, rejection.first
    )


def _is_missing(producers: ProducerStateManager, header: BatchHeader, rejection: _Refusal) -> bool:
    """Whether the log lacks a refused batch that comes before this one. It may have all of them:
    from an earlier leader, or from this broker."""
    producer = producers.get(header.producer_id)
    if producer is None or producer.epoch != rejection.epoch or not producer.batches:
        return True
    last = producer.last_sequence
    return header.base_sequence != advance_sequence(last, 1) and _is_after(rejection.last, last)


def _is_after(sequence: int, other: int) -> bool:
    """Whether a sequence comes after another. Sequences start again at 0 after the largest."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
