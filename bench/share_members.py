"""How soon records are with a member of a share group: a new one, and that beside a killed one."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from confluent_kafka import ShareConsumer
from load_checks import Stall, check_commit, check_errors, random_values
from load_setup import CHECKED, QUIET, Figures, Run, produce

#: A client may have fetched ahead, and learns of its assignment with its next heartbeat only: so
#: many rounds of a second.
APART_ROUNDS = 4
#: A killed member's records come back when its session has ended, after 45 s on Kafka.
LOCK_END_S = 150


def _member(bootstrap: str, group: str, topic: str) -> ShareConsumer:
    member = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **CHECKED,
            **QUIET,
        }
    )
    member.subscribe([topic])
    return member


def first_record(run: Run) -> Figures:
    """From subscribing to the first record of a group that was not there."""
    topic, group = run.topic(), run.share_group()
    produce(run.bootstrap, topic, 1, random_values(100), acks="all")
    stall, began = Stall(1), time.perf_counter()
    member = _member(run.bootstrap, group, topic)
    while not (messages := member.poll(1.0)):
        stall.look(0)
    waited = time.perf_counter() - began
    check_errors(messages)
    member.acknowledge(messages[0])
    check_commit(member.commit_sync(10))
    member.close()
    return {"wait_ms": waited * 1000}


def _victim(bootstrap: str, group: str, topic: str, taken: Any) -> None:
    """A member that takes records and does nothing with them."""
    member = _member(bootstrap, group, topic)
    while not (messages := member.poll(1.0)):
        continue
    check_errors(messages)
    taken.put([(m.partition(), m.offset()) for m in messages])
    time.sleep(600)


def killed_member(run: Run) -> Figures:
    """From kill -9 of a member until another one has a record that it held. Each of the two is by
    itself on one of two partitions."""
    topic, group, values = run.topic(2), run.share_group(), random_values(100)
    member = _member(run.bootstrap, group, topic)
    processes = multiprocessing.get_context("spawn")
    taken = processes.Queue()
    victim = processes.Process(target=_victim, args=(run.bootstrap, group, topic, taken))
    held: set[tuple[int, int]] = set()
    apart = 0  # Rounds in a row in which the other one's partition brought nothing.
    while apart < APART_ROUNDS:
        known = {partition for partition, _ in held}
        produce(run.bootstrap, topic, 1000, values, acks="all", partitions=2)
        found = []
        while more := _take(member, 1.0):
            found += more
        if found and victim.pid is None:
            victim.start()
        elif not held and not taken.empty():
            held = set(taken.get())
        clean = known and found and not known & {partition for partition, _ in found}
        apart = apart + 1 if clean else 0
    began = time.perf_counter()
    victim.kill()
    stall = Stall(1, LOCK_END_S)
    while not held & set(_take(member, 1.0)):
        stall.look(0)
    waited = time.perf_counter() - began
    victim.join()
    member.close()
    return {"wait_ms": waited * 1000}


def _take(member: ShareConsumer, timeout_s: float) -> list[tuple[int, int]]:
    """Accept what a poll brings; where it stood."""
    messages = member.poll(timeout_s)
    check_errors(messages)
    for message in messages:
        member.acknowledge(message)
    if messages:
        check_commit(member.commit_sync(10))
    return [(m.partition(), m.offset()) for m in messages]
