"""Decisions on brokers: registration, fencing, controlled shutdown (KIP-631, KIP-966).

A broker registers as fenced. Its heartbeats unfence it once it has caught up with the metadata.
Fencing removes a broker from the ISR of its partitions and moves leaders to other brokers. A
controlled shutdown does the same before the broker stops. Pure; see `controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.controller import ControllerResult, build_registration_record
from shoal.metadata.partition_changes import (
    Election,
    ElectionView,
    build_change_record,
    build_view,
    with_isr_and_leader,
)
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from shoal.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage

#: The metadata.version from which on log directories can be cordoned: 4.3-IV0.
CORDON_LEVEL = 30
#: BrokerRegistrationChangeRecord's values for a flag that is set, cleared, or unchanged.
_SET, _CLEARED, _LEFT = 1, -1, 0


def register(
    image: MetadataImage, broker: BrokerImage, *, clean: bool, alive: bool
) -> ControllerResult:
    """Register a starting broker as fenced. The response is its epoch, the offset of the record.

    `clean` states that it stopped cleanly. `alive` states that a process with this id sent a
    heartbeat within its session. A broker with another data directory has lost its disk. It is not
    the last leader of tiered topics any more: it would begin at offset 0, where the object store
    has other records. Raises `ApiError`.
    """
    present = image.brokers.get(broker.broker_id)
    if present is not None and alive and present.incarnation_id != broker.incarnation_id:
        if present.log_dirs != broker.log_dirs:
            raise ApiError(
                ErrorCode.duplicate_broker_registration,
                f"node.id {broker.broker_id} is registered with another data directory",
            )
    for name, level in sorted(image.features.items()):
        low, high = broker.features.get(name, (0, 0))
        if not low <= level <= high:
            raise ApiError(
                ErrorCode.unsupported_version,
                f"the cluster has {name} at {level}, and broker {broker.broker_id} supports"
                f" {low} to {high}",
            )
    epoch = image.offset + 1
    records = [build_registration_record(broker, epoch)]
    unclean = () if clean else (broker.broker_id,)
    empty = present is not None and not set(present.log_dirs) & set(broker.log_dirs)
    records += _build_removal_records(image, broker.broker_id, unclean=unclean, empty=empty)
    return ControllerResult(records, epoch)


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker's registration. Raises `ApiError` with STALE_BROKER_EPOCH if `broker_epoch`
    is not its epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        raise ApiError(ErrorCode.stale_broker_epoch)
    return broker


def _build_flags_record(
    broker: BrokerImage, *, fenced: int = _LEFT, stopping: int = _LEFT
) -> MetadataRecord:
    fields: dict[str, Any] = {
        "broker_id": broker.broker_id,
        "broker_epoch": broker.broker_epoch,
        "fenced": fenced,
        "in_controlled_shutdown": stopping,
    }
    return MetadataRecord("BrokerRegistrationChangeRecord", fields)


def build_cordon_records(
    image: MetadataImage, broker_id: int, directories: Sequence[UUID] | None
) -> list[MetadataRecord]:
    """Return the change to these cordoned log directories (KIP-1066); none if they are unknown."""
    broker = image.brokers.get(broker_id)
    if (
        directories is None
        or broker is None
        or set(directories) == set(broker.cordoned_log_dirs)
        or image.features.get("metadata.version", 0) < CORDON_LEVEL
    ):
        return []
    record = _build_flags_record(broker)
    fields = record.fields | {"cordoned_log_dirs": list(directories)}
    return [record._replace(fields=fields)]


def cordon(image: MetadataImage, broker_id: int, directories: Sequence[UUID]) -> ControllerResult:
    """Place no new replicas in these log directories of a broker, and in no others."""
    return ControllerResult(build_cordon_records(image, broker_id, directories))


def fence(image: MetadataImage, broker_id: int) -> ControllerResult:
    """Fence a broker and move its leaders. Does nothing if it is fenced already."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return ControllerResult()
    return ControllerResult(
        [_build_flags_record(broker, fenced=_SET), *_build_removal_records(image, broker_id)]
    )


def unfence(image: MetadataImage, broker_id: int) -> ControllerResult:
    """Unfence a broker. It becomes the leader of partitions that wait for it."""
    broker = image.brokers.get(broker_id)
    if broker is None or not broker.fenced:
        return ControllerResult()
    records = [_build_flags_record(broker, fenced=_CLEARED)]
    for topic, index, partition in iter_partitions(image):
        if partition.leader < 0 and broker_id in partition.replicas:
            after = with_isr_and_leader(
                partition, build_view(image, topic.name, also=(broker_id,)), isr=partition.isr
            )
            record = build_change_record(topic.topic_id, index, partition, after)
            if record is not None:
                records.append(record)
    return ControllerResult(records)


def shut_down(image: MetadataImage, broker_id: int) -> ControllerResult:
    """Start a controlled shutdown: move the broker's leaders to other brokers if possible."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return ControllerResult()
    handed_over = list(_hand_over_partitions(image, broker_id))
    if broker.in_controlled_shutdown:
        return ControllerResult(handed_over)
    return ControllerResult([_build_flags_record(broker, stopping=_SET), *handed_over])


def _hand_over_partitions(image: MetadataImage, broker_id: int) -> Iterator[MetadataRecord]:
    """Remove the broker from partitions that another replica can lead."""
    view_in = _make_view_factory(image, broker_id)
    for topic, index, partition in _iter_hosted_partitions(image, broker_id):
        if broker_id not in partition.isr:
            continue
        isr = tuple(r for r in partition.isr if r != broker_id)
        after = with_isr_and_leader(partition, view_in(topic.name), isr=isr)
        if after.leader < 0 or (after.leader != partition.leader and after.leader not in isr):
            continue
        record = build_change_record(topic.topic_id, index, partition, after)
        if record is not None:
            yield record


def unregister(image: MetadataImage, broker_id: int) -> ControllerResult:
    """Remove a broker's registration (KIP-631). Raises `ApiError`."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise ApiError(
            ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered"
        )
    if not broker.fenced:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Broker {broker_id} is running: stop it before it is unregistered",
        )
    fields = {"broker_id": broker_id, "broker_epoch": broker.broker_epoch}
    return ControllerResult(
        [
            MetadataRecord("UnregisterBrokerRecord", fields),
            *_build_removal_records(image, broker_id, unclean=(broker_id,)),
        ]
    )


def may_stop(image: MetadataImage, broker_id: int) -> bool:
    """Whether a stopping broker leads no partition that another broker could lead."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return True
    return broker.in_controlled_shutdown and not any(_hand_over_partitions(image, broker_id))


def iter_partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield all partitions by topic name and index."""
    for name in sorted(image.topics):
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _iter_hosted_partitions(
    image: MetadataImage, broker_id: int
) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield the `partitions` with a replica on the broker."""
    for name in sorted(image.topics):
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas:
                yield topic, index, partition


def _make_view_factory(
    image: MetadataImage, broker_id: int, unclean: Iterable[int] = ()
) -> Callable[[str], ElectionView]:
    """Return a function from topic to the view of an election without broker `broker_id`."""
    views: dict[str, ElectionView] = {}

    def get_view(topic: str) -> ElectionView:
        if topic not in views:
            views[topic] = build_view(image, topic, but=(broker_id,), unclean=unclean)
        return views[topic]

    return get_view


def _build_removal_records(
    image: MetadataImage, broker_id: int, *, unclean: Iterable[int] = (), empty: bool = False
) -> Iterator[MetadataRecord]:
    """Yield the partition changes if the broker is removed; `empty` means that it has no records
    any more."""
    lost = frozenset(unclean)
    view_in = _make_view_factory(image, broker_id, lost)
    for topic, index, partition in _iter_hosted_partitions(image, broker_id):
        eligible = broker_id in partition.eligible_leader_replicas
        # Without a leader, it may have been the last one.
        last = empty and broker_id in partition.last_known_elr
        if broker_id not in partition.isr and not (eligible and lost) and not last:
            continue
        isr = tuple(r for r in partition.isr if r != broker_id)
        config = image.resolve_topic_config(topic.name)
        unclean_allowed = config["unclean.leader.election.enable"]
        after = with_isr_and_leader(
            partition,
            view_in(topic.name),
            isr=isr,
            election=Election.UNCLEAN if unclean_allowed else Election.STAY,
        )
        if empty and config["remote.storage.enable"] and broker_id in after.last_known_elr:
            after = after._replace(last_known_elr=())
        record = build_change_record(topic.topic_id, index, partition, after)
        if record is not None:
            yield record
