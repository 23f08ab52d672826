"""A transactional producer for simulated clusters, over the connections of `shoal.client`.

It uses transaction version 1 (partitions are added before the first write) or 2 (a write adds its
partition, and each end bumps the epoch: KIP-890). A request without a response is sent again
unchanged until the client's time for the call is over. After an error, the caller starts again with
`init`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.errors import STALE_METADATA, ClientError, KafkaError
from shoal.client.net.cluster import GROUP, TRANSACTION, Cluster, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from sim.cluster_requests import ask_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TransactionalProducer:
    """The last caller of `init` owns the transactional id, and only it may write."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, *, version: int, timeout_ms: int
    ) -> None:
        """`version` is the transaction version, 1 or 2; `timeout_ms` bounds a transaction."""
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._named: set[TopicPartition | str] = set()

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    async def init(self) -> None:
        """Fence the former owner of the id; its open transaction is aborted."""
        body = {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": self.timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._coordinated(ApiKey.INIT_PRODUCER_ID, body)
        self._continue_as(answer.producer_id, answer.producer_epoch)

    def _continue_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = producer_id, epoch
            self._sequences.clear()

    async def send(self, where: TopicPartition, values: Sequence[bytes]) -> int:
        """Write records and return the first offset. Call it once at a time for each partition."""
        await self._name(where)
        sequence = self._sequences.get(where, 0)
        data = build_batch(
            [(self.cluster.environment.now_ms(), None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

        async def attempt() -> int:
            topic = await self.cluster.get_topic(where.topic)
            try:
                link = await self.cluster.get_connection(
                    await self.cluster.find_leader(*where), "produce"
                )
                version = link.choose_version(ApiKey.PRODUCE, 11 if self.version == 1 else None)
                body = {
                    "transactional_id": self.transactional_id,
                    "acks": -1,
                    "timeout_ms": 3_000,
                    "topic_data": [
                        {
                            "name": where.topic,
                            "topic_id": topic.topic_id,
                            "partition_data": [{"index": where.partition, "records": data}],
                        }
                    ],
                }
                answer = await link.request(ApiKey.PRODUCE, body, version=version)
            except ClientError:
                self.cluster.forget_topic(where.topic)
                raise
            row = answer.responses[0].partition_responses[0]
            if row.error_code in STALE_METADATA:
                self.cluster.forget_topic(where.topic)
            if row.error_code not in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                raise KafkaError(row.error_code, f"writing to {where}")
            return int(row.base_offset)

        offset = await self.cluster.retry(attempt)
        self._sequences[where] = sequence + len(values)
        return offset

    async def commit_offset(self, group: str, where: TopicPartition, offset: int) -> None:
        """Commit the group's offset with this transaction."""
        if self.version == 1 and group not in self._named:
            await self._coordinated(ApiKey.ADD_OFFSETS_TO_TXN, {**self._who, "group_id": group})
            self._named.add(group)
        partition = {
            "partition_index": where.partition,
            "committed_offset": offset,
            "committed_metadata": "",
        }
        body = {
            **self._who,
            "group_id": group,
            "topics": [{"name": where.topic, "partitions": [partition]}],
        }
        version = 4 if self.version == 1 else 5  # Version 6 has topic ids.
        await self._coordinated(
            ApiKey.TXN_OFFSET_COMMIT,
            body,
            version,
            of=(group, GROUP),
            code=lambda answer: answer.topics[0].partitions[0].error_code,
        )

    async def end(self, *, committed: bool) -> None:
        version = 4 if self.version == 1 else None
        body = {**self._who, "committed": committed}
        answer = await self._coordinated(ApiKey.END_TXN, body, version)
        self._named.clear()
        if self.version == 2:
            self._continue_as(answer.producer_id, answer.producer_epoch)

    async def _name(self, where: TopicPartition) -> None:
        if self.version == 2 or where in self._named:
            return
        topics = [{"name": where.topic, "partitions": [where.partition]}]
        fields = {**self._who, "topics": topics}
        body = {f"v3_and_below_{name}": value for name, value in fields.items()}
        await self._coordinated(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            body,
            3,
            code=lambda answer: (
                answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            ),
        )
        self._named.add(where)

    async def _coordinated(
        self,
        key: ApiKey,
        body: dict[str, Any],
        version: int | None = None,
        *,
        of: tuple[str, int] | None = None,
        code: Callable[[Any], int] = lambda answer: answer.error_code,
    ) -> Any:
        """Ask the coordinator (by default of the transactional id), and retry retriable errors."""
        name, kind = of or (self.transactional_id, TRANSACTION)
        return await self.cluster.retry(
            lambda: ask_coordinator(self.cluster, name, key, body, version, kind=kind, code=code)
        )
