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

from shoal.client.admin.topics import NewTopic, OffsetSpec, Topics
from shoal.client.consume.fetcher import Fetcher
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.produce.producer import Producer
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
    redriven: OffsetSet = field(default_factory=OffsetSet)
    counts: dict[str, int] = field(default_factory=dict)
    sending: Sending | None = None

    def to_json(self) -> bytes:
        """Encode the state as a ledger record's value."""
        fields: dict[str, Any] = {
            "topic": self.topic,
            "partition": self.partition,
            "done": str(self.redriven),
            "redriven": self.counts,
        }
        if self.sending is not None:
            ends: dict[str, dict[str, int]] = {}
            for partition, end in self.sending.ends.items():
                ends.setdefault(partition.topic, {})[str(partition.partition)] = end
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


def count_redriven(
    redriven: Mapping[int, OffsetSet], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> int:
    """Return how many of the letters that a topic still has were redriven."""
    count = 0
    for partition, (start, _) in bounds.items():
        offsets = redriven.get(partition.partition, OffsetSet())
        offsets.forget(start)
        count += len(offsets)
    return count


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
        states: dict[int, RedriveState] = {}
        if bounds[0] == bounds[1]:
            return states
        fetcher = Fetcher(self.cluster)
        async for fetched in fetcher.fetch_range(LEDGER, 0, bounds[0], bounds[1] - 1):
            for record in fetched.records():
                state = _parse_record(topic_id, record.key, record.value)
                if state is not None:
                    states[state.partition] = state
        return states

    async def read_redriven(self, topic: str) -> dict[int, OffsetSet]:
        """Return the letters of a topic that were sent back, by partition. Raises `ClientError`."""
        topic_id = (await self.cluster.get_topic(topic)).topic_id
        states = {} if topic_id is None else await self.read(topic_id)
        return {partition: state.redriven for partition, state in states.items()}

    async def create(self) -> None:
        """Create the ledger's topic if it does not exist. Raises `KafkaError`."""
        new = NewTopic(LEDGER, 1, -1, configs={"cleanup.policy": "compact"})
        result = (await Topics(self.cluster).create([new]))[LEDGER]
        if isinstance(result, KafkaError) and result.code != ErrorCode.topic_already_exists:
            raise KafkaError(
                result.code, f"creating topic {LEDGER}, the ledger of redrives: {result}"
            )

    async def write(self, topic_id: UUID, state: RedriveState) -> None:
        """Store a state and wait until it is stored. Raises `KafkaError`."""
        key = f"{topic_id}:{state.partition}".encode()
        stored = await self._producer.send(LEDGER, state.to_json(), key=key, partition=0)
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
