"""`shoal share inspect` and `pause`: what each record in flight waits for."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.admin.share_groups import InFlightPage
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import Acknowledgement, AcknowledgeType, AcquireMode, ShareSession
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import InFlightState
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

DLQ = "errors.deadletterqueue"
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class Inspected(Queue):
    """A queue, the commands, and members of its group."""

    def __init__(self, client: SyncClient, bootstrap: str, **options: Any) -> None:
        super().__init__(client, bootstrap, **options)
        self.shoal = Shoal(bootstrap)
        self.sessions: list[ShareSession] = []

    def join(self) -> ShareSession:
        session = self.client.run(self.client.client.share(self.group, [self.topic]))
        self.sessions.append(session)
        return session

    def acquire(self, session: ShareSession, records: int) -> list[int]:
        """Acquire exactly this number of records, and return their offsets."""
        found: list[int] = []

        async def some() -> None:
            wanted, mode = records - len(found), AcquireMode.RECORD_LIMIT
            for acquired in await session.acquire(max_records=wanted, mode=mode):
                for one in acquired.ranges:
                    found.extend(range(one.first_offset, one.last_offset + 1))

        def enough() -> bool:
            self.client.run(some())
            return len(found) == records

        eventually(enough, timeout_s=30, what=f"{records} records are acquired")
        return found

    def settle(
        self, session: ShareSession, kind: AcknowledgeType, *offsets: int, partition: int = 0
    ) -> None:
        sent = [Acknowledgement(self.topic, partition, at, at, kind) for at in offsets]
        assert not self.client.run(session.acknowledge(sent))

    def inspect(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.shoal.json(
            "share", "inspect", self.group, self.topic, *words
        )
        return found

    def states(self, *words: str) -> list[tuple[int, str]]:
        return [(row["offset"], row["state"]) for row in self.inspect(*words)]

    def close(self) -> None:
        for session in self.sessions:
            self.client.run(session.close())


@pytest.fixture
def broker(chosen_broker: ShoalProcess) -> ShoalProcess:
    return chosen_broker


@pytest.fixture
def queue(broker: ShoalProcess) -> Iterator[Inspected]:
    with SyncClient(broker.bootstrap) as client:
        found = Inspected(client, broker.bootstrap)
        yield found
        found.close()


def test_records_of_members_show_who_holds_them_and_for_how_long(queue: Inspected) -> None:
    queue.produce([0, 1], key=b"a")
    queue.produce([2, 3], key=b"\xff")
    ann, bob = queue.join(), queue.join()
    assert queue.acquire(ann, 3) == [0, 1, 2]
    assert queue.acquire(bob, 1) == [3]
    queue.settle(ann, AcknowledgeType.ACCEPT, 1)
    rows = queue.inspect()
    assert [(r["offset"], r["state"], r["delivery_count"], r["member"]) for r in rows] == [
        (0, "acquired", 1, ann.member_id),
        (2, "acquired", 1, ann.member_id),
        (3, "acquired", 1, bob.member_id),
    ]
    assert [row["key"] for row in rows] == ["a", "0xff", "0xff"]
    assert all(0 < row["time_left_ms"] <= 30_000 for row in rows)
    assert rows[2]["time_left_ms"] >= rows[0]["time_left_ms"] > 0
    table = queue.shoal.says("share", "inspect", queue.group, f"{queue.topic}:0", "--no-keys")
    assert table.splitlines()[0].split() == [
        *("PARTITION", "OFFSET", "STATE", "DELIVERIES", "TIME", "LEFT", "MEMBER", "KEY")
    ]
    assert table.splitlines()[3].split()[:4] == ["0", "3", "acquired", "1"]
    queue.settle(ann, RELEASE, 0)
    assert queue.states() == [(2, "acquired"), (3, "acquired")]
    (row,) = queue.inspect("--state", "available")
    assert (row["offset"], row["delivery_count"], row["time_left_ms"]) == (0, 1, None)


@pytest.mark.usefixtures("start_broker")
def test_failed_records_show_what_they_wait_for(queue: Inspected, broker: ShoalProcess) -> None:
    """The dead-letter topic does not exist, so the letter waits. A restart loses the locks only."""
    queue.configure(
        **{
            "share.redelivery.backoff.ms": "60000",
            "share.redelivery.backoff.max.ms": "60000",
            f"{DLQ}.topic.name": f"dlq.{uuid.uuid4().hex[:8]}",
        }
    )
    queue.produce(range(4))
    member = queue.join()
    queue.acquire(member, 4)
    queue.settle(member, RELEASE, 1)
    queue.settle(member, REJECT, 2)
    expected = [(0, "acquired"), (1, "backing-off"), (2, "archiving"), (3, "acquired")]
    assert queue.states() == expected
    waits = queue.inspect("--state", "backing-off")
    assert [row["offset"] for row in waits] == [1]
    assert 0 < waits[0]["time_left_ms"] <= 60_000
    assert waits[0]["member"] is None
    queue.close()
    queue.sessions.clear()
    broker.kill9()
    broker.start()
    found = queue.states()
    assert {(1, "backing-off"), (2, "archiving")} <= set(found), found
    assert "acquired" not in dict(found).values()


def test_key_order_shows_the_holder_and_those_behind_it(queue: Inspected) -> None:
    letters = f"dlq.{queue.topic}"
    new = NewTopic(letters, 1, 1, configs={f"{DLQ}.group.enable": "true"})
    queue.client.run(queue.client.admin.topics.create([new]))
    queue.configure(
        **{
            "share.ordering": "key",
            "share.ordering.key.dead.letter": "hold",
            f"{DLQ}.topic.name": letters,
        }
    )
    queue.produce(["a1", "a2"], key=b"a")
    queue.produce(["b1", "b2"], key=b"b")
    member = queue.join()
    assert queue.acquire(member, 2) == [0, 2]
    queue.settle(member, REJECT, 0)
    eventually(lambda: queue.states() == [(0, "holds-key"), (2, "acquired")])
    assert queue.states("--state", "behind-key") == [(1, "behind-key"), (3, "behind-key")]
    assert queue.inspect("--state", "holds-key")[0]["key"] == "a"
    assert queue.inspect("--state", "holds-key")[0]["time_left_ms"] is None
    queue.shoal.run("share", "skip", queue.group, "--key", "a")
    assert queue.states("--state", "holds-key", "--state", "available") == [(1, "available")]


def test_delayed_records_show_when_they_are_due(queue: Inspected) -> None:
    queue.configure(**{"share.delay.max.ms": "3600000"})
    queue.produce(["later"], headers=(("shoal.deliver.after", b"600000"),))
    queue.produce(["now"])
    assert queue.acquire(queue.join(), 1) == [1]
    (row,) = queue.inspect("--state", "delayed")
    assert row["offset"] == 0
    assert 500_000 < row["time_left_ms"] <= 600_000


def test_many_ranges_come_in_pages_without_gaps(queue: Inspected) -> None:
    """One answer has at most 1,000 ranges."""
    records = 1_201
    queue.configure(**{"share.partition.max.record.locks": "3000"})
    queue.produce(range(2 * records), batch=500)
    member = queue.join()
    queue.acquire(member, 2 * records)
    queue.settle(member, RELEASE, *range(0, 2 * records, 2))
    acquired = queue.states("-n", "3000", "--no-keys")
    assert acquired == [(at, "acquired") for at in range(1, 2 * records, 2)]
    where = TopicPartition(queue.topic, 0)
    groups = queue.client.admin.share_groups
    page = queue.client.run(groups.in_flight(queue.group, {where: 0}))[where]
    assert isinstance(page, InFlightPage)
    assert (len(page.entries), page.next_offset) == (1_000, 1_000)
    page = queue.client.run(groups.in_flight(queue.group, {where: 2 * records - 1}))[where]
    assert isinstance(page, InFlightPage)
    assert [one.state for one in page.entries] == [InFlightState.ACQUIRED]
    assert page.next_offset is None
    done = queue.shoal.run("share", "inspect", queue.group, queue.topic, "-n", "7", "-o", "json")
    assert done.stdout.count('"offset"') == 7
    assert "there are more records in flight" in done.stderr


def test_partitions_of_one_request_share_the_limit(broker: ShoalProcess) -> None:
    with SyncClient(broker.bootstrap) as client:
        queue = Inspected(client, broker.bootstrap, partitions=2)
        for partition in (0, 1):
            queue.produce(range(1_200), partition=partition, batch=300)
        member = queue.join()
        queue.acquire(member, 2_400)
        for partition in (0, 1):
            queue.settle(member, RELEASE, *range(0, 1_200, 2), partition=partition)
        starts = {TopicPartition(queue.topic, 0): 600, TopicPartition(queue.topic, 1): 600}
        pages = client.run(client.admin.share_groups.in_flight(queue.group, starts))
        found = [p for p in pages.values() if isinstance(p, InFlightPage)]
        assert [len(page.entries) for page in found] == [600, 400]
        assert [page.next_offset for page in found] == [None, 1_000]
        pages = client.run(
            client.admin.share_groups.in_flight(queue.group, dict.fromkeys(starts, 0))
        )
        found = [p for p in pages.values() if isinstance(p, InFlightPage)]
        assert [len(page.entries) for page in found] == [1_000, 0]
        assert [page.next_offset for page in found] == [1_000, 0]
        queue.close()


def test_a_group_that_has_not_read_has_nothing_in_flight(queue: Inspected) -> None:
    member = queue.join()
    other = f"{queue.topic}-other"
    queue.shoal.run("topics", "create", other)
    said = queue.shoal.says("share", "inspect", queue.group, other)
    assert said == f"Group {queue.group} has no such records in flight in {other}.\n"
    assert member.member_id
    refusal = queue.shoal.refusal("share", "inspect", "never-was", queue.topic)
    assert "shoal groups list" in refusal
    refusal = queue.shoal.refusal("share", "inspect", queue.group, f"{queue.topic}:7")
    assert "no partition 7" in refusal
    refusal = queue.shoal.refusal("share", "inspect", queue.group, f"{queue.topic}:x", status=2)
    assert "TOPIC must be TOPIC or TOPIC:0,1" in refusal


def test_a_paused_group_gets_nothing_and_members_settle_what_they_hold(queue: Inspected) -> None:
    queue.produce(range(3))
    member = queue.join()
    queue.acquire(member, 2)
    said = queue.shoal.says("share", "pause", queue.group)
    assert said.startswith(f"Paused delivery to group {queue.group}.")
    queue.settle(member, AcknowledgeType.ACCEPT, 0)
    queue.settle(member, RELEASE, 1)
    assert queue.client.run(member.acquire(max_wait_ms=1_000)).count == 0
    assert (1, "available") in queue.states("--state", "available")
    said = queue.shoal.says("share", "resume", queue.group)
    assert said == f"Resumed delivery to group {queue.group}.\n"
    assert queue.acquire(member, 2) == [1, 2]


def test_a_tenant_is_paused_and_resumed_and_others_stay_as_they_are(queue: Inspected) -> None:
    shoal, group, member = queue.shoal, queue.group, queue.join()
    assert "does not tell tenants apart" in shoal.refusal("share", "pause", group, "--tenant", "a")
    queue.configure(**{"share.fairness.by": "key", "share.tenant.paused": "other"})
    said = shoal.says("share", "pause", group, "--tenant", "a")
    assert said.startswith(f"Paused tenant a of group {group}.")
    queue.produce(range(2), key=b"a")
    queue.produce(range(1), key=b"b")
    assert queue.acquire(member, 1) == [2]
    assert queue.states("--state", "behind-limit") == [(0, "behind-limit"), (1, "behind-limit")]
    assert shoal.says("share", "resume", group, "--tenant", "a") == (
        f"Resumed tenant a of group {group}.\n"
    )
    assert queue.acquire(member, 2) == [0, 1]
    entries = shoal.json("configs", "describe", "group", group, "share.tenant.paused")
    assert [entry["value"] for entry in entries] == ["other"]
    refusal = shoal.refusal("share", "pause", group, "--tenant", "a,b", status=2)
    assert "--tenant cannot be 'a,b'" in refusal


@pytest.mark.java
@pytest.mark.parametrize(
    ("words", "lacks"),
    [
        (("inspect", "g", "t"), "request for records in flight"),
        (("pause", "g"), "group config share.delivery.paused"),
        (("resume", "g"), "group config share.delivery.paused"),
    ],
)
def test_apache_kafka_has_neither(kafka: SharedKafka, words: tuple[str, ...], lacks: str) -> None:
    said = Shoal(kafka.bootstrap).refusal("share", *words)
    assert said == f"shoal: this cluster is Apache Kafka: it has no {lacks}.\n"


@pytest.mark.java
def test_the_client_asks_no_other_broker(kafka: SharedKafka) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Inspected(client, kafka.bootstrap)
        where = TopicPartition(queue.topic, 0)
        found = client.run(client.admin.share_groups.in_flight(queue.group, {where: 0}))[where]
        assert isinstance(found, KafkaError)
        assert found.code is ErrorCode.unsupported_version


def test_tenants_show_their_records_and_what_waits_behind_a_limit(queue: Inspected) -> None:
    queue.configure(
        **{"share.fairness.by": "header:customer", "share.tenant.max.in.flight.overrides": "big:1"}
    )
    queue.produce(range(3), headers=(("customer", b"big"),))
    queue.produce(range(2), headers=(("customer", b"small"),))
    member = queue.join()
    assert queue.acquire(member, 2) == [0, 3]
    assert queue.states("--state", "behind-limit", "--state", "available") == [
        *((1, "behind-limit"), (2, "behind-limit"), (4, "available"))
    ]
    rows = queue.inspect("--by", "tenant")
    assert rows == [
        {"tenant": "big", "records": 3, "available": 0, "acquired": 1, "behind-limit": 2},
        {"tenant": "small", "records": 2, "available": 1, "acquired": 1, "behind-limit": 0},
    ]
    queue.produce(range(1_000), headers=(("customer", b"big"),))
    queue.produce(range(1), headers=(("customer", b"late"),))
    assert queue.acquire(member, 1) == [1_005]
    counts = {row["tenant"]: row["records"] for row in queue.inspect("--by", "tenant")}
    assert counts == {"big": 1_003, "small": 2, "late": 1}
    words = ("share", "inspect", queue.group, queue.topic, "--by", "tenant")
    said = queue.shoal.run(*words, "--max-records", "4").stderr
    assert "only the first 4 records are counted" in said
    queue.configure(**{"share.fairness.by": "none"})
    said = queue.shoal.refusal("share", "inspect", queue.group, queue.topic, "--by", "tenant")
    assert "does not tell tenants apart" in said
