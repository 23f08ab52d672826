"""The checker of clients' histories: a good run has no anomaly, and each fault has its name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
from support.scenarios.histories import (
    Acquire,
    Assigned,
    Commit,
    History,
    Outage,
    Poll,
    Send,
    Settle,
    check,
)

Broken = Callable[[History, dict[tuple[int, int], bytes]], object]
#: The brokers that lead the share partition, before and after an outage.
LEADER, NEXT = 1, 2


def good() -> tuple[History, dict[tuple[int, int], bytes]]:
    """Four records: two plain ones, one in a committed transaction and one in an aborted one."""
    history = History()
    log: dict[tuple[int, int], bytes] = {}
    for offset, transaction in ((0, None), (1, None), (2, None), (3, 0), (5, 1), (7, None)):
        producer = "w" if transaction is None else "t"
        value = b"v%d" % offset
        history.sends.append(Send(producer, 0, value, offset, transaction))
        log[0, offset] = value
        if transaction == 1:
            continue
        at = float(offset)
        history.polls.append(Poll("g", 1, 0, offset, value))
        history.commits.append(Commit(0, offset + 1, at + 0.9))
        history.acquires.append(Acquire("s", 0, offset, value, 1, at, at + 0.1, 30.0, LEADER))
        history.settles.append(Settle("s", 0, offset, "accept", at + 0.2, at + 0.3, True))
    history.committed.add(("t", 0))
    history.aborted.add(("t", 1))
    history.assigned.append(Assigned(0, 0, 0.0))
    return history, log


def test_a_good_run_has_no_anomalies() -> None:
    assert check(*good()) == []


def again(history: History, **changes: object) -> None:
    """Acquire the first record once more."""
    found = deepcopy(history.acquires[0])
    found.sent, found.answered = 9.0, 9.1
    for name, value in changes.items():
        setattr(found, name, value)
    history.acquires.append(found)


def released_again(history: History) -> None:
    history.settles[0].type = "release"
    again(history)


BREAKS: list[tuple[str, Broken]] = [
    ("lost-write", lambda h, log: log.pop((0, 1))),
    ("duplicate", lambda h, log: log.update({(0, 8): b"v1"})),
    ("inconsistent-offsets", lambda h, log: log.update({(0, 1): b"other"})),
    ("inconsistent-offsets", lambda h, log: setattr(h.polls[1], "value", b"other")),
    ("inconsistent-offsets", lambda h, log: setattr(h.acquires[1], "value", b"other")),
    ("nonmonotonic-send", lambda h, log: h.sends.reverse()),
    ("unseen", lambda h, log: h.polls.pop()),
    ("G1a", lambda h, log: h.polls.insert(4, Poll("g", 1, 0, 5, b"v5"))),
    ("nonmonotonic-poll", lambda h, log: h.polls.append(h.polls[0])),
    ("poll-skip", lambda h, log: h.polls.append(h.polls.pop(1))),
    ("lost-commit", lambda h, log: h.assigned.append(Assigned(0, 3, 8.0))),
    ("double-accept", lambda h, log: h.settles.append(h.settles[0])),
    ("terminal-redelivered", lambda h, log: again(h)),
    ("share-G1a", lambda h, log: h.acquires.append(Acquire("s", 0, 5, b"v5", 1, 6, 6.1, 30, 1))),
    ("share-unseen", lambda h, log: h.settles.pop()),
    ("share-unseen", lambda h, log: setattr(h.settles[2], "ok", False)),
    ("delivery-count-back", lambda h, log: released_again(h)),
    ("lock-overlap", lambda h, log: again(h, member="s2", sent=0.1, answered=0.15)),
]


@pytest.mark.parametrize(("name", "broken"), BREAKS)
def test_each_break_has_its_name(name: str, broken: Broken) -> None:
    history, log = good()
    broken(history, log)
    assert name in {anomaly.name for anomaly in check(history, log)}


def test_allowed_events_are_no_anomalies() -> None:
    """A rebalance goes back to the commit; a response was lost; a fault ended the locks."""
    history, log = good()
    history.polls.append(Poll("g", 2, 0, 7, b"v7"))
    history.sends.append(Send("w", 0, b"never acknowledged"))
    log[0, 8] = b"never acknowledged"
    history.settles[0].ok = None
    history.outages.append(Outage(LEADER, began=0.12, back=4.0))
    again(history, member="s2", sent=0.13, answered=0.15, leader=NEXT)
    assert check(history, log) == []


#: Two deliveries of one record. Each case changes a delivery by `LEADER` from 2.0 to 2.1 and one by
#: `NEXT` from 2.4 to 2.5. `LEADER` was lost at 2.2 and was back at 8.0.
OVERLAPS: list[tuple[str, dict[str, float], dict[str, float], bool]] = [
    ("over the outage", {}, {}, False),
    ("long after the outage", {}, {"sent": 9.0, "answered": 9.1}, False),
    ("answered late by the lost leader", {"answered": 2.25}, {}, False),
    ("by the same leader, restarted", {}, {"sent": 8.1, "answered": 8.2, "leader": 1}, False),
    ("before the outage", {}, {"sent": 2.12, "answered": 2.18, "leader": 1}, True),
    ("between the outage and the next answer", {}, {"answered": 2.45, "leader": 1}, True),
    (
        "just after the next leader's first answer",
        {"sent": 2.51, "answered": 2.52, "leader": 2},
        {"sent": 2.55, "answered": 2.6},
        True,
    ),
    ("by a leader that was not lost", {"leader": 3}, {}, True),
    (
        "by the lost leader, after the next leader's answer",
        {"sent": 2.51, "answered": 2.6},
        {"sent": 2.65, "answered": 2.7},
        True,
    ),
]


@pytest.mark.parametrize(
    ("first", "second", "found"), [pytest.param(*case, id=name) for name, *case in OVERLAPS]
)
def test_only_locks_of_a_lost_leader_are_exempt(
    first: dict[str, float], second: dict[str, float], found: bool
) -> None:
    """`NEXT` delivers another record at 2.5 as well."""
    history = History(outages=[Outage(LEADER, began=2.2, back=8.0)])
    history.acquires.append(Acquire("s3", 0, 1, b"v1", 1, 2.45, 2.5, 30.0, NEXT))
    for member, times, changes in (
        ("s1", (2.0, 2.1, LEADER), first),
        ("s2", (2.4, 2.5, NEXT), second),
    ):
        row = dict(zip(("sent", "answered", "leader"), times, strict=True)) | changes
        history.acquires.append(
            Acquire(member, 0, 0, b"v0", 1, row["sent"], row["answered"], 30.0, int(row["leader"]))
        )
    names = [one.name for one in check(history, {(0, 0): b"v0", (0, 1): b"v1"})]
    assert names == ["lock-overlap"] * found
