"""The interface of every replicated state machine.

A *decision* takes a shard and a request and returns a `CoordinatorResult`: the records to append to
the shard's partition, and the replies to send once those records are committed. A decision changes
no hard state. Only `Shard.replay` does, right after the append and when a shard is rebuilt from its
log. So a failed append needs no rollback: the shard is dropped and loaded again.

Leases, parked requests and timers are soft state. A decision may change them, and a rebuilt shard
starts without them. Time is an argument. The runtime calls `tick` at `next_deadline_ms` or later.

A *token* stands for a request that waits for its reply. The runtime creates tokens, and shards
store and return them unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Token = Any


class CoordinatorRecord(NamedTuple):
    """A record of the shard's partition: the encoded key, and the encoded value or None
    (tombstone)."""

    key: bytes
    value: bytes | None


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as in the header of its batches."""

    producer_id: int
    producer_epoch: int


class Reply(NamedTuple):
    """The response body for `token`."""

    token: Token
    response: Mapping[str, Any]


class CoordinatorResult(NamedTuple):
    """The result of a decision: `records` are appended as one batch, then `replies` are sent.

    With a `producer` the records belong to its open transaction. They form a batch of their own,
    and take effect with the transaction's marker.

    `effects` are requests of the shard to the rest of the broker, which performs them once the
    records are committed. Their classes belong to the shard.
    """

    records: Sequence[CoordinatorRecord] = ()
    replies: Sequence[Reply] = ()
    effects: Sequence[Any] = ()
    producer: ProducerIdAndEpoch | None = None


class RecordOrigin(NamedTuple):
    """The position of a replayed record in its log."""

    offset: int
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False


class Shard(Protocol):
    """The state machine of one partition of an internal topic."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None without a deadline."""

    def replay(self, record: CoordinatorRecord, origin: RecordOrigin) -> None:
        """Apply one record to hard state. Records of unknown types are ignored."""

    def on_loaded(self, now_ms: int) -> None:
        """Set the deadlines of the loaded state. The log has been replayed to its end."""

    def tick(self, now_ms: int) -> CoordinatorResult:
        """Serve deadlines: expire sessions, locks and offsets, and end rebalances."""
