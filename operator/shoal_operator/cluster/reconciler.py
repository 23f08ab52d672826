"""Reconciles one QueueCluster. `Clusters.reconcile` lists the steps."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError

from shoal_operator import clock, drift, failures, metrics, pods, roller
from shoal_operator.cluster import decision, metadata_version, metrics_token
from shoal_operator.cluster.authorities import Authorities, AuthorityLost
from shoal_operator.cluster.external import ExternalCluster
from shoal_operator.cluster.listener_secrets import ListenerSecrets, NoListenerCertificate
from shoal_operator.cluster.objects import ClusterObjects
from shoal_operator.cluster.observation import Observation, Observer
from shoal_operator.cluster.restores import Restores
from shoal_operator.cluster.status import ClusterStatus
from shoal_operator.cluster.token_key import TokenKeyLost, TokenKeys
from shoal_operator.conditions import Verdict, is_ready, is_seen
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.kube import Kube, KubeError
from shoal_operator.membership import Membership, ScaleDown
from shoal_operator.model import (
    broker_config,
    broker_pod,
    external,
    listeners,
    names,
    node_pools,
    security,
    storage,
)
from shoal_operator.statuses import Statuses

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.brokers import Brokers
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.security import InternalTls
    from shoal_operator.racks import Racks
    from shoal_operator.roller import Step
    from shoal_operator.store import Store

KIND = "QueueCluster"
#: Seconds between checks that the Service routes to pods that are ready.
REACHABLE_SECONDS = 0.5
#: Seconds between reconciliations of a cluster that is ready.
STEADY_SECONDS = 30.0
#: Seconds until any other cluster is reconciled again, at first and at most.
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 15.0
RETRY_FACTOR = 1.3


class Pacing:
    """Seconds until the next pass: they grow while the reason of `Ready` stays the same."""

    def __init__(self) -> None:
        self._seconds, self._reason = RETRY_SECONDS, ""

    def seconds(self, step: Step, verdict: Verdict | None) -> float:
        """Return the seconds until the next pass."""
        if verdict and verdict.ready and not verdict.progressing:
            self._seconds = RETRY_SECONDS
            return STEADY_SECONDS
        if verdict and verdict.reason == "Starting" and isinstance(step, roller.Done):
            return REACHABLE_SECONDS
        self._seconds = min(self._seconds * RETRY_FACTOR, RETRY_SECONDS_MAX)
        if verdict and verdict.reason != self._reason:
            self._reason, self._seconds = verdict.reason, RETRY_SECONDS
        waits = step.seconds if isinstance(step, roller.Wait) and step.serving else 0.0
        return max(waits, self._seconds)


class Clusters:
    """The reconciler of one QueueCluster.

    `on_reachable` is called when its brokers begin to answer. `image` and `pull_policy` are the
    chart's defaults. `openshift`: see `broker_pod.template`. `racks` is None if the operator lacks
    the permissions for racks. `routed` are the types of routed listeners for which it has them.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        brokers: Brokers,
        namespace: str,
        name: str,
        image: str,
        *,
        on_reachable: Callable[[], None],
        pull_policy: str = broker_pod.PULL_POLICY,
        operator_namespace: str = "",
        openshift: bool = False,
        racks: Racks | None = None,
        routed: frozenset[str] = frozenset(listeners.ROUTED),
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._racks, self._routed = racks, routed
        self._namespace, self._name = namespace, name
        self._observer = Observer(store, brokers, namespace, name, on_reachable)
        self._external = ExternalCluster(kube, store, brokers, on_reachable)
        self._objects = ClusterObjects(
            kube,
            store,
            self._observer,
            image,
            pull_policy,
            operator_namespace,
            openshift=openshift,
            routed=routed,
        )
        self._listener_secrets = ListenerSecrets(kube, store, namespace, name)
        self._status = ClusterStatus(kube, store, image)
        self._restores = Restores(kube, store, self._observer, self._objects, self._status)
        self._membership = Membership(kube, brokers)
        self._authorities = Authorities(kube, store, namespace, name)
        self._token_keys = TokenKeys(kube, store, namespace, name)
        self._renewal: Diagnosis | None = None
        self._no_token: Diagnosis | None = None
        self._not_issued: Diagnosis | None = None
        self._pacing = Pacing()
        #: The stage of TLS that all brokers have; None while they roll.
        self._rolled: InternalTls | None = None
        self._config_event, self._image = "", image
        #: The digest of the static configs that the brokers have validated, and the verdict.
        self._checked: tuple[str, Verdict | None] = ("", None)
        self._unobserved_ms: int | None = None

    def list_names(self) -> list[str]:
        """Return the name of the QueueCluster if it exists."""
        return [self._name] if self._store.get(KIND, self._namespace, self._name) else []

    async def reconcile(self, _: list[str]) -> float | None:
        """Bring the cluster to its spec; return seconds until the next pass, None without one."""
        cluster = self._store.get(KIND, self._namespace, self._name)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            return None
        try:
            return await self._reconcile(cluster)
        except (KubeError, ClientError):
            raise
        except Exception as error:
            await Statuses(self._kube, self._store).write(cluster, failures.judge(error))
            raise

    async def _reconcile(self, cluster: Manifest) -> float | None:
        if external.is_external(cluster):
            return await self._external.reconcile(cluster)
        if cluster["spec"].get("paused"):
            paused = Verdict(False, "Paused", "spec.paused is true.", paused=True)
            await self._report(cluster, paused)
            return STEADY_SECONDS
        return await self._bring_about(cluster)

    async def _bring_about(self, cluster: Manifest) -> float | None:
        """Write the objects of a cluster whose brokers the operator runs, and roll them."""
        have = security.stage(cluster, self._observer.stateful_set())
        rolled = self._observer.stateful_set() is not None and self._rolled == have
        stage = security.next_stage(cluster, have, rolled=rolled)
        resolved = security.resolved(cluster, stage)
        has_racks = self._racks is not None
        if refused := decision.refusal(resolved, racks=has_racks, routed=self._routed):
            await self._report(cluster, refused)
            await self._keep_certificates(resolved)
            return None
        if removed := self._removed_pool(resolved) or self._disks_refused(resolved):
            await self._report(cluster, removed)
            await self._keep_certificates(resolved)
            return RETRY_SECONDS_MAX
        try:
            resolved = await self._secure(resolved)
            if refused := await self._refused_static(resolved):
                await self._report(cluster, refused)
                return RETRY_SECONDS_MAX
            if restoring := await self._restores.reconcile(resolved):
                await self._report(cluster, restoring)
                return RETRY_SECONDS if restoring.progressing else RETRY_SECONDS_MAX
            scale_down = await self._scale_down(resolved)
            effective = node_pools.with_replicas(resolved, scale_down.replicas)
            pending = await self._objects.apply(effective)
        except AuthorityLost as error:
            found = Verdict.blocked if error.waits else Verdict.refused
            await self._report(cluster, found(*error.diagnosis))
            return RETRY_SECONDS_MAX
        except (NoListenerCertificate, TokenKeyLost) as error:
            await self._report(cluster, Verdict.refused(*error.diagnosis))
            return RETRY_SECONDS_MAX
        except KubeError as error:
            if error.terminating:
                return None
            await self._report(cluster, failures.judge(error))
            raise
        if pending:
            await self._report(cluster, decision.no_address(effective, pending))
            return self._pacing.seconds(roller.Wait(STEADY_SECONDS, ""), None)
        return await self._start(cluster, effective, scale_down)

    async def _start(self, cluster: Manifest, effective: Manifest, scale_down: ScaleDown) -> float:
        """Let the brokers of written objects start, and roll them."""
        if not all(map(pods.is_observed, self._observer.stateful_sets(effective).values())):
            return await self._wait_until_observed(cluster)
        self._unobserved_ms = None
        if starting := await self._restores.end():
            await self._report(cluster, starting)
            return RETRY_SECONDS
        return await self._roll(cluster, effective, scale_down)

    async def _roll(self, cluster: Manifest, effective: Manifest, scale_down: ScaleDown) -> float:
        """Change the brokers: their dynamic configs, restarts, and the placement of replicas."""
        state = await self._observer.cluster_state(effective)
        refused = await self._change_config(cluster, state)
        refused = await self._change_levels(cluster, state) or refused
        seen = self._observer.observe(cluster, effective, state)
        step = await self._next_step(seen)
        seen = await self._with_warnings(seen, step)
        if isinstance(step, roller.Done) and state and not is_ready(cluster):
            state = state if await self._brokers.is_reachable() else None
            seen = self._observer.observe(cluster, effective, state)
        not_finalized = None
        if isinstance(step, roller.Done) and state:
            not_finalized, state = await self._finalize(cluster, state)
            seen = dataclasses.replace(seen, state=state)
        verdict = refused or decision.verdict(
            seen,
            step,
            scale_down.diagnosis,
            self._objects.not_grown
            or self._listener_secrets.problem
            or self._not_issued
            or self._no_token
            or self._objects.not_routed
            or (self._racks.problem() if self._racks else None),
            self._renewal,
            not_finalized,
        )
        # The status comes before the restart: after a crash in between, the next operator reads
        # that this one restarted the broker, and reports when the broker is ready again.
        await self._status.write(seen, verdict)
        await self._restart(cluster, step)
        stage = security.internal_tls(effective)
        self._rolled = stage if isinstance(step, roller.Done) and state else None
        if self._rolled is not None and security.next_stage(cluster, stage, rolled=True) != stage:
            return RETRY_SECONDS
        if state and verdict.ready and verdict.reason not in decision.ROLLING:
            requested = await self._membership.rebalance(cluster, state)
            if requested:
                await self._status.merge(cluster, {"lastRebalance": requested})
        return self._pacing.seconds(step, verdict)

    async def _with_warnings(self, seen: Observation, step: Step) -> Observation:
        """Add the events about pods that are not ready, and about StatefulSets without all pods."""
        if isinstance(step, roller.Done | roller.Proceed):
            return seen
        lacking = [
            name
            for name, one in seen.stateful_sets.items()
            if len(pods.of_stateful_set(seen.pods, name)) < one["spec"]["replicas"]
        ]
        unready = [pod["metadata"]["name"] for pod in seen.pods if not pods.is_ready(pod)]
        if not lacking and not unready:
            return seen
        found = await self._kube.warnings(self._namespace, {*lacking, *unready})
        return dataclasses.replace(seen, warnings=tuple(found))

    async def _secure(self, cluster: Manifest) -> Manifest:
        """Issue the certificates of a cluster with TLS, and connect with the operator's.

        Returns the cluster with the fingerprint of its key of delegation tokens. Raises
        `AuthorityLost`, `NoListenerCertificate`, `TokenKeyLost`, `KubeError`.
        """
        await self._listener_secrets.reconcile(cluster)
        self._no_token = await metrics_token.problem(self._kube, cluster)
        if not security.has_internal_tls(cluster):
            return cluster
        loaded = None
        if self._authorities.is_renewing():
            others = security.own_certificates(cluster)
            loaded = await self._brokers.loaded_certificates(others)
        dns, ips = security.addresses(cluster, self._observer.external_hosts(cluster))
        issued = await self._authorities.reconcile(
            cluster, dns=dns, ips=ips, loaded=loaded or {}, now=datetime.datetime.now(datetime.UTC)
        )
        self._renewal, self._not_issued = issued.renewal, issued.problem
        self._observer.certificates = issued.status
        for one in issued.status:
            labels = self._namespace, self._name, one["name"]
            ends = datetime.datetime.fromisoformat(one["notAfter"])
            metrics.AUTHORITY_EXPIRY.labels(*labels).set(ends.timestamp())
        if security.internal_tls(cluster).is_used:
            self._brokers.set_client(security.operator_client(issued.cluster_ca, issued.operator))
        self._observer.token_key = await self._token_keys.reconcile(cluster)
        return security.with_token_key(cluster, self._observer.token_key)

    async def _keep_certificates(self, cluster: Manifest) -> None:
        """Renew the certificates of brokers that run, although their new spec is refused."""
        if self._observer.stateful_set() is not None:
            with contextlib.suppress(AuthorityLost, NoListenerCertificate, TokenKeyLost):
                await self._secure(cluster)

    async def _report(self, cluster: Manifest, verdict: Verdict) -> None:
        """Write a status without the brokers' answers."""
        await self._status.write(self._observer.observe(cluster, cluster), verdict)

    async def _wait_until_observed(self, cluster: Manifest) -> float:
        """Report a StatefulSet that its controller has not observed; return `RETRY_SECONDS`."""
        now_ms = clock.now_ms()
        if self._unobserved_ms is None:
            self._unobserved_ms = now_ms
        verdict = decision.not_observed(self._name, now_ms - self._unobserved_ms)
        if verdict.alarm or not is_seen(cluster):
            await self._report(cluster, verdict)
        return RETRY_SECONDS

    async def _refused_static(self, cluster: Manifest) -> Verdict | None:
        """Return the verdict on static configs with which the brokers would not start.

        Brokers of another image may have other configs, and are not asked.
        """
        wanted, found = broker_config.static(cluster), self._observer.pods()
        image = broker_pod.image(cluster, self._image)
        others = [pod for pod in found if pods.image(pod) != image]
        if not wanted or others or not any(map(pods.is_ready, found)):
            return None
        digest = broker_config.digest(f"{image} {sorted(wanted.items())}")
        if digest != self._checked[0]:
            try:
                problem = await self._observer.static_config_problem(cluster)
            except ClientError:
                return None
            self._checked = digest, decision.static_refusal(problem)
        return self._checked[1]

    def _removed_pool(self, cluster: Manifest) -> Verdict | None:
        """Return the verdict on a pool that has pods, and that the spec no longer has, or has with
        other ids."""
        first_ids = {pool.stateful_set: pool.first_id for pool in node_pools.of(cluster)}
        found = self._observer.pods()
        for have in self._observer.owned(cluster, "StatefulSet"):
            meta, spec = have["metadata"], have["spec"]
            first_id = spec.get("ordinals", {}).get("start", 0)
            if first_ids.get(meta["name"]) != first_id and (
                spec["replicas"] or pods.of_stateful_set(found, meta["name"])
            ):
                pool = meta["labels"].get(names.NODE_POOL, meta["name"])
                return decision.pool_removed(pool, first_id)
        return None

    def _disks_refused(self, cluster: Manifest) -> Verdict | None:
        """Return the verdict on a spec whose type of disks is not that of the pods, or whose
        brokers have lost theirs with an earlier QueueCluster."""
        sets, dedicated = self._observer.stateful_sets(cluster), node_pools.controllers(cluster)
        claims = self._observer.claims(cluster, dedicated) if dedicated else []
        problem = storage.changed(cluster, sets)
        problem = problem or storage.lost_before(cluster, self._observer.stateful_set(), claims)
        return decision.disks_refused(problem) if problem else None

    async def _scale_down(self, cluster: Manifest) -> ScaleDown:
        """Return how many pods must run now; it exceeds the spec's number while they drain."""
        wanted, found = node_pools.replicas(cluster), self._observer.pods()
        running = {
            broker
            for p in found
            for broker in pods.broker_readiness(p)
            if not node_pools.is_controller(cluster, pods.ordinal(p))
        }
        sets = self._observer.stateful_sets(cluster)
        current = [
            pool.first_id + number
            for pool in node_pools.of(cluster)
            if pool.stateful_set in sets
            for number in range(sets[pool.stateful_set]["spec"]["replicas"])
        ]
        have = node_pools.replicas(cluster, [*current, *map(pods.ordinal, found)])
        if have == wanted and not self._observer.has_extra_brokers:
            return ScaleDown(wanted)
        text = "Brokers keep running until the cluster answers which partitions they have."
        unknown = ScaleDown(have, Diagnosis("ScalingDown", text))
        state = await self._observer.cluster_state(node_pools.with_replicas(cluster, have))
        if state is None:
            return unknown
        try:
            return await self._membership.scale_down(cluster, state, running)
        except ClientError as error:
            text = f"The brokers refused to move replicas: {error}."
            return ScaleDown(have, Diagnosis("ScalingDown", text))

    async def _change_config(self, cluster: Manifest, state: ClusterState | None) -> Verdict | None:
        """Set the dynamic configs; return a verdict if the brokers refuse them."""
        changes = decision.config_changes(cluster, state) if state else {}
        if not changes:
            return None
        # The event comes before the change, so that a crash in between does not lose it; its
        # digest keeps it from being recorded twice.
        generation = cluster["metadata"].get("generation")
        digest = broker_config.digest(f"{generation} {sorted(changes)}")
        undone = drift.describe_reverted(cluster, changes, state.dynamic_config) if state else ""
        if undone and is_ready(cluster):
            await self._kube.event(cluster, drift.REVERTED, undone)
        elif digest != self._config_event:
            text = f"{', '.join(sorted(changes))}, without a restart."
            await self._kube.event(cluster, "ConfigChanged", text, once=digest)
            self._config_event = digest
        try:
            await self._brokers.alter_broker_config(changes)
        except KafkaError as error:
            return Verdict.refused("ConfigRefused", f"spec.config: {error}")
        return None

    async def _finalize(
        self, cluster: Manifest, state: ClusterState
    ) -> tuple[Diagnosis | None, ClusterState]:
        """Raise the features to those of `spec.metadataVersion`; return what is in the way, and the
        new state."""
        wanted = cluster["spec"].get("metadataVersion", "")
        if not wanted:
            return None, state
        levels, problem = metadata_version.plan(wanted, state.versions, state.features)
        if problem or not levels:
            return problem, state
        raised = ", ".join(f"{name} {level}" for name, level in sorted(levels.items()))
        try:
            await self._brokers.upgrade_features(levels)
        except ClientError as error:
            text = f"The features of {wanted} cannot be finalized ({raised}): {error}."
            return Diagnosis("MetadataVersionRefused", text), state
        once = broker_config.digest(f"{wanted} {raised}")
        text = f"Features of {wanted}: {raised}. Earlier releases can no longer run."
        await self._kube.event(cluster, "FeaturesFinalized", text, once=once)
        return None, dataclasses.replace(state, features={**state.features, **levels})

    async def _change_levels(self, cluster: Manifest, state: ClusterState | None) -> Verdict | None:
        """Set the log levels; return a verdict if a node refuses them."""
        changes = decision.level_changes(cluster, state) if state else {}
        if not changes:
            return None
        dedicated = broker_config.dedicated_controllers(cluster)
        for node, error in (await self._brokers.alter_log_levels(changes)).items():
            which = "controller" if node in dedicated else "broker"
            return Verdict.refused(
                "ConfigRefused", f"spec.logging.loggers: {which} {node}: {error}"
            )
        return None

    async def _next_step(self, seen: Observation) -> Step:
        partitions = None
        every = decision.loses_disks(seen.cluster)
        restarts = any(
            b.restart_reason and (b.ready or b.others or every) for b in decision.broker_pods(seen)
        )
        if seen.state and restarts:
            with contextlib.suppress(ClientError):
                partitions = await self._brokers.partitions()
        return decision.next_step(seen, partitions, datetime.datetime.now(datetime.UTC))

    async def _restart(self, cluster: Manifest, step: Step) -> None:
        """Delete the pod that the roller names; its StatefulSet creates it again."""
        if not isinstance(step, roller.Proceed):
            return
        name = node_pools.pod_name(cluster, step.broker_id)
        pod = self._observer.pod(name)
        if pod is None:
            return
        # The event comes before the deletion, and once for each pod.
        once = pod["metadata"]["uid"]
        await self._kube.event(cluster, "BrokerRestart", f"{name}: {step.reason}.", once=once)
        deleted = await self._kube.delete(pod)
        if deleted:
            self._store.put(deleted)
