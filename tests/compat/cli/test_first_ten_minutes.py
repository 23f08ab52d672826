"""A new user's first ten minutes: a topic, three share consumers, a release, and no lag left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.brokers.commands import RunningCommand, Shoal
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess


def offsets(command: RunningCommand) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in map(json.loads, list(command.lines))]


def test_first_ten_minutes(broker: ShoalProcess) -> None:
    shoal = Shoal(broker.bootstrap)
    assert shoal.says("topics", "create", "tasks", "-p", "2") == (
        "Created topic tasks with 2 partitions.\n"
    )
    take = ("share-consume", "tasks", "-g", "workers", "--from-beginning", "-f", "json")
    workers = [shoal.start(*take, "--max-records", "5") for _ in range(3)]
    try:
        eventually(lambda: shoal.json("groups", "lag", "workers")[0]["members"] == 3)
        sent = shoal.run("produce", "tasks", stdin="".join(f"job {i}\n" for i in range(3000)))
        assert sent.stderr == "Produced 3000 records to tasks.\n"
        eventually(lambda: sum(len(w.lines) for w in workers) >= 3000)
        eventually(lambda: shoal.json("groups", "lag", "workers")[0]["lag"] == 0)
        taken = [offsets(worker) for worker in workers]
        assert all(len(some) > 100 for some in taken), [len(some) for some in taken]
        assert len(set(taken[0] + taken[1] + taken[2])) == sum(map(len, taken)) == 3000
        assert [worker.interrupt() for worker in workers] == [130] * 3
    finally:
        for worker in workers:
            worker.kill()

    shoal.run("produce", "tasks", stdin="poison\n")
    once = (
        "share-consume",
        "tasks",
        "-g",
        "workers",
        "-n",
        "1",
        "-f",
        "{value} delivery {delivery_count}",
    )
    assert shoal.says(*once, "--ack", "release") == "poison delivery 1\n"
    assert shoal.json("groups", "lag", "workers")[0]["lag"] == 1
    assert shoal.says(*once, "--ack", "release") == "poison delivery 2\n"
    assert shoal.says(*once, "--ack", "accept") == "poison delivery 3\n"
    lag = ("groups", "lag", "workers", "--metrics", broker.metrics_url)
    (row,) = eventually(lambda: [r for r in shoal.json(*lag) if not r["lag"]])
    assert row["type"] == "Share"
    assert row["state"] == "Empty"
    assert (row["members"], row["lag"], row["in_flight"]) == (0, 0, 0)
    described = shoal.says("groups", "describe", "workers", "--metrics", broker.metrics_url)
    assert "Share, Empty, lag 0, 0 in flight" in described
    assert "The group has no members." in described
