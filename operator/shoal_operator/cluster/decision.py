"""Decisions about a QueueCluster: what to refuse, what to change, and its conditions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import __version__, diagnostics, maintenance_windows, pods, roller
from shoal_operator.conditions import Verdict, is_ready, ready_reason
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
    from collections.abc import Mapping, Sequence

    from shoal_operator.broker_states import ClusterState
    from shoal_operator.cluster.observation import Observation
    from shoal_operator.diagnostics import Diagnosis
    from shoal_operator.model.names import Manifest
    from shoal_operator.roller import PartitionState, Step

#: How long the Service may take to route to pods that are ready.
REACHABLE_SECONDS_MAX = 15.0
#: How long the StatefulSet controller may take to observe a change; it takes milliseconds.
OBSERVED_SECONDS_MAX = 15.0
#: The logger of all others, and its level at the start of a broker.
ROOT_LOGGER, ROOT_LEVEL = "root", "INFO"
#: Reasons of `Ready` while the operator restarts brokers, and also between two of them.
ROLLING = ("Rolling", "Restarting")
_ROLL_REASONS = (*ROLLING, "RollWaits")


def refusal(
    cluster: Manifest,
    *,
    racks: bool = True,
    routed: frozenset[str] = frozenset(listeners.ROUTED),
) -> Verdict | None:
    """Return the verdict on a spec that this version cannot run, else None.

    The security of `cluster` is `security.resolved`. `racks` is whether the operator has the
    permissions for racks, and `routed` are the types of listeners for which it has them.
    """
    spec = cluster["spec"]
    if problem := node_pools.problem(cluster):
        return Verdict.refused("NodePoolNotAllowed", problem)
    if node_pools.controllers(cluster) is None and pod_layout.replicas(cluster) == 2:
        return Verdict.refused(
            "NoMajority",
            "spec.replicas cannot be 2, because neither broker has a majority alone. "
            "Set it to 1 or 3.",
        )
    if problem := storage.problem(cluster):
        return Verdict.refused("StorageNotAllowed", problem)
    if spec.get("rack") and not racks:
        return Verdict.refused(
            "RacksDisabled",
            "spec.rack needs permissions that this operator does not have. Set the chart's value "
            "racks.enabled to true, or remove spec.rack.",
        )
    if spec.get("restoreFrom") is not None and not tiered.is_enabled(cluster):
        return Verdict.refused(
            "RestoreRefused",
            "spec.restoreFrom needs spec.tieredStorage, which names the bucket. The cluster "
            "continues there.",
        )
    if problem := maintenance_windows.problem(spec.get("maintenanceWindows", [])):
        return Verdict.refused("ScheduleNotValid", problem)
    if found := reserved_fields.first(cluster):
        where, why = found
        return Verdict.refused("TemplateNotAllowed", f"{where} is not allowed: {why}")
    return _refused_config(spec) or _refused_routes(cluster, routed) or _refused_security(cluster)


def _refused_routes(cluster: Manifest, routed: frozenset[str]) -> Verdict | None:
    """Return the verdict on routed listeners that this operator cannot run."""
    for listener in cluster["spec"]["listeners"]:
        kind, name = listeners.kind(listener), listener["name"]
        if not listeners.is_routed(listener):
            continue
        if kind not in routed:
            return Verdict.refused(
                "ListenerTypeDisabled",
                f"Listener {name!r} has the type {kind}, which needs permissions that this "
                f"operator does not have. Set the chart's value {routes.VALUES[kind]} to true, or "
                "use another type.",
            )
        if not security.is_encrypted(listener):
            return Verdict.refused(
                "ListenerNotAllowed",
                f"Listener {name!r} has the type {kind} and no tls. Its proxy routes by the host "
                "in a TLS handshake. Add tls: {}.",
            )
    problem = routes.problem(cluster)
    return Verdict.refused("ListenerNotAllowed", problem) if problem else None


def _refused_config(spec: Mapping[str, Any]) -> Verdict | None:
    if text := broker_config.find_malformed(spec.get("config", {})):
        return Verdict.refused("ConfigNotAllowed", text)
    if found := broker_config.first_reserved(spec):
        where, remedy = found
        return Verdict.refused("ConfigNotAllowed", f"{where} is not allowed. {remedy}")
    if twice := broker_config.set_twice(spec):
        variable, name = twice
        return Verdict.refused(
            "ConfigTwice",
            f"{variable} and spec.config sets {name}, which is the same "
            "setting. Remove one of them.",
        )
    return None


def static_refusal(problem: str) -> Verdict | None:
    """Return the verdict on a static config with which brokers would not start."""
    if not problem:
        return None
    text = problem if problem.endswith("?") else f"{problem}."
    return Verdict.refused("ConfigRefused", f"spec.config: {text} No broker has restarted.")


def _refused_security(cluster: Manifest) -> Verdict | None:
    """Return the verdict on settings of security that this cluster cannot have."""
    spec = cluster["spec"]
    if taken := _taken(cluster):
        return Verdict.refused("ListenerNotAllowed", taken)
    for listener in spec["listeners"]:
        if remedy := _listener_remedy(cluster, listener):
            return Verdict.refused(
                "SecurityNotSupported", f"Listener {listener['name']!r} of spec.listeners: {remedy}"
            )
    if lacks := _migration_lacks(cluster):
        return lacks
    wanted = (spec.get("authorization") or {}).get("type")
    if wanted == "simple" and not security.has_internal_tls(cluster):
        return Verdict.refused(
            "SecurityNotSupported",
            "spec.authorization.type is simple, which needs a cluster whose brokers use TLS. "
            "Add a listener that has tls.",
        )
    return None


def _taken(cluster: Manifest) -> str:
    """Return the name or port that the brokers' own listener has too, and the remedy; or empty."""
    given = security.given_listeners(cluster)
    metrics_port = cluster["spec"]["metrics"]["port"]
    for at, listener in enumerate(given):
        if listener["port"] == metrics_port:
            return (
                f"spec.listeners[{at}].port is {metrics_port}, which is spec.metrics.port. Choose "
                "another port."
            )
    if not security.has_internal_tls(cluster):
        return ""
    if security.REPLICATION in [n["name"] for n in given]:
        return (
            f"A listener cannot have the name {security.REPLICATION!r}: the brokers' own listener "
            "has it. Choose another name."
        )
    wanted = {f"spec.listeners[{at}].port": n["port"] for at, n in enumerate(given)}
    used = {**wanted, "spec.metrics.port": metrics_port}
    for path, port in used.items():
        if port in [one.port for one in security.controllers(cluster)]:
            return f"{path} is {port}, which the controllers use. Choose another port."
        # Each broker of a pod has the ports of the previous one plus `STEP`.
        steps, rest = divmod(port - security.REPLICATION_PORT, pod_layout.STEP)
        if not rest and abs(steps) < pod_layout.per_pod(cluster):
            return (
                f"{path} is {port}, which the brokers' own listener uses in a cluster with TLS. "
                "Choose another port."
            )
    return ""


def _listener_remedy(cluster: Manifest, listener: Mapping[str, Any]) -> str:
    """Return what is wrong with a listener's security, and what to do; empty if nothing is."""
    kind = security.authentication(listener)
    if kind and not security.is_encrypted(listener):
        return "authentication needs tls. Add tls: {}."
    given = listener.get("authentication") or {}
    if kind == "oauthbearer" and not (given.get("jwksEndpointUrl") and given.get("validIssuer")):
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


def _migration_lacks(cluster: Manifest) -> Verdict | None:
    """Return the verdict on a spec without the listener that a migration to TLS still uses."""
    stage = security.internal_tls(cluster)
    if not security.has_internal_tls(cluster) or stage.is_used or security.plain(cluster):
        return None
    return Verdict.refused(
        "SecurityNotSupported",
        "The brokers are being moved to TLS and still use the Internal listener in plaintext. Add "
        "it to spec.listeners again, and remove it when the QueueCluster is Ready.",
    )


def config_changes(cluster: Manifest, state: ClusterState) -> dict[str, str | None]:
    """Return the dynamic broker configs to set, or to unset with None."""
    want = broker_config.dynamic(cluster)
    changes: dict[str, str | None] = {
        k: v for k, v in want.items() if state.dynamic_config.get(k) != v
    }
    applied = cluster.get("status", {}).get("appliedConfig", [])
    return changes | {k: None for k in applied if k not in want and k in state.dynamic_config}


def level_changes(cluster: Manifest, state: ClusterState) -> dict[int, dict[str, str | None]]:
    """Return the log levels to set, or to unset with None, by node id.

    A node with another level gets all of them: one that is right may only follow from the level
    of a package above.
    """
    want = broker_config.log_levels(cluster)
    # The level of the root logger cannot be unset.
    unset = {
        logger: ROOT_LEVEL if logger == ROOT_LOGGER else None
        for logger in broker_config.loggers(cluster)
        if logger not in want
    }
    found: dict[int, dict[str, str | None]] = {}
    for node, have in state.log_levels.items():
        # A node does not have a logger that it refused.
        stale = {logger: level for logger, level in unset.items() if logger in have}
        if stale or any(have.get(logger) != level for logger, level in want.items()):
            found[node] = {**want, **stale}
    return found


def broker_pods(seen: Observation) -> list[roller.BrokerPod]:
    """Return the pods for the roller."""
    return pods.broker_pods(
        seen.effective, seen.pods, seen.stateful_sets, seen.state, seen.services
    )


def loses_disks(cluster: Manifest) -> bool:
    """Return whether a restart of a broker loses records that it has. Before brokers have reported,
    they have none."""
    return storage.is_ephemeral(cluster) and bool(cluster.get("status", {}).get("clusterId"))


def next_step(
    seen: Observation,
    partitions: Sequence[PartitionState] | None,
    now: datetime.datetime,
) -> Step:
    """Return what to do about restarts; `partitions` is None where they are not needed."""
    state = seen.state
    return roller.next_step(
        broker_pods(seen),
        partitions,
        state.controller_id if state else -1,
        quorum=state.quorum if state else None,
        loses_disks=loses_disks(seen.cluster),
        next_window=maintenance_windows.next_begin(
            seen.cluster["spec"].get("maintenanceWindows", []), now
        ),
    )


def verdict(
    seen: Observation,
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
    state = seen.state
    disk, low_disk = diagnostics.diagnose_disks(state.disks) if state else (None, None)
    wanted_version = seen.cluster["spec"].get("version", "")
    version = (
        diagnostics.diagnose_versions(state.versions, wanted_version, __version__)
        if state
        else None
    )
    found = _roll_verdict(seen, step, disk)
    rolls = found.reason in ROLLING
    if scaling_down and scaling_down.reason == "ScalingDown" and found.ready and not rolls:
        return Verdict(True, *scaling_down, progressing=True)
    infeasible, growing = diagnostics.diagnose_expansion(seen.claims)
    if growing and found.ready and not found.progressing:
        found = Verdict(True, *growing, progressing=True)
    if renewal and found.ready and not found.progressing:
        found = Verdict(True, *renewal, progressing=True)
    return found.warned(
        scaling_down
        or not_grown
        or infeasible
        or low_disk
        or version
        or not_finalized
        or _opened(seen.cluster)
    )


def _opened(cluster: Manifest) -> Diagnosis | None:
    if not security.is_opened(cluster):
        return None
    return diagnostics.Diagnosis(
        "AuthorizationOff",
        "spec.authorization.type is none: every client that reaches a listener may do anything. "
        "Remove it, and give each QueueUser the permissions that it needs in spec.acls.",
    )


def _roll_verdict(seen: Observation, step: Step, disk: Diagnosis | None) -> Verdict:
    if isinstance(step, roller.Done):
        return _verdict_after_roll(seen, disk)
    if isinstance(step, roller.Proceed):
        subject = roller.named(step.broker_id, step.others, controller=step.controller).capitalize()
        text = f"{subject} restart{'' if step.others else 's'}: {step.reason}."
        return Verdict(_is_routine(seen, step.broker_id), "Rolling", text, progressing=True)
    if isinstance(step, roller.Wait) and step.serving:
        return Verdict(True, "RollWaits", f"{step.reason}.", progressing=True)
    if isinstance(step, roller.Postpone):
        return Verdict(True, "RollWaits", _describe_postponed(step))
    found = diagnostics.diagnose_pods(seen.pods, seen.claims, seen.warnings) or disk
    text = f"{step.reason} ({found.message})." if found else f"{step.reason}."
    if isinstance(step, roller.Refuse):
        return Verdict.refused(found.reason if found else "BrokerNotReady", text)
    if found:
        return Verdict.blocked(found.reason, text)
    return _not_ready(seen, text)


def _describe_postponed(step: roller.Postpone) -> str:
    """Return what waits for a maintenance window, for which one, and why."""
    what = "1 pod restarts" if step.pods == 1 else f"{step.pods} pods restart, one after the other,"
    return f"{what} in the maintenance window that begins at {step.begins}: {step.reason}."


def _is_routine(seen: Observation, restarting: int | None = None) -> bool:
    """Return whether enough nodes serve while one pod of a cluster that was ready restarts.

    `restarting` is the id of its first node before it stops. The roller has checked that the
    partitions keep their min ISR, and the quorum its majority, without it.
    """
    every = broker_pods(seen)
    left = [pod for pod in every if pod.ready and pod.id != restarting]
    serving = any(not pod.controller for pod in left)
    return is_ready(seen.cluster) and serving and len(left) >= len(every) - 1


def _verdict_after_roll(seen: Observation, disk: Diagnosis | None) -> Verdict:
    if seen.state is None:
        servers = model.bootstrap_servers(seen.cluster)
        text = f"All pods are ready, but no broker answers at {servers}."
        if min(map(pods.ready_seconds, seen.pods), default=0.0) < REACHABLE_SECONDS_MAX:
            return Verdict.waiting("Starting", text)
        return Verdict.blocked("BrokersUnreachable", text)
    if disk:
        return Verdict.refused(*disk)
    if behind := sorted(set(pod_layout.brokers(seen.effective)) - seen.ready_brokers):
        text = (
            f"All brokers serve clients. {roller.named(behind[0], behind[1:]).capitalize()} "
            f"{'catch' if behind[1:] else 'catches'} up; until then, no other pod can be evicted."
        )
        return Verdict(True, "CatchingUp", text, progressing=True)
    return Verdict.fine("All brokers are ready and match the spec.")


def _not_ready(seen: Observation, text: str) -> Verdict:
    """Return the verdict on brokers that are not ready without a diagnosis.

    It is an alarm only for a broker that was ready before and that the operator did not restart.
    """
    before = ready_reason(seen.cluster)
    if before in _ROLL_REASONS:
        return Verdict(_is_routine(seen), "Restarting", text, progressing=True)
    status = seen.cluster.get("status", {})
    nodes = [*status.get("brokers", []), *status.get("controllers", [])]
    lost = {node["id"] for node in nodes if node["ready"]} - seen.ready_brokers
    if lost or before == "BrokerNotReady":
        return Verdict.blocked("BrokerNotReady", text)
    return Verdict.waiting("Starting", text)


def pool_removed(name: str, first_id: int) -> Verdict:
    """Return the verdict on a pool that was removed from the spec while it had pods."""
    return Verdict.refused(
        "NodePoolRemoved",
        f"Pool {name!r} was removed from spec.nodePools and still has pods, whose brokers may hold "
        f"replicas. Add it again with firstNodeId {first_id} and replicas 0, and remove it when "
        "status.nodePools has 0 replicas for it.",
    )


def disks_refused(problem: str) -> Verdict:
    """Return the verdict on disks that are not those of the spec's type, or that are lost."""
    return Verdict.refused("StorageNotAllowed", problem)


def no_address(cluster: Manifest, services: Sequence[str]) -> Verdict:
    """Return the verdict while Services of external listeners have no address.

    `cluster` has the brokers that must run now, among them those that the spec no longer has.
    """
    if problem := routes.problem(cluster):
        return Verdict.refused("ListenerNotAllowed", problem)
    return Verdict.blocked(
        "ListenerWithoutAddress",
        f"Service {services[0]} has no address yet. Check that the Kubernetes cluster has a load "
        "balancer, or use listeners of type NodePort, which need none.",
    )


def not_observed(name: str, waited_ms: int) -> Verdict:
    """Return the verdict while the StatefulSet controller has not observed the template.

    Nothing is known about restarts then; the status of the previous generation stays until
    `OBSERVED_SECONDS_MAX` have passed.
    """
    text = f"Kubernetes has not observed the newest StatefulSet {names.stateful_set(name)}"
    if waited_ms > 1000 * OBSERVED_SECONDS_MAX:
        text += f" for over {OBSERVED_SECONDS_MAX:.0f} s. Check kube-controller-manager."
        return Verdict.blocked("StatefulSetNotTakenUp", text)
    return Verdict.waiting("Starting", f"{text} yet.")
