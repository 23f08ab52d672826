"""Requests to a cluster's brokers: batches of admin calls through the project's client.

Each request covers many objects, so that 500 topics need a handful of requests. Errors of single
objects are values. `ClientError` is raised if no broker answers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.connection import connect
from shoal.client.settings import Settings
from shoal.dead_letters.redrive import Redrive, RedrivePlan
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import IN_FLIGHT_FEATURE

from shoal_operator import clock, metrics
from shoal_operator.brokers import config_changes, config_checks, log_levels, tiered_health
from shoal_operator.brokers.batches import split_into_batches
from shoal_operator.brokers.broker_certificates import parse_certificates
from shoal_operator.brokers.broker_pages import BrokerPages
from shoal_operator.brokers.broker_states import (
    NO_GROUP,
    ClusterState,
    ExternalState,
    GroupState,
    Partition,
    QuietGroup,
    StartSpec,
    TopicState,
    build_group_state,
    find_quiet_groups,
)
from shoal_operator.brokers.cordon_calls import CordonCalls
from shoal_operator.brokers.diagnostics import BrokerDisk
from shoal_operator.brokers.group_metrics import GroupMetrics, parse_group_metrics
from shoal_operator.brokers.idle_members import MemberHolding
from shoal_operator.brokers.log_levels import ControllerLevels
from shoal_operator.brokers.rebalance_calls import RebalanceCalls
from shoal_operator.brokers.roller import ControllerQuorum, PartitionState
from shoal_operator.brokers.schedule_calls import ScheduleCalls
from shoal_operator.brokers.user_calls import UserCalls

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from shoal_operator.model.ca_renewal import LoadedCertificates

REQUEST_TIMEOUT_MS = 5_000
REACH_SECONDS_MAX = 1.0
#: A controller that lags this much behind the most current one does not keep up.
CAUGHT_UP_MS = 10_000
#: How long numbers from the brokers' metrics stay valid while a broker does not answer.
METRICS_MS_MAX = 60_000
#: How long they are not read again while the groups have no lag, and had none. Not longer: a group
#: may be paused meanwhile.
QUIET_SCRAPE_MS = 10_000
#: How long a fetch of records that exist may take.
FETCH_WAIT_MS = 500
#: Bytes of a partition's first batches; larger ones cost a request each.
FIRST_BATCH_BYTES = 16 << 10
#: The version of DescribeShareGroupOffsets whose response has the lag (KIP-1226).
LAG_VERSION = 1
MIN_ISR = "min.insync.replicas"
ABSENT = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})


class Brokers:
    """Admin calls to one cluster over persistent connections, which open on first use.

    `urls` are the base URLs of the brokers' metrics and health checks, by broker id. `client` has
    the client's properties of TLS and of the login. Without credentials that it needs
    (`has_credentials`), every call raises `ClientError` until `set_client`. `controllers` are the
    addresses of dedicated controllers by id.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        urls: Mapping[int, str] | None = None,
        client: Mapping[str, str] | None = None,
        *,
        has_credentials: bool = True,
        controllers: Mapping[int, str] | None = None,
    ) -> None:
        self._addresses = (bootstrap_servers, dict(urls or {}))
        self._client_properties = dict(client or {})
        self._has_credentials = has_credentials
        self._admin_client: Client | None = None
        self._controller_levels = ControllerLevels(controllers or {}, self._build_properties)
        self._pages = BrokerPages(self._make_settings, lambda: self._client_properties)
        #: Numbers by group from the last scrape in which all brokers answered, and its time.
        self.group_metrics: dict[str, GroupMetrics] = {}
        self._scraped_ms = 0
        #: By group without lag: the members and start offsets that the last scrape has met.
        self._quiet_groups: dict[str, QuietGroup] = {}

    async def set_addresses(
        self,
        bootstrap_servers: str,
        urls: Mapping[int, str],
        controllers: Mapping[int, str] | None = None,
    ) -> None:
        """Use these addresses from now on."""
        self._controller_levels.set_addresses(controllers or {})
        moved = bootstrap_servers != self._addresses[0]
        self._addresses = (bootstrap_servers, dict(urls))
        if moved:
            await self.close()

    def set_client(self, properties: Mapping[str, str]) -> None:
        """Use these properties for new connections; open ones stay."""
        self._client_properties = dict(properties)
        self._has_credentials = True

    def _build_properties(self) -> dict[str, str]:
        """Return the client's properties, which it reads for each new connection."""
        return {
            **self._client_properties,
            "client.id": "shoal-operator",
            "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
            "socket.connection.setup.timeout.ms": "2000",
            "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
        }

    @property
    def _client(self) -> Client:
        if not self._has_credentials:
            raise Unreachable("the credentials of the cluster have not been read yet")
        if self._admin_client is None:
            self._admin_client = Client(self._make_settings())
        return self._admin_client

    def _make_settings(self) -> Settings:
        return Settings.from_bootstrap(self._addresses[0], self._build_properties)

    async def is_reachable(self) -> bool:
        """Return whether a new connection to the bootstrap servers succeeds.

        A Service routes to its pods a little after they are ready.
        """
        settings = self._make_settings()
        for address in settings.bootstrap:
            try:
                async with asyncio.timeout(REACH_SECONDS_MAX):
                    connection = await connect(settings, address)
            except (ClientError, TimeoutError):
                return False
            connection.close()
        return True

    async def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self._controller_levels.close()
        if self._admin_client is not None:
            await self._admin_client.close()
            self._admin_client = None

    @property
    def users(self) -> UserCalls:
        """The calls on users: permissions, passwords, quotas."""
        return UserCalls(self._client.admin, self._count)

    @property
    def rebalances(self) -> RebalanceCalls:
        """The calls of rebalances: placement, reassignments, throttles."""
        return RebalanceCalls(self._client.admin, self._count)

    @property
    def cordons(self) -> CordonCalls:
        """The calls on cordoned brokers."""
        return CordonCalls(self._client.cluster, self._count)

    @property
    def schedules(self) -> ScheduleCalls:
        """The calls of QueueSchedules."""
        return ScheduleCalls(self._client, self._count)

    def _count(self, api: str) -> None:
        metrics.BROKER_CALLS.labels(api).inc()

    async def describe_cluster(
        self,
        ids: Iterable[int],
        *,
        advertised: bool,
        loggers: Sequence[str] = (),
        controllers: Collection[int] = (),
    ) -> ClusterState:
        """Return the cluster with its brokers' configs, disks and versions.

        `ids` are the brokers whose disks are read. `advertised` asks for the brokers' advertised
        listeners too, and `loggers` for the levels of these loggers, of controllers, too.
        `controllers` are the ids of dedicated controllers, which clients cannot connect to. Raises
        `ClientError`.
        """
        self._count("DescribeCluster")
        description = await self._client.admin.describe_cluster(fenced=True)
        everyone = ConfigResource(ConfigResourceType.BROKER, "")
        self._count("DescribeConfigs")
        result = (await self._client.admin.configs.describe([everyone]))[everyone]
        dynamic = {} if isinstance(result, KafkaError) else result
        registered = frozenset(broker.node_id for broker in description.brokers)
        unfenced = registered - description.fenced
        health = await self._pages.check_health(self._addresses[1])
        quorum = await self._describe_quorum()
        return ClusterState(
            description.cluster_id,
            # Brokers do not report a controller that clients cannot connect to.
            quorum.leader if controllers else description.controller_id,
            {
                e.name: e.value
                for e in dynamic.values()
                if e.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG and e.value is not None
            },
            registered,
            description.fenced,
            {b.node_id: b.rack for b in description.brokers if b.rack},
            quorum,
            tuple([await self._describe_disk(broker) for broker in ids if broker in unfenced]),
            health.versions,
            await self._describe_advertised(sorted(unfenced)) if advertised else {},
            await self._client.admin.features(),
            health.serving & unfenced.union(controllers),
            await self._describe_log_levels(sorted(unfenced & set(ids)), loggers)
            if loggers
            else {},
        )

    async def describe_external_cluster(self) -> ExternalState:
        """Return a cluster that the operator does not run. Raises `ClientError`."""
        self._count("DescribeCluster")
        description = await self._client.admin.describe_cluster()
        link = await self._client.cluster.get_any_connection()
        return ExternalState(
            description.cluster_id,
            description.controller_id,
            len(description.brokers),
            await self._client.admin.features(),
            LAG_VERSION in link.versions.get(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ()),
            IN_FLIGHT_FEATURE in link.features,
        )

    async def list_group_config_names(self, group: str) -> frozenset[str]:
        """Return the names of all group configs that the brokers have. Raises `ClientError`."""
        return await self._list_config_names(ConfigResource(ConfigResourceType.GROUP, group))

    async def list_topic_config_names(self) -> frozenset[str]:
        """Return the names of all topic configs, none without a topic. Raises `ClientError`."""
        self._count("Metadata")
        topics = await self._client.admin.topics.list(internal=True)
        if not topics:
            return frozenset()
        return await self._list_config_names(ConfigResource(ConfigResourceType.TOPIC, min(topics)))

    async def _list_config_names(self, resource: ConfigResource) -> frozenset[str]:
        self._count("DescribeConfigs")
        configs = (await self._client.admin.configs.describe([resource]))[resource]
        if isinstance(configs, KafkaError):
            raise configs
        return frozenset(configs)

    async def find_static_config_problem(self, static: Mapping[str, str]) -> str:
        """Return with which of these static configs a broker would not start, and the nearest name
        for an unknown one; empty if it would with all. Raises `ClientError`."""
        self._count("IncrementalAlterConfigs")
        problem = await config_checks.find_problem(self._client.admin.configs, static)
        if not config_checks.parse_unknown_name(problem):
            return problem
        description = await self._client.admin.describe_cluster()
        node = min(broker.node_id for broker in description.brokers)
        known_names = await self._list_config_names(
            ConfigResource(ConfigResourceType.BROKER, str(node))
        )
        return config_checks.add_hint(problem, known_names)

    def redrive(self, plan: RedrivePlan) -> Redrive:
        """Return a redrive of dead letters. Raises `ValueError` for a plan that cannot work."""
        return Redrive(self._client.cluster, plan)

    async def upgrade_features(self, levels: Mapping[str, int]) -> None:
        """Raise features to these levels, all or none. Raises `ClientError`."""
        self._count("UpdateFeatures")
        await self._client.admin.upgrade_features(levels)

    async def _describe_disk(self, broker_id: int) -> BrokerDisk:
        self._count("DescribeLogDirs")
        try:
            dirs = await self._client.admin.log_dirs([broker_id], partitions=False)
        except ClientError:
            return BrokerDisk(broker_id)
        (data, *_) = dirs[broker_id]
        return BrokerDisk(broker_id, data.total_bytes, data.usable_bytes, data.error is not None)

    async def _describe_advertised(self, ids: Sequence[int]) -> dict[int, str]:
        self._count("DescribeConfigs")
        resources = [ConfigResource(ConfigResourceType.BROKER, str(broker)) for broker in ids]
        configs = await self._client.admin.configs.describe(resources)
        return {
            int(resource.name): entries["advertised.listeners"].value or ""
            for resource, entries in configs.items()
            if not isinstance(entries, KafkaError) and "advertised.listeners" in entries
        }

    async def _describe_log_levels(
        self, ids: Sequence[int], loggers: Sequence[str]
    ) -> dict[int, dict[str, str]]:
        """Return the levels in effect, by node id and logger; unknown loggers are absent."""
        self._count("DescribeConfigs")
        levels = await log_levels.describe(self._client.admin.configs, ids, loggers)
        return levels | await self._controller_levels.describe(loggers)

    async def alter_log_levels(
        self, changes: Mapping[int, Mapping[str, str | None]]
    ) -> config_changes.Refused[int]:
        """Set, or with None unset, the levels of loggers; return the errors by node id and
        logger."""
        return await config_changes.send(self._alter_log_levels, changes)

    async def _alter_log_levels(
        self, changes: Mapping[int, Mapping[str, str | None]]
    ) -> dict[int, KafkaError]:
        self._count("IncrementalAlterConfigs")
        of_controllers = {id: c for id, c in changes.items() if id in self._controller_levels}
        of_brokers = {id: c for id, c in changes.items() if id not in of_controllers}
        failures = await log_levels.alter(self._client.admin.configs, of_brokers)
        return failures | await self._controller_levels.alter(of_controllers)

    async def describe_partitions(self) -> tuple[PartitionState, ...]:
        """Return all partitions with replicas, ISR and min ISR."""
        self._count("Metadata")
        topics = await self._client.admin.topics.list(internal=True)
        floors: dict[str, int] = {}
        for names in split_into_batches(sorted(topics)):
            self._count("DescribeConfigs")
            resources = [ConfigResource(ConfigResourceType.TOPIC, n) for n in names]
            for resource, entries in (await self._client.admin.configs.describe(resources)).items():
                if not isinstance(entries, KafkaError) and MIN_ISR in entries:
                    floors[resource.name] = int(entries[MIN_ISR].value or 1)
        return tuple(
            PartitionState(
                f"{t.name}-{p.index}", tuple(p.replicas), tuple(p.isr), floors.get(t.name, 1)
            )
            for t in topics.values()
            for p in t.partitions
        )

    async def list_reassignments(self) -> frozenset[str]:
        """Return the names of the partitions that are being reassigned."""
        self._count("ListPartitionReassignments")
        return frozenset(str(p) for p in await self._client.admin.reassignments())

    async def reassign(self, replicas: Mapping[str, Sequence[int]]) -> dict[str, KafkaError | None]:
        """Reassign partitions to these brokers; return the result by partition."""
        results: dict[str, KafkaError | None] = {}
        for batch in split_into_batches(sorted(replicas)):
            self._count("AlterPartitionReassignments")
            targets = {_parse_partition(name): list(replicas[name]) for name in batch}
            batch_results = await self._client.admin.reassign(targets)
            results |= {str(p): error for p, error in batch_results.items()}
        return results

    async def describe_racks(self) -> dict[int, str]:
        """Return the racks of the brokers that run, by broker id; empty for one without a rack."""
        self._count("DescribeCluster")
        description = await self._client.admin.describe_cluster(fenced=True)
        return {
            b.node_id: b.rack or ""
            for b in description.brokers
            if b.node_id not in description.fenced
        }

    async def unregister(self, broker_id: int) -> None:
        """Unregister a broker that no longer runs. Raises `KafkaError`."""
        self._count("UnregisterBroker")
        await self._client.admin.unregister_broker(broker_id)

    async def _describe_quorum(self) -> ControllerQuorum:
        """Return the voters, and those voters that keep up."""
        self._count("DescribeQuorum")
        quorum = await self._client.admin.describe_quorum()
        newest = max((v.last_caught_up_ms for v in quorum.voters), default=0)
        current = {
            v.node_id
            for v in quorum.voters
            if v.node_id == quorum.leader_id or newest - v.last_caught_up_ms < CAUGHT_UP_MS
        }
        return ControllerQuorum(
            frozenset(v.node_id for v in quorum.voters), frozenset(current), quorum.leader_id
        )

    async def alter_broker_config(
        self, changes: Mapping[str, str | None]
    ) -> Mapping[str, KafkaError]:
        """Set, or with None unset, cluster-wide dynamic configs; return the errors by config."""

        async def alter(by_broker: config_changes.Changes[str]) -> dict[str, KafkaError]:
            return await self._alter(ConfigResourceType.BROKER, by_broker)

        everyone = ""
        refused = await config_changes.send(alter, {everyone: changes})
        return refused.get(everyone, {})

    async def describe_topics(self, topic_names: Sequence[str]) -> dict[str, TopicState]:
        """Return the state of those topics that exist."""
        states: dict[str, TopicState] = {}
        for names in split_into_batches(topic_names):
            self._count("Metadata")
            topics = {
                n: t
                for n, t in (await self._client.admin.topics.describe(names)).items()
                if not isinstance(t, KafkaError)
            }
            config = await self._describe_configs(ConfigResourceType.TOPIC, sorted(topics))
            for name, topic in topics.items():
                states[name] = TopicState(
                    str(topic.topic_id),
                    len(topic.partitions),
                    max((len(p.replicas) for p in topic.partitions), default=0),
                    config.get(name, {}),
                    min((len(p.replicas) for p in topic.partitions), default=0),
                )
        return states

    async def _describe_configs(
        self, kind: ConfigResourceType, names: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Return the configs of the resources themselves, without defaults."""
        own = {
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigSource.GROUP_CONFIG,
        }
        if not names:
            return {}
        self._count("DescribeConfigs")
        results = await self._client.admin.configs.describe(
            [ConfigResource(kind, n) for n in names]
        )
        return {
            resource.name: {
                e.name: e.value for e in entries.values() if e.source in own and e.value is not None
            }
            for resource, entries in results.items()
            if not isinstance(entries, KafkaError)
        }

    async def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, KafkaError]:
        """Create topics; return the errors by topic."""
        failures: dict[str, KafkaError] = {}
        by_name = sorted(topics, key=lambda topic: topic.name)
        for batch in split_into_batches(by_name):
            self._count("CreateTopics")
            results = await self._client.admin.topics.create(batch)
            failures |= {n: r for n, r in results.items() if isinstance(r, KafkaError)}
        return {n: e for n, e in failures.items() if e.code != ErrorCode.topic_already_exists}

    async def create_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaError]:
        """Raise topics to these numbers of partitions; return the errors by topic."""
        self._count("CreatePartitions")
        results = await self._client.admin.topics.create_partitions(counts)
        return {n: e for n, e in results.items() if e}

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        """Set, or with None unset, topic configs; return the errors by topic."""
        return await self._alter(ConfigResourceType.TOPIC, changes)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Delete topics; return the errors, except for topics that do not exist."""
        self._count("DeleteTopics")
        results = await self._client.admin.topics.delete(names)
        return {n: e for n, e in results.items() if e and e.code not in ABSENT}

    async def _alter(
        self, kind: ConfigResourceType, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        failures: dict[str, KafkaError] = {}
        for names in split_into_batches(sorted(changes)):
            self._count("IncrementalAlterConfigs")
            results = await self._client.admin.configs.alter(
                {
                    ConfigResource(kind, n): [
                        ConfigChange(k, v, *_build_operation_args(v))
                        for k, v in sorted(changes[n].items())
                    ]
                    for n in names
                }
            )
            failures |= {r.name: e for r, e in results.items() if e}
        return failures

    async def describe_group_configs(self, groups: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configs of these groups, without defaults."""
        configs: dict[str, dict[str, str]] = {}
        for names in split_into_batches(groups):
            configs |= await self._describe_configs(ConfigResourceType.GROUP, names)
        return configs

    async def alter_group_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        """Set, or with None unset, group configs; return the errors by group."""
        return await self._alter(ConfigResourceType.GROUP, changes)

    async def describe_share_groups(
        self, groups: Sequence[str], *, of_any_type: bool = False
    ) -> dict[str, GroupState]:
        """Return the state, members and lag of share groups. Raises `ClientError`.

        A group of another type counts as absent, unless `of_any_type` is true. Metrics are read
        after the lag. In the reverse order, records that are produced in between would count in
        the lag and not as delayed, and start consumers.
        """
        if not groups:
            return {}
        responses: dict[str, tuple[Any, Any]] = {}
        for names in split_into_batches(groups):
            self._count("ShareGroupDescribe")
            descriptions = await self._client.admin.groups.describe_share(names)
            existing = [n for n in names if not isinstance(descriptions.get(n), KafkaError)]
            absent = [n for n in names if n not in existing] if of_any_type else []
            if absent:
                self._count("DescribeGroups")
                descriptions = {**descriptions, **await self._client.admin.groups.describe(absent)}
            self._count("DescribeShareGroupOffsets")
            offsets = await self._client.admin.share_groups.offsets(existing) if existing else {}
            responses |= {name: (descriptions.get(name), offsets.get(name)) for name in names}
        quiet = find_quiet_groups(responses)
        scraped = not of_any_type and self._is_scrape_valid(quiet, groups)
        if not scraped:
            scraped = await self._scrape()
            self._quiet_groups = quiet if scraped else {}
        return {
            name: build_group_state(name, *state, self.group_metrics.get(name), scraped=scraped)
            for name, state in responses.items()
        }

    async def list_holdings(
        self, group: str, partitions: Iterable[Partition]
    ) -> list[MemberHolding] | None:
        """Return the members of a share group with the records that they hold.

        None if the brokers do not list records in flight. Raises `ClientError`.
        """
        self._count("ShareGroupDescribe")
        description = (await self._client.admin.groups.describe_share([group]))[group]
        if isinstance(description, KafkaError):
            raise description
        held_records: Counter[str] = Counter()
        starts = {TopicPartition(*p): 0 for p in partitions}
        while starts:
            self._count("DescribeShareGroupOffsets")
            pages = await self._client.admin.share_groups.in_flight(group, starts)
            starts = {}
            for partition, page in pages.items():
                if isinstance(page, KafkaError):
                    if page.code is ErrorCode.unsupported_version:
                        return None
                    raise page
                for entry in page.entries:
                    if entry.member_id:
                        held_records[entry.member_id] += entry.last_offset - entry.first_offset + 1
                if page.next_offset is not None:
                    starts[partition] = page.next_offset
        return [
            MemberHolding(m.client_id, m.client_host, held_records[m.member_id])
            for m in description.members
        ]

    async def find_oldest_record_ms(self, starts: Mapping[Partition, int]) -> int | None:
        """Return the timestamp of the oldest record at these offsets, None without records.

        Raises `ClientError`.
        """
        positions = {TopicPartition(*p): offset for p, offset in starts.items()}
        first: list[int] = []
        while positions:
            self._count("Fetch")
            # A broker returns a larger batch in the first partition of a response only.
            fetched = await self._client.fetcher.poll(
                positions, max_wait_ms=FETCH_WAIT_MS, partition_bytes=FIRST_BATCH_BYTES
            )
            if not fetched:
                break
            positions = {
                partition: position
                for partition, position in positions.items()
                if partition not in fetched
            }
            for batch in fetched.values():
                if not isinstance(batch, KafkaError):
                    first += [
                        record.timestamp_ms for record in itertools.islice(batch.records(), 1)
                    ]
        return min(first, default=None)

    def _is_scrape_valid(self, quiet: Mapping[str, QuietGroup], groups: Sequence[str]) -> bool:
        """Return whether the last scrape still says what these groups are like: without lag, then
        as now, nothing has happened since."""
        is_recent = clock.now_ms() - self._scraped_ms < QUIET_SCRAPE_MS
        return is_recent and all(
            name in quiet and quiet[name] == self._quiet_groups.get(name) for name in groups
        )

    async def _scrape(self) -> bool:
        """Read the metrics of all brokers into `group_metrics`; return whether all answered."""
        if not self._addresses[1]:
            return False  # An external cluster, or a new operator that does not know the brokers.
        try:
            scraped_metrics = parse_group_metrics(
                (await self._pages.fetch_metrics(self._addresses[1])).values()
            )
        except (OSError, ValueError):
            # Keep the last numbers while a broker restarts: without them, delayed records would
            # count as work.
            if clock.now_ms() - self._scraped_ms > METRICS_MS_MAX:
                self.group_metrics = {}
            return False
        self.group_metrics, self._scraped_ms = scraped_metrics, clock.now_ms()
        return True

    async def fetch_loaded_certificates(
        self, excluded_listeners: Container[str] = ()
    ) -> dict[str, dict[int, LoadedCertificates]] | None:
        """Return the certificates that the brokers report, by kind of authority and broker id.

        None unless all brokers answer. `excluded_listeners` are listeners with certificates of
        users.
        """
        if not self._addresses[1]:
            return None  # A new operator does not know the brokers yet.
        try:
            return parse_certificates(
                await self._pages.fetch_metrics(self._addresses[1]), excluded_listeners
            )
        except (OSError, ValueError):
            return None

    async def fetch_tiered_health(self) -> tiered_health.TieredHealth | None:
        """Return the state of tiered storage, or None unless all brokers show their metrics."""
        try:
            return tiered_health.parse(
                (await self._pages.fetch_metrics(self._addresses[1])).values()
            )
        except (OSError, ValueError):
            return None

    async def count_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of those topics that exist."""
        self._count("Metadata")
        descriptions = await self._client.admin.topics.describe(topics)
        return {
            n: len(t.partitions) for n, t in descriptions.items() if not isinstance(t, KafkaError)
        }

    async def resolve_offsets(
        self, starts: Mapping[Partition, int | StartSpec]
    ) -> dict[Partition, int]:
        """Return the offsets of times and special values. Raises `KafkaError`."""
        offsets = {p: o for p, o in starts.items() if not isinstance(o, StartSpec)}
        timestamps = {
            TopicPartition(*p): s.timestamp for p, s in starts.items() if isinstance(s, StartSpec)
        }
        resolved = await self._list_offsets(timestamps)
        # No record has this timestamp or a later one: start at the end.
        resolved |= await self._list_offsets(
            {p: OffsetSpec.LATEST for p, offset in resolved.items() if offset < 0}
        )
        return offsets | {(p.topic, p.partition): offset for p, offset in resolved.items()}

    async def set_share_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set the start offsets of a group without members.

        Creates the group if it does not exist. Raises `KafkaError`.
        """
        self._count("AlterShareGroupOffsets")
        new_offsets = {TopicPartition(*p): o for p, o in offsets.items()}
        results = await self._client.admin.share_groups.alter_offsets(group, new_offsets)
        for error in results.values():
            if error:
                raise error

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not times:
            return {}
        self._count("ListOffsets")
        results = await self._client.admin.topics.offsets(times)
        for partition, offset in results.items():
            if isinstance(offset, KafkaError):
                raise KafkaError(offset.code, f"{partition}: {offset}")
        return {p: o.offset for p, o in results.items() if not isinstance(o, KafkaError)}

    async def delete_groups(self, groups: Sequence[str]) -> dict[str, KafkaError]:
        """Delete empty groups; return the errors, except for groups that do not exist."""
        self._count("DeleteGroups")
        results = await self._client.admin.groups.delete(groups)
        return {g: e for g, e in results.items() if e and e.code not in NO_GROUP}


def _parse_partition(name: str) -> TopicPartition:
    """Parse `topic-0`."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def _build_operation_args(value: str | None) -> tuple[Any, ...]:
    return (AlterOperation.DELETE,) if value is None else ()
