"""Produce: append batches to partitions, and respond when they are replicated as `acks` demands.

The batches are views of the request's frame. The log validates them, sets offset and epoch in place
and writes them from there. Compressed batches are validated in a worker thread first
(`replication.batch_validator`). acks=1 is answered after the append, acks=all when the batches are
below the high watermark. If acknowledged writes must be on disk, both wait for that. acks=0 has no
response: an error closes the connection, so that the client looks up the leader.

`transactional_produce` first adds the partitions to the producer's transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.log.errors import AppendRefused
from shoal.metadata.names import REMOTE_LOG_METADATA
from shoal.protocol import produce
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.protocol.produce import TOPIC_IDS_FROM, ProduceRequest, ProduceTopic
from shoal.record.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    RECORD_COUNT_AT,
    TRANSACTIONAL_BIT,
    read_low_attributes,
)
from shoal.record.compression import Compression
from shoal.replication.pending_append import PendingAppend
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers import authorization
from shoal.server.handlers.records import transactional_produce
from shoal.server.handlers.records.transactional_produce import pass_on
from shoal.server.network import error_counts
from shoal.server.network.error_counts import make_counted_body
from shoal.server.network.responses import list_leader_endpoints, missing_partition_error
from shoal.server.replication.batch_validator import IDS_OF_BATCH_MAX, NO_OUTCOMES

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.log.validation import ValidatedBatch
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request
    from shoal.server.replication.batch_validator import Outcomes

_ACKS_ALL = -1
#: The client id of Kafka's tools, which may write to internal topics.
ADMIN_CLIENT_ID = "__admin_client"
_Entry = dict[str, Any]
#: Appends that a response waits for.
_Waiting = tuple[PendingAppend, _Entry]
#: The errors of transactional batches, by topic and partition.
Refused = Mapping[tuple[str, int], tuple[ErrorCode, str | None]]
_NOTHING_REFUSED: Refused = {}
#: The partitions that the client may not write to, by the position of their topic in the request.
Denied = Mapping[int, Sequence[int]]
_NOTHING_DENIED: Denied = {}
#: The first version of Produce with zstd (KIP-110).
_ZSTD_FROM = 7


def handle(broker: Broker, request: Request) -> Answer:
    """Handle the request now, or once its batches, and those before them, are validated."""
    denied = _remove_denied(broker, request) if broker.access.enabled else _NOTHING_DENIED
    if broker.batch_validator.is_needed(request.body.topics, broker.partitions):
        return _handle_validated(broker, request, denied)
    return _handle(broker, request, NO_OUTCOMES, denied)


def _handle_validated(broker: Broker, request: Request, denied: Denied) -> Answer:
    """Handle a request with expensive batches, now or later."""
    body = request.body
    answer: asyncio.Future[Any] | None = None

    def on_validated(outcomes: Outcomes | BaseException) -> None:
        # A lost connection frees the records, but the request was received.
        request.body = body
        assert answer is not None
        _resolve(answer, lambda: _handle(broker, request, outcomes, denied))

    outcomes = broker.batch_validator.validate(
        body.topics, broker.partitions, broker.clock.now_ms(), on_validated
    )
    if outcomes is not None:
        return _handle(broker, request, outcomes, denied)
    answer = broker.loop.create_future()
    return answer


def _handle(
    broker: Broker, request: Request, outcomes: Outcomes | BaseException, denied: Denied
) -> Answer:
    if isinstance(outcomes, BaseException):
        raise outcomes
    if request.body.transactional_id is None:
        return append(broker, request, _NOTHING_REFUSED, outcomes, denied)
    return transactional_produce.append_enlisted(
        broker,
        request,
        lambda broker, request, refused: append(broker, request, refused, outcomes, denied),
    )


def _remove_denied(broker: Broker, request: Request) -> Denied:
    """Take topics that the client may not write to out of the request, and return them. Raises
    `ApiError` for a transactional id that the client may not use."""
    body: ProduceRequest = request.body
    for _, _, partitions in body.topics:
        if any(data and read_low_attributes(data) & TRANSACTIONAL_BIT for _, data in partitions):
            permits = authorization.make_checker(broker, request, ResourceType.TRANSACTIONAL_ID)
            if body.transactional_id is None or not permits(body.transactional_id):
                raise ApiError(ErrorCode.transactional_id_authorization_failed)
            break
    permits = authorization.make_checker(broker, request, ResourceType.TOPIC)
    denied: dict[int, list[int]] = {}
    topics: list[ProduceTopic] = []
    for position, (name, topic_id, partitions) in enumerate(body.topics):
        topic = None if topic_id is None else broker.image.topics_by_id.get(topic_id)
        topic_name = name if topic_id is None else "" if topic is None else topic.name
        if topic_name and not permits(topic_name):
            denied[position] = [index for index, _ in partitions]
            partitions = []
        topics.append(ProduceTopic(name, topic_id, partitions))
    if denied:
        request.body = body._replace(topics=topics)
    return denied


def _resolve(future: asyncio.Future[Any], handle: Callable[[], Answer]) -> None:
    """Answer a request that waited. It is handled even if its connection was lost."""
    try:
        answer = handle()
    except asyncio.CancelledError:
        future.cancel()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        pass_on(answer, future)


def append(
    broker: Broker, request: Request, refused: Refused, outcomes: Outcomes, denied: Denied
) -> Answer:
    """Append to every partition but those that are `refused`, and answer."""
    body: ProduceRequest = request.body
    waiting: list[_Waiting] = []
    by_id = request.version >= TOPIC_IDS_FROM
    topics: list[_Entry] = []
    failed = None
    for position, (name, topic_id, partitions) in enumerate(body.topics):
        entries: list[_Entry] = []
        if denied:
            entries += _build_denied(denied.get(position, ()))
            failed = entries[0] if entries else failed
        for result, (index, data) in enumerate(partitions):
            outcome = outcomes.get((position, result)) if outcomes else None
            entry = _append(
                broker, request, (name, topic_id, index), data, outcome, waiting, refused
            )
            entry["index"] = index
            entries.append(entry)
            if entry["error_code"]:
                failed = entry
                broker.rejected_batches.note(
                    (name, topic_id, index), data, entry["error_code"], broker.clock.now_ms()
                )
        topic: _Entry = {"partition_responses": entries}
        topic["topic_id" if by_id else "name"] = topic_id if by_id else name
        topics.append(topic)
    if body.acks == 0:
        if failed is not None:
            # Nothing else counts these errors, since there is no response.
            counts = broker.metrics.errors[request.header.api_key]
            error_counts.add(counts, request, {"responses": topics})
            raise WireError(f"a produce with acks=0 was refused: {failed['error_code'].name}")
        return None
    response: _Entry = {"responses": topics}
    if failed is not None:
        moved = [
            e["current_leader"]["leader_id"]
            for t in topics
            for e in t["partition_responses"]
            if "current_leader" in e
        ]
        if moved:
            response["node_endpoints"] = list_leader_endpoints(
                broker.image, request.peer.listener, moved
            )
    plain = request if failed is None and not request.is_in_pieces else None
    if not waiting:
        return response if plain is None else _make_success_response(plain, topics)
    # A request that waits for replicas does not keep its records in memory.
    request.release()
    return broker.purgatory.park_response(
        keys=[written.partition.key for written, _ in waiting],
        attempt=lambda: _try_acknowledge(broker, response, waiting, plain),
        expire=lambda: _build_timeout(response, waiting),
        deadline_ms=broker.clock.now_ms() + body.timeout_ms,
    )


def _make_success_response(request: Request, topics: list[_Entry]) -> Body:
    """Return the response to a request without errors."""
    partitions = sum(len(topic["partition_responses"]) for topic in topics)
    encoded = produce.write_success_response(request.version, topics)
    return make_counted_body([encoded], {ErrorCode.none: partitions})


def _build_denied(indexes: Sequence[int]) -> list[_Entry]:
    code = ErrorCode.topic_authorization_failed
    return [_build_refusal(code, None) | {"index": index} for index in indexes]


def _append(
    broker: Broker,
    request: Request,
    partition_key: tuple[str, UUID | None, int],
    data: memoryview | None,
    outcome: ValidatedBatch | AppendRefused | None,
    waiting: list[_Waiting],
    refused: Refused,
) -> _Entry:
    """Append to one partition, and return its part of the response. Adds it to `waiting` if it has
    to wait."""
    acks: int = request.body.acks
    if not _ACKS_ALL <= acks <= 1:
        return _build_refusal(
            ErrorCode.invalid_required_acks, f"acks may be -1, 0 or 1, not {acks}."
        )
    name, topic_id, index = partition_key
    partition = broker.partitions.find(name, topic_id, index)
    if partition is None:
        code, elsewhere = missing_partition_error(broker.image, name, topic_id, index)
        if elsewhere is None:
            return _build_refusal(code, None)
        return _build_refusal(code, None) | _build_not_leader(
            elsewhere.leader, elsewhere.leader_epoch
        )
    meter = broker.metrics.get_topic_meter(partition.topic)
    meter.produces += 1
    refusal = _check_before_append(broker, request, partition, data, refused)
    if refusal is None and broker.rejected_batches:
        refusal = _check_predecessor(broker, partition_key, partition, data)
    if refusal is None:
        assert data is not None
        try:
            if not isinstance(outcome, AppendRefused):
                appended = partition.append(outcome or data, now_ms=broker.clock.now_ms())
            else:
                # If it were raised, its traceback would have this frame, and so itself: a cycle.
                refusal = _build_log_refusal(broker, partition_key, partition, data, outcome)
        except AppendRefused as error:
            refusal = _build_log_refusal(broker, partition_key, partition, data, error)
    if refusal is not None:
        meter.failed_produces += 1
        refusal["log_start_offset"] = partition.log.log_start_offset
        return refusal
    meter.bytes_in += len(data) if data else 0
    known = appended.known_offset
    meter.messages_in += appended.last_offset - appended.base_offset + 1
    entry: _Entry = {
        "error_code": ErrorCode.none,
        "base_offset": appended.base_offset if known < 0 else known,
        "log_append_time_ms": appended.append_time_ms,
        "log_start_offset": appended.log_start_offset,
    }
    if acks and not partition.is_committed(appended.last_offset + 1):
        waiting.append((PendingAppend.from_partition(partition, appended.last_offset + 1), entry))
    return entry


def _may_write_internal(broker: Broker, request: Request, topic: str) -> bool:
    """Whether the client may write to an internal topic: as Kafka's tools do, or as leaders of
    tiered partitions write to `__remote_log_metadata`, on whichever broker its leader is. Anybody
    can have the id of Kafka's tools, so it needs the rights of a broker."""
    is_usual = request.header.client_id == ADMIN_CLIENT_ID or topic == REMOTE_LOG_METADATA
    return is_usual and broker.access.allows_cluster(request, Operation.CLUSTER_ACTION)


def _check_before_append(
    broker: Broker,
    request: Request,
    partition: Partition,
    data: memoryview | None,
    refused: Refused,
) -> _Entry | None:
    """The refusal of a produce that does not reach the log."""
    acks: int = request.body.acks
    if broker.is_internal(partition.topic) and not _may_write_internal(
        broker, request, partition.topic
    ):
        return _build_refusal(
            ErrorCode.invalid_topic_exception, f"Only brokers write to {partition.topic}."
        )
    if not partition.is_leader:
        return _build_refusal(ErrorCode.not_leader_or_follower, None) | _build_leader_hint(
            partition
        )
    if data is None:
        return _build_refusal(ErrorCode.invalid_record, "A produce without records.")
    if broker.log_maintenance.is_full and not broker.is_internal(partition.topic):
        return _build_refusal(
            ErrorCode.kafka_storage_error,
            f"The logs of broker {broker.node_id} have reached"
            f" {broker.log_maintenance.size_max_bytes} bytes (shoal.log.dir.max.bytes).",
        )
    if acks == _ACKS_ALL and len(partition.isr) < partition.effective_min_isr:
        return _build_refusal(
            ErrorCode.not_enough_replicas,
            f"The in-sync replicas of {partition.topic}-{partition.index} are"
            f" {len(partition.isr)}, where min.insync.replicas is {partition.min_isr}.",
        )
    if acks == _ACKS_ALL and broker.replicas.is_cut_off(partition):
        # Other brokers have the leader: the client asks them, and does not wait here.
        return _build_refusal(
            ErrorCode.not_leader_or_follower,
            f"Broker {broker.node_id} is cut off from the cluster, where another may lead"
            f" {partition.topic}-{partition.index}.",
        )
    attributes = read_low_attributes(data)
    if attributes & TRANSACTIONAL_BIT:
        refusal = _check_transaction(request, partition, refused)
        if refusal is not None:
            return refusal
    return _check_form(request, partition, data)


def _check_form(request: Request, partition: Partition, data: memoryview) -> _Entry | None:
    """The refusal of a batch in a form that its version or its topic does not allow."""
    attributes = read_low_attributes(data)
    if request.version < _ZSTD_FROM and attributes & COMPRESSION_MASK == Compression.ZSTD:
        return _build_refusal(
            ErrorCode.unsupported_compression_type,
            f"Produce version {request.version} has no zstd. Use version {_ZSTD_FROM} or newer.",
        )
    if (
        partition.log.config.deduplicates
        and (count := int.from_bytes(data[RECORD_COUNT_AT:HEADER_SIZE], "big")) > IDS_OF_BATCH_MAX
    ):
        return _build_refusal(
            ErrorCode.message_too_large,
            f"A batch of {count} records. Where shoal.deduplication.window.ms is set, it may have"
            f" {IDS_OF_BATCH_MAX}.",
        )
    return None


def _check_predecessor(
    broker: Broker,
    partition_key: tuple[str, UUID | None, int],
    partition: Partition,
    data: memoryview | None,
) -> _Entry | None:
    """The refusal of a batch that was sent behind a refused one (`refused_batches`)."""
    assert data is not None
    code = broker.rejected_batches.predecessor_error(
        partition_key, data, partition.log.producers, broker.clock.now_ms()
    )
    if code is None:
        return None
    refusal = _build_refusal(
        code, "The producer's batch before this one was refused, and comes first."
    )
    if code is ErrorCode.not_leader_or_follower:
        refusal |= _build_leader_hint(partition)
    return refusal


def _build_log_refusal(
    broker: Broker,
    partition_key: tuple[str, UUID | None, int],
    partition: Partition,
    data: memoryview,
    error: AppendRefused,
) -> _Entry:
    """The refusal of a batch that the log did not take."""
    lead = partition.leadership
    if (
        error.code is ErrorCode.out_of_order_sequence_number
        and lead is not None
        and broker.rejected_batches.is_reordered(
            partition_key, data, partition.log.producers, lead.start_offset
        )
    ):
        message = "A batch of the producer before this one may be on its way, and comes first."
        return _build_refusal(ErrorCode.not_leader_or_follower, message) | _build_leader_hint(
            partition
        )
    refusal = _build_refusal(error.code, error.message, error.record_errors)
    if error.code is ErrorCode.not_leader_or_follower:
        refusal |= _build_leader_hint(partition)
    return refusal


def _build_leader_hint(partition: Partition) -> _Entry:
    """The error with the current leader, for the client to retry there (KIP-951)."""
    return _build_not_leader(partition.leader_id, partition.leader_epoch)


def _build_not_leader(leader_id: int, leader_epoch: int) -> _Entry:
    leader = {"leader_id": leader_id, "leader_epoch": leader_epoch}
    return {"error_code": ErrorCode.not_leader_or_follower, "current_leader": leader}


def _check_transaction(request: Request, partition: Partition, refused: Refused) -> _Entry | None:
    """The refusal of a transactional batch."""
    if request.body.transactional_id is None:
        return _build_refusal(
            ErrorCode.transactional_id_authorization_failed,
            "A transactional batch in a request without a transactional id.",
        )
    error = refused.get((partition.topic, partition.index))
    return None if error is None else _build_refusal(*error)


def _build_refusal(
    code: ErrorCode, message: str | None, record_errors: Sequence[tuple[int, str]] = ()
) -> _Entry:
    return {
        "error_code": code,
        "error_message": message,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": text}
            for index, text in record_errors
        ],
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": -1,
    }


def _try_acknowledge(
    broker: Broker, response: _Entry, waiting: list[_Waiting], plain: Request | None
) -> Body | None:
    """The response once every append is acknowledged, or lost with the leadership; None before.
    Without an error it is encoded at once, if the request is `plain`."""
    failed = False
    for written, entry in waiting:
        partition = written.partition
        if partition.log.offline:
            entry["error_code"] = ErrorCode.kafka_storage_error
        elif written.is_lost:
            entry |= _build_leader_hint(partition)
        elif not written.is_committed:
            if not broker.replicas.is_cut_off(partition):
                return None
            entry["error_code"] = ErrorCode.not_leader_or_follower
        elif len(partition.isr) < partition.effective_min_isr:
            entry["error_code"] = ErrorCode.not_enough_replicas_after_append
        failed |= bool(entry["error_code"])
    if plain is not None and not failed:
        return _make_success_response(plain, response["responses"])
    return response


def _build_timeout(response: Body, waiting: list[_Waiting]) -> Body:
    for written, entry in waiting:
        if not written.is_committed:
            entry["error_code"] = ErrorCode.request_timed_out
    return response


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
    """The error of the whole request, for every partition."""
    if request.body.acks == 0:
        raise WireError(f"a produce with acks=0 was refused: {code.name}")
    topic_field = "topic_id" if request.version >= TOPIC_IDS_FROM else "name"
    return {
        "responses": [
            {
                topic_field: topic_id if request.version >= TOPIC_IDS_FROM else name,
                "partition_responses": [
                    _build_refusal(code, message) | {"index": index} for index, _ in partitions
                ],
            }
            for name, topic_id, partitions in request.body.topics
        ]
    }
