"""The controller: decisions on metadata, each a pure function of an image.

A decision has the records to append and the response to send once they are committed. It changes
nothing; `delta` replays the records. `server.cluster.metadata_log` runs decisions one after another
on the newest image. Randomness (topic ids) and time are arguments.

This module decides on brokers, features and producer ids; `topics` on topics, `alterations` on
configs. Source: KIP-500, KIP-584, KIP-631.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.feature_levels import RELEASE_FEATURES, SECURITY_FEATURE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.metadata.image import BrokerImage, MetadataImage

METADATA_VERSION = 30
#: Number of producer ids that a broker allocates at a time (KIP-730).
PRODUCER_ID_BLOCK_SIZE = 1000
#: Supported features: feature -> (min, max) level. They are those of Kafka 4.3.1, except
#: share.version 2 of Kafka 4.4, which adds dead letters (KIP-1191), and a feature of Shoal's own.
SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = {
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "metadata.version": (7, METADATA_VERSION),
    "share.version": (0, 2),
    SECURITY_FEATURE: (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
#: Levels of a new cluster.
INITIAL_FEATURES = [*RELEASE_FEATURES.values()][-1]


@dataclass(frozen=True, slots=True)
class Decision:
    """Records to append as one atomic batch, and the response to send afterwards."""

    records: Sequence[MetadataRecord] = ()
    response: Any = field(default=None)


def bootstrap(records: Sequence[MetadataRecord] = ()) -> Decision:
    """Return the first records of a new cluster: its features, and then `records`."""
    features = [
        MetadataRecord("FeatureLevelRecord", {"name": name, "feature_level": level})
        for name, level in INITIAL_FEATURES.items()
    ]
    return Decision([*features, *records])


def register_broker(image: MetadataImage, broker: BrokerImage, *, clean: bool) -> Decision:
    """Register a starting broker. The response is its epoch, the offset of its registration.

    After an unclean stop the broker's log may have lost an unsynced tail. So partitions that it
    leads alone get a new leader epoch. Records that are then written at an old offset have another
    epoch. Raises `ApiError` if a running broker has this id.
    """
    present = image.brokers.get(broker.broker_id)
    if present is not None and not present.fenced and present.log_dirs != broker.log_dirs:
        raise ApiError(
            ErrorCode.duplicate_broker_registration,
            f"node.id {broker.broker_id} is registered with another data directory",
        )
    epoch = image.offset + 1
    records = [registration(broker, epoch)]
    if not clean:
        records += _new_epochs(image, broker.broker_id)
    return Decision(records, epoch)


def registration(broker: BrokerImage, epoch: int) -> MetadataRecord:
    """Return a broker's RegisterBrokerRecord at `epoch`."""
    return MetadataRecord(
        "RegisterBrokerRecord",
        {
            "broker_id": broker.broker_id,
            "incarnation_id": broker.incarnation_id,
            "broker_epoch": epoch,
            "end_points": [e._asdict() for e in broker.endpoints],
            "features": [
                {"name": name, "min_supported_version": low, "max_supported_version": high}
                for name, (low, high) in sorted(broker.features.items())
            ],
            "rack": broker.rack,
            "fenced": broker.fenced,
            "log_dirs": broker.log_dirs,
        },
    )


def _new_epochs(image: MetadataImage, broker_id: int) -> list[MetadataRecord]:
    """Return records of a new leader epoch for every partition that the broker leads."""
    return [
        MetadataRecord(
            "PartitionChangeRecord",
            {"partition_id": index, "topic_id": topic.topic_id, "leader": broker_id},
        )
        for name, topic in sorted(image.topics.items())
        for index, partition in enumerate(topic.partitions)
        if partition.leader == broker_id
    ]


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> Decision:
    """Allocate a block of producer ids for a broker. The response is their range."""
    first = image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    broker = image.brokers.get(broker_id)
    fields = {
        "broker_id": broker_id,
        "broker_epoch": -1 if broker is None else broker.broker_epoch,
        "next_producer_id": block.stop,
    }
    return Decision([MetadataRecord("ProducerIdsRecord", fields)], block)


#: UpdateFeatures' upgrade types (KIP-584, KIP-778).
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def update_features(
    image: MetadataImage, updates: Sequence[tuple[str, int, int]], *, validate_only: bool
) -> Decision:
    """Change feature levels: (name, level, upgrade type). Applies all or none.

    The response maps each name to (error code, message). It is empty without an error.
    """
    errors: dict[str, tuple[ErrorCode, str]] = {}
    records = []
    seen = set()
    for name, level, upgrade_type in updates:
        refusal = (
            "Feature is named twice" if name in seen else _refuse(image, name, level, upgrade_type)
        )
        seen.add(name)
        if refusal is not None:
            errors[name] = (
                ErrorCode.invalid_update_version,
                f"Invalid update version {level} for feature {name}. {refusal}",
            )
        elif level != image.features.get(name, 0):
            fields = {"name": name, "feature_level": level}
            records.append(MetadataRecord("FeatureLevelRecord", fields))
    return Decision([] if errors or validate_only else records, errors)


def _refuse(image: MetadataImage, name: str, level: int, upgrade_type: int) -> str | None:
    """Return why a feature cannot change to `level`, or None."""
    supported = SUPPORTED_FEATURES.get(name)
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The upgrade type is none of upgrade, safe downgrade, unsafe downgrade."
    if supported is None:
        return "This broker does not know the feature."
    if level < 0:
        return "A feature's level cannot be negative."
    low, high = supported
    if not low <= level <= high:
        return f"This broker supports levels {low} to {high}."
    now = image.features.get(name, 0)
    if level > now and name == SECURITY_FEATURE:
        return "The first request that needs the level raises it."
    if level < now:
        if upgrade_type == UPGRADE:
            return f"Can't downgrade from {now} without setting the upgrade type to a downgrade."
        if name in ("metadata.version", SECURITY_FEATURE):
            return "The records of this cluster's metadata cannot be written at an older level."
    if level not in (now, 0):
        return _unsupported(image, name, level)
    return None


def _unsupported(image: MetadataImage, name: str, level: int) -> str | None:
    """Return a registered broker that lacks a feature's level, or None. A fenced one counts too: it
    could not read the metadata when it returns."""
    for broker_id, broker in sorted(image.brokers.items()):
        low, high = broker.features.get(name, (0, 0))
        if high == 0:
            return f"Broker {broker_id} does not support this feature."
        if not low <= level <= high:
            return f"Broker {broker_id} only supports versions {low}-{high}."
    return None
