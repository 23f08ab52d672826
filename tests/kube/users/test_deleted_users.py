"""QueueUsers that are deleted while their QueueCluster is away have no access when it returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import Crash, CrashPoint, resource
from kube.users.test_revoked_users import SPEC, Calls, World, user
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal_operator.kube.kube import KubeError
from shoal_operator.users.reconciler import QueueUserReconciler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RECORD = "main-deleted-users"
LISTENERS = [
    {"name": "tls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}},
    {"name": "scram", "port": 9094, "tls": {}, "authentication": {"type": "scram-sha-512"}},
]
READ = {
    "resource": {"type": "topic", "name": "t", "patternType": "literal"},
    "operations": ["read"],
}


class KeepingCalls(Calls):
    """Brokers that keep permissions and passwords."""

    def __init__(self, crash_point: CrashPoint) -> None:
        super().__init__(crash_point)
        self.entries: set[Any] = set()
        self.passwords: set[str] = set()

    async def list_acls(self) -> list[Any]:
        return sorted(self.entries)

    async def change_acls(self, **changes: Any) -> dict[str, Any]:
        if self.error:
            return {acl.principal: self.error for acl in changes["remove"]}
        self.entries = (self.entries | set(changes["add"])) - set(changes["remove"])
        return {}

    async def list_with_passwords(self, users: Sequence[str]) -> set[str]:
        return self.passwords & set(users)

    async def set_passwords(self, passwords: Mapping[str, str]) -> dict[str, Any]:
        self.passwords |= passwords.keys()
        return {}

    async def delete_passwords(self, users: Sequence[str]) -> dict[str, Any]:
        self.passwords -= set(users)
        return {}


class Away(World):
    """A cluster with the users `leaver` (TLS) and `typist` (a password), which may go away."""

    users: KeepingCalls

    def __init__(self) -> None:
        super().__init__()
        self.users = KeepingCalls(self.api.crash_point)
        self.come()
        self.add(with_acls("leaver", "tls"), with_acls("typist", "scram-sha-512"))
        self.reconcile()
        self.certificate_of_leaver = self.certificate("leaver")

    def go(self) -> None:
        del self.api.objects["QueueCluster", "main"]

    def come(self) -> None:
        spec = SPEC | {"listeners": LISTENERS}
        self.api.add({**resource("QueueCluster", "main", **spec), "status": {}})

    def delete_all(self) -> None:
        for one in self.api.all("QueueUser"):
            self.delete(one["metadata"]["name"])

    def principals(self) -> set[str]:
        """Return the principals with permissions."""
        return {acl.principal for acl in self.users.entries}

    def record(self) -> Mapping[str, str]:
        found = self.api.objects.get(("ConfigMap", RECORD), {})
        return found.get("data") or {}

    def assert_no_access(self) -> None:
        assert not self.principals()
        assert not self.users.passwords
        assert self.is_revoked(self.certificate_of_leaver)


def with_acls(name: str, kind: str) -> dict[str, Any]:
    made = user(name, kind)
    made["spec"]["acls"] = [READ]
    return made


def test_users_that_left_while_the_cluster_was_away_have_no_access() -> None:
    world = Away()
    assert world.principals() == {"User:CN=leaver", "User:typist"}
    assert world.users.passwords == {"typist"}
    world.go()
    world.delete_all()
    world.reconcile()
    assert world.is_gone("leaver")
    assert world.is_gone("typist")
    assert len(world.record()) == 2
    world.come()
    world.reconcile()
    world.assert_no_access()
    assert not world.record()


def test_a_user_that_was_made_again_keeps_its_permissions_and_loses_the_old_certificate() -> None:
    world = Away()
    world.go()
    world.delete_all()
    world.reconcile()
    world.add(with_acls("leaver", "tls"))
    world.come()
    world.reconcile()
    assert world.principals() == {"User:CN=leaver"}
    assert world.is_revoked(world.certificate_of_leaver)
    assert not world.is_revoked(world.certificate("leaver"))


def test_what_the_brokers_refuse_is_tried_again() -> None:
    world = Away()
    world.go()
    world.delete_all()
    world.reconcile()
    world.come()
    world.users.error = KafkaError(ErrorCode.invalid_config, "not now")
    world.reconcile()
    assert world.record()
    world.users.error = None
    world.reconcile()
    world.assert_no_access()


def test_a_record_that_cannot_be_written_holds_the_deletion() -> None:
    world = Away()
    world.go()
    world.delete_all()
    world.api.refused["ConfigMap", RECORD] = KubeError(403, "exceeded quota")
    with pytest.raises(KubeError):
        world.reconcile()
    assert not world.is_gone("leaver")
    # A namespace that is being deleted takes the cluster's volumes with it.
    refused = KubeError(403, "namespace n is being terminated")
    world.api.refused["ConfigMap", RECORD] = refused
    world.reconcile()
    assert world.is_gone("leaver")


def test_an_operator_that_dies_forgets_nobody() -> None:
    for last in range(1, 30):
        world = Away()
        world.go()
        world.delete_all()
        world.api.crash_point.last = world.api.crash_point.changes + last
        try:
            world.reconcile()
            world.come()
            world.reconcile()
        except Crash:
            world.api.crash_point.last = None
            world.come()
            world.reconcile()
            world.reconcile()
            world.assert_no_access()
        else:
            world.assert_no_access()
            break
    assert last > 4


def test_without_an_authority_of_clients_nothing_is_kept() -> None:
    world = Away()
    world.go()
    del world.api.objects["Secret", "main-clients-ca"]
    world.delete_all()
    world.reconcile()
    assert ("ConfigMap", RECORD) not in world.api.objects


def test_a_pass_is_due_while_users_are_recorded_and_a_spoiled_entry_stops_nothing() -> None:
    """Also without any QueueUser."""
    world = Away()
    world.go()
    world.delete_all()
    world.reconcile()

    def users() -> QueueUserReconciler:
        return QueueUserReconciler(world.api, world.api.store(), world, "n", "main")  # type: ignore[arg-type]

    assert users().list_names() == [RECORD]
    world.api.find("ConfigMap", RECORD)["data"]["spoiled"] = "no json"
    world.come()
    assert asyncio.run(users().reconcile([RECORD])) is None
    world.assert_no_access()
