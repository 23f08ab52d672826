"""Certificates of deleted QueueUsers: what is revoked, for how long, and by which operator.

`cluster/test_operator_security.py` has the same with real brokers.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, Crash, CrashPoint, resource
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.security.revocations import Revocation
from shoal_operator.model import certificates, names
from shoal_operator.users import revoked_users
from shoal_operator.users.reconciler import QueueUserReconciler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shoal_operator.model.certificates import KeyPair

NOW = datetime.datetime(2026, 6, 1, 12, 0, 0, 500_000, tzinfo=datetime.UTC)
DAY, HOUR, SECOND = (datetime.timedelta(**{unit: 1}) for unit in ("days", "hours", "seconds"))
WHOLE = NOW.replace(microsecond=0)


def authority(now: datetime.datetime = NOW, days: int = 365) -> KeyPair:
    return certificates.make_ca("clients", now=now, validity_days=days)


def user(name: str, kind: str = "tls") -> Any:
    made = resource("QueueUser", name, cluster="main", authentication={"type": kind})
    made["metadata"]["finalizers"] = [names.FINALIZER]
    return made


# What is revoked.


def deleted(
    kind: str = "tls", *, expires: datetime.datetime | None = None, days: int = 90
) -> Revocation:
    return revoked_users.make_revocation(
        user("eve", kind),
        now=NOW,
        validity=days * DAY,
        trusted=[authority().certificate],
        expires=expires,
    )


def test_certificates_made_before_are_revoked_and_later_ones_are_not() -> None:
    entry, ca = deleted(), authority()
    for now, revoked in ((NOW - 30 * DAY, True), (NOW, True)):
        made = certificates.issue(ca, "eve", now=now, validity_days=90)
        assert entry.is_revoked(certificates.get_validity_start(made.certificate)) is revoked
    again = certificates.issue(
        ca, "eve", now=revoked_users.get_first_valid_time(entry), validity_days=90
    )
    assert not entry.is_revoked(certificates.get_validity_start(again.certificate))
    assert revoked_users.get_first_valid_time(entry) - NOW <= SECOND
    assert entry.subject == certificates.format_subject(again.certificate)


@pytest.mark.parametrize(
    ("days", "own_days", "until"),
    [(90, 0, NOW + 90 * DAY), (90, 200, WHOLE + 200 * DAY), (4000, 0, WHOLE + 365 * DAY)],
)
def test_an_entry_lasts_as_long_as_a_certificate(
    days: int, own_days: int, until: datetime.datetime
) -> None:
    """As a new one, or the user's own, which may be from before a change of the spec; at most as
    long as the authority."""
    ca, expires = authority(), None
    if own_days:
        own = certificates.issue(ca, "eve", now=NOW, validity_days=own_days).certificate
        expires = certificates.get_expiry(own)
    assert deleted(expires=expires, days=days).valid_until == until


def test_certificates_from_elsewhere_are_all_revoked() -> None:
    entry = deleted("tls-external")
    assert entry.is_revoked(NOW + 300 * DAY)
    assert entry.valid_until == WHOLE + 365 * DAY


def test_entries_that_are_not_needed() -> None:
    old, ca = authority(NOW - 300 * DAY), authority(NOW + DAY)
    entry, other = deleted(), Revocation("CN=zoe", WHOLE, WHOLE + DAY)
    have = {one.subject: one for one in (entry, other)}

    def gone(now: datetime.datetime, *trusted: KeyPair, users: Iterable[Any] = ()) -> list[str]:
        pems = [one.certificate for one in trusted]
        return [
            one.subject for one in revoked_users.list_removable(have, users, now=now, trusted=pems)
        ]

    assert gone(NOW, old) == []
    assert gone(NOW + 2 * DAY, old) == ["CN=zoe"]
    assert gone(NOW + 91 * DAY, old) == ["CN=eve", "CN=zoe"]
    # A renewal ends with the last certificate of the previous authority.
    assert gone(NOW, old, ca) == []
    assert gone(NOW, ca) == ["CN=eve", "CN=zoe"]
    # Its owner says that a certificate from elsewhere is good. One of type tls gets a new one.
    assert gone(NOW, old, users=[user("eve", "tls-external")]) == ["CN=eve"]
    assert gone(NOW, old, users=[user("eve"), user("zoe", "scram-sha-512")]) == []


# The operator.


class Calls:
    """Brokers that keep a list, and nothing else of users (`user_calls.UserCalls`)."""

    def __init__(self, crash_point: CrashPoint) -> None:
        self._crash_point = crash_point
        self.list: dict[str, Revocation] = {}
        self.error: KafkaError | None = None

    async def list_revocations(self) -> dict[str, Revocation]:
        return dict(self.list)

    async def change_revocations(
        self, *, add: Collection[Revocation], remove: Collection[Revocation]
    ) -> None:
        self._crash_point.check()
        if self.error:
            raise self.error
        texts = {**{str(one): one for one in self.list.values()}, **{str(one): one for one in add}}
        left = [texts[text] for text in texts.keys() - {str(one) for one in remove}]
        self.list = {one.subject: one for one in sorted(left)}
        self._crash_point.count()

    async def list_acls(self) -> list[Any]:
        return []

    async def describe_quotas(self) -> dict[str, Any]:
        return {}

    async def change_acls(self, **_: Any) -> dict[str, Any]:
        return {}

    async def change_quotas(self, _: Any) -> dict[str, Any]:
        return {}

    async def list_with_passwords(self, _: Any) -> set[str]:
        return set()

    async def set_passwords(self, _: Mapping[str, str]) -> dict[str, Any]:
        return {}

    async def delete_passwords(self, _: Any) -> dict[str, Any]:
        return {}


class World:
    """An API server with a secured QueueCluster and its users."""

    def __init__(self) -> None:
        crash_point = CrashPoint()
        self.api, self.users = ApiServer(crash_point), Calls(crash_point)
        self.api.add({**resource("QueueCluster", "main", **SPEC), "status": {}})
        made = authority(datetime.datetime.now(datetime.UTC))
        self.secret("main-clients-ca", {"ca.crt": made.certificate, "ca.key": made.key})
        for kind in ("clients", "cluster"):
            self.secret(f"main-{kind}-ca-cert", {"ca.crt": made.certificate})

    def secret(self, name: str, data: dict[str, bytes]) -> None:
        text = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self.api.add({**resource("Secret", name), "apiVersion": "v1", "data": text})

    def add(self, *users: dict[str, Any]) -> None:
        for one in users:
            self.api.add(one)

    def delete(self, name: str) -> None:
        self.api.find("QueueUser", name)["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"

    def reconcile(self) -> float | None:
        """Reconcile all users once, as an operator that has just started; return the seconds until
        the next pass."""
        found = QueueUserReconciler(self.api, self.api.store(), self, "n", "main")  # type: ignore[arg-type]
        pause_s = asyncio.run(found.reconcile(found.list_names()))
        for one in self.api.all("QueueUser"):
            meta = one["metadata"]
            if meta.get("deletionTimestamp") and not meta.get("finalizers"):
                del self.api.objects["QueueUser", meta["name"]]
                self.api.objects.pop(("Secret", meta["name"]), None)
        return pause_s

    def certificate(self, name: str) -> bytes:
        return base64.b64decode(self.api.find("Secret", name)["data"]["user.crt"])

    def is_revoked(self, pem: bytes) -> bool:
        entry = self.users.list.get(certificates.format_subject(pem))
        return entry is not None and entry.is_revoked(certificates.get_validity_start(pem))

    def is_gone(self, name: str) -> bool:
        return ("QueueUser", name) not in self.api.objects


SPEC = {
    "replicas": 1,
    "listeners": [{"name": "tls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}}],
}


def test_a_deleted_user_is_revoked_until_it_is_made_again() -> None:
    world = World()
    world.add(user("eve"), user("bob"))
    world.reconcile()
    old, bob = world.certificate("eve"), world.certificate("bob")
    world.delete("eve")
    world.reconcile()
    assert world.is_gone("eve")
    assert world.is_revoked(old)
    assert not world.is_revoked(bob)
    # Also in the second in which it was deleted.
    world.add(user("eve"))
    world.reconcile()
    assert not world.is_revoked(world.certificate("eve"))
    assert world.is_revoked(old)
    before = world.certificate("eve")
    world.reconcile()
    assert world.certificate("eve") == before


def test_a_secret_from_before_the_deletion_is_made_again() -> None:
    """For example restored from a backup together with its QueueUser."""
    world = World()
    world.add(user("eve"))
    world.reconcile()
    backup = world.api.find("Secret", "eve")
    world.delete("eve")
    world.reconcile()
    world.add(user("eve"))
    world.api.objects["Secret", "eve"] = backup
    world.reconcile()
    assert not world.is_revoked(world.certificate("eve"))


def test_an_operator_that_dies_does_not_forget() -> None:
    """The QueueUser stays until the brokers have the entry."""
    for last in range(1, 10):
        world = World()
        world.add(user("eve"))
        world.reconcile()
        old = world.certificate("eve")
        world.delete("eve")
        world.api.crash_point.last = world.api.crash_point.changes + last
        try:
            world.reconcile()
        except Crash:
            world.api.crash_point.last = None
            assert world.is_revoked(old) or not world.is_gone("eve")
            world.reconcile()
            assert world.is_revoked(old)
        else:
            break
    assert last > 2


def test_many_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full list holds deletions up, with the remedy. It empties as certificates expire."""
    monkeypatch.setattr(revoked_users, "ENTRIES_MAX", 3)
    world = World()
    world.add(*(user(f"u{number}") for number in range(5)))
    world.reconcile()
    for number in range(5):
        world.delete(f"u{number}")
    world.reconcile()
    assert sorted(world.users.list) == ["CN=u0", "CN=u1", "CN=u2"]
    assert [world.is_gone(f"u{number}") for number in range(5)] == [True] * 3 + [False] * 2
    waiting = world.api.find("QueueUser", "u3")["status"]["conditions"]
    assert any("Renew the clients CA" in one["message"] for one in waiting)
    expired = datetime.datetime.now(datetime.UTC) - DAY
    world.users.list = {
        subject: one._replace(valid_until=expired) for subject, one in world.users.list.items()
    }
    world.reconcile()
    world.reconcile()
    assert sorted(world.users.list) == ["CN=u3", "CN=u4"]
    assert world.is_gone("u4")


def test_brokers_of_an_older_release() -> None:
    """They have no such list. Deleting works as before."""
    world = World()
    world.add(user("eve"))
    world.reconcile()
    world.users.error = KafkaError(ErrorCode.invalid_config, "Unknown broker config name")
    world.delete("eve")
    world.reconcile()
    assert world.is_gone("eve")


def test_a_user_without_certificates_is_not_in_the_list() -> None:
    assert revoked_users.get_subject(user("eve", "scram-sha-512")) == ""
    assert revoked_users.get_subject(user("eve", "oauth")) == ""


class OpenCalls(Calls):
    """Brokers that do not authorize requests."""

    async def list_acls(self) -> list[Any]:
        raise KafkaError(ErrorCode.security_disabled)


def test_users_wait_for_brokers_that_do_not_authorize_requests_yet() -> None:
    """While a roll switches authorization on. Nothing tells the users of the end of the roll, so
    they look again soon; a cluster that is not to authorize requests is theirs to change."""
    world = World()
    world.users = OpenCalls(world.api.crash_point)
    reader = user("reader")
    acl = {"resource": {"type": "topic", "name": "jobs"}, "operations": ["Read"]}
    reader["spec"]["acls"] = [acl]
    world.add(reader)

    def get_reason() -> str:
        conditions = world.api.find("QueueUser", "reader")["status"]["conditions"]
        return next(str(c["reason"]) for c in conditions if c["type"] == "Ready")

    assert (world.reconcile(), get_reason()) == (5.0, "ClusterNotSecured")
    world.api.find("QueueCluster", "main")["spec"]["authorization"] = {"type": "none"}
    assert (world.reconcile(), get_reason()) == (None, "NotAuthorized")
    world.api.find("QueueCluster", "main")["spec"]["authorization"] = {"type": "simple"}
    world.users = Calls(world.api.crash_point)
    assert (world.reconcile(), get_reason()) == (None, "Reconciled")


def test_a_user_deleted_while_a_roll_switches_authorization_on_keeps_nothing() -> None:
    """Its entries may be in force at the brokers that have restarted, so it stays until all can
    remove them."""
    world = World()
    world.add(user("leaver"))
    world.reconcile()
    world.delete("leaver")
    world.users = OpenCalls(world.api.crash_point)
    world.reconcile()
    assert world.api.find("QueueUser", "leaver")["metadata"]["finalizers"]
    world.users = Calls(world.api.crash_point)
    world.reconcile()
    assert ("QueueUser", "leaver") not in world.api.objects
