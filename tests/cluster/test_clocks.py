"""Brokers whose clocks are ten minutes apart: logins, tokens and rights.

A token has a lifetime, which begins by the controller's clock and ends by that of each broker, as
in Kafka. All else does not depend on clocks. Certificates of the operator begin an hour early
(`unit/operator/test_certificates.py`).
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Operation, ResourceType
from support.brokers.clusters import ShoalCluster
from support.brokers.ports import free_ports
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.permissions import CONFIGS, entry, grant, withdraw
from support.security.sasl_dialogue import Dialogue
from support.security.scram_users import add_scram_user
from unit.security.test_jwt_tokens import jwk, private_key, token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds by which the wall clock of each broker is wrong. The first one is the controller.
OFFSETS_S = {1: -600, 2: 0, 3: 600}
#: Sets the clock of a broker. It runs at its start.
WRONG_CLOCK = """
import time

right_ns = time.time_ns
time.time_ns = lambda: right_ns() + {offset_s} * 10**9
time.time = lambda: time.time_ns() / 1e9
"""
USER, PASSWORD = "alice", "secret"
DAY_S, BRIEF_S = 86_400, 300


class Clocks(ShoalCluster):
    """A cluster whose listener SASL serves clients that log in. `logins` has its addresses."""

    def __init__(self, folder: Path) -> None:
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"keys": [jwk(private_key())]}))
        self.logins = {id: f"127.0.0.1:{port}" for id, port in enumerate(free_ports(3), 1)}
        configs = {
            **CONFIGS,
            "delegation.token.secret.key": "key of the tokens",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT"
            ),
            "sasl.oauthbearer.clock.skew.seconds": "900",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
            "shoal.oauthbearer.allowed.urls": f"file://{keys}",
            "listener.name.sasl.sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
        }
        roles = {1: "broker,controller", 2: "broker", 3: "broker"}
        super().__init__(folder, configs=configs, roles=roles)
        for id, node in self.nodes.items():
            own = folder / f"clock-{id}"
            own.mkdir()
            (own / "sitecustomize.py").write_text(WRONG_CLOCK.format(offset_s=OFFSETS_S[id]))
            path = os.pathsep.join(filter(None, (str(own), os.environ.get("PYTHONPATH"))))
            node.environment["PYTHONPATH"] = path
            node.flags = (*node.flags, f"--listener=SASL://{self.logins[id]}")

    def log_in(
        self, id: int, user: str = USER, password: str = PASSWORD, extensions: str = ""
    ) -> Dialogue:
        """Log in at a broker by SCRAM. The last note of the dialogue is the result."""
        dialogue = Dialogue(self.logins[id])
        dialogue.handshake("SCRAM-SHA-256")
        dialogue.scram_login(user, password, extensions=extensions)
        return dialogue

    def log_in_by_token(self, id: int, created: Any) -> tuple[str, float]:
        """Log in by a delegation token. Return the error code, and the seconds of the session."""
        password = base64.b64encode(created.hmac).decode()
        with self.log_in(id, created.token_id, password, extensions=",tokenauth=true") as dialogue:
            code, _, lifetime_s, _ = dialogue.notes[-1]
        return code, lifetime_s


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocks]:
    found = Clocks(tmp_path_factory.mktemp("clocks"))
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def user(cluster: Clocks) -> str:
    """A user that all brokers have."""
    add_scram_user(cluster.addresses[1], USER, PASSWORD)

    def is_known(id: int) -> bool:
        with cluster.log_in(id) as dialogue:
            return bool(dialogue.notes[-1][0] == "none")

    for id in cluster.logins:
        eventually(lambda id=id: is_known(id), what=f"a login at broker {id}")
    return USER


def test_the_clocks_differ(cluster: Clocks) -> None:
    """The time of a batch is that of its leader's clock."""
    for id in cluster.brokers:
        name = f"times-{id}"
        new = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [id]}],
            "configs": [{"name": "message.timestamp.type", "value": "LogAppendTime"}],
        }
        with WireClient(cluster.addresses[id]) as client:
            body = {"topics": [new], "timeout_ms": 30_000}
            (row,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
            assert not row.error_code, row
            cluster.on_all(name, cluster.brokers)
            appended = client.produce(name, b"value").log_append_time
        assert appended.timestamp() - time.time() == pytest.approx(OFFSETS_S[id], abs=60)


@pytest.mark.usefixtures("user")
def test_delegation_tokens(cluster: Clocks) -> None:
    """A token of a day works everywhere. One of five minutes has ended where the clock is ahead of
    the controller's by more."""
    ahead_s = {id: s - OFFSETS_S[1] for id, s in OFFSETS_S.items()}
    body: dict[str, Any] = {
        "renewers": [],
        "owner_principal_type": None,
        "owner_principal_name": None,
    }
    with cluster.log_in(2) as dialogue:
        brief, lasting = (
            dialogue.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, body | {"max_lifetime_ms": lifetime})
            for lifetime in (BRIEF_S * 1000, -1)
        )
    assert (brief.error_code, lasting.error_code) == (0, 0)
    for id in cluster.logins:
        code, lifetime_s = eventually(
            lambda id=id: (
                found if (found := cluster.log_in_by_token(id, lasting))[0] == "none" else None
            ),
            what=f"the token at broker {id}",
        )
        assert lifetime_s == pytest.approx(DAY_S - ahead_s[id], abs=60)
        code, _ = cluster.log_in_by_token(id, brief)
        ended = ahead_s[id] >= BRIEF_S
        assert code == ("sasl_authentication_failed" if ended else "none"), (id, ahead_s)


def test_bearer_tokens_within_the_skew(cluster: Clocks) -> None:
    """sasl.oauthbearer.clock.skew.seconds covers the distance of a broker's clock."""
    now_s = int(time.time())
    bearer = token(iat=now_s, exp=now_s + BRIEF_S)
    message = f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()
    for address in cluster.logins.values():
        with Dialogue(address) as dialogue:
            dialogue.handshake("OAUTHBEARER")
            refusal = dialogue.token(message)
            assert (dialogue.notes[-1][0], refusal) == ("none", b"")


def test_rights_change_everywhere(cluster: Clocks) -> None:
    host = "127.0.3.9"
    body = {"topics": [{"name": "none"}], "allow_auto_topic_creation": False}
    denied = entry(host, Operation.DESCRIBE, ResourceType.TOPIC, "none")
    others = denied._replace(host="127.0.3.10")

    def codes() -> set[ErrorCode]:
        found = set()
        for address in cluster.addresses.values():
            with WireClient(address, source=host) as guest:
                found.add(guest.call(ApiKey.METADATA, 12, body).topics[0].error_code)
        return found

    with WireClient(cluster.addresses[1]) as admin:
        grant(admin, [denied, others])
        permitted = {ErrorCode.unknown_topic_or_partition}
        eventually(lambda: codes() == permitted, what="the permission")
        withdraw(admin, [denied])
        refused = {ErrorCode.topic_authorization_failed}
        eventually(lambda: codes() == refused, what="the refusal")
