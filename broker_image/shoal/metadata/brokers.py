"""Decisions on brokers: registration, fencing, controlled shutdown (KIP-631, KIP-966).

A broker registers as fenced. Its heartbeats unfence it once it has caught up with the metadata.
Fencing removes a broker from the ISR of its partitions and moves leaders to other brokers. A
controlled shutdown does the same before the broker stops. Pure; see `controller`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.controller import Decision, registration
from shoal.metadata.partition_changes import Election, View, change, settled, view_of
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shoal.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage

#: BrokerRegistrationChangeRecord's values for a flag that is set, cleared, or unchanged.
_SET, _CLEARED, _LEFT = 1, -1, 0


def register(image: MetadataImage, broker: BrokerImage, *, clean: bool, alive: bool) -> Decision:
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
    records = [registration(broker, epoch)]
    unclean = () if clean else (broker.broker_id,)
    empty = present is not None and not set(present.log_dirs) & set(broker.log_dirs)
    records += _without(image, broker.broker_id, unclean=unclean, empty=empty)
    return Decision(records, epoch)


def checked(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker's registration. Raises `ApiError` with STALE_BROKER_EPOCH if `broker_epoch`
    is not its epoch.
    """
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        raise ApiError(ErrorCode.stale_broker_epoch)
    return broker


def _flags(broker: BrokerImage, *, fenced: int = _LEFT, stopping: int = _LEFT) -> MetadataRecord:
    fields: dict[str, Any] = {
        "broker_id": broker.broker_id,
        "broker_epoch": broker.broker_epoch,
        "fenced": fenced,
        "in_controlled_shutdown": stopping,
    }
    return MetadataRecord("BrokerRegistrationChangeRecord", fields)


def fence(image: MetadataImage, broker_id: int) -> Decision:
    """Fence a broker and move its leaders. Does nothing if it is fenced already."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return Decision()
    return Decision([_flags(broker, fenced=_SET), *_without(image, broker_id)])


def unfence(image: MetadataImage, broker_id: int) -> Decision:
    """Unfence a broker. It becomes the leader of partitions that wait for it."""
    broker = image.brokers.get(broker_id)
    if broker is None or not broker.fenced:
        return Decision()
    records = [_flags(broker, fenced=_CLEARED)]
    for topic, index, partition in partitions(image):
        if partition.leader < 0 and broker_id in partition.replicas:
            after = settled(
                partition, view_of(image, topic.name, also=(broker_id,)), isr=partition.isr
            )
            record = change(topic.topic_id, index, partition, after)
            if record is not None:
                records.append(record)
    return Decision(records)


def shut_down(image: MetadataImage, broker_id: int) -> Decision:
    """Start a controlled shutdown: move the broker's leaders to other brokers if possible."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return Decision()
    handed_over = list(_handed_over(image, broker_id))
    if broker.in_controlled_shutdown:
        return Decision(handed_over)
    return Decision([_flags(broker, stopping=_SET), *handed_over])


def _handed_over(image: MetadataImage, broker_id: int) -> Iterator[MetadataRecord]:
    """Remove the broker from partitions that another replica can lead."""
    view_in = _views(image, broker_id)
    for topic, index, partition in _hosted(image, broker_id):
        if broker_id not in partition.isr:
            continue
        isr = tuple(r for r in partition.isr if r != broker_id)
        after = settled(partition, view_in(topic.name), isr=isr)
        if after.leader < 0 or (after.leader != partition.leader and after.leader not in isr):
            continue
        record = change(topic.topic_id, index, partition, after)
        if record is not None:
            yield record


def unregister(image: MetadataImage, broker_id: int) -> Decision:
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
    return Decision(
        [
            MetadataRecord("UnregisterBrokerRecord", fields),
            *_without(image, broker_id, unclean=(broker_id,)),
        ]
    )


def may_stop(image: MetadataImage, broker_id: int) -> bool:
    """Whether a stopping broker leads no partition that another broker could lead."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.fenced:
        return True
    return broker.in_controlled_shutdown and not any(_handed_over(image, broker_id))


def partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield all partitions by topic name and index."""
    for name in sorted(image.topics):
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _hosted(
    image: MetadataImage, broker_id: int
) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield the `partitions` with a replica on the broker."""
    for name in sorted(image.topics):
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas:
                yield topic, index, partition


def _views(image: MetadataImage, gone: int, unclean: Iterable[int] = ()) -> Callable[[str], View]:
    """Return a function from topic to the view of an election without broker `gone`."""
    found: dict[str, View] = {}

    def view_in(topic: str) -> View:
        if topic not in found:
            found[topic] = view_of(image, topic, but=(gone,), unclean=unclean)
        return found[topic]

    return view_in


def _without(
    image: MetadataImage, broker_id: int, *, unclean: Iterable[int] = (), empty: bool = False
) -> Iterator[MetadataRecord]:
    """Yield the partition changes if the broker is removed; `empty` means that it has no records
    any more."""
    lost = frozenset(unclean)
    view_in = _views(image, broker_id, lost)
    for topic, index, partition in _hosted(image, broker_id):
        eligible = broker_id in partition.eligible_leader_replicas
        # Without a leader, it may have been the last one.
        last = empty and broker_id in partition.last_known_elr
        if broker_id not in partition.isr and not (eligible and lost) and not last:
            continue
        isr = tuple(r for r in partition.isr if r != broker_id)
        config = image.topic_config(topic.name)
        unclean_allowed = config["unclean.leader.election.enable"]
        after = settled(
            partition,
            view_in(topic.name),
            isr=isr,
            election=Election.UNCLEAN if unclean_allowed else Election.STAY,
        )
        if empty and config["remote.storage.enable"] and broker_id in after.last_known_elr:
            after = after._replace(last_known_elr=())
        record = change(topic.topic_id, index, partition, after)
        if record is not None:
            yield record
