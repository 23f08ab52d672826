"""The transaction coordinator on this broker: transactional ids, in `__transaction_state`.

Produce and TxnOffsetCommit call `enlist` before they write for a transaction. With transaction
version 2 it adds the partitions to the transaction; with version 1 it verifies that they are in it
(KIP-890). `transaction_markers` writes the markers of a decided transaction, and then calls
`complete`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.errors import ClientError
from shoal.coordinator.runtime import ShardPhase
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators.service import (
    CoordinatorService,
    CreateTopic,
    InternalTopic,
    PartitionsPort,
    ReplicasPort,
    Response,
)
from shoal.server.coordinators.transaction_markers import (
    OffsetMarkers,
    PeersPort,
    TransactionMarkerChannel,
)
from shoal.transaction.shard import (
    ProducerIdentity,
    TransactionSettings,
    TransactionShard,
    WriteMarkers,
)
from shoal.transaction.transactions import TV_2, TopicPartition

if TYPE_CHECKING:
    from shoal.coordinator.contract import CoordinatorResult, ProducerIdAndEpoch, Token
    from shoal.log.log import Log
    from shoal.protocol.responses import transactions as responses
    from shoal.record.batch import BatchHeader
    from shoal.replication.partition import Partition
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node

TOPIC = "__transaction_state"
#: The delay before another broker is asked again about a transaction that is ending.
ASK_AGAIN_MS = 10
#: How long InitProducerId waits for a block of producer ids.
IDS_WAIT_S = 5.0

#: Retriable errors. Old producers may not retry each of them, but do retry NOT_ENOUGH_REPLICAS.
_RETRIED = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)

Errors = Mapping[TopicPartition, ErrorCode]


class _Enlistment:
    """A write that waits to be enlisted; `errors` is None until that has ended."""

    __slots__ = ("callback", "errors")

    def __init__(self, callback: Callable[[Errors], None]) -> None:
        self.callback = callback
        self.errors: Errors | None = None


class ProducerIdsPort(Protocol):
    """The producer ids of this broker (`cluster.producer_ids`)."""

    def take(self) -> int:
        """A new producer id. Raises COORDINATOR_NOT_AVAILABLE when there is none."""

    def wait_if_empty(self) -> asyncio.Future[Any] | None:
        """None while there are ids to take, else a future that ends when there may be some."""


class TransactionService(CoordinatorService[TransactionShard]):
    """The shards of `__transaction_state`."""

    key_type = 1

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: PartitionsPort,
        replicas: ReplicasPort,
        create_topic: CreateTopic,
        metrics: MetricRegistry,
        *,
        groups: OffsetMarkers,
        producer_ids: ProducerIdsPort,
        peers: PeersPort,
        purgatory: Purgatory,
    ) -> None:
        config = node.config
        settings = TransactionSettings(
            config["transaction.max.timeout.ms"],
            config["transactional.id.expiration.ms"],
            config["transaction.remove.expired.transaction.cleanup.interval.ms"],
        )
        super().__init__(
            node,
            cache,
            partitions,
            replicas,
            create_topic,
            topic=InternalTopic(TOPIC),
            new_shard=lambda _: TransactionShard(settings, producer_ids.take),
        )
        self._producer_ids = producer_ids
        self._peers = peers
        self.markers = TransactionMarkerChannel(
            node,
            cache,
            partitions,
            purgatory=purgatory,
            peers=peers,
            groups=groups,
            coordinator_epoch=self.find_coordinator_epoch,
            completed=self.complete,
        )
        self.on_effect(WriteMarkers, self.markers.write)
        #: By transactional id: writes that wait until its last transaction is complete.
        self._waiting_writes: dict[str, list[Callable[[], None]]] = {}
        #: By producer id: its writes that are being enlisted, in the order in which they came.
        self._enlisting: dict[int, deque[_Enlistment]] = {}
        metrics.add_gauge(
            "kafka_coordinator_transaction_TransactionStateManager_NumTransactionalIds",
            "Transactional ids that are known.",
            lambda: sum(len(shard) for _, shard in self.get_shards()),
        )

    def find_coordinator_epoch(self, markers: WriteMarkers) -> int | None:
        """The leader epoch under which markers are written; None if they are not owed."""
        partition = self.find_partition(markers.transactional_id)
        if partition is None or self.runtime.get_phase(partition) is not ShardPhase.ACTIVE:
            return None
        owed = self.runtime.read(partition).has_owed_markers(markers)
        return self._watched[partition].leader_epoch if owed else None

    # Requests.

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> asyncio.Future[responses.InitProducerIdResponse]:
        """InitProducerId of a transactional producer. On its coordinator it waits for a block of
        producer ids, as long as a write may take."""

        def decide(shard: TransactionShard, now_ms: int, token: Token) -> CoordinatorResult:
            return shard.init_producer_id(transactional_id, timeout_ms, expected, now_ms, token)

        refused = self.is_stuck(transactional_id) or not self.is_here(transactional_id)
        filled = None if refused else self._producer_ids.wait_if_empty()
        if filled is None:
            return self.submit(transactional_id, decide)

        async def submit_when_filled() -> responses.InitProducerIdResponse:
            # Without a block in time, the shard refuses requests that need a new id.
            await asyncio.wait((filled,), timeout=IDS_WAIT_S)
            return await self.submit(transactional_id, decide)

        return asyncio.ensure_future(submit_when_filled())

    def add_partitions(
        self, writer: ProducerIdentity, partitions: Collection[TopicPartition], version: int
    ) -> asyncio.Future[responses.AddOffsetsToTxnResponse]:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        _check_id(writer.transactional_id)
        return self.submit(
            writer.transactional_id,
            lambda shard, now_ms, token: shard.add_partitions(
                writer, partitions, version, now_ms, token
            ),
        )

    def verify_partitions(
        self, writer: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> asyncio.Future[Any]:
        """AddPartitionsToTxn that only verifies. The reply has `errors` by partition."""
        _check_id(writer.transactional_id)
        return self.submit(
            writer.transactional_id,
            lambda shard, _now_ms, token: shard.verify_partitions(writer, partitions, token),
        )

    def end(
        self, writer: ProducerIdentity, *, committed: bool, version: int
    ) -> asyncio.Future[responses.EndTxnResponse]:
        """EndTxn."""
        _check_id(writer.transactional_id)
        return self.submit(
            writer.transactional_id,
            lambda shard, now_ms, token: shard.end(
                writer, committed=committed, version=version, now_ms=now_ms, token=token
            ),
        )

    def describe(self, transactional_id: str) -> responses.DescribeTransactionsTransactionState:
        """One transaction of a DescribeTransactions response. Raises `ApiError`."""
        _check_id(transactional_id)
        partition = self.find_partition(transactional_id)
        if partition is None:
            raise ApiError(ErrorCode.transactional_id_not_found)
        return self.runtime.read(partition).describe(transactional_id)

    # Writes that belong to a transaction.

    def needs_enlistment(
        self, batches: Collection[tuple[Partition, BatchHeader]], *, implicit: bool
    ) -> bool:
        """Whether `batches` of one producer need `enlist` before they are appended.

        They do if an earlier write of the producer is being enlisted, to keep their order.
        """
        verifies = self._cache.image.broker_config["transaction.partition.verification.enable"]
        if not implicit and not verifies:
            return False
        return any(
            header.producer_id in self._enlisting
            or not is_open(partition.log, header.producer_id, header.producer_epoch)
            for partition, header in batches
        )

    def enlist(
        self,
        writer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        *,
        implicit: bool,
        callback: Callable[[Errors], None],
    ) -> None:
        """Verify that `partitions` are in the writer's open transaction. With `implicit`, add them.

        Calls `callback` with the errors of the partitions that must not be written to. The call may
        come before this returns. A producer's calls keep their order, also if the coordinator
        answers in another one: a batch before an earlier one would break the sequence. With
        `implicit` the previous transaction may have to end first.
        """
        mine = _Enlistment(callback)
        self._enlisting.setdefault(writer.producer_id, deque()).append(mine)

        def finish(errors: Errors) -> None:
            mine.errors = errors
            self._pass_on_enlisted(writer.producer_id)

        config = self._cache.image.broker_config
        patience_ms = config["add.partitions.to.txn.retry.backoff.max.ms"]
        deadline_ms = self._node.clock.now_ms() + patience_ms
        attempt = partial(self._enlist, writer, partitions, implicit, finish, deadline_ms)
        waiting = self._waiting_writes.get(writer.transactional_id)
        if waiting is None:
            attempt()
        else:
            waiting.append(attempt)

    def _pass_on_enlisted(self, producer_id: int) -> None:
        """Call `callback` of the producer's writes whose enlistment has ended, up to the first
        other one."""
        queue = self._enlisting.get(producer_id)
        errors = None if queue is None else queue[0].errors
        if queue is None or errors is None:
            return
        first = queue.popleft()
        if not queue:
            del self._enlisting[producer_id]
        try:
            first.callback(errors)
        finally:
            self._pass_on_enlisted(producer_id)

    def _enlist(
        self,
        writer: ProducerIdentity,
        partitions: Collection[TopicPartition],
        implicit: bool,
        callback: Callable[[Errors], None],
        deadline_ms: int,
    ) -> None:
        def decide(shard: TransactionShard, now_ms: int, token: Token) -> CoordinatorResult:
            if implicit:
                return shard.add_partitions(writer, partitions, TV_2, now_ms, token)
            return shard.verify_partitions(writer, partitions, token)

        def handle_outcome(reply: Response | ApiError) -> None:
            if not isinstance(reply, ApiError):
                errors: Errors = reply.get("errors", {})
                callback({p: e for p, e in errors.items() if e})
            elif reply.code is ErrorCode.concurrent_transactions and self._may_wait(deadline_ms):
                attempt = partial(self._enlist, writer, partitions, implicit, callback, deadline_ms)
                # The previous transaction may have ended between the answer and this turn, and a
                # coordinator elsewhere does not tell of it.
                again_ms = min(deadline_ms, self._node.clock.now_ms() + ASK_AGAIN_MS)
                self._wait(writer.transactional_id, attempt, again_ms)
            else:
                callback(dict.fromkeys(partitions, reply.code))

        if self.is_here(writer.transactional_id):
            self.call(writer.transactional_id, decide, handle_outcome)
            return
        task = asyncio.ensure_future(self._enlist_elsewhere(writer, partitions, implicit))
        task.add_done_callback(partial(self._on_enlisted_elsewhere, handle_outcome))

    def _on_enlisted_elsewhere(
        self,
        outcome: Callable[[Response | ApiError], None],
        future: asyncio.Future[Response | ApiError],
    ) -> None:
        if future.cancelled():
            return  # This broker stops.
        error = future.exception()
        if error is None:
            outcome(future.result())
            return
        # A bug. The producer's later writes must not wait for this one.
        self._node.log.error("a write was not enlisted", exc_info=error)
        outcome(ApiError(ErrorCode.unknown_server_error))

    def is_here(self, transactional_id: str) -> bool:
        """Whether this broker is, or is about to be, the coordinator."""
        if len(self._cache.image.brokers) == 1:
            return True
        try:
            return self.find_coordinator(transactional_id) == self._node.id
        except ApiError:
            return True  # There is no coordinator, and this broker can refuse the request.

    async def _enlist_elsewhere(
        self, writer: ProducerIdentity, partitions: Collection[TopicPartition], implicit: bool
    ) -> Response | ApiError:
        """Send AddPartitionsToTxn to the coordinator on behalf of the producer (KIP-890)."""
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        transaction = {
            "transactional_id": writer.transactional_id,
            "producer_id": writer.producer_id,
            "producer_epoch": writer.producer_epoch,
            "verify_only": not implicit,
            "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }
        try:
            answer = await self._peers.request(
                self.find_coordinator(writer.transactional_id),
                ApiKey.ADD_PARTITIONS_TO_TXN,
                {"transactions": [transaction]},
            )
        except ApiError as refused:
            return refused
        except ClientError as error:
            return ApiError(ErrorCode.coordinator_not_available, str(error))
        if answer.error_code:
            return ApiError(ErrorCode(answer.error_code))
        errors = {
            (topic.name, entry.partition_index): ErrorCode(entry.partition_error_code)
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for entry in topic.results_by_partition
        }
        if set(errors.values()) == {ErrorCode.concurrent_transactions}:
            return ApiError(ErrorCode.concurrent_transactions)
        return {"errors": errors}

    def _may_wait(self, deadline_ms: int) -> bool:
        return self._node.clock.now_ms() < deadline_ms

    def _wait(self, transactional_id: str, attempt: Callable[[], None], deadline_ms: int) -> None:
        waiting = self._waiting_writes.get(transactional_id)
        if waiting is None:
            waiting = self._waiting_writes[transactional_id] = []
            self._node.timers.call_at(deadline_ms, partial(self._try_again, transactional_id))
        waiting.append(attempt)

    def _try_again(self, transactional_id: str) -> None:
        for attempt in self._waiting_writes.pop(transactional_id, ()):
            attempt()

    def complete(self, markers: WriteMarkers) -> None:
        """Complete a decided transaction: all its markers are committed."""
        partition = self.find_partition(markers.transactional_id)
        if partition is not None:
            now_ms = self._node.clock.now_ms()
            self.runtime.apply(
                partition, lambda shard, at_ms: shard.complete(markers, at_ms), now_ms
            )
            self._watch_deadline(self.runtime.get_deadline_ms(partition))
        self._try_again(markers.transactional_id)


def is_open(log: Log, producer_id: int, producer_epoch: int) -> bool:
    """Whether a log has the producer's open transaction, so that the partition is part of it."""
    producer = log.producers.get(producer_id)
    return (
        producer is not None
        and producer.transaction_start >= 0
        and producer.epoch == producer_epoch
    )


def to_append_error(error: ErrorCode, *, abortable: bool, implicit: bool) -> ErrorCode:
    """Return the error of a Produce whose partition was not enlisted. `implicit` ones retry while
    their last transaction is ending; the others may not know that error."""
    if error is ErrorCode.concurrent_transactions and implicit:
        return error
    if error in _RETRIED:
        return ErrorCode.not_enough_replicas
    return to_write_error(error, abortable=abortable)


def to_write_error(error: ErrorCode, *, abortable: bool) -> ErrorCode:
    """Return the error for a producer whose partition was not enlisted, by Kafka's mapping, so that
    each client retries, aborts or fails. `abortable` clients support KIP-1050."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and not abortable:
        return ErrorCode.invalid_txn_state
    return error


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise ApiError(ErrorCode.invalid_request, "The transactional id is empty.")
