"""Decisions on topics: create, delete, add partitions. Pure; see `controller`.

The order of checks, the error codes and the meaning of messages follow Kafka's
ReplicationControlManager.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid5

from shoal.log.uuids import format_uuid
from shoal.metadata import names, placement
from shoal.metadata.alterations import find_topic_config_error
from shoal.metadata.config_keys import format_value
from shoal.metadata.configs import TOPIC, ConfigSource
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import UNASSIGNED, BrokerImage, MetadataImage, TopicImage
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.protocol.responses import topics as responses

DEFAULT = -1
#: Minimum of a topic's segment.bytes. Broker configs of internal topics may set less.
SEGMENT_BYTES_MIN = 1 << 20
#: For each internal topic, the broker configs of its size, and its fixed configs.
_INTERNAL: dict[str, tuple[tuple[str, str, str], dict[str, str]]] = {
    "__consumer_offsets": (
        (
            "offsets.topic.num.partitions",
            "offsets.topic.replication.factor",
            "offsets.topic.segment.bytes",
        ),
        {"cleanup.policy": "compact"},
    ),
    "__share_group_state": (
        (
            "share.coordinator.state.topic.num.partitions",
            "share.coordinator.state.topic.replication.factor",
            "share.coordinator.state.topic.segment.bytes",
        ),
        {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    ),
    names.REMOTE_LOG_METADATA: (
        (
            "rlmm.config.remote.log.metadata.topic.num.partitions",
            "rlmm.config.remote.log.metadata.topic.replication.factor",
            "offsets.topic.segment.bytes",
        ),
        {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"},
    ),
    "__transaction_state": (
        (
            "transaction.state.log.num.partitions",
            "transaction.state.log.replication.factor",
            "transaction.state.log.segment.bytes",
        ),
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
        },
    ),
}
#: The broker config of min.insync.replicas of some internal topics.
_MIN_ISR = {
    "__share_group_state": "share.coordinator.state.topic.min.isr",
    names.REMOTE_LOG_METADATA: "rlmm.config.remote.log.metadata.topic.min.isr",
    "__transaction_state": "transaction.state.log.min.isr",
}


class TopicChangeRefused(Exception):
    """One topic of a request is refused."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class NewTopic(NamedTuple):
    """A requested topic; `assignments` are (partition index, broker ids)."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


def create_topics(
    image: MetadataImage,
    topics: Sequence[NewTopic],
    *,
    new_id: Callable[[], UUID],
    validate_only: bool = False,
    request_id: bytes = b"",
) -> ControllerResult:
    """Create topics independently. The response has CreateTopics' results.

    A `request_id` of 16 bytes determines the topics' ids. A repeated request is then recognized: a
    topic that it already created is a success and is not created again.
    """
    records: list[MetadataRecord] = []
    results: list[responses.CreateTopicsCreatableTopicResult] = []
    used_names = _UsedNames(image)
    for topic in topics:
        topic_id = _derive_id(request_id, topic.name) if request_id else new_id()
        present = image.topics.get(topic.name)
        if request_id and present is not None and present.topic_id == topic_id:
            results.append(_build_existing_result(image, present))
            continue
        try:
            topic_records, result = _create(
                image, topic, used_names, topic_id, RECORDS_PER_DECISION_MAX - len(records)
            )
        except TopicChangeRefused as refused:
            results.append(_build_refused_result(topic.name, refused))
            continue
        used_names.add(topic.name)
        records += topic_records
        results.append(result)
    return ControllerResult([] if validate_only else records, results)


def _derive_id(request_id: bytes, name: str) -> UUID:
    """Return the topic id derived from a request. Its text does not start with a dash."""
    tries = (uuid5(UUID(bytes=request_id), f"{name}/{n}") for n in count())
    return next(id for id in tries if not format_uuid(id).startswith("-"))


def _build_existing_result(
    image: MetadataImage, topic: TopicImage
) -> responses.CreateTopicsCreatableTopicResult:
    """Return CreateTopics' result of an existing topic."""
    own = dict(image.configs.get((2, topic.name), {}))
    return _build_created_result(
        image, topic.name, topic.topic_id, [p.replicas for p in topic.partitions], own
    )


def build_internal_topic(image: MetadataImage, name: str) -> NewTopic:
    """Return an internal topic as its configs set it and the cluster's size allows."""
    config = image.broker_config
    names_of, own = _INTERNAL[name]
    partitions, replicas, segment_bytes = (config[config_name] for config_name in names_of)
    configs = {
        "compression.type": "producer",
        "segment.bytes": str(max(segment_bytes, SEGMENT_BYTES_MIN)),
    } | own
    factor = max(1, min(replicas, len(placement.build_ring(image.brokers.values()))))
    if name in _MIN_ISR:
        # One less than the replicas: the loss of one broker does not stop a coordinator.
        configs["min.insync.replicas"] = str(min(config[_MIN_ISR[name]], max(1, factor - 1)))
    return NewTopic(name, partitions, factor, configs=tuple(configs.items()))


class _UsedNames:
    """Names in use, including those of earlier topics in the request."""

    def __init__(self, image: MetadataImage) -> None:
        self._topics = image.topics
        self._new: list[str] = []

    def add(self, name: str) -> None:
        self._new.append(name)

    def check_name(self, name: str) -> None:
        """Raise `TopicChangeRefused` for a name that is invalid, in use, or collides with one in
        use."""
        reason = names.find_topic_name_error(name)
        if reason is not None:
            raise TopicChangeRefused(
                ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}"
            )
        if name in self._topics:
            raise TopicChangeRefused(
                ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
            )
        if "." in name or "_" in name:
            key = names.to_collision_key(name)
            for existing in (*self._topics, *self._new):
                if len(existing) == len(name) and names.to_collision_key(existing) == key:
                    raise TopicChangeRefused(
                        ErrorCode.invalid_topic_exception,
                        f"Topic '{name}' collides with existing topic: {existing}",
                    )


def _create(
    image: MetadataImage, topic: NewTopic, used_names: _UsedNames, topic_id: UUID, room: int
) -> tuple[list[MetadataRecord], responses.CreateTopicsCreatableTopicResult]:
    """Return the records and the result of one topic. Raises `TopicChangeRefused`."""
    used_names.check_name(topic.name)
    own = _validate_configs(image, topic)
    if topic.assignments:
        replicas = _assign_manually(image, topic)
    else:
        replicas = _place_new_topic(image, topic, topic_id, room)
    records = [MetadataRecord("TopicRecord", {"name": topic.name, "topic_id": topic_id})]
    records += [
        MetadataRecord(
            "ConfigRecord",
            {"resource_type": 2, "resource_name": topic.name, "name": name, "value": value},
        )
        for name, value in own.items()
    ]
    records += _build_partition_records(image, topic_id, replicas, 0)
    return records, _build_created_result(image, topic.name, topic_id, replicas, own)


def _build_created_result(
    image: MetadataImage,
    name: str,
    topic_id: UUID,
    replicas: Sequence[Sequence[int]],
    own: dict[str, str],
) -> responses.CreateTopicsCreatableTopicResult:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(replicas),
        "replication_factor": len(replicas[0]),
        "configs": _describe_configs(image, own),
    }


def _validate_configs(image: MetadataImage, topic: NewTopic) -> dict[str, str]:
    """Return the topic's own configs, checked."""
    without = [name for name, value in topic.configs if value is None]
    if without:
        raise TopicChangeRefused(
            ErrorCode.invalid_config,
            f"Null value not supported for topic configs: {','.join(without)}",
        )
    own = {name: value for name, value in topic.configs if value is not None}
    reason = find_topic_config_error(image, own)
    if reason is not None:
        raise TopicChangeRefused(ErrorCode.invalid_config, reason)
    return own


def _assign_manually(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    """Return the replicas that the request assigns."""
    if topic.replication_factor != DEFAULT:
        raise TopicChangeRefused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not -1.",
        )
    if topic.partitions != DEFAULT:
        raise TopicChangeRefused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but the partition count was not -1.",
        )
    by_index: dict[int, tuple[int, ...]] = {}
    for index, broker_ids in topic.assignments:
        if index in by_index:
            raise TopicChangeRefused(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        size = len(next(iter(by_index.values()))) if by_index else None
        by_index[index] = validate_assignment(image, broker_ids, size, index)
    if sorted(by_index) != list(range(len(by_index))):
        raise TopicChangeRefused(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [by_index[index] for index in range(len(by_index))]


def validate_assignment(
    image: MetadataImage, broker_ids: Sequence[int], size: int | None, index: int
) -> tuple[int, ...]:
    """Return one partition's assigned replicas; there must be `size`. Raises
    `TopicChangeRefused`."""
    reason = None
    unknown = sorted({b for b in broker_ids if b not in image.brokers})
    cordoned = sorted({b for b in broker_ids if b not in unknown and image.brokers[b].is_cordoned})
    if not broker_ids:
        reason = "The manual partition assignment includes an empty replica list."
    elif len(set(broker_ids)) < len(broker_ids):
        reason = "The manual partition assignment names a broker more than once."
    elif unknown:
        reason = f"The manual partition assignment includes broker {unknown[0]}, "
        reason += "but no such broker is registered."
    elif cordoned:
        reason = f"The manual partition assignment includes broker {cordoned[0]}, "
        reason += "but all its log directories are cordoned."
    elif size is not None and len(broker_ids) != size:
        reason = f"The manual partition assignment includes a partition with {len(broker_ids)} "
        reason += f"replica(s), but this is not consistent with others that have {size}."
    elif not _find_active(image, broker_ids):
        reason = f"All brokers assigned to partition {index} are fenced or shutting down."
    if reason is not None:
        raise TopicChangeRefused(ErrorCode.invalid_replica_assignment, reason)
    return tuple(broker_ids)


def _place_new_topic(
    image: MetadataImage, topic: NewTopic, topic_id: UUID, room: int
) -> list[tuple[int, ...]]:
    """Return replicas that the controller places."""
    config = image.broker_config
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise TopicChangeRefused(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < DEFAULT or topic.partitions == 0:
        raise TopicChangeRefused(
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        )
    partitions = config["num.partitions"] if topic.partitions == DEFAULT else topic.partitions
    factor = topic.replication_factor
    if factor == DEFAULT:
        factor = config["default.replication.factor"]
    if partitions > room:
        raise _build_too_many_error()
    return _place(image, partitions=partitions, factor=factor, start=topic_id.int)


def _place(
    image: MetadataImage, *, partitions: int, factor: int, start: int
) -> list[tuple[int, ...]]:
    try:
        return list(
            placement.place(
                image.brokers.values(),
                partitions=partitions,
                replicas=factor,
                start=start,
                hosts=placement.find_hosts(image),
            )
        )
    except placement.NotPlaceable as error:
        raise TopicChangeRefused(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): {error}.",
        ) from None


def _build_too_many_error() -> TopicChangeRefused:
    return TopicChangeRefused(
        ErrorCode.policy_violation,
        f"Excessively large number of partitions per request: at most {RECORDS_PER_DECISION_MAX}.",
    )


def _find_active(image: MetadataImage, broker_ids: Iterable[int]) -> tuple[int, ...]:
    def is_active(broker: BrokerImage | None) -> bool:
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    return tuple(b for b in broker_ids if is_active(image.brokers.get(b)))


def _build_partition_records(
    image: MetadataImage, topic_id: UUID, assignments: Sequence[tuple[int, ...]], first: int
) -> list[MetadataRecord]:
    """Return records of new partitions from index `first` on; the first active replica leads."""
    records = []
    for index, replicas in enumerate(assignments, first):
        isr = _find_active(image, replicas)
        records.append(
            MetadataRecord(
                "PartitionRecord",
                {
                    "partition_id": index,
                    "topic_id": topic_id,
                    "replicas": replicas,
                    "isr": isr,
                    "leader": isr[0],
                    "leader_epoch": 0,
                    "partition_epoch": 0,
                    "directories": [find_directory(image, b) for b in replicas],
                },
            )
        )
    return records


def find_directory(image: MetadataImage, broker_id: int) -> UUID:
    """Return the broker's log directory if it has exactly one."""
    dirs = image.brokers[broker_id].log_dirs if broker_id in image.brokers else ()
    return dirs[0] if len(dirs) == 1 else UNASSIGNED


def _describe_configs(
    image: MetadataImage, own: dict[str, str]
) -> list[responses.CreateTopicsCreatableTopicConfigs]:
    """Return CreateTopics' list of the new topic's configs."""
    results: list[responses.CreateTopicsCreatableTopicConfigs] = []
    defaults = image.resolve_topic_config("")
    for name, key in TOPIC.items():
        if key.internal:
            continue
        value: str | None
        if name in own:
            value, source = own[name], ConfigSource.TOPIC
        else:
            origins = image.find_config_origins(2, "", name)
            value = format_value(defaults[name])
            source = origins[0].source if origins else ConfigSource.DEFAULT
        results.append(
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": source,
                "is_sensitive": key.sensitive,
            }
        )
    return results


def _build_refused_result(
    name: str, refused: TopicChangeRefused
) -> responses.CreateTopicsCreatableTopicResult:
    return {
        "name": name,
        "error_code": refused.code,
        "error_message": refused.message,
        "configs": None,
    }


def delete_topics(image: MetadataImage, topics: Iterable[TopicImage]) -> ControllerResult:
    """Delete topics of the image; ignore those that are already deleted."""
    return ControllerResult(
        [
            MetadataRecord("RemoveTopicRecord", {"topic_id": topic.topic_id})
            for topic in topics
            if topic.topic_id in image.topics_by_id
        ]
    )


class CreatePartitionsTopic(NamedTuple):
    """New partitions of a topic: the total count, and optionally their assignments."""

    name: str
    partitions: int
    assignments: Sequence[Sequence[int]] | None = None


def create_partitions(
    image: MetadataImage, requests: Sequence[CreatePartitionsTopic], *, validate_only: bool = False
) -> ControllerResult:
    """Add partitions to each topic independently. The response has CreatePartitions' results."""
    records: list[MetadataRecord] = []
    results: list[responses.CreatePartitionsTopicResult] = []
    for request in requests:
        result: responses.CreatePartitionsTopicResult = {
            "name": request.name,
            "error_code": ErrorCode.none,
            "error_message": None,
        }
        try:
            records += _grow(image, request, RECORDS_PER_DECISION_MAX - len(records))
        except TopicChangeRefused as refused:
            result |= {"error_code": refused.code, "error_message": refused.message}
        results.append(result)
    return ControllerResult([] if validate_only else records, results)


def _grow(image: MetadataImage, request: CreatePartitionsTopic, room: int) -> list[MetadataRecord]:
    topic = image.topics.get(request.name)
    if topic is None:
        raise TopicChangeRefused(
            ErrorCode.unknown_topic_or_partition, f"Topic '{request.name}' does not exist."
        )
    present = len(topic.partitions)
    more = request.partitions - present
    if more == 0:
        raise TopicChangeRefused(
            ErrorCode.invalid_partitions, f"Topic already has {present} partition(s)."
        )
    if more < 0:
        raise TopicChangeRefused(
            ErrorCode.invalid_partitions,
            f"The topic {request.name} currently has {present} partition(s); "
            f"{request.partitions} would not be an increase.",
        )
    if more > room:
        raise _build_too_many_error()
    factor = len(topic.partitions[0].replicas)
    if request.assignments is None:
        start = topic.topic_id.int + present
        assignments = _place(image, partitions=more, factor=factor, start=start)
    elif len(request.assignments) != more:
        raise TopicChangeRefused(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {more} additional partition(s), but only "
            f"{len(request.assignments)} assignment(s) were specified.",
        )
    else:
        assignments = [
            validate_assignment(image, broker_ids, factor, present + i)
            for i, broker_ids in enumerate(request.assignments)
        ]
    return _build_partition_records(image, topic.topic_id, assignments, present)
