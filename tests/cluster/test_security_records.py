"""Users of a cluster: the first ones, and those that are created while nodes are upgraded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import CALM, ShoalCluster, running
from support.brokers.ports import free_ports, free_run
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.sasl_dialogue import Dialogue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USERS = "SCRAM-SHA-256=[name=first,password=p]\nSCRAM-SHA-512=[name=first,password=p]"
#: Turns a node into one of the last release before the records of security. It runs at its start.
OLDER_RELEASE = """
from shoal.metadata import controller, records
from shoal.server import handlers

for levels in (controller.SUPPORTED_FEATURES, controller.INITIAL_FEATURES):
    levels.pop(controller.SECURITY_FEATURE)
for kind in (10, 11, 18, 19, 22, 26):
    records.LAYOUTS.pop(kind)
for table in (handlers.HANDLERS, *handlers.TABLES.values()):
    for key in (29, 30, 31, 38, 39, 40, 41, 50, 51):
        table.pop(key, None)
"""


def create_user(cluster: ShoalCluster, name: str, *, at: int) -> tuple[int, str | None]:
    """Create a user by a request to one node. Return the error code and the message."""
    row = {
        "name": name,
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"x",
    }
    body = {"deletions": [], "upsertions": [row]}
    (found,) = cluster.ask(at, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
    return found.error_code, found.error_message


def users(cluster: ShoalCluster, *, at: int) -> dict[str, list[tuple[int, int]]]:
    """Return mechanisms and iterations by user, as one node reports them."""
    answer = cluster.ask(at, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
    return {
        row.user: sorted((i.mechanism, i.iterations) for i in row.credential_infos)
        for row in answer.results
    }


def levels(cluster: ShoalCluster, *, at: int) -> dict[str, int]:
    """Return the finalized features."""
    with WireClient(cluster.addresses[at]) as client:
        body = {"client_software_name": "test", "client_software_version": "1"}
        answer = client.call(ApiKey.API_VERSIONS, 4, body)
    return {row.name: row.max_version_level for row in answer.finalized_features}


class Releases:
    """The nodes of a cluster that run the older release."""

    def __init__(self, cluster: ShoalCluster, folder: Path) -> None:
        self._cluster = cluster
        (folder / "sitecustomize.py").write_text(OLDER_RELEASE)
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        self._older = {"PYTHONPATH": path}
        for node in cluster.nodes.values():
            node.environment |= self._older

    def upgrade(self, id: int) -> None:
        """Restart a node with this release."""
        node = self._cluster.nodes[id]
        node.stop()
        node.environment.pop("PYTHONPATH")
        node.start()

    def downgrade(self, id: int) -> None:
        """Let a node that does not run start with the older release."""
        self._cluster.nodes[id].environment |= self._older


@pytest.fixture
def older(tmp_path: Path) -> Iterator[tuple[ShoalCluster, Releases]]:
    """Three nodes of the older release."""
    cluster = ShoalCluster(tmp_path, configs=CALM)
    releases = Releases(cluster, tmp_path)
    with running(cluster):
        yield cluster, releases


def test_brokers_are_upgraded_one_after_the_other(older: tuple[ShoalCluster, Releases]) -> None:
    """Users cannot be created before the last broker is upgraded. After that, without a step."""
    cluster, releases = older
    leader = cluster.controller()
    first, second = (id for id in cluster.brokers if id != leader)
    for id in (first, second):
        releases.upgrade(id)
    assert cluster.controller(asked=first) == leader
    code, message = create_user(cluster, "u", at=first)
    assert code == ErrorCode.unsupported_version
    assert f"The active controller {leader} does not support ALTER_USER" in str(message)
    cluster.nodes[leader].kill9()
    cluster.controller(but=leader)
    for id in (first, second):
        # The old broker is fenced or not, and would fail at the record when it returns.
        code, message = create_user(cluster, "u", at=id)
        assert code == ErrorCode.unsupported_version
        assert f"not supported by these brokers: {leader}. Upgrade" in str(message)
    cluster.nodes[leader].start()
    releases.upgrade(leader)
    assert "shoal.security.version" not in levels(cluster, at=first)
    assert create_user(cluster, "u", at=first) == (0, None)
    for id in cluster.brokers:
        known = eventually(lambda id=id: users(cluster, at=id), what=f"the user at {id}")
        assert known == {"u": [(1, 4096)]}
        assert levels(cluster, at=id)["shoal.security.version"] == 1
    # The older release does not start any more: it reads the records, or registers first.
    cluster.nodes[second].kill9()
    releases.downgrade(second)
    refusal = cluster.nodes[second].refusal()
    assert "newer release" in refusal or "levels that this release does not support" in refusal


@pytest.mark.nightly
def test_controllers_are_upgraded_one_after_the_other(tmp_path: Path) -> None:
    """The controller asks voters that are no brokers, as only brokers register."""
    roles = {1: "controller", 2: "controller", 3: "controller", 4: "broker"}
    cluster = ShoalCluster(tmp_path, 4, configs=CALM, roles=roles)
    releases = Releases(cluster, tmp_path)
    with running(cluster):
        leader = cluster.controller()
        last = next(id for id in (1, 2, 3) if id != leader)
        for id in (1, 2, 3, 4):
            if id not in (leader, last):
                releases.upgrade(id)
        releases.upgrade(leader)
        cluster.nodes[last].kill9()
        cluster.controller(but=last)
        expected = f"not supported by these controllers: {last}. Upgrade"
        for _ in range(2):
            code, message = create_user(cluster, "u", at=4)
            assert code == ErrorCode.unsupported_version
            assert expected in str(message)
            if not cluster.nodes[last].is_running:
                cluster.nodes[last].start()
        releases.upgrade(last)
        # The controller may have to connect again.
        eventually(lambda: create_user(cluster, "u", at=4) == (0, None), what="the user is created")
        assert eventually(lambda: users(cluster, at=4)) == {"u": [(1, 4096)]}


def test_first_users_of_a_cluster(tmp_path: Path) -> None:
    """All controllers get the same users. The first that leads creates them, once."""
    cluster = ShoalCluster(tmp_path, configs=CALM)
    for node in cluster.nodes.values():
        node.environment["SHOAL_ADD_SCRAM"] = USERS
    with running(cluster):
        expected = {"first": [(1, 4096), (2, 4096)]}
        for id in cluster.brokers:
            assert eventually(lambda id=id: users(cluster, at=id)) == expected
        assert levels(cluster, at=1)["shoal.security.version"] == 1
        leader = cluster.controller()
        cluster.nodes[leader].kill9()
        del cluster.nodes[leader].environment["SHOAL_ADD_SCRAM"]
        cluster.controller(but=leader)
        cluster.nodes[leader].start()
        for id in cluster.brokers:
            assert users(cluster, at=id) == expected


def test_a_broker_gets_no_first_users(tmp_path: Path) -> None:
    cluster = ShoalCluster(tmp_path, 2, roles={1: "controller", 2: "broker"})
    cluster.nodes[2].environment["SHOAL_ADD_SCRAM"] = USERS
    assert "Give --add-scram to the controllers" in cluster.nodes[2].refusal()


def test_first_users_of_several_brokers_on_a_host(tmp_path: Path) -> None:
    """The supervisor starts a broker that has ended again, without the users."""
    host = ShoalProcess(tmp_path, flags=("--brokers-per-host=2", f"--add-scram={USERS}"))
    host.bootstrap = f"127.0.0.1:{free_run(3)}"
    try:
        host.start()
        with WireClient(host.bootstrap) as client:
            body = {"users": None}
            answer = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
        assert [row.user for row in answer.results] == ["first"]
        assert host.stop() == 0
        assert "has the data of an existing one" in host.refusal()
    finally:
        host.kill9()


def test_a_token_of_a_forwarded_request_belongs_to_the_client(tmp_path: Path) -> None:
    """The broker checks the connection, and the controller creates the token."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    configs = {
        "delegation.token.secret.key": "secret",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="a";'
        ),
    }
    cluster = ShoalCluster(tmp_path, 2, roles={2: "broker"}, configs=configs)
    cluster.nodes[2].flags = (*cluster.nodes[2].flags, f"--listener=SASL://{address}")
    with running(cluster), Dialogue(address) as dialogue:
        dialogue.handshake()
        dialogue.plain("a", "a")
        body: dict[str, Any] = {
            "owner_principal_type": None,
            "owner_principal_name": None,
            "renewers": [],
            "max_lifetime_ms": -1,
        }
        created = dialogue.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, body)
        assert (created.error_code, created.principal_type, created.principal_name) == (
            0,
            "User",
            "a",
        )
        renewal = {"hmac": created.hmac, "renew_period_ms": -1}
        assert dialogue.call(ApiKey.RENEW_DELEGATION_TOKEN, 2, renewal).error_code == 0
        refused = cluster.ask(2, ApiKey.CREATE_DELEGATION_TOKEN, body)
        assert refused.error_code == ErrorCode.delegation_token_request_not_allowed
