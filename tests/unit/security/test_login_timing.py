"""A login takes the same CPU time whether or not there is the user, and less than a millisecond.

The logins of users that exist, with the right and with a wrong password, and of users that do not,
are interleaved on one thread. Two-sample Kolmogorov-Smirnov tests compare the distributions of the
time that the server's side takes.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shoal.security import scram
from shoal.security.scram import SCRAM_MECHANISMS, ScramMechanism
from support.runs.conditions import slowness
from unit.security.test_scram_server import Client
from unit.server.network.test_authentication import Sasl, handshake, in_loop, mechanisms, token

if TYPE_CHECKING:
    from support.brokers.connections import Wire

USERS = 200
RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
#: The critical value of the test at p = 0.001, for two samples of n: this times sqrt(2 / n).
CRITICAL = 1.9495


def distance(first: list[int], second: list[int]) -> float:
    """Return the statistic of Kolmogorov and Smirnov: the largest distance of the distributions."""
    ordered = sorted(first), sorted(second)
    return max(
        abs(bisect_right(ordered[0], x) / len(first) - bisect_right(ordered[1], x) / len(second))
        for x in (*first, *second)
    )


class Attempt:
    """One login, whose server's side is timed in two steps."""

    def __init__(self, sasl: Sasl, mechanism: ScramMechanism, user: str, password: str) -> None:
        self.client = Client(password, user, mechanism)
        self.wire: Wire = sasl.connect()
        self.frames = handshake(mechanism.name), token(self.client.first())

    def first(self) -> int:
        begun = time.thread_time_ns()
        self.wire.receive(self.frames[0])
        self.wire.receive(self.frames[1])
        return time.thread_time_ns() - begun

    def prepare(self) -> bytes:
        """Return the last frame. The client's work takes most of a login's time."""
        data = b"".join(self.wire.written)
        at = data.index(b"r=clientnonce")
        end = data.index(b",i=4096") + 7
        return token(self.client.final(data[at:end]))

    def last(self, frame: bytes) -> int:
        begun = time.thread_time_ns()
        self.wire.receive(frame)
        return time.thread_time_ns() - begun


class Measurement:
    """Times of both steps by kind of login, in nanoseconds."""

    def __init__(self) -> None:
        self.first: dict[str, list[int]] = {RIGHT: [], WRONG: [], UNKNOWN: []}
        self.last: dict[str, list[int]] = {RIGHT: [], WRONG: [], UNKNOWN: []}


def measured(count: int, mechanism: ScramMechanism, seed: int) -> Measurement:
    found = Measurement()

    async def main() -> None:
        drawn = random.Random(seed)
        made, security, server = mechanisms(
            **{"sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}
        )
        sasl = Sasl()
        sasl.authentication.sasl = made.make_listener_sasl(security)
        stored = scram.build_credential(mechanism, "secret", b"1x4saltoftoolsofkafka0000")
        users = {(f"known{n:03}", mechanism.number): stored for n in range(USERS)}
        server.cache.image = replace(server.cache.image, scram_credentials=users)
        for n in range(-20, count):
            kinds = [RIGHT, WRONG, UNKNOWN]
            drawn.shuffle(kinds)
            attempts = []
            for kind in kinds:
                name = f"{'other' if kind == UNKNOWN else 'known'}{drawn.randrange(USERS):03}"
                password = "secret" if kind == RIGHT else "wrongs"
                attempts.append(Attempt(sasl, mechanism, name, password))
            firsts = [attempt.first() for attempt in attempts]
            frames = [attempt.prepare() for attempt in attempts]
            lasts = [attempt.last(f) for attempt, f in zip(attempts, frames, strict=True)]
            sasl.audit.entries.clear()
            if n >= 0:  # The first ones warm up.
                for kind, first, last in zip(kinds, firsts, lasts, strict=True):
                    found.first[kind].append(first)
                    found.last[kind].append(last)

    in_loop(main)
    return found


def differences(found: Measurement, count: int) -> set[str]:
    """Return the names of the comparisons that find a difference at p = 0.001."""
    samples = {
        "challenge, right": (found.first[RIGHT], found.first[UNKNOWN]),
        "challenge, wrong": (found.first[WRONG], found.first[UNKNOWN]),
        "refusal": (found.last[WRONG], found.last[UNKNOWN]),
    }
    limit = CRITICAL * math.sqrt(2 / count)
    return {name for name, both in samples.items() if distance(*both) >= limit}


def check(count: int, mechanism: ScramMechanism, seed: int) -> None:
    """Compare twice, if need be: one comparison of a thousand differs by chance."""
    found = differences(measured(count, mechanism, seed), count)
    if found:
        found &= differences(measured(count, mechanism, seed + 1), count)
    assert not found


@pytest.mark.parametrize("name", sorted(SCRAM_MECHANISMS))
def test_known_and_unknown_users_take_the_same_time(name: str, seed: int) -> None:
    check(300, SCRAM_MECHANISMS[name], seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SCRAM_MECHANISMS))
def test_ten_thousand_logins_of_each_kind(name: str, seed: int) -> None:
    check(10_000, SCRAM_MECHANISMS[name], seed)


def test_a_login_costs_less_than_a_millisecond(seed: int) -> None:
    found = measured(100, SCRAM_MECHANISMS["SCRAM-SHA-512"], seed)
    times = [a + b for a, b in zip(found.first[RIGHT], found.last[RIGHT], strict=True)]
    assert statistics.median(times) < 1e6 * slowness()


def test_the_test_finds_a_difference() -> None:
    drawn = random.Random(1)
    same = [[round(drawn.gauss(1000, 50)) for _ in range(400)] for _ in range(2)]
    other = [round(drawn.gauss(1025, 50)) for _ in range(400)]
    limit = CRITICAL * math.sqrt(2 / 400)
    assert distance(*same) < limit < distance(same[0], other)
