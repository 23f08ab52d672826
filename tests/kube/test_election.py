"""Leader election: one replica leads, and a standby finds out whether another replica leads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conditions import eventually_async
from kube.api_server import ApiServer, CrashPoint
from shoal_operator import election
from shoal_operator.election import Election
from shoal_operator.kube import KubeError


class Connection(ApiServer):
    """One replica's connection to a shared API server, which can break."""

    def __init__(self, shared: ApiServer) -> None:
        super().__init__(CrashPoint())
        self.objects, self.numbers = shared.objects, shared.numbers
        self.broken = False

    async def _call(self, *arguments: Any, **options: Any) -> Any:
        if self.broken:
            raise KubeError(0, "the API server did not answer")
        return await super()._call(*arguments, **options)


class Replica:
    """One replica of the operator, limited to the election."""

    def __init__(self, shared: ApiServer, identity: str) -> None:
        self.connection = Connection(shared)
        self.election = Election(self.connection, "shoal-operator", "n", identity)
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


def test_a_standby_finds_out_whether_another_replica_leads() -> None:
    async def scenario() -> None:
        shared = ApiServer(CrashPoint())
        first = Replica(shared, "first")
        await eventually_async(lambda: first.election.leading)
        second = Replica(shared, "second")
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
