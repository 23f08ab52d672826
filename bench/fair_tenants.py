"""Fair queues under load: their cost, and how long quiet tenants wait.

A part of `queues.py`. 1,000 tenants, of which the busiest has an eighth of all records (Zipf), and
eight members.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer, ShareConsumer
from load_checks import LoadFailed, Sent, Stall, check_commit, check_errors
from load_setup import CHECKED, QUIET, Figures, Run
from loads import check_processes, percentiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokers import Measured

TENANTS, MEMBERS = 1000, 8
#: Work of a member for a record, and the records that it takes at once.
WORK_S, POLLED = 0.005, 5
#: Quiet tenants send this many records per second while members work on the backlog.
QUIET_PER_S = 50


def draw_tenants(count: int) -> list[int]:
    """Return the tenant of each record."""
    weights = list(itertools.accumulate(1 / (n + 1) for n in range(TENANTS)))
    return random.Random(5).choices(range(TENANTS), cum_weights=weights, k=count)


def cost(
    broker: Measured,
    run: Run,
    fill: Callable[[Run, str, list[int]], Sent],
    worked: Callable[..., tuple[float, float]],
    ended_cpu_s: Callable[[], float],
) -> Figures:
    """Rate and CPU time per record of broker and members, without fairness and with it."""
    found: Figures = {}
    count = run.count(400_000)
    for name, by in (("plain", "none"), ("fair", "key")):
        topic, group = run.topic(2), run.share_group()
        sent = fill(run, topic, draw_tenants(count))
        run.configure_group(group, {"share.fairness.by": by})
        cpu, members_cpu = broker.cpu_s(), ended_cpu_s()
        rates = worked(run, group, topic, lambda out: sum(out[:]) >= count, sent, warm=count // 20)
        found[f"{name}_per_s"] = sum(rates)
        found[f"{name}_cpu_us"] = (broker.cpu_s() - cpu) / count * 1e6
        found[f"{name}_members_cpu_us"] = (ended_cpu_s() - members_cpu) / count * 1e6
    plain_us, fair_us = (
        found[f"{name}_cpu_us"] + found[f"{name}_members_cpu_us"] for name in ("plain", "fair")
    )
    return {
        **found,
        "ratio": found["fair_per_s"] / found["plain_per_s"],
        "times_cpu": fair_us / plain_us,
    }


def quiet_waits(run: Run) -> Figures:
    """Time from the timestamp of a quiet tenant's record until a member begins it, while the busy
    tenants have a backlog."""
    found: Figures = {}
    for name, by in (("plain", "none"), ("fair", "key")):
        waits = percentiles(sorted(_measure_waits(run, by)))
        found |= {f"{name}_{figure}": value for figure, value in waits.items()}
    return found


def _measure_waits(run: Run, by: str) -> list[float]:
    """Return the waits of the quiet tenants' records, in seconds."""
    topic, group = run.topic(2), run.share_group()
    run.configure_group(group, {"share.fairness.by": by, "share.auto.offset.reset": "earliest"})
    backlog, quiet = run.count(20_000), run.count(1000)
    producer = Producer({"bootstrap.servers": run.bootstrap, "linger.ms": 5, **QUIET})
    for tenant in draw_tenants(backlog):
        producer.produce(topic, b"x" * 100, f"busy-{tenant}", partition=tenant % 2)
        producer.poll(0)
    producer.flush(60)
    waits: Any = multiprocessing.Queue()
    end, ready = multiprocessing.Event(), multiprocessing.Semaphore(0)
    words = (run.bootstrap, group, topic, ready, end, waits)
    members = [multiprocessing.Process(target=_work, args=words) for _ in range(MEMBERS)]
    sender = threading.Thread(target=_send_quiet, args=(producer, topic, quiet))
    return collect_waits(members, sender, quiet, ready, end, waits)


def collect_waits(
    members: list[Any], sender: threading.Thread, count: int, ready: Any, end: Any, waits: Any
) -> list[float]:
    """Start the members, and once one has a record the sender of `count` quiet ones. Return their
    waits in seconds. Raises LoadFailed."""
    for one in members:
        one.start()
    if not ready.acquire(timeout=60):
        raise LoadFailed("no member got a record")
    sender.start()
    found: list[float] = []
    stall = Stall(count)
    while len(found) < count:
        check_processes(members)
        time.sleep(0.01)
        while not waits.empty():
            found.append(waits.get())
        stall.look(len(found))
    end.set()
    sender.join()
    for one in members:
        one.join(30)
    return found


def _send_quiet(producer: Producer, topic: str, count: int) -> None:
    for n in range(count):
        producer.produce(topic, b"x" * 100, f"quiet-{n % 100}", partition=n % 2)
        producer.poll(1 / QUIET_PER_S)
        time.sleep(1 / QUIET_PER_S)
    producer.flush(60)


def _work(bootstrap: str, group: str, topic: str, ready: Any, end: Any, waits: Any) -> None:
    is_ready = False
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": POLLED,
            **CHECKED,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    while not end.is_set():
        messages = consumer.poll(0.2)
        check_errors(messages)
        if messages and not is_ready:
            is_ready = True
            ready.release()
        for message in messages:
            if message.key().startswith(b"quiet"):
                waits.put(time.time() - message.timestamp()[1] / 1000)
            time.sleep(WORK_S)
            consumer.acknowledge(message)
        if messages:
            check_commit(consumer.commit_sync(10))
    consumer.close()
