"""A member of a share group belongs to the principal that joined.

The broker is one of this file (a second): two principals need two listeners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.ports import free_ports
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.sasl_dialogue import Dialogue

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from support.brokers.servers import ShoalProcess

CONFIGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="a";'
    ),
}
GROUP, MEMBER, TOPIC = "g", "a-member-of-the-tests-x", "t"
ACCEPT = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]


def fetch(topic_id: UUID, epoch: int, batches: Any = ()) -> dict[str, Any]:
    partition = {"partition_index": 0, "acknowledgement_batches": batches}
    return {
        "group_id": GROUP,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
    }


def acquired(client: Dialogue, topic_id: UUID) -> bool:
    (topic,) = client.call(ApiKey.SHARE_FETCH, 2, fetch(topic_id, 0)).responses or [None]
    return topic is not None and bool(topic.partitions[0].acquired_records)


def test_nobody_acts_for_the_member_of_another_principal(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """Member ids are no secret to readers of a group, who acknowledged for others by them."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    broker = start_broker(configs=CONFIGS, flags=(f"--listener=SASL://{address}",))
    with WireClient(broker.bootstrap) as thief, Dialogue(address) as owner:
        topic_id = thief.create_topic(TOPIC)
        config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {"resource_type": 32, "resource_name": GROUP, "configs": [config]}
        thief.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        thief.produce(TOPIC, b"v")
        owner.handshake()
        owner.plain("a", "a")
        member = {"group_id": GROUP, "member_id": MEMBER, "subscribed_topic_names": [TOPIC]}

        def joined() -> bool:
            answer = owner.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, member | {"member_epoch": 0})
            return bool(answer.assignment and answer.assignment.topic_partitions)

        eventually(joined, what="an assignment")
        eventually(lambda: acquired(owner, topic_id), what="the record")
        for epoch in (-1, 0, 1):
            body = member | {"member_epoch": epoch}
            answer = thief.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)
            assert answer.error_code == ErrorCode.unknown_member_id, epoch
        for api, epoch, batches in (
            (ApiKey.SHARE_ACKNOWLEDGE, 1, ACCEPT),
            (ApiKey.SHARE_ACKNOWLEDGE, -1, ()),
            (ApiKey.SHARE_FETCH, 1, ACCEPT),
            (ApiKey.SHARE_FETCH, 0, ()),
        ):
            answer = thief.call(api, 2, fetch(topic_id, epoch, batches))
            assert answer.error_code == ErrorCode.share_session_not_found, (api, epoch)
        answer = owner.call(ApiKey.SHARE_ACKNOWLEDGE, 2, fetch(topic_id, 1, ACCEPT))
        assert answer.error_code == ErrorCode.none
        assert answer.responses[0].partitions[0].error_code == ErrorCode.none
