"""Time until a share-group member gets records: a new one, and one beside a killed one."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from confluent_kafka import ShareConsumer
from load_checks import Stall, check_commit, check_errors, random_values
from load_setup import CHECKED, QUIET, Figures, Run, produce

#: Rounds of a second until both members have separate partitions. A client may have fetched ahead,
#: and gets its assignment with its next heartbeat.
APART_ROUNDS = 4
#: A killed member's records return when its session has ended, after 45 s on Kafka.
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
    """Measure from subscribing to the first record of a new group."""
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
    """Run a member that acquires records and does nothing with them."""
    member = _member(bootstrap, group, topic)
    while not (messages := member.poll(1.0)):
        continue
    check_errors(messages)
    taken.put([(m.partition(), m.offset()) for m in messages])
    time.sleep(600)


def killed_member(run: Run) -> Figures:
    """Measure from kill -9 of a member until another member has one of its records. Each member has
    one of two partitions.
    """
    topic, group, values = run.topic(2), run.share_group(), random_values(100)
    member = _member(run.bootstrap, group, topic)
    processes = multiprocessing.get_context("spawn")
    taken = processes.Queue()
    victim = processes.Process(target=_victim, args=(run.bootstrap, group, topic, taken))
    held: set[tuple[int, int]] = set()
    apart = 0  # Successive rounds without records of the other member's partition.
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
    """Accept the records of a poll; return their positions."""
    messages = member.poll(timeout_s)
    check_errors(messages)
    for message in messages:
        member.acknowledge(message)
    if messages:
        check_commit(member.commit_sync(10))
    return [(m.partition(), m.offset()) for m in messages]
