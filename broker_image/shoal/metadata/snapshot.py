"""An image as records, for a snapshot of the metadata log (KIP-630). Pure.

Replaying the records on an empty image produces the same image, except for its offset and epoch.
They are those of Kafka's image writers. Fields with their default value are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.acls import build_acl_record
from shoal.metadata.controller import build_registration_record
from shoal.metadata.delegation_tokens import build_token_record
from shoal.metadata.records import MetadataRecord
from shoal.metadata.scram_credentials import build_scram_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.metadata.image import MetadataImage, TopicImage


def build_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield the records of each part of the image, in order."""
    for name, level in sorted(image.features.items()):
        yield MetadataRecord("FeatureLevelRecord", {"name": name, "feature_level": level})
    for id in sorted(image.brokers):
        broker = image.brokers[id]
        record = build_registration_record(broker, broker.broker_epoch)
        stopping = {"in_controlled_shutdown": broker.in_controlled_shutdown}
        yield record._replace(fields=record.fields | stopping)
    for name in sorted(image.topics):
        yield from _build_topic_records(image.topics[name])
    for (kind, name), texts in sorted(image.configs.items()):
        for key, value in sorted(texts.items()):
            fields = {"resource_type": kind, "resource_name": name, "name": key, "value": value}
            yield MetadataRecord("ConfigRecord", fields)
    for entity, quotas in sorted(image.client_quotas.items(), key=lambda item: str(item[0])):
        pairs = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
        for key, quota in sorted(quotas.items()):
            fields = {"entity": pairs, "key": key, "value": quota}
            yield MetadataRecord("ClientQuotaRecord", fields)
    if image.next_producer_id:
        fields = {
            "broker_id": -1,
            "broker_epoch": -1,
            "next_producer_id": image.next_producer_id,
        }
        yield MetadataRecord("ProducerIdsRecord", fields)
    yield from _build_security_records(image)


def _build_topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    ids = {"topic_id": topic.topic_id}
    yield MetadataRecord("TopicRecord", ids | {"name": topic.name})
    for index, partition in enumerate(topic.partitions):
        fields = partition._asdict() | ids | {"partition_id": index}
        yield MetadataRecord("PartitionRecord", fields)


def _build_security_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    for id, acl in sorted(image.acls.items()):
        yield build_acl_record(id, acl)
    for (name, mechanism), credential in sorted(image.scram_credentials.items()):
        yield build_scram_record(name, mechanism, credential)
    for _, token in sorted(image.delegation_tokens.items()):
        yield build_token_record(token)
