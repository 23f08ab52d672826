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

    from shoal.log.producers import ProducerStates

#: The topic's name, or its id, and the partition, as the request has them.
Where = tuple[str, "UUID | None", int]
#: A partition and the id of one of its producers.
_Key = tuple[Where, int]
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


class RefusedBatches:
    """Owns the first refused batch of each producer and partition."""

    def __init__(self) -> None:
        self._refusals: dict[_Key, _Refusal] = {}
        #: The epoch and first sequence of each producer's last batch that may have overtaken
        #: others.
        self._ahead: dict[_Key, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def note(self, where: Where, data: Buffer | None, code: ErrorCode, now_ms: int) -> None:
        """Note that a batch was refused with an error after which it is sent again, also for one
        that is `ahead_of` it. Any other error changes nothing."""
        header = _header(data) if code in SENT_AGAIN else None
        if header is None:
            return
        key = (where, header.producer_id)
        known = self._refusals.pop(key, None)
        if known is not None and _is_behind(header, known):
            # The last one that can be under way ends it.
            if known.behind > 1:
                self._refusals[key] = known._replace(
                    last=header.last_sequence, behind=known.behind - 1
                )
            return
        first, last = header.base_sequence, header.last_sequence
        refusal = _Refusal(header.producer_epoch, first, last, code, now_ms, BATCHES_MAX - 1)
        _remember(self._refusals, key, refusal)

    def ahead_of(
        self, where: Where, data: Buffer, producers: ProducerStates, now_ms: int
    ) -> ErrorCode | None:
        """Return the error of the refused batch that the producer sent before this one and that the
        log lacks; None without one."""
        self._forget(now_ms)
        header = _header(data)
        known = None if header is None else self._refusals.get((where, header.producer_id))
        if header is None or known is None:
            return None
        if not _is_behind(header, known) or now_ms - known.at_ms > REMEMBERED_MS:
            del self._refusals[where, header.producer_id]
            return None
        return known.code if _lacks(producers, header, known) else None

    def overtook(
        self, where: Where, data: Buffer, producers: ProducerStates, start_offset: int
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
        key, batch = (where, header.producer_id), (header.producer_epoch, header.base_sequence)
        if self._ahead.get(key) == batch:
            return False
        _remember(self._ahead, key, batch)
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


def _header(data: Buffer | None) -> BatchHeader | None:
    """The header of a producer's batch; None without a producer id."""
    if data is None or len(data) < HEADER_SIZE:
        return None
    header = BatchHeader._make(HEADER.unpack_from(data))
    return None if header.producer_id == NO_PRODUCER_ID else header


def _is_behind(header: BatchHeader, known: _Refusal) -> bool:
    """Whether a batch comes after the first refused one in the same epoch of its producer."""
    return header.producer_epoch == known.epoch and _follows(header.base_sequence, known.first)


def _lacks(producers: ProducerStates, header: BatchHeader, known: _Refusal) -> bool:
    """Whether the log lacks a refused batch that comes before this one. It may have all of them:
    from an earlier leader, or from this broker."""
    producer = producers.get(header.producer_id)
    if producer is None or producer.epoch != known.epoch or not producer.batches:
        return True
    last = producer.last_sequence
    return header.base_sequence != advance_sequence(last, 1) and _follows(known.last, last)


def _follows(one: int, other: int) -> bool:
    """Whether a sequence comes after another. Sequences start again at 0 after the largest."""
    return 0 < (one - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
