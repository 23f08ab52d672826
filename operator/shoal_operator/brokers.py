"""The door to a cluster's brokers: batches of admin calls through the engine's own client.

Everything is asked for many objects at once, so 500 topics cost a handful of requests. Errors of
single objects are values; a broker that does not answer raises `ClientError`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.configs import AlterOperation, ConfigChange, ConfigSource, Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError
from shoal.client.settings import Settings
from shoal.client.share import ShareMembership
from shoal.client.topics import NewTopic, OffsetSpec
from shoal.protocol.errors import ErrorCode

from shoal_operator import metrics
from shoal_operator.queues import QueueNumbers, numbers_of
from shoal_operator.roller import PartitionState, Quorum
from shoal_operator.troubles import Disk

#: Objects in one request; requests stay far below the brokers' limit of 100 MB.
BATCH_MAX = 250
REQUEST_TIMEOUT_MS = 5_000
HTTP_TIMEOUT_SECONDS = 2.0
#: A controller that was caught up so much later than another one does not keep up.
CAUGHT_UP_MS = 10_000
MIN_ISR = "min.insync.replicas"
LOCKED = "shoal_share_partition_locked_records"
REDELIVERED = "shoal_share_partition_redelivered_records_total"
_SAMPLE = re.compile(rf'^({LOCKED}|{REDELIVERED}){{.*?group="((?:[^"\\]|\\.)*)".*}} (\S+)$', re.M)
_ESCAPED = re.compile(r"\\(.)")
ABSENT = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
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


@dataclass(frozen=True, slots=True)
class GroupState:
    """A share group; `type` is empty for one that has had no member yet. Counts are records.

    `in_flight` are those locked to members now and `redelivered` those delivered more than once
    since their broker began; -1 where no broker said.
    """

    group: str
    type: str = ""
    state: str = "Empty"
    members: int = 0
    lag: int = 0
    in_flight: int = -1
    redelivered: int = -1
    partitions: tuple[SharePartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as its brokers describe it.

    `versions` and `advertised` (`advertised.listeners`) are by broker, without those that did not
    say or were not asked.
    """

    cluster_id: str
    controller_id: int
    dynamic_config: Mapping[str, str]
    disks: tuple[Disk, ...] = ()
    versions: Mapping[int, str] = field(default_factory=dict)
    advertised: Mapping[int, str] = field(default_factory=dict)


def chunks(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(names), BATCH_MAX):
        yield names[start : start + BATCH_MAX]


class Brokers:
    """Admin calls to one cluster; connections are made when first needed and kept.

    `urls` are the roots of the brokers' metrics and health checks, by broker.
    """

    def __init__(self, bootstrap_servers: str, urls: Sequence[str] = ()) -> None:
        self._addresses = (bootstrap_servers, tuple(urls))
        self._made: Client | None = None
        self._made_web: httpx2.AsyncClient | None = None
        #: What the brokers' metrics said last, by group; empty where one did not answer.
        self.queue_numbers: dict[str, QueueNumbers] = {}

    async def readdress(self, bootstrap_servers: str, urls: Sequence[str]) -> None:
        """Use these addresses from now on."""
        addresses = (bootstrap_servers, tuple(urls))
        if addresses != self._addresses:
            self._addresses = addresses
            await self.close()

    @property
    def _client(self) -> Client:
        if self._made is None:
            settings = Settings.of(
                self._addresses[0],
                {
                    "client.id": "shoal-operator",
                    "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
                    "socket.connection.setup.timeout.ms": "2000",
                    "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
                },
            )
            self._made = Client(settings)
        return self._made

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()
            self._made = None
        if self._made_web is not None:
            await self._made_web.aclose()
            self._made_web = None

    @property
    def _web(self) -> httpx2.AsyncClient:
        if self._made_web is None:
            # Plain HTTP: certificates, which take longer to read than all else, are not needed.
            self._made_web = httpx2.AsyncClient(
                timeout=HTTP_TIMEOUT_SECONDS, trust_env=False, verify=False
            )
        return self._made_web

    def _count(self, api: str) -> None:
        metrics.BROKER_CALLS.labels(api).inc()

    async def cluster_state(self, ids: Iterable[int], *, outside: bool) -> ClusterState:
        """The cluster, and its brokers' settings, disks and versions; with `outside` also what
        they tell clients about themselves."""
        self._count("DescribeCluster")
        about = await self._client.admin.describe_cluster()
        everyone = Resource(ResourceType.BROKER, "")
        self._count("DescribeConfigs")
        found = (await self._client.admin.configs.describe([everyone]))[everyone]
        dynamic = {} if isinstance(found, KafkaError) else found
        known = {broker.node_id for broker in about.brokers}
        return ClusterState(
            about.cluster_id,
            about.controller_id,
            {
                e.name: e.value
                for e in dynamic.values()
                if e.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG and e.value is not None
            },
            tuple([await self._disk(broker) for broker in ids if broker in known]),
            await self._versions(),
            await self._advertised(sorted(known)) if outside else {},
        )

    async def _disk(self, broker_id: int) -> Disk:
        self._count("DescribeLogDirs")
        try:
            dirs = await self._client.admin.log_dirs([broker_id], partitions=False)
        except ClientError:
            return Disk(broker_id)
        (data, *_) = dirs[broker_id]
        return Disk(broker_id, data.total_bytes, data.usable_bytes, data.error is not None)

    async def _versions(self) -> dict[int, str]:
        """What the brokers' health checks say of themselves."""
        found = {}
        for broker_id, url in enumerate(self._addresses[1]):
            with contextlib.suppress(httpx2.HTTPError):
                product = (await self._web.get(url + "healthz")).headers.get("server", "")
                name, _, version = product.partition("/")
                if name == "shoal":
                    found[broker_id] = version
        return found

    async def _advertised(self, ids: Sequence[int]) -> dict[int, str]:
        self._count("DescribeConfigs")
        asked = [Resource(ResourceType.BROKER, str(broker)) for broker in ids]
        found = await self._client.admin.configs.describe(asked)
        return {
            int(resource.name): entries["advertised.listeners"].value or ""
            for resource, entries in found.items()
            if not isinstance(entries, KafkaError) and "advertised.listeners" in entries
        }

    async def partitions(self) -> tuple[PartitionState, ...]:
        """Every partition with its ISR, and how many have to be in it."""
        self._count("Metadata")
        topics = await self._client.admin.topics.list(internal=True)
        floors: dict[str, int] = {}
        for names in chunks(sorted(topics)):
            self._count("DescribeConfigs")
            asked = [Resource(ResourceType.TOPIC, n) for n in names]
            for resource, entries in (await self._client.admin.configs.describe(asked)).items():
                if not isinstance(entries, KafkaError) and MIN_ISR in entries:
                    floors[resource.name] = int(entries[MIN_ISR].value or 1)
        return tuple(
            PartitionState(
                f"{t.name}-{p.index}", tuple(p.replicas), tuple(p.isr), floors.get(t.name, 1)
            )
            for t in topics.values()
            for p in t.partitions
        )

    async def quorum(self) -> Quorum:
        """The controllers, and which of them keep up."""
        self._count("DescribeQuorum")
        found = await self._client.admin.describe_quorum()
        newest = max((v.last_caught_up_ms for v in found.voters), default=0)
        current = {
            v.node_id
            for v in found.voters
            if v.node_id == found.leader_id or newest - v.last_caught_up_ms < CAUGHT_UP_MS
        }
        return Quorum(frozenset(v.node_id for v in found.voters), frozenset(current))

    async def alter_broker_config(self, changes: Mapping[str, str | None]) -> None:
        """Set (or, with None, unset) cluster-wide dynamic settings."""
        self._count("IncrementalAlterConfigs")
        everyone = Resource(ResourceType.BROKER, "")
        rows = [ConfigChange(k, v, *_operation(v)) for k, v in sorted(changes.items())]
        error = (await self._client.admin.configs.alter({everyone: rows}))[everyone]
        if error:
            raise error

    async def describe_topics(self, wanted: Sequence[str]) -> dict[str, TopicState]:
        """Those of the topics that exist."""
        found: dict[str, TopicState] = {}
        for names in chunks(wanted):
            self._count("Metadata")
            topics = {
                n: t
                for n, t in (await self._client.admin.topics.describe(names)).items()
                if not isinstance(t, KafkaError)
            }
            config = await self._configs(ResourceType.TOPIC, sorted(topics))
            for name, topic in topics.items():
                found[name] = TopicState(
                    str(topic.topic_id),
                    len(topic.partitions),
                    max((len(p.replicas) for p in topic.partitions), default=0),
                    config.get(name, {}),
                )
        return found

    async def _configs(self, kind: ResourceType, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings that were set on these resources themselves."""
        own = {
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigSource.GROUP_CONFIG,
        }
        if not names:
            return {}
        self._count("DescribeConfigs")
        found = await self._client.admin.configs.describe([Resource(kind, n) for n in names])
        return {
            resource.name: {
                e.name: e.value for e in entries.values() if e.source in own and e.value is not None
            }
            for resource, entries in found.items()
            if not isinstance(entries, KafkaError)
        }

    async def create_topics(self, specs: Mapping[str, Mapping[str, Any]]) -> dict[str, KafkaError]:
        """Create topics from QueueTopic specs; the refusals, by topic."""
        failures: dict[str, KafkaError] = {}
        for names in chunks(sorted(specs)):
            self._count("CreateTopics")
            made = await self._client.admin.topics.create(
                NewTopic(
                    n,
                    specs[n]["partitions"],
                    specs[n].get("replicas") or -1,
                    configs=dict(specs[n].get("config", {})),
                )
                for n in names
            )
            failures |= {n: r for n, r in made.items() if isinstance(r, KafkaError)}
        return {n: e for n, e in failures.items() if e.code != ErrorCode.topic_already_exists}

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaError]:
        self._count("CreatePartitions")
        done = await self._client.admin.topics.create_partitions(counts)
        return {n: e for n, e in done.items() if e}

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        return await self._alter(ResourceType.TOPIC, changes)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Delete topics; one that is gone already is fine."""
        self._count("DeleteTopics")
        done = await self._client.admin.topics.delete(names)
        return {n: e for n, e in done.items() if e and e.code not in ABSENT}

    async def _alter(
        self, kind: ResourceType, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        failures: dict[str, KafkaError] = {}
        for names in chunks(sorted(changes)):
            self._count("IncrementalAlterConfigs")
            done = await self._client.admin.configs.alter(
                {
                    Resource(kind, n): [
                        ConfigChange(k, v, *_operation(v)) for k, v in sorted(changes[n].items())
                    ]
                    for n in names
                }
            )
            failures |= {r.name: e for r, e in done.items() if e}
        return failures

    async def describe_group_configs(self, groups: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for names in chunks(groups):
            found |= await self._configs(ResourceType.GROUP, names)
        return found

    async def alter_group_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        return await self._alter(ResourceType.GROUP, changes)

    async def share_groups(self, groups: Sequence[str]) -> dict[str, GroupState]:
        """State, members, lag and in-flight records of share groups."""
        if not groups:
            return {}
        counts = await self._counts()
        states: dict[str, GroupState] = {}
        for names in chunks(groups):
            self._count("ShareGroupDescribe")
            about = await self._client.admin.groups.describe_share(names)
            known = [n for n in names if not isinstance(about.get(n), KafkaError)]
            self._count("DescribeShareGroupOffsets")
            offsets = await self._client.admin.share_groups.offsets(known) if known else {}
            for name in names:
                states[name] = _group_state(
                    name,
                    about.get(name),
                    offsets.get(name),
                    None if counts is None else counts.get(name, (0, 0)),
                )
        return states

    async def _counts(self) -> dict[str, tuple[int, int]] | None:
        """Records in flight and redelivered by group, from all brokers' metrics, or None."""
        texts = []
        for url in self._addresses[1]:
            try:
                texts.append((await self._web.get(url + "metrics")).text)
            except httpx2.HTTPError:
                self.queue_numbers = {}
                return None
        self.queue_numbers = numbers_of(texts)
        return group_counts(texts)

    async def partitions_of(self, topics: Sequence[str]) -> dict[str, int]:
        """The number of partitions of those topics that exist."""
        self._count("Metadata")
        found = await self._client.admin.topics.describe(topics)
        return {n: len(t.partitions) for n, t in found.items() if not isinstance(t, KafkaError)}

    async def create_share_group(self, group: str, topics: Sequence[str]) -> None:
        """Make a group that has had no member yet: there is no request but a member's first
        heartbeat. Raises `KafkaError`."""
        self._count("ShareGroupHeartbeat")
        member = ShareMembership(self._client.cluster, group, topics, rack=None)
        await member.join()
        self._count("ShareGroupHeartbeat")
        await member.leave()

    async def resolved(self, starts: Mapping[Partition, int | StartSpec]) -> dict[Partition, int]:
        """Words and times as offsets. Raises `KafkaError`."""
        offsets = {p: o for p, o in starts.items() if not isinstance(o, StartSpec)}
        asked = {
            TopicPartition(*p): s.timestamp for p, s in starts.items() if isinstance(s, StartSpec)
        }
        found = await self._offsets_at(asked)
        # No record is as late as the time that was asked for: begin at the end.
        found |= await self._offsets_at(
            {p: OffsetSpec.LATEST for p, offset in found.items() if offset < 0}
        )
        return offsets | {(p.topic, p.partition): offset for p, offset in found.items()}

    async def set_share_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Begin at these offsets. Raises `KafkaError`."""
        self._count("AlterShareGroupOffsets")
        wanted = {TopicPartition(*p): o for p, o in offsets.items()}
        done = await self._client.admin.share_groups.alter_offsets(group, wanted)
        for error in done.values():
            if error:
                raise error

    async def _offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not times:
            return {}
        self._count("ListOffsets")
        found = await self._client.admin.topics.offsets(times)
        for where, offset in found.items():
            if isinstance(offset, KafkaError):
                raise KafkaError(offset.code, f"{where}: {offset}")
        return {p: o.offset for p, o in found.items() if not isinstance(o, KafkaError)}

    async def delete_groups(self, groups: Sequence[str]) -> dict[str, KafkaError]:
        """Delete empty groups; one that is gone already is fine."""
        self._count("DeleteGroups")
        done = await self._client.admin.groups.delete(groups)
        return {g: e for g, e in done.items() if e and e.code not in NO_GROUP}


def _operation(value: str | None) -> tuple[Any, ...]:
    return (AlterOperation.DELETE,) if value is None else ()


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


def _group_state(name: str, about: Any, offsets: Any, counts: tuple[int, int] | None) -> GroupState:
    in_flight, redelivered = counts or (-1, -1)
    if about is None or isinstance(about, KafkaError):
        if isinstance(about, KafkaError) and about.code not in NO_GROUP:
            raise about
        return GroupState(name, in_flight=in_flight, redelivered=redelivered)
    rows: tuple[SharePartition, ...] = ()
    if isinstance(offsets, Mapping):
        rows = tuple(
            SharePartition(p.topic, p.partition, o.start_offset, o.lag)
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
    )
