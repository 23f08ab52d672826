"""Admin calls on transactions (KIP-664): list, describe, and end those that hang.

A transactional producer's state is at its transaction coordinator. The leaders of partitions have
its open transactions, which hold back the last stable offset. A transaction hangs if a partition
has it open and its coordinator will not end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.client.errors import KafkaError, check
from shoal.client.net import message_fields
from shoal.client.net.cluster import TRANSACTION, TopicPartition
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.net.cluster import Cluster

#: State of a transactional id whose transaction may still write.
ONGOING = "Ongoing"


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id at its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id in detail. `start_ms` is -1 without a transaction. `partitions` are those
    of the transaction, or those that still lack its marker.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """An idempotent or transactional producer in a partition's log. `transaction_start_offset` is
    -1 without an open transaction; `coordinator_epoch` is -1 if no transaction has ended.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int


class Transactions:
    """Calls on transactions, reached as `Admin.transactions`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
    ) -> dict[str, TransactionListing]:
        """Return the transactional ids of all coordinators, or those that match all filters."""
        body = {
            "state_filters": list(states),
            "producer_id_filters": list(producer_ids),
            "duration_filter": longer_than_ms,
            "transactional_id_pattern": None,
        }
        await self.cluster.refresh([])
        listings: dict[str, TransactionListing] = {}
        for node in sorted(self.cluster.brokers):

            async def attempt(node: int = node) -> Any:
                answer = await self.cluster.request(node, ApiKey.LIST_TRANSACTIONS, body)
                check(answer.error_code, f"transactions of broker {node}")
                return answer

            answer = await self.cluster.retry(attempt)
            for result in answer.transaction_states:
                listings[result.transactional_id] = TransactionListing(
                    result.transactional_id, result.producer_id, result.transaction_state, node
                )
        return dict(sorted(listings.items()))

    async def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription | KafkaError]:
        """Return the transactional ids in detail."""

        async def call(
            node: int, transactional_ids: list[str]
        ) -> dict[str, TransactionDescription | KafkaError]:
            body = {"transactional_ids": transactional_ids}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_TRANSACTIONS, body)
            return {
                result.transactional_id: message_fields.parse_error(
                    result, f"there is no transactional id {result.transactional_id!r}"
                )
                or _parse_transaction(result, node)
                for result in answer.transaction_states
            }

        return await self.cluster.scatter(
            ids,
            lambda some: self.cluster.find_coordinators(some, TRANSACTION),
            call,
            lambda id: self.cluster.forget_coordinator(id, TRANSACTION),
        )

    async def producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        """Return the producers in the logs of partitions, from their leaders."""

        async def call(
            node: int, leader_partitions: list[TopicPartition]
        ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
            topics: dict[str, list[int]] = {}
            for partition in leader_partitions:
                topics.setdefault(partition.topic, []).append(partition.partition)
            body = {"topics": [{"name": t, "partition_indexes": p} for t, p in topics.items()]}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_PRODUCERS, body)
            return {
                partition: message_fields.parse_error(part, f"producers of {partition}")
                or tuple(map(_parse_producer, part.active_producers))
                for partition, part in message_fields.iterate_partitions(answer.topics)
            }

        return await self.cluster.call_leaders(partitions, call)

    async def abort(self, partition: TopicPartition, producer: ProducerState) -> None:
        """Write the marker that aborts a producer's open transaction in one partition. The
        coordinator is not asked: its own transaction may differ. Raises `KafkaError`.
        """
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}],
            "coordinator_epoch": max(0, producer.coordinator_epoch),
            "transaction_version": 0,
        }

        async def call(
            node: int, _: list[TopicPartition]
        ) -> Mapping[TopicPartition, KafkaError | None]:
            answer = await self.cluster.request(
                node, ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]}
            )
            (result,) = answer.markers[0].topics[0].partitions
            return {partition: message_fields.parse_error(result, f"the marker in {partition}")}

        error = (await self.cluster.call_leaders([partition], call))[partition]
        if error is not None:
            raise error

    async def terminate(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id. Its coordinator aborts the open transaction.
        Raises `KafkaError`.
        """
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": 1,
            "producer_id": -1,
            "producer_epoch": -1,
        }

        async def attempt() -> None:
            node = await self.cluster.find_coordinator(transactional_id, TRANSACTION)
            answer = await self.cluster.request(node, ApiKey.INIT_PRODUCER_ID, body)
            if answer.error_code:
                self.cluster.forget_coordinator(transactional_id, TRANSACTION)
            check(answer.error_code, f"ending the transaction of {transactional_id!r}")

        await self.cluster.retry(attempt)


def _parse_transaction(result: Any, node: int) -> TransactionDescription:
    return TransactionDescription(
        result.transactional_id,
        result.producer_id,
        result.producer_epoch,
        result.transaction_state,
        result.transaction_timeout_ms,
        result.transaction_start_time_ms,
        tuple(TopicPartition(t.topic, p) for t in result.topics for p in t.partitions),
        node,
    )


def _parse_producer(result: Any) -> ProducerState:
    return ProducerState(
        result.producer_id,
        result.producer_epoch,
        result.coordinator_epoch,
        result.last_sequence,
        result.last_timestamp,
        result.current_txn_start_offset,
    )
