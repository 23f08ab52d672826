"""Decisions on access control entries. `compat/oracles/test_security_admin.py` compares them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from shoal.metadata import acls, controller, delta, security_feature
from shoal.metadata.acls import AclDeleteResult, AclFilter
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import BrokerImage, MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.feature_levels import SECURITY_FEATURE
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

READ_T = Acl(
    ResourceType.TOPIC,
    "t",
    PatternType.LITERAL,
    "User:a",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
ALL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def follow(image: MetadataImage, decision: ControllerResult) -> MetadataImage:
    return delta.apply(image, decision.records, offset=image.offset + 1, epoch=1)[0]


def test_a_repeated_creation_finds_the_first_one() -> None:
    """Its id follows from its fields, so a retry after a lost answer writes nothing."""
    image = MetadataImage()
    decision = acls.create(image, [READ_T, READ_T])
    assert len(decision.records) == 1
    image = follow(image, decision)
    assert list(image.acls.values()) == [READ_T]
    again = acls.create(image, [READ_T])
    assert (again.records, again.response) == ([], [(ErrorCode.none, "")])


def test_entries_that_differ_have_different_ids() -> None:
    others = [
        READ_T._replace(resource_type=ResourceType.GROUP),
        READ_T._replace(resource_name="tt"),
        READ_T._replace(pattern_type=PatternType.PREFIXED),
        READ_T._replace(principal="User:b"),
        READ_T._replace(host="1.2.3.4"),
        READ_T._replace(operation=Operation.WRITE),
        READ_T._replace(permission=Permission.DENY),
        # Texts that would be equal if they were joined without a separator.
        READ_T._replace(resource_name="tU", principal="ser:a"),
        READ_T._replace(resource_name="t'", principal='User:"a'),
    ]
    assert len({acls.compute_acl_id(acl) for acl in (READ_T, *others)}) == 1 + len(others)


def test_hosts_that_would_match_nobody_are_refused() -> None:
    """A network needs a level of Kafka's metadata.version that this broker does not have."""
    hosts = ("", "10.0.0.0/8", "10.0.0.1")
    entries = [READ_T._replace(host=host) for host in hosts]
    outcomes = acls.create(MetadataImage(), entries).response
    refused = (ErrorCode.invalid_request, ErrorCode.unsupported_version, ErrorCode.none)
    assert tuple(code for code, _ in outcomes) == refused


def test_one_request_changes_at_most_10_000_entries() -> None:
    """An entry that two filters select counts twice, as in Kafka."""
    many = [READ_T._replace(resource_name=f"t{n}") for n in range(10_001)]
    with pytest.raises(ApiError) as refused:
        acls.create(MetadataImage(), many)
    assert refused.value.code == ErrorCode.policy_violation
    most = MetadataImage(acls={acls.compute_acl_id(acl): acl for acl in many[:-1]})
    assert len(acls.delete(most, [ALL]).records) == 10_000
    for image, filters in (
        (most, [ALL, ALL._replace(resource_name="t1")]),
        (follow(most, acls.create(most, many[-1:])), [ALL]),
    ):
        with pytest.raises(ApiError) as refused:
            acls.delete(image, filters)
        assert refused.value.code == ErrorCode.invalid_request


def test_the_delta_has_what_changed() -> None:
    image = follow(MetadataImage(), acls.create(MetadataImage(), [READ_T]))
    deletion = acls.delete(image, [ALL])
    assert deletion.response == [AclDeleteResult(None, [READ_T])]
    _, change = delta.apply(image, deletion.records, offset=5, epoch=1)
    assert (change.acls_added, change.acls_removed) == ((), (READ_T,))
    records = [*deletion.records, *acls.create(MetadataImage(), [READ_T]).records]
    _, change = delta.apply(image, records, offset=5, epoch=1)
    assert (change.acls_added, change.acls_removed) == ((), ())


def test_entries_of_another_origin_may_be_equal() -> None:
    """A log has the ids that its writer chose."""
    records = [acls.build_acl_record(UUID(int=n), READ_T) for n in (1, 2)]
    image = follow(MetadataImage(), ControllerResult(records))
    assert acls.describe(image.acls, ALL) == [READ_T]
    assert not follow(image, acls.delete(image, [ALL])).acls


def broker(id: int, levels: dict[str, tuple[int, int]]) -> BrokerImage:
    return BrokerImage(id, UUID(int=id), 1, (), levels)


def test_the_first_decision_raises_the_level_of_the_feature() -> None:
    image = MetadataImage(brokers={1: broker(1, dict(controller.SUPPORTED_FEATURES))})
    decision = security_feature.with_feature_enabled(image, acls.create(image, [READ_T]))
    image = follow(image, decision)
    assert (image.features, len(image.acls)) == ({SECURITY_FEATURE: 1}, 1)
    other = acls.create(image, [READ_T._replace(host="h")])
    assert security_feature.with_feature_enabled(image, other) is other


def test_older_brokers_keep_the_level() -> None:
    """Fenced brokers too: they would fail at the records when they return."""
    older = {k: v for k, v in controller.SUPPORTED_FEATURES.items() if k != SECURITY_FEATURE}
    brokers = {
        1: broker(1, dict(controller.SUPPORTED_FEATURES)),
        2: broker(2, older)._replace(fenced=True),
        3: broker(3, older),
    }
    image = MetadataImage(brokers=brokers)
    with pytest.raises(ApiError, match="brokers: 2, 3") as refused:
        security_feature.with_feature_enabled(image, acls.create(image, [READ_T]))
    assert refused.value.code is ErrorCode.unsupported_version
    nothing = acls.create(image, [])
    assert security_feature.with_feature_enabled(image, nothing) is nothing
    enabled = replace(image, features={SECURITY_FEATURE: 1})
    decision = acls.create(enabled, [READ_T])
    assert security_feature.with_feature_enabled(enabled, decision) is decision
