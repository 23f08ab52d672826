"""Attackers that are members of streams groups (`attack_catalogue`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.share.membership import LEAVE_EPOCH
from shoal.coordinator.group.streams.internal_topics import TASKS_MAX, StatusCode
from shoal.coordinator.group.streams.topology import ENTRIES_MAX
from shoal.coordinator.java_order import sort_by_hash
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.attacks.attackers import LONG_PATIENCE_S, MANY, configure, delete_topic
from support.runs.conditions import eventually
from support.streams.streams_dialogues import internal, subtopology, together, topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from support.attacks.attackers import Target
    from support.brokers.wireclient import WireClient

#: A topic of many partitions, and one of few, which internal topics get as well.
SOURCE, SMALL = "streams-source", "streams-small"
#: More topics than are created at once, also in a short attack.
CREATED_MIN = 150
TASKS = ("active_tasks", "standby_tasks", "warmup_tasks")
#: The other fields of a heartbeat in which nothing has changed.
OTHERS = ("topology", "process_id", "client_tags", "task_offsets", "task_end_offsets")


def describe_topologies(target: Target) -> None:
    """Topologies of as many entries as are allowed: subtopologies that all read the same
    partitions, that depend on each other in the worst order, with as many topics and co-partition
    groups. Their internal topics cannot be created. Others ask for what there is of them."""
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        partitions = target.count(MANY)
        client.create_topic(SOURCE, partitions)
        client.create_topic(SMALL)
        for name, values in make_topologies(target, partitions):
            group = f"streams-{name}"
            member = Member(client, group, values)
            body = {"group_ids": [group] * 1000, "include_authorized_operations": False}
            for _ in range(3):
                client.call(ApiKey.STREAMS_GROUP_DESCRIBE, 0, body)
                member.beat()
            if name == "tasks":
                eventually(member.has_tasks, timeout_s=LONG_PATIENCE_S)
            member.end()
        delete_topic(client, SOURCE)
        delete_topic(client, SMALL)


def create_internal_topics(target: Target) -> None:
    """Topics of a topology that the coordinator cannot create, and others that it creates."""
    group, count = "streams-creating", max(CREATED_MIN, target.count(ENTRIES_MAX - 100))
    names = [f"{group}-{number}" for number in range(count)]
    refused = [make_refused(f"{name}-refused") for name in names[: ENTRIES_MAX // 2 - 100]]
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(SOURCE)
        values = topology(subtopology("0", [SOURCE], changelogs=refused))
        member = Member(client, group, values)
        for _ in range(5):
            assert not member.has_topics()
        member.end()
        values = topology(subtopology("0", [SOURCE], changelogs=list(map(internal, names))))
        member = Member(client, group, values)
        eventually(member.has_topics, timeout_s=LONG_PATIENCE_S)
        member.end()
        topics = [{"name": name, "topic_id": None} for name in (*names, SOURCE)]
        body = {"topics": topics, "timeout_ms": 60_000}
        deleted = client.call(ApiKey.DELETE_TOPICS, 6, body)
        assert {topic.error_code for topic in deleted.responses} == {0}


def make_topologies(target: Target, partitions: int) -> Iterator[tuple[str, Any]]:
    count = target.count(ENTRIES_MAX - 100)
    tasks = min(count // 2, TASKS_MAX // partitions)
    for name, number in (
        ("tasks", tasks),
        ("more-tasks", 2 * tasks),
        ("most-tasks", count // 2),
        ("large", ENTRIES_MAX // 2 + 1),
    ):
        yield name, topology(*(subtopology(str(n), [SOURCE]) for n in range(number)))
    names = [f"streams-w-{number}" for number in range(count // 3)]
    wide = subtopology("0", [SMALL], sinks=names, repartition=list(map(make_refused, names)))
    yield "wide", topology(wide)
    order = reversed(sort_by_hash(str(number) for number in range(count // 4)))
    yield "chain", topology(*make_chain(order))
    fixed = [make_refused(f"streams-f-{number}", 1) for number in range(count // 4)]
    groups = [together([], [number]) for number in range(count // 4)]
    together_ones = subtopology("0", [SMALL], repartition=fixed, copartition=groups)
    yield "copartitioned", topology(together_ones)


def make_chain(order: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Each subtopology reads what the one before writes."""
    for at, number in enumerate(order):
        read = [make_refused(f"streams-c-{at - 1}")] if at else []
        sources, sinks = [] if at else [SMALL], [f"streams-c-{at}"]
        yield subtopology(number, sources, sinks=sinks, repartition=read)


def make_refused(name: str, partitions: int = 0) -> dict[str, Any]:
    """An internal topic that the controller does not create."""
    return internal(name, partitions, no_such_config="1")


class Member:
    """The only member of a group with a topology; not `is_in` if that is refused. The group is
    deleted at the end."""

    def __init__(self, client: WireClient, group: str, values: Any) -> None:
        self._client, self._group, self._epoch = client, group, 0
        self._has_tasks = False
        configure(client, group, {"streams.initial.rebalance.delay.ms": "0"})
        tasks: dict[str, Any] = dict.fromkeys(TASKS, ())
        joined = {"rebalance_timeout_ms": 60_000, "topology": values, "process_id": "p", **tasks}
        code = self.beat(**joined, client_tags=()).error_code
        assert code in (ErrorCode.none, ErrorCode.streams_invalid_topology)
        self.is_in = code == ErrorCode.none

    def beat(self, **fields: Any) -> Any:
        """Heartbeat, and return the answer."""
        body = {
            "group_id": self._group,
            "member_id": "m",
            "member_epoch": self._epoch,
            "rebalance_timeout_ms": -1,
            **dict.fromkeys((*TASKS, *OTHERS)),
            **fields,
        }
        answer = self._client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
        self._epoch = answer.member_epoch
        self._has_tasks |= bool(answer.active_tasks)
        return answer

    def has_tasks(self) -> bool:
        """Whether a heartbeat has brought tasks, this one or an earlier one."""
        self.beat()
        return self._has_tasks

    def has_topics(self) -> bool:
        """Whether no internal topic is missing."""
        answer = self.beat()
        assert answer.error_code == 0, answer
        missing = StatusCode.MISSING_INTERNAL_TOPICS
        return not any(status.status_code == missing for status in answer.status or ())

    def end(self) -> None:
        if self.is_in:
            assert self.beat(member_epoch=LEAVE_EPOCH).error_code == 0
            groups = {"groups_names": [self._group]}
            assert self._client.call(ApiKey.DELETE_GROUPS, 2, groups).results[0].error_code == 0
