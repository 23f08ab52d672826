"""A feature at level 0 is off: requests that need it are refused, each with a response of its API,
as in Kafka's `isShareGroupProtocolEnabled` and `isConsumerGroupProtocolEnabled`."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

OFF = ErrorCode.unsupported_version
#: Requests that need `share.version`, with top-level errors.
SHARE: dict[ApiKey, dict[str, Any]] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "subscribed_topic_names": ["t"],
    },
    ApiKey.SHARE_FETCH: {"group_id": "g", "member_id": str(uuid.uuid4()), "batch_size": 1},
    ApiKey.SHARE_ACKNOWLEDGE: {
        "group_id": "g",
        "member_id": str(uuid.uuid4()),
        "share_session_epoch": 1,
    },
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: {"group_id": "g"},
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: {"group_id": "g"},
}
CONSUMER: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {
        "group_id": "c",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    },
}
STREAMS: dict[str, Any] = {
    "group_id": "s",
    "member_id": "m",
    "member_epoch": 1,
    **dict.fromkeys(
        (
            "active_tasks",
            "standby_tasks",
            "warmup_tasks",
            "client_tags",
            "task_offsets",
            "task_end_offsets",
        )
    ),
}


def set_level(wire: WireClient, feature: str, level: int) -> None:
    unsafe = {"feature": feature, "max_version_level": level, "upgrade_type": 1 if level else 2}
    answer = wire.call(ApiKey.UPDATE_FEATURES, 1, {"timeout": 30_000, "feature_updates": [unsafe]})
    assert answer.error_code is ErrorCode.none, answer


def codes(wire: WireClient) -> set[ErrorCode]:
    """Return the errors of all the requests."""
    found = {wire.call(api, 1 if api < 90 else 0, body).error_code for api, body in SHARE.items()}
    found |= {wire.call(api, 1, body).error_code for api, body in CONSUMER.items()}
    found.add(wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, STREAMS).error_code)
    for api, version in (
        (ApiKey.SHARE_GROUP_DESCRIBE, 1),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 1),
        (ApiKey.STREAMS_GROUP_DESCRIBE, 0),
    ):
        (group,) = wire.call(api, version, {"group_ids": ["g"]}).groups
        assert group.group_id == "g"
        found.add(group.error_code)
    asked = {"groups": [{"group_id": "g", "topics": None}]}
    (group,) = wire.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, asked).groups
    assert group.group_id == "g"
    return found | {group.error_code}


def test_requests_of_disabled_features_are_refused(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    with WireClient(start_broker().bootstrap) as wire:
        wire.create_topic("t")
        assert OFF not in codes(wire)
        set_level(wire, "share.version", 0)
        set_level(wire, "group.version", 0)
        set_level(wire, "streams.version", 0)
        assert codes(wire) == {OFF}
        set_level(wire, "share.version", 1)
        set_level(wire, "group.version", 1)
        set_level(wire, "streams.version", 1)
        assert OFF not in codes(wire)
