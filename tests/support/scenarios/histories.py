"""What clients saw of a cluster under faults, and checks for anomalies.

A history holds each client's calls and their results, with times from one monotonic clock. Errors
have the names of Jepsen's Kafka workload; those of share groups follow its pattern. Each check is a
plain function from a history to anomalies, slow and simple on purpose.

The log is what an independent reader finds at the end, by partition and offset, aborted records
included. `None` stands for an unknown value.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[int, int]  # partition, offset
Log = Mapping[Place, bytes]


class Anomaly(NamedTuple):
    name: str
    what: str
    #: Where in the log to look for the cause.
    places: tuple[Place, ...] = ()


@dataclass(slots=True)
class Send:
    """One record of a producer, in the order of its sends. `offset` is None until the response.
    `transaction` is the number of the producer's transaction, or None."""

    producer: str
    partition: int
    value: bytes
    offset: int | None = None
    transaction: int | None = None


@dataclass(slots=True)
class Poll:
    """A record that a member of a consumer group got. `generation` counts its assignments."""

    consumer: str
    generation: int
    partition: int
    offset: int
    value: bytes


@dataclass(slots=True)
class Commit:
    """An offset that a group's coordinator has acknowledged, and the time of the response."""

    partition: int
    offset: int
    answered: float


@dataclass(slots=True)
class Assigned:
    """The position of a member after an assignment; the member requested it at `asked`."""

    partition: int
    offset: int
    asked: float


class Outage(NamedTuple):
    """A broker that was killed, stopped, frozen or cut off from `began` on.

    `back` is the time when it was restarted, thawed or reconnected.
    """

    broker: int
    began: float
    back: float


@dataclass(slots=True)
class Acquire:
    """A record that broker `leader` delivered to a member, with the times of request and
    response."""

    member: str
    partition: int
    offset: int
    value: bytes
    delivery_count: int
    sent: float
    answered: float
    lock_s: float
    leader: int


@dataclass(slots=True)
class Settle:
    """An acknowledgement of a record; `ok` is None if the response was lost."""

    member: str
    partition: int
    offset: int
    type: str  # accept, release, reject
    sent: float
    answered: float
    ok: bool | None


@dataclass
class History:
    sends: list[Send] = field(default_factory=list)
    #: By producer: transactions whose commit, or abort, was acknowledged; others are open.
    committed: set[tuple[str, int]] = field(default_factory=set)
    aborted: set[tuple[str, int]] = field(default_factory=set)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    acquires: list[Acquire] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)

    def settled(self) -> set[Place]:
        """Return the records that a share group has settled, as far as its members have learned."""
        return {
            (s.partition, s.offset)
            for s in list(self.settles)
            if s.type != "release" and s.ok is not False
        }

    def summary(self) -> str:
        return (
            f"{len(self.sends)} sends, {len(self.committed)} transactions committed and"
            f" {len(self.aborted)} aborted, {len(self.polls)} polls, {len(self.commits)} commits,"
            f" {len(self.acquires)} records acquired, {len(self.settles)} settled"
        )


def check(history: History, log: Log) -> list[Anomaly]:
    """Return all anomalies of a run in which every record was polled and settled."""
    return [
        *written(history, log),
        *polled(history, log),
        *offsets_of_groups(history),
        *shared(history, log),
    ]


def counts(history: History, send: Send) -> bool:
    """Return whether a send was acknowledged and its transaction, if any, committed."""
    if send.offset is None:
        return False
    return send.transaction is None or (send.producer, send.transaction) in history.committed


def written(history: History, log: Log) -> Iterator[Anomaly]:
    """Compare the producers' responses with the log."""
    places: dict[bytes, list[Place]] = defaultdict(list)
    for place, value in log.items():
        places[value].append(place)
    for value, found in places.items():
        if len(found) > 1:
            found.sort()
            yield Anomaly("duplicate", f"{value!r} is at {found}", tuple(found))
    values_sent: dict[Place, bytes] = {}
    last: dict[tuple[str, int], int] = {}
    for send in history.sends:
        if send.offset is None:
            continue
        place = (send.partition, send.offset)
        if values_sent.setdefault(place, send.value) != send.value:
            yield Anomaly(
                "inconsistent-offsets", f"{send.value!r} and {values_sent[place]!r} at {place}"
            )
        stored = log.get(place)
        if stored is None:
            yield Anomaly("lost-write", f"{send.value!r} was acknowledged at {place}")
        elif stored != send.value:
            yield Anomaly("inconsistent-offsets", f"{send.value!r} sent, {stored!r} at {place}")
        before = last.get((send.producer, send.partition), -1)
        if send.offset < before:
            yield Anomaly("nonmonotonic-send", f"{send.value!r} at {place}, after {before}")
        last[send.producer, send.partition] = send.offset


def polled(history: History, log: Log) -> Iterator[Anomaly]:
    """Check what members of a consumer group got in read_committed."""
    aborted = {s.value for s in history.sends if (s.producer, s.transaction) in history.aborted}
    by_transaction = {s.value: s for s in history.sends if s.transaction is not None}
    seen = {p.value for p in history.polls}
    for value in sorted(seen & aborted):
        yield Anomaly("G1a", f"{value!r} was aborted and polled")
    for send in history.sends:
        if counts(history, send) and send.value not in seen:
            yield Anomaly("unseen", f"{send.value!r} at {send.partition}, {send.offset}")
    values: dict[Place, bytes] = dict(log)
    for poll in history.polls:
        place = (poll.partition, poll.offset)
        other = values.setdefault(place, poll.value)
        if other != poll.value:
            yield Anomaly("inconsistent-offsets", f"{poll.value!r} and {other!r} at {place}")
    visible = defaultdict(set)
    for partition, offset in values:
        sent = by_transaction.get(values[partition, offset])
        if sent is None or (sent.producer, sent.transaction) in history.committed:
            visible[partition].add(offset)
    yield from _steps(history.polls, {p: sorted(offsets) for p, offsets in visible.items()})


def _steps(polls: Iterable[Poll], visible: Mapping[int, list[int]]) -> Iterator[Anomaly]:
    """Check the polls of one member in one assignment: no step back, no record skipped."""
    last: dict[tuple[str, int, int], int] = {}
    for poll in polls:
        key = (poll.consumer, poll.generation, poll.partition)
        before = last.get(key)
        last[key] = poll.offset
        if before is None:
            continue
        if poll.offset <= before:
            yield Anomaly("nonmonotonic-poll", f"{key}: {poll.offset} after {before}")
        offsets = visible[poll.partition]
        left_out = offsets[bisect_right(offsets, before) : bisect_left(offsets, poll.offset)]
        if left_out:
            yield Anomaly("poll-skip", f"{key}: from {before} to {poll.offset}, not {left_out[:5]}")


def offsets_of_groups(history: History) -> Iterator[Anomaly]:
    """Check that a group resumes where it has committed, neither before nor after."""
    for one in history.assigned:
        known = [c for c in history.commits if c.partition == one.partition]
        before = [c.offset for c in known if c.answered < one.asked]
        if before and one.offset < max(before):
            yield Anomaly("lost-commit", f"partition {one.partition}: {one.offset} < {max(before)}")


def shared(history: History, log: Log) -> Iterator[Anomaly]:
    """Check what members of a share group got and settled."""
    acquires: dict[Place, list[Acquire]] = defaultdict(list)
    settles: dict[Place, list[Settle]] = defaultdict(list)
    for acquire in history.acquires:
        acquires[acquire.partition, acquire.offset].append(acquire)
    for settle in history.settles:
        settles[settle.partition, settle.offset].append(settle)
    aborted = {s.value for s in history.sends if (s.producer, s.transaction) in history.aborted}
    losses = Losses(history)
    for place, found in sorted(acquires.items()):
        yield from _of_one_record(place, found, settles[place], losses)
        for acquire in found:
            if log.get(place, acquire.value) != acquire.value:
                yield Anomaly("inconsistent-offsets", f"{acquire.value!r} acquired at {place}")
            if acquire.value in aborted:
                yield Anomaly("share-G1a", f"{acquire.value!r} was aborted and acquired")
    if not history.acquires:
        return
    done = history.settled()
    for send in history.sends:
        if counts(history, send) and (send.partition, send.offset) not in done:
            yield Anomaly("share-unseen", f"{send.value!r} was never accepted or rejected")


class Losses:
    """Locks that an outage ended: those of the lost leader, until the next leader's first response.

    Locks are in the memory of the partition's leader. Those of other brokers, and those that the
    next leader grants, stay in force.
    """

    def __init__(self, history: History) -> None:
        self._outages = history.outages
        self._answers: dict[int, list[Acquire]] = defaultdict(list)
        for one in sorted(history.acquires, key=lambda a: a.answered):
            self._answers[one.partition].append(one)
        self._ends: dict[tuple[Outage, int], float] = {}

    def between(self, first: Acquire, second: Acquire) -> bool:
        """Return whether the first delivery's lock was lost before the second delivery."""
        return any(
            outage.broker == first.leader
            and first.sent <= self._end(outage, first.partition) <= second.answered
            for outage in self._outages
        )

    def _end(self, outage: Outage, partition: int) -> float:
        """Return when the next leader of the partition first answered; infinity if none did."""
        key = (outage, partition)
        if key not in self._ends:
            self._ends[key] = min(
                (
                    one.answered
                    for one in self._answers[partition]
                    if one.answered >= outage.began
                    and (one.leader != outage.broker or one.sent >= outage.back)
                ),
                default=float("inf"),
            )
        return self._ends[key]


def _of_one_record(
    place: Place,
    acquires: list[Acquire],
    settles: list[Settle],
    losses: Losses,
) -> Iterator[Anomaly]:
    final = [s for s in settles if s.type in ("accept", "reject") and s.ok]
    if len(final) > 1:
        members = [s.member for s in final]
        yield Anomaly("double-accept", f"{place} was settled by {members}")
    released = [s for s in settles if s.type == "release" and s.ok]
    for acquire in acquires:
        if any(s.answered < acquire.sent for s in final):
            yield Anomaly(
                "terminal-redelivered", f"{place} to {acquire.member} after it was settled"
            )
        given_back = sum(s.answered < acquire.sent for s in released)
        if acquire.delivery_count < given_back + 1:
            yield Anomaly(
                "delivery-count-back",
                f"{place}: {acquire.delivery_count} after {given_back} releases",
            )
    for first, second in itertools.pairwise(sorted(acquires, key=lambda a: a.answered)):
        settled = [s for s in settles if s.member == first.member and s.sent >= first.answered]
        until = min([first.sent + first.lock_s, *(s.sent for s in settled)])
        if second.answered < until and not losses.between(first, second):
            yield Anomaly("lock-overlap", f"{place} at {first.member} and {second.member}")
