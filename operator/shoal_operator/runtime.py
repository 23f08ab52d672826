"""The operator as one object: a store, and the reconcile loops of each cluster.

Watch events come in through `on_update` and `on_delete`, which enqueue the resources that they
concern. Only the leader runs loops; the other replicas keep their stores up to date. A new leader
lists all objects before its loops start, so that no loop acts on an incomplete store.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import structlog

from shoal_operator import metrics
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.racks import RackReconciler, get_rack_key
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.kube import failures, storage_versions
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import PLURALS, KubeClient, KubeError
from shoal_operator.kube.reconcile_loop import ReconcileLoop
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.kube.store import Store
from shoal_operator.kube.watch import KindWatch
from shoal_operator.model import cluster as cluster_model
from shoal_operator.model import external, names, security
from shoal_operator.model.consumers import apache_spark
from shoal_operator.model.resources.queue_user import QueueUser
from shoal_operator.model.resources.share_consumer import ShareConsumer
from shoal_operator.model.resources.share_group import ShareGroup
from shoal_operator.queues import topics as topics_module
from shoal_operator.queues.group_monitor import WATCH_SECONDS, GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler
from shoal_operator.queues.queue_schedules import QueueScheduleReconciler
from shoal_operator.queues.redrives import RedriveReconciler
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler
from shoal_operator.users.reconciler import QueueUserReconciler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.settings import ChartSettings

log = structlog.get_logger()
ClusterKey = tuple[str, str]
#: Seconds between passes through all resources, which find changes inside the brokers.
RESYNC_SECONDS = 60.0
#: Names that arrive within this time are reconciled as one batch.
SETTLE_SECONDS = 0.2
#: Seconds until a new leader retries a list that failed.
LOAD_RETRY_SECONDS = 2.0

#: The fields that `/scale` returns for a ShareConsumer, where they are known.
Signal = Literal["lag", "workable", "due", "inFlight", "partitions", "desiredReplicas", "ceiling"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
_MANAGED = {names.MANAGED_BY: names.FIELD_MANAGER}
#: Of a custom resource's metadata, what a status update does not change. Kueue's labels of a
#: ShareConsumer are those of its workload.
_RELEVANT = ("uid", "generation", "deletionTimestamp", "labels", "annotations", "finalizers")
CUSTOM = (
    "QueueCluster",
    "QueueTopic",
    "QueueUser",
    "ShareGroup",
    "ShareConsumer",
    "Redrive",
    "QueueRebalance",
    "QueueSchedule",
)
#: The kinds whose resources name their cluster.
OF_CLUSTER = (
    "QueueTopic",
    "QueueUser",
    "ShareGroup",
    "Redrive",
    "QueueRebalance",
    "QueueSchedule",
)
#: The definitions of Kubeflow's and of Apache's Spark operator.
SPARK_CRDS = ("sparkapplications.sparkoperator.k8s.io", "sparkapplications.spark.apache.org")
#: What kopf watches: API version, kind, labels. `SPARK` may be absent, and has its own watches.
WATCHED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    *((names.API_VERSION, kind, {}) for kind in CUSTOM),
    ("v1", "ServiceAccount", _MANAGED),
    ("v1", "ConfigMap", _MANAGED),
    ("v1", "Secret", _MANAGED),
    ("v1", "Service", _MANAGED),
    ("v1", "PersistentVolumeClaim", _MANAGED),
    ("v1", "Pod", _MANAGED),
    ("apps/v1", "StatefulSet", _MANAGED),
    ("policy/v1", "PodDisruptionBudget", _MANAGED),
    ("networking.k8s.io/v1", "NetworkPolicy", _MANAGED),
)
#: What kopf watches for each kind of workload, too.
WATCHED_FOR: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "deployment": ("apps/v1", "Deployment", _MANAGED),
    "job": ("batch/v1", "Job", _MANAGED),
    "spark": ("rbac.authorization.k8s.io/v1", "RoleBinding", _MANAGED),
}
SPARK = tuple(
    (api_version, "SparkApplication", _MANAGED)
    for api_version in (names.SPARK_API, apache_spark.API)
)


def list_watched(workloads: frozenset[str]) -> list[tuple[str, str, Mapping[str, str]]]:
    """Return what kopf watches for an operator of these workloads."""
    return [
        *WATCHED,
        *(WATCHED_FOR[workload] for workload in sorted(workloads) if workload in WATCHED_FOR),
    ]


@dataclass(slots=True)
class ClusterLoops:
    """The loops of one QueueCluster; resources may name one that does not exist yet."""

    brokers: Brokers
    share_consumers: ShareConsumerReconciler
    redriving: RedriveReconciler
    cluster: ReconcileLoop
    topics: ReconcileLoop
    groups: ReconcileLoop
    watch: ReconcileLoop
    consumers: ReconcileLoop
    users: ReconcileLoop
    redrives: ReconcileLoop
    rebalances: ReconcileLoop
    schedules: ReconcileLoop
    racks: ReconcileLoop
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, name: str) -> None:
        self.tasks = [
            asyncio.create_task(loop.run(), name=f"{loop.kind} of {name}")
            for loop in (
                self.cluster,
                self.topics,
                self.groups,
                self.watch,
                self.consumers,
                self.users,
                self.redrives,
                self.rebalances,
                self.schedules,
                self.racks,
            )
        ]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.redriving.close()
        await self.brokers.close()


class Operator:
    """Routes watch events to reconcile loops; `namespaces` are watched, all if empty.

    `another_leads` returns whether another replica leads. Construct it in a running event loop.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: ChartSettings,
        namespaces: tuple[str, ...] = (),
        *,
        another_leads: Callable[[], bool] = lambda: False,
    ) -> None:
        self._kube, self._settings, self._namespaces = kube, settings, namespaces
        self.store = Store()
        #: What the watches have reported last of each custom resource, by kind, namespace and name.
        #: The store may be ahead of it: it has the answers to the operator's own writes, which
        #: contain the changes that somebody else has made meanwhile.
        self._reported: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        self._loops: dict[ClusterKey, ClusterLoops] = {}
        self._leading = False
        self._another_leads = another_leads
        self._term: asyncio.Task[None] | None = None
        self._migration: asyncio.Task[None] | None = None
        self._spark = [
            KindWatch(
                kube,
                *kind,
                namespace=namespace,
                on_update=self.on_update,
                on_delete=self.on_delete,
            )
            for kind in SPARK
            for namespace in (namespaces or (None,) if "spark" in settings.workloads else ())
        ]
        #: Why this replica, which was elected, cannot act yet.
        self._load_problem = ""
        self._watching = [asyncio.create_task(w.run(), name="watch of Spark") for w in self._spark]
        self._retiring: set[asyncio.Task[None]] = set()
        self._signal_listeners: list[Callable[[], None]] = []
        self._orphans = ReconcileLoop("ShareConsumer", self._report_orphans, list, RESYNC_SECONDS)

    # -- leadership

    def set_leading(self, leading: bool) -> None:
        """Start or stop all loops."""
        log.info("acts now" if leading else "stands by")
        for task in (self._term, self._migration):
            if task:
                task.cancel()
        self._leading, self._load_problem = False, ""
        metrics.forget_all()
        for key in list(self._loops):
            self._retire(key)
        self._term = asyncio.create_task(self._start_leading()) if leading else None

    @property
    def obstacle(self) -> str:
        """Why this replica cannot do its work, empty if it can: a probe should fail."""
        if self._load_problem:
            return self._load_problem
        unsynced = (watch for watch in self._spark if not watch.synced)
        return next((watch.problem for watch in unsynced if watch.problem), "")

    @property
    def warnings(self) -> list[str]:
        """What this replica does without, because it fails at present."""
        return [watch.problem for watch in self._spark if watch.problem]

    async def _start_leading(self) -> None:
        while True:
            try:
                await self._list_all()
                break
            except KubeError as error:
                self._load_problem = f"It cannot list what it has to act on: {error}"
                log.warning("cannot list yet", error=str(error))
            except Exception as error:
                self._load_problem = f"It cannot list what it has to act on: {error!r}"
                log.exception("a defect of the operator; will list again")
            metrics.ERRORS.labels("list").inc()
            await asyncio.sleep(LOAD_RETRY_SECONDS)
        self._load_problem = ""
        self._leading = True
        for kind in CUSTOM:
            for manifest in list(self.store.iterate(kind)):
                self._note_report(manifest)
                try:
                    self._enqueue(manifest)
                except Exception as error:
                    # It must not keep this replica from its other resources.
                    failures.report(kind, manifest, error)
        if not self._namespaces:
            # In some namespaces only, the operator may not read the others' resources.
            definitions = [f"{PLURALS[kind]}.{names.GROUP}" for kind in CUSTOM]
            self._migration = asyncio.create_task(
                storage_versions.migrate_all(self._kube, definitions), name="storage versions"
            )
        await self._orphans.run()

    async def _list_all(self) -> None:
        targets = list_watched(self._settings.workloads)
        if "spark" in self._settings.workloads:
            targets.extend(SPARK)
        for api_version, kind, labels in targets:
            for namespace in self._namespaces or (None,):
                try:
                    manifests, _ = await self._kube.list_snapshot(
                        api_version, kind, namespace, labels
                    )
                except KubeError as error:
                    if error.status == 404 and kind == "SparkApplication":
                        continue
                    raise
                for manifest in manifests:
                    self.store.put(manifest)

    async def close(self) -> None:
        """Stop all loops and close all connections."""
        self.set_leading(False)
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    # -- watch events

    def on_update(self, manifest: Manifest) -> None:
        """Store an object that was added or modified, and enqueue what it concerns."""
        self.store.put(manifest)
        if manifest["kind"] == "ShareConsumer":
            self._notify_signal_listeners()
        if self._note_report(manifest):
            self._enqueue(manifest)

    def _note_report(self, manifest: Manifest) -> bool:
        """Note what is reported of an object; return whether it is more than the operator's own
        status update."""
        if manifest["apiVersion"] != names.API_VERSION:
            return True
        meta = manifest["metadata"]
        key = (manifest["kind"], meta["namespace"], meta["name"])
        before = self._reported.get(key)
        self._reported[key] = tuple(meta.get(field) for field in _RELEVANT)
        return before != self._reported[key]

    def on_delete(self, manifest: Manifest) -> None:
        """Remove an object from the store, and enqueue what it concerns."""
        kind, meta = manifest["kind"], manifest["metadata"]
        self.store.drop(manifest)
        self._reported.pop((kind, meta["namespace"], meta["name"]), None)
        if kind == "ShareGroup":
            metrics.forget_group(meta["namespace"], meta["name"])
        if kind == "ShareConsumer":
            metrics.forget_consumer(meta["namespace"], meta["name"])
            self._notify_signal_listeners()
        self._enqueue(manifest, deleted=True)
        key = (meta["namespace"], self._get_cluster(manifest))
        if kind in CUSTOM and key in self._loops and not self._is_used(key):
            self._retire(key)

    def on_spark_changed(self) -> None:
        """Retry the watches of SparkApplications, whose definition was installed or removed."""
        for watch in self._spark:
            watch.retry_now()
        for consumer in list(self.store.iterate(ShareConsumer)):
            if "spark" in consumer["spec"]:
                self._enqueue(consumer)

    def get_signal(self, namespace: str, name: str) -> dict[str, int] | None:
        """Return the scale signal of a ShareConsumer, None if it does not exist.

        `lag` and the fields derived from it are absent while the lag is unknown: the leader has not
        read it from the brokers recently, or no replica leads.
        """
        consumer = self.store.get(ShareConsumer, namespace, name)
        if consumer is None:
            return None
        status = consumer.get("status", {})
        signal = {
            "desiredReplicas": status.get("desiredReplicas", 0),
            "ceiling": status.get("ceiling", 0),
        }
        loops = self._loops.get((namespace, self._get_cluster(consumer)))
        if self._leading:
            live = loops.share_consumers.get_signal(name) if loops else {}
            return signal | {k: v for k, v in live.items() if k in SIGNALS}
        # A standby replica repeats what the leader has written.
        if self._another_leads():
            signal |= {key: status[key] for key in SIGNALS if key in status}
        return signal

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever a scale signal may have changed; return what ends that."""
        self._signal_listeners.append(listener)
        return lambda: self._signal_listeners.remove(listener)

    def _notify_signal_listeners(self) -> None:
        for listener in list(self._signal_listeners):
            listener()

    def _enqueue(self, manifest: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Enqueue the resources that a changed object concerns."""
        if not self._leading:
            return
        kind, meta = manifest["kind"], manifest["metadata"]
        owner = meta.get("labels", {}).get(names.CONSUMER_LABEL)
        if kind == "Pod" and get_rack_key(manifest):
            loops = self._loops.get((meta["namespace"], self._get_cluster(manifest)))
            if loops:
                loops.racks.enqueue(meta["name"])
        if kind == "ShareConsumer":
            self._enqueue_consumer(manifest)
            # They are warned about each other.
            for rival in self._list_consumers(
                meta["namespace"], "shareGroup", manifest["spec"]["shareGroup"]
            ):
                self._enqueue_consumer(rival)
        elif owner and kind not in CUSTOM:
            consumer = self.store.get(ShareConsumer, meta["namespace"], owner)
            if consumer:
                self._enqueue_consumer(consumer)
        else:
            self._enqueue_in_cluster(manifest, deleted=deleted)

    def _enqueue_in_cluster(self, manifest: Mapping[str, Any], *, deleted: bool) -> None:
        """Enqueue what an object concerns in the loops of its cluster; start them if needed."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (meta["namespace"], self._get_cluster(manifest))
        loops = self._loops.get(key)
        if loops is None and kind in CUSTOM and self._is_used(key):
            loops = self._start(key)
        if loops is None:
            return
        of_kinds = {
            "QueueTopic": loops.topics,
            "ShareGroup": loops.groups,
            "QueueUser": loops.users,
            "Redrive": loops.redrives,
            "QueueRebalance": loops.rebalances,
            "QueueSchedule": loops.schedules,
        }
        if kind in of_kinds:
            self._enqueue_with_rivals(of_kinds[kind], manifest, deleted=deleted)
            self._enqueue_dependents(manifest, loops)
        elif user := meta.get("labels", {}).get(names.USER_LABEL):
            loops.users.enqueue(user)
        else:
            loops.cluster.enqueue(key[1])
            if kind == "QueueCluster":
                self._enqueue_all(key)
            elif kind == "Secret":
                # The authorities in the Secrets of users.
                for queue_user in self.store.list_of_cluster(QueueUser, *key):
                    loops.users.enqueue(queue_user["metadata"]["name"])

    def _enqueue_dependents(self, manifest: Mapping[str, Any], loops: ClusterLoops) -> None:
        """Enqueue what depends on a topic, a group or a user."""
        meta = manifest["metadata"]
        if manifest["kind"] == "QueueTopic":
            key = (meta["namespace"], self._get_cluster(manifest))
            for group in self.store.list_of_cluster(ShareGroup, *key):
                if not group.get("status", {}).get("partitions"):
                    loops.groups.enqueue(group["metadata"]["name"])
        elif manifest["kind"] == "ShareGroup":
            for consumer in self._list_consumers(meta["namespace"], "shareGroup", meta["name"]):
                self._enqueue_consumer(consumer)
        elif manifest["kind"] == "QueueUser":
            for consumer in self._list_consumers(meta["namespace"], "user", meta["name"]):
                self._enqueue_consumer(consumer)

    def _enqueue_consumer(self, consumer: Mapping[str, Any]) -> None:
        meta = consumer["metadata"]
        key = (meta["namespace"], self._get_cluster(consumer))
        if key[1]:
            loops = self._loops.get(key) or self._start(key)
            loops.consumers.enqueue(meta["name"])
        else:
            self._orphans.enqueue(f"{meta['namespace']}/{meta['name']}")

    def _enqueue_with_rivals(
        self, loop: ReconcileLoop, manifest: Mapping[str, Any], *, deleted: bool
    ) -> None:
        """Enqueue a resource and, if it is deleted, those that name the same topic or group."""
        kind, meta = manifest["kind"], manifest["metadata"]
        loop.enqueue(meta["name"])
        if not deleted and not meta.get("deletionTimestamp"):
            return
        for name in self.store.list_claimed(kind, meta["namespace"], manifest["spec"]["cluster"]):
            loop.enqueue(name)

    def _enqueue_all(self, key: ClusterKey) -> None:
        """Enqueue all resources of a cluster that was created, has changed or begins to answer."""
        loops = self._loops[key]
        of_kinds = (
            (loops.topics, "QueueTopic"),
            (loops.groups, "ShareGroup"),
            (loops.users, "QueueUser"),
            (loops.redrives, "Redrive"),
            (loops.rebalances, "QueueRebalance"),
            (loops.schedules, "QueueSchedule"),
        )
        for loop, kind in of_kinds:
            for resource in self.store.list_of_cluster(kind, *key):
                loop.enqueue(resource["metadata"]["name"])
        # Users may have been deleted while the cluster was away.
        loops.users.enqueue_all()
        for name in loops.share_consumers.list_names():
            loops.consumers.enqueue(name)

    def _get_cluster(self, manifest: Mapping[str, Any]) -> str:
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "QueueCluster":
            return str(meta["name"])
        if kind in OF_CLUSTER:
            return str(manifest["spec"]["cluster"])
        if kind == "ShareConsumer":
            group = self.store.get(ShareGroup, meta["namespace"], manifest["spec"]["shareGroup"])
            return str(group["spec"]["cluster"]) if group else ""
        return str(meta.get("labels", {}).get(names.CLUSTER_LABEL, ""))

    def _list_consumers(
        self, namespace: str, field: Literal["shareGroup", "user"], name: str
    ) -> list[ShareConsumer]:
        """Return the ShareConsumers that name this group or user."""
        return [
            o
            for o in self.store.iterate(ShareConsumer)
            if o["metadata"]["namespace"] == namespace and o["spec"].get(field) == name
        ]

    def _is_used(self, key: ClusterKey) -> bool:
        return self.store.get_cluster(*key) is not None or any(
            self.store.has_any(kind, *key) for kind in OF_CLUSTER
        )

    async def _report_orphans(self, full_names: list[str]) -> float | None:
        """Write the status of ShareConsumers whose ShareGroup does not exist. Raises the first
        `KubeError`, after all of them."""
        statuses = StatusWriter(self._kube, self.store)
        consumers = (self.store.get(ShareConsumer, *name.split("/")) for name in full_names)
        await failures.complete_all(
            statuses.write(consumer, _make_orphan_verdict(consumer["spec"]["shareGroup"]))
            for consumer in consumers
            if consumer is not None and not self._get_cluster(consumer)
        )
        return None

    # -- the loops of a cluster

    def _get_access(self, key: ClusterKey) -> tuple[str, dict[int, str], dict[str, str]]:
        """Return how to reach the brokers of a cluster as far as it is known. Its own loop corrects
        that, and reports what cannot be understood; the other loops must not fail in the
        meantime."""
        namespace, name = key
        cluster = self.store.get_cluster(*key)
        if cluster is not None:
            try:
                return self._read_access(key, cluster)
            except Exception as error:
                failures.report("QueueCluster", cluster, error)
        service = names.format_bootstrap_service(name)
        return f"{service}.{namespace}.svc:{cluster_model.PORT}", {}, {}

    def _read_access(
        self, key: ClusterKey, cluster: QueueCluster
    ) -> tuple[str, dict[int, str], dict[str, str]]:
        namespace, name = key
        stateful_set = self.store.get("StatefulSet", namespace, names.format_stateful_set(name))
        stage = security.get_stage(cluster, stateful_set)
        resolved = security.resolve(cluster, stage)
        own = self.store.get("Secret", namespace, security.format_operator_secret(name))
        client = security.parse_operator_client(own) if own and stage.is_used else {}
        return cluster_model.get_bootstrap_servers(resolved), {}, client

    def _start(self, key: ClusterKey) -> ClusterLoops:
        namespace, name = key
        cluster = self.store.get_cluster(*key)
        if cluster is not None and external.is_external(cluster):
            ready = not external.needs_secrets(cluster)
            brokers = Brokers(external.get_bootstrap_servers(cluster), has_credentials=ready)
        else:
            brokers = Brokers(*self._get_access(key))
        parts = (self._kube, self.store, brokers, namespace, name)
        racks = RackReconciler(*parts[:2], *key)
        clusters = QueueClusterReconciler(
            *parts,
            self._settings.broker_image,
            on_reachable=lambda: self._enqueue_all(key),
            pull_policy=self._settings.broker_pull_policy,
            operator_namespace=self._settings.namespace,
            openshift=self._settings.openshift,
            racks=racks if self._settings.racks else None,
            routed=self._settings.routed,
        )
        topics = topics_module.QueueTopicReconciler(*parts)
        monitor = GroupMonitor(*parts)
        monitor.subscribe(lambda changed: self._enqueue_consumers(key, changed))
        groups = ShareGroupReconciler(*parts, monitor=monitor)
        users = QueueUserReconciler(*parts)
        redrives, rebalances = RedriveReconciler(*parts), QueueRebalanceReconciler(*parts)
        schedules = QueueScheduleReconciler(*parts)
        consumers = ShareConsumerReconciler(
            *parts[:2],
            monitor,
            namespace,
            name,
            self._settings,
            on_signal=self._notify_signal_listeners,
        )
        loops = ClusterLoops(
            brokers,
            consumers,
            redrives,
            ReconcileLoop("QueueCluster", clusters.reconcile, clusters.list_names, RESYNC_SECONDS),
            ReconcileLoop(
                "QueueTopic", topics.reconcile, topics.list_names, RESYNC_SECONDS, SETTLE_SECONDS
            ),
            ReconcileLoop(
                "ShareGroup", groups.reconcile, groups.list_names, RESYNC_SECONDS, SETTLE_SECONDS
            ),
            ReconcileLoop("ShareGroup lag", monitor.watch, groups.list_names, WATCH_SECONDS),
            ReconcileLoop(
                "ShareConsumer", consumers.reconcile, consumers.list_names, RESYNC_SECONDS
            ),
            ReconcileLoop(
                "QueueUser", users.reconcile, users.list_names, RESYNC_SECONDS, SETTLE_SECONDS
            ),
            ReconcileLoop("Redrive", redrives.reconcile, redrives.list_names, RESYNC_SECONDS),
            ReconcileLoop(
                "QueueRebalance", rebalances.reconcile, rebalances.list_names, RESYNC_SECONDS
            ),
            ReconcileLoop(
                "QueueSchedule", schedules.reconcile, schedules.list_names, RESYNC_SECONDS
            ),
            ReconcileLoop("Rack", racks.reconcile, racks.list_names, RESYNC_SECONDS),
        )
        self._loops[key] = loops
        for pod in racks.list_names():
            loops.racks.enqueue(pod)
        loops.start(f"{namespace}/{name}")
        return loops

    def _enqueue_consumers(self, key: ClusterKey, groups: list[str]) -> None:
        """Enqueue the ShareConsumers of groups whose state is new."""
        loops, group_names = self._loops.get(key), set(groups)
        if loops:
            for name, group in loops.share_consumers.list_consumer_groups():
                if group in group_names:
                    loops.consumers.enqueue(name)

    def _retire(self, key: ClusterKey) -> None:
        task = asyncio.create_task(self._loops.pop(key).stop())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def _make_orphan_verdict(group: str) -> Verdict:
    text = f"ShareGroup {group!r} does not exist in this namespace."
    return Verdict.make_waiting("ShareGroupNotFound", text)
