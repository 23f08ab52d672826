"""Streams groups of a broker: a member whose connection ends, and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.streams.topology import ENTRIES_MAX
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")
#: The session timeout is 45 s.
BEFORE_THE_SESSION_ENDS_S = 30
#: A group assigns at once, and soon does without a member whose connection has ended.
SOON = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "shoal.group.streams.connection.lost.grace.ms": "300",
}


def topology(topic: str) -> dict[str, Any]:
    lists = (
        "source_topic_regex",
        "state_changelog_topics",
        "repartition_sink_topics",
        "repartition_source_topics",
        "copartition_groups",
    )
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [topic],
        **dict.fromkeys(lists, ()),
    }
    return {"epoch": 0, "subtopologies": [subtopology]}


class Member:
    """A member that follows its assignment at once."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.wire = WireClient(bootstrap)
        self.name = name
        self.epoch = 0
        self.owned: dict[str, Any] = dict.fromkeys(TASKS, ())

    @property
    def partitions(self) -> list[int]:
        return [p for task in self.owned["active_tasks"] for p in task["partitions"]]

    def heartbeat(self) -> list[int]:
        """Return the partitions of its active tasks."""
        joins = self.epoch == 0
        body = {
            "group_id": "app",
            "member_id": self.name,
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": 60_000 if joins else -1,
            "topology": topology("in") if joins else None,
            "process_id": self.name,
            **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets")),
            **self.owned,
        }
        answer = self.wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.owned = {
                role: [
                    {"subtopology_id": t.subtopology_id, "partitions": t.partitions}
                    for t in getattr(answer, role)
                ]
                for role in TASKS
            }
        return self.partitions


def test_a_dead_member_is_replaced_before_its_session_ends(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    broker = start_broker(configs=SOON)
    first, second = Member(broker.bootstrap, "first"), Member(broker.bootstrap, "second")
    with second.wire:
        with first.wire:
            second.wire.create_topic("in", 2)
            eventually(lambda: first.heartbeat() and second.heartbeat())
        eventually(lambda: len(second.heartbeat()) == 2, timeout_s=BEFORE_THE_SESSION_ENDS_S)


def test_metrics_count_groups_by_state_and_assignments(broker: ShoalProcess) -> None:
    prefix = "kafka_server_group_coordinator_metrics"

    def groups() -> dict[str, float]:
        found = broker.samples(f"{prefix}_streams_group_count")
        return {sample.labels["state"]: sample.value for sample in found if sample.value}

    member = Member(broker.bootstrap, "counted")
    with member.wire:
        member.wire.create_topic("other", 1)
        eventually(lambda: member.heartbeat() == [], what="a group without its topic")
        assert groups() == {"not_ready": 1}
        assigned = broker.metric(f"{prefix}_streams_group_rebalance_count_total")
        member.wire.create_topic("in", 1)
        eventually(lambda: member.heartbeat() and groups() == {"stable": 1}, what="a task")
        assert broker.metric(f"{prefix}_streams_group_rebalance_count_total") > assigned
        (kind,) = broker.samples(f"{prefix}_group_count", protocol="streams")
        assert kind.value == 1


def test_a_topology_that_is_too_large_is_refused(broker: ShoalProcess) -> None:
    """Each heartbeat of a group may look at all of it."""
    large = topology("in")
    large["subtopologies"][0]["source_topics"] *= ENTRIES_MAX
    body = {
        "group_id": "large-topology",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "topology": large,
        "process_id": "p",
        **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets")),
        **dict.fromkeys(TASKS, ()),
    }
    with WireClient(broker.bootstrap) as wire:
        answer = wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
    assert answer.error_code == ErrorCode.streams_invalid_topology
    assert f"may have {ENTRIES_MAX}" in answer.error_message
