"""A Redrive on Kubernetes: the API server's checks, permissions of the operator, and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.resources import queue_topic, share_group

if TYPE_CHECKING:
    from e2e.resources import Resources

LETTERS = 20


def redrive(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "shoal.dev/v1beta1",
        "kind": "Redrive",
        "metadata": {"name": "again"},
        "spec": {"cluster": "main", "topic": "dlq.jobs", **spec},
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"to": "dlq.jobs"}, "to must be another topic than the dead-letter topic"),
        ({"letters": {"reasons": ["bored"]}}, "spec.letters.reasons"),
        ({"letters": {"since": "yesterday"}}, "spec.letters.since"),
        ({"lettersPerSecond": 0}, "spec.lettersPerSecond"),
    ],
)
def test_the_api_server_refuses_what_cannot_work(
    queue: Resources, spec: dict[str, Any], words: str
) -> None:
    assert words in queue.refusal(redrive(**spec))


def test_dead_letters_are_sent_back_once(queue: Resources) -> None:
    group = share_group(deadLetters={"topic": "dlq.jobs", "create": {}})
    queue.apply(queue_topic(), group)
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    queue.produce("jobs", LETTERS)
    rejected = queue.share_consume("jobs", "workers", "--ack=reject", f"-n{LETTERS}")
    assert len(rejected) == LETTERS
    queue.wait_status("sharegroup/workers", deadLettered=LETTERS)
    queue.apply(redrive(lettersPerSecond=200))
    queue.wait("redrive/again")
    status = queue.status("redrive/again")
    assert (status["total"], status["lookedAt"], status["sent"]) == (LETTERS,) * 3
    assert sorted(map(int, queue.share_consume("jobs", "workers"))) == list(range(LETTERS))
    # A second pass of the same id sends nothing.
    queue.apply(redrive(lettersPerSecond=100))
    assert queue.share_consume("jobs", "workers") == []
    assert queue.events("Redrive", "again", "Redriven")
