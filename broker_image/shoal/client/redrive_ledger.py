"""What has been redriven, remembered in the cluster: a compacted topic with one record for each
partition of a dead-letter topic.

It outlives the offsets of groups, which expire, and takes sets of any shape, which a committed
position cannot: letters that a filter left out can be redriven later. A record tells the letters
that are done, and what is being sent: before letters are sent, their range is written down with the
ends of the logs they go to, so that whoever takes over finds there those that did arrive. Keyed by
topic id: a dead-letter topic made anew begins without a past.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shoal.client.cluster import Cluster, TopicPartition
from shoal.client.errors import KafkaError
from shoal.client.fetcher import Fetcher
from shoal.client.offset_set import OffsetSet
from shoal.client.producer import Producer
from shoal.client.topics import NewTopic, OffsetSpec, Topics
from shoal.protocol.errors import ErrorCode

LEDGER = "shoal-redrives"
_PARTITION = TopicPartition(LEDGER, 0)


@dataclass(slots=True)
class Sending:
    """Letters under way: their range, and where the logs ended that they go to."""

    first: int
    last: int
    ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class RedriveState:
    """How far one partition of a dead-letter topic is redriven; `counts` by share group."""

    topic: str
    partition: int
    done: OffsetSet = field(default_factory=OffsetSet)
    counts: dict[str, int] = field(default_factory=dict)
    sending: Sending | None = None

    def text(self) -> bytes:
        """As it stands in the ledger."""
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
        """Raises `ValueError` or `KeyError` for bytes that are none."""
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
        """The states of one dead-letter topic, by partition. Raises `KafkaError`."""
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
        """Make the ledger's topic, unless it is there. Raises `KafkaError`."""
        new = NewTopic(LEDGER, 1, -1, configs={"cleanup.policy": "compact"})
        made = (await Topics(self.cluster).create([new]))[LEDGER]
        if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
            raise KafkaError(
                made.code, f"topic {LEDGER}, which remembers what was redriven: {made}"
            )

    async def write(self, topic_id: UUID, state: RedriveState) -> None:
        """Note a state; it is stored when this returns. Raises `KafkaError`."""
        key = f"{topic_id}:{state.partition}".encode()
        stored = await self._producer.send(LEDGER, state.text(), key=key, partition=0)
        try:
            await stored
        except KafkaError as error:
            if error.code != ErrorCode.message_too_large:
                raise
            raise KafkaError(
                error.code,
                f"the letters of {state.topic}-{state.partition} that were redriven are too"
                f" scattered to be remembered in one record of {LEDGER}: raise its"
                " max.message.bytes, or redrive those between them too",
            ) from None

    async def close(self) -> None:
        await self._producer.close()


def _parse_record(topic_id: UUID, key: bytes | None, value: bytes | None) -> RedriveState | None:
    """The state that a record of the ledger tells, if it is of that topic."""
    if key is None or value is None or not key.startswith(f"{topic_id}:".encode()):
        return None
    try:
        return RedriveState.parse(value)
    except (ValueError, KeyError, TypeError):
        return None
