"""The key of delegation tokens: made once, changed when someone asks, and never lost silently."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from kube.api_server import ApiServer, Crash, CrashPoint
from kube.model.test_security import MTLS, PLAIN, SCRAM, queue_cluster
from shoal_operator.cluster.token_key import (
    RENEW,
    REPLACE,
    TokenKeyLost,
    TokenKeyReconciler,
    compute_fingerprint,
)
from shoal_operator.model import broker_config, broker_pod, names, node_pools, security

NAME = "main-delegation-token-key"
CONFIG = "delegation.token.secret.key"


class World:
    """An API server, a QueueCluster with TLS, and one operator after another."""

    def __init__(self, *listeners: Any, **spec: Any) -> None:
        self.api = ApiServer(CrashPoint())
        self.cluster = queue_cluster(*(listeners or (MTLS, SCRAM)), **spec)

    def reconcile(self) -> str:
        keys = TokenKeyReconciler(self.api, self.api.store(), "n", "main")
        found = asyncio.run(keys.reconcile(self.cluster))
        if found:
            self.cluster["status"] = {"delegationTokenKey": found}
        return found

    def annotate(self, name: str, value: str) -> None:
        self.cluster["metadata"].setdefault("annotations", {})[name] = value

    def key(self) -> bytes:
        return base64.b64decode(self.api.find("Secret", NAME)["data"]["secret.key"])

    def write(self, data: dict[str, bytes]) -> None:
        """Write the Secret as a user does."""
        found = self.api.find("Secret", NAME)
        found["data"] = {key: base64.b64encode(value).decode() for key, value in data.items()}

    def problem(self) -> tuple[str, str]:
        with pytest.raises(TokenKeyLost) as lost:
            self.reconcile()
        return lost.value.diagnosis.reason, lost.value.diagnosis.message


def test_a_key_is_made_once_and_outlives_the_cluster() -> None:
    world = World()
    shown = world.reconcile()
    key = world.key()
    assert len(key) >= 43, "256 bits in base 64"
    assert shown == compute_fingerprint(key)
    assert world.reconcile() == shown
    # The tokens are in the volumes, which may outlive the cluster too.
    assert "ownerReferences" not in world.api.find("Secret", NAME)["metadata"]
    world.cluster["status"] = {}
    assert world.reconcile() == shown
    other = World()
    other.reconcile()
    assert other.key() != key


def test_an_operator_that_dies_after_a_write_has_made_the_key() -> None:
    world = World()
    world.api.crash_point.last = 1
    with pytest.raises(Crash):
        world.reconcile()
    world.api.crash_point.last = None
    key = world.key()
    assert world.reconcile() == compute_fingerprint(key)


def test_a_new_key_is_made_when_someone_asks_and_once() -> None:
    world = World()
    first = world.reconcile()
    world.annotate(RENEW, "1")
    second = world.reconcile()
    assert second != first
    assert world.reconcile() == second
    world.annotate(RENEW, "2")
    assert world.reconcile() not in (first, second)


def test_a_key_of_the_user_is_followed() -> None:
    world = World()
    world.reconcile()
    world.write({"secret.key": b"mine"})
    assert world.reconcile() == compute_fingerprint(b"mine")
    assert world.key() == b"mine"


def test_a_lost_key_is_replaced_only_with_a_permission_for_it() -> None:
    world = World()
    shown = world.reconcile()
    del world.api.objects["Secret", NAME]
    reason, message = world.problem()
    assert reason == "DelegationTokenKeyLost"
    assert NAME in message
    assert f"{REPLACE}={shown}" in message
    world.annotate(REPLACE, "another")
    assert world.problem()[0] == reason
    assert ("Secret", NAME) not in world.api.objects
    world.annotate(REPLACE, shown)
    new = world.reconcile()
    assert new != shown
    # The permission was for that loss.
    del world.api.objects["Secret", NAME]
    assert world.problem()[0] == reason


@pytest.mark.parametrize("data", [{}, {"secret.key": b" \n"}, {"other": b"x"}])
def test_a_secret_without_a_key_is_reported(data: dict[str, bytes]) -> None:
    world = World()
    world.reconcile()
    world.write(data)
    reason, message = world.problem()
    assert reason == "DelegationTokenKeyInvalid"
    assert "has no secret.key" in message


def test_clusters_without_tls_and_keys_in_the_spec_get_no_secret() -> None:
    own = World(config={CONFIG: "mine"})
    for world in (World(PLAIN), own):
        assert world.reconcile() == ""
        assert world.api.all("Secret") == []
    assert f"{CONFIG}=mine" in broker_config.format_properties(own.cluster).splitlines()
    assert NAME not in [secret for _, secret, _ in security.list_volumes(own.cluster)]


def test_brokers_read_the_key_from_a_file_and_restart_for_another_one() -> None:
    world = World()
    assert (
        f"{CONFIG}=${{directory:/etc/shoal-delegation-token:secret.key}}"
        in broker_config.format_properties(world.cluster).splitlines()
    )

    def template(shown: str) -> Any:
        cluster = security.with_token_key(world.cluster, shown)
        (pool,) = node_pools.list_pools(cluster)
        return broker_pod.build_template(cluster, "i", "Always", pool=pool, openshift=False)

    first, second = template("a"), template("b")
    assert first != second
    for made in (first, second):
        del made["metadata"]["annotations"][names.TEMPLATE]
    notes = [t["metadata"]["annotations"].pop(security.TOKEN_KEY_NOTE) for t in (first, second)]
    assert notes == ["a", "b"]
    assert first == second
    assert not [v for v in first["spec"]["volumes"] if v.get("secret", {}).get("optional")]
