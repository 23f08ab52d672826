"""Topics, share groups and clusters as the brokers describe them: immutable values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator.brokers.group_metrics import GroupMetrics
from shoal_operator.brokers.roller import ControllerQuorum

if TYPE_CHECKING:
    from shoal.client.net.cluster import TopicPartition

    from shoal_operator.brokers.diagnostics import BrokerDisk

NO_GROUP = frozenset({ErrorCode.group_id_not_found})


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic on the brokers. `config` has the topic's own configs, without defaults.

    `replicas` is the highest number of replicas of a partition, and `replicas_min` the lowest.
    While a partition is reassigned, replicas that come and those that go count.
    """

    topic_id: str
    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=dict)
    replicas_min: int | None = None

    def has_replicas(self, replicas: int) -> bool:
        """Return whether every partition has this number of replicas."""
        return self.replicas == replicas and self.replicas_min in (None, replicas)


#: A topic and a partition index.
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class StartSpec:
    """A ListOffsets timestamp: milliseconds since the epoch, or a negative special value."""

    timestamp: int


EARLIEST, LATEST = StartSpec(OffsetSpec.EARLIEST), StartSpec(OffsetSpec.LATEST)


@dataclass(frozen=True, slots=True)
class SharePartitionState:
    """A share partition. Counts are records; dead letters hold `dead_letter_held` of them."""

    topic: str
    partition: int
    start_offset: int
    lag: int
    dead_letter_held: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """A share group; `type` is empty for one without a member so far. Counts are records.

    `in_flight` records are acquired by members; `redelivered` ones were delivered more than once
    since their broker started; both are -1 while a broker serves no metrics. `blocked` records are
    part of the lag: they wait until a dead letter of their key is redriven or skipped.
    `lag_known` is false if a coordinator could not return the lag of every partition. `new` records
    of the lag were produced so recently that a broker may not have read their delay.
    """

    group: str
    type: str = ""
    state: str = "Empty"
    members: int = 0
    lag: int = 0
    in_flight: int = -1
    redelivered: int = -1
    partitions: tuple[SharePartitionState, ...] = ()
    blocked: int = 0
    metrics: GroupMetrics = field(default_factory=GroupMetrics)
    lag_known: bool = True
    new: int = 0

    @property
    def workable(self) -> int:
        """Records of the lag that are not `blocked`, including delayed and in-flight records."""
        return max(0, self.lag - self.blocked)

    @property
    def available(self) -> int:
        """Records that a fetch could return now. Without metrics, all of `workable` count."""
        ready = min(self.workable, self.lag - self.metrics.unavailable)
        return max(0, ready - max(0, self.in_flight))

    def count_due(self, within_s: float) -> int:
        """Return how many records are in flight or become available within `within_s` seconds.

        Only records in flight count while the group is paused.
        """
        in_flight = max(0, self.in_flight)
        if self.metrics.delivery == "Paused":
            return in_flight
        # A delayed record behind a dead letter is neither workable nor due: subtract it once.
        due = max(
            in_flight + self.available, self.workable - self.metrics.count_due_later(within_s)
        )
        return max(in_flight, due - self.new)


NO_QUORUM = ControllerQuorum(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster. `registered` and `fenced` are broker ids.

    `features` are the finalized levels. `racks`, `versions` and `advertised`
    (`advertised.listeners`) are by broker id. Brokers that did not answer or were not asked are
    absent. `serving` are the brokers that serve clients, in sync or not.
    """

    cluster_id: str
    controller_id: int
    dynamic_config: Mapping[str, str]
    registered: frozenset[int] = frozenset()
    fenced: frozenset[int] = frozenset()
    racks: Mapping[int, str] = field(default_factory=dict)
    quorum: ControllerQuorum = NO_QUORUM
    disks: tuple[BrokerDisk, ...] = ()
    versions: Mapping[int, str] = field(default_factory=dict)
    advertised: Mapping[int, str] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    serving: frozenset[int] = frozenset()
    #: The levels in effect for the loggers that were asked for, by node id.
    log_levels: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExternalState:
    """A cluster whose brokers the operator does not run. `brokers` is their number.

    `features` are the finalized levels. `reports_lag` is whether the brokers return the lag of
    share groups, and `is_shoal` whether they are Shoal's.
    """

    cluster_id: str
    controller_id: int
    brokers: int
    features: Mapping[str, int]
    reports_lag: bool
    is_shoal: bool


class QuietGroup(NamedTuple):
    """A share group without lag: the number of its members, and its start offsets by partition."""

    members: int
    starts: tuple[tuple[TopicPartition, int], ...]


def build_group_state(
    name: str, description: Any, offsets: Any, metrics: GroupMetrics | None, *, scraped: bool
) -> GroupState:
    """Return a group from the responses to ShareGroupDescribe and DescribeShareGroupOffsets.

    `metrics` are the group's numbers, None without any; `scraped` is whether all brokers served
    them just now. Raises `KafkaError` if the group could not be described.
    """
    metrics = metrics or GroupMetrics()
    in_flight, redelivered = (metrics.in_flight, metrics.redelivered) if scraped else (-1, -1)
    if description is None or isinstance(description, KafkaError):
        if isinstance(description, KafkaError) and description.code not in NO_GROUP:
            raise description
        return GroupState(name, in_flight=in_flight, redelivered=redelivered, metrics=metrics)
    partitions: tuple[SharePartitionState, ...] = ()
    if isinstance(offsets, Mapping):
        partitions = tuple(
            SharePartitionState(
                p.topic, p.partition, o.start_offset, o.lag, _count_records(o.key_holder_offsets)
            )
            for p, o in sorted(offsets.items())
            if not isinstance(o, ClientError)
        )
    return GroupState(
        name,
        description.type.lower(),
        description.state,
        len(description.members),
        sum(max(0, p.lag) for p in partitions),
        in_flight,
        redelivered,
        partitions,
        sum(p.dead_letter_held for p in partitions) + metrics.behind_dead_letters,
        metrics,
        _is_lag_known(offsets),
    )


def find_quiet_groups(responses: Mapping[str, tuple[Any, Any]]) -> dict[str, QuietGroup]:
    """Return what the groups without lag are like, by id, from the responses to ShareGroupDescribe
    and DescribeShareGroupOffsets: as long as it is the same, their brokers have done nothing."""
    quiet = {}
    for name, (description, offsets) in responses.items():
        is_known = isinstance(offsets, Mapping) and not isinstance(description, KafkaError | None)
        if is_known and not any(isinstance(o, ClientError) or o.lag for o in offsets.values()):
            starts = tuple(sorted((p, o.start_offset) for p, o in offsets.items()))
            quiet[name] = QuietGroup(len(description.members), starts)
    return quiet


def _is_lag_known(offsets: Any) -> bool:
    """Return whether the response has the lag of each partition or a permanent error."""
    results = offsets.values() if isinstance(offsets, Mapping) else [offsets]
    return not any(isinstance(r, ClientError) and _is_transient(r) for r in results)


def _is_transient(error: ClientError) -> bool:
    return not isinstance(error, KafkaError) or error.retriable


def _count_records(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the number of offsets in inclusive ranges."""
    return sum(last - first + 1 for first, last in ranges)
