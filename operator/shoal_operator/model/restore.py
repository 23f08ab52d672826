"""The pods that restore the data directories of a cluster from its bucket (`spec.restoreFrom`).

They are the pods of the StatefulSets of all node pools, with the nodes' volumes and settings. Init
containers run `shoal storage restore`, and nothing else runs until the operator has seen that all
have ended. Then the StatefulSets get the brokers' template, and these pods are deleted. Dedicated
controllers restore the metadata log alone, by the same command. Pure.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.model import (
    broker_config,
    broker_pod,
    names,
    node_pools,
    pod_layout,
    tiered,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.model.kubernetes import PodTemplateSpec
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster, RestoreStatus

#: The container in slot 0; that in another slot has its number behind it.
CONTAINER = "shoal-restore"
#: The phase of `status.restore` from which on nothing is restored any more.
RESTORED = "Restored"
#: No one sets this condition of the pods, so that they are never ready, and get no clients.
GATE = f"{names.GROUP}/restored"
#: Why a container waits although nothing is wrong, or it has failed before.
_NORMAL = ("PodInitializing", "ContainerCreating", "CrashLoopBackOff")
_TERMINATION_LOG = "/dev/termination-log"
#: Fields of a broker's container that its restore has as well.
_SHARED = ("image", "imagePullPolicy", "env", "volumeMounts", "securityContext", "resources")
#: Fields of a broker's container that the one that waits has as well.
_WAITING = ("image", "imagePullPolicy", "securityContext", "resources")
_WAIT = ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]


class RestoreResult(NamedTuple):
    """The result of one container. `summary` is None while there is none."""

    pod: str
    done: bool
    summary: Mapping[str, Any] | None = None


def compute_restore_id(cluster: QueueCluster, stateful_sets: Iterable[Mapping[str, Any]]) -> str:
    """Return the id of the restore that is to run, empty without one.

    It runs before the cluster has had brokers, and never afterwards, whatever the spec says: not
    once its brokers have reported, it was restored, or one of its StatefulSets is not a restore's.
    Another request has another id.
    """
    if not _is_due(cluster) or not all(map(_get_note, stateful_sets)):
        return ""
    source = cluster["spec"]["restoreFrom"]
    request = {
        "uid": cluster["metadata"].get("uid"),
        "cluster": broker_config.derive_cluster_id(cluster),
        "store": {
            k: v for k, v in tiered.build_properties(cluster, 1).items() if ".remote.store." in k
        },
        "brokers": pod_layout.list_brokers(cluster),
        "topics": source.get("topics", []),
    }
    if dedicated := node_pools.find_controller_pool(cluster):
        request["controllers"] = list(dedicated.pods)
    return broker_config.compute_digest(json.dumps(request, sort_keys=True))


def _is_due(cluster: QueueCluster) -> bool:
    status, source = cluster.get("status", {}), cluster["spec"].get("restoreFrom")
    restored = status.get("restore", {}).get("phase") == RESTORED
    return source is not None and not status.get("clusterId") and not restored


def list_blocking(cluster: QueueCluster, stateful_sets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of StatefulSets of an earlier QueueCluster of this name, which a restore
    must wait for."""
    if not _is_due(cluster):
        return []
    uid = cluster["metadata"].get("uid")
    metas = [stateful_set["metadata"] for stateful_set in stateful_sets]
    return [
        str(meta["name"])
        for meta in metas
        if meta.get("deletionTimestamp")
        or uid not in [owner["uid"] for owner in meta.get("ownerReferences", [])]
    ]


def is_leaving(claim: Mapping[str, Any]) -> bool:
    """Return whether a volume claim is being deleted, or will be with the StatefulSet that owned
    it by `storage.deletionPolicy`."""
    meta = claim["metadata"]
    return bool(meta.get("deletionTimestamp") or meta.get("ownerReferences"))


def is_given_up(cluster: QueueCluster, stateful_sets: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a StatefulSet restores, although the spec no longer asks for it."""
    phase = cluster.get("status", {}).get("restore", {}).get("phase")
    begun = any(map(_get_note, stateful_sets))
    return begun and phase != RESTORED and cluster["spec"].get("restoreFrom") is None


def has_restored(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has restored the data directory of a node."""
    return any(
        status["name"].startswith(CONTAINER) and _parse_result("", status).done
        for status in pod.get("status", {}).get("initContainerStatuses", [])
    )


def with_restore(cluster: QueueCluster, restore_id: str) -> QueueCluster:
    """Return the QueueCluster whose pods restore their data directories."""
    return {**cluster, "restoreId": restore_id}


def get_restore_id(cluster: QueueCluster) -> str:
    """Return the id of the restore that the pods of an effective QueueCluster do, or empty."""
    return cluster.get("restoreId", "")


def build_template(
    cluster: QueueCluster, nodes: PodTemplateSpec, brokers: Sequence[int]
) -> PodTemplateSpec:
    """Return the template of a pool's pods. `cluster` is its view, `nodes` the template of the pods
    that run its nodes, and `brokers` the ids of all brokers of the cluster."""
    meta, spec = nodes["metadata"], nodes["spec"]
    main: list[Mapping[str, Any]] = [
        c for c in spec["containers"] if pod_layout.parse_container_slot(c["name"]) is not None
    ]
    own = cluster["spec"].get("template", {}).get("pod", {}).get("initContainers", [])
    restores = [
        _build_container(cluster, container, slot, brokers) for slot, container in enumerate(main)
    ]
    waiting = {key: main[0][key] for key in ("name", *_WAITING) if key in main[0]}
    annotations = {**meta["annotations"], names.RESTORE: get_restore_id(cluster)}
    # Only the racks' volume needs it, and racks do not matter here.
    annotations.pop(names.RACK_KEY, None)
    return {
        "metadata": {**meta, "annotations": annotations},
        "spec": {
            **spec,
            "initContainers": [*own, *restores],
            "containers": [{**waiting, "command": _WAIT}],
            "readinessGates": [{"conditionType": GATE}],
            "terminationGracePeriodSeconds": 1,
        },
    }


def _build_container(
    cluster: QueueCluster, node: Mapping[str, Any], slot: int, brokers: Sequence[int]
) -> Manifest:
    ids = ",".join(map(str, brokers))
    (config,) = [a for a in node["args"] if a.startswith(names.CONFIG_DIR)]
    args = [
        "storage",
        "restore",
        f"--config={config}",
        f"--brokers={ids}",
        f"--id={get_restore_id(cluster)}",
        f"--summary={_TERMINATION_LOG}",
        *(["--clear-backup"] if tiered.has_clear_backups(cluster) else []),
        *(f"--topic={topic}" for topic in cluster["spec"]["restoreFrom"].get("topics", [])),
    ]
    shared = {key: node[key] for key in _SHARED if key in node}
    # Racks wait for an annotation that these pods do not ask for.
    shared["env"] = [e for e in shared["env"] if e["name"] != broker_pod.RACK]
    return {
        "name": format_container_name(slot),
        "args": args,
        # Without a summary, the last line of the log has the error.
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **shared,
    }


def format_container_name(slot: int) -> str:
    """Return the name of the container that restores the node in a slot."""
    return f"{CONTAINER}{slot or ''}"


def _get_note(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"].get("annotations", {}).get(names.RESTORE, ""))


def is_restoring(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod restores data directories and runs no nodes."""
    return bool(_get_note(pod))


def is_outdated(pod: Mapping[str, Any], restore_id: str) -> bool:
    """Return whether a pod does not do this restore."""
    return _get_note(pod) != restore_id


def parse_results(cluster: QueueCluster, pods: Iterable[Mapping[str, Any]]) -> list[RestoreResult]:
    """Return the result of each node of an effective QueueCluster, pod by pod."""
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    results = []
    for pool in node_pools.list_pools(cluster):
        for number in pool.pods:
            name = node_pools.format_pod_name(cluster, number)
            pod = by_name.get(name)
            current = {} if pod is None or is_outdated(pod, get_restore_id(cluster)) else pod
            statuses = current.get("status", {}).get("initContainerStatuses", [])
            by_container = {status["name"]: status for status in statuses}
            results += [
                _parse_result(name, by_container.get(format_container_name(slot), {}))
                for slot in pod_layout.list_slots(cluster, number)
            ]
    return results


def _parse_result(pod: str, status: Mapping[str, Any]) -> RestoreResult:
    state = status.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated")
    if waiting.get("reason", "PodInitializing") not in _NORMAL:
        text = f"{waiting['reason']} {waiting.get('message', '')}".rstrip()
        return RestoreResult(pod, done=False, summary={"error": "Unknown", "message": text})
    last = ended or status.get("lastState", {}).get("terminated")
    if last is None:
        return RestoreResult(pod, done=False)
    text = last.get("message", "").strip()
    try:
        summary = json.loads(text)
    except ValueError:
        lines = text.splitlines() or [last.get("reason", "Error")]
        summary = {"error": "Unknown", "message": lines[-1]}
    is_done = ended is not None and ended.get("exitCode") == 0 and "error" not in summary
    return RestoreResult(pod, is_done, summary)


def build_status(results: Iterable[RestoreResult], now: str) -> RestoreStatus:
    """Return `status.restore`. It has the results once all nodes have theirs."""
    all_results = list(results)
    fields: RestoreStatus = {
        "phase": "Restoring",
        "brokersRestored": f"{sum(result.done for result in all_results)}/{len(all_results)}",
    }
    if not all(result.done for result in all_results):
        return fields
    # All nodes have the same numbers.
    summary = all_results[0].summary or {}
    written = datetime.datetime.fromtimestamp(summary["writtenMs"] / 1000, datetime.UTC)
    return {
        **fields,
        "phase": RESTORED,
        "clusterId": summary["clusterId"],
        "completionTime": now,
        "backupTime": written.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "topics": summary["topics"],
        "partitions": summary["partitions"],
        "missingSegments": summary["missing"],
        "abortedTransactions": summary["aborted"],
        "endOffsets": [{"topic": t, "partitions": ends} for t, ends in summary["ends"].items()],
        "topicsLeftOut": summary["leftOut"],
    }
