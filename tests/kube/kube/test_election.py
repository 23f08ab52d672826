"""Leader election: one replica leads, and a standby finds out whether another replica leads."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest
from kube.api_server import ApiServer, CrashPoint
from shoal_operator.kube import election
from shoal_operator.kube.election import LeaderElection
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.scope import HELD_SECONDS, WATCHES, OperatorScope
from support.runs.conditions import eventually_async


class Connection(ApiServer):
    """One replica's connection to a shared API server, which can break."""

    def __init__(self, shared: ApiServer) -> None:
        super().__init__(CrashPoint())
        self.objects, self.numbers = shared.objects, shared.numbers
        self.broken = False
        self.error: Exception = KubeError(0, "the API server did not answer")

    async def _call(self, *arguments: Any, **options: Any) -> Any:
        if self.broken:
            raise self.error
        return await super()._call(*arguments, **options)


class Replica:
    """One replica of the operator, limited to the election."""

    def __init__(self, shared: ApiServer, identity: str, *watched: str, of: str = "") -> None:
        """`of` is the installation, which has a namespace and a Lease of this name. `watched` are
        the namespaces that it watches, all by default."""
        self.connection = Connection(shared)
        self.scope = OperatorScope(self.connection, of, watched) if of else None
        place = (of, of) if of else ("shoal-operator", "n")
        self.election = LeaderElection(self.connection, *place, identity, self.scope)
        self.changes: list[bool] = []
        self.election.subscribe(self.changes.append)
        self._task = asyncio.create_task(self.election.run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than this machine stalls: a leader steps down if it cannot renew in time.
    monkeypatch.setattr(election, "DURATION_SECONDS", 2.0)
    monkeypatch.setattr(election, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(election, "RETRY_SECONDS", 0.02)


@pytest.mark.parametrize("error", [KubeError(500, "etcd is away"), LookupError("a defect")])
def test_a_standby_finds_out_whether_another_replica_leads(error: Exception) -> None:
    """No failure ends the election."""

    async def scenario() -> None:
        shared = ApiServer(CrashPoint())
        first = Replica(shared, "first")
        await eventually_async(lambda: first.election.leading)
        second = Replica(shared, "second")
        first.connection.error = second.connection.error = error
        await eventually_async(lambda: second.election.another_leads)
        assert (first.election.another_leads, second.election.leading) == (False, False)
        second.connection.broken = True
        await eventually_async(lambda: not second.election.another_leads)
        second.connection.broken = False
        await eventually_async(lambda: second.election.another_leads)
        # The leader loses the API server: it steps down before the Lease expires.
        first.connection.broken = True
        await eventually_async(lambda: second.election.leading)
        assert not first.election.leading
        assert not second.election.another_leads
        assert (first.changes, second.changes) == ([True, False], [True])
        first.connection.broken = False
        await eventually_async(lambda: first.election.another_leads)
        await second.stop()
        assert second.changes == [True, False]
        await eventually_async(lambda: first.election.leading)
        assert not first.election.another_leads
        await first.stop()

    asyncio.run(scenario())


def test_an_expired_lease_is_no_leader() -> None:
    """The leader has crashed: its Lease remains, and a standby must not repeat its status."""

    async def scenario() -> None:
        shared = ApiServer(CrashPoint())
        crashed = Replica(shared, "crashed")
        await eventually_async(lambda: crashed.election.leading)
        crashed.connection.broken = True
        await crashed.stop()
        second = Replica(shared, "second")
        seen = set()

        def leads() -> bool:
            seen.add(second.election.another_leads)
            return second.election.leading

        await eventually_async(leads)
        assert seen == {False}
        await second.stop()

    asyncio.run(scenario())


# Operators of two installations.


async def settle(*replicas: Replica) -> None:
    """Wait until each replica has found out whether it may act."""
    for one in replicas:
        scope = one.scope
        assert scope is not None
        await eventually_async(lambda one=one, scope=scope: one.election.leading or scope.problem)


def test_a_second_operator_of_the_same_namespaces_refuses_until_the_first_is_gone() -> None:
    async def scenario() -> None:
        shared = ApiServer(CrashPoint())
        first = Replica(shared, "pod-1", of="one")
        await settle(first)
        second = Replica(shared, "pod-2", of="two")
        await settle(second)
        assert (first.election.leading, second.election.leading) == (True, False)
        assert second.scope is not None
        assert "in namespace 'one' acts on all namespaces" in second.scope.problem
        assert "disjoint watchNamespaces" in second.scope.problem
        (event,) = shared.all("Event")
        assert (event["reason"], event["type"]) == ("AnotherOperator", "Warning")
        assert event["metadata"]["namespace"] == "two"
        # A replica of the first one is no rival.
        standby = Replica(shared, "pod-3", of="one")
        await first.stop()
        await eventually_async(lambda: standby.election.leading or second.election.leading)
        await standby.stop()
        await eventually_async(lambda: second.election.leading)
        assert second.scope.problem == ""
        await second.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (("a",), ("b",), True),
        (("a", "b"), ("c", "d"), True),
        (("a", "b"), ("b", "c"), False),
        (("a",), (), False),
        ((), ("a",), False),
        ((), (), False),
    ],
)
def test_operators_of_disjoint_namespaces_act_side_by_side(
    one: tuple[str, ...], two: tuple[str, ...], both: bool
) -> None:
    async def scenario() -> None:
        shared = ApiServer(CrashPoint())
        replicas = [Replica(shared, "pod-1", *one, of="one")]
        await settle(*replicas)
        replicas.append(Replica(shared, "pod-2", *two, of="two"))
        await settle(*replicas)
        assert [r.election.leading for r in replicas] == [True, both]
        for replica in replicas:
            await replica.stop()

    asyncio.run(scenario())


def lease(of: str, acquired: str = "", *, age_s: float = 0.0, watches: str = "*") -> dict[str, Any]:
    renewed = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age_s)
    meta: dict[str, Any] = {"name": of, "namespace": of}
    meta["labels"] = {"app.kubernetes.io/name": "shoal-operator"}
    meta["annotations"] = {WATCHES: watches} if watches else {}
    spec = {
        "holderIdentity": f"pod-of-{of}",
        "renewTime": renewed.isoformat(),
        "acquireTime": acquired,
    }
    api_version = "coordination.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "Lease", "metadata": meta, "spec": spec}


def test_of_two_that_begin_at_the_same_time_one_acts() -> None:
    """Both have looked before either had written its Lease."""
    for first, second in (("2026-01-01T00:00:01", "2026-01-01T00:00:02"), ("2026", "2026")):
        shared = ApiServer(CrashPoint())
        shared.add(lease("one", first))
        shared.add(lease("two", second))
        found = [
            asyncio.run(OperatorScope(shared, of, ()).has_rival(since=since))
            for of, since in (("one", first), ("two", second))
        ]
        assert found == [False, True]


@pytest.mark.parametrize(
    "other", [lease("two", age_s=HELD_SECONDS + 1), lease("two", watches=""), None]
)
def test_what_does_not_act_is_no_rival(other: dict[str, Any] | None) -> None:
    """An operator that crashed, or one of an earlier release, or roles that do not let us look."""
    shared = ApiServer(CrashPoint())
    if other is None:
        shared.add(lease("two"))
        shared.denied["Lease", ""] = "leases is forbidden"
    else:
        shared.add(other)
    assert not asyncio.run(OperatorScope(shared, "one", ()).has_rival())
