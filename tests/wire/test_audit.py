"""The audit log of a broker: a line for each refusal and each change, which no input can forge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Operation, ResourceType
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.permissions import ADMIN, CONFIGS, entry, everything, grant, withdraw

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

GUEST = "127.0.1.7"
FORGED = "t\nevent=security changed"


def lines(broker: ShoalProcess, event: str, *parts: str) -> list[str]:
    """Return the lines of the log that have this event and all the parts."""
    return [line for line in broker.log if event in line and all(part in line for part in parts)]


def test_refusals_and_changes_are_logged(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs=CONFIGS)
    acl = entry(GUEST, Operation.READ, ResourceType.TOPIC, "orders")
    with WireClient(broker.bootstrap) as admin, WireClient(broker.bootstrap, source=GUEST) as guest:
        grant(admin, everything(ADMIN))
        grant(admin, [acl])
        withdraw(admin, [acl])
        admin.create_topic("orders")
        answer = guest.produce("orders", b"v")
        assert answer.error_code == ErrorCode.topic_authorization_failed
        body = {"topics": [{"name": FORGED}], "allow_auto_topic_creation": False}
        guest.call(ApiKey.METADATA, 8, body)
        guest.call(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None})

        def refused() -> list[str]:
            return lines(broker, "request refused", "PRODUCE", "WRITE", "orders", GUEST)

        def changed() -> list[str]:
            return lines(broker, "security changed", "READ", "orders", ADMIN)

        eventually(lambda: len(refused()) == 1, what="one line for the refusal")
        eventually(lambda: len(changed()) == 2, what="a line for each change")
        assert "CREATE_ACLS" in changed()[0]
        assert "DELETE_ACLS" in changed()[1]
        eventually(lambda: lines(broker, "request refused", "METADATA"), what="the other refusal")
        idempotent = "INIT_PRODUCER_ID", "IDEMPOTENT_WRITE", GUEST
        eventually(lambda: lines(broker, "request refused", *idempotent), what="the last refusal")
        assert not any(line.startswith("event=") for line in broker.log)


def test_each_request_for_metadata_that_is_refused_is_logged(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """Also beside a topic that the client may describe, whose cached description is sent again."""
    broker = start_broker(configs=CONFIGS)
    with WireClient(broker.bootstrap) as admin, WireClient(broker.bootstrap, source=GUEST) as guest:
        grant(admin, everything(ADMIN))
        admin.create_topic("wide", 120)
        grant(admin, [entry(GUEST, Operation.DESCRIBE, ResourceType.TOPIC, "wide")])
        asked = [{"name": "wide"}, {"name": "hidden"}]
        body = {"topics": asked, "allow_auto_topic_creation": False}
        for _ in range(2):
            found = {t.name: t.error_code for t in guest.call(ApiKey.METADATA, 8, body).topics}
            assert found == {
                "wide": ErrorCode.none,
                "hidden": ErrorCode.topic_authorization_failed,
            }
        eventually(
            lambda: len(lines(broker, "request refused", "METADATA", "hidden", GUEST)) == 2,
            what="a line for each refusal",
        )
