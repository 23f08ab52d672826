"""The next step of a rebalance, from what the brokers report. Pure.

Every step starts from the observed placement, so an operator that continues needs only the moves of
the proposal. A move begins if its partition still has the replicas of the proposal. It is left out
if the partition has others, or does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from shoal_operator.brokers.rebalance_calls import Placement
    from shoal_operator.brokers.replica_moves import RebalanceMove

#: Changes of leadership in one step; they copy nothing.
LEADERSHIP_MAX = 200


@dataclass(frozen=True, slots=True)
class RebalanceStep:
    """Moves by their state; `begin` are those of `waiting` that begin now.

    `unsettled` moves have a partition with other replicas, or without any. That may be because a
    broker has not seen the newest metadata. `waits` is why no copy begins, empty if one may.
    """

    done: tuple[RebalanceMove, ...] = ()
    moving: tuple[RebalanceMove, ...] = ()
    waiting: tuple[RebalanceMove, ...] = ()
    left_out: tuple[RebalanceMove, ...] = ()
    unsettled: tuple[RebalanceMove, ...] = ()
    begin: tuple[RebalanceMove, ...] = ()
    waits: str = ""

    @property
    def is_last(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self.moving and not self.waiting and not self.unsettled


def choose_step(
    moves: Iterable[RebalanceMove],
    placement: Placement,
    brokers: Collection[int],
    copies_max: int,
    given_up: Collection[str] = (),
) -> RebalanceStep:
    """Return the next step. `brokers` may get replicas, and at most `copies_max` partitions are
    copied at once. `given_up` are partitions that have been unsettled for long.
    """
    by_state: dict[str, list[RebalanceMove]] = {}
    for move in moves:
        by_state.setdefault(_get_state(move, placement, brokers, given_up), []).append(move)
    waiting, moving = by_state.get("waiting", []), by_state.get("moving", [])
    changes = [move for move in waiting if not move.added_brokers][:LEADERSHIP_MAX]
    copies, waits = _choose_copies(waiting, moving, placement, copies_max)
    return RebalanceStep(
        done=tuple(by_state.get("done", ())),
        moving=tuple(moving),
        waiting=tuple(waiting),
        left_out=tuple(by_state.get("left out", ())),
        unsettled=tuple(by_state.get("unsettled", ())),
        begin=(*copies, *changes),
        waits=waits,
    )


def without_begin(step: RebalanceStep, waits: str) -> RebalanceStep:
    """Return the step if nothing may begin now."""
    return replace(step, begin=(), waits=waits)


def _get_state(
    move: RebalanceMove, placement: Placement, brokers: Collection[int], given_up: Collection[str]
) -> str:
    partition = placement.partitions.get(move.partition)
    target = placement.targets.get(move.partition)
    if partition is not None and target is not None and target == frozenset(move.after):
        return "moving"
    if partition is not None and target is None:
        if partition.replicas == move.after:
            return "done"
        if set(partition.replicas) == set(move.before):
            return "waiting" if set(move.added_brokers) <= set(brokers) else "left out"
    return "left out" if move.partition in given_up else "unsettled"


def _choose_copies(
    waiting: Sequence[RebalanceMove],
    moving: Sequence[RebalanceMove],
    placement: Placement,
    copies_max: int,
) -> tuple[list[RebalanceMove], str]:
    """Return the copies that begin now, and why none may."""
    copies = [move for move in waiting if move.added_brokers]
    if not copies:
        return [], ""
    mine = {move.partition for move in (*waiting, *moving)}
    for name, partition in placement.partitions.items():
        lagging = set(partition.replicas) - set(partition.isr)
        if name in mine or name in placement.targets or not lagging & placement.running.keys():
            continue
        return [], f"{name} is not in sync on broker {min(lagging & placement.running.keys())}"
    able = [
        move
        for move in copies
        if placement.running.keys() >= set(move.added_brokers)
        and placement.partitions[move.partition].leader >= 0
    ]
    if not able:
        absent = {b for move in copies for b in move.added_brokers} - placement.running.keys()
        no_leader = f"{copies[0].partition} has no leader"
        return [], f"broker {min(absent)} does not run" if absent else no_leader
    under_way = sum(bool(move.added_brokers) for move in moving)
    return able[: max(0, copies_max - under_way)], ""
