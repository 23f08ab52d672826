"""The broker: what it is composed of, and in which order its parts start and stop.

Start: take the addresses, lock the data directory, load the metadata, open the logs, load the
coordinators, serve. Stop: the other way round; the last act marks the stop as a clean one.
Everything but the disk's worker runs on one event loop, and no call of a core awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.log.directory import LogDirectory
from shoal.log.storage import DiskStorage
from shoal.log.uuids import uuid_text
from shoal.metadata import controller
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import BrokerImage, Endpoint, MetadataImage, Scope
from shoal.metadata.names import INTERNAL_TOPICS
from shoal.metadata.topics import NewTopic, create_topics, internal_topic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.quorum.voters import Endpoint as QuorumEndpoint
from shoal.quorum.voters import ReplicaKey, Voter, VoterSet
from shoal.server import ineffective_configs
from shoal.server.cluster.controller import Controller
from shoal.server.cluster.controller_channel import ControllerChannel
from shoal.server.cluster.lifecycle import CannotJoin, Lifecycle
from shoal.server.cluster.metadata_log import Metadata, random_id
from shoal.server.cluster.producer_ids import ProducerIds
from shoal.server.cluster.quorum import Quorum
from shoal.server.cluster.served_apis import Served
from shoal.server.cluster.unreachable_leaders import Suspects
from shoal.server.cluster.voter_update import VoterUpdate
from shoal.server.config import BrokerConfig
from shoal.server.coordinators.groups import GroupService
from shoal.server.coordinators.service import CoordinatorService, InternalTopic
from shoal.server.coordinators.transactions import TransactionService
from shoal.server.handlers import HANDLERS
from shoal.server.metadata_cache import MetadataCache
from shoal.server.metrics import broker as broker_metrics
from shoal.server.metrics import coordinator as coordinator_metrics
from shoal.server.metrics.registry import Metrics
from shoal.server.network.api import Api, Listeners
from shoal.server.network.connection_limits import ConnectionLimits
from shoal.server.network.dispatch import Dispatcher
from shoal.server.network.encoding import ErrorResponses
from shoal.server.network.envelopes import EnvelopeHandler
from shoal.server.network.fetch_sessions import FetchSessions
from shoal.server.network.health import HealthListener
from shoal.server.network.links import SetupTimeouts
from shoal.server.network.listener import Listener, ListenError
from shoal.server.network.peers import Peers as BrokerPeers
from shoal.server.network.purgatory import Purgatory
from shoal.server.network.request_limits import RequestLimits
from shoal.server.network.response_limits import ResponseLimits
from shoal.server.node import Node
from shoal.server.quota.client_quotas import ClientQuotas
from shoal.server.replication.batch_validator import Examiner
from shoal.server.replication.log_maintenance import Background
from shoal.server.replication.partitions import Partitions
from shoal.server.replication.quotas import FOLLOWER, LEADER, ReplicationQuota
from shoal.server.replication.replicas import Replicas
from shoal.server.share.service import ShareService

if TYPE_CHECKING:
    from shoal.client.settings import Address
    from shoal.server.cluster.quorum_peers import Peers

#: How long this broker waits for its image to have what the controller has made.
IMAGE_TIMEOUT_S = 5.0
#: Between two looks whether a snapshot of the metadata is due.
SNAPSHOT_CHECK_MS = 1_000
#: In `meta.properties`: the voters of the setting that the quorum once had.
FIRST_VOTERS = "shoal.first.voters"


class Features(NamedTuple):
    """What ApiVersions tells of features: the levels supported, and those in force."""

    supported: dict[str, tuple[int, int]]
    finalized: dict[str, int]
    epoch: int


class Broker:
    """Owns every part; handlers reach them through it."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.node = node = Node(config, loop)
        self.config = config
        self.cluster = node.cluster
        self.loop = loop
        self.node_id = node.id
        self.log = node.log
        self.clock = node.clock
        self.timers = node.timers
        self.disk = node.disk
        self.metadata_cache = MetadataCache(Scope(self.node_id, config.given))
        self.purgatory = Purgatory(loop, self.timers)
        self.metrics = Metrics()
        self.examiner = Examiner(loop)
        self.fetch_sessions = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"],
            random_id=lambda: node.random.randrange(1, 1 << 31),
        )
        self.quotas = ClientQuotas(node, self.metadata_cache, self.metrics)
        self.throttles = {side: ReplicationQuota(self, side) for side in (LEADER, FOLLOWER)}
        self.connection_limits = ConnectionLimits(node, self.metadata_cache)
        self.request_limits = RequestLimits(node)
        self.table: Mapping[int, Api] = HANDLERS
        self.served = Served(self)
        self.listeners: list[Listener] = []
        self.response_limits = ResponseLimits(self.listeners)
        self.health: HealthListener | None = None
        self.directory = LogDirectory(DiskStorage(), config.data_dir)
        self.partitions = Partitions(
            self.node_id,
            self.directory,
            purgatory=self.purgatory,
            disk=self.disk,
            clock=self.clock,
        )
        self.partitions.on_removed.append(lambda p: self.metrics.forget_topic(p.topic))
        self.setup_timeouts = SetupTimeouts.from_config(config)
        self.peers = BrokerPeers(node, self.metadata_cache, self.setup_timeouts)
        self.suspects = Suspects(self)
        self.replicas = Replicas(self)
        self.partitions.alter = self.replicas.alter
        self.partitions.broker_epoch_of = self.replicas.broker_epoch_of
        self.partitions.on_registered.append(self.replicas.registered)
        self.partitions.on_removed.append(self.replicas.removed)
        self.producer_ids = ProducerIds(self)
        self.coordinators: list[CoordinatorService[Any]] = []
        self.background = Background(self)
        errors = ErrorResponses(self.log, self.table, self.metrics)
        self.envelopes = EnvelopeHandler(
            self, self.table, errors, is_active_controller=lambda: self.metadata.is_active
        )
        self.channel = ControllerChannel(self)
        self.dispatch = Dispatcher(
            context=self,
            served=self.served.now,
            cache=self.metadata_cache,
            metrics=self.metrics,
            quotas=self.quotas,
            purgatory=self.purgatory,
            controller=self.channel,
            errors=errors,
        )
        self.controller = Controller(self)
        self.lifecycle = Lifecycle(self)
        #: Why this node cannot go on, once it cannot.
        self.failed: asyncio.Future[str] = loop.create_future()
        self._ready = self._opened = False
        self._unserved: set[tuple[int, Address]] = set()
        self._register_metrics()

    def _register_metrics(self) -> None:
        sources = broker_metrics.Sources(
            self.partitions,
            self.purgatory,
            lambda: self.share.waiting_fetches if self.cluster.is_broker else 0,
            self.fetch_sessions,
            self.request_limits,
            self.disk,
            self.background,
            self.listeners,
        )
        broker_metrics.register(self.metrics, sources)

    # Parts that the data directory has to be open for; `start` makes them.
    quorum: Quorum
    _voters_checked = False
    metadata: Metadata
    groups: GroupService
    transactions: TransactionService
    share: ShareService

    @property
    def image(self) -> MetadataImage:
        """The metadata as of now."""
        return self.metadata_cache.image

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    @property
    def controller_id(self) -> int:
        """Which broker clients are told to ask as the controller: the active one if it is a
        broker, else this one, which passes on what it is asked."""
        leader_id = self.quorum.leader_id
        if leader_id is not None and leader_id in self.image.running:
            return leader_id
        return self.node_id

    async def start(self) -> None:
        """Serve. Raises `ListenError`, `DirectoryInUse`, `CorruptLog`, `ApiError`, `OSError`,
        `CannotJoin`; then `stop` gives back what was taken."""
        self._bind()
        self._check_address()
        self._open_directory()
        self.directory.started()
        self._open_quorum()
        self.channel.start()
        self.timers.every(SNAPSHOT_CHECK_MS, self._save_metadata)
        self.timers.every(SNAPSHOT_CHECK_MS, self._clean_metadata)
        self.controller.start()
        self.quorum.start()
        if not self.cluster.is_broker:
            await self._start_controller()
            return
        alone = not self.cluster.clustered and self.quorum.alone
        if alone:
            if self.cluster.has_controller_listener:
                self.quorum.on_step.append(VoterUpdate(self).look)
            self.metadata.register(self.registration(), clean=self.directory.clean)
        else:
            self.served.begin(early=True)
            for listener in self.listeners:
                await listener.accept()
            self.metadata.on_unreadable = self.fail
            await self.lifecycle.join()
            self.quorum.on_step.append(VoterUpdate(self).look)
            self._check_auto_join()
        self.partitions.load(self.image)
        self.quotas.start()
        self._throttle()
        self._opened = True
        self.metadata_cache.subscribe(self._metadata_changed)
        ineffective_configs.log_alterations(
            self.node, self.metadata_cache, is_active_controller=lambda: self.metadata.is_active
        )
        self.suspects.changed(self.image)
        self._start_coordinators()
        self.background.start()
        self.replicas.start()
        metrics_listener = self.config.metrics_listener
        if metrics_listener is not None:
            self.health = HealthListener(self.node, self.metrics, self)
            await self.health.listen(metrics_listener.host, metrics_listener.port)
        if alone:
            for listener in self.listeners:
                await listener.accept()
        else:
            self.served.begin(early=False)
            await self.lifecycle.enter()
        self._ready = True

    def _start_coordinators(self) -> None:
        shared = (
            self.node,
            self.metadata_cache,
            self.partitions,
            self.replicas,
            self.create_internal_topic,
            self.metrics,
        )
        self.groups = GroupService(*shared)
        self.coordinators.append(self.groups)
        self.transactions = TransactionService(
            *shared,
            groups=self.groups,
            producer_ids=self.producer_ids,
            peers=self.peers,
            purgatory=self.purgatory,
        )
        self.coordinators.append(self.transactions)
        self.share = ShareService(
            *shared,
            groups=self.groups,
            peers=self.peers,
            purgatory=self.purgatory,
            quotas=self.quotas,
            response_limits=self.response_limits,
            create_topics=self.create_topics,
            listeners=self.listeners,
        )
        self.coordinators.append(self.share.state_coordinator)
        for coordinator in self.coordinators:
            coordinator_metrics.register(self.metrics, coordinator)
            coordinator.start()
        self.share.start()

    def _bind(self) -> None:
        """Take the addresses. Raises `ListenError`."""
        for endpoint in self.config.listeners:
            if endpoint.name not in self.cluster.kinds:
                continue
            listener = Listener(
                self.node,
                endpoint.name,
                self.dispatch,
                self.connection_limits,
                self.request_limits,
                self.listeners,
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

    def _open_quorum(self) -> None:
        """Open the metadata log, and see that it fits the settings. Raises what `start` raises."""
        self.quorum = Quorum(
            self.directory,
            self.disk,
            self.clock,
            configured=self._first_voters(),
            settings=self.cluster.settings,
            make_peers=self._peers,
        )
        self.metadata = Metadata(self.quorum, self.clock, self.metadata_cache)
        self._check_voters()
        self.quorum.on_step.append(self._check_voters)
        self._check_listener(formed=self.quorum.raft.voters.latest_offset >= 0)
        self.served.look()
        self.quorum.on_step.append(self.served.look)

    async def stop(self) -> None:
        """Close the connections, sync and close the logs, and mark the stop as a clean one."""
        self._ready = False
        await self.lifecycle.leave()
        if hasattr(self, "quorum"):
            await self.quorum.resign()
        for listener in self.listeners:
            await listener.close()
        self.examiner.close()
        if self.health is not None:
            self.health.close()
        self.timers.stop()
        self.replicas.stop()
        self.peers.close()
        self.channel.close()
        if hasattr(self, "quorum"):
            self.quorum.stop()
        if hasattr(self, "metadata"):
            self.metadata.stop()
        if self._opened:
            await self.disk.drained()
            self.background.stop()
            try:
                self.directory.close()
            except OSError as error:
                self.log.error("the logs were not closed cleanly", error=str(error))
        else:
            self.directory.unlock()
        self.disk.close()

    async def create_internal_topic(self, topic: InternalTopic) -> None:
        """Make the topic of a coordinator. Raises `ApiError` when it cannot be made."""
        (row,) = await self.create_topics([internal_topic(self.image, topic.name)])
        if row["error_code"] not in (ErrorCode.none, ErrorCode.topic_already_exists):
            self.log.error("an internal topic was not made", topic=topic.name, **row)
            raise ApiError(ErrorCode.coordinator_not_available, row["error_message"])

    def create_topics(self, topics: Sequence[NewTopic]) -> asyncio.Future[list[dict[str, Any]]]:
        """Have topics made by the controller: CreateTopics' rows, once this broker's image has
        what was made. The future fails with `ApiError`."""
        if self.metadata.is_active:
            return self.metadata.submit(
                lambda image: create_topics(image, topics, new_id=random_id)
            )
        return asyncio.ensure_future(self._ask_for_topics(topics))

    async def _ask_for_topics(self, topics: Sequence[NewTopic]) -> list[dict[str, Any]]:
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": (),
                    "configs": [{"name": n, "value": v} for n, v in topic.configs],
                }
                for topic in topics
            ],
            "timeout_ms": self.config["request.timeout.ms"],
            "validate_only": False,
        }
        answer = await self.channel.request(ApiKey.CREATE_TOPICS, fields)
        rows = [
            {
                "name": row.name,
                "error_code": ErrorCode(row.error_code),
                "error_message": row.error_message,
            }
            for row in answer.topics
        ]
        made = {row["name"] for row in rows if row["error_code"] is ErrorCode.none}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IMAGE_TIMEOUT_S):
                await self.metadata_cache.until(lambda image: made <= image.topics.keys())
        return rows

    async def _start_controller(self) -> None:
        """Serve as a controller that is no broker."""
        self._opened = True
        for listener in self.listeners:
            await listener.accept()
        self.quorum.on_step.append(VoterUpdate(self).look)
        if self.config.metrics_listener is not None:
            self.health = HealthListener(self.node, self.metrics, self)
            await self.health.listen(
                self.config.metrics_listener.host, self.config.metrics_listener.port
            )
        self._ready = True

    def _save_metadata(self) -> None:
        work = self.metadata.save_if_due(
            bytes_max=self.config["metadata.log.max.record.bytes.between.snapshots"],
            interval_ms=self.config["metadata.log.max.snapshot.interval.ms"],
        )
        if work is not None:
            work.add_done_callback(self._metadata_saved)

    def _clean_metadata(self) -> None:
        self.quorum.clean(
            bytes_max=self.config["metadata.max.retention.bytes"],
            age_max_ms=self.config["metadata.max.retention.ms"],
        )

    def _metadata_saved(self, work: asyncio.Future[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self.log.error("the metadata snapshot was not written", error=str(error))

    def fail(self, sentence: str) -> None:
        """This node cannot be part of its cluster: the process ends with that sentence."""
        if not self.failed.done():
            self.failed.set_result(sentence)

    def _check_voters(self) -> None:
        """Fail when the setting names other voters than the quorum has, and never had them."""
        voters, told = self.quorum.raft.voters, self.config["controller.quorum.voters"]
        if self._voters_checked or voters.latest_offset < 0 or not told:
            return
        self._voters_checked = True
        assert self.cluster.voters is not None
        ids = self.cluster.voters.ids
        formatted = (self.directory.identity() or {}).get(FIRST_VOTERS)
        if any(known.ids == ids for known in voters.logged):
            self.directory.note(FIRST_VOTERS, _listed(ids))
            return
        if formatted == _listed(ids):
            return
        self.fail(
            f"controller.quorum.voters names the voters {_listed(ids)}, and the cluster's are"
            f" {_listed(voters.latest.ids)}: give this node the setting that the others have."
            " Voters of a running cluster are changed by kafka-metadata-quorum.sh add-controller"
            " and remove-controller."
        )

    def peer_refused(self, id: int, error: ErrorCode) -> None:
        """Another node of the quorum will not have this one."""
        address = self.quorum.peers.address_of(id)
        where = f"Node {id}" + (f" at {address[0]}:{address[1]}" if address else "")
        if error is ErrorCode.inconsistent_cluster_id:
            sentence = (
                f"{where} is of another cluster than {self.cluster_id}: see"
                " controller.quorum.voters, and give all nodes the same --cluster-id."
            )
        elif error is ErrorCode.inconsistent_voter_set:
            sentence = (
                f"{where} does not have node {self.node_id} among its voters: give all nodes the"
                " same controller.quorum.voters (--quorum)."
            )
        else:
            return
        if self._ready:
            self.log.warning("a node of the quorum refused this one", why=sentence)
        else:
            self.fail(sentence)

    def _open_directory(self) -> None:
        """Open the data directory, or format it. Raises `DirectoryInUse`, `CannotJoin`."""
        cluster_id, known = self.cluster.cluster_id, self.directory.identity()
        self._check_listener(formed=known is not None)
        if cluster_id is None and known is None and self.cluster.clustered:
            raise CannotJoin(
                "A node of a cluster needs the cluster's id for its new data directory: give all"
                f" nodes the same one, for instance --cluster-id {uuid_text(random_id())}."
            )
        self.directory.open(
            cluster_id=cluster_id or uuid_text(random_id()),
            node_id=self.node_id,
            directory_id=random_id(),
            its_cluster=cluster_id is not None,
        )

    def _check_address(self) -> None:
        """A voter has to listen where the others look for it. Raises `CannotJoin`."""
        listed = self.cluster.voters and self.cluster.voters.voters.get(self.node_id)
        bound = [one.port for one in self.listeners if one.name == self.cluster.listener]
        if listed and bound:
            port, told = listed.endpoints[0].port, [e.port for e in self.quorum_endpoints()]
            if port not in (*bound, *told):
                raise CannotJoin(
                    f"controller.quorum.voters has node {self.node_id} at port {port}, and this"
                    f" node listens on {bound[0]}: node.id {self.node_id} is taken by another"
                    " process, or --listener has to name that port."
                )

    def _check_listener(self, *, formed: bool) -> None:
        """A voter of a new quorum has a listener for controllers; one whose quorum is `formed` may
        share its clients', as the log has it there. Raises `CannotJoin`."""
        listed = self.cluster.voters and self.cluster.voters.voters.get(self.node_id)
        if formed or not listed or self.cluster.has_controller_listener:
            return
        where = listed.endpoints[0]
        raise CannotJoin(
            f"controller.quorum.voters has node {self.node_id} at {where.host}:{where.port}, where"
            " its clients connect; a new quorum needs a port of its own. Name another port for"
            f" each voter, for instance {self.node_id}@{where.host}:{where.port + 1}. If the"
            " others' quorum still uses the clients' port, set"
            f" controller.listener.names={self.cluster.inter_broker} until it has moved"
            " (docs/cluster.md)."
        )

    def _check_auto_join(self) -> None:
        """Log why a node that is to join the voters cannot."""
        joins = self.config["controller.quorum.auto.join.enable"] and self.cluster.is_controller
        votes = self.quorum.raft.voters.latest.holds(self.quorum.local)
        if joins and not votes and not self.cluster.has_controller_listener:
            self.log.warning(
                "this node cannot join the voters: it has no listener for controllers",
                remedy="name one by controller.listener.names (docs/cluster.md)",
            )

    def _first_voters(self) -> VoterSet | None:
        """The voters of a quorum that has none yet."""
        if self.cluster.voters is not None:
            return self.cluster.voters
        return VoterSet.of([Voter(ReplicaKey(self.node_id), self.quorum_endpoints())])

    def quorum_endpoints(self) -> tuple[QuorumEndpoint, ...]:
        """Where this node listens for the quorum."""
        return tuple(
            QuorumEndpoint(e.name, e.host, e.port)
            for e in self.endpoints()
            if e.name == self.cluster.listener
        )

    def _peers(self) -> Peers:
        from shoal.server.cluster.quorum_peers import Peers

        peers = Peers(
            self.node_id,
            self.cluster.settings,
            cluster_id=self.directory.cluster_id,
            endpoints=self.quorum_endpoints(),
            timeouts=self.setup_timeouts,
        )
        peers.on_unserved = self._peer_unserved
        peers.on_refused = lambda id, _, error: self.peer_refused(id, error)
        for voter in self.cluster.voters or ():
            address = voter.endpoints[0].host, voter.endpoints[0].port
            peers.learn(voter.key.id, address)
            peers.configured[voter.key.id] = address
        return peers

    def _peer_unserved(self, id: int, address: Address) -> None:
        """Log once that the settings name an address that does not serve the quorum. An address
        of the log's may be one that the voter has left."""
        configured = self.quorum.peers.configured.get(id)
        if address == configured and (id, address) not in self._unserved:
            self._unserved.add((id, address))
            self.log.warning(
                "a node does not serve the quorum where it was asked",
                node=id,
                address=f"{address[0]}:{address[1]}",
                remedy="controller.quorum.voters names ports for controllers, not for clients",
            )

    def endpoints(self) -> list[Endpoint]:
        """Where this node is told to listen, by listener."""
        advertised = self.config.advertised
        endpoints = []
        for listener in self.listeners:
            told = advertised.get(listener.name)
            host = told.host if told else listener.host
            if host in ("", "0.0.0.0", "::"):
                host = socket.getfqdn()
            port = told.port if told and told.port else listener.port
            endpoints.append(Endpoint(listener.name, host, port))
        return endpoints

    def registration(self) -> BrokerImage:
        """How this broker is known to its cluster and told to its clients."""
        shown = [e for e in self.endpoints() if Listeners.BROKER in self.cluster.kinds[e.name]]
        return BrokerImage(
            self.node_id,
            self.lifecycle.incarnation_id,
            -1,
            tuple(shown),
            controller.SUPPORTED_FEATURES,
            self.config["broker.rack"],
            fenced=False,
            log_dirs=(self.directory.directory_id,),
        )

    def features(self) -> Features:
        """The features of this broker and of its cluster."""
        image = self.image
        return Features(dict(controller.SUPPORTED_FEATURES), dict(image.features), image.offset)

    def is_internal(self, topic: str) -> bool:
        """Whether clients may not write to that topic or cut it."""
        return topic in INTERNAL_TOPICS

    def unhealthy(self) -> str | None:
        """Why Kubernetes should start this broker anew, or None."""
        offline = [f"{p.topic}-{p.index}" for p in self.partitions if p.log.offline]
        if offline:
            return f"the disk failed under {', '.join(sorted(offline)[:10])}"
        return None

    def not_ready(self) -> str | None:
        """Why clients are not served, or None."""
        return None if self._ready else "the broker is starting or stopping"

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.partitions.apply(image, delta)
        if delta.brokers:
            self.suspects.changed(image)
        if delta.configs or delta.broker_config_changed:
            self._throttle()
        if delta.broker_config_changed:
            self.replicas.configured()
        for coordinator in self.coordinators:
            coordinator.metadata_changed(image, delta)

    def _throttle(self) -> None:
        for throttle in self.throttles.values():
            throttle.changed(self.image)


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
