"""`shoal share cancel`: which records it selects, and what it says of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.member import AcquireMode
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.client.share.member import ShareSession
    from support.brokers.servers import ShoalProcess


@pytest.fixture
def queue(shared_broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Queue(client, shared_broker.bootstrap, partitions=2)


def hold(queue: Queue, records: int) -> ShareSession:
    """Return a member that holds this number of records."""
    session = queue.client.run(queue.client.client.share(queue.group, [queue.topic]))
    held = 0

    def has_enough() -> bool:
        nonlocal held
        wanted, mode = records - held, AcquireMode.RECORD_LIMIT
        held += queue.client.run(session.acquire(max_records=wanted, mode=mode)).count
        return held == records

    eventually(has_enough, timeout_s=30, what=f"{records} records are held")
    return session


def test_records_are_selected_by_what_they_contain(queue: Queue) -> None:
    shoal, words = Shoal(queue.bootstrap), ("share", "cancel", queue.group, queue.topic)
    queue.produce([0], partition=0, headers=(("shoal.dedup.id", b"job-1"),))
    queue.produce([1], partition=1, headers=(("shoal.dedup.id", b"job-1"), ("tenant", b"acme")))
    queue.produce([2], partition=0, headers=(("tenant", b"acme"),), timestamp_ms=1_000)
    queue.produce([3], partition=0, key=b"a")
    session = hold(queue, 1)
    by_id = shoal.json(*words, "--id", "job-1")
    assert (by_id["cancelled"], by_id["in_flight"], by_id["done"]) == (1, 1, 0)
    assert [(row["partition"], row["offset"]) for row in by_id["records"]] == [(0, 0), (1, 0)]
    again = shoal.json(*words, "--id", "job-1")
    assert (again["cancelled"], again["in_flight"]) == (0, 1)
    early = shoal.json(*words, "--header", "tenant=acme", "--before", "2020-01-01T00:00")
    assert early["records"] == [
        {"topic": queue.topic, "partition": 0, "offset": 1, "outcome": "cancelled"}
    ]
    said = shoal.says(*words, "--key", "a")
    assert said.splitlines()[-1] == "Records: 1 cancelled."
    said = shoal.says(*words[:3], f"{queue.topic}:0", "--offsets", "1-3")
    assert said.splitlines()[-1] == "Records: 2 done before, 1 not in the log."
    assert shoal.says(*words, "--key", "b") == (
        f"{queue.topic} has no such records for group {queue.group}.\n"
    )
    queue.client.run(session.close())


def test_thousands_of_records_take_several_requests_and_few_rows(queue: Queue) -> None:
    queue.produce(range(2_500), partition=0, key=b"a")
    session = hold(queue, 1)
    said = Shoal(queue.bootstrap).json(
        *("share", "cancel", queue.group, queue.topic, "--key", "a", "--max-rows", "2")
    )
    assert (said["cancelled"], said["in_flight"]) == (2_499, 1)
    assert [row["outcome"] for row in said["records"]] == ["in-flight", "cancelled"]
    queue.client.run(session.close())


def test_a_cancellation_that_fails_says_what_it_did_before(queue: Queue) -> None:
    """The group does not know the third partition."""
    queue.produce(range(3), partition=0, key=b"a")
    session = hold(queue, 1)
    Shoal(queue.bootstrap).run("topics", "alter", queue.topic, "--partitions", "3")
    words = ("share", "cancel", queue.group, queue.topic, "--key", "a", "--format", "json")
    failed = Shoal(queue.bootstrap).run(*words, status=1)
    found = json.loads(failed.stdout)
    assert (found["cancelled"], found["in_flight"]) == (2, 1)
    assert [row["outcome"] for row in found["records"]] == ["in-flight", "cancelled", "cancelled"]
    assert "has not begun to read" in failed.stderr
    queue.client.run(session.close())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "one of --id, --offsets, --key and --header"),
        (("--id", "a", "--key", "b"), "one of --id, --offsets, --key and --header"),
        (("--header", "tenant"), "--header must be NAME=VALUE"),
        (("--offsets", "1"), "--offsets needs one partition"),
    ],
)
def test_a_selection_that_is_not_clear_is_refused(
    queue: Queue, options: tuple[str, ...], said: str
) -> None:
    session = hold(queue, 0)
    words = ("share", "cancel", queue.group, queue.topic)
    assert said in Shoal(queue.bootstrap).refusal(*words, *options, status=2)
    queue.client.run(session.close())
