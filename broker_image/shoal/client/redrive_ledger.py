"""The ledger of redrives: a compacted topic with one record per dead-letter partition.

A ledger outlives the offsets of groups, which expire. It can hold any set of offsets, which a
committed position cannot: letters that a filter excluded can be redriven later. A record holds the
letters that are done and the range in progress. The range is written before the letters are sent,
with the end offsets of their target logs. After a crash the next redrive reads the target logs from
there and finds the letters that arrived. Records are keyed by topic id, so a recreated dead-letter
topic starts without history.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.client.cluster import Cluster, TopicPartition
from shoal.client.errors import KafkaError
from shoal.client.fetcher import Fetcher
from shoal.client.producer import Producer
from shoal.client.topics import NewTopic, OffsetSpec, Topics
from shoal.protocol.errors import ErrorCode
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

LEDGER = "shoal-redrives"
_PARTITION = TopicPartition(LEDGER, 0)


@dataclass(slots=True)
class Sending:
    """A range of letters in progress, and the end offsets of their target logs before it."""

    first: int
    last: int
    ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class RedriveState:
    """The redrive state of one dead-letter partition; `counts` are letters by share group."""

    topic: str
    partition: int
    done: OffsetSet = field(default_factory=OffsetSet)
    counts: dict[str, int] = field(default_factory=dict)
    sending: Sending | None = None

    def text(self) -> bytes:
        """Encode the state as a ledger record's value."""
        fields: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "done": str(self.done),
            "redriven": self.counts,
        }
        if self.sending is not None:
            ends: dict[str, dict[str, int]] = {}
            for where, end in self.sending.ends.items():
                ends.setdefault(where.topic, {})[str(where.partition)] = end
            fields["sending"] = {
                "first": self.sending.first,
                "last": self.sending.last,
                "ends": ends,
            }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, text: bytes) -> RedriveState:
        """Decode a record's value. Raises `ValueError` or `KeyError`."""
        fields = json.loads(text)
        sending = fields.get("sending")
        return cls(
            fields["topic"],
            fields["partition"],
            OffsetSet.parse(fields["done"]),
            dict(fields["redriven"]),
            None
            if sending is None
            else Sending(
                sending["first"],
                sending["last"],
                {
                    TopicPartition(topic, int(index)): end
                    for topic, ends in sending["ends"].items()
                    for index, end in ends.items()
                },
            ),
        )


class RedriveLedger:
    """The ledger of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._producer = Producer(cluster, compression="gzip", linger_ms=0)

    async def read(self, topic_id: UUID) -> dict[int, RedriveState]:
        """Return the states of one dead-letter topic by partition. Raises `KafkaError`."""
        topics = Topics(self.cluster)
        bounds = []
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
            listed = (await topics.offsets({_PARTITION: int(spec)}))[_PARTITION]
            if isinstance(listed, KafkaError):
                if listed.code == ErrorCode.unknown_topic_or_partition:
                    return {}
                raise listed
            bounds.append(listed.offset)
        found: dict[int, RedriveState] = {}
        if bounds[0] == bounds[1]:
            return found
        fetcher = Fetcher(self.cluster)
        async for fetched in fetcher.range(LEDGER, 0, bounds[0], bounds[1] - 1):
            for record in fetched.records():
                state = _parse_record(topic_id, record.key, record.value)
                if state is not None:
                    found[state.partition] = state
        return found

    async def create(self) -> None:
        """Create the ledger's topic if it does not exist. Raises `KafkaError`."""
        new = NewTopic(LEDGER, 1, -1, configs={"cleanup.policy": "compact"})
        made = (await Topics(self.cluster).create([new]))[LEDGER]
        if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
            raise KafkaError(made.code, f"creating topic {LEDGER}, the ledger of redrives: {made}")

    async def write(self, topic_id: UUID, state: RedriveState) -> None:
        """Store a state and wait until it is stored. Raises `KafkaError`."""
        key = f"{topic_id}:{state.partition}".encode()
        stored = await self._producer.send(LEDGER, state.text(), key=key, partition=0)
        try:
            await stored
        except KafkaError as error:
            if error.code != ErrorCode.message_too_large:
                raise
            raise KafkaError(
                error.code,
                f"the redriven letters of {state.topic}-{state.partition} form too many ranges for"
                f" one record of {LEDGER}. Raise its max.message.bytes, or also redrive the"
                " letters between them",
            ) from None

    async def close(self) -> None:
        await self._producer.close()


def _parse_record(topic_id: UUID, key: bytes | None, value: bytes | None) -> RedriveState | None:
    """Return the state in a ledger record, or None if it belongs to another topic."""
    if key is None or value is None or not key.startswith(f"{topic_id}:".encode()):
        return None
    try:
        return RedriveState.parse(value)
    except (ValueError, KeyError, TypeError):
        return None
