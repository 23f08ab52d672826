"""The one shape of every replicated state machine.

A *decision* looks at a shard and a request and returns a `Result`: the records to append to the
shard's partition, and the replies that may leave once those records are committed. Deciding changes
no hard state; `Shard.replay` alone does, both right after the append and when a shard is rebuilt
from its log. So a failed append needs no rollback: the shard is dropped and loaded again.

Leases, parked requests and timers are soft state: a decision may change them, and a shard that is
rebuilt starts without them. Time is an argument; a shard that wants to be woken tells so by
`next_deadline_ms`, and its runtime calls `tick` at or after that time.

A *token* stands for a request that waits for its reply. Shards store and return tokens and look at
nothing in them; the runtime gave them out and knows where a reply goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Token = Any


class Record(NamedTuple):
    """One record for the shard's partition: encoded key, and encoded value or None (tombstone)."""

    key: bytes
    value: bytes | None


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as its batches name it."""

    producer_id: int
    producer_epoch: int


class Reply(NamedTuple):
    """The response body that leaves for `token`."""

    token: Token
    response: Mapping[str, Any]


class Result(NamedTuple):
    """What a decision gives: `records` are appended as one batch, then `replies` leave.

    With a `producer` the records belong to its open transaction: they are a batch of its own, and
    count once the transaction's marker says so.

    `effects` are what the shard asks of the rest of the broker once the records are committed:
    values of the shard's own making, which the shell knows how to carry out.
    """

    records: Sequence[Record] = ()
    replies: Sequence[Reply] = ()
    effects: Sequence[Any] = ()
    producer: ProducerIdAndEpoch | None = None


class Replayed(NamedTuple):
    """Where a replayed record stands in its log."""

    offset: int
    timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False


class Shard(Protocol):
    """The state machine of one partition of an internal topic."""

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due at the latest; None while nothing is timed."""

    def replay(self, record: Record, at: Replayed) -> None:
        """Move hard state by one record. Total: a record of an unknown kind is passed over."""

    def loaded(self, now_ms: int) -> None:
        """The log has been replayed to its end: arm the timers of what was found in it."""

    def tick(self, now_ms: int) -> Result:
        """Do what is due: expire sessions and locks, end rebalances, forget old offsets."""
