"""Proposals of a QueueRebalance: which replicas move from where to where. Pure.

`make_plan` searches from the present placement, so that few replicas move. A replica moves only to
a broker where its partition has as many pods and racks as before. The steps of `FULL`:

1. Replicas of a partition go to different pods and racks, as far as there are enough.
2. Replicas move from the broker with the most to that with the fewest, until they differ by one.
3. Replicas move, or change places with smaller ones, until the brokers' bytes differ by a tenth of
   their average, or no exchange brings them closer.
4. Preferred leaders change within the replicas until no other order spreads them better.

The other modes do a part of that: `RACKS` step 1, `LEADERSHIP` step 4, `ADD_BROKERS` step 2 with
moves to the new brokers only, `REMOVE_BROKERS` moves from the brokers that leave. Both end with
step 4 for the partitions that move.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.brokers.replica_moves import RebalanceMove
from shoal_operator.model import pod_layout

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Hashable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

#: Brokers' bytes may differ by this part of their average.
BYTES_TOLERANCE = 0.1
#: An exchange of replicas has to shrink the difference by more than this part.
GAIN_MIN = 64
#: Replicas that are compared for one move, those of the most crowded topics.
CANDIDATES_MAX = 100
#: Replicas of about the right size that are tried as the other part of an exchange.
NEIGHBOURS = 4


class RebalanceMode(StrEnum):
    """`spec.mode`."""

    FULL = "Full"
    LEADERSHIP = "Leadership"
    RACKS = "Racks"
    ADD_BROKERS = "AddBrokers"
    REMOVE_BROKERS = "RemoveBrokers"


class PlacedPartition(NamedTuple):
    """A partition with its replicas, the preferred leader first, and the bytes of one replica."""

    name: str
    replicas: tuple[int, ...]
    size_bytes: int = 0


class BrokerLoad(NamedTuple):
    """What a broker has: replicas, partitions that prefer it as the leader, bytes."""

    replicas: int
    leaders: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Moves of data, then of leadership only; and partitions without a broker to move to."""

    moves: tuple[RebalanceMove, ...]
    unplaceable: tuple[str, ...] = ()


def make_plan(
    mode: RebalanceMode,
    partitions: Iterable[PlacedPartition],
    brokers: Iterable[int],
    racks: Mapping[int, str] | None = None,
    chosen: Collection[int] = (),
    excluded: Collection[str] = (),
) -> RebalancePlan:
    """Return the moves of a mode.

    `brokers` may have replicas; others keep theirs, except those that `REMOVE_BROKERS` names in
    `chosen`. `racks` are by broker id, without brokers that have none. `excluded` topics count with
    their replicas, which stay.
    """
    removed = frozenset(chosen if mode is RebalanceMode.REMOVE_BROKERS else ())
    all_partitions = sorted(partitions)
    layout = _Layout(all_partitions, frozenset(brokers) - removed, racks or {}, excluded)
    unplaceable: list[str] = []
    if mode in (RebalanceMode.FULL, RebalanceMode.RACKS):
        _spread(layout, pod_layout.get_pod)
        _spread(layout, layout.rack_of)
    if mode is RebalanceMode.FULL:
        _balance_counts(layout, layout.on, layout.on)
        _balance_bytes(layout)
    elif mode is RebalanceMode.ADD_BROKERS:
        old = [broker for broker in layout.on if broker not in chosen]
        _balance_counts(layout, old, [broker for broker in layout.on if broker in chosen])
    elif mode is RebalanceMode.REMOVE_BROKERS:
        unplaceable = _drain(layout, removed)
    if mode in (RebalanceMode.FULL, RebalanceMode.LEADERSHIP):
        _Leaders(layout.replicas, layout.on, layout.movable).spread()
    elif mode in (RebalanceMode.ADD_BROKERS, RebalanceMode.REMOVE_BROKERS):
        moved = {p.name for p in all_partitions if layout.replicas[p.name] != list(p.replicas)}
        _Leaders(layout.replicas, layout.on, moved).spread()
    moves = [
        RebalanceMove(p.name, p.replicas, after, p.size_bytes)
        for p in all_partitions
        if (after := tuple(layout.replicas[p.name])) != p.replicas
    ]
    moves.sort(key=lambda move: not move.added_brokers)
    return RebalancePlan(tuple(moves), tuple(unplaceable))


def compute_loads(
    partitions: Iterable[PlacedPartition],
    moves: Iterable[RebalanceMove] = (),
    brokers: Iterable[int] = (),
) -> dict[int, BrokerLoad]:
    """Return what each broker has after these moves, by broker id."""
    after = {move.partition: move.after for move in moves}
    replicas: Counter[int] = Counter(dict.fromkeys(brokers, 0))
    leaders: Counter[int] = Counter()
    size_bytes: Counter[int] = Counter()
    for p in partitions:
        placed = after.get(p.name, p.replicas)
        replicas.update(placed)
        leaders.update(placed[:1])
        for broker in placed:
            size_bytes[broker] += p.size_bytes
    return {b: BrokerLoad(replicas[b], leaders[b], size_bytes[b]) for b in sorted(replicas)}


class _Layout:
    """The placement while it is being planned."""

    def __init__(
        self,
        partitions: Sequence[PlacedPartition],
        brokers: Iterable[int],
        racks: Mapping[int, str],
        excluded: Collection[str],
    ) -> None:
        self.rack_of: Callable[[int], str | None] = racks.get
        self.replicas = {p.name: list(p.replicas) for p in partitions}
        self.sizes = {p.name: p.size_bytes for p in partitions}
        self.movable = {p.name for p in partitions if _get_topic(p.name) not in excluded}
        #: Partitions by the brokers that replicas may move between; the order is that of names.
        self.on: dict[int, dict[str, None]] = {broker: {} for broker in sorted(brokers)}
        self.size_bytes = Counter(dict.fromkeys(self.on, 0))
        #: The same by broker and topic.
        self.of_topic: dict[int, dict[str, dict[str, None]]] = {b: {} for b in self.on}
        for p in partitions:
            for broker in p.replicas:
                self._put(p.name, broker)

    def count(self, broker: int) -> int:
        return len(self.on[broker])

    def may_replace(self, name: str, source: int, target: int) -> bool:
        """Return whether `target` may take the place of `source`.

        The partition loses a pod or a rack if another replica has that of `target`, and none has
        that of `source`.
        """
        replicas = self.replicas[name]
        if target in replicas or name not in self.movable:
            return False
        other_brokers = [broker for broker in replicas if broker != source]
        for place_of in (pod_layout.get_pod, self.rack_of):
            used = [place_of(broker) for broker in other_brokers]
            if place_of(target) in used and place_of(source) not in used:
                return False
        return True

    def move(self, name: str, source: int, target: int) -> None:
        replicas = self.replicas[name]
        replicas[replicas.index(source)] = target
        self._put(name, target)
        if source in self.on:
            del self.on[source][name]
            self.size_bytes[source] -= self.sizes[name]
            del self.of_topic[source][_get_topic(name)][name]

    def _put(self, name: str, broker: int) -> None:
        if broker in self.on:
            self.on[broker][name] = None
            self.size_bytes[broker] += self.sizes[name]
            self.of_topic[broker].setdefault(_get_topic(name), {})[name] = None

    def iterate_targets(self, name: str, source: int) -> Iterator[int]:
        """Yield the brokers that may take the place of `source`, as far as pods matter."""
        replicas = self.replicas[name]
        other_pods = {pod_layout.get_pod(broker) for broker in replicas if broker != source}
        shared = pod_layout.get_pod(source) in other_pods
        for broker in self.on:
            if broker not in replicas and (shared or pod_layout.get_pod(broker) not in other_pods):
                yield broker


def _get_topic(name: str) -> str:
    return name.rpartition("-")[0]


# Step 1: pods and racks.


def _spread(layout: _Layout, place_of: Callable[[int], Hashable]) -> None:
    """Move replicas that share a pod or a rack to one that their partition does not use."""
    places = {place for broker in layout.on if (place := place_of(broker)) is not None}
    for name, replicas in layout.replicas.items():
        places_needed = min(len(places), len(replicas))
        while len({place_of(broker) for broker in replicas} - {None}) < places_needed:
            pair = _find_spreading_move(layout, name, place_of)
            if pair is None:
                break
            layout.move(name, *pair)


def _find_spreading_move(
    layout: _Layout, name: str, place_of: Callable[[int], Hashable]
) -> tuple[int, int] | None:
    """Return a broker whose place another replica has, and one in a place without a replica."""
    replicas = layout.replicas[name]
    used = Counter(map(place_of, replicas))
    # The preferred leader stays if another replica can move.
    crowded = [
        b
        for b in reversed(replicas)
        if b in layout.on and (used[place_of(b)] > 1 or place_of(b) is None)
    ]
    for source in sorted(crowded[:-1], key=lambda b: -layout.count(b)) + crowded[-1:]:
        targets = [b for b in layout.iterate_targets(name, source) if place_of(b) not in used]
        targets = [
            b for b in targets if place_of(b) is not None and layout.may_replace(name, source, b)
        ]
        if targets:
            return source, min(targets, key=lambda b: _get_fullness(layout, b))
    return None


def _get_fullness(layout: _Layout, broker: int) -> tuple[int, int, int]:
    return layout.count(broker), layout.size_bytes[broker], broker


# Step 2: numbers of replicas.


def _balance_counts(layout: _Layout, sources: Iterable[int], targets: Iterable[int]) -> None:
    """Move replicas from sources to targets until their numbers differ by at most one."""
    givers, takers = list(sources), list(targets)
    while move := _find_count_move(layout, givers, takers):
        layout.move(*move)


def _find_count_move(
    layout: _Layout, sources: list[int], targets: list[int]
) -> tuple[str, int, int] | None:
    for source in sorted(sources, key=lambda b: _get_fullness(layout, b), reverse=True):
        for target in sorted(targets, key=lambda b: _get_fullness(layout, b)):
            if layout.count(source) - layout.count(target) < 2:
                break
            if name := _choose_replica(layout, source, target):
                return name, source, target
    return None


def _choose_replica(layout: _Layout, source: int, target: int) -> str | None:
    """Return the replica that should move: it spreads its topic best, then the bytes."""
    source_topics, target_topics = layout.of_topic[source], layout.of_topic[target]
    gap_bytes = max(0, layout.size_bytes[source] - layout.size_bytes[target])
    crowds = {
        topic: len(target_topics.get(topic, ())) - len(names)
        for topic, names in source_topics.items()
    }
    fitting = (
        (crowds[topic], abs(2 * layout.sizes[name] - gap_bytes), name)
        for topic in sorted(crowds, key=lambda topic: (crowds[topic], topic))
        for name in source_topics[topic]
        if layout.may_replace(name, source, target)
    )
    best = min(itertools.islice(fitting, CANDIDATES_MAX), default=None)
    return best[2] if best else None


# Step 3: bytes.


def _balance_bytes(layout: _Layout) -> None:
    average = layout.size_bytes.total() / max(1, len(layout.on))
    tolerance = int(average * BYTES_TOLERANCE)
    while exchange := _find_exchange(layout, tolerance):
        name, back, heavy, light = exchange
        layout.move(name, heavy, light)
        if back:
            layout.move(back, light, heavy)


def _find_exchange(layout: _Layout, tolerance_bytes: int) -> tuple[str, str, int, int] | None:
    """Return a replica of a heavy broker, one that goes back or an empty name, and both brokers."""
    by_bytes = sorted(layout.on, key=lambda b: (layout.size_bytes[b], b))
    for heavy in reversed(by_bytes):
        for light in by_bytes:
            if layout.size_bytes[heavy] - layout.size_bytes[light] <= tolerance_bytes:
                break
            if exchange := _find_best_exchange(layout, heavy, light):
                return *exchange, heavy, light
    return None


def _find_best_exchange(layout: _Layout, heavy: int, light: int) -> tuple[str, str] | None:
    """Return the exchange that halves the difference best. Numbers of replicas stay as even."""
    gap = layout.size_bytes[heavy] - layout.size_bytes[light]
    least = max(1, gap // GAIN_MIN)
    backs = sorted(
        (layout.sizes[n], n) for n in layout.on[light] if layout.may_replace(n, light, heavy)
    )
    best: tuple[Any, ...] | None = None
    for name in layout.on[heavy]:
        size = layout.sizes[name]
        index = bisect_left(backs, (size - gap // 2, ""))
        near = backs[max(0, index - NEIGHBOURS) : index + NEIGHBOURS]
        alone = [(0, "")] if layout.count(heavy) > layout.count(light) else []
        for back_size, back in [*alone, *near]:
            gain = size - back_size
            rank = (abs(2 * gain - gap), size + back_size, name, back)
            if not least <= gain <= gap - least or (best is not None and rank >= best):
                continue
            if layout.may_replace(name, heavy, light):
                best = rank
    return (best[2], best[3]) if best else None


# Brokers that leave.


def _drain(layout: _Layout, removed: Collection[int]) -> list[str]:
    """Move all replicas off these brokers; return the partitions that have no other place."""
    unplaceable = []
    for name, replicas in layout.replicas.items():
        before = list(replicas)
        for source in [broker for broker in before if broker in removed]:
            racks = {layout.rack_of(broker) for broker in replicas if broker != source}
            free = list(layout.iterate_targets(name, source))
            if not free:
                unplaceable.append(name)
                break
            target = min(free, key=lambda b: (layout.rack_of(b) in racks, _get_fullness(layout, b)))
            layout.move(name, source, target)
    return unplaceable


# Step 4: preferred leaders.


class _Leaders:
    """Preferred leaders, spread by chains of changes: one broker passes a partition to the next.

    A chain ends at a broker with at least two fewer than its first one, so that each chain spreads
    them better. If there is no chain, no other order of the replicas spreads them better.
    """

    def __init__(
        self,
        replicas: Mapping[str, list[int]],
        brokers: Iterable[int],
        movable: Collection[str],
    ) -> None:
        self._replicas = replicas
        self._counts = Counter(dict.fromkeys(brokers, 0))
        #: Partitions that one broker leads and another one may lead.
        self._between: dict[tuple[int, int], dict[str, None]] = {}
        for name, placed in replicas.items():
            if placed and placed[0] in self._counts:
                self._counts[placed[0]] += 1
                if name in movable:
                    self._put(name)

    def spread(self) -> None:
        while chain := self._find_chain():
            # From its end: each broker then still leads the partition that it passes on.
            for source, target in reversed(list(itertools.pairwise(chain))):
                self._change(next(iter(self._between[source, target])), target)

    def _find_chain(self) -> list[int] | None:
        for first in sorted(self._counts, key=lambda b: (-self._counts[b], b)):
            before: dict[int, int] = {first: first}
            waiting = deque([first])
            while waiting:
                broker = waiting.popleft()
                if self._counts[first] - self._counts[broker] > 1:
                    chain = [broker]
                    while chain[-1] != first:
                        chain.append(before[chain[-1]])
                    return chain[::-1]
                for successor in self._counts:
                    if successor not in before and self._between.get((broker, successor)):
                        before[successor] = broker
                        waiting.append(successor)
        return None

    def _put(self, name: str) -> None:
        leader, *followers = self._replicas[name]
        for follower in followers:
            if follower in self._counts:
                self._between.setdefault((leader, follower), {})[name] = None

    def _change(self, name: str, leader: int) -> None:
        placed = self._replicas[name]
        for follower in placed[1:]:
            self._between.get((placed[0], follower), {}).pop(name, None)
        self._counts[placed[0]] -= 1
        self._counts[leader] += 1
        index = placed.index(leader)
        placed[0], placed[index] = placed[index], placed[0]
        self._put(name)
