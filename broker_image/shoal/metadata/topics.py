"""Decisions on topics: create, delete, add partitions. Pure; see `controller`.

The order of checks, the error codes and the meaning of messages follow Kafka's
ReplicationControlManager.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

from shoal.log.uuids import uuid_text
from shoal.metadata import names, placement
from shoal.metadata.alterations import checked_topic_configs
from shoal.metadata.config_keys import text_of
from shoal.metadata.configs import TOPIC, Source
from shoal.metadata.controller import Decision
from shoal.metadata.image import UNASSIGNED, BrokerImage, MetadataImage, TopicImage
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    "__transaction_state": "transaction.state.log.min.isr",
}


class Refused(Exception):
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
) -> Decision:
    """Create topics independently. The response has CreateTopics' results.

    A `request_id` of 16 bytes determines the topics' ids. A repeated request is then recognized: a
    topic that it already created is a success and is not created again.
    """
    records: list[MetadataRecord] = []
    results = []
    taken = _Names(image)
    for topic in topics:
        topic_id = _derived_id(request_id, topic.name) if request_id else new_id()
        present = image.topics.get(topic.name)
        if request_id and present is not None and present.topic_id == topic_id:
            results.append(_made(image, present))
            continue
        try:
            made, result = _create(
                image, topic, taken, topic_id, RECORDS_PER_DECISION_MAX - len(records)
            )
        except Refused as refused:
            results.append(_result(topic.name, refused))
            continue
        taken.add(topic.name)
        records += made
        results.append(result)
    return Decision([] if validate_only else records, results)


def _derived_id(request_id: bytes, name: str) -> UUID:
    """Return the topic id derived from a request. Its text does not start with a dash."""
    tries = (uuid5(UUID(bytes=request_id), f"{name}/{n}") for n in count())
    return next(id for id in tries if not uuid_text(id).startswith("-"))


def _made(image: MetadataImage, topic: TopicImage) -> dict[str, Any]:
    """Return CreateTopics' result of an existing topic."""
    own = dict(image.configs.get((2, topic.name), {}))
    return _made_row(image, topic.name, topic.topic_id, [p.replicas for p in topic.partitions], own)


def internal_topic(image: MetadataImage, name: str) -> NewTopic:
    """Return an internal topic as its configs set it and the cluster's size allows."""
    config = image.broker_config
    names_of, own = _INTERNAL[name]
    partitions, replicas, segment_bytes = (config[found] for found in names_of)
    configs = {
        "compression.type": "producer",
        "segment.bytes": str(max(segment_bytes, SEGMENT_BYTES_MIN)),
    } | own
    factor = max(1, min(replicas, len(placement.ring(image.brokers.values()))))
    if name in _MIN_ISR:
        # One less than the replicas: the loss of one broker does not stop a coordinator.
        configs["min.insync.replicas"] = str(min(config[_MIN_ISR[name]], max(1, factor - 1)))
    return NewTopic(name, partitions, factor, configs=tuple(configs.items()))


class _Names:
    """Names in use, including those of earlier topics in the request."""

    def __init__(self, image: MetadataImage) -> None:
        self._topics = image.topics
        self._new: list[str] = []

    def add(self, name: str) -> None:
        self._new.append(name)

    def refuse(self, name: str) -> None:
        """Raise `Refused` for a name that is invalid, in use, or collides with one in use."""
        reason = names.invalid_topic(name)
        if reason is not None:
            raise Refused(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
        if name in self._topics:
            raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if "." in name or "_" in name:
            key = names.collision_key(name)
            for other in (*self._topics, *self._new):
                if len(other) == len(name) and names.collision_key(other) == key:
                    raise Refused(
                        ErrorCode.invalid_topic_exception,
                        f"Topic '{name}' collides with existing topic: {other}",
                    )


def _create(
    image: MetadataImage, topic: NewTopic, taken: _Names, topic_id: UUID, room: int
) -> tuple[list[MetadataRecord], dict[str, Any]]:
    """Return the records and the result of one topic. Raises `Refused`."""
    taken.refuse(topic.name)
    own = _configs(image, topic)
    if topic.assignments:
        replicas = _manual(image, topic)
    else:
        replicas = _placed(image, topic, topic_id, room)
    records = [MetadataRecord("TopicRecord", {"name": topic.name, "topic_id": topic_id})]
    records += [
        MetadataRecord(
            "ConfigRecord",
            {"resource_type": 2, "resource_name": topic.name, "name": name, "value": value},
        )
        for name, value in own.items()
    ]
    records += _partitions(image, topic_id, replicas, 0)
    return records, _made_row(image, topic.name, topic_id, replicas, own)


def _made_row(
    image: MetadataImage,
    name: str,
    topic_id: UUID,
    replicas: Sequence[Sequence[int]],
    own: dict[str, str],
) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(replicas),
        "replication_factor": len(replicas[0]),
        "configs": _effective(image, own),
    }


def _configs(image: MetadataImage, topic: NewTopic) -> dict[str, str]:
    """Return the topic's own configs, checked."""
    without = [name for name, value in topic.configs if value is None]
    if without:
        raise Refused(
            ErrorCode.invalid_config,
            f"Null value not supported for topic configs: {','.join(without)}",
        )
    own = {name: value for name, value in topic.configs if value is not None}
    reason = checked_topic_configs(image, own)
    if reason is not None:
        raise Refused(ErrorCode.invalid_config, reason)
    return own


def _manual(image: MetadataImage, topic: NewTopic) -> list[tuple[int, ...]]:
    """Return the replicas that the request assigns."""
    if topic.replication_factor != DEFAULT:
        raise Refused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not -1.",
        )
    if topic.partitions != DEFAULT:
        raise Refused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but the partition count was not -1.",
        )
    by_index: dict[int, tuple[int, ...]] = {}
    for index, broker_ids in topic.assignments:
        if index in by_index:
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        size = len(next(iter(by_index.values()))) if by_index else None
        by_index[index] = checked_assignment(image, broker_ids, size, index)
    if sorted(by_index) != list(range(len(by_index))):
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [by_index[index] for index in range(len(by_index))]


def checked_assignment(
    image: MetadataImage, broker_ids: Sequence[int], size: int | None, index: int
) -> tuple[int, ...]:
    """Return one partition's assigned replicas; there must be `size`. Raises `Refused`."""
    reason = None
    unknown = sorted({b for b in broker_ids if b not in image.brokers})
    if not broker_ids:
        reason = "The manual partition assignment includes an empty replica list."
    elif len(set(broker_ids)) < len(broker_ids):
        reason = "The manual partition assignment names a broker more than once."
    elif unknown:
        reason = f"The manual partition assignment includes broker {unknown[0]}, "
        reason += "but no such broker is registered."
    elif size is not None and len(broker_ids) != size:
        reason = f"The manual partition assignment includes a partition with {len(broker_ids)} "
        reason += f"replica(s), but this is not consistent with others that have {size}."
    elif not _active(image, broker_ids):
        reason = f"All brokers assigned to partition {index} are fenced or shutting down."
    if reason is not None:
        raise Refused(ErrorCode.invalid_replica_assignment, reason)
    return tuple(broker_ids)


def _placed(
    image: MetadataImage, topic: NewTopic, topic_id: UUID, room: int
) -> list[tuple[int, ...]]:
    """Return replicas that the controller places."""
    config = image.broker_config
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise Refused(
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < DEFAULT or topic.partitions == 0:
        raise Refused(
            ErrorCode.invalid_partitions,
            "Number of partitions was set to an invalid non-positive value.",
        )
    partitions = config["num.partitions"] if topic.partitions == DEFAULT else topic.partitions
    factor = topic.replication_factor
    if factor == DEFAULT:
        factor = config["default.replication.factor"]
    if partitions > room:
        raise _too_many()
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
                hosts=placement.hosts(image),
            )
        )
    except placement.NotPlaceable as error:
        raise Refused(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): {error}.",
        ) from None


def _too_many() -> Refused:
    return Refused(
        ErrorCode.policy_violation,
        f"Excessively large number of partitions per request: at most {RECORDS_PER_DECISION_MAX}.",
    )


def _active(image: MetadataImage, broker_ids: Iterable[int]) -> tuple[int, ...]:
    def active(broker: BrokerImage | None) -> bool:
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    return tuple(b for b in broker_ids if active(image.brokers.get(b)))


def _partitions(
    image: MetadataImage, topic_id: UUID, assigned: Sequence[tuple[int, ...]], first: int
) -> list[MetadataRecord]:
    """Return records of new partitions from index `first` on; the first active replica leads."""
    records = []
    for index, replicas in enumerate(assigned, first):
        isr = _active(image, replicas)
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
                    "directories": [directory_of(image, b) for b in replicas],
                },
            )
        )
    return records


def directory_of(image: MetadataImage, broker_id: int) -> UUID:
    """Return the broker's log directory if it has exactly one."""
    dirs = image.brokers[broker_id].log_dirs if broker_id in image.brokers else ()
    return dirs[0] if len(dirs) == 1 else UNASSIGNED


def _effective(image: MetadataImage, own: dict[str, str]) -> list[dict[str, Any]]:
    """Return CreateTopics' list of the new topic's configs."""
    results = []
    defaults = image.topic_config("")
    for name, key in TOPIC.items():
        if key.internal:
            continue
        if name in own:
            value, source = own[name], Source.TOPIC
        else:
            found = image.origins(2, "", name)
            value = text_of(defaults[name])  # type: ignore[assignment]
            source = found[0].source if found else Source.DEFAULT
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


def _result(name: str, refused: Refused) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": refused.code,
        "error_message": refused.message,
        "configs": None,
    }


def delete_topics(image: MetadataImage, topics: Iterable[TopicImage]) -> Decision:
    """Delete topics of the image; ignore those that are already deleted."""
    return Decision(
        [
            MetadataRecord("RemoveTopicRecord", {"topic_id": topic.topic_id})
            for topic in topics
            if topic.topic_id in image.topics_by_id
        ]
    )


class Growth(NamedTuple):
    """New partitions of a topic: the total count, and optionally their assignments."""

    name: str
    partitions: int
    assignments: Sequence[Sequence[int]] | None = None


def create_partitions(
    image: MetadataImage, growths: Sequence[Growth], *, validate_only: bool = False
) -> Decision:
    """Add partitions to each topic independently. The response has CreatePartitions' results."""
    records: list[MetadataRecord] = []
    results = []
    for growth in growths:
        result = {"name": growth.name, "error_code": ErrorCode.none, "error_message": None}
        try:
            records += _grow(image, growth, RECORDS_PER_DECISION_MAX - len(records))
        except Refused as refused:
            result |= {"error_code": refused.code, "error_message": refused.message}
        results.append(result)
    return Decision([] if validate_only else records, results)


def _grow(image: MetadataImage, growth: Growth, room: int) -> list[MetadataRecord]:
    topic = image.topics.get(growth.name)
    if topic is None:
        raise Refused(
            ErrorCode.unknown_topic_or_partition, f"Topic '{growth.name}' does not exist."
        )
    present = len(topic.partitions)
    more = growth.partitions - present
    if more == 0:
        raise Refused(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if more < 0:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"The topic {growth.name} currently has {present} partition(s); "
            f"{growth.partitions} would not be an increase.",
        )
    if more > room:
        raise _too_many()
    factor = len(topic.partitions[0].replicas)
    if growth.assignments is None:
        start = topic.topic_id.int + present
        assigned = _place(image, partitions=more, factor=factor, start=start)
    elif len(growth.assignments) != more:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {more} additional partition(s), but only "
            f"{len(growth.assignments)} assignment(s) were specified.",
        )
    else:
        assigned = [
            checked_assignment(image, broker_ids, factor, present + i)
            for i, broker_ids in enumerate(growth.assignments)
        ]
    return _partitions(image, topic.topic_id, assigned, present)
