"""The cost of one resource in a cluster of many. It must not grow with their number: the liveness
probe fails if the operator's event loop is busy for a minute, as it was when a namespace with 5,000
users was deleted."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from kube.api_server import ApiServer, CrashPoint
from shoal_operator.kube.store import Store
from shoal_operator.model import names
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings
from support.runs.conditions import eventually_async

STAMP = "2026-01-01T00:00:00Z"
#: Resources whose events are measured.
MEASURED = 20


def user(number: int, *, deleting: bool = False, reason: str = "Reconciled") -> dict[str, Any]:
    meta = {
        "name": f"user-{number:05}",
        "namespace": "n",
        "uid": str(number),
        "resourceVersion": str(number + 1),
        "creationTimestamp": STAMP,
    }
    if deleting:
        meta["deletionTimestamp"] = STAMP
    return {
        "apiVersion": names.API_VERSION,
        "kind": "QueueUser",
        "metadata": meta,
        "spec": {"cluster": "main", "authentication": {"type": "tls"}},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason}]},
    }


def calls_of_events(count: int, *, deleted: bool) -> int:
    """Return the Python calls of the events of `MEASURED` users among `count`."""
    calls = 0

    def count_calls(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def run() -> None:
        kube = ApiServer(CrashPoint())
        for number in range(count):
            kube.objects["QueueUser", f"user-{number:05}"] = user(number)
        operator = Operator(kube, ChartSettings("b:1", "s:1", "role", "u"), ("n",))
        try:
            operator.set_leading(True)
            # The loops of the cluster run once this replica leads.
            await eventually_async(
                lambda: any(t.get_name().startswith("QueueUser of") for t in asyncio.all_tasks())
            )
            sys.setprofile(count_calls)
            for number in range(MEASURED):
                event = operator.on_delete if deleted else operator.on_update
                event(user(number, deleting=True))
            sys.setprofile(None)
        finally:
            sys.setprofile(None)
            await operator.close()

    asyncio.run(run())
    return calls


@pytest.mark.parametrize("deleted", [False, True])
def test_an_event_of_a_user_costs_the_same_among_many(deleted: bool) -> None:
    few, many = (calls_of_events(count, deleted=deleted) for count in (100, 2_000))
    assert few > MEASURED
    assert many < 1.2 * few


def test_the_store_knows_which_resources_are_claimed() -> None:
    store = Store()
    of = ("QueueUser", "n", "main")
    store.put(user(1))
    store.put(user(2, reason="UserClaimed"))
    assert store.list_claimed(*of) == ["user-00002"]
    again = user(2)
    again["metadata"]["resourceVersion"] = "9"
    store.put(again)
    assert store.list_claimed(*of) == []
    store.put(user(3, reason="UserClaimed"))
    store.drop(user(3))
    assert store.list_claimed(*of) == []
    for number in (1, 2):
        assert store.has_any(*of)
        store.drop(user(number))
    assert not store.has_any(*of)
