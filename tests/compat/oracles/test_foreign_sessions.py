"""Fetch and share sessions of another user: their ids give no access, as in Kafka 4.4.0.

Clients differ by their addresses. The owner may read the topic in the group, the thief only the
group, and the stranger nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Operation, ResourceType
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.security import permissions
from support.security.permissions import ADMIN, entry, everything, grant
from wire.test_authorization import fetch, share_fetch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

OWNER, THIEF, STRANGER = "127.0.4.1", "127.0.4.2", "127.0.4.3"
NAME, MEMBER = "owned", "a-member-of-the-tests-x"
CONFIGS = permissions.CONFIGS | {"group.share.min.record.lock.duration.ms": "1000"}
REFUSED, HIDDEN = ErrorCode.topic_authorization_failed, ErrorCode.group_authorization_failed


@pytest.fixture(
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.nightly, pytest.mark.java])]
)
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kafka":
        kafka = KafkaProcess(tmp_path, configs=CONFIGS).start()
        yield kafka.bootstrap
        kafka.kill9()
        return
    shoal = ShoalProcess(tmp_path, configs=CONFIGS).start()
    yield shoal.bootstrap
    assert shoal.stop() == 0, "\n".join(shoal.log[-40:])


def prepare(admin: WireClient) -> UUID:
    """Create the topic and the entries. Return the topic's id."""
    grant(admin, everything(ADMIN))
    topic_id: UUID = admin.create_topic(NAME)
    eventually(lambda: admin.produce(NAME, b"secret").error_code == 0, what="the record")
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    body = {"resources": [{"resource_type": 32, "resource_name": NAME, "configs": [config]}]}
    admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    entries = [
        entry(OWNER, Operation.READ, topic, NAME),
        *(entry(host, Operation.READ, group, NAME) for host in (OWNER, THIEF)),
        entry("127.0.4.9", Operation.ALL, group, NAME),
    ]
    grant(admin, entries)
    find = {"key_type": 0, "coordinator_keys": [NAME]}
    eventually(
        lambda: not admin.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators[0].error_code,
        what="a coordinator",
    )
    eventually(lambda: permissions.count(admin) == len(entries) + len(everything(ADMIN)))
    return topic_id


def seen(answer: Any) -> tuple[ErrorCode, set[ErrorCode], bool]:
    """Return the code of a response, those of its partitions, and whether it has records."""
    rows = [p for topic in answer.responses for p in topic.partitions]
    records = any(getattr(row, "records", None) for row in rows)
    return ErrorCode(answer.error_code), {ErrorCode(row.error_code) for row in rows}, records


def test_a_fetch_session_of_another_user(bootstrap: str) -> None:
    with (
        WireClient(bootstrap) as admin,
        WireClient(bootstrap, source=OWNER) as owner,
        WireClient(bootstrap, source=THIEF) as thief,
    ):
        prepare(admin)

        def ask(client: WireClient, topic: str, **fields: Any) -> Any:
            return client.call(ApiKey.FETCH, 12, fetch(topic, max_wait_ms=0, **fields))

        opened = eventually(
            lambda: found if seen(found := ask(owner, NAME, session_epoch=0))[2] else None,
            what="the owner's record",
        )
        session = {"session_id": opened.session_id, "topics": []}
        assert opened.session_id
        assert seen(ask(thief, "", **session, session_epoch=1)) == (0, {REFUSED}, False)
        # As in Kafka, the request has advanced the session. The owner opens another one.
        lost = ask(owner, "", **session, session_epoch=1)
        assert seen(lost) == (ErrorCode.invalid_fetch_session_epoch, set(), False)
        assert seen(ask(owner, NAME, session_epoch=0)) == (0, {0}, True)


def test_a_share_session_of_another_user(bootstrap: str) -> None:
    with (
        WireClient(bootstrap) as admin,
        WireClient(bootstrap, source=OWNER) as owner,
        WireClient(bootstrap, source=THIEF) as thief,
        WireClient(bootstrap, source=STRANGER) as stranger,
    ):
        topic_id = prepare(admin)
        body = {
            "group_id": NAME,
            "member_id": MEMBER,
            "member_epoch": 0,
            "subscribed_topic_names": [NAME],
        }

        def is_assigned() -> bool:
            answer = owner.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)
            if not answer.error_code:
                body.update(member_epoch=answer.member_epoch)
            return answer.assignment is not None and bool(answer.assignment.topic_partitions)

        def ask(client: WireClient, epoch: int, **fields: Any) -> Any:
            sent = share_fetch(NAME, topic_id, epoch, max_wait_ms=500, **fields)
            return client.call(ApiKey.SHARE_FETCH, 2, sent)

        eventually(is_assigned, what="an assignment")
        eventually(lambda: seen(ask(owner, 0))[2], what="the owner's record")
        assert seen(ask(thief, 1, topics=[])) == (0, {REFUSED}, False)
        batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
        sent = share_fetch(NAME, topic_id, 2, batches=[batch])
        accepted = thief.call(ApiKey.SHARE_ACKNOWLEDGE, 2, sent)
        assert seen(accepted) == (0, {REFUSED}, False)
        assert seen(ask(stranger, 3, topics=[])) == (HIDDEN, set(), False)
        # The owner still holds the record.
        sent = share_fetch(NAME, topic_id, 3, batches=[batch])
        assert seen(owner.call(ApiKey.SHARE_ACKNOWLEDGE, 2, sent)) == (0, {0}, False)
