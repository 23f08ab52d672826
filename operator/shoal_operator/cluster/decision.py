"""Decisions about a QueueCluster: what to refuse, what to change, and its conditions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import __version__
from shoal_operator.brokers import diagnostics, pods, resizing, roller
from shoal_operator.cluster import maintenance_windows
from shoal_operator.kube.conditions import Verdict, get_ready_reason, is_ready
from shoal_operator.model import (
    broker_config,
    listeners,
    names,
    node_pools,
    pod_layout,
    reserved_fields,
    routes,
    security,
    storage,
    tiered,
)
from shoal_operator.model import cluster as model

if TYPE_CHECKING:
    import datetime
    from collections.abc import Sequence

    from shoal_operator.brokers.broker_states import ClusterState
    from shoal_operator.brokers.diagnostics import Diagnosis
    from shoal_operator.brokers.roller import PartitionState, Step
    from shoal_operator.cluster.observation import Observation
    from shoal_operator.model.queue_cluster import ClusterSpec, Listener, QueueCluster

#: How long the Service may take to route to pods that are ready.
REACHABLE_SECONDS_MAX = 15.0
#: How long the StatefulSet controller may take to observe a change; it takes milliseconds.
OBSERVED_SECONDS_MAX = 15.0
#: The logger of all others, and its level at the start of a broker.
ROOT_LOGGER, ROOT_LEVEL = "root", "INFO"
#: Reasons of `Ready` while the operator restarts brokers, and also between two of them.
ROLLING = ("Rolling", "Restarting")
_ROLL_REASONS = (*ROLLING, "RollWaits")


def find_refusal(
    cluster: QueueCluster,
    *,
    racks: bool = True,
    routed: frozenset[str] = frozenset(listeners.ROUTED),
) -> Verdict | None:
    """Return the verdict on a spec that this version cannot run, else None.

    The security of `cluster` is `security.resolve`. `racks` is whether the operator has the
    permissions for racks, and `routed` are the types of listeners for which it has them.
    """
    spec = cluster["spec"]
    if problem := node_pools.find_problem(cluster):
        return Verdict.make_refused("NodePoolNotAllowed", problem)
    if node_pools.find_controller_pool(cluster) is None and pod_layout.get_replicas(cluster) == 2:
        return Verdict.make_refused(
            "NoMajority",
            "spec.replicas cannot be 2, because neither broker has a majority alone. "
            "Set it to 1 or 3.",
        )
    if problem := storage.find_problem(cluster):
        return Verdict.make_refused("StorageNotAllowed", problem)
    if spec.get("rack") and not racks:
        return Verdict.make_refused(
            "RacksDisabled",
            "spec.rack needs permissions that this operator does not have. Set the chart's value "
            "racks.enabled to true, or remove spec.rack.",
        )
    if spec.get("restoreFrom") is not None and not tiered.is_enabled(cluster):
        return Verdict.make_refused(
            "RestoreRefused",
            "spec.restoreFrom needs spec.tieredStorage, which names the bucket. The cluster "
            "continues there.",
        )
    if problem := maintenance_windows.find_problem(spec.get("maintenanceWindows", [])):
        return Verdict.make_refused("ScheduleNotValid", problem)
    if reserved := reserved_fields.find_first(cluster):
        path, why = reserved
        return Verdict.make_refused("TemplateNotAllowed", f"{path} is not allowed: {why}")
    return (
        _find_config_refusal(spec)
        or _find_route_refusal(cluster, routed)
        or _find_security_refusal(cluster)
    )


def _find_route_refusal(cluster: QueueCluster, routed: frozenset[str]) -> Verdict | None:
    """Return the verdict on routed listeners that this operator cannot run."""
    for listener in cluster["spec"]["listeners"]:
        kind, name = listeners.get_kind(listener), listener["name"]
        if not listeners.is_routed(listener):
            continue
        if kind not in routed:
            return Verdict.make_refused(
                "ListenerTypeDisabled",
                f"Listener {name!r} has the type {kind}, which needs permissions that this "
                f"operator does not have. Set the chart's value {routes.VALUES[kind]} to true, or "
                "use another type.",
            )
        if not security.is_encrypted(listener):
            return Verdict.make_refused(
                "ListenerNotAllowed",
                f"Listener {name!r} has the type {kind} and no tls. Its proxy routes by the host "
                "in a TLS handshake. Add tls: {}.",
            )
    problem = routes.find_problem(cluster)
    return Verdict.make_refused("ListenerNotAllowed", problem) if problem else None


def _find_config_refusal(spec: ClusterSpec) -> Verdict | None:
    if text := broker_config.find_malformed(spec.get("config", {})):
        return Verdict.make_refused("ConfigNotAllowed", text)
    if reserved := broker_config.find_reserved(spec):
        path, remedy = reserved
        return Verdict.make_refused("ConfigNotAllowed", f"{path} is not allowed. {remedy}")
    if twice := broker_config.find_duplicate(spec):
        variable, name = twice
        return Verdict.make_refused(
            "ConfigTwice",
            f"{variable} and spec.config sets {name}, which is the same "
            "setting. Remove one of them.",
        )
    return None


def make_static_refusal(problem: str) -> Verdict | None:
    """Return the verdict on a static config with which brokers would not start."""
    if not problem:
        return None
    text = problem if problem.endswith("?") else f"{problem}."
    return Verdict.make_refused("ConfigRefused", f"spec.config: {text} No broker has restarted.")


def _find_security_refusal(cluster: QueueCluster) -> Verdict | None:
    """Return the verdict on settings of security that this cluster cannot have."""
    spec = cluster["spec"]
    if conflict := _find_listener_conflict(cluster):
        return Verdict.make_refused("ListenerNotAllowed", conflict)
    for listener in spec["listeners"]:
        if remedy := _find_listener_remedy(cluster, listener):
            return Verdict.make_refused(
                "SecurityNotSupported", f"Listener {listener['name']!r} of spec.listeners: {remedy}"
            )
    if lacks := _find_migration_refusal(cluster):
        return lacks
    if security.get_authorization(cluster) == "simple" and not security.has_internal_tls(cluster):
        return Verdict.make_refused(
            "SecurityNotSupported",
            "spec.authorization.type is simple, which needs a cluster whose brokers use TLS. "
            "Add a listener that has tls.",
        )
    return None


def _find_listener_conflict(cluster: QueueCluster) -> str:
    """Return the name or port that the brokers' own listener has too, and the remedy; or empty."""
    user_listeners = security.get_user_listeners(cluster)
    metrics_port = cluster["spec"]["metrics"]["port"]
    for index, listener in enumerate(user_listeners):
        if listener["port"] == metrics_port:
            return (
                f"spec.listeners[{index}].port is {metrics_port}, which is spec.metrics.port. "
                "Choose another port."
            )
    if not security.has_internal_tls(cluster):
        return ""
    if security.REPLICATION in [n["name"] for n in user_listeners]:
        return (
            f"A listener cannot have the name {security.REPLICATION!r}: the brokers' own listener "
            "has it. Choose another name."
        )
    listener_ports = {
        f"spec.listeners[{index}].port": n["port"] for index, n in enumerate(user_listeners)
    }
    used = {**listener_ports, "spec.metrics.port": metrics_port}
    for path, port in used.items():
        if port in [controller.port for controller in security.get_controller_listeners(cluster)]:
            return f"{path} is {port}, which the controllers use. Choose another port."
        # Each broker of a pod has the ports of the previous one plus `STEP`.
        steps, remainder = divmod(port - security.REPLICATION_PORT, pod_layout.STEP)
        if not remainder and abs(steps) < pod_layout.get_brokers_per_pod(cluster):
            return (
                f"{path} is {port}, which the brokers' own listener uses in a cluster with TLS. "
                "Choose another port."
            )
    return ""


def _find_listener_remedy(cluster: QueueCluster, listener: Listener) -> str:
    """Return what is wrong with a listener's security, and what to do; empty if nothing is."""
    kind = security.get_authentication(listener)
    if kind and not security.is_encrypted(listener):
        return "authentication needs tls. Add tls: {}."
    authentication = listener.get("authentication")
    if kind == "oauthbearer" and not (
        authentication
        and authentication.get("jwksEndpointUrl")
        and authentication.get("validIssuer")
    ):
        return (
            "oauthbearer needs the keys of the identity provider and its name. Set "
            "authentication.jwksEndpointUrl and authentication.validIssuer."
        )
    if security.is_encrypted(listener) and not security.has_internal_tls(cluster):
        return (
            "the brokers of this cluster use no TLS among themselves yet, and need an Internal "
            "listener in plaintext until they do. Add the previous listener again, beside this "
            "one. Remove it when the QueueCluster is Ready."
        )
    return ""


def _find_migration_refusal(cluster: QueueCluster) -> Verdict | None:
    """Return the verdict on a spec without the listener that a migration to TLS still uses."""
    stage = security.get_internal_tls(cluster)
    if (
        not security.has_internal_tls(cluster)
        or stage.is_used
        or security.find_plain_listener(cluster)
    ):
        return None
    return Verdict.make_refused(
        "SecurityNotSupported",
        "The brokers are being moved to TLS and still use the Internal listener in plaintext. Add "
        "it to spec.listeners again, and remove it when the QueueCluster is Ready.",
    )


def compute_config_changes(cluster: QueueCluster, state: ClusterState) -> dict[str, str | None]:
    """Return the dynamic broker configs to set, or to unset with None."""
    want = broker_config.select_dynamic(cluster)
    if broker_config.MIN_ISR in state.dynamic_config:
        want.setdefault(broker_config.MIN_ISR, broker_config.compute_min_isr(cluster))
    changes: dict[str, str | None] = {
        k: v for k, v in want.items() if state.dynamic_config.get(k) != v
    }
    applied = cluster.get("status", {}).get("appliedConfig", [])
    return changes | {k: None for k in applied if k not in want and k in state.dynamic_config}


def compute_level_changes(
    cluster: QueueCluster, state: ClusterState
) -> dict[int, dict[str, str | None]]:
    """Return the log levels to set, or to unset with None, by node id.

    A node with another level gets all of them: one that is right may only follow from the level
    of a package above.
    """
    want = broker_config.get_log_levels(cluster)
    # The level of the root logger cannot be unset.
    unset = {
        logger: ROOT_LEVEL if logger == ROOT_LOGGER else None
        for logger in broker_config.list_loggers(cluster)
        if logger not in want
    }
    changes: dict[int, dict[str, str | None]] = {}
    for node, have in state.log_levels.items():
        # A node does not have a logger that it refused.
        stale = {logger: level for logger, level in unset.items() if logger in have}
        if stale or any(have.get(logger) != level for logger, level in want.items()):
            changes[node] = {**want, **stale}
    return changes


def list_broker_pods(observation: Observation) -> list[roller.BrokerPod]:
    """Return the pods for the roller."""
    return pods.build_broker_pods(
        observation.effective,
        observation.pods,
        observation.stateful_sets,
        observation.state,
        observation.services,
        observation.unresizable,
    )


def is_restart_lossy(cluster: QueueCluster) -> bool:
    """Return whether a restart of a broker loses records that it has. Before brokers have reported,
    they have none."""
    return storage.is_ephemeral(cluster) and bool(cluster.get("status", {}).get("clusterId"))


def choose_next_step(
    observation: Observation,
    partitions: Sequence[PartitionState] | None,
    now: datetime.datetime,
) -> Step:
    """Return what to do about restarts; `partitions` is None where they are not needed."""
    state = observation.state
    return roller.choose_next_step(
        list_broker_pods(observation),
        partitions,
        state.controller_id if state else -1,
        quorum=state.quorum if state else None,
        loses_disks=is_restart_lossy(observation.cluster),
        next_window=maintenance_windows.find_next_begin(
            observation.cluster["spec"].get("maintenanceWindows", []), now
        ),
    )


def decide_verdict(
    observation: Observation,
    step: Step,
    scaling_down: Diagnosis | None,
    not_grown: Diagnosis | None,
    renewal: Diagnosis | None = None,
    not_finalized: Diagnosis | None = None,
) -> Verdict:
    """Return the conditions of a cluster whose objects are applied.

    `scaling_down` is why brokers that the spec no longer has still run, `not_grown` a volume that
    the API server refuses to grow, `renewal` what the renewal of an authority waits for, and
    `not_finalized` why features are not raised.
    """
    state = observation.state
    disk, low_disk = diagnostics.diagnose_disks(state.disks) if state else (None, None)
    wanted_version = observation.cluster["spec"].get("version", "")
    version = (
        diagnostics.diagnose_versions(state.versions, wanted_version, __version__)
        if state
        else None
    )
    verdict = _decide_roll_verdict(observation, step, disk)
    rolls = verdict.reason in ROLLING
    if scaling_down and scaling_down.reason == "ScalingDown" and verdict.ready and not rolls:
        return Verdict(True, *scaling_down, progressing=True)
    infeasible, growing = diagnostics.diagnose_expansion(observation.claims)
    if growing and verdict.ready and not verdict.progressing:
        verdict = Verdict(True, *growing, progressing=True)
    renewal = renewal or resizing.diagnose_resizes(observation.pods)
    if renewal and verdict.ready and not verdict.progressing:
        verdict = Verdict(True, *renewal, progressing=True)
    return verdict.with_warning(
        scaling_down
        or not_grown
        or infeasible
        or low_disk
        or version
        or not_finalized
        or _diagnose_open_access(observation.cluster)
    )


def _diagnose_open_access(cluster: QueueCluster) -> Diagnosis | None:
    if not security.is_opened(cluster):
        return None
    return diagnostics.Diagnosis(
        "AuthorizationOff",
        "spec.authorization.type is none: every client that reaches a listener may do anything. "
        "Remove it, and give each QueueUser the permissions that it needs in spec.acls.",
    )


def _decide_roll_verdict(observation: Observation, step: Step, disk: Diagnosis | None) -> Verdict:
    if isinstance(step, roller.DoneStep):
        return _decide_after_roll(observation, disk)
    if isinstance(step, roller.RestartStep):
        subject = roller.format_brokers(
            step.broker_id, step.other_brokers, controller=step.controller
        ).capitalize()
        text = f"{subject} restart{'' if step.other_brokers else 's'}: {step.reason}."
        return Verdict(_is_routine(observation, step.broker_id), "Rolling", text, progressing=True)
    if isinstance(step, roller.WaitStep) and step.serving:
        return Verdict(True, "RollWaits", f"{step.reason}.", progressing=True)
    if isinstance(step, roller.PostponeStep):
        return Verdict(True, "RollWaits", _describe_postponed(step))
    diagnosis = (
        diagnostics.diagnose_pods(observation.pods, observation.claims, observation.warnings)
        or disk
    )
    text = f"{step.reason} ({diagnosis.message})." if diagnosis else f"{step.reason}."
    if isinstance(step, roller.RefuseStep):
        return Verdict.make_refused(diagnosis.reason if diagnosis else "BrokerNotReady", text)
    if diagnosis:
        return Verdict.make_blocked(diagnosis.reason, text)
    return _decide_not_ready(observation, text)


def _describe_postponed(step: roller.PostponeStep) -> str:
    """Return what waits for a maintenance window, for which one, and why."""
    subject = (
        "1 pod restarts" if step.pods == 1 else f"{step.pods} pods restart, one after the other,"
    )
    return f"{subject} in the maintenance window that begins at {step.begins}: {step.reason}."


def _is_routine(observation: Observation, restarting: int | None = None) -> bool:
    """Return whether enough nodes serve while one pod of a cluster that was ready restarts.

    `restarting` is the id of its first node before it stops. The roller has checked that the
    partitions keep their min ISR, and the quorum its majority, without it.
    """
    all_pods = list_broker_pods(observation)
    remaining = [pod for pod in all_pods if pod.ready and pod.id != restarting]
    serving = any(not pod.controller for pod in remaining)
    return is_ready(observation.cluster) and serving and len(remaining) >= len(all_pods) - 1


def _decide_after_roll(observation: Observation, disk: Diagnosis | None) -> Verdict:
    if observation.state is None:
        servers = model.get_bootstrap_servers(observation.cluster)
        text = f"All pods are ready, but no broker answers at {servers}."
        if min(map(pods.get_ready_seconds, observation.pods), default=0.0) < REACHABLE_SECONDS_MAX:
            return Verdict.make_waiting("Starting", text)
        return Verdict.make_blocked("BrokersUnreachable", text)
    if disk:
        return Verdict.make_refused(*disk)
    if lagging := sorted(
        set(pod_layout.list_brokers(observation.effective)) - observation.ready_brokers
    ):
        text = (
            "All brokers serve clients. "
            f"{roller.format_brokers(lagging[0], lagging[1:]).capitalize()} "
            f"{'catch' if lagging[1:] else 'catches'} up; until then, no other pod can be evicted."
        )
        return Verdict(True, "CatchingUp", text, progressing=True)
    return Verdict.make_reconciled("All brokers are ready and match the spec.")


def _decide_not_ready(observation: Observation, text: str) -> Verdict:
    """Return the verdict on brokers that are not ready without a diagnosis.

    It is an alarm only for a broker that was ready before and that the operator did not restart.
    """
    before = get_ready_reason(observation.cluster)
    if before in _ROLL_REASONS:
        return Verdict(_is_routine(observation), "Restarting", text, progressing=True)
    status = observation.cluster.get("status", {})
    nodes = [*status.get("brokers", []), *status.get("controllers", [])]
    lost = {node["id"] for node in nodes if node["ready"]} - observation.ready_brokers
    if lost or before == "BrokerNotReady":
        return Verdict.make_blocked("BrokerNotReady", text)
    return Verdict.make_waiting("Starting", text)


def make_pool_removed_verdict(name: str, first_id: int) -> Verdict:
    """Return the verdict on a pool that was removed from the spec while it had pods."""
    return Verdict.make_refused(
        "NodePoolRemoved",
        f"Pool {name!r} was removed from spec.nodePools and still has pods, whose brokers may hold "
        f"replicas. Add it again with firstNodeId {first_id} and replicas 0, and remove it when "
        "status.nodePools has 0 replicas for it.",
    )


def make_disk_refusal(problem: str) -> Verdict:
    """Return the verdict on disks that are not those of the spec's type, or that are lost."""
    return Verdict.make_refused("StorageNotAllowed", problem)


def make_no_address_verdict(cluster: QueueCluster, services: Sequence[str]) -> Verdict:
    """Return the verdict while Services of external listeners have no address.

    `cluster` has the brokers that must run now, among them those that the spec no longer has.
    """
    if problem := routes.find_problem(cluster):
        return Verdict.make_refused("ListenerNotAllowed", problem)
    return Verdict.make_blocked(
        "ListenerWithoutAddress",
        f"Service {services[0]} has no address yet. Check that the Kubernetes cluster has a load "
        "balancer, or use listeners of type NodePort, which need none.",
    )


def make_not_observed_verdict(name: str, waited_ms: int) -> Verdict:
    """Return the verdict while the StatefulSet controller has not observed the template.

    Nothing is known about restarts then; the status of the previous generation stays until
    `OBSERVED_SECONDS_MAX` have passed.
    """
    text = f"Kubernetes has not observed the newest StatefulSet {names.format_stateful_set(name)}"
    if waited_ms > 1000 * OBSERVED_SECONDS_MAX:
        text += f" for over {OBSERVED_SECONDS_MAX:.0f} s. Check kube-controller-manager."
        return Verdict.make_blocked("StatefulSetNotObserved", text)
    return Verdict.make_waiting("Starting", f"{text} yet.")
