"""A ShareGroup says that its dead letters cannot be written before the first one, on a real
broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, resource
from kube.consumers.test_bad_input import GROUP
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal_operator.brokers.calls import Brokers
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

ENABLED = "errors.deadletterqueue.group.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"


@pytest.mark.parametrize(
    ("letters", "config", "reason", "words"),
    [
        ({"topic": "dlq.absent"}, {}, "DeadLetterTopicMissing", "Add create: {} to"),
        ({"topic": "dlq.absent"}, {AUTO_CREATE: "true"}, "NotDegraded", ""),
        ({"topic": "dlq.plain"}, {}, "DeadLetterTopicForbidden", f"Set {ENABLED}=true"),
        ({"topic": "dlq.good"}, {}, "NotDegraded", ""),
        ({"topic": "letters-of-g"}, {}, "DeadLetterTopicRefused", "has to begin with 'dlq.'"),
        ({"topic": "dlq.good"}, {PREFIX: "dead-"}, "DeadLetterTopicRefused", "'dead-'"),
        ({"topic": "dlq.work"}, {}, "DeadLetterTopicRefused", "is a topic of the group"),
        (
            {"topic": "others-of-g", "create": {"partitions": 1}},
            {},
            "DeadLetterTopicRefused",
            "has to begin with 'dlq.'",
        ),
    ],
)
def test_dead_letter_topics(
    shared_broker: ShoalProcess,
    letters: dict[str, Any],
    config: dict[str, str],
    reason: str,
    words: str,
) -> None:
    kube = ApiServer(CrashPoint())
    listeners = [{"name": "p", "port": 9092}]
    kube.add(resource("QueueCluster", "main", listeners=listeners, config=config))
    letters = {"copyRecords": False, "floodPerMinute": 0, **letters}
    kube.add(resource("ShareGroup", "g", **GROUP, topics=["dlq.work"], deadLetters=letters))

    async def reconcile() -> list[str]:
        async with Client(shared_broker.bootstrap) as client:
            topics = [NewTopic(name, 1) for name in ("dlq.work", "dlq.plain")]
            topics.append(NewTopic("dlq.good", 1, configs={ENABLED: "true"}))
            await client.admin.topics.create(topics)
        brokers = Brokers(shared_broker.bootstrap)
        place = (kube, kube.store(), brokers, "n", "main")
        try:
            groups = ShareGroupReconciler(*place, monitor=GroupMonitor(*place))
            await groups.reconcile(groups.list_names())
            return sorted(await brokers.describe_topics(["letters-of-g", "others-of-g"]))
        finally:
            await brokers.close()

    assert asyncio.run(reconcile()) == []
    conditions = kube.find("ShareGroup", "g")["status"]["conditions"]
    (degraded,) = [one for one in conditions if one["type"] == "Degraded"]
    assert degraded["reason"] == reason
    assert words in degraded["message"]
