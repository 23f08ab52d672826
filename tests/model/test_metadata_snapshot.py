"""A snapshot of any image restores it, and `diff_images` lists all differences of two images.

Records of every kind in `records.LAYOUTS` are drawn column by column. So these tests fail if the
snapshot omits a kind or a column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.metadata import delta
from shoal.metadata.acls import build_acl_record
from shoal.metadata.delegation_tokens import build_token_record
from shoal.metadata.image import BrokerImage, MetadataImage, PartitionImage
from shoal.metadata.records import LAYOUTS, MetadataRecord, decode, encode
from shoal.metadata.scram_credentials import build_scram_record
from shoal.metadata.snapshot import build_records
from shoal.protocol.schema import FIXED, FieldSpec, parse_versions
from shoal.security.acls import Acl, Operation, PatternType, Permission
from shoal.security.acls import ResourceType as AclType
from shoal.security.delegation_tokens import DelegationToken
from shoal.security.scram import ScramCredential
from support.runs.example_counts import scale_examples

KINDS = {message.name: message for message in LAYOUTS.values()}
NAMES = st.sampled_from(["a", "b", "c"])
#: Fields of an image that no subscriber of deltas uses.
NOT_IN_DELTAS = {"scope", "offset", "epoch", "next_producer_id"}
_INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def values(column: FieldSpec) -> st.SearchStrategy[Any]:
    """Draw any value of a column's type."""
    kind = column.type
    if not isinstance(kind, str):
        return st.lists(st.fixed_dictionaries({c.name: values(c) for c in kind}), max_size=2)
    found: st.SearchStrategy[Any]
    if kind.startswith("[]"):
        found = st.lists(values(FieldSpec(column.name, kind[2:])), max_size=3)
    elif kind in _INTS:
        bits = _INTS[kind]
        found = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    else:
        scalars: dict[str, st.SearchStrategy[Any]] = {
            "bool": st.booleans(),
            "uint16": st.integers(0, 65_535),
            "float64": st.floats(allow_nan=False),
            "uuid": st.uuids(),
            "string": st.text(max_size=3),
            "bytes": st.binary(max_size=3),
        }
        found = scalars[kind]
    return st.none() | found if parse_versions(column.nullable) else found


def drawn(draw: Any, kind: str, **given: Any) -> MetadataRecord:
    """Draw a record of that kind with any values except those `given`, encoded and decoded."""
    columns = KINDS[kind].columns
    assert given.keys() <= {c.name for c in columns}
    found = {c.name: given[c.name] if c.name in given else draw(values(c)) for c in columns}
    return decode(encode(MetadataRecord(kind, found)))


#: Values that make a record of a kind valid after `image`; None if there are none.
Valid = Callable[[Any, MetadataImage], Mapping[str, Any] | None]


def _some(draw: Any, choice: Iterable[Any], column: str) -> Mapping[str, Any] | None:
    choice = sorted(choice)
    return {column: draw(st.sampled_from(choice))} if choice else None


def _new_topic(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    return _some(draw, {"a", "b", "c"} - image.topics.keys(), "name")


def _topic(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    return _some(draw, image.topics_by_id, "topic_id")


def _next_partition(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    found = _topic(draw, image)
    if found is None:
        return None
    return {**found, "partition_id": len(image.topics_by_id[found["topic_id"]].partitions)}


def _partition(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    topics = [id for id, t in image.topics_by_id.items() if t.partitions]
    found = _some(draw, topics, "topic_id")
    if found is None:
        return None
    last = len(image.topics_by_id[found["topic_id"]].partitions) - 1
    return {**found, "partition_id": draw(st.integers(0, last))}


def _broker(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    return _some(draw, image.brokers, "broker_id")


def _acl(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    return _some(draw, image.acls, "id")


def _scram_credential(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    if not image.scram_credentials:
        return None
    name, mechanism = draw(st.sampled_from(sorted(image.scram_credentials)))
    return {"name": name, "mechanism": mechanism}


def _token(draw: Any, image: MetadataImage) -> Mapping[str, Any] | None:
    return _some(draw, image.delegation_tokens, "token_id")


VALID: Mapping[str, Valid] = {
    "RegisterBrokerRecord": lambda draw, _: {"broker_id": draw(st.integers(0, 3))},
    "UnregisterBrokerRecord": _broker,
    "TopicRecord": _new_topic,
    "PartitionRecord": _next_partition,
    "ConfigRecord": lambda draw, _: {"resource_name": draw(NAMES), "name": draw(NAMES)},
    "PartitionChangeRecord": _partition,
    "RemoveTopicRecord": _topic,
    "FeatureLevelRecord": lambda draw, _: {"name": draw(NAMES)},
    "ClientQuotaRecord": lambda draw, _: {"key": draw(NAMES)},
    "ProducerIdsRecord": lambda _draw, _image: {},
    "BrokerRegistrationChangeRecord": _broker,
    "AccessControlEntryRecord": lambda draw, _: {"id": UUID(int=draw(st.integers(0, 3)))},
    "RemoveAccessControlEntryRecord": _acl,
    "UserScramCredentialRecord": lambda draw, _: {"name": draw(NAMES)},
    "RemoveUserScramCredentialRecord": _scram_credential,
    "DelegationTokenRecord": lambda draw, _: {"token_id": draw(NAMES)},
    "RemoveDelegationTokenRecord": _token,
    "NoOpRecord": lambda _draw, _image: {},
}


def applied(image: MetadataImage, records: Iterable[MetadataRecord], **at: int) -> MetadataImage:
    return delta.apply(image, records, **({"offset": image.offset + 1, "epoch": 1} | at))[0]


@st.composite
def images(draw: Any, start: MetadataImage | None = None) -> MetadataImage:
    """Draw an image from random records."""
    image = start or MetadataImage()
    for kind in draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=25)):
        given = VALID[kind](draw, image)
        if given is not None:
            image = applied(image, [drawn(draw, kind, **given)])
    return image


@st.composite
def pairs(draw: Any) -> tuple[MetadataImage, MetadataImage]:
    before = draw(images())
    return before, draw(images(before))


def restored(image: MetadataImage, *, without: str = "") -> MetadataImage:
    """Return the image that its snapshot restores, optionally without the records of one kind."""
    records = [decode(encode(r)) for r in build_records(image) if r.kind != without]
    return applied(
        MetadataImage(scope=image.scope), records, offset=image.offset, epoch=image.epoch
    )


@given(image=images())
@settings(max_examples=scale_examples(100))
def test_a_snapshot_restores_the_image(image: MetadataImage) -> None:
    assert restored(image) == image


@given(pair=pairs())
@settings(max_examples=scale_examples(60))
def test_a_difference_leads_from_one_image_to_the_other(
    pair: tuple[MetadataImage, MetadataImage],
) -> None:
    before, after = pair
    assert patched(before, after, delta.diff_images(before, after)) == after
    assert patched(after, before, delta.diff_images(after, before)) == before


def patched(
    before: MetadataImage, after: MetadataImage, change: delta.MetadataDelta
) -> MetadataImage:
    """Return `before` with the parts that `change` names taken from `after`, as subscribers do."""
    gone = {t.topic_id for t in change.deleted}
    by_id = {id: t for id, t in before.topics_by_id.items() if id not in gone}
    for old, new in change.changed:
        assert by_id[old.topic_id] == old != new
        by_id[new.topic_id] = new
    by_id |= {t.topic_id: t for t in change.created}
    found: dict[str, Any] = {"topics_by_id": by_id, "topics": {t.name: t for t in by_id.values()}}
    for field in fields(MetadataImage):
        if not field.compare or field.name in found:
            continue
        following = getattr(after, field.name)
        if field.name == "acls":
            # The delta has no ids, which subscribers do not use.
            entries = Counter(before.acls.values())
            entries.subtract(change.acls_removed)
            entries.update(change.acls_added)
            assert +entries == Counter(following.values())
            assert min(entries.values(), default=0) >= 0
        elif field.name not in NOT_IN_DELTAS:
            named = getattr(change, field.name)
            following = dict(getattr(before, field.name))
            for key in named:
                following.pop(key, None)
            following |= {k: v for k, v in getattr(after, field.name).items() if k in named}
        found[field.name] = following
    return replace(before, **found)


def full_image() -> MetadataImage:
    """Return an image in which no field has its default."""
    topic_id, directory_id = UUID(int=1), UUID(int=2)
    listener = {"name": "L", "host": "h", "port": 1, "security_protocol": 3}
    supported = {"name": "f", "min_supported_version": 1, "max_supported_version": 2}
    records = [
        MetadataRecord("FeatureLevelRecord", {"name": "f", "feature_level": 1}),
        MetadataRecord(
            "RegisterBrokerRecord",
            {
                "broker_id": 1,
                "incarnation_id": topic_id,
                "broker_epoch": 5,
                "end_points": [listener],
                "features": [supported],
                "rack": "r",
                "fenced": False,
                "in_controlled_shutdown": True,
                "log_dirs": [directory_id],
                "cordoned_log_dirs": [directory_id],
            },
        ),
        MetadataRecord("TopicRecord", {"name": "t", "topic_id": topic_id}),
        MetadataRecord(
            "PartitionRecord",
            {
                "partition_id": 0,
                "topic_id": topic_id,
                "replicas": [1],
                "isr": [1],
                "removing_replicas": [2],
                "adding_replicas": [3],
                "leader": 1,
                "leader_recovery_state": 1,
                "leader_epoch": 4,
                "partition_epoch": 5,
                "directories": [directory_id],
                "eligible_leader_replicas": [6],
                "last_known_elr": [7],
            },
        ),
        MetadataRecord(
            "ConfigRecord",
            {"resource_type": 32, "resource_name": "g", "name": "c", "value": "v"},
        ),
        MetadataRecord(
            "ClientQuotaRecord",
            {"entity": [{"entity_type": "user", "entity_name": None}], "key": "k", "value": 1.0},
        ),
        MetadataRecord("ProducerIdsRecord", {"broker_id": 1, "next_producer_id": 1000}),
        build_acl_record(
            UUID(int=3),
            Acl(
                AclType.TOPIC,
                "t",
                PatternType.LITERAL,
                "User:a",
                "*",
                Operation.READ,
                Permission.ALLOW,
            ),
        ),
        build_scram_record("u", 2, ScramCredential(b"s", b"k", b"v", 4096)),
        build_token_record(DelegationToken("id", "User:o", "User:r", ("User:w",), 1, 3, 2)),
    ]
    return applied(MetadataImage(), [decode(encode(r)) for r in records])


def test_the_full_image_leaves_no_field_at_its_default() -> None:
    """A field that is added to the image must be added to `full_image`, and so to the snapshot."""
    image, empty = full_image(), MetadataImage()
    for field in fields(MetadataImage):
        if field.compare and not field.name.startswith("_") and field.name != "scope":
            assert getattr(image, field.name) != getattr(empty, field.name), field.name
    (broker,), (topic,) = image.brokers.values(), image.topics.values()
    for made, kind in ((broker, BrokerImage), (topic.partitions[0], PartitionImage)):
        for name, default in kind._field_defaults.items():
            assert getattr(made, name) != default, name
    assert restored(image) == image


def test_every_kind_of_record_is_covered() -> None:
    assert VALID.keys() == KINDS.keys()
    assert all(
        isinstance(c.type, tuple) or c.type.removeprefix("[]") in {*FIXED, "string", "bytes"}
        for message in LAYOUTS.values()
        for c in message.columns
    )


@pytest.mark.parametrize("kind", sorted({r.kind for r in build_records(full_image())}))
def test_a_snapshot_without_one_kind_of_record_is_found_out(kind: str) -> None:
    image = full_image()
    if kind == "TopicRecord":  # Its partitions would name a missing topic.
        with pytest.raises(AssertionError):
            restored(image, without=kind)
    else:
        assert restored(image, without=kind) != image
