"""The metadata of a restored cluster, from the backup of the lost one. Pure.

Topics, configs, quotas, permissions and users stay, with the ids of topics. The brokers are those
of the new cluster, registered as after a clean stop, so that each may lead what it has on its disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from shoal.metadata import names
from shoal.metadata.controller import registration
from shoal.metadata.delta import Draft
from shoal.metadata.image import BrokerImage, MetadataImage, ResourceType, Scope
from shoal.metadata.records import MetadataRecord
from shoal.server.tiered.backups import INCARNATION
from shoal.tiered.segment_object import DamagedObject

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

#: Added to the leader epochs of a backup. The lost cluster may have had more elections since.
EPOCH_GAP = 1_000


class Lost(NamedTuple):
    """The lost cluster at its last backup: its records, and the image they make."""

    records: Sequence[MetadataRecord]
    image: MetadataImage
    #: Offset of the last record of its metadata log.
    offset: int


class Restored(NamedTuple):
    """The metadata of the restored cluster."""

    records: Sequence[MetadataRecord]
    image: MetadataImage
    #: The broker epoch of the registrations.
    broker_epoch: int


def lost(records: Iterable[MetadataRecord], offset: int) -> Lost:
    """Return the lost cluster. Raises `DamagedObject` for a topic whose name no cluster accepts:
    names become folders of the disk and prefixes in the bucket, and `..` leads out of them."""
    found = list(records)
    for record in found:
        if record.kind == "TopicRecord":
            reason = names.invalid_topic(record.fields["name"])
            if reason is not None:
                raise DamagedObject(f"the backup has a topic with an invalid name: {reason}")
    return Lost(found, image_of(found, offset), offset)


def image_of(records: Iterable[MetadataRecord], offset: int) -> MetadataImage:
    draft = Draft(MetadataImage(scope=Scope()))
    for record in records:
        draft.replay(record)
    return draft.finish(offset=offset, epoch=0)[0]


def directory_id(incarnation: str, broker_id: int) -> UUID:
    """Return the id of a broker's data directory, which all nodes must know."""
    return uuid5(NAMESPACE_OID, f"{incarnation} {broker_id}")


def restored(
    of: Lost,
    *,
    brokers: Sequence[int],
    topics: Collection[str] | None,
    incarnation: str,
    leader_epochs: Mapping[tuple[UUID, int], int],
) -> Restored:
    """Return the metadata for these brokers, and of these topics only (None: all). `leader_epochs`
    has newer epochs than the backup."""
    epoch = of.offset
    kept = {
        name: topic.topic_id
        for name, topic in of.image.topics.items()
        if topics is None or name in topics or name in names.INTERNAL_TOPICS
    }
    ids = set(kept.values())
    out: list[MetadataRecord] = []
    for broker_id in brokers:
        broker = BrokerImage(
            broker_id,
            uuid5(directory_id(incarnation, broker_id), "incarnation"),
            epoch,
            (),
            {},
            log_dirs=(directory_id(incarnation, broker_id),),
        )
        out.append(registration(broker, epoch))
    for record in of.records:
        fields = record.fields
        match record.kind:
            case "RegisterBrokerRecord":
                continue
            case "TopicRecord" if fields["topic_id"] not in ids:
                continue
            case "PartitionRecord":
                if fields["topic_id"] not in ids:
                    continue
                newer = leader_epochs.get((fields["topic_id"], fields["partition_id"]), 0)
                out.append(_partition(fields, brokers, incarnation, newer))
                continue
            case "ConfigRecord" if not _is_kept(fields, kept, brokers):
                continue
        out.append(record)
    out.append(_config(ResourceType.BROKER, "", INCARNATION, incarnation))
    return Restored(out, image_of(out, of.offset), epoch)


def _config(kind: int, resource: str, name: str, value: str) -> MetadataRecord:
    fields = {"resource_type": kind, "resource_name": resource, "name": name, "value": value}
    return MetadataRecord("ConfigRecord", fields)


def _is_kept(fields: Mapping[str, Any], topics: Collection[str], brokers: Sequence[int]) -> bool:
    kind, name = fields["resource_type"], fields["resource_name"]
    if kind == ResourceType.TOPIC:
        return name in topics
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name:
        return name in map(str, brokers)
    return True


def _partition(
    fields: Mapping[str, Any], brokers: Sequence[int], incarnation: str, newer: int
) -> MetadataRecord:
    """Return a partition as after a clean stop of all brokers: its replicas are in sync."""
    old, at = fields["replicas"], fields["partition_id"]
    replicas = [replica for replica in old if replica in brokers]
    for step in range(len(brokers)):
        other = brokers[(at + step) % len(brokers)]
        if len(replicas) < len(old) and other not in replicas:
            replicas.append(other)
    changed = {
        "replicas": replicas,
        "isr": replicas,
        "adding_replicas": [],
        "removing_replicas": [],
        "leader": replicas[0],
        "leader_epoch": max(fields["leader_epoch"], newer) + EPOCH_GAP,
        "partition_epoch": fields["partition_epoch"] + EPOCH_GAP,
        "leader_recovery_state": 0,
        "directories": [directory_id(incarnation, replica) for replica in replicas],
        "eligible_leader_replicas": None,
        "last_known_elr": None,
    }
    return MetadataRecord("PartitionRecord", {**fields, **changed})
