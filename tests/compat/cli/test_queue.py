"""`shoal queue`: one command makes a queue, and makes it once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.queues import queue_creation, queue_settings
from shoal.client.queues.queue_creation import NewQueue, QueuePlan
from shoal.client.queues.queue_settings import QueueSettings
from support.brokers.commands import Shoal

if TYPE_CHECKING:
    from shoal.client.admin.admin import Admin
    from support.brokers.servers import ShoalProcess

_numbers = itertools.count()
FULL = (
    *("--retries", "5", "--backoff", "1s..5m", "--dead-letters", "--order", "key"),
    *("--delays", "2d", "--priorities", "--fair-by", "header:customer"),
)
CONFIGS = {
    "errors.deadletterqueue.copy.record.enable": "true",
    "share.auto.offset.reset": "earliest",
    "share.delay.max.ms": "172800000",
    "share.delivery.count.limit": "6",
    "share.fairness.by": "header:customer",
    "share.ordering": "key",
    "share.priority.header": "priority",
    "share.redelivery.backoff.max.ms": "300000",
    "share.redelivery.backoff.ms": "1000",
}


@pytest.fixture(scope="module")
def shoal(shared_broker: ShoalProcess) -> Shoal:
    return Shoal(shared_broker.bootstrap)


@pytest.fixture
def name() -> str:
    return f"queue-{next(_numbers)}"


def get_own_configs(shoal: Shoal, kind: str, name: str) -> dict[str, str]:
    rows = shoal.json("configs", "describe", kind, name)
    return {r["config"]: r["value"] for r in rows if r["source"] in ("group", "dynamic topic")}


def list_topics(shoal: Shoal) -> list[str]:
    return [row["topic"] for row in shoal.json("topics", "list")]


def test_one_command_makes_a_queue(shoal: Shoal, name: str) -> None:
    said = shoal.says("queue", "create", name, *FULL, "--partitions", "2")
    assert f"Created topic {name} with 2 partitions." in said
    assert f"Created topic dlq.{name} with 1 partition." in said
    letters = {"errors.deadletterqueue.topic.name": f"dlq.{name}"}
    assert get_own_configs(shoal, "group", name) == CONFIGS | letters
    assert get_own_configs(shoal, "topic", f"dlq.{name}") == {
        "errors.deadletterqueue.group.enable": "true"
    }
    (row,) = [row for row in shoal.json("queue", "list") if row["queue"] == name]
    assert row["group"] == name
    assert row["dead_letter_topic"] == f"dlq.{name}"
    shoal.run("produce", name, stdin="bad\n")
    shoal.run("share-consume", name, "-g", name, "--ack", "reject", "-n", "1")
    (row,) = [row for row in shoal.json("queue", "list") if row["queue"] == name]
    assert (row["backlog"], row["dead_letters"]) == (0, 1)


def test_a_new_group_starts_at_the_earliest_record(shoal: Shoal, name: str) -> None:
    """It gets what was there before the queue, and what joins a partition that is added later."""
    shoal.run("topics", "create", name)
    shoal.run("produce", name, stdin="early\n")
    said = shoal.says("queue", "create", name, "-g", f"{name}-workers")
    assert f"Group {name}-workers starts at the earliest record of {name}." in said
    described = shoal.json("queue", "describe", name)
    assert (described["backlog"], described["group"]) == (1, f"{name}-workers")
    consume = ("share-consume", name, "-g", f"{name}-workers", "-n", "1", "--timeout", "20s")
    assert "early" in shoal.says(*consume)


def test_a_queue_that_exists_is_not_made_again(shoal: Shoal, name: str) -> None:
    shoal.run("queue", "create", name, *FULL)
    assert shoal.says("queue", "create", name, *FULL).splitlines() == [
        f"Topic {name} exists already, with 1 partition.",
        f"Topic dlq.{name} exists already, with 1 partition.",
        f"Group {name} has these settings already.",
    ]


def test_what_a_queue_lacks_is_made(shoal: Shoal, name: str) -> None:
    shoal.run("topics", "create", name, f"dlq.{name}")
    shoal.run("configs", "set", "group", name, "share.delivery.count.limit=6")
    said = shoal.says("queue", "create", name, *FULL)
    assert "share.delivery.count.limit" not in said
    letters = {"errors.deadletterqueue.topic.name": f"dlq.{name}"}
    assert get_own_configs(shoal, "group", name) == CONFIGS | letters
    assert get_own_configs(shoal, "topic", f"dlq.{name}")


def test_a_difference_is_refused_with_the_way_to_alter_it(shoal: Shoal, name: str) -> None:
    shoal.run("queue", "create", name, "--retries", "5")
    before = get_own_configs(shoal, "group", name)
    told = shoal.refusal("queue", "create", name, "-r", "3", "--dead-letters", "-p", "4")
    assert f"shoal configs set group {name} share.delivery.count.limit=4." in told
    assert f"shoal topics alter {name} --partitions 4." in told
    assert get_own_configs(shoal, "group", name) == before
    assert f"dlq.{name}" not in list_topics(shoal)


def test_a_refusal_leaves_nothing_half_made(shoal: Shoal, name: str) -> None:
    told = shoal.refusal("queue", "create", name, "--dead-letters", "--retries", "100000")
    assert "share.delivery.count.limit" in told
    assert not {name, f"dlq.{name}"} & {*list_topics(shoal)}
    assert get_own_configs(shoal, "group", name) == {}


def test_a_failure_on_the_way_comes_after_what_is_made(shared_broker: ShoalProcess) -> None:
    """A change between the check and the step: the sentences so far say what is there."""
    plan = QueuePlan(NewQueue("halfway", "halfway", QueueSettings()))
    plan.topics.append(NewTopic("halfway", 1))
    plan.configs[queue_settings.make_group("halfway")] = {"share.delivery.count.limit": "0"}
    said: list[str] = []

    async def run(admin: Admin) -> None:
        async for sentence in queue_creation.apply(admin, plan):
            said.append(sentence)  # noqa: PERF401 - What was said before the error counts.

    with (
        SyncClient(shared_broker.bootstrap) as client,
        pytest.raises(KafkaError, match=r"share\.delivery\.count\.limit"),
    ):
        client.run(run(client.admin))
    assert said == ["Created topic halfway with 1 partition."]


def test_usage(shoal: Shoal, name: str) -> None:
    assert "5m..1s" in shoal.mistake("queue", "create", name, "--backoff", "5m..1s")
    assert "--order must be key" in shoal.mistake("queue", "create", name, "--order", "time")
    assert "--delays soon is" in shoal.mistake("queue", "create", name, "--delays", "soon")
    assert "at least 1" in shoal.mistake("queue", "create", name, "-p", "0")
    assert "is reserved" in shoal.mistake("queue", "create", name, "-g", "redrive.it")


def test_a_group_of_another_type_is_refused(shoal: Shoal, name: str) -> None:
    shoal.run("topics", "create", name)
    shoal.run("produce", name, stdin="1\n")
    shoal.run("consume", name, "-g", name, "--from-beginning", "-n", "1")
    assert f"Group {name} is a consumer group" in shoal.refusal("queue", "create", name)


def test_describe_shows_members_and_settings(shoal: Shoal, name: str) -> None:
    shoal.run("queue", "create", name, *FULL)
    shoal.run("produce", name, stdin="1\n2\n")
    text = shoal.says("queue", "describe", name)
    assert f"{name}   1 partition, group {name}, Empty, backlog 2" in text
    assert f"0 dead letters in dlq.{name}" in text
    assert "share.delivery.count.limit" in text
    assert "The group has no members." in text
    assert f"shoal queue create {name}-x" not in shoal.refusal("queue", "describe", f"{name}-x")
    told = shoal.refusal("queue", "describe", name, "-g", "nobody")
    assert f"Choose --group from: {name}." in told


def test_delete_asks_and_leaves_what_others_use(shoal: Shoal, name: str) -> None:
    other = f"{name}-other"
    shoal.run("queue", "create", name, *FULL)
    shoal.run("queue", "create", name, "-g", other)
    told = shoal.refusal("queue", "delete", name, status=2)
    assert f"--yes is missing: group {name}, topic dlq.{name} (0 records) would be deleted" in told
    said = shoal.says("queue", "delete", name, "--yes")
    assert f"Topic {name} stays, because of group {other}." in said
    assert f"dlq.{name}" not in list_topics(shoal)
    assert get_own_configs(shoal, "group", name) == {}
    shoal.run("queue", "delete", name, "--yes")
    assert name not in list_topics(shoal)
    assert name not in [row["queue"] for row in shoal.json("queue", "list")]


def test_a_group_that_nobody_has_seen_gets_a_warning(shoal: Shoal, name: str) -> None:
    shoal.run("queue", "create", name)
    limit = "share.delivery.count.limit=9"
    assert shoal.run("configs", "set", "group", name, limit).stderr == ""
    unseen = shoal.run("configs", "set", "group", f"{name}s", limit).stderr
    assert f"nobody has used group {name}s yet" in unseen
    assert name in unseen.partition("Did you mean")[2]
    assert shoal.run("configs", "set", "group", f"{name}s", limit).stderr == ""
