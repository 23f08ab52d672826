"""Produce of a transactional producer: its partitions are enlisted before the append.

A partition whose log has the producer's open transaction is already part of it. Other partitions
are added to the transaction since version 12 of Produce. Before version 12 they are verified:
AddPartitionsToTxn must have added them (KIP-890). The append follows in the same call as the
coordinator's reply, so that requests of one producer keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode, WireError
from shoal.record.batch import HEADER_SIZE, BatchHeader, CorruptBatch, read_header
from shoal.replication.partition import Partition
from shoal.server.coordinators.transactions import Errors, to_append_error
from shoal.server.network.api import Answer, Body, Request
from shoal.server.network.deferred import AWAITED, DeferredResponse
from shoal.transaction.shard import ProducerIdentity

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.produce import ProduceRequest
    from shoal.server.broker import Broker

ABORTABLE_SINCE = 11
IMPLICIT_SINCE = 12
Refused = dict[tuple[str, int], tuple[ErrorCode, str | None]]
Append = Callable[["Broker", Request, Refused], Answer]
Batch = tuple[Partition, BatchHeader]


def append_enlisted(broker: Broker, request: Request, append: Append) -> Answer:
    """Call `append` once the request's partitions are enlisted, and return its answer."""
    batches = _find_batches(broker, request.body)
    service = broker.transactions
    if not batches or not service.needs_enlistment(batches, implicit=_is_implicit(request)):
        return append(broker, request, {})
    if request.body.acks == 0:
        raise WireError("a transactional produce with acks=0 cannot get an error: set acks=all")
    _, first = batches[0]
    writer = ProducerIdentity(
        request.body.transactional_id, first.producer_id, first.producer_epoch
    )
    answers: list[Answer] = []
    futures: list[asyncio.Future[Any]] = []

    def on_enlisted(errors: Errors) -> None:
        answer = append(broker, request, _collect_refused(request, batches, errors))
        if futures:
            pass_on(answer, futures[0])
        else:
            answers.append(answer)

    service.enlist(
        writer,
        [(partition.topic, partition.index) for partition, _ in batches],
        implicit=_is_implicit(request),
        callback=on_enlisted,
    )
    if answers:
        return answers[0]
    futures.append(broker.loop.create_future())
    return futures[0]


def _is_implicit(request: Request) -> bool:
    return request.version >= IMPLICIT_SINCE


def _find_batches(broker: Broker, body: ProduceRequest) -> list[Batch]:
    """The transactional batches for partitions that this broker leads."""
    batches = []
    for name, topic_id, partitions in body.topics:
        for index, data in partitions:
            partition = broker.partitions.find(name, topic_id, index)
            if partition is None or data is None or len(data) < HEADER_SIZE:
                continue
            if not partition.is_leader or broker.replicas.is_cut_off(partition):
                continue  # Nothing is appended here.
            try:
                header = read_header(data)
            except CorruptBatch:
                continue  # The log refuses it.
            if header.is_transactional:
                batches.append((partition, header))
    return batches


def _collect_refused(request: Request, batches: list[Batch], errors: Errors) -> Refused:
    """The errors of the partitions that are refused."""
    refused: Refused = {}
    for partition, header in batches:
        partition_key = (partition.topic, partition.index)
        error = errors.get(partition_key, ErrorCode.none)
        if error:
            code = to_append_error(
                error, abortable=request.version >= ABORTABLE_SINCE, implicit=_is_implicit(request)
            )
            message = f"{partition.topic}-{partition.index} is not part of the transaction of"
            message += f" {request.body.transactional_id}: {error.name.upper()}."
            refused[partition_key] = (code, message)
        elif _is_amid_transaction(request, partition, header):
            refused[partition_key] = (
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} begins with sequence {header.base_sequence}, not 0",
            )
    return refused


def _is_amid_transaction(request: Request, partition: Partition, header: BatchHeader) -> bool:
    """Whether a transaction of version 2 does not begin with sequence 0. A later batch before the
    first one would leave an open transaction that no marker ends."""
    unknown = partition.log.producers.get(header.producer_id) is None
    return unknown and header.base_sequence != 0 and _is_implicit(request)


def pass_on(answer: Answer, to: asyncio.Future[Body | None]) -> None:
    """Complete the future of the response with an answer."""
    if to.done():
        return
    if not isinstance(answer, AWAITED):
        assert answer is None or isinstance(answer, Mapping | Sequence)
        to.set_result(answer)
        return

    def on_done(future: asyncio.Future[Any] | DeferredResponse) -> None:
        if to.done() or future.cancelled():
            to.cancel()
        elif (error := future.exception()) is not None:
            to.set_exception(error)
        else:
            to.set_result(future.result())

    answer.add_done_callback(on_done)
