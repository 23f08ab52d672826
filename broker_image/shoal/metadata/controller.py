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

from shoal.metadata import configs, min_insync_replicas
from shoal.metadata.image import ImageScope, MetadataImage
from shoal.metadata.partition_changes import ELR_FEATURE
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.feature_levels import RELEASE_FEATURES, SECURITY_FEATURE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.metadata.configs import Texts
    from shoal.metadata.image import BrokerImage

METADATA_VERSION = 33
#: Number of producer ids that a broker allocates at a time (KIP-730).
PRODUCER_ID_BLOCK_SIZE = 1000
#: Supported features: feature -> (min, max) level. They are those of Kafka 4.4.0, and a feature of
#: Shoal's own.
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
#: Levels of metadata.version above the first one that change no record. From such a level a cluster
#: can return to the one before.
_LEVELS_WITHOUT_RECORDS = (31,)


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """Records to append as one atomic batch, and the response to send afterwards."""

    records: Sequence[MetadataRecord] = ()
    response: Any = field(default=None)


def bootstrap(
    records: Sequence[MetadataRecord] = (), *, static: Texts = configs.NONE
) -> ControllerResult:
    """Return the first records of a new cluster: its features, the min.insync.replicas of `static`,
    which is the controller's file, if the cluster needs a single one, and then `records`."""
    features = [
        MetadataRecord("FeatureLevelRecord", {"name": name, "feature_level": level})
        for name, level in INITIAL_FEATURES.items()
    ]
    if INITIAL_FEATURES[ELR_FEATURE]:
        features += min_insync_replicas.unify(MetadataImage(ImageScope(static=static)))
    return ControllerResult([*features, *records])


def complete(image: MetadataImage) -> ControllerResult:
    """Return the records that the metadata of an earlier release lacks."""
    if not min_insync_replicas.is_missing(image):
        return ControllerResult()
    records = min_insync_replicas.unify(image)
    min_isr = min_insync_replicas.resolve_static(image)
    return ControllerResult(
        [*records, *min_insync_replicas.end_eligibility_by_default(image, min_isr)]
    )


def register_broker(image: MetadataImage, broker: BrokerImage, *, clean: bool) -> ControllerResult:
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
    records = [build_registration_record(broker, epoch)]
    if not clean:
        records += _bump_leader_epochs(image, broker.broker_id)
    return ControllerResult(records, epoch)


def build_registration_record(broker: BrokerImage, epoch: int) -> MetadataRecord:
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
            "cordoned_log_dirs": broker.cordoned_log_dirs or None,
        },
    )


def _bump_leader_epochs(image: MetadataImage, broker_id: int) -> list[MetadataRecord]:
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


def allocate_producer_ids(image: MetadataImage, broker_id: int) -> ControllerResult:
    """Allocate a block of producer ids for a broker. The response is their range."""
    first = image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    broker = image.brokers.get(broker_id)
    fields = {
        "broker_id": broker_id,
        "broker_epoch": -1 if broker is None else broker.broker_epoch,
        "next_producer_id": block.stop,
    }
    return ControllerResult([MetadataRecord("ProducerIdsRecord", fields)], block)


#: UpdateFeatures' upgrade types (KIP-584, KIP-778).
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def update_features(
    image: MetadataImage, updates: Sequence[tuple[str, int, int]], *, validate_only: bool
) -> ControllerResult:
    """Change feature levels: (name, level, upgrade type). Applies all or none.

    The response maps each name to (error code, message). It is empty without an error.
    """
    errors: dict[str, tuple[ErrorCode, str]] = {}
    records = []
    # Of several updates of a feature, the last one counts, as in Kafka.
    for name, level, upgrade_type in {update[0]: update for update in updates}.values():
        refusal = _find_refusal(image, name, level, upgrade_type)
        if refusal is not None:
            errors[name] = ErrorCode.invalid_update_version, refusal
        elif level != image.features.get(name, 0):
            fields = {"name": name, "feature_level": level}
            records.append(MetadataRecord("FeatureLevelRecord", fields))
            if name == ELR_FEATURE and level:
                records += min_insync_replicas.unify(image)
                records += min_insync_replicas.end_eligibility_everywhere(image)
    return ControllerResult([] if errors or validate_only else records, errors)


def _find_refusal(image: MetadataImage, name: str, level: int, upgrade_type: int) -> str | None:
    """Return why a feature cannot change to `level`, in Kafka's words, or None."""
    supported = SUPPORTED_FEATURES.get(name)
    invalid = f"Invalid update version {level} for feature {name}. "
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return f"{invalid}The controller does not support the given upgrade type."
    if level < 0:
        return f"{invalid}A feature version cannot be less than 0."
    unsupported = _find_unsupported(f"Local controller {image.scope.node_id}", supported, level)
    if unsupported is not None:
        return invalid + unsupported
    now = image.features.get(name, 0)
    if level > now and name == SECURITY_FEATURE:
        return f"{invalid}The first request that needs the level raises it."
    if level < now:
        if upgrade_type == UPGRADE:
            return (
                f"{invalid}Can't downgrade the version of this feature without setting the upgrade"
                " type to either safe or unsafe downgrade."
            )
        loses = any(step not in _LEVELS_WITHOUT_RECORDS for step in range(level + 1, now + 1))
        if name == SECURITY_FEATURE or (name == "metadata.version" and loses):
            is_safe = upgrade_type == SAFE_DOWNGRADE
            return f"Unsupported {name} downgrade from {now} to {level}. " + (
                "Refusing to perform the requested downgrade because it might delete metadata"
                " information."
                if is_safe
                else "Unsafe metadata downgrade is not supported in this version."
            )
    # A fenced broker counts too: it could not read the metadata when it returns.
    for broker_id, broker in sorted(image.brokers.items()) if level not in (now, 0) else ():
        supported = broker.features.get(name)
        unsupported = _find_unsupported(f"Broker {broker_id}", supported, level)
        if unsupported is not None:
            return invalid + unsupported
    return None


def _find_unsupported(node: str, supported: tuple[int, int] | None, level: int) -> str | None:
    """Return why a node with these levels of a feature does not support a level, or None."""
    if supported is None or supported[1] == 0:
        return f"{node} does not support this feature."
    low, high = supported
    return None if low <= level <= high else f"{node} only supports versions {low}-{high}"
