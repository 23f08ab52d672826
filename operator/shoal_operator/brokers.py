"""Requests to a cluster's brokers: batches of admin calls through the project's client.

Each request covers many objects, so that 500 topics need a handful of requests. Errors of single
objects are values. `ClientError` is raised if no broker answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx2
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.configs import AlterOperation, ConfigChange, ConfigSource, Resource, ResourceType
from shoal.client.connection import connect
from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.client.redrive import Plan, Redrive
from shoal.client.settings import Settings
from shoal.client.topics import NewTopic, OffsetSpec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import IN_FLIGHT_FEATURE

from shoal_operator import clock, config_checks, log_levels, metrics, tiered_health
from shoal_operator.batches import chunks
from shoal_operator.broker_certificates import parse_certificates
from shoal_operator.broker_states import (
    NO_GROUP,
    ClusterState,
    ExternalState,
    GroupState,
    Partition,
    StartSpec,
    TopicState,
    group_state,
)
from shoal_operator.diagnostics import Disk
from shoal_operator.group_metrics import GroupMetrics, parse_group_metrics
from shoal_operator.idle_members import Holding
from shoal_operator.log_levels import ControllerLevels
from shoal_operator.rebalance_calls import RebalanceCalls
from shoal_operator.roller import PartitionState, Quorum
from shoal_operator.user_calls import UserCalls

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Mapping, Sequence

    from shoal_operator.ca_renewal import Loaded

REQUEST_TIMEOUT_MS = 5_000
HTTP_TIMEOUT_SECONDS = 2.0
REACH_SECONDS_MAX = 1.0
#: A controller that lags this much behind the most current one does not keep up.
CAUGHT_UP_MS = 10_000
#: How long numbers from the brokers' metrics stay valid while a broker does not answer.
METRICS_MS_MAX = 60_000
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
        self._controller_levels = ControllerLevels(controllers or {}, self._properties)
        self._web_client: httpx2.AsyncClient | None = None
        #: The properties of TLS that `_web_client` has.
        self._web_properties: dict[str, str] = {}
        #: Numbers by group from the last scrape in which all brokers answered, and its time.
        self.group_metrics: dict[str, GroupMetrics] = {}
        self._scraped_ms = 0

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

    def _properties(self) -> dict[str, str]:
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
            self._admin_client = Client(Settings.of(self._addresses[0], self._properties))
        return self._admin_client

    async def is_reachable(self) -> bool:
        """Return whether a new connection to the bootstrap servers succeeds.

        A Service routes to its pods a little after they are ready.
        """
        settings = Settings.of(self._addresses[0], self._properties)
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
        if self._web_client is not None:
            await self._web_client.aclose()
            self._web_client = None

    async def _web(self) -> httpx2.AsyncClient:
        """Return a client for the brokers' HTTP, which shows the operator's certificate."""
        if self._web_client is not None and self._web_properties != self._client_properties:
            await self._web_client.aclose()
            self._web_client = None
        if self._web_client is None:
            self._web_properties = dict(self._client_properties)
            settings = Settings.of(self._addresses[0], self._properties)
            # Without TLS: do not load the system's certificates, which takes longer than a request.
            context = await settings.security.https_context() if self._web_properties else False
            self._web_client = httpx2.AsyncClient(
                timeout=HTTP_TIMEOUT_SECONDS, trust_env=False, verify=context
            )
        return self._web_client

    @property
    def users(self) -> UserCalls:
        """The calls on users: permissions, passwords, quotas."""
        return UserCalls(self._client.admin, self._count)

    @property
    def rebalances(self) -> RebalanceCalls:
        """The calls of rebalances: placement, reassignments, throttles."""
        return RebalanceCalls(self._client.admin, self._count)

    def _count(self, api: str) -> None:
        metrics.BROKER_CALLS.labels(api).inc()

    async def cluster_state(
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
        about = await self._client.admin.describe_cluster(fenced=True)
        everyone = Resource(ResourceType.BROKER, "")
        self._count("DescribeConfigs")
        found = (await self._client.admin.configs.describe([everyone]))[everyone]
        dynamic = {} if isinstance(found, KafkaError) else found
        registered = frozenset(broker.node_id for broker in about.brokers)
        known = registered - about.fenced
        versions, serving = await self._probes()
        quorum = await self._quorum()
        return ClusterState(
            about.cluster_id,
            # Brokers do not report a controller that clients cannot connect to.
            quorum.leader if controllers else about.controller_id,
            {
                e.name: e.value
                for e in dynamic.values()
                if e.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG and e.value is not None
            },
            registered,
            about.fenced,
            {b.node_id: b.rack for b in about.brokers if b.rack},
            quorum,
            tuple([await self._disk(broker) for broker in ids if broker in known]),
            versions,
            await self._advertised(sorted(known)) if advertised else {},
            await self._client.admin.features(),
            serving & known.union(controllers),
            await self._log_levels(sorted(known & set(ids)), loggers) if loggers else {},
        )

    async def external_state(self) -> ExternalState:
        """Return a cluster that the operator does not run. Raises `ClientError`."""
        self._count("DescribeCluster")
        about = await self._client.admin.describe_cluster()
        link = await self._client.cluster.any_connection()
        return ExternalState(
            about.cluster_id,
            about.controller_id,
            len(about.brokers),
            await self._client.admin.features(),
            LAG_VERSION in link.versions.get(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ()),
            IN_FLIGHT_FEATURE in link.features,
        )

    async def group_config_names(self, group: str) -> frozenset[str]:
        """Return the names of all group configs that the brokers have. Raises `ClientError`."""
        return await self._config_names(Resource(ResourceType.GROUP, group))

    async def topic_config_names(self) -> frozenset[str]:
        """Return the names of all topic configs, none without a topic. Raises `ClientError`."""
        self._count("Metadata")
        topics = await self._client.admin.topics.list(internal=True)
        if not topics:
            return frozenset()
        return await self._config_names(Resource(ResourceType.TOPIC, min(topics)))

    async def _config_names(self, resource: Resource) -> frozenset[str]:
        self._count("DescribeConfigs")
        found = (await self._client.admin.configs.describe([resource]))[resource]
        if isinstance(found, KafkaError):
            raise found
        return frozenset(found)

    async def static_config_problem(self, static: Mapping[str, str]) -> str:
        """Return with which of these static configs a broker would not start, and the nearest name
        for an unknown one; empty if it would with all. Raises `ClientError`."""
        self._count("IncrementalAlterConfigs")
        found = await config_checks.find_problem(self._client.admin.configs, static)
        if not config_checks.unknown_name(found):
            return found
        about = await self._client.admin.describe_cluster()
        node = min(broker.node_id for broker in about.brokers)
        known = await self._config_names(Resource(ResourceType.BROKER, str(node)))
        return config_checks.with_hint(found, known)

    def redrive(self, plan: Plan) -> Redrive:
        """Return a redrive of dead letters. Raises `ValueError` for a plan that cannot work."""
        return Redrive(self._client.cluster, plan)

    async def upgrade_features(self, levels: Mapping[str, int]) -> None:
        """Raise features to these levels, all or none. Raises `ClientError`."""
        self._count("UpdateFeatures")
        await self._client.admin.upgrade_features(levels)

    async def _disk(self, broker_id: int) -> Disk:
        self._count("DescribeLogDirs")
        try:
            dirs = await self._client.admin.log_dirs([broker_id], partitions=False)
        except ClientError:
            return Disk(broker_id)
        (data, *_) = dirs[broker_id]
        return Disk(broker_id, data.total_bytes, data.usable_bytes, data.error is not None)

    async def _probes(self) -> tuple[dict[int, str], frozenset[int]]:
        """Return the brokers' versions, and which of them serve clients, from health checks.

        The version is in the `Server` header of each response.
        """
        versions, serving, web = {}, set(), await self._web()
        for broker_id, url in self._addresses[1].items():
            with contextlib.suppress(httpx2.HTTPError):
                # Health checks are served without TLS everywhere.
                answer = await web.get(url.replace("https:", "http:", 1) + "readyz")
                name, _, version = answer.headers.get("server", "").partition("/")
                if name != "shoal":
                    continue
                versions[broker_id] = version
                if answer.is_success:
                    serving.add(broker_id)
        return versions, frozenset(serving)

    async def _advertised(self, ids: Sequence[int]) -> dict[int, str]:
        self._count("DescribeConfigs")
        asked = [Resource(ResourceType.BROKER, str(broker)) for broker in ids]
        found = await self._client.admin.configs.describe(asked)
        return {
            int(resource.name): entries["advertised.listeners"].value or ""
            for resource, entries in found.items()
            if not isinstance(entries, KafkaError) and "advertised.listeners" in entries
        }

    async def _log_levels(
        self, ids: Sequence[int], loggers: Sequence[str]
    ) -> dict[int, dict[str, str]]:
        """Return the levels in effect, by node id and logger; unknown loggers are absent."""
        self._count("DescribeConfigs")
        found = await log_levels.describe(self._client.admin.configs, ids, loggers)
        return found | await self._controller_levels.describe(loggers)

    async def alter_log_levels(
        self, changes: Mapping[int, Mapping[str, str | None]]
    ) -> dict[int, KafkaError]:
        """Set, or with None unset, the levels of loggers; return the errors by node id."""
        self._count("IncrementalAlterConfigs")
        dedicated = {id: some for id, some in changes.items() if id in self._controller_levels}
        others = {id: some for id, some in changes.items() if id not in dedicated}
        failures = await log_levels.alter(self._client.admin.configs, others)
        return failures | await self._controller_levels.alter(dedicated)

    async def partitions(self) -> tuple[PartitionState, ...]:
        """Return all partitions with replicas, ISR and min ISR."""
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

    async def reassignments(self) -> frozenset[str]:
        """Return the names of the partitions that are being reassigned."""
        self._count("ListPartitionReassignments")
        return frozenset(str(p) for p in await self._client.admin.reassignments())

    async def reassign(self, replicas: Mapping[str, Sequence[int]]) -> dict[str, KafkaError | None]:
        """Reassign partitions to these brokers; return the result by partition."""
        done: dict[str, KafkaError | None] = {}
        for some in chunks(sorted(replicas)):
            self._count("AlterPartitionReassignments")
            asked = {_partition(name): list(replicas[name]) for name in some}
            found = await self._client.admin.reassign(asked)
            done |= {str(p): error for p, error in found.items()}
        return done

    async def racks(self) -> dict[int, str]:
        """Return the racks of the brokers that run, by broker id; empty for one without a rack."""
        self._count("DescribeCluster")
        about = await self._client.admin.describe_cluster(fenced=True)
        return {b.node_id: b.rack or "" for b in about.brokers if b.node_id not in about.fenced}

    async def unregister(self, broker_id: int) -> None:
        """Unregister a broker that no longer runs. Raises `KafkaError`."""
        self._count("UnregisterBroker")
        await self._client.admin.unregister_broker(broker_id)

    async def _quorum(self) -> Quorum:
        """Return the voters, and those voters that keep up."""
        self._count("DescribeQuorum")
        found = await self._client.admin.describe_quorum()
        newest = max((v.last_caught_up_ms for v in found.voters), default=0)
        current = {
            v.node_id
            for v in found.voters
            if v.node_id == found.leader_id or newest - v.last_caught_up_ms < CAUGHT_UP_MS
        }
        return Quorum(
            frozenset(v.node_id for v in found.voters), frozenset(current), found.leader_id
        )

    async def alter_broker_config(self, changes: Mapping[str, str | None]) -> None:
        """Set, or with None unset, cluster-wide dynamic configs. Raises `KafkaError`."""
        self._count("IncrementalAlterConfigs")
        everyone = Resource(ResourceType.BROKER, "")
        wanted = [ConfigChange(k, v, *_operation(v)) for k, v in sorted(changes.items())]
        error = (await self._client.admin.configs.alter({everyone: wanted}))[everyone]
        if error:
            raise error

    async def describe_topics(self, wanted: Sequence[str]) -> dict[str, TopicState]:
        """Return the state of those topics that exist."""
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
                    min((len(p.replicas) for p in topic.partitions), default=0),
                )
        return found

    async def _configs(self, kind: ResourceType, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the configs of the resources themselves, without defaults."""
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
        """Create topics from QueueTopic specs; return the errors by topic."""
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
        """Raise topics to these numbers of partitions; return the errors by topic."""
        self._count("CreatePartitions")
        done = await self._client.admin.topics.create_partitions(counts)
        return {n: e for n, e in done.items() if e}

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        """Set, or with None unset, topic configs; return the errors by topic."""
        return await self._alter(ResourceType.TOPIC, changes)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, KafkaError]:
        """Delete topics; return the errors, except for topics that do not exist."""
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
        """Return the configs of these groups, without defaults."""
        found: dict[str, dict[str, str]] = {}
        for names in chunks(groups):
            found |= await self._configs(ResourceType.GROUP, names)
        return found

    async def alter_group_configs(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> dict[str, KafkaError]:
        """Set, or with None unset, group configs; return the errors by group."""
        return await self._alter(ResourceType.GROUP, changes)

    async def share_groups(
        self, groups: Sequence[str], *, of_any_type: bool = False
    ) -> dict[str, GroupState]:
        """Return the state, members and lag of share groups. Raises `ClientError`.

        A group of another type counts as absent, unless `of_any_type` is true. Metrics are read
        after the lag. In the reverse order, records that are produced in between would count in
        the lag and not as delayed, and start consumers.
        """
        if not groups:
            return {}
        found: dict[str, tuple[Any, Any]] = {}
        for names in chunks(groups):
            self._count("ShareGroupDescribe")
            about = await self._client.admin.groups.describe_share(names)
            known = [n for n in names if not isinstance(about.get(n), KafkaError)]
            absent = [n for n in names if n not in known] if of_any_type else []
            if absent:
                self._count("DescribeGroups")
                about = {**about, **await self._client.admin.groups.describe(absent)}
            self._count("DescribeShareGroupOffsets")
            offsets = await self._client.admin.share_groups.offsets(known) if known else {}
            found |= {name: (about.get(name), offsets.get(name)) for name in names}
        scraped = await self._scrape()
        return {
            name: group_state(name, *state, self.group_metrics.get(name), scraped=scraped)
            for name, state in found.items()
        }

    async def holdings(self, group: str, partitions: Iterable[Partition]) -> list[Holding] | None:
        """Return the members of a share group with the records that they hold.

        None if the brokers do not list records in flight. Raises `ClientError`.
        """
        self._count("ShareGroupDescribe")
        about = (await self._client.admin.groups.describe_share([group]))[group]
        if isinstance(about, KafkaError):
            raise about
        held: Counter[str] = Counter()
        starts = {TopicPartition(*p): 0 for p in partitions}
        while starts:
            self._count("DescribeShareGroupOffsets")
            pages = await self._client.admin.share_groups.in_flight(group, starts)
            starts = {}
            for where, page in pages.items():
                if isinstance(page, KafkaError):
                    if page.code is ErrorCode.unsupported_version:
                        return None
                    raise page
                for entry in page.entries:
                    if entry.member_id:
                        held[entry.member_id] += entry.last_offset - entry.first_offset + 1
                if page.next_offset is not None:
                    starts[where] = page.next_offset
        return [Holding(m.client_id, m.client_host, held[m.member_id]) for m in about.members]

    async def oldest_record_ms(self, starts: Mapping[Partition, int]) -> int | None:
        """Return the timestamp of the oldest record at these offsets, None without records.

        Raises `ClientError`.
        """
        positions = {TopicPartition(*p): offset for p, offset in starts.items()}
        first: list[int] = []
        while positions:
            self._count("Fetch")
            # A broker returns a larger batch in the first partition of a response only.
            found = await self._client.fetcher.poll(
                positions, max_wait_ms=FETCH_WAIT_MS, partition_bytes=FIRST_BATCH_BYTES
            )
            if not found:
                break
            positions = {where: at for where, at in positions.items() if where not in found}
            for one in found.values():
                if not isinstance(one, KafkaError):
                    first += [record.timestamp_ms for record in itertools.islice(one.records(), 1)]
        return min(first, default=None)

    async def _scrape(self) -> bool:
        """Read the metrics of all brokers into `group_metrics`; return whether all answered."""
        if not self._addresses[1]:
            return False  # An external cluster, or a new operator that does not know the brokers.
        try:
            found = parse_group_metrics((await self._metrics_pages()).values())
        except (httpx2.HTTPError, ValueError):
            # Keep the last numbers while a broker restarts: without them, delayed records would
            # count as work.
            if clock.now_ms() - self._scraped_ms > METRICS_MS_MAX:
                self.group_metrics = {}
            return False
        self.group_metrics, self._scraped_ms = found, clock.now_ms()
        return True

    async def loaded_certificates(
        self, others: Container[str] = ()
    ) -> dict[str, dict[int, Loaded]] | None:
        """Return the certificates that the brokers report, by kind of authority and broker id.

        None unless all brokers answer. `others` are listeners with certificates of users.
        """
        if not self._addresses[1]:
            return None  # A new operator does not know the brokers yet.
        try:
            return parse_certificates(await self._metrics_pages(), others)
        except (httpx2.HTTPError, ValueError):
            return None

    async def tiered_health(self) -> tiered_health.TieredHealth | None:
        """Return the state of tiered storage, or None unless all brokers show their metrics."""
        try:
            return tiered_health.parse((await self._metrics_pages()).values())
        except (httpx2.HTTPError, ValueError):
            return None

    async def _metrics_pages(self) -> dict[int, str]:
        """Return `/metrics` of each broker. Raises `httpx2.HTTPError` unless all answer."""
        urls = self._addresses[1].items()
        return {broker: await self._metrics_page(url + "metrics") for broker, url in urls}

    async def _metrics_page(self, url: str) -> str:
        """Return the page at a URL. A broker that has not restarted since `spec.metrics.tls`
        changed is asked with or without TLS, as it still serves the page."""
        web, (scheme, _, rest) = await self._web(), url.partition("://")
        try:
            page = await web.get(url)
            if page.status_code != httpx2.codes.FORBIDDEN or scheme == "https":
                return page.raise_for_status().text
        except httpx2.ConnectError:
            if scheme == "http":
                raise
        other = "http" if scheme == "https" else "https"
        return (await web.get(f"{other}://{rest}")).raise_for_status().text

    async def partitions_of(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the number of partitions of those topics that exist."""
        self._count("Metadata")
        found = await self._client.admin.topics.describe(topics)
        return {n: len(t.partitions) for n, t in found.items() if not isinstance(t, KafkaError)}

    async def resolve_offsets(
        self, starts: Mapping[Partition, int | StartSpec]
    ) -> dict[Partition, int]:
        """Return the offsets of times and special values. Raises `KafkaError`."""
        offsets = {p: o for p, o in starts.items() if not isinstance(o, StartSpec)}
        asked = {
            TopicPartition(*p): s.timestamp for p, s in starts.items() if isinstance(s, StartSpec)
        }
        found = await self._offsets_at(asked)
        # No record has this timestamp or a later one: start at the end.
        found |= await self._offsets_at(
            {p: OffsetSpec.LATEST for p, offset in found.items() if offset < 0}
        )
        return offsets | {(p.topic, p.partition): offset for p, offset in found.items()}

    async def set_share_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set the start offsets of a group without members.

        Creates the group if it does not exist. Raises `KafkaError`.
        """
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
        """Delete empty groups; return the errors, except for groups that do not exist."""
        self._count("DeleteGroups")
        done = await self._client.admin.groups.delete(groups)
        return {g: e for g, e in done.items() if e and e.code not in NO_GROUP}


def _partition(name: str) -> TopicPartition:
    """Parse `topic-0`."""
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def _operation(value: str | None) -> tuple[Any, ...]:
    return (AlterOperation.DELETE,) if value is None else ()
