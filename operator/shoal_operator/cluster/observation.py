"""What a QueueCluster is like now: its Kubernetes objects and what its brokers answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError

from shoal_operator.brokers import pods
from shoal_operator.model import broker_config, listeners, names, node_pools, pod_layout, tiered
from shoal_operator.model import cluster as model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.tiered_health import TieredHealth
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.model.queue_cluster import CertificateStatus, QueueCluster


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot of a QueueCluster; `state` is None while no broker answers.

    `effective` is the QueueCluster with the number of replicas that must run now, which exceeds
    the spec's while brokers are drained. `list_claims` belong to the brokers of the spec.
    `get_services` are by name.
    """

    cluster: QueueCluster
    effective: QueueCluster
    #: The StatefulSets of the node pools by name.
    stateful_sets: Mapping[str, Manifest]
    pods: tuple[Manifest, ...]
    claims: tuple[Manifest, ...]
    services: Mapping[str, Manifest]
    state: ClusterState | None
    #: The authorities' fields of the status.
    certificates: tuple[CertificateStatus, ...] = ()
    #: The fingerprint of the key of delegation tokens, empty without one.
    token_key: str = ""
    #: Tiered storage by the brokers' metrics; None without it, or while they are unknown.
    tiered: TieredHealth | None = None
    #: Warnings about the StatefulSets and pods, while brokers are not ready.
    warnings: tuple[Manifest, ...] = ()
    #: The uids of pods whose CPU and memory change only by a restart.
    unresizable: frozenset[str] = frozenset()

    @property
    def ready_brokers(self) -> set[int]:
        """The ids of the nodes whose container is ready."""
        return {
            broker
            for pod in self.pods
            for broker, ready in pods.get_broker_readiness(pod).items()
            if ready
        }


class ClusterObserver:
    """Reads one QueueCluster; calls `on_reachable` when its brokers begin to answer."""

    def __init__(
        self,
        store: Store,
        brokers: Brokers,
        namespace: str,
        name: str,
        on_reachable: Callable[[], None],
    ) -> None:
        self._store, self._brokers = store, brokers
        self._namespace, self._name = namespace, name
        self._on_reachable, self._reachable = on_reachable, False
        self._tiered: TieredHealth | None = None
        #: The uids of pods whose CPU and memory change only by a restart.
        self.unresizable: set[str] = set()
        #: Whether the brokers have registered ones that the spec does not have, when asked last.
        self.has_extra_brokers = False

    def observe(
        self,
        cluster: QueueCluster,
        effective: QueueCluster,
        state: ClusterState | None = None,
        *,
        certificates: tuple[CertificateStatus, ...] = (),
        token_key: str = "",
    ) -> Observation:
        """Return a snapshot; `state` is what the brokers answered."""
        return Observation(
            cluster,
            effective,
            self.get_stateful_sets(effective),
            tuple(self.list_pods()),
            tuple(self.list_claims(cluster)),
            self.get_services(cluster),
            state,
            certificates,
            token_key,
            self._tiered,
            unresizable=frozenset(self.unresizable),
        )

    def get_stateful_set(self) -> Manifest | None:
        """Return the StatefulSet of the cluster's own pool, which every cluster has."""
        return self._store.get(
            "StatefulSet", self._namespace, names.format_stateful_set(self._name)
        )

    def get_stateful_sets(self, cluster: QueueCluster) -> dict[str, Manifest]:
        """Return the StatefulSets of the node pools of this spec, by name."""
        stateful_sets = {
            pool.stateful_set: self._store.get("StatefulSet", self._namespace, pool.stateful_set)
            for pool in node_pools.list_pools(cluster)
        }
        return {name: stateful_set for name, stateful_set in stateful_sets.items() if stateful_set}

    def list_all_stateful_sets(self) -> list[Manifest]:
        """Return all StatefulSets of a cluster of this name, by name: also those of an earlier one,
        and of pools that the spec does not have."""
        labels = names.build_selector(self._name)
        return self._store.list_labelled("StatefulSet", self._namespace, labels)

    def list_pods(self) -> list[Manifest]:
        """Return the brokers' pods."""
        return self._store.list_labelled("Pod", self._namespace, names.build_selector(self._name))

    def find_pod(self, name: str) -> Manifest | None:
        """Return one pod by name, unless it is absent or being deleted."""
        pod = self._store.get("Pod", self._namespace, name)
        return pod if pod and not pod["metadata"].get("deletionTimestamp") else None

    def list_owned(self, cluster: QueueCluster, kind: str) -> list[Manifest]:
        """Return the objects of a kind that the cluster owns and that are not being deleted."""
        uid = cluster["metadata"]["uid"]
        return [
            o
            for o in self._store.iterate(kind)
            if o["metadata"]["namespace"] == self._namespace
            and any(r["uid"] == uid for r in o["metadata"].get("ownerReferences", []))
            and not o["metadata"].get("deletionTimestamp")
        ]

    def get_services(self, cluster: QueueCluster) -> dict[str, Manifest]:
        """Return the cluster's Services by name."""
        return {s["metadata"]["name"]: s for s in self.list_owned(cluster, "Service")}

    def list_external_hosts(self, cluster: QueueCluster) -> list[str]:
        """Return the hosts that clients outside the Kubernetes cluster connect to."""
        have = self.get_services(cluster)
        nodes = pods.list_node_addresses(self.list_pods())
        servers = [
            listeners.find_external_servers(cluster, listener, have, nodes, broker)
            for listener in listeners.list_external(cluster)
            for broker in (None, *pod_layout.list_brokers(cluster))
        ]
        return [
            server.rpartition(":")[0].strip("[]")
            for text in servers
            for server in text.split(",")
            if server
        ]

    def list_claims(self, cluster: QueueCluster, pool: NodePool | None = None) -> list[Manifest]:
        """Return the volume claims of the nodes of this spec, or of one pool."""
        claim_names = [
            names.format_claim(f"{node_pool.stateful_set}-{pod}", pod_layout.format_volume(slot))
            for node_pool in node_pools.list_pools(cluster)
            if pool in (None, node_pool)
            for pod in node_pool.pods
            for slot in pod_layout.list_slots(cluster, pod)
        ]
        claims = [self._store.get("PersistentVolumeClaim", self._namespace, n) for n in claim_names]
        return [{**c, "apiVersion": "v1", "kind": "PersistentVolumeClaim"} for c in claims if c]

    async def _set_addresses(self, cluster: QueueCluster) -> None:
        await self._brokers.set_addresses(
            model.get_bootstrap_servers(cluster),
            {b: model.build_http_url(cluster, b, "") for b in pod_layout.list_nodes(cluster)},
            broker_config.get_controller_addresses(cluster),
        )

    async def find_static_config_problem(self, cluster: QueueCluster) -> str:
        """Ask the brokers with which static config of this spec they would not start; empty for
        none. Raises `ClientError`."""
        await self._set_addresses(cluster)
        return await self._brokers.find_static_config_problem(broker_config.select_static(cluster))

    async def describe_cluster(self, cluster: QueueCluster) -> ClusterState | None:
        """Ask the brokers of this spec for the cluster's state; None if none answers."""
        ids, dedicated = pod_layout.list_brokers(cluster), node_pools.find_controller_pool(cluster)
        await self._set_addresses(cluster)
        try:
            state = await self._brokers.describe_cluster(
                ids,
                advertised=bool(listeners.list_external(cluster)),
                loggers=broker_config.list_loggers(cluster),
                controllers=dedicated.pods if dedicated else (),
            )
        except ClientError:
            self._reachable, self._tiered = False, None
            return None
        enabled = tiered.is_enabled(cluster)
        self._tiered = await self._brokers.fetch_tiered_health() if enabled else None
        self.has_extra_brokers = not state.registered <= set(ids)
        if not self._reachable:
            self._reachable = True
            self._on_reachable()
        return state
