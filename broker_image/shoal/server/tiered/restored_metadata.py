"""The metadata of a restored cluster, from the backup of the lost one. Pure.

Topics, configs, quotas, permissions and users stay, with the ids of topics. The brokers are those
of the new cluster, registered as after a clean stop, so that each may lead what it has on its disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from shoal.metadata import names
from shoal.metadata.controller import build_registration_record
from shoal.metadata.delta import ImageDraft
from shoal.metadata.image import BrokerImage, ConfigResourceType, ImageScope, MetadataImage
from shoal.metadata.records import MetadataRecord
from shoal.server.tiered.backups import INCARNATION
from shoal.tiered.segment_object import DamagedObject

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

#: Added to the leader epochs of a backup. The lost cluster may have had more elections since.
EPOCH_GAP = 1_000


class LostCluster(NamedTuple):
    """The lost cluster at its last backup: its records, and the image they make."""

    records: Sequence[MetadataRecord]
    image: MetadataImage
    #: Offset of the last record of its metadata log.
    offset: int


class RestoredMetadata(NamedTuple):
    """The metadata of the restored cluster."""

    records: Sequence[MetadataRecord]
    image: MetadataImage
    #: The broker epoch of the registrations.
    broker_epoch: int


def make_lost_cluster(records: Iterable[MetadataRecord], offset: int) -> LostCluster:
    """Return the lost cluster. Raises `DamagedObject` for a topic whose name no cluster accepts:
    names become folders of the disk and prefixes in the bucket, and `..` leads out of them."""
    record_list = list(records)
    for record in record_list:
        if record.kind == "TopicRecord":
            reason = names.find_topic_name_error(record.fields["name"])
            if reason is not None:
                raise DamagedObject(f"the backup has a topic with an invalid name: {reason}")
    return LostCluster(record_list, build_image(record_list, offset), offset)


def build_image(records: Iterable[MetadataRecord], offset: int) -> MetadataImage:
    draft = ImageDraft(MetadataImage(scope=ImageScope()))
    for record in records:
        draft.replay(record)
    return draft.finish(offset=offset, epoch=0)[0]


def compute_directory_id(incarnation: str, broker_id: int) -> UUID:
    """Return the id of a broker's data directory, which all nodes must know."""
    return uuid5(NAMESPACE_OID, f"{incarnation} {broker_id}")


def build_restored(
    of: LostCluster,
    *,
    brokers: Sequence[int],
    topics: Collection[str] | None,
    incarnation: str,
    leader_epochs: Mapping[tuple[UUID, int], int],
) -> RestoredMetadata:
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
            uuid5(compute_directory_id(incarnation, broker_id), "incarnation"),
            epoch,
            (),
            {},
            log_dirs=(compute_directory_id(incarnation, broker_id),),
        )
        out.append(build_registration_record(broker, epoch))
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
                out.append(_restore_partition(fields, brokers, incarnation, newer))
                continue
            case "ConfigRecord" if not _is_kept(fields, kept, brokers):
                continue
        out.append(record)
    out.append(_make_config(ConfigResourceType.BROKER, "", INCARNATION, incarnation))
    return RestoredMetadata(out, build_image(out, of.offset), epoch)


def _make_config(kind: int, resource: str, name: str, value: str) -> MetadataRecord:
    fields = {"resource_type": kind, "resource_name": resource, "name": name, "value": value}
    return MetadataRecord("ConfigRecord", fields)


def _is_kept(fields: Mapping[str, Any], topics: Collection[str], brokers: Sequence[int]) -> bool:
    kind, name = fields["resource_type"], fields["resource_name"]
    if kind == ConfigResourceType.TOPIC:
        return name in topics
    if kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER) and name:
        return name in map(str, brokers)
    return True


def _restore_partition(
    fields: Mapping[str, Any], brokers: Sequence[int], incarnation: str, newer: int
) -> MetadataRecord:
    """Return a partition as after a clean stop of all brokers: its replicas are in sync."""
    old, index = fields["replicas"], fields["partition_id"]
    replicas = [replica for replica in old if replica in brokers]
    for step in range(len(brokers)):
        broker_id = brokers[(index + step) % len(brokers)]
        if len(replicas) < len(old) and broker_id not in replicas:
            replicas.append(broker_id)
    changed = {
        "replicas": replicas,
        "isr": replicas,
        "adding_replicas": [],
        "removing_replicas": [],
        "leader": replicas[0],
        "leader_epoch": max(fields["leader_epoch"], newer) + EPOCH_GAP,
        "partition_epoch": fields["partition_epoch"] + EPOCH_GAP,
        "leader_recovery_state": 0,
        "directories": [compute_directory_id(incarnation, replica) for replica in replicas],
        "eligible_leader_replicas": None,
        "last_known_elr": None,
    }
    return MetadataRecord("PartitionRecord", {**fields, **changed})
