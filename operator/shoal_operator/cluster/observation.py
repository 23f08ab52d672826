"""What a QueueCluster is like now: its Kubernetes objects and what its brokers answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError

from shoal_operator import pods
from shoal_operator.model import broker_config, listeners, names, node_pools, pod_layout, tiered
from shoal_operator.model import cluster as model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.brokers import Brokers
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.store import Store
    from shoal_operator.tiered_health import TieredHealth


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot of a QueueCluster; `state` is None while no broker answers.

    `effective` is the QueueCluster with the number of replicas that must run now, which exceeds
    the spec's while brokers are drained. `claims` belong to the brokers of the spec. `services` are
    by name.
    """

    cluster: Manifest
    effective: Manifest
    #: The StatefulSets of the node pools by name.
    stateful_sets: Mapping[str, Manifest]
    pods: tuple[Manifest, ...]
    claims: tuple[Manifest, ...]
    services: Mapping[str, Manifest]
    state: ClusterState | None
    #: The authorities' fields of the status.
    certificates: tuple[Manifest, ...] = ()
    #: The fingerprint of the key of delegation tokens, empty without one.
    token_key: str = ""
    #: Tiered storage by the brokers' metrics; None without it, or while they are unknown.
    tiered: TieredHealth | None = None
    #: Warnings about the StatefulSets and pods, while brokers are not ready.
    warnings: tuple[Manifest, ...] = ()

    @property
    def ready_brokers(self) -> set[int]:
        """The ids of the nodes whose container is ready."""
        return {
            broker
            for pod in self.pods
            for broker, ready in pods.broker_readiness(pod).items()
            if ready
        }


class Observer:
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
        #: The authorities' fields of the status.
        self.certificates: tuple[Manifest, ...] = ()
        #: The fingerprint of the key of delegation tokens, empty without one.
        self.token_key = ""
        self._tiered: TieredHealth | None = None
        #: Whether the brokers have registered ones that the spec does not have.
        self.has_extra_brokers = False

    def observe(
        self, cluster: Manifest, effective: Manifest, state: ClusterState | None = None
    ) -> Observation:
        """Return a snapshot; `state` is what the brokers answered."""
        return Observation(
            cluster,
            effective,
            self.stateful_sets(effective),
            tuple(self.pods()),
            tuple(self.claims(cluster)),
            self.services(cluster),
            state,
            self.certificates,
            self.token_key,
            self._tiered,
        )

    def stateful_set(self) -> Manifest | None:
        """Return the StatefulSet of the cluster's own pool, which every cluster has."""
        return self._store.get("StatefulSet", self._namespace, names.stateful_set(self._name))

    def stateful_sets(self, cluster: Manifest) -> dict[str, Manifest]:
        """Return the StatefulSets of the node pools of this spec, by name."""
        found = {
            pool.stateful_set: self._store.get("StatefulSet", self._namespace, pool.stateful_set)
            for pool in node_pools.of(cluster)
        }
        return {name: one for name, one in found.items() if one}

    def every_stateful_set(self) -> list[Manifest]:
        """Return all StatefulSets of a cluster of this name, by name: also those of an earlier one,
        and of pools that the spec does not have."""
        labels = names.selector(self._name)
        return self._store.labelled("StatefulSet", self._namespace, labels)

    def pods(self) -> list[Manifest]:
        """Return the brokers' pods."""
        return self._store.labelled("Pod", self._namespace, names.selector(self._name))

    def pod(self, name: str) -> Manifest | None:
        """Return one pod by name, unless it is absent or being deleted."""
        found = self._store.get("Pod", self._namespace, name)
        return found if found and not found["metadata"].get("deletionTimestamp") else None

    def owned(self, cluster: Manifest, kind: str) -> list[Manifest]:
        """Return the objects of a kind that the cluster owns and that are not being deleted."""
        uid = cluster["metadata"]["uid"]
        return [
            o
            for o in self._store.all(kind)
            if o["metadata"]["namespace"] == self._namespace
            and any(r["uid"] == uid for r in o["metadata"].get("ownerReferences", []))
            and not o["metadata"].get("deletionTimestamp")
        ]

    def services(self, cluster: Manifest) -> dict[str, Manifest]:
        """Return the cluster's Services by name."""
        return {s["metadata"]["name"]: s for s in self.owned(cluster, "Service")}

    def external_hosts(self, cluster: Manifest) -> list[str]:
        """Return the hosts that clients outside the Kubernetes cluster connect to."""
        have = self.services(cluster)
        nodes = pods.node_addresses(self.pods())
        servers = [
            listeners.external_bootstrap_servers(cluster, listener, have, nodes, broker)
            for listener in listeners.external(cluster)
            for broker in (None, *pod_layout.brokers(cluster))
        ]
        return [
            one.rpartition(":")[0].strip("[]") for text in servers for one in text.split(",") if one
        ]

    def claims(self, cluster: Manifest, pool: NodePool | None = None) -> list[Manifest]:
        """Return the volume claims of the nodes of this spec, or of one pool."""
        wanted = [
            names.claim(f"{one.stateful_set}-{pod}", pod_layout.volume(slot))
            for one in node_pools.of(cluster)
            if pool in (None, one)
            for pod in one.pods
            for slot in pod_layout.slots(cluster, pod)
        ]
        found = [self._store.get("PersistentVolumeClaim", self._namespace, n) for n in wanted]
        return [{**c, "apiVersion": "v1", "kind": "PersistentVolumeClaim"} for c in found if c]

    async def _set_addresses(self, cluster: Manifest) -> None:
        await self._brokers.set_addresses(
            model.bootstrap_servers(cluster),
            {b: model.http_url(cluster, b, "") for b in pod_layout.nodes(cluster)},
            broker_config.dedicated_controllers(cluster),
        )

    async def static_config_problem(self, cluster: Manifest) -> str:
        """Ask the brokers with which static config of this spec they would not start; empty for
        none. Raises `ClientError`."""
        await self._set_addresses(cluster)
        return await self._brokers.static_config_problem(broker_config.static(cluster))

    async def cluster_state(self, cluster: Manifest) -> ClusterState | None:
        """Ask the brokers of this spec for the cluster's state; None if none answers."""
        ids, dedicated = pod_layout.brokers(cluster), node_pools.controllers(cluster)
        await self._set_addresses(cluster)
        try:
            state = await self._brokers.cluster_state(
                ids,
                advertised=bool(listeners.external(cluster)),
                loggers=broker_config.loggers(cluster),
                controllers=dedicated.pods if dedicated else (),
            )
        except ClientError:
            self._reachable, self._tiered = False, None
            return None
        enabled = tiered.is_enabled(cluster)
        self._tiered = await self._brokers.tiered_health() if enabled else None
        self.has_extra_brokers = not state.registered <= set(ids)
        if not self._reachable:
            self._reachable = True
            self._on_reachable()
        return state
