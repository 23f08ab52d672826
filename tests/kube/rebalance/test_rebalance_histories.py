"""Histories of QueueRebalances: users, brokers and operators do anything, in any order.

The brokers are a model. It checks each request of the operator: replicas move only as an approved
proposal says, and throttles are set only for a resource whose status and finalizer say so.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kube.api_server import STAMP, ApiServer, Crash, CrashPoint, resource
from shoal.client.errors import Unreachable
from shoal_operator.brokers.diagnostics import BrokerDisk
from shoal_operator.brokers.rebalance_calls import PartitionReplicas, Placement
from shoal_operator.kube.store import Store
from shoal_operator.model import names
from shoal_operator.rebalance import reconciler
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.brokers.replica_moves import RebalanceMove

Manifest = dict[str, Any]
BROKERS = (0, 1, 2, 3)
NAME = "spread"
KEY = ("QueueRebalance", NAME)
APPROVE = "shoal.dev/approve"


class ModelCordons:
    """The cordons of brokers, with the interface of `CordonCalls`."""

    def __init__(self, brokers: ModelBrokers) -> None:
        self._brokers = brokers
        self._cordoned: set[int] = set()

    async def describe(self, ids: Iterable[int]) -> dict[int, str]:
        answering = self._brokers.running if self._brokers.reachable else set()
        return {id: "*" if id in self._cordoned else "" for id in sorted(ids) if id in answering}

    async def cordon(self, ids: Iterable[int]) -> bool:
        self._cordoned |= set(ids)
        return True

    async def uncordon(self, ids: Iterable[int]) -> None:
        if not self._brokers.reachable:
            raise Unreachable("no broker runs")
        self._cordoned -= set(ids)


class ModelBrokers:
    """Brokers that answer at once, and reassign when `complete` is called."""

    def __init__(self, kube: ApiServer, crash_point: CrashPoint) -> None:
        self._kube, self._crash_point = kube, crash_point
        first: list[tuple[int, ...]] = [(0, 1), (0,), (1, 0)]
        self.replicas = {f"t{n % 2}-{n}": first[n % 3] for n in range(8)}
        self.targets: dict[str, tuple[int, ...]] = {}
        self.leaders = {name: replicas[0] for name, replicas in self.replicas.items()}
        self.running, self.reachable = set(BROKERS), True
        self.throttled: set[str] = set()
        self.cordons = ModelCordons(self)
        #: Moves of proposals, by id, that any status has shown.
        self.shown: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
        self.approved: set[str] = set()

    @property
    def rebalances(self) -> ModelBrokers:
        if not self.reachable:
            raise Unreachable("no broker runs")
        return self

    def union(self, name: str) -> tuple[int, ...]:
        target, have = self.targets.get(name, ()), self.replicas[name]
        return (*target, *(broker for broker in have if broker not in target))

    def complete(self, name: str) -> None:
        self.replicas[name] = self.targets.pop(name)
        if self.leaders[name] not in self.replicas[name]:
            self.leaders[name] = self.replicas[name][0]

    # The interface of `RebalanceCalls`.

    async def describe_placement(self) -> Placement:
        found = {
            name: PartitionReplicas(self.union(name), have, self.leaders[name])
            for name, have in self.replicas.items()
        }
        # A partition that is being reassigned has its coming replicas out of sync.
        targets = {name: frozenset(target) for name, target in self.targets.items()}
        return Placement(found, dict.fromkeys(self.running, ""), targets)

    async def describe_volumes(
        self, brokers: Iterable[int]
    ) -> tuple[dict[str, int], list[BrokerDisk]]:
        sizes = {name: 100 * int(name.rpartition("-")[2]) for name in self.replicas}
        return sizes, [BrokerDisk(broker, 1 << 40, 1 << 40) for broker in brokers]

    async def count_copied_bytes(
        self, moves: Iterable[RebalanceMove], running: Iterable[int]
    ) -> int:
        return len(list(moves)) + len(list(running))

    async def reassign(self, replicas: Mapping[str, tuple[int, ...] | None]) -> None:
        for name, target in replicas.items():
            if name not in self.replicas:
                continue
            if target is None:
                self._cancel(name)
            elif set(target) == set(self.replicas[name]):
                self._check(name, target)
                self.replicas[name] = target
                self.targets.pop(name, None)
            else:
                self._check(name, target)
                assert set(target) - set(self.replicas[name]) <= self.running
                self.targets[name] = target
        if replicas:
            self._crash_point.count()

    def _cancel(self, name: str) -> None:
        """Keep the replicas, those that would have been removed last, as the brokers do."""
        target = self.targets.pop(name, ())
        have = self.replicas[name]
        kept = tuple(b for b in target if b in have)
        self.replicas[name] = kept + tuple(b for b in have if b not in kept)

    def _check(self, name: str, target: tuple[int, ...]) -> None:
        moves = set().union(*(self.shown[id] for id in self.approved))
        assert (name, target) in moves, f"{name} moves to {target}, which nobody has approved"

    async def cancel(self, partitions: Iterable[str]) -> None:
        await self.reassign(dict.fromkeys(partitions))

    async def elect(self, partitions: Iterable[str]) -> None:
        for name in partitions:
            if self.replicas[name][0] in self.running:
                self.leaders[name] = self.replicas[name][0]

    async def throttle(
        self,
        rate: int,
        moves: Iterable[RebalanceMove],
        brokers: Iterable[int],
        topics: Iterable[str],
    ) -> None:
        found = self._kube.find(*KEY)
        assert rate > 0
        assert found["status"]["throttle"]
        assert found["metadata"]["finalizers"] == [names.FINALIZER]
        copied = {move.partition.rpartition("-")[0] for move in moves if move.added_brokers}
        self.throttled |= {*(copied & set(topics)), *map(str, brokers)}
        self._crash_point.count()

    async def unthrottle(self, topics: Iterable[str], brokers: Iterable[int]) -> None:
        self.throttled -= {*topics, *map(str, brokers)}
        self.throttled -= {topic for topic in ("t0", "t1") if topic not in self._topics()}
        # A rate without a list has no effect.
        if not self.throttled & self._topics():
            self.throttled = set()
        self._crash_point.count()

    def _topics(self) -> set[str]:
        return {name.rpartition("-")[0] for name in self.replicas}


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # The metadata of the model is never old.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(reconciler, "UNSETTLED_SECONDS", 0.0)
        self.crash_point = CrashPoint()
        self.kube = ApiServer(self.crash_point)
        self.brokers = ModelBrokers(self.kube, self.crash_point)
        self.kube.add(resource("QueueCluster", "main", replicas=len(BROKERS)))
        self.restart()
        self.create()

    def create(self) -> None:
        spec = {"cluster": "main", "mode": "Full", "concurrentPartitionMovements": 2}
        self.kube.add(resource("QueueRebalance", NAME, **spec))

    @property
    def found(self) -> Manifest | None:
        return self.kube.objects.get(KEY)

    def change(self, **spec: Any) -> None:
        if self.found is not None:
            kept = {k: v for k, v in (self.found["spec"] | spec).items() if v is not None}
            self.kube.add(resource("QueueRebalance", NAME, **kept))

    def is_reconciled(self) -> bool:
        assert self.found is not None
        ready = next(c for c in self.found["status"]["conditions"] if c["type"] == "Ready")
        is_seen = ready.get("observedGeneration") == self.found["metadata"]["generation"]
        return is_seen and bool(ready["reason"] == "Reconciled")

    # The operator.

    @rule()
    def restart(self) -> None:
        """Another operator takes over."""
        self.store = Store()
        brokers: Any = self.brokers
        self.operator = QueueRebalanceReconciler(self.kube, self.store, brokers, "n", "main")

    @rule(crash_after=st.none() | st.integers(1, 6))
    def reconcile(self, crash_after: int | None = None) -> None:
        """One pass, in which the operator may die after one of its changes."""
        for known in list(self.store.iterate("QueueRebalance")):
            if self.found is None or known["metadata"]["uid"] != self.found["metadata"]["uid"]:
                self.store.drop(known)
        for one in self.kube.objects.values():
            self.store.put(copy.deepcopy(one))
        self.crash_point.last = crash_after and self.crash_point.changes + crash_after
        try:
            asyncio.run(self.one_pass())
        except Crash:
            self.crash_point.last = None
            self.restart()
        self.crash_point.last = None
        proposal = ((self.found or {}).get("status") or {}).get("proposal")
        if proposal:
            self.brokers.shown[proposal["id"]] = {
                (move["partition"], tuple(move[side]))
                for move in proposal["moves"]
                for side in ("from", "to")
            }
            if self.found and self.found["spec"].get("approval") == "Automatic":
                self.brokers.approved.add(proposal["id"])

    async def one_pass(self) -> None:
        await self.operator.reconcile([])

    # Users.

    @rule(right=st.booleans())
    def approve(self, right: bool) -> None:
        proposal = ((self.found or {}).get("status") or {}).get("proposal")
        if self.found is None or not proposal:
            return
        id = proposal["id"] if right else "other"
        self.found["metadata"]["annotations"] = {APPROVE: id}
        if right:
            self.brokers.approved.add(id)

    @rule(
        spec=st.sampled_from(
            [
                {"paused": True},
                {"paused": False},
                {"id": "2"},
                {"throttle": "10Mi"},
                {"throttle": "20Mi"},
                {"throttle": None},
                {"mode": "Leadership", "brokers": None},
                {"mode": "Full", "brokers": None},
                {"mode": "RemoveBrokers", "brokers": [0]},
                {"mode": "AddBrokers", "brokers": [3]},
            ]
        )
    )
    def edit(self, spec: Manifest) -> None:
        self.change(**spec)

    @rule()
    def delete(self) -> None:
        if self.found is None:
            self.create()
        elif self.found["metadata"].get("finalizers"):
            self.found["metadata"]["deletionTimestamp"] = STAMP
        else:
            del self.kube.objects[KEY]

    # Brokers.

    @precondition(lambda self: self.brokers.targets)
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        self.brokers.complete(data.draw(st.sampled_from(sorted(self.brokers.targets))))

    @rule(broker=st.none() | st.sampled_from(BROKERS), deletes=st.booleans())
    def disturb(self, broker: int | None, deletes: bool) -> None:
        """A broker stops, or all of them do not answer, or a topic is deleted."""
        if broker is not None:
            self.brokers.running -= {broker}
        elif deletes:
            for name in [name for name in self.brokers.replicas if name.startswith("t1-")]:
                del self.brokers.replicas[name]
                self.brokers.targets.pop(name, None)
        else:
            self.brokers.reachable = False

    @rule(passes=st.integers(1, 4))
    def recover(self, passes: int) -> None:
        """All brokers run, and the operator has time."""
        self.brokers.running, self.brokers.reachable = set(BROKERS), True
        for _ in range(passes):
            self.reconcile()

    @rule()
    def approve_and_begin(self) -> None:
        self.change(paused=False)
        self.recover(1)
        self.approve(right=True)
        self.recover(2)

    @invariant()
    def replicas_are_kept(self) -> None:
        for name, replicas in self.brokers.replicas.items():
            number = 1 if int(name.rpartition("-")[2]) % 3 == 1 else 2
            assert len(set(replicas)) == len(replicas) == number

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.patch.undo()

    def end(self) -> None:
        """Whatever has happened: with brokers that answer and an approval, it comes to its end."""
        self.brokers.running, self.brokers.reachable = set(BROKERS), True
        if self.found is not None and self.found["metadata"].get("deletionTimestamp"):
            self.reconcile()
            assert self.found is None
            assert not self.brokers.targets
        if self.found is None:
            assert not self.brokers.throttled
            self.create()
        self.change(paused=False)
        for _ in range(60):
            self.reconcile()
            if self.is_reconciled():
                break
            self.approve(right=True)
            for name in list(self.brokers.targets):
                self.brokers.complete(name)
        assert self.is_reconciled(), self.found
        self.reconcile()
        assert not self.brokers.throttled
        assert self.found is not None
        assert not self.found["status"].get("throttle")
        # A broker that has lost its replicas is cordoned until the resource is changed or deleted.
        is_cordoning = bool(self.found["status"].get("cordonedBrokers"))
        assert bool(self.found["metadata"].get("finalizers")) == is_cordoning
        assert not is_cordoning or self.found["spec"]["mode"] == "RemoveBrokers"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
