"""One min.insync.replicas for the whole cluster while it keeps eligible leader replicas. Pure; see
`controller`.

A leader commits records by this number, and the controller keeps eligible replicas by it. If the
leader's was lower, a replica that lacks committed records would stay eligible, and its election
would lose them. Therefore, a cluster with the feature always has a cluster-wide value, which hides
those of the brokers' files, and no broker has its own. The first value is the one that the active
controller's file has. Source: KIP-966, and Apache Kafka 4.4.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import configs
from shoal.metadata.configs import BROKER
from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.metadata.partition_changes import ELR_FEATURE, end_eligibility
from shoal.metadata.records import MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MIN_ISR = "min.insync.replicas"
_BROKER = ConfigResourceType.BROKER


def is_missing(image: MetadataImage) -> bool:
    """Whether the cluster needs a cluster-wide value and has none, as one that an earlier release
    made."""
    own = image.configs.get((_BROKER, ""), configs.NONE)
    return image.features.get(ELR_FEATURE, 0) > 0 and MIN_ISR not in own


def resolve_static(image: MetadataImage) -> int:
    """Return the value of this node's file, or the default."""
    text, key = image.scope.static.get(MIN_ISR), BROKER[MIN_ISR]
    return int(key.default if text is None else key.read(text))


def unify(image: MetadataImage) -> list[MetadataRecord]:
    """Return the records that give the cluster one value: a cluster-wide one if there is none, and
    none for single brokers."""
    changes: list[tuple[str, str | None]] = [
        (name, None)
        for (kind, name), texts in sorted(image.configs.items())
        if kind == _BROKER and name and MIN_ISR in texts
    ]
    cluster_wide = image.configs.get((_BROKER, ""), configs.NONE)
    if MIN_ISR not in cluster_wide:
        changes.append(("", str(resolve_static(image))))
    return [
        MetadataRecord(
            "ConfigRecord",
            {"resource_type": _BROKER, "resource_name": name, "name": MIN_ISR, "value": value},
        )
        for name, value in changes
    ]


def find_refusal(image: MetadataImage, broker: str, changed: Collection[str]) -> str | None:
    """Return why a broker's configs `changed` must stay, in Kafka's words, or None. `broker` is the
    id, empty for the cluster-wide configs, of which `changed` are those that are removed."""
    if MIN_ISR not in changed or not image.features.get(ELR_FEATURE, 0):
        return None
    if broker:
        return f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
    return f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."


def end_eligibility_everywhere(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the changes of all partitions that still list eligible replicas from before the
    feature was turned off, since their leaders may have committed records without them."""
    for _, topic in sorted(image.topics.items()):
        yield from end_eligibility(topic, 1)


def end_eligibility_by_default(image: MetadataImage, min_isr: int) -> Iterator[MetadataRecord]:
    """Yield the changes of partitions that belong to another cluster-wide value: those of topics
    without a value of their own."""
    for _, topic in sorted(image.topics.items()):
        topic_configs = image.configs.get((ConfigResourceType.TOPIC, topic.name), configs.NONE)
        if MIN_ISR not in topic_configs:
            yield from end_eligibility(topic, min_isr)
