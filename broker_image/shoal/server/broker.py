"""The composition of a broker, and the order in which its parts start and stop.

The constructor makes all parts. `start` binds the addresses, locks the data directory, reads the
metadata, opens the logs, starts the coordinators, and serves. `stop` does the reverse, and marks
the stop as a clean one at the end. Only the workers of the disk run outside the event loop, and no
call of a core awaits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.log.directory import LogDirectory
from shoal.log.errors import CorruptLog
from shoal.log.segment import LOG
from shoal.log.uuids import format_uuid
from shoal.metadata import controller, in_sync
from shoal.metadata.image import ImageScope, MetadataImage
from shoal.metadata.names import INTERNAL_TOPICS, METADATA_LOG
from shoal.quorum import snapshots
from shoal.server import ineffective_configs, open_files
from shoal.server.audit import AuditLogger
from shoal.server.authorization import CHANGES, AccessControl
from shoal.server.cluster.controller import Controller
from shoal.server.cluster.controller_channel import ControllerChannel
from shoal.server.cluster.cordons import Cordons
from shoal.server.cluster.first_users import FirstUsers
from shoal.server.cluster.lifecycle import BrokerLifecycle, JoinError
from shoal.server.cluster.metadata_log import MetadataLog
from shoal.server.cluster.metadata_snapshots import MetadataSnapshots
from shoal.server.cluster.producer_ids import ProducerIds
from shoal.server.cluster.quorum import MetadataQuorum
from shoal.server.cluster.registration import Registration
from shoal.server.cluster.security_records import SecurityRecords
from shoal.server.cluster.served_apis import ApiTables, ServedApis
from shoal.server.cluster.token_expiry import TokenExpiry
from shoal.server.cluster.topic_creation import TopicCreation
from shoal.server.cluster.unreachable_leaders import UnreachableLeaders
from shoal.server.cluster.voter_checks import VoterChecks
from shoal.server.cluster.voter_update import VoterUpdate
from shoal.server.cluster_config import Listeners
from shoal.server.config import METRICS
from shoal.server.coordinators.groups import GroupService
from shoal.server.coordinators.streams_topics import StreamsTopics
from shoal.server.coordinators.transactions import TransactionService
from shoal.server.metadata_cache import RETRY_MS, MetadataCache
from shoal.server.metrics import broker as broker_metrics
from shoal.server.metrics import controller as controller_metrics
from shoal.server.metrics import coordinator as coordinator_metrics
from shoal.server.metrics import tiered as tiered_metrics
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.network.authentication import Authentications
from shoal.server.network.connection_limits import ConnectionLimits
from shoal.server.network.dispatch import Dispatcher, NoQuotas
from shoal.server.network.encoding import ErrorResponses
from shoal.server.network.envelopes import EnvelopeHandler
from shoal.server.network.fetch_sessions import FetchSessions
from shoal.server.network.health import HealthListener
from shoal.server.network.link_security import LinkSecurity
from shoal.server.network.links import SetupTimeouts
from shoal.server.network.listener import Listener, ListenError
from shoal.server.network.node_tls import NodeTls
from shoal.server.network.peers import BrokerPeers as BrokerPeers
from shoal.server.network.purgatory import Purgatory
from shoal.server.network.receive_memory import ReceiveMemories
from shoal.server.network.request_limits import RequestLimits
from shoal.server.network.response_limits import ResponseLimits
from shoal.server.node import Node
from shoal.server.quota.client_quotas import ClientQuotas
from shoal.server.replication.batch_validator import BatchValidator
from shoal.server.replication.id_work import IdWork
from shoal.server.replication.isr_changes import IsrChanges
from shoal.server.replication.log_maintenance import LogMaintenance
from shoal.server.replication.partitions import Partitions
from shoal.server.replication.quotas import FOLLOWER, LEADER, ReplicationQuota
from shoal.server.replication.range_reads import CACHE_BYTES, RangeReads
from shoal.server.replication.rejected_batches import RejectedBatches
from shoal.server.replication.replica_fetch import ReplicaFetches
from shoal.server.replication.replica_fetchers import ReplicaFetcherManager
from shoal.server.replication.replica_manager import ReplicaManager
from shoal.server.share.service import ShareService

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from shoal.security.authorizer import AllowAllAuthorizer, Authorizer
    from shoal.server.config import BrokerConfig
    from shoal.server.coordinators.service import CoordinatorService
    from shoal.server.network.api import Api
    from shoal.server.system import System
    from shoal.server.tiered.service import TieredStorage


class FeatureLevels(NamedTuple):
    """The features in ApiVersions: the supported levels, and the finalized ones."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


class Broker:
    """Owns all parts of a node. Handlers get it as their context."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        apis: ApiTables,
        system: System | None = None,
    ) -> None:
        """Raises `InvalidConfig`."""
        self.node = node = Node(config, loop, system)
        self.config = config
        self.cluster = node.cluster
        self.loop = loop
        self.node_id = node.id
        self.log = node.log
        self.clock = node.clock
        self.timers = node.timers
        self.disk = node.disk
        self.table: Mapping[int, Api] = apis.table
        self.metadata_cache = MetadataCache(ImageScope(self.node_id, config.explicit), node.log)
        self.audit = AuditLogger(node)
        self.access = AccessControl(config, self.metadata_cache, self.audit)
        self.purgatory = Purgatory(loop, self.timers)
        self.access.on_change(lambda: self.purgatory.wake(CHANGES))
        self.metrics = MetricRegistry()
        self.tls = NodeTls(node, self.metadata_cache, self.audit)
        self.listeners: list[Listener] = []
        self.directory = LogDirectory(node.system.storage, config.data_dir)
        self.setup_timeouts = SetupTimeouts.from_config(config)
        self.link_security = LinkSecurity(node, self.metadata_cache, self.tls)
        self.link_security.check()
        errors = ErrorResponses(node.log, apis.table)
        self.envelopes = EnvelopeHandler(
            self,
            apis.table,
            errors,
            access=self.access,
            is_active_controller=lambda: self.metadata.is_active,
        )
        self._make_cluster(apis)
        self.quotas = ClientQuotas(node, self.metadata_cache, self.metrics)
        self._make_network(errors)
        self.batch_validator = BatchValidator(node)
        self.rejected_batches = RejectedBatches()
        self.fetch_sessions = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"],
            random_id=lambda: node.random.randrange(1, 1 << 31),
        )
        self.throttles = {
            side: ReplicationQuota(node, self.metadata_cache, self.metrics, side)
            for side in (LEADER, FOLLOWER)
        }
        self.peers = self._make_peers()
        self._make_replication()
        #: Tiered storage, if it is enabled.
        self.tiered: TieredStorage | None = None
        if self.cluster.is_broker and config["remote.log.storage.system.enable"]:
            self._make_tiered()
        #: A controller without the broker role has none.
        self.coordinators: list[CoordinatorService[Any]] = []
        if self.cluster.is_broker:
            self._make_coordinators()
        self.lifecycle.on_heartbeat(self.replicas.retry_cut_off)
        has_health = config.metrics_listener is not None
        self.health = self._make_health_listener() if has_health else None
        self._ready = self._opened = False
        #: The brokers that lag in an image, as of the last probe.
        self._lags: tuple[MetadataImage, dict[int, str]] | None = None
        self._register_metrics()

    def _make_health_listener(self) -> HealthListener:
        return HealthListener(self.node, self.metrics, self, self.tls.get(METRICS))

    def _register_metrics(self) -> None:
        sources = broker_metrics.MetricSources(
            self.partitions,
            self.purgatory,
            lambda: self.share.waiting_fetches if self.cluster.is_broker else 0,
            self.fetch_sessions,
            self.request_limits,
            self.receive_memories.of_clients,
            self.disk,
            self.log_maintenance,
            self.listeners,
            lambda: self.directory.storage.get_free_bytes(self.directory.path),
        )
        broker_metrics.register(self.metrics, sources)
        tiered_metrics.register(self.metrics, lambda: self.tiered)
        controller_metrics.register_quorum(self.metrics, self.metadata.quorum)
        if self.cluster.is_controller:
            controller_metrics.register(
                self.metrics, lambda: self.metadata_cache.image, lambda: self.metadata.is_active
            )
        self.tls.register(self.metrics)

    def _make_network(self, errors: ErrorResponses) -> None:
        """Construct the parts of `server.network`."""
        self.connection_limits = ConnectionLimits(self.node, self.metadata_cache)
        self.request_limits = RequestLimits(self.node)
        self.receive_memories = ReceiveMemories(self.node)
        self.response_limits = ResponseLimits(self.listeners)
        dispatcher = partial(
            Dispatcher,
            context=self,
            served=self.served.now,
            advertised=self.served.advertised_apis,
            cache=self.metadata_cache,
            metrics=self.metrics,
            purgatory=self.purgatory,
            controller=self.channel,
            errors=errors,
            access=self.access,
            monotonic_ns=self.node.system.monotonic_ns,
        )

        self.dispatch = dispatcher(quotas=self.quotas)
        self.authentications = Authentications(
            self.node,
            self.metadata_cache,
            dispatch=self.dispatch,
            before_login=dispatcher(quotas=NoQuotas()),
            audit_log=self.audit,
        )

    def _make_peers(self) -> BrokerPeers:
        return BrokerPeers(
            self.node,
            self.metadata_cache,
            self.setup_timeouts,
            self.link_security.get_security,
            cluster_id=lambda: self.directory.cluster_id,
        )

    def _make_cluster(self, apis: ApiTables) -> None:
        """Construct the parts of `server.cluster`."""
        node, cache, directory = self.node, self.metadata_cache, self.directory
        self.registration = Registration(node, directory, self.listeners)
        self.quorum = MetadataQuorum(
            node, directory, self.registration, self.setup_timeouts, self.link_security.get_security
        )
        self.metadata = MetadataLog(node, self.quorum, cache)
        self.security_records = SecurityRecords(self.quorum, self.metadata)
        self._first_users = FirstUsers(node, cache, self.metadata)
        self._token_expiry = TokenExpiry(node, self.metadata)
        self._snapshots = MetadataSnapshots(node, self.quorum, self.metadata)
        self._cordons = Cordons(node, cache, self.metadata, self.registration)
        self.channel = ControllerChannel(
            node,
            self.quorum,
            self.metadata,
            apis=apis.table,
            handle=self.envelopes.handle,
            timeouts=self.setup_timeouts,
            security=self.link_security.get_security,
        )
        self.controller = Controller(node, cache, self.quorum, self.metadata)
        self.lifecycle = BrokerLifecycle(
            node, cache, directory, self.registration, self.quorum, self.channel
        )
        self.producer_ids = ProducerIds(node, self.metadata, self.channel, self.lifecycle)
        self.topic_creation = TopicCreation(node, cache, self.metadata, self.channel)
        self.served = ServedApis(node, self.registration, self.quorum, apis)
        self.unreachable_leaders = UnreachableLeaders(node, cache)
        self._voter_checks = VoterChecks(node, directory, self.registration, self.quorum)
        self._voter_update = VoterUpdate(
            node, directory, self.registration, self.quorum, self.channel
        )

    def _make_replication(self) -> None:
        """Construct the parts of `server.replication`."""
        node, cache = self.node, self.metadata_cache
        isr_changes = IsrChanges(node, cache, self.channel)
        id_work = IdWork(node)
        self.partitions = Partitions(
            node,
            self.directory,
            purgatory=self.purgatory,
            isr_controller=isr_changes,
            id_work_requested=id_work.begin,
        )
        id_work.register(self.metrics, self.partitions)
        self.partitions.on_removed(lambda p: self.metrics.forget_topic(p.topic))
        self.range_reads = RangeReads(self.config[CACHE_BYTES])
        self.range_reads.register(self.metrics)
        self.partitions.on_removed(self.range_reads.forget)
        self.log_maintenance = LogMaintenance(node, cache, self.partitions, self.directory)
        fetchers = ReplicaFetcherManager(
            node,
            cache,
            self.partitions,
            peers=self.peers,
            throttle=self.throttles[FOLLOWER],
            leaders=self.unreachable_leaders,
            maintenance=self.log_maintenance,
        )
        fetchers.register(self.metrics)
        self.replicas = ReplicaManager(
            node,
            self.partitions,
            isr_changes,
            fetchers=fetchers,
            purgatory=self.purgatory,
            session=self.lifecycle,
        )
        self.replica_fetches = ReplicaFetches(
            node,
            self.partitions,
            self.replicas,
            sessions=self.fetch_sessions,
            purgatory=self.purgatory,
            throttle=self.throttles[LEADER],
        )

    def _make_tiered(self) -> None:
        """Construct the parts of `server.tiered`. Raises `InvalidConfig`."""
        from shoal.server.tiered.service import TieredStorage, make_store

        self.tiered = TieredStorage(
            self.node,
            self.metadata_cache,
            self.directory,
            self.partitions,
            store=make_store(self.config),
            purgatory=self.purgatory,
            peers=self.peers,
            create_topic=self.topic_creation.create_internal_topic,
            session=self.lifecycle,
        )
        self.replicas.fetchers.remote = self.tiered

    def _make_coordinators(self) -> None:
        """Construct the parts of `server.coordinators` and `server.share`."""
        shared = (
            self.node,
            self.metadata_cache,
            self.partitions,
            self.replicas,
            self.topic_creation.create_internal_topic,
            self.metrics,
        )
        self.groups = GroupService(*shared)
        self.streams_topics = StreamsTopics(self.node, self.topic_creation)
        self.transactions = TransactionService(
            *shared,
            groups=self.groups,
            producer_ids=self.producer_ids,
            peers=self.peers,
            purgatory=self.purgatory,
        )
        self.share = ShareService(
            *shared,
            groups=self.groups,
            peers=self.peers,
            purgatory=self.purgatory,
            quotas=self.quotas,
            response_limits=self.response_limits,
            access=self.access,
            create_topics=self.topic_creation.create_topics,
            listeners=self.listeners,
        )
        self.coordinators += [self.groups, self.transactions, self.share.state_coordinator]
        for coordinator in self.coordinators:
            coordinator_metrics.register(self.metrics, coordinator)
        self.lifecycle.add_handover_hook(self.share.drain)

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.metadata_cache.image

    @property
    def authorizer(self) -> Authorizer | AllowAllAuthorizer:
        """Decides what clients may do."""
        return self.access.authorizer

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    @property
    def failed(self) -> asyncio.Future[str]:
        """The reason to end the process. It is set when the node has failed."""
        return self.node.failed

    @property
    def is_open(self) -> bool:
        """Whether the logs are open."""
        return self._opened

    @property
    def controller_id(self) -> int:
        """The broker that clients should send requests for the controller to.

        The active controller if it is a broker, else this broker, which forwards them.
        """
        leader_id = self.quorum.leader_id
        if leader_id is not None and leader_id in self.image.running:
            return leader_id
        return self.node_id

    async def start(self) -> None:
        """Serve. Raises `ListenError`, `DirectoryInUse`, `CorruptLog`, `ApiError`, `OSError`,
        `JoinError`; then `stop` releases what was taken."""
        self._bind()
        await self.authentications.start()
        self.tls.start()
        self._voter_checks.check_address()
        self._open_directory()
        self.directory.mark_started()
        self._open_quorum()
        self.channel.start()
        self._snapshots.start()
        self.controller.start()
        self._token_expiry.start()
        self.quorum.start()
        if not self.cluster.is_broker:
            await self._start_controller()
            return
        alone = not self.cluster.clustered and self.quorum.alone
        if alone:
            if self.cluster.has_controller_listener:
                self._voter_update.start()
            self.metadata.register(
                self.registration.make_broker_image(), clean=self.directory.clean
            )
            self._cordons.start()
        else:
            self.served.begin(early=True)
            await self._accept(
                [
                    one
                    for one in self.listeners
                    if Listeners.CONTROLLER in self.served.get_kind(one.name)
                ]
            )
            self.metadata.on_unreadable(self.node.fail)
            await self.lifecycle.join()
            self._voter_update.start()
            self._voter_checks.check_auto_join()
        missed = self.partitions.load(self.image)
        self.quotas.start()
        for throttle in self.throttles.values():
            throttle.start()
        self._opened = True
        self.partitions.on_finished(self.metadata_cache.retry)
        self.metadata_cache.subscribe(self.partitions.apply, missed if missed.created else None)
        self.timers.call_every(RETRY_MS, self.metadata_cache.retry)
        self.timers.call_every(open_files.CHECK_MS, open_files.OpenFiles(self.log).check)
        ineffective_configs.log_alterations(
            self.node, self.metadata_cache, is_active_controller=lambda: self.metadata.is_active
        )
        self.unreachable_leaders.start()
        for coordinator in self.coordinators:
            self.metadata_cache.subscribe(coordinator.on_metadata_changed)
            coordinator.start()
        self.share.start()
        if self.tiered is not None:
            self.tiered.start()
        self.log_maintenance.start()
        self.replicas.start()
        await self._listen_for_health()
        self.served.begin(early=False)
        await self._accept(self.listeners)
        if not alone:
            await self.lifecycle.enter()
        self._set_ready()

    def _bind(self) -> None:
        """Bind the addresses. Raises `ListenError`."""
        for endpoint in self.config.listeners:
            if endpoint.name not in self.cluster.kinds:
                continue
            listener = Listener(
                self.node,
                endpoint.name,
                self.dispatch,
                self.connection_limits,
                self.request_limits,
                self.receive_memories.get(endpoint.name),
                self.listeners,
                self.authentications.get(endpoint.name),
                self.tls.get(endpoint.name),
            )
            try:
                listener.bind(endpoint.host, endpoint.port)
            except ListenError as error:
                if self.cluster.kinds[endpoint.name] is not Listeners.CONTROLLER:
                    raise
                raise ListenError(
                    f"{error} This is the listener for controllers: see this node's port in"
                    " controller.quorum.voters (--quorum), and whether another process has node.id"
                    f" {self.node_id}."
                ) from None
            self.listeners.append(listener)

    def _open_directory(self) -> None:
        """Open the data directory, or format it. Raises `DirectoryInUse`, `CorruptLog`,
        `JoinError`."""
        cluster_id, identity = self.cluster.cluster_id, self.directory.read_meta_properties()
        self._voter_checks.check_listener(formed=identity is not None)
        if cluster_id is None and identity is None and self.cluster.clustered:
            raise JoinError(
                "A node of a cluster needs the cluster's id for its new data directory: give all"
                f" nodes the same one, for instance --cluster-id {self._make_id()}."
            )
        self.directory.open(
            cluster_id=cluster_id or self._make_id(),
            node_id=self.node_id,
            directory_id=self.node.make_random_id(),
            its_cluster=cluster_id is not None,
            first_log=METADATA_LOG,
        )
        self._check_metadata_log()

    def _check_metadata_log(self) -> None:
        """Refuse to begin a new cluster in a directory that belongs to one. Raises `CorruptLog`."""
        directory = self.directory
        if directory.is_new or not self.cluster.is_controller:
            return
        path = f"{directory.path}/{METADATA_LOG}"
        begins = directory.storage.exists(path) or self._first_users.has_file
        if directory.has_data(METADATA_LOG, LOG, snapshots.SUFFIX):
            return
        topics = [name for name in directory.find_logs_with_data() if name != METADATA_LOG]
        if begins and not topics:
            return
        has = f"logs of topics ({topics[0]})" if topics else "meta.properties"
        raise CorruptLog(
            f"{directory.path} has {has}, but no metadata log in {path}, so this node would begin a"
            " new cluster that knows none of its topics. Restore that directory from a snapshot of"
            " the volume. If other controllers have the metadata, and other brokers the records of"
            " this node, start it with an empty data directory instead. Nothing was changed."
        )

    def _make_id(self) -> str:
        return format_uuid(self.node.make_random_id())

    def _open_quorum(self) -> None:
        """Open the metadata log, and check that it fits the configs. Raises what `start` raises."""
        self._first_users.start()
        self.quorum.open()
        self.metadata.open()
        self.access.start(self.image)
        self.tls.check_all()
        self._voter_checks.start()
        self._voter_checks.check_listener(formed=self.quorum.raft.voters.latest_offset >= 0)
        self.served.start()

    async def _accept(self, listeners: Sequence[Listener]) -> None:
        """Accept connections. Those for clients are refused until the broker serves, so that an
        open port means a broker that answers. Raises `ListenError`."""
        for listener in listeners:
            await listener.accept()

    async def _start_controller(self) -> None:
        """Serve as a controller without the broker role."""
        self._opened = True
        await self._accept(self.listeners)
        self._voter_update.start()
        await self._listen_for_health()
        self._set_ready()

    async def _listen_for_health(self) -> None:
        endpoint = self.config.metrics_listener
        if self.health is not None and endpoint is not None:
            await self.health.listen(endpoint.host, endpoint.port)

    def _set_ready(self) -> None:
        self._ready = True
        self._voter_checks.on_started()

    async def stop(self) -> None:
        """Close the connections, sync and close the logs, and mark the stop as a clean one."""
        self._ready = False
        await self.lifecycle.leave()
        await self.quorum.resign()
        for listener in self.listeners:
            await listener.close()
        self.batch_validator.close()
        if self.health is not None:
            self.health.close()
        self.authentications.stop()
        self.tls.stop()
        self.audit.close()
        self.timers.stop()
        self.replicas.stop()
        if self.tiered is not None:
            self.tiered.stop()
        self.peers.close()
        self.channel.close()
        self.quorum.stop()
        self.metadata.stop()
        if self._opened:
            self.partitions.close()
            await self.disk.drain()
            self.log_maintenance.stop()
            try:
                self.directory.close()
            except OSError as error:
                self.log.error("the logs were not closed cleanly", error=str(error))
        else:
            self.directory.unlock()
        self.disk.close()
        self.node.record_worker.close()

    def get_features(self) -> FeatureLevels:
        """Return the features of this broker and of its cluster."""
        image = self.image
        return FeatureLevels(
            dict(controller.SUPPORTED_FEATURES), dict(image.features), image.offset
        )

    def is_internal(self, topic: str) -> bool:
        """Whether clients must not write to that topic or delete its records."""
        return topic in INTERNAL_TOPICS

    def get_unhealthy_reason(self) -> str | None:
        """Return why Kubernetes should restart this broker, or None."""
        offline = [f"{p.topic}-{p.index}" for p in self.partitions if p.log.offline]
        if offline:
            return f"the disk failed under {', '.join(sorted(offline)[:10])}"
        return None

    def get_unready_reason(self) -> str | None:
        """Return why clients are not served, or not all of them, or None."""
        if not self._ready:
            return "the broker is starting or stopping"
        return self.get_disk_trouble()

    def get_disk_trouble(self) -> str | None:
        """Return why some writes are refused or some partitions not served, or None."""
        refusal = self.quorum.failure or self.log_maintenance.write_failure
        return refusal or self.metadata_cache.not_applied

    def get_out_of_sync_reason(self) -> str | None:
        """Return why no other broker may stop until this one has caught up, or None."""
        if self.cluster.is_broker and (self.lifecycle.is_lost or self.lifecycle.fenced):
            return "this broker is fenced, or may be: no controller answers it"
        if self._lags is None or self._lags[0] is not self.image:
            self._lags = self.image, in_sync.find_lagging_brokers(self.image)
        name = in_sync.find_awaiting_partition(*self._lags, self.node_id)
        return None if name is None else f"the replica of {name} is not in sync yet"
