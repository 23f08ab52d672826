"""Consumer groups that share partitions by key ranges: real members that come, go and are killed,
beside librdkafka's, seen by Kafka's tools and by our commands."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.rebalance_listener import Ranges, RebalanceListener
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import KafkaError
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import GROUP_KEY_RANGES_FEATURE, KEY_HASH_MAX
from shoal.record.records import build_batch
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually
from support.workers import range_gap
from support.workers.range_gap import KEPT, RECORDS
from support.workers.range_worker import Got, Member

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

KEYS = 40
ALL = KEY_HASH_MAX + 1
#: A killed member leaves its group after its session.
CONFIGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
}
_names = (f"divided-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("divided") / "data", configs=CONFIGS).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


class Topic:
    """A topic that allows key ranges, and what was produced to each partition."""

    def __init__(self, broker: ShoalProcess, partitions: int) -> None:
        self.broker, self.name = broker, next(_names)
        self.counts = [0] * partitions
        with WireClient(broker.bootstrap) as client:
            client.create_topic(self.name, partitions, shoal_key_ranges_enable="true")

    def produce(self, count: int, partition: int = 0) -> None:
        """Add records with all keys in turn. Their values are their offsets."""
        first = self.counts[partition]
        records = [(1, b"k%d" % (n % KEYS), b"%d" % n, ()) for n in range(first, first + count)]
        with WireClient(self.broker.bootstrap) as client:
            row = client.produce(
                self.name, records=bytes(build_batch(records)), partition=partition
            )
            assert row.error_code == 0
        self.counts[partition] += count


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def share(members: Sequence[Member]) -> None:
    """Wait until the members have all hashes of partition 0, in about equal parts."""

    def shared() -> bool:
        widths = [m.owns.get("0", 0) for m in members]
        return sum(widths) == ALL and min(widths) >= ALL // len(members) - ALL // 256

    eventually(shared, what=f"{len(members)} members that share the partition")


def read_up_to(members: Sequence[Member], count: int) -> None:
    """Wait until the members have got all offsets below `count` of partition 0."""
    missing = set(range(count))

    def read() -> bool:
        missing.difference_update(one.offset for m in members for one in m.got)
        return not missing

    eventually(read, what=f"the first {count} records")


def check_keys(members: Sequence[Member], killed: Sequence[Member]) -> None:
    """The records of a key go to one member at a time, in order.

    After a member was killed, its successor may get again what was not committed. Otherwise, no
    record comes twice.
    """
    by_key: dict[str, list[tuple[Got, Member]]] = {}
    for member in members:
        for one in member.got:
            by_key.setdefault(one.key, []).append((one, member))
    assert len(by_key) == KEYS
    for some in by_key.values():
        some.sort(key=lambda pair: pair[0].at_s)
        for (before, giver), (after, taker) in itertools.pairwise(some):
            if after.offset <= before.offset:
                assert giver in killed
                assert taker is not giver


def test_members_come_and_go_and_are_killed(broker: ShoalProcess) -> None:
    """Four members on one partition. Every record is delivered, each key to one at a time and in
    order, and a partition without changes of its members has no record twice."""
    topic, group = Topic(broker, 1), next(_names)
    members = [Member(broker.bootstrap, group, topic.name) for _ in range(4)]
    everyone, killed = list(members), []
    try:
        share(members)
        topic.produce(400)
        read_up_to(everyone, 400)
        assert all({one.key for one in m.got} for m in members)
        # One leaves, another joins.
        members.pop(0).stop()
        share(members)
        topic.produce(400)
        members.append(Member(broker.bootstrap, group, topic.name))
        everyone.append(members[-1])
        topic.produce(400)
        share(members)
        read_up_to(everyone, 1_200)
        seen = [one.offset for m in everyone for one in m.got]
        assert sorted(seen) == list(range(1_200))
        # One is killed: its ranges continue at its last commit.
        victim = members.pop(1)
        topic.produce(400)
        victim.kill9()
        killed.append(victim)
        share(members)
        topic.produce(400)
        read_up_to(everyone, 2_000)
        check_keys(everyone, killed)
        while members:
            members.pop().stop()
        assert committed(broker, group) == {f"{topic.name}-0": 2_000}
    finally:
        for member in members:
            member.kill9()


def committed(broker: ShoalProcess, group: str) -> dict[str, int]:
    async def main() -> dict[str, int]:
        async with Client(broker.bootstrap) as client:
            found = (await client.admin.groups.offsets([group]))[group]
            assert not isinstance(found, KafkaError)
            return {str(where): one.offset for where, one in found.items()}

    found: dict[str, int] = run(main())
    return found


class Listener(RebalanceListener):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Ranges]] = []

    async def on_assigned(self, ranges: Ranges) -> None:
        self.calls.append(("assigned", ranges))

    async def on_revoked(self, ranges: Ranges) -> None:
        self.calls.append(("revoked", ranges))


async def join(client: Client, group: str, topic: str, **options: Any) -> GroupConsumer:
    return await GroupConsumer.join(
        client.cluster, group, [topic], reset=Reset.EARLIEST, key_ranges=True, **options
    )


async def polled(consumers: Sequence[GroupConsumer], until: Any) -> list[list[Any]]:
    """Poll all members until the condition holds; return the records of each."""
    found: list[list[Any]] = [[] for _ in consumers]
    while not until(found):
        for records, consumer in zip(found, consumers, strict=True):
            records += await consumer.poll(50)
    return found


def split(consumers: Sequence[GroupConsumer]) -> Any:
    """Whether each member has a part of partition 0."""
    return lambda _: all(
        any(width(ranges) < ALL for ranges in c.key_ranges.values()) for c in consumers
    )


def width(ranges: Any) -> int:
    return sum(one.last - one.first + 1 for one in ranges)


def test_a_range_continues_at_its_last_commit(broker: ShoalProcess) -> None:
    """The first member has committed only some of what it has read. The second one continues there
    with its range, while the first reads on with its own, from where it is."""
    topic, group = Topic(broker, 1), next(_names)
    topic.produce(300)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            listener = Listener()
            one = await join(client, group, topic.name, listener=listener)
            (first,) = await polled([one], lambda found: len(found[0]) == 300)
            await one.commit()
            topic.produce(100)
            other = await join(client, group, topic.name)
            found = await polled([one, other], split([one, other]))
            topic.produce(100)
            more = await polled([one, other], lambda some: sum(map(len, (*found, *some))) >= 200)
            records = [[*a, *b] for a, b in zip(found, more, strict=True)]
            offsets = sorted(r.offset for some in records for r in some)
            assert offsets == list(range(300, 500))
            assert [r.offset for r in records[1]] == sorted(r.offset for r in records[1])
            what, ranges = listener.calls[-1]
            assert (what, [width(r) for r in ranges.values()]) == ("revoked", [ALL // 2])
            await other.commit()
            await one.commit()
            # The member that stays gets the whole partition, where the other one was.
            await other.close()
            topic.produce(50)
            (last,) = await polled([one], lambda some: len(some[0]) == 50)
            assert sorted(r.offset for r in last) == list(range(500, 550))
            assert listener.calls[-1][0] == "assigned"
            assert [width(r) for r in one.key_ranges.values()] == [ALL]
            await one.close()
            assert len(first) == 300

    run(main())
    assert committed(broker, group) == {f"{topic.name}-0": 550}


def test_a_member_continues_with_what_another_left_behind(broker: ShoalProcess) -> None:
    """It gets the other one's range from its last commit on, and nothing of its own twice."""
    topic, group = Topic(broker, 1), next(_names)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            one = await join(client, group, topic.name)
            other = await join(client, group, topic.name)
            await polled([one, other], split([one, other]))
            topic.produce(200)
            found = await polled([one], lambda _: min(one.positions.values()) == 200)
            await one.commit()
            mine = {r.key for r in found[0]}
            other.membership.lost = True  # It leaves without a commit.
            await other.membership.leave()
            topic.produce(100)

            def done(_: Any) -> bool:
                widths = [width(ranges) for ranges in one.key_ranges.values()]
                return widths == [ALL] and min(one.positions.values()) == 300

            again = await polled([one], done)
            by_key: dict[bytes, list[int]] = {}
            for record in again[0]:
                by_key.setdefault(record.key, []).append(record.offset)
            assert len(by_key) == KEYS
            assert mine
            for key, offsets in by_key.items():
                start = 200 if key in mine else 0
                assert offsets == list(range(start + int(key[1:]), 300, KEYS))
            await one.close()

    run(main())
    assert committed(broker, group) == {f"{topic.name}-0": 300}


@pytest.mark.parametrize("key_ranges", [False, True])
def test_a_poll_that_fails_passes_no_record(broker: ShoalProcess, key_ranges: bool) -> None:
    """One partition has records, and the offset of the other one is behind its end. The records are
    not returned, so a later commit does not include them."""
    topic, group = Topic(broker, 2), next(_names)
    rows = [{"partition_index": p, "committed_offset": 90 * p} for p in range(2)]
    for partition in range(2):
        topic.produce(10, partition)
    with WireClient(broker.bootstrap) as wire:
        body = {"group_id": group, "topics": [{"name": topic.name, "partitions": rows}]}
        answer = wire.call(ApiKey.OFFSET_COMMIT, 8, body)
        assert {p.error_code for p in answer.topics[0].partitions} == {0}

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            consumer = await GroupConsumer.join(
                client.cluster, group, [topic.name], reset=Reset.NONE, key_ranges=key_ranges
            )
            with pytest.raises(KafkaError) as refused:
                await polled([consumer], lambda found: found[0])
            assert refused.value.code == ErrorCode.offset_out_of_range
            assert sorted(consumer.positions.values()) == [0, 90]
            await consumer.close()

    run(main())
    assert committed(broker, group) == {f"{topic.name}-0": 0, f"{topic.name}-1": 90}


def test_a_member_gives_up_its_ranges_at_an_older_coordinator(broker: ShoalProcess) -> None:
    """It would assign them to others as whole partitions."""
    topic, group = Topic(broker, 1), next(_names)

    async def main() -> None:
        async with Client(broker.bootstrap) as client, Client(broker.bootstrap) as second:
            one = await join(client, group, topic.name)
            other = await join(second, group, topic.name)
            await polled([one, other], split([one, other]))
            node = await client.cluster.find_coordinator(group)
            link = await client.cluster.get_connection(node, "coordinator")
            del link.features[GROUP_KEY_RANGES_FEATURE]
            await polled([one], lambda _: one.key_ranges == {})
            assert other.key_ranges
            await one.commit()
            await one.close()
            await other.close()

    run(main())


def test_the_topic_may_stop_to_allow_key_ranges(broker: ShoalProcess) -> None:
    """Fetches of key ranges are refused at once, and the partition is assigned whole soon."""
    topic, group = Topic(broker, 1), next(_names)

    def alter() -> None:
        change = {"name": "shoal.key.ranges.enable", "config_operation": 0, "value": "false"}
        resource = {"resource_type": 2, "resource_name": topic.name, "configs": [change]}
        with WireClient(broker.bootstrap) as client:
            answer = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
            assert answer.responses[0].error_code == 0

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            members = [await join(client, group, topic.name) for _ in range(2)]
            await polled(members, split(members))
            topic.produce(100)
            before = await polled(members, lambda found: sum(map(len, found)) == 100)
            for member in members:
                await member.commit()
            alter()
            topic.produce(100)

            def rest(found: list[list[Any]]) -> bool:
                return {r.offset for some in found for r in some} >= set(range(100, 200))

            after = await polled(members, rest)
            offsets = {r.offset for some in (*before, *after) for r in some}
            assert offsets == set(range(200))
            owned = [width(ranges) for m in members for ranges in m.key_ranges.values()]
            assert owned == [ALL]
            for member in members:
                await member.close()

    run(main())
    assert committed(broker, group) == {f"{topic.name}-0": 200}


class Librdkafka:
    """A member of librdkafka, which commits each record."""

    def __init__(self, broker: ShoalProcess, group: str, topic: str) -> None:
        self.got: set[tuple[int, int]] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    def poll(self) -> int:
        """Read and commit one record; return the number of partitions."""
        message = self._consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.got.add((message.partition() or 0, message.offset() or 0))
            self._consumer.commit(message, asynchronous=False)
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


def test_librdkafka_gets_whole_partitions(broker: ShoalProcess) -> None:
    """With three partitions, it has one, and three members share the others. Once they have left,
    it has all, and starts at the stable offsets."""
    topic, group = Topic(broker, 3), next(_names)
    for partition in range(3):
        topic.produce(20, partition)
    plain = Librdkafka(broker, group, topic.name)
    got: set[tuple[int, int]] = set()

    async def step(members: Sequence[GroupConsumer]) -> int:
        for member in members:
            got.update((r.partition, r.offset) for r in await member.poll(10))
            await member.commit()
        return plain.poll()

    def divided(members: Sequence[GroupConsumer]) -> bool:
        widths = [sum(map(width, m.key_ranges.values())) for m in members]
        return sum(widths) == 2 * ALL and min(widths) < ALL

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            members = [await join(client, group, topic.name) for _ in range(3)]
            while await step(members) != 1 or not divided(members):
                pass
            for partition in range(3):
                topic.produce(20, partition)
            while len(got | plain.got) < 120:
                await step(members)
            for member in members:
                await member.close()

    try:
        eventually(lambda: plain.poll() == 3, what="all partitions at librdkafka")
        run(main())
        eventually(lambda: plain.poll() == 3, what="all partitions at librdkafka again")
        eventually(lambda: plain.poll() and set(committed(broker, group).values()) == {40})
    finally:
        plain.close()


def shared_meanwhile(broker: ShoalProcess, group: str, describe: Callable[[], None]) -> None:
    """Call `describe` in a thread while two members share a partition of 100 records, and have
    committed all."""
    topic = Topic(broker, 1)

    async def main() -> None:
        async with Client(broker.bootstrap) as client:
            members = [await join(client, group, topic.name) for _ in range(2)]
            await polled(members, split(members))
            topic.produce(100)
            await polled(members, lambda _: all(min(m.positions.values()) == 100 for m in members))
            for member in members:
                await member.commit()
            await asyncio.to_thread(describe)
            for member in members:
                await member.close()

    run(main())


@pytest.mark.java
@pytest.mark.nightly
def test_kafka_consumer_groups_describes_the_group(broker: ShoalProcess) -> None:
    """It lists the partition at both members, with the stable offset."""
    group = next(_names)

    def describe() -> None:
        rows = KafkaTools(broker.bootstrap).rows("consumer-groups", "--describe", "--group", group)
        assert len({row["CONSUMER-ID"] for row in rows}) == len(rows) == 2
        offsets = {(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in rows}
        assert offsets == {("0", "100", "0")}

    shared_meanwhile(broker, group, describe)


def test_describe_shows_owners(broker: ShoalProcess) -> None:
    group = next(_names)

    def describe() -> None:
        shoal = Shoal(broker.bootstrap)
        table = shoal.says("groups", "describe", group)
        assert "Partitions shared by key ranges" in table
        assert "shared by 2" in table
        (described,) = shoal.json("groups", "describe", group)
        owners = described["key_ranges"]
        assert [(one["share"], one["position"]) for one in owners] == [("50.0 %", 100)] * 2
        assert {one["member"] for one in owners} == {m["member"] for m in described["members"]}

    shared_meanwhile(broker, group, describe)


def test_describe_shows_who_holds_the_stable_offset(broker: ShoalProcess) -> None:
    """A record that one member does not finish is a gap of its ranges. Other ranges continue, and
    the gap stays visible after the members have left."""
    topic, group = Topic(broker, 1).name, next(_names)
    shoal, begun_s = Shoal(broker.bootstrap), time.monotonic()

    def described() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        (found,) = shoal.json("groups", "describe", group)
        (gap,) = found["gaps"]
        assert gap.pop("age_s") < time.monotonic() - begun_s
        assert [p["committed_offset"] for p in found["partitions"]] == [KEPT]
        return found["key_ranges"], gap

    def check(slow: str) -> None:
        table = shoal.says("groups", "describe", group)
        assert "FINISHED ABOVE STABLE" in table
        assert "Unfinished records below finished ones" in table
        owners, gap = described()
        columns = ("position", "lag", "finished_above_stable", "holds_stable")
        assert [tuple(one[name] for name in columns) for one in owners] == [
            (KEPT, 37, 36, True),
            (RECORDS, 0, 37, False),
        ]
        assert owners[0]["member"] == slow != owners[1]["member"]
        assert gap == {
            "topic": topic,
            "partition": 0,
            "gap": "3",
            "finished_above": 36,
            "ranges": 1,
            "member": slow,
            "key_ranges": owners[0]["key_ranges"],
        }

    async def main() -> None:
        async with (
            Client(broker.bootstrap) as client,
            range_gap.gap(client, broker.bootstrap, group, topic) as slow,
        ):
            await asyncio.to_thread(check, slow)

    run(main())
    owners, gap = described()
    assert [(one["member"], one["position"]) for one in owners] == [(None, KEPT), (None, RECORDS)]
    assert (gap["member"], gap["key_ranges"]) == (None, owners[0]["key_ranges"])


def test_the_command_takes_part(broker: ShoalProcess) -> None:
    topic, group = Topic(broker, 1), next(_names)
    topic.produce(100)
    shoal = Shoal(broker.bootstrap)
    words = ["consume", topic.name, "--group", group, "--from-beginning"]
    said = shoal.says(*words, "--key-ranges", "assigned", "-n", "30")
    assert said.split() == [str(n) for n in range(30)]
    assert committed(broker, group) == {f"{topic.name}-0": 30}
    said = shoal.says(*words, "--key-ranges", "assigned", "-n", "70")
    assert said.split() == [str(n) for n in range(30, 100)]


def test_refusals_of_the_client(tmp_path: Any) -> None:
    switch = "shoal.group.consumer.key.ranges.enable"
    process = ShoalProcess(tmp_path / "data", configs=CONFIGS | {switch: "false"}).start()

    async def main() -> None:
        async with Client(process.bootstrap) as client:
            with pytest.raises(KafkaError, match=f"{switch}=true") as refused:
                await join(client, "g", "t")
            assert refused.value.code == ErrorCode.unsupported_version

    try:
        run(main())
    finally:
        process.stop()
