"""Start offsets of share groups without members so far: Apache Kafka and Shoal, step by step.

The responses must be equal: top-level, topic and partition errors, group states and epochs, start
offsets and lag, and the output of Kafka's tools. Shoal restarts in between, since all of it is
durable. Kafka takes half a minute to describe an unknown topic, so its responses are in a file, and
it is asked for them at night.

Shoal differs deliberately where Kafka's response is not useful. It refuses a start offset below -1,
which Kafka stores. The lag of a start offset beyond the log's end is 0; Kafka's is negative. A
partition below 0 is unknown; Kafka answers UNKNOWN_SERVER_ERROR for the whole request.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ShareConsumer
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.timeout(300)
RECORDED = Path(__file__).with_name("share_offsets_of_kafka.json")

_RETRIED = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)
Partitions = Sequence[tuple[int, int]]


class Admin:
    """Requests about share groups on one broker, with responses that are comparable."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = WireClient(bootstrap)

    def _call(self, api: ApiKey, version: int, body: Mapping[str, Any], row: str = "") -> Any:
        def answered() -> Any:
            answer = self.wire.call(api, version, body)
            code = (getattr(answer, row)[0] if row else answer).error_code
            return answer if code not in _RETRIED else None

        return eventually(answered, what=api.name)

    def prepare(self) -> None:
        """Create topic `a` with 3 partitions and 10 records in the first, and an empty topic
        `b`."""
        self.wire.create_topic("a", 3)
        self.wire.create_topic("b")
        key = {"key_type": 0, "coordinator_keys": ["g"]}
        self._call(ApiKey.FIND_COORDINATOR, 4, key, "coordinators")

        def produced() -> bool:
            row = self.wire.produce("a", *(b"%d" % n for n in range(10)))
            return row.error_code is ErrorCode.none

        eventually(produced, what="a leader of a-0")
        eventually(lambda: self.wire.is_led("b"), what="a leader of b-0")

    def alter(self, group: str, *topics: tuple[str, Partitions]) -> Any:
        body = {
            "group_id": group,
            "topics": [
                {
                    "topic_name": name,
                    "partitions": [{"partition_index": p, "start_offset": o} for p, o in starts],
                }
                for name, starts in topics
            ],
        }
        answer = self._call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
        return answer.error_code.name, sorted(
            (
                t.topic_name,
                _has_id(t),
                [(p.partition_index, p.error_code.name) for p in t.partitions],
            )
            for t in answer.responses
        )

    def delete(self, group: str, *topics: str) -> Any:
        body = {"group_id": group, "topics": [{"topic_name": t} for t in topics]}
        answer = self._call(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, body)
        return answer.error_code.name, sorted(
            (t.topic_name, _has_id(t), t.error_code.name) for t in answer.responses
        )

    def describe(self, group: str, *topics: tuple[str, Sequence[int]]) -> Any:
        """Describe these partitions; all without `topics`."""
        named = [{"topic_name": name, "partitions": list(p)} for name, p in topics]
        body = {"groups": [{"group_id": group, "topics": named or None}]}
        answer = self._call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, body, "groups")
        (found,) = answer.groups
        return found.error_code.name, sorted(
            (
                t.topic_name,
                _has_id(t),
                [
                    (p.partition_index, p.start_offset, p.leader_epoch, p.lag, p.error_code.name)
                    for p in t.partitions
                ],
            )
            for t in found.topics
        )

    def state(self, group: str) -> Any:
        """Return the state as ShareGroupDescribe and ListGroups report it."""
        answer = self._call(ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [group]}, "groups")
        (found,) = answer.groups
        listed = [
            (g.protocol_type, g.group_state, g.group_type)
            for g in self.wire.call(ApiKey.LIST_GROUPS, 5, {}).groups
            if g.group_id == group
        ]
        epochs = (found.group_epoch, found.assignment_epoch)
        return found.error_code.name, found.group_state, epochs, len(found.members), listed

    def heartbeat(self, group: str, member_id: str, epoch: int, topics: Any = None) -> Any:
        body = {
            "group_id": group,
            "member_id": member_id,
            "member_epoch": epoch,
            "subscribed_topic_names": topics,
        }
        return self._call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)

    def join(self, group: str, topic: str) -> str:
        """Join and wait for an assignment; return the member id."""
        member_id = format_uuid(uuid.uuid4())
        epoch = 0
        topics: list[str] | None = [topic]

        def assigned() -> bool:
            nonlocal epoch, topics
            answer = self.heartbeat(group, member_id, epoch, topics)
            epoch, topics = answer.member_epoch, None
            return bool(answer.assignment and answer.assignment.topic_partitions)

        eventually(assigned, what="an assignment")
        return member_id

    def occupy(self, classic: str, consumer: str, topic: str) -> None:
        """Create a group of each other type."""
        offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        body = {"group_id": classic, "topics": [{"name": topic, "partitions": [offset]}]}
        row = self.wire.call(ApiKey.OFFSET_COMMIT, 8, body).topics[0].partitions[0]
        assert row.error_code is ErrorCode.none
        heartbeat = {
            "group_id": consumer,
            "member_id": format_uuid(uuid.uuid4()),
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        }
        self._call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, heartbeat)


def _has_id(row: Any) -> bool:
    return row.topic_id is not None and row.topic_id.int != 0


Steps = Iterator[tuple[str, Any]]


def steps(bootstrap: str, restart: Callable[[], object]) -> Steps:
    """Yield each request's name and its response."""
    Admin(bootstrap).prepare()
    yield from _unknown_group(Admin(bootstrap))
    yield "alter", Admin(bootstrap).alter("g", ("a", [(0, 5)]))
    restart()
    yield from _first_alterations(Admin(bootstrap))
    yield from _other_types(Admin(bootstrap))
    yield from _more_alterations(Admin(bootstrap))
    yield "delete one topic", Admin(bootstrap).delete("g", "b")
    restart()
    yield from _deletions(Admin(bootstrap))
    yield from _members(Admin(bootstrap))
    yield from _deleted_groups(Admin(bootstrap))


def _unknown_group(admin: Admin) -> Steps:
    yield "unknown group: describe", admin.describe("none")
    yield "unknown group: describe named", admin.describe("none", ("a", [0, 7]), ("no", [0]))
    yield "unknown group: delete", admin.delete("none", "a", "no")
    yield "unknown group: state", admin.state("none")
    yield "empty id: alter", admin.alter("", ("a", [(0, 5)]))
    yield "empty id: delete", admin.delete("", "a")
    yield "empty id: describe", admin.describe("")


def _first_alterations(admin: Admin) -> Steps:
    yield "state", admin.state("g")
    yield "describe", admin.describe("g")
    yield "describe named", admin.describe("g", ("a", [0, 1, 2, 7]), ("b", [0]), ("no", [0]))
    yield "describe named twice", admin.describe("g", ("a", [0, 0]), ("a", [1]))

    mixed = (("a", [(0, 1), (1, 0), (2, 0), (3, 4)]), ("b", [(0, 0)]), ("no", [(0, 1), (1, 1)]))
    yield "several: alter", admin.alter("several", *mixed)
    yield "several: describe", admin.describe("several")
    yield "several: state", admin.state("several")
    for name, topics in (
        ("no topic", ()),
        ("unknown topic", [("no", [(0, 5)])]),
        ("out of range", [("a", [(3, 4)])]),
        ("no partition", [("a", [])]),
        ("a partition twice", [("a", [(0, 4), (0, 5)])]),
        ("a topic twice", [("a", [(0, 4)]), ("a", [(0, 5), (1, 0)])]),
        ("by policy", [("a", [(0, -1)])]),
    ):
        group = name.replace(" ", "-")
        yield f"{name}: alter", admin.alter(group, *topics)
        yield f"{name}: state", admin.state(group)
        yield f"{name}: describe", admin.describe(group)
    yield "internal topic", admin.alter("internal", ("__consumer_offsets", [(0, 0)]))
    yield "internal topic: state", admin.state("internal")


def _other_types(admin: Admin) -> Steps:
    admin.occupy("classic", "consumer", "a")
    for group in ("classic", "consumer"):
        yield f"{group}: alter", admin.alter(group, ("a", [(0, 3)]))
        yield f"{group}: describe", admin.describe(group)
        yield f"{group}: describe named", admin.describe(group, ("a", [0]))
        yield f"{group}: delete", admin.delete(group, "a")


def _more_alterations(admin: Admin) -> Steps:
    yield "another topic: alter", admin.alter("g", ("b", [(0, 0)]))
    yield "another topic: describe", admin.describe("g")
    yield "again: alter", admin.alter("g", ("a", [(0, 7)]))
    yield "again: state", admin.state("g")
    yield "again: describe", admin.describe("g")


def _deletions(admin: Admin) -> Steps:
    yield "one topic deleted: describe", admin.describe("g")
    yield "one topic deleted: describe named", admin.describe("g", ("a", [0]), ("b", [0]))
    yield "one topic deleted: delete again", admin.delete("g", "b")
    yield "delete twice", admin.delete("several", "b", "b", "no")
    yield "delete all kinds", admin.delete("g", "no", "b", "a")
    yield "delete no topic", admin.delete("g")
    yield "all deleted: describe", admin.describe("g")
    yield "all deleted: state", admin.state("g")
    yield "all deleted: alter", admin.alter("g", ("a", [(0, 3)]))
    yield "all deleted: describe again", admin.describe("g")


def _members(admin: Admin) -> Steps:
    member_id = admin.join("busy", "a")
    yield "busy: alter", admin.alter("busy", ("a", [(0, 3)]))
    yield "busy: alter an unknown topic", admin.alter("busy", ("no", [(0, 3)]))
    yield "busy: delete", admin.delete("busy", "a")
    yield "busy: delete an unknown topic", admin.delete("busy", "no")
    admin.heartbeat("busy", member_id, -1)
    yield "left: alter", admin.alter("busy", ("a", [(0, 3)]), ("b", [(0, 0)]))
    yield "left: describe", admin.describe("busy")

    yield "first member: alter", admin.alter("first-member", ("a", [(0, 3)]))


def _deleted_groups(admin: Admin) -> Steps:
    gone = admin.wire.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g", "several", "none"]})
    yield "groups deleted", sorted((r.group_id, r.error_code.name) for r in gone.results)
    yield "groups deleted: state", admin.state("g")
    yield "groups deleted: describe", admin.describe("g", ("a", [0]))


def consumed(bootstrap: str, group: str, topic: str, count: int) -> list[bytes | None]:
    """Return the first records that librdkafka's share consumer gets."""
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def read() -> bool:
        found.extend(m.value() for m in consumer.poll(0.2) if m.error() is None)
        return len(found) >= count

    try:
        eventually(read, what="the records from the start offset")
    finally:
        consumer.close()
    return found


def said_by_tools(bootstrap: str) -> Steps:
    """Yield the output of `kafka-share-groups` for a group that only this tool has used."""
    tools = KafkaTools(bootstrap)
    group = ("--group", "by-tools")
    reset = ("share-groups", "--reset-offsets", *group, "--topic", "a:0", "--to-latest")
    yield "reset, dry run", tools.run(*reset, "--dry-run")
    yield "reset", tools.run(*reset, "--execute")
    yield "describe", tools.run("share-groups", "--describe", *group)
    yield "delete offsets", tools.run("share-groups", "--delete-offsets", *group, "--topic", "a")
    yield "delete", tools.run("share-groups", "--delete", *group)


def check_recorded(bootstrap: str, restart: Callable[[], object]) -> None:
    """Check that a broker responds as Kafka did when its responses were recorded."""
    found = [*steps(bootstrap, restart)]
    found += [(what, said.split()) for what, said in said_by_tools(bootstrap)]
    wanted = json.loads(RECORDED.read_text())
    plain = json.loads(json.dumps(found))
    assert [step for step in plain if step not in wanted] == []
    assert plain == wanted


@pytest.mark.java
def test_shoal_answers_as_kafka(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "shoal").start()
    try:
        check_recorded(broker.bootstrap, broker.restart)
    finally:
        broker.kill9()


@pytest.mark.java
@pytest.mark.nightly
def test_kafka_answers_as_recorded(kafka: SharedKafka) -> None:
    check_recorded(kafka.bootstrap, lambda: None)


def test_a_member_starts_where_the_offset_was_set(tmp_path: Path) -> None:
    """`shoal groups` sets it before the group exists, and librdkafka reads from there."""
    broker = ShoalProcess(tmp_path).start()
    try:
        shoal = Shoal(broker.bootstrap)
        Admin(broker.bootstrap).prepare()
        reset = ("groups", "reset-offsets", "jobs", "-t", "a:0", "--to-offset", "6", "--execute")
        assert "--type share" in shoal.refusal(*reset)
        assert shoal.json("groups", "list") == []
        shoal.run(*reset, "--type", "share")
        (group,) = shoal.json("groups", "describe", "jobs")
        assert (group["type"], group["state"], group["lag"]) == ("Share", "Empty", 4)
        assert "classic group" in shoal.refusal(*reset, "--type", "classic")
        broker.restart()
        assert consumed(broker.bootstrap, "jobs", "a", 4) == [b"6", b"7", b"8", b"9"]
        shoal.run("groups", "delete-offsets", "jobs", "-t", "a")
        (group,) = shoal.json("groups", "describe", "jobs")
        assert group["partitions"] == []
        shoal.run("groups", "delete", "jobs")
        assert shoal.json("groups", "list") == []
    finally:
        broker.kill9()


def test_offsets_of_no_use(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path).start()
    try:
        admin = Admin(broker.bootstrap)
        admin.prepare()
        assert admin.alter("g", ("a", [(0, -2), (1, 0)])) == ("invalid_request", [])
        assert admin.state("g")[0] == "group_id_not_found"
        unknown = (-1, "unknown_topic_or_partition")
        rows = ("a", True, [unknown, (0, "none")])
        assert admin.alter("g", ("a", [(-1, 4), (0, 50)])) == ("none", [rows])
        assert admin.describe("g") == ("none", [("a", True, [(0, 50, 0, 0, "none")])])
    finally:
        broker.kill9()
