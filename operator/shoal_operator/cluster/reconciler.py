"""Reconciles one QueueCluster. `QueueClusterReconciler.reconcile` is the list of its steps.

Each step returns what later ones need, or ends the pass by `PassEnded`. The reconciler itself keeps
only what later passes need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError

from shoal_operator import clock, metrics
from shoal_operator.brokers import config_changes, cordons, pods, roller
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.cluster import decision, metadata_version
from shoal_operator.cluster.authorities import AuthorityLost, AuthorityReconciler
from shoal_operator.cluster.broker_scale_down import ReplicaMover, ScaleDown
from shoal_operator.cluster.external import ExternalClusterReconciler
from shoal_operator.cluster.hibernation import Hibernation
from shoal_operator.cluster.objects import ClusterObjects
from shoal_operator.cluster.observation import ClusterObserver, Observation
from shoal_operator.cluster.resizes import PodResizer
from shoal_operator.cluster.restores import RestoreReconciler
from shoal_operator.cluster.status import ClusterStatus
from shoal_operator.cluster.token_key import TokenKeyLost, TokenKeyReconciler
from shoal_operator.cluster.user_secrets import (
    ListenerSecretReconciler,
    NoListenerCertificate,
    diagnose_metrics_token,
)
from shoal_operator.kube import drift, failures
from shoal_operator.kube.conditions import Verdict, is_ready, is_seen
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model import (
    broker_config,
    broker_pod,
    external,
    hibernation,
    listeners,
    names,
    node_pools,
    security,
    storage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.roller import Step
    from shoal_operator.cluster.objects import AppliedObjects
    from shoal_operator.cluster.racks import RackReconciler
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import CertificateStatus, QueueCluster
    from shoal_operator.model.security import InternalTls

KIND = "QueueCluster"
#: Seconds between checks that the Service routes to pods that are ready.
REACHABLE_SECONDS = 0.5
#: Seconds between reconciliations of a cluster that is ready.
STEADY_SECONDS = 30.0
#: Seconds until any other cluster is reconciled again, at first and at most.
RETRY_SECONDS, RETRY_SECONDS_MAX = 2.0, 15.0
RETRY_FACTOR = 1.3


class RequeueBackoff:
    """Seconds until the next pass: they grow while the reason of `Ready` stays the same."""

    def __init__(self) -> None:
        self._seconds, self._reason = RETRY_SECONDS, ""

    def compute_delay(self, step: Step, verdict: Verdict | None) -> float:
        """Return the seconds until the next pass."""
        if verdict and verdict.ready and not verdict.progressing:
            self._seconds = RETRY_SECONDS
            return STEADY_SECONDS
        if verdict and verdict.reason == "Starting" and isinstance(step, roller.DoneStep):
            return REACHABLE_SECONDS
        self._seconds = min(self._seconds * RETRY_FACTOR, RETRY_SECONDS_MAX)
        if verdict and verdict.reason != self._reason:
            self._reason, self._seconds = verdict.reason, RETRY_SECONDS
        waits = step.seconds if isinstance(step, roller.WaitStep) and step.serving else 0.0
        return max(waits, self._seconds)


class SecuredCluster(NamedTuple):
    """A QueueCluster with its certificates.

    `cluster` has the fingerprint of its key of delegation tokens. `certificates` describe the
    authorities in the status.
    """

    cluster: QueueCluster
    certificates: tuple[CertificateStatus, ...] = ()
    token_key: str = ""
    #: What a renewal of an authority waits for; None if none is under way.
    renewal: Diagnosis | None = None
    #: The user's certificate that cannot be used, so that the previous one stays.
    unusable_certificate: Diagnosis | None = None
    #: Why an issuer has no authority, while the previous one is in use.
    not_issued: Diagnosis | None = None
    #: Why the metrics are shown to nobody but the operator.
    no_token: Diagnosis | None = None


class PassEnded(Exception):
    """A step ends the pass: the next one begins after `seconds`, None without one.

    `verdict` is for the status; None leaves it. `error` is raised once the status is written.
    """

    def __init__(
        self, verdict: Verdict | None, seconds: float | None, error: KubeError | None = None
    ) -> None:
        super().__init__(verdict.reason if verdict else "")
        self.verdict, self.seconds, self.error = verdict, seconds, error


@contextlib.contextmanager
def _ending_the_pass() -> Iterator[None]:
    """End the pass by the verdict on an error of the steps that write objects."""
    try:
        yield
    except AuthorityLost as error:
        make_verdict = Verdict.make_blocked if error.waits else Verdict.make_refused
        raise PassEnded(make_verdict(*error.diagnosis), RETRY_SECONDS_MAX) from None
    except (NoListenerCertificate, TokenKeyLost) as error:
        raise PassEnded(Verdict.make_refused(*error.diagnosis), RETRY_SECONDS_MAX) from None
    except KubeError as error:
        if error.terminating:
            raise PassEnded(None, None) from None
        raise PassEnded(failures.judge(error), None, error) from None


class QueueClusterReconciler:
    """The reconciler of one QueueCluster.

    `on_reachable` is called when its brokers begin to answer. `image` and `pull_policy` are the
    chart's defaults. `openshift`: see `broker_pod.build_template`. `racks` is None if the operator
    lacks the permissions for racks. `routed` are the types of routed listeners for which it has
    them.
    """

    def __init__(
        self,
        kube: KubeClient,
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
        racks: RackReconciler | None = None,
        routed: frozenset[str] = frozenset(listeners.ROUTED),
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._racks, self._routed = racks, routed
        self._namespace, self._name = namespace, name
        self._observer = ClusterObserver(store, brokers, namespace, name, on_reachable)
        self._external = ExternalClusterReconciler(kube, store, brokers, on_reachable)
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
        self._listener_secrets = ListenerSecretReconciler(kube, store, namespace, name)
        self._status = ClusterStatus(kube, store, image)
        self._restores = RestoreReconciler(kube, store, self._observer, self._objects, self._status)
        self._resizer = PodResizer(kube, store, self._observer)
        self._hibernation = Hibernation(kube, store, self._observer)
        self._membership = ReplicaMover(kube, brokers, cordons.BrokerCordons(kube, store, brokers))
        self._authorities = AuthorityReconciler(kube, store, namespace, name)
        self._token_keys = TokenKeyReconciler(kube, store, namespace, name)
        self._pacing = RequeueBackoff()
        #: The stage of TLS that all brokers had after the last pass; None while they roll.
        self._rolled: InternalTls | None = None
        self._config_event, self._image = "", image
        #: The digest of the static configs that the brokers have validated, and the verdict.
        self._checked: tuple[str, Verdict | None] = ("", None)
        #: Why the pod that is to restart could not be deleted, empty after it was.
        self._not_restarted = ""
        #: Since when StatefulSets are not observed.
        self._unobserved_ms: int | None = None

    def list_names(self) -> list[str]:
        """Return the name of the QueueCluster if it exists."""
        return [self._name] if self._store.get_cluster(self._namespace, self._name) else []

    async def reconcile(self, _: list[str]) -> float | None:
        """Bring the cluster to its spec; return seconds until the next pass, None without one."""
        cluster = self._store.get_cluster(self._namespace, self._name)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            return None
        secured: SecuredCluster | None = None
        try:
            try:
                if external.is_external(cluster):
                    return await self._external.reconcile(cluster)
                self._check_paused(cluster)
                await self._hibernate(cluster)
                resolved = await self._check_spec(cluster)
                with _ending_the_pass():
                    secured = await self._secure(resolved)
                    await self._check_static_config(secured.cluster)
                    await self._restore(secured.cluster)
                    scale_down = await self._scale_down(secured.cluster)
                    effective = node_pools.with_replicas(secured.cluster, scale_down.replicas)
                    applied = await self._apply_objects(effective)
                await self._wait_until_observed(cluster, effective)
                await self._end_restore()
                not_resized = await self._resizer.resize(effective)
                state = await self._observer.describe_cluster(effective)
                refused = await self._change_config(cluster, state)
                refused = await self._change_levels(cluster, state) or refused
                observation = self._observe(cluster, effective, state, secured)
                step = await self._choose_next_step(observation)
                observation = await self._with_warnings(observation, step)
                observation = await self._check_reachable(observation, step)
                not_finalized, observation = await self._finalize(observation, step)
                verdict = refused or decision.decide_verdict(
                    observation,
                    step,
                    scale_down.diagnosis,
                    self._find_problem(secured, applied, not_resized),
                    secured.renewal,
                    not_finalized,
                )
                if self._not_restarted and isinstance(step, roller.RestartStep):
                    verdict = verdict.with_warning(("ApplyFailed", self._not_restarted))
                # The status comes before the restart: after a crash in between, the next operator
                # reads that this one restarted the broker, and reports when it is ready again.
                await self._status.write(observation, verdict)
                await self._restart(cluster, step)
                return self._compute_delay(observation, step, verdict)
            except PassEnded as ended:
                return await self._end_pass(cluster, ended, secured)
        except (KubeError, ClientError):
            raise
        except Exception as error:
            await StatusWriter(self._kube, self._store).write(cluster, failures.judge(error))
            raise

    async def _end_pass(
        self, cluster: QueueCluster, ended: PassEnded, secured: SecuredCluster | None
    ) -> float | None:
        """Report why a pass has ended; return seconds until the next one. Raises its error."""
        if ended.verdict is not None:
            await self._report(cluster, ended.verdict, secured)
        if ended.error is not None:
            raise ended.error from None
        return ended.seconds

    def _check_paused(self, cluster: QueueCluster) -> None:
        if cluster["spec"].get("paused"):
            paused = Verdict(False, "Paused", "spec.paused is true.", paused=True)
            raise PassEnded(paused, STEADY_SECONDS)

    async def _hibernate(self, cluster: QueueCluster) -> None:
        """Stop all brokers of a hibernated cluster, and end the pass."""
        if not hibernation.is_hibernated(cluster):
            return
        verdict = await self._hibernation.reconcile(cluster)
        stage = security.get_stage(cluster, self._observer.get_stateful_set())
        await self._keep_certificates(cluster, security.resolve(cluster, stage), verdict)
        raise PassEnded(None, RETRY_SECONDS if verdict.progressing else STEADY_SECONDS)

    async def _check_spec(self, cluster: QueueCluster) -> QueueCluster:
        """Return the cluster with the security of its next stage, unless its spec is refused."""
        have = security.get_stage(cluster, self._observer.get_stateful_set())
        rolled = self._observer.get_stateful_set() is not None and self._rolled == have
        stage = security.choose_next_stage(cluster, have, rolled=rolled)
        resolved = security.resolve(cluster, stage)
        has_racks = self._racks is not None
        if refused := decision.find_refusal(resolved, racks=has_racks, routed=self._routed):
            await self._keep_certificates(cluster, resolved, refused)
            raise PassEnded(None, None)
        if removed := self._find_removed_pool(resolved) or self._find_disk_refusal(resolved):
            await self._keep_certificates(cluster, resolved, removed)
            raise PassEnded(None, RETRY_SECONDS_MAX)
        return resolved

    async def _check_static_config(self, cluster: QueueCluster) -> None:
        """End the pass with static configs with which the brokers would not start."""
        if refused := await self._find_static_refusal(cluster):
            raise PassEnded(refused, RETRY_SECONDS_MAX)

    async def _restore(self, cluster: QueueCluster) -> None:
        """Continue a restore, and end the pass until it has ended."""
        if restoring := await self._restores.reconcile(cluster):
            seconds = RETRY_SECONDS if restoring.progressing else RETRY_SECONDS_MAX
            raise PassEnded(restoring, seconds)

    async def _apply_objects(self, cluster: QueueCluster) -> AppliedObjects:
        """Write the objects; end the pass while an external Service has no address."""
        applied = await self._objects.apply(cluster)
        await self._hibernation.end(cluster)
        if applied.pending:
            seconds = self._pacing.compute_delay(roller.WaitStep(STEADY_SECONDS, ""), None)
            raise PassEnded(decision.make_no_address_verdict(cluster, applied.pending), seconds)
        return applied

    async def _end_restore(self) -> None:
        """Let brokers start whose data is restored; end the pass if there are any."""
        if starting := await self._restores.end():
            raise PassEnded(starting, RETRY_SECONDS)

    async def _check_reachable(self, observation: Observation, step: Step) -> Observation:
        """Forget the brokers' answers until the Service routes to a cluster that becomes ready."""
        is_new = isinstance(step, roller.DoneStep) and not is_ready(observation.cluster)
        if not is_new or observation.state is None or await self._brokers.is_reachable():
            return observation
        return dataclasses.replace(observation, state=None)

    def _find_problem(
        self, secured: SecuredCluster, applied: AppliedObjects, not_resized: Diagnosis | None
    ) -> Diagnosis | None:
        """Return the first problem beside which the cluster runs."""
        return (
            applied.not_grown
            or applied.not_modified
            or secured.unusable_certificate
            or secured.not_issued
            or secured.no_token
            or applied.not_routed
            or not_resized
            or (self._racks.find_problem() if self._racks else None)
        )

    def _compute_delay(self, observation: Observation, step: Step, verdict: Verdict) -> float:
        """Return the seconds until the next pass, and note the stage of TLS of this one."""
        stage = security.get_internal_tls(observation.effective)
        is_rolled = isinstance(step, roller.DoneStep) and observation.state is not None
        self._rolled = stage if is_rolled else None
        if is_rolled and stage != security.choose_next_stage(
            observation.cluster, stage, rolled=True
        ):
            return RETRY_SECONDS
        return self._pacing.compute_delay(step, verdict)

    async def _with_warnings(self, observation: Observation, step: Step) -> Observation:
        """Add the events about pods that are not ready, about claims without volumes, and about
        StatefulSets without all pods."""
        if isinstance(step, roller.DoneStep | roller.RestartStep):
            return observation
        lacking = [
            name
            for name, stateful_set in observation.stateful_sets.items()
            if len(pods.filter_by_stateful_set(observation.pods, name))
            < stateful_set["spec"]["replicas"]
        ]
        unready = [pod["metadata"]["name"] for pod in observation.pods if not pods.is_ready(pod)]
        if not lacking and not unready:
            return observation
        unbound = [
            claim["metadata"]["name"]
            for claim in observation.claims
            if claim.get("status", {}).get("phase") == "Pending"
        ]
        involved = [*lacking, *unready, *unbound]
        warnings = await self._kube.list_warnings(self._namespace, involved)
        return dataclasses.replace(observation, warnings=tuple(warnings))

    async def _secure(self, cluster: QueueCluster) -> SecuredCluster:
        """Issue the certificates of a cluster with TLS, and connect with the operator's.

        Raises `AuthorityLost`, `NoListenerCertificate`, `TokenKeyLost`, `KubeError`.
        """
        unusable = await self._listener_secrets.reconcile(cluster)
        no_token = await diagnose_metrics_token(self._kube, cluster)
        if not security.has_internal_tls(cluster):
            return SecuredCluster(cluster, unusable_certificate=unusable, no_token=no_token)
        loaded = None
        if self._authorities.is_renewing():
            excluded_listeners = security.get_user_certificates(cluster)
            loaded = await self._brokers.fetch_loaded_certificates(excluded_listeners)
        dns, ips = security.list_addresses(cluster, self._observer.list_external_hosts(cluster))
        issued = await self._authorities.reconcile(
            cluster, dns=dns, ips=ips, loaded=loaded or {}, now=datetime.datetime.now(datetime.UTC)
        )
        for ca_status in issued.status:
            labels = self._namespace, self._name, ca_status["name"]
            ends = datetime.datetime.fromisoformat(ca_status["notAfter"])
            metrics.AUTHORITY_EXPIRY.labels(*labels).set(ends.timestamp())
        if security.get_internal_tls(cluster).is_used:
            self._brokers.set_client(
                security.build_operator_client(issued.cluster_ca, issued.operator)
            )
        token_key = await self._token_keys.reconcile(cluster)
        return SecuredCluster(
            security.with_token_key(cluster, token_key),
            issued.status,
            token_key,
            issued.renewal,
            unusable,
            issued.problem,
            no_token,
        )

    async def _keep_certificates(
        self, cluster: QueueCluster, resolved: QueueCluster, verdict: Verdict
    ) -> None:
        """Report that the brokers do not follow the spec, and renew the certificates of those that
        run."""
        await self._report(cluster, verdict)
        if self._observer.get_stateful_set() is None:
            return
        with contextlib.suppress(AuthorityLost, NoListenerCertificate, TokenKeyLost):
            secured = await self._secure(resolved)
            reported = self._store.get_cluster(self._namespace, self._name) or cluster
            await self._report(reported, verdict, secured)

    async def _report(
        self, cluster: QueueCluster, verdict: Verdict, secured: SecuredCluster | None = None
    ) -> None:
        """Write a status without the brokers' answers."""
        await self._status.write(self._observe(cluster, cluster, None, secured), verdict)

    def _observe(
        self,
        cluster: QueueCluster,
        effective: QueueCluster,
        state: ClusterState | None,
        secured: SecuredCluster | None,
    ) -> Observation:
        """Return a snapshot. Without `secured`, the status keeps what it has of certificates."""
        return self._observer.observe(
            cluster,
            effective,
            state,
            certificates=secured.certificates if secured else (),
            token_key=secured.token_key if secured else "",
        )

    async def _wait_until_observed(self, cluster: QueueCluster, effective: QueueCluster) -> None:
        """End the pass while controllers have not observed all StatefulSets."""
        if all(map(pods.is_observed, self._observer.get_stateful_sets(effective).values())):
            self._unobserved_ms = None
            return
        now_ms = clock.now_ms()
        if self._unobserved_ms is None:
            self._unobserved_ms = now_ms
        verdict = decision.make_not_observed_verdict(self._name, now_ms - self._unobserved_ms)
        is_reported = verdict.alarm or not is_seen(cluster)
        raise PassEnded(verdict if is_reported else None, RETRY_SECONDS)

    async def _find_static_refusal(self, cluster: QueueCluster) -> Verdict | None:
        """Return the verdict on static configs with which the brokers would not start.

        Brokers of another image may have other configs, and are not asked.
        """
        static_config, running_pods = (
            broker_config.select_static(cluster),
            self._observer.list_pods(),
        )
        image = broker_pod.choose_image(cluster, self._image)
        outdated_pods = [pod for pod in running_pods if pods.get_image(pod) != image]
        if not static_config or outdated_pods or not any(map(pods.is_ready, running_pods)):
            return None
        digest = broker_config.compute_digest(f"{image} {sorted(static_config.items())}")
        if digest != self._checked[0]:
            try:
                problem = await self._observer.find_static_config_problem(cluster)
            except ClientError:
                return None
            self._checked = digest, decision.make_static_refusal(problem)
        return self._checked[1]

    def _find_removed_pool(self, cluster: QueueCluster) -> Verdict | None:
        """Return the verdict on a pool that has pods, and that the spec no longer has, or has with
        other ids."""
        first_ids = {pool.stateful_set: pool.first_id for pool in node_pools.list_pools(cluster)}
        all_pods = self._observer.list_pods()
        for have in self._observer.list_owned(cluster, "StatefulSet"):
            meta, spec = have["metadata"], have["spec"]
            first_id = spec.get("ordinals", {}).get("start", 0)
            if first_ids.get(meta["name"]) != first_id and (
                hibernation.get_replicas(have)
                or pods.filter_by_stateful_set(all_pods, meta["name"])
            ):
                pool = meta["labels"].get(names.NODE_POOL, meta["name"])
                return decision.make_pool_removed_verdict(pool, first_id)
        return None

    def _find_disk_refusal(self, cluster: QueueCluster) -> Verdict | None:
        """Return the verdict on a spec whose type of disks is not that of the pods, or whose
        brokers have lost theirs with an earlier QueueCluster."""
        sets, dedicated = (
            self._observer.get_stateful_sets(cluster),
            node_pools.find_controller_pool(cluster),
        )
        claims = self._observer.list_claims(cluster, dedicated) if dedicated else []
        problem = storage.find_changed_disks(cluster, sets)
        problem = problem or storage.find_lost_disks(
            cluster, self._observer.get_stateful_set(), claims
        )
        return decision.make_disk_refusal(problem) if problem else None

    async def _scale_down(self, cluster: QueueCluster) -> ScaleDown:
        """Return how many pods must run now; it exceeds the spec's number while they drain."""
        replicas, all_pods = node_pools.count_replicas(cluster), self._observer.list_pods()
        running = {
            broker
            for p in all_pods
            for broker in pods.get_broker_readiness(p)
            if not node_pools.is_controller(cluster, pods.get_ordinal(p))
        }
        sets = self._observer.get_stateful_sets(cluster)
        current = [
            pool.first_id + number
            for pool in node_pools.list_pools(cluster)
            if pool.stateful_set in sets
            for number in range(hibernation.get_replicas(sets[pool.stateful_set]))
        ]
        have = node_pools.count_replicas(cluster, [*current, *map(pods.get_ordinal, all_pods)])
        leaving = have != replicas or self._observer.has_extra_brokers
        if not leaving and not cordons.list_cordoned(cluster):
            return ScaleDown(replicas)
        text = "Brokers keep running until the cluster answers which partitions they have."
        unknown = ScaleDown(have, Diagnosis("ScalingDown", text))
        state = await self._observer.describe_cluster(node_pools.with_replicas(cluster, have))
        if state is None:
            return unknown if leaving else ScaleDown(replicas)
        try:
            return await self._membership.scale_down(cluster, state, running)
        except ClientError as error:
            text = f"The brokers refused to move replicas: {error}."
            return ScaleDown(have, Diagnosis("ScalingDown", text))

    async def _change_config(
        self, cluster: QueueCluster, state: ClusterState | None
    ) -> Verdict | None:
        """Set the dynamic configs; return a verdict if the brokers refuse them."""
        changes = decision.compute_config_changes(cluster, state) if state else {}
        if not changes:
            return None
        # The event comes before the change, so that a crash in between does not lose it; its
        # digest keeps it from being recorded twice.
        generation = cluster["metadata"].get("generation")
        digest = broker_config.compute_digest(f"{generation} {sorted(changes)}")
        undone = drift.describe_reverted(cluster, changes, state.dynamic_config) if state else ""
        if undone and is_ready(cluster):
            await self._kube.record_event(cluster, drift.REVERTED, undone)
        elif digest != self._config_event:
            text = f"{', '.join(sorted(changes))}, without a restart."
            await self._kube.record_event(cluster, "ConfigChanged", text, once=digest)
            self._config_event = digest
        refused = await self._brokers.alter_broker_config(changes)
        by_field = {f"spec.config {name}": error for name, error in refused.items()}
        return config_changes.make_refusal(by_field) if by_field else None

    async def _finalize(
        self, observation: Observation, step: Step
    ) -> tuple[Diagnosis | None, Observation]:
        """Raise the features to those of `spec.metadataVersion` once nothing is to restart; return
        what is in the way, and the observation with the new levels."""
        cluster, state = observation.cluster, observation.state
        release = cluster["spec"].get("metadataVersion", "")
        if not release or state is None or not isinstance(step, roller.DoneStep):
            return None, observation
        levels, problem = metadata_version.make_plan(release, state.versions, state.features)
        if problem or not levels:
            return problem, observation
        raised = ", ".join(f"{name} {level}" for name, level in sorted(levels.items()))
        try:
            await self._brokers.upgrade_features(levels)
        except ClientError as error:
            text = f"The features of {release} cannot be finalized ({raised}): {error}."
            return Diagnosis("MetadataVersionRefused", text), observation
        once = broker_config.compute_digest(f"{release} {raised}")
        text = f"Features of {release}: {raised}. Earlier releases can no longer run."
        await self._kube.record_event(cluster, "FeaturesFinalized", text, once=once)
        state = dataclasses.replace(state, features={**state.features, **levels})
        return None, dataclasses.replace(observation, state=state)

    async def _change_levels(
        self, cluster: QueueCluster, state: ClusterState | None
    ) -> Verdict | None:
        """Set the log levels; return a verdict if a node refuses them."""
        changes = decision.compute_level_changes(cluster, state) if state else {}
        if not changes:
            return None
        dedicated = broker_config.get_controller_addresses(cluster)
        refused = await self._brokers.alter_log_levels(changes)
        by_field = {
            f"spec.logging.loggers {logger} ({'controller' if node in dedicated else 'broker'} "
            f"{node})": error
            for node, errors in refused.items()
            for logger, error in errors.items()
        }
        return config_changes.make_refusal(by_field) if by_field else None

    async def _choose_next_step(self, observation: Observation) -> Step:
        partitions = None
        is_lossy = decision.is_restart_lossy(observation.cluster)
        restarts = any(
            b.restart_reason and (b.ready or b.other_brokers or is_lossy)
            for b in decision.list_broker_pods(observation)
        )
        if observation.state and restarts:
            with contextlib.suppress(ClientError):
                partitions = await self._brokers.describe_partitions()
        return decision.choose_next_step(
            observation, partitions, datetime.datetime.now(datetime.UTC)
        )

    async def _restart(self, cluster: QueueCluster, step: Step) -> None:
        """Delete the pod that the roller names; its StatefulSet creates it again."""
        if not isinstance(step, roller.RestartStep):
            return
        name = node_pools.format_pod_name(cluster, step.broker_id)
        pod = self._observer.find_pod(name)
        if pod is None:
            return
        # The event comes before the deletion, and once for each pod.
        once = pod["metadata"]["uid"]
        await self._kube.record_event(
            cluster, "BrokerRestart", f"{name}: {step.reason}.", once=once
        )
        try:
            deleted = await self._kube.delete(pod)
        except KubeError as error:
            if failures.judge(error).alarm:
                self._not_restarted = f"Pod {name} cannot be restarted: {error}."
            raise
        self._not_restarted = ""
        if deleted:
            self._store.put(deleted)
