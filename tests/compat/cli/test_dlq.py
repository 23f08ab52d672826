"""`shoal dlq` tells what was redriven, and leaves ordinary topics alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from support.brokers.commands import Shoal

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

_numbers = itertools.count()


@pytest.fixture
def queue(shared_broker: ShoalProcess) -> str:
    """A queue with three dead letters."""
    name = f"failed-{next(_numbers)}"
    shoal = Shoal(shared_broker.bootstrap)
    shoal.run("queue", "create", name, "--dead-letters")
    shoal.run("produce", name, stdin="0\n1\n2\n")
    shoal.run("share-consume", name, "-g", name, "--ack", "reject", "-n", "3")
    return name


def test_list_and_peek_show_what_was_redriven(shared_broker: ShoalProcess, queue: str) -> None:
    shoal = Shoal(shared_broker.bootstrap)
    shoal.run("dlq", "redrive", f"dlq.{queue}", "-n", "1")
    (row,) = [row for row in shoal.json("dlq", "list") if row["topic"] == f"dlq.{queue}"]
    assert (row["records"], row["redriven"]) == (3, 1)
    letters = shoal.json("dlq", "peek", f"dlq.{queue}")
    assert [letter["redriven"] for letter in letters] == [True, False, False]
    # Letters that are deleted count no longer.
    shoal.run("topics", "delete-records", f"dlq.{queue}", "--before", "2")
    (row,) = [row for row in shoal.json("dlq", "list") if row["topic"] == f"dlq.{queue}"]
    assert (row["records"], row["redriven"]) == (1, 0)


@pytest.mark.parametrize("words", [("redrive",), ("redrive", "--dry-run"), ("purge", "--yes")])
def test_an_ordinary_topic_is_refused(
    shared_broker: ShoalProcess, queue: str, words: tuple[str, ...]
) -> None:
    shoal = Shoal(shared_broker.bootstrap)
    verb, *options = words
    told = shoal.refusal("dlq", verb, queue, *options)
    assert f"{queue} is not a topic of dead letters" in told
    assert f"dlq.{queue}" in told
    assert [row["offset"] for row in shoal.json("topics", "offsets", queue)] == [3]
