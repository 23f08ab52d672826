"""The steps of a rebalance against a model of the brokers that reassigns as Kafka does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.brokers.diagnostics import BrokerDisk
from shoal_operator.brokers.rebalance_calls import PartitionReplicas, Placement
from shoal_operator.brokers.replica_moves import RebalanceMove
from shoal_operator.model.quantities import format_size
from shoal_operator.rebalance import status as model
from shoal_operator.rebalance.planner import (
    PlacedPartition,
    RebalanceMode,
    RebalancePlan,
    make_plan,
)
from shoal_operator.rebalance.steps import choose_step, without_begin

if TYPE_CHECKING:
    from collections.abc import Iterable

BROKERS = range(4)


class Model:
    """Partitions whose reassignments end one by one."""

    def __init__(self, partitions: Iterable[PlacedPartition]) -> None:
        self.replicas = {p.name: p.replicas for p in partitions}
        self.targets: dict[str, tuple[int, ...]] = {}
        self.running = set(BROKERS)
        self.behind: dict[str, int] = {}

    def placement(self) -> Placement:
        found = {}
        for name, replicas in self.replicas.items():
            target = self.targets.get(name, replicas)
            union = (*target, *(broker for broker in replicas if broker not in target))
            isr = tuple(broker for broker in replicas if broker != self.behind.get(name))
            found[name] = PartitionReplicas(union, isr, replicas[0])
        targets = {name: frozenset(target) for name, target in self.targets.items()}
        return Placement(found, dict.fromkeys(self.running, ""), targets)

    def begin(self, moves: Iterable[RebalanceMove]) -> None:
        for move in moves:
            assert set(move.added_brokers) <= self.running
            if move.added_brokers:
                self.targets[move.partition] = move.after
            else:
                self.replicas[move.partition] = move.after

    def complete(self, name: str) -> None:
        self.replicas[name] = self.targets.pop(name)


@st.composite
def layouts(draw: st.DrawFn) -> list[PlacedPartition]:
    rows = []
    for number in range(draw(st.integers(1, 16))):
        ids = draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True))
        rows.append(PlacedPartition(f"t-{number}", tuple(ids), draw(st.integers(0, 100))))
    return rows


@given(layouts(), st.integers(1, 3), st.data())
def test_every_move_comes_to_its_end(
    rows: list[PlacedPartition], copies_max: int, data: Any
) -> None:
    moves = make_plan(RebalanceMode.FULL, rows, BROKERS).moves
    world = Model(rows)
    for _ in range(200):
        found = choose_step(moves, world.placement(), BROKERS, copies_max)
        assert len(found.moving) + sum(bool(m.added_brokers) for m in found.begin) <= copies_max
        assert not {m.partition for m in found.begin} & {m.partition for m in found.moving}
        assert not found.unsettled
        assert not found.left_out
        if found.is_last:
            break
        if data.draw(st.booleans(), "an operator dies"):
            continue
        world.begin(found.begin)
        assert world.targets or found.begin, "it does not stop before its end"
        if world.targets:
            world.complete(data.draw(st.sampled_from(sorted(world.targets)), "completes"))
    assert found.is_last
    assert world.replicas == {p.name: p.replicas for p in rows} | {
        move.partition: move.after for move in moves
    }


@given(layouts())
def test_a_cancelled_move_begins_again(rows: list[PlacedPartition]) -> None:
    """Also if the brokers have the replicas in another order then."""
    moves = make_plan(RebalanceMode.FULL, rows, BROKERS).moves
    world = Model(rows)
    world.begin(choose_step(moves, world.placement(), BROKERS, 100).begin)
    for name, target in world.targets.items():
        kept = tuple(b for b in target if b in world.replicas[name])
        gone = tuple(b for b in world.replicas[name] if b not in kept)
        world.replicas[name] = kept + gone
    copies, world.targets = set(world.targets), {}
    assert {
        m.partition for m in choose_step(moves, world.placement(), BROKERS, 100).begin
    } == copies


MOVES = (
    RebalanceMove("t-0", (0,), (1,), 5),
    RebalanceMove("t-1", (0,), (2,), 5),
    RebalanceMove("t-2", (0, 1), (1, 0), 5),
)


def world() -> Model:
    return Model(
        [*(PlacedPartition(m.partition, m.before) for m in MOVES), PlacedPartition("u-0", (2, 3))]
    )


def test_a_broker_that_does_not_run_is_waited_for() -> None:
    some = world()
    some.running = {0, 1, 3}
    found = choose_step(MOVES, some.placement(), BROKERS, 10)
    assert [m.partition for m in found.begin] == ["t-0", "t-2"]
    alone = choose_step(MOVES[1:2], some.placement(), BROKERS, 10)
    assert (alone.begin, alone.waits) == ((), "broker 2 does not run")


def test_no_copy_begins_while_another_partition_catches_up() -> None:
    some = world()
    some.behind = {"u-0": 3}
    found = choose_step(MOVES, some.placement(), BROKERS, 10)
    assert [m.partition for m in found.begin] == ["t-2"], "leadership does not wait"
    assert found.waits == "u-0 is not in sync on broker 3"
    # A replica on a broker that is down does not catch up, and moves may be the remedy.
    some.running = {0, 1, 2}
    assert len(choose_step(MOVES, some.placement(), BROKERS, 10).begin) == 3
    # Nor does a replica count that another reassignment copies.
    some = world()
    some.targets = {"u-0": (2, 3, 0)}
    assert len(choose_step(MOVES, some.placement(), BROKERS, 10).begin) == 3
    some = world()
    some.behind = {"t-0": 0}
    assert len(choose_step(MOVES[1:], some.placement(), BROKERS, 10).begin) == 1


def test_a_partition_of_another_reassignment_is_unsettled_then_left_out() -> None:
    some = world()
    some.targets = {"t-0": (3,)}
    found = choose_step(MOVES, some.placement(), BROKERS, 10)
    assert found.unsettled == MOVES[:1]
    del some.replicas["t-1"]
    found = choose_step(MOVES, some.placement(), BROKERS, 10, {"t-0", "t-1"})
    assert found.left_out == MOVES[:2]


def test_a_broker_that_the_cluster_removes_gets_nothing() -> None:
    found = choose_step(MOVES, world().placement(), [0, 1], 10)
    assert found.left_out == MOVES[1:2]


def test_nothing_begins_in_a_paused_cluster() -> None:
    found = without_begin(choose_step(MOVES, world().placement(), BROKERS, 10), "it is paused")
    assert (found.begin, found.waits, found.is_last) == ((), "it is paused", False)


# The proposal.


def queue_rebalance(**spec: Any) -> Any:
    meta = {"name": "spread", "annotations": {}}
    return {"metadata": meta, "spec": {"cluster": "main", "mode": "Full", **spec}, "status": {}}


def propose(moves: tuple[RebalanceMove, ...], **spec: Any) -> Any:
    found = queue_rebalance(**spec)
    rows = [PlacedPartition(m.partition, m.before, m.size_bytes) for m in moves]
    found["status"] = model.build_proposal(found, rows, moves, BROKERS, "2026-01-01T00:00:00Z")
    return found


def test_the_id_names_the_moves_and_the_spec() -> None:
    first = model.get_proposal_id(propose(MOVES))
    assert first == model.get_proposal_id(propose(MOVES))
    grown = tuple(move._replace(size_bytes=9) for move in MOVES)
    assert first == model.get_proposal_id(propose(grown)), "topics grow all the time"
    assert first != model.get_proposal_id(propose(MOVES[:2]))
    assert first != model.get_proposal_id(propose(MOVES, id="2"))
    assert first != model.get_proposal_id(propose(MOVES, excludedTopics=["u"]))
    assert first == model.get_proposal_id(propose(MOVES, throttle="1M", paused=True))


def test_the_moves_are_read_as_they_were_written() -> None:
    assert model.parse_moves(propose(MOVES)) == list(MOVES)


def test_a_large_proposal_has_a_rest() -> None:
    many = tuple(RebalanceMove(f"t-{n}", (0,), (1,), 1) for n in range(model.MOVES_MAX + 7))
    found = propose(many)
    assert (found["status"]["proposal"]["remaining"], len(model.parse_moves(found))) == (7, 1000)
    found["status"] |= {"progress": {"done": 1000}}
    assert model.make_complete_verdict(found).warning == (
        "MovesLeftOut",
        "7 more partitions would move in another proposal. Set another spec.id for the next "
        "proposal.",
    )


def test_only_the_id_of_the_proposal_approves_it() -> None:
    found = propose(MOVES)
    assert not model.get_approval(found)
    for text in ("true", "yes", model.get_proposal_id(propose(MOVES[:1]))):
        found["metadata"]["annotations"] = {model.APPROVE: text}
        assert model.get_approval(found) != model.get_proposal_id(found)
    assert model.get_approval(queue_rebalance(approval="Automatic")) == "", (
        "there is no proposal yet"
    )


@pytest.mark.parametrize(
    ("usable", "reason"), [(1 << 30, None), (20 << 20, None), (15 << 20, "VolumeTooSmall")]
)
def test_a_volume_has_room_for_what_comes(usable: int, reason: str | None) -> None:
    moves = (RebalanceMove("t-0", (0,), (1,), 10 << 20),)
    disks = [BrokerDisk(1, 1 << 40, usable), BrokerDisk(2, 1 << 40, 0), BrokerDisk(3)]
    verdict = model.find_plan_refusal(RebalancePlan(moves), disks)
    assert (verdict.reason if verdict else None) == reason
    if verdict:
        assert verdict.message.startswith("Broker 1 would get 10 MiB, and its volume has 15 MiB")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (5 << 50, "5.0 PiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert format_size(size) == text
