"""A consumer group whose members share the topic `orders` by key ranges (ADR 101), on a simulated
cluster. The members come, go and are killed, and use `shoal.client` unchanged. In half of the runs,
the boundaries between them follow the load.

`RangesHistory` follows every key. It divides the hashes of a partition into `PARTS` equal parts, as
fine as the coordinator does, so that a key is in one part. The rules:

* `ranges-two-owners`, `ranges-epoch`: see `cluster_owners`, for each part of a partition.
* `ranges-late-commit`: a commit of a part was accepted after another member had got it.
* `ranges-key-order`: a member got records of a part, and so of a key, that are not in the order of
  their offsets.
* `ranges-foreign-record`: a member got a record of a part that it does not read.
* `ranges-redelivered`: a member began to read a part below its committed position.
* `ranges-unfinished`: a position of a part, or the stable offset of the partition, was above a
  record that no member had processed.
* `offset-regression`: the stable offset went back.
* `unseen`: a record was never delivered to the group.
"""

from __future__ import annotations

import contextlib
import random
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.range_positions import RangePosition, RangePositions
from shoal.client.consume.shared_partitions import SharedPartitions, Stored
from shoal.client.consume.start_offsets import Reset, find_initial_offsets
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.group.key_ranges import key_range_loads
from shoal.record.key_hash import hash_record
from sim.cluster_clients import PARTITIONS, RETRIED_S, TOPIC, WatchedMembership, Workload, wait
from sim.cluster_histories import GroupOffsets
from sim.cluster_kernel import Violation
from sim.cluster_owners import Owners

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.client.client import Client
    from shoal.client.consume import consumer as consuming
    from sim.cluster_shares import Record, Where

GROUP = "sharers"
PARTS = 256
MEMBERS = 3
HASH_BITS = 63
_PARTITIONS = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
#: For each part: the position that is known to be committed.
Positions = list[int]


@contextlib.contextmanager
def balanced(seed: int) -> Iterator[None]:
    """In some runs, boundaries follow a load of few records, so they move all the time."""
    before = key_range_loads.RECORDS_MIN
    key_range_loads.RECORDS_MIN = 2 if _is_balanced(seed) else before
    try:
        yield
    finally:
        key_range_loads.RECORDS_MIN = before


def _is_balanced(seed: int) -> bool:
    return random.Random(f"{seed} balance").random() < 0.5


def configs(seed: int) -> dict[str, str]:
    """The configs of brokers whose cluster has the group."""
    interval_ms = "500" if _is_balanced(seed) else "0"
    return {"shoal.group.consumer.key.ranges.balance.interval.ms": interval_ms}


def part_of(hash_: int) -> int:
    return hash_ * PARTS >> HASH_BITS


def parts_of(first: int, last: int) -> range:
    """Return the parts that have hashes of the range [first, last]."""
    return range(part_of(first), part_of(last) + 1)


class Claims:
    """The positions of one part, each with the number of the event before which all records below
    it must have been processed. Both rise."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._events: list[int] = []

    def add(self, position: int, event: int) -> None:
        if not self._positions or position > self._positions[-1]:
            self._positions.append(position)
            self._events.append(event)

    def deadline(self, offset: int) -> int | None:
        """The event before which a record must have been processed, if there was one."""
        at = bisect_right(self._positions, offset)
        return self._events[at] if at < len(self._events) else None


class RangesHistory:
    """What all members and tools saw, and the rules that it must satisfy."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self.owners = Owners(load.kernel.fail, "ranges")
        self.stable = GroupOffsets()
        #: The highest committed positions that a response has confirmed, by partition.
        self.committed: dict[Where, Positions] = {
            (TOPIC, p): [0] * PARTS for p in range(PARTITIONS)
        }
        self.events = 0
        #: The event after which each record was processed for the first time.
        self.processed: dict[Record, int] = {}
        self._claims = {where: [Claims() for _ in range(PARTS)] for where in self.committed}
        #: Where, part and position of commits that may be accepted after later ones: see
        #: `GroupOffsets.loose`.
        self.loose: set[tuple[Where, int, int]] = set()
        #: All records at the end of the run with their parts; None before.
        self.log: dict[Record, int] | None = None

    def tick(self) -> int:
        self.events += 1
        return self.events

    def started(
        self, who: str, where: Where, pieces: Iterable[RangePosition], known: Positions
    ) -> None:
        """A member begins to read pieces. `known` is what was committed when it asked."""
        for first, last, position in pieces:
            for part in parts_of(first, last):
                if position >= known[part]:
                    continue
                if (where, part, position) not in self.loose:
                    raise Violation(
                        "ranges-redelivered",
                        f"{who} begins part {part} of {where} at {position}; {known[part]} was "
                        "committed",
                    )
                self.committed[where][part] = position
                self.stable.went_back(where, position)

    def accepted(
        self, who: str, where: Where, pieces: Iterable[RangePosition], sent: float, event: int
    ) -> None:
        """A commit was accepted that was sent at `sent`, after `event`."""
        for first, last, position in pieces:
            for part in parts_of(first, last):
                later = self.owners.successor(who, (where[1], part), sent)
                if later is not None:
                    raise Violation(
                        "ranges-late-commit",
                        f"{who} has committed part {part} of {where}, sent at {sent:.6f}: {later}",
                    )
                committed = self.committed[where]
                committed[part] = max(committed[part], position)
                self._claims[where][part].add(position, event)
        self.stable.counts["commits of ranges"] += 1

    def saw_stable_offsets(self, before: dict[Where, int], now: dict[Where, int]) -> None:
        """Check stable offsets that a tool has read."""
        self.stable.loose = {(where, position) for where, _part, position in self.loose}
        self.stable.offsets("observer", before, now)
        event = self.tick()
        for where, offset in now.items():
            for claims in self._claims[where]:
                claims.add(offset, event)

    def best(self, where: Where) -> int:
        """Return the highest stable offset that was seen, or that the accepted commits of all parts
        have made. A commit that comes late may have put it back, and nobody commits again."""
        return max(self.stable.committed.get(where, 0), min(self.committed[where]))

    def finish(self) -> None:
        """Check every record of the log."""
        assert self.log is not None
        for record, part in self.log.items():
            processed = self.processed.get(record)
            if processed is None:
                raise Violation("unseen", f"{record} by the group with key ranges")
            due = self._claims[record[:2]][part].deadline(record[2])
            if due is not None and due <= processed:
                raise Violation(
                    "ranges-unfinished",
                    f"a position or the stable offset was above {record} of part {part}, which was "
                    f"processed at event {processed}, at event {due}",
                )


class WatchedRangesMembership(WatchedMembership):
    """A member that records the parts of partitions that it is assigned."""

    def _places(self, assignment: Any) -> tuple[Any, ...]:
        whole = [(p, part) for p in super()._places(assignment) for part in range(PARTS)]
        shared = (
            (one.partition, part)
            for one in getattr(assignment, "key_ranges", ())
            for r in one.ranges
            for part in parts_of(r.first_hash, r.last_hash)
        )
        return (*whole, *shared)


class WatchedPositions(RangePositions):
    """The positions of one member, which reports what it reads and commits."""

    def __init__(self, history: RangesHistory, load: Workload, who: str) -> None:
        super().__init__()
        self._history, self._load, self._who = history, load, who
        #: What was committed when the member asked for positions last.
        self.known: Mapping[Where, Positions] = {}
        #: The lowest offset of the next record of each part.
        self._next: dict[tuple[Where, int], int] = {}
        self._sent, self._event = 0.0, 0
        self._loose: set[tuple[Where, int, int]] = set()

    def start(
        self,
        partition: TopicPartition,
        range_positions: Iterable[RangePosition],
        *,
        committed: bool,
    ) -> None:
        added = list(range_positions)
        place = partition.topic, partition.partition
        self._history.started(self._who, place, added, self.known[place])
        for first, last, position in added:
            self._next |= {(place, part): position for part in parts_of(first, last)}
        super().start(partition, added, committed=committed)

    def collect_uncommitted(
        self, *, passed: bool = False
    ) -> dict[TopicPartition, tuple[RangePosition, ...]]:
        """Note the time: a commit is sent with the result at once."""
        self._sent, self._event = self._load.now, self._history.tick()
        found = super().collect_uncommitted(passed=passed)
        sent = {
            ((where.topic, where.partition), part, position)
            for where, pieces in found.items()
            for first, last, position in pieces
            for part in parts_of(first, last)
        }
        self._loose = sent - self._history.loose
        self._history.loose |= sent
        return found

    def on_committed(
        self, partition: TopicPartition, range_positions: Iterable[RangePosition]
    ) -> None:
        added = list(range_positions)
        place = partition.topic, partition.partition
        self._history.accepted(self._who, place, added, self._sent, self._event)
        if self._load.now - self._sent < RETRIED_S:
            self._history.loose -= {one for one in self._loose if one[0] == place}
        super().on_committed(partition, added)

    def processed(self, record: consuming.Record) -> None:
        """The program has processed a record that `poll` returned."""
        where = TopicPartition(record.topic, record.partition)
        hash_ = hash_record(record.key, record.offset)
        ranges = self.owned.get(where, ())
        if not any(first <= hash_ <= last for first, last in ranges):
            raise Violation("ranges-foreign-record", f"{self._who} has {ranges} and got {record}")
        place, part = (record.topic, record.partition), part_of(hash_)
        due = self._next[place, part]
        if record.offset < due:
            raise Violation("ranges-key-order", f"{self._who} got {record}, {due} or above was due")
        self._next[place, part] = record.offset + 1
        self._history.processed.setdefault((*place, record.offset), self._history.tick())
        self._load.histories.saw((*place, record.offset), record.value, self._who)


class WatchedShared(SharedPartitions):
    """Notes what was committed before a member asks for its positions."""

    def watch(self, history: RangesHistory, positions: WatchedPositions) -> None:
        self._history, self.positions = history, positions

    async def _request_committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[Stored]]:
        known = {where: list(some) for where, some in self._history.committed.items()}
        assert isinstance(self.positions, WatchedPositions)
        self.positions.known = known
        return await super()._request_committed(partitions)


async def prepare(_load: Workload, client: Client, _name: str) -> None:
    """Allow key ranges for the topic."""
    topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
    changes = [ConfigChange("shoal.key.ranges.enable", "true")]
    for refused in (await client.admin.configs.alter({topic: changes})).values():
        if refused is not None:
            raise refused


async def share(load: Workload, client: Client, name: str) -> None:
    """Run one member after the other. At the end of the run the last one stays."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    while True:
        async with await _join(load, client) as consumer:
            await _read(load, consumer, rng, load.now + rng.choice((1.5, 4.0, 15.0)))
        await wait(rng.choice((0.0, 0.5, 2.0)))


async def _join(load: Workload, client: Client) -> GroupConsumer:
    cluster, history = client.cluster, load.ranges
    membership = WatchedRangesMembership(cluster, load, GROUP, history.owners, shares=True)
    await membership.join()
    await membership.check_key_ranges()
    shared = WatchedShared(
        cluster,
        membership,
        isolation=Isolation.READ_UNCOMMITTED,
        starts=lambda partitions: find_initial_offsets(cluster, GROUP, partitions, Reset.EARLIEST),
    )
    shared.watch(history, WatchedPositions(history, load, membership.member_id))
    return GroupConsumer(cluster, membership, shared)


async def _read(load: Workload, consumer: GroupConsumer, rng: random.Random, until: float) -> None:
    assert isinstance(consumer._partitions, SharedPartitions)
    positions = consumer._partitions.positions
    assert isinstance(positions, WatchedPositions)
    while load.now < until or load.draining:
        for record in await consumer.poll(300):
            positions.processed(record)
        if rng.random() < 0.5 or load.draining:
            await consumer.commit()


async def observe(load: Workload, client: Client, _name: str) -> None:
    """Read the stable offsets, as a tool would."""
    rng = random.Random(f"{load.kernel.seed} observer of ranges")
    while load.ranges.log is None:
        await wait(rng.uniform(0.3, 1.0))
        await _look(load, client)


async def _look(load: Workload, client: Client) -> dict[TopicPartition, int]:
    history = load.ranges
    before = dict(history.stable.committed)
    found = expect(await client.admin.groups.offsets([GROUP], require_stable=True))[GROUP]
    now = {where: one.offset for where, one in found.items()}
    history.saw_stable_offsets(before, {(w.topic, w.partition): at for w, at in now.items()})
    return now


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until the stable offsets are the ends of all partitions, then read all keys."""
    while True:
        stable = await _look(load, client)
        ends = expect(await client.admin.topics.offsets(dict.fromkeys(_PARTITIONS, -1)))
        behind = [
            p
            for p in _PARTITIONS
            if max(stable.get(p, 0), load.ranges.best((p.topic, p.partition))) < ends[p].offset
        ]
        if not behind:
            break
        load.kernel.trace(f"{name} waits for {behind}")
        await wait(0.3)
    log: dict[Record, int] = {}
    for where in _PARTITIONS:
        if not ends[where].offset:
            continue
        last = ends[where].offset - 1
        async for fetched in client.fetcher.fetch_range(where.topic, where.partition, 0, last):
            for record in fetched.records():
                if record.offset <= last:
                    part = part_of(hash_record(record.key, record.offset))
                    log[where.topic, where.partition, record.offset] = part
    load.ranges.log = log
