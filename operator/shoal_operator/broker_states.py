"""What brokers say of topics, groups and themselves, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.client.errors import ClientError, KafkaError
from shoal.client.topics import OffsetSpec
from shoal.protocol.errors import ErrorCode

from shoal_operator.diagnostics import Disk
from shoal_operator.group_metrics import QueueNumbers
from shoal_operator.roller import Quorum

LOCKED = "shoal_share_partition_locked_records"
REDELIVERED = "shoal_share_partition_redelivered_records_total"
_SAMPLE = re.compile(rf'^({LOCKED}|{REDELIVERED}){{.*?group="((?:[^"\\]|\\.)*)".*}} (\S+)$', re.M)
_ESCAPED = re.compile(r"\\(.)")
NO_GROUP = frozenset({ErrorCode.group_id_not_found})


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers have it; `config` are the settings that were set on it."""

    topic_id: str
    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=dict)


#: A topic and the number of one of its partitions.
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StartSpec:
    """A place in a log by time, in epoch milliseconds, or by one of ListOffsets' words."""

    timestamp: int


EARLIEST, LATEST = StartSpec(OffsetSpec.EARLIEST), StartSpec(OffsetSpec.LATEST)


@dataclass(frozen=True, slots=True)
class SharePartition:
    topic: str
    partition: int
    start_offset: int
    lag: int
    held: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """A share group; `type` is empty for one that has had no member yet. Counts are records.

    `in_flight` are those locked to members now and `redelivered` those delivered more than once
    since their broker began; -1 where no broker said. `stuck`, which are part of the lag, are those
    that nobody gets until a dead letter is redriven or skipped: what is held and what is behind.
    `numbers` are those of the brokers' metrics. `known` is false where a coordinator could not say
    the lag of every partition.
    """

    group: str
    type: str = ""
    state: str = "Empty"
    members: int = 0
    lag: int = 0
    in_flight: int = -1
    redelivered: int = -1
    partitions: tuple[SharePartition, ...] = ()
    blocked: int = 0
    numbers: QueueNumbers = field(default_factory=QueueNumbers)
    known: bool = True

    @property
    def workable(self) -> int:
        """Of the lag, what can be worked on, or will be by itself: in flight and delayed too."""
        return max(0, self.lag - self.blocked)

    @property
    def available(self) -> int:
        """Records that could be delivered now. Without metrics, all of `workable` count."""
        ready = min(self.workable, self.lag - self.numbers.unavailable)
        return max(0, ready - max(0, self.in_flight))

    def due(self, within_s: float) -> int:
        """Return how many of `workable` a consumer could get within `within_s` seconds, or holds.

        Of a paused group these are the records in flight alone.
        """
        if self.numbers.delivery == "Paused":
            return max(0, self.in_flight)
        held = max(0, self.in_flight)
        # A delayed record behind a dead letter is neither workable nor due: it counts once.
        return max(held + self.available, self.workable - self.numbers.due_later(within_s))


NO_QUORUM = Quorum(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as its brokers describe it.

    `registered` brokers are part of it, `fenced` ones of them cut off. `racks`, `versions` and
    `advertised` (`advertised.listeners`) are by broker, without those that did not say or were not
    asked.
    """

    cluster_id: str
    controller_id: int
    dynamic_config: Mapping[str, str]
    registered: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    racks: Mapping[int, str] = field(default_factory=dict)
    quorum: Quorum = NO_QUORUM
    disks: tuple[Disk, ...] = ()
    versions: Mapping[int, str] = field(default_factory=dict)
    advertised: Mapping[int, str] = field(default_factory=dict)


def group_counts(texts: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Records in flight and records redelivered, by group, from brokers' metrics pages."""
    found: dict[str, tuple[int, int]] = {}
    for text in texts:
        for metric, escaped, value in _SAMPLE.findall(text):
            group = _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], escaped)
            locked, redelivered = found.get(group, (0, 0))
            count = int(float(value))
            if metric == LOCKED:
                found[group] = (locked + count, redelivered)
            else:
                found[group] = (locked, redelivered + count)
    return found


def group_state(
    name: str,
    about: Any,
    offsets: Any,
    counts: tuple[int, int] | None,
    numbers: QueueNumbers | None = None,
) -> GroupState:
    """A group out of answers to ShareGroupDescribe and DescribeShareGroupOffsets, and of metrics:
    in flight and redelivered, and what is held back."""
    numbers = numbers or QueueNumbers()
    in_flight, redelivered = counts or (-1, -1)
    if about is None or isinstance(about, KafkaError):
        if isinstance(about, KafkaError) and about.code not in NO_GROUP:
            raise about
        return GroupState(name, in_flight=in_flight, redelivered=redelivered, numbers=numbers)
    rows: tuple[SharePartition, ...] = ()
    if isinstance(offsets, Mapping):
        rows = tuple(
            SharePartition(p.topic, p.partition, o.start_offset, o.lag, _records(o.held))
            for p, o in sorted(offsets.items())
            if not isinstance(o, ClientError)
        )
    return GroupState(
        name,
        about.type.lower(),
        about.state,
        len(about.members),
        sum(max(0, r.lag) for r in rows),
        in_flight,
        redelivered,
        rows,
        sum(r.held for r in rows) + numbers.behind_dead_letters,
        numbers,
        _is_known(offsets),
    )


def _is_known(offsets: Any) -> bool:
    """Whether an answer has the lag of each partition, or says for good that it has none."""
    rows = offsets.values() if isinstance(offsets, Mapping) else [offsets]
    return not any(isinstance(row, ClientError) and _passes(row) for row in rows)


def _passes(error: ClientError) -> bool:
    return not isinstance(error, KafkaError) or error.retriable


def _records(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)
