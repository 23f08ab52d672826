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

    from shoal_operator.model.names import Manifest

#: The container in slot 0; that in another slot has its number behind it.
CONTAINER = "shoal-restore"
#: The phase of `status.restore` from which on nothing is restored any more.
RESTORED = "Restored"
#: No one sets this condition of the pods, so that they are never ready, and get no clients.
GATE = f"{names.GROUP}/restored"
#: The field of an effective spec that has the id of the restore that is under way.
_ID = "restore"
#: Why a container waits although nothing is wrong, or it has failed before.
_NORMAL = ("PodInitializing", "ContainerCreating", "CrashLoopBackOff")
_TERMINATION_LOG = "/dev/termination-log"
#: Fields of a broker's container that its restore has as well.
_SHARED = ("image", "imagePullPolicy", "env", "volumeMounts", "securityContext", "resources")
#: Fields of a broker's container that the one that waits has as well.
_WAITING = ("image", "imagePullPolicy", "securityContext", "resources")
_WAIT = ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]


class Result(NamedTuple):
    """The result of one container. `summary` is None while there is none."""

    pod: str
    done: bool
    summary: Mapping[str, Any] | None = None


def wanted_id(cluster: Mapping[str, Any], stateful_sets: Iterable[Mapping[str, Any]]) -> str:
    """Return the id of the restore that is to run, empty without one.

    It runs before the cluster has had brokers, and never afterwards, whatever the spec says: not
    once its brokers have reported, it was restored, or one of its StatefulSets is not a restore's.
    Another request has another id.
    """
    if not _is_due(cluster) or not all(map(_note, stateful_sets)):
        return ""
    given = cluster["spec"]["restoreFrom"]
    request = {
        "uid": cluster["metadata"].get("uid"),
        "cluster": broker_config.cluster_id(cluster),
        "store": {k: v for k, v in tiered.properties(cluster, 1).items() if ".remote.store." in k},
        "brokers": pod_layout.brokers(cluster),
        "topics": given.get("topics", []),
    }
    if dedicated := node_pools.controllers(cluster):
        request["controllers"] = list(dedicated.pods)
    return broker_config.digest(json.dumps(request, sort_keys=True))


def _is_due(cluster: Mapping[str, Any]) -> bool:
    status, given = cluster.get("status", {}), cluster["spec"].get("restoreFrom")
    restored = status.get("restore", {}).get("phase") == RESTORED
    return given is not None and not status.get("clusterId") and not restored


def in_the_way(cluster: Mapping[str, Any], stateful_sets: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of StatefulSets of an earlier QueueCluster of this name, which a restore
    must wait for."""
    if not _is_due(cluster):
        return []
    uid = cluster["metadata"].get("uid")
    metas = [one["metadata"] for one in stateful_sets]
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


def is_given_up(cluster: Mapping[str, Any], stateful_sets: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a StatefulSet restores, although the spec no longer asks for it."""
    phase = cluster.get("status", {}).get("restore", {}).get("phase")
    begun = any(map(_note, stateful_sets))
    return begun and phase != RESTORED and cluster["spec"].get("restoreFrom") is None


def has_restored(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has restored the data directory of a node."""
    return any(
        status["name"].startswith(CONTAINER) and _result("", status).done
        for status in pod.get("status", {}).get("initContainerStatuses", [])
    )


def under_way(cluster: Manifest, restore_id: str) -> Manifest:
    """Return the QueueCluster whose pods restore their data directories."""
    return {**cluster, "spec": {**cluster["spec"], _ID: restore_id}}


def id_of(cluster: Mapping[str, Any]) -> str:
    """Return the id of the restore that the pods of an effective QueueCluster do, or empty."""
    return str(cluster["spec"].get(_ID, ""))


def template(cluster: Mapping[str, Any], nodes: Manifest, brokers: Sequence[int]) -> Manifest:
    """Return the template of a pool's pods. `cluster` is its view, `nodes` the template of the pods
    that run its nodes, and `brokers` the ids of all brokers of the cluster."""
    meta, spec = nodes["metadata"], nodes["spec"]
    main = [c for c in spec["containers"] if pod_layout.slot_of_container(c["name"]) is not None]
    own = cluster["spec"].get("template", {}).get("pod", {}).get("initContainers", [])
    restores = [_container(cluster, one, slot, brokers) for slot, one in enumerate(main)]
    waiting = {key: main[0][key] for key in ("name", *_WAITING) if key in main[0]}
    annotations = {**meta["annotations"], names.RESTORE: id_of(cluster)}
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


def _container(
    cluster: Mapping[str, Any], node: Manifest, slot: int, brokers: Sequence[int]
) -> Manifest:
    ids = ",".join(map(str, brokers))
    (config,) = [a for a in node["args"] if a.startswith(names.CONFIG_DIR)]
    args = [
        "storage",
        "restore",
        f"--config={config}",
        f"--brokers={ids}",
        f"--id={id_of(cluster)}",
        f"--summary={_TERMINATION_LOG}",
        *(["--clear-backup"] if tiered.has_clear_backups(cluster) else []),
        *(f"--topic={topic}" for topic in cluster["spec"]["restoreFrom"].get("topics", [])),
    ]
    kept = {key: node[key] for key in _SHARED if key in node}
    # Racks wait for an annotation that these pods do not ask for.
    kept["env"] = [e for e in kept["env"] if e["name"] != broker_pod.RACK]
    return {
        "name": container_name(slot),
        "args": args,
        # Without a summary, the last line of the log has the error.
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **kept,
    }


def container_name(slot: int) -> str:
    """Return the name of the container that restores the node in a slot."""
    return f"{CONTAINER}{slot or ''}"


def _note(manifest: Mapping[str, Any]) -> str:
    return str(manifest["metadata"].get("annotations", {}).get(names.RESTORE, ""))


def is_restoring(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod restores data directories and runs no nodes."""
    return bool(_note(pod))


def is_outdated(pod: Mapping[str, Any], restore_id: str) -> bool:
    """Return whether a pod does not do this restore."""
    return _note(pod) != restore_id


def results(cluster: Manifest, pods: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Return the result of each node of an effective QueueCluster, pod by pod."""
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    found = []
    for pool in node_pools.of(cluster):
        for number in pool.pods:
            name = node_pools.pod_name(cluster, number)
            pod = by_name.get(name)
            current = {} if pod is None or is_outdated(pod, id_of(cluster)) else pod
            statuses = current.get("status", {}).get("initContainerStatuses", [])
            by_container = {status["name"]: status for status in statuses}
            found += [
                _result(name, by_container.get(container_name(slot), {}))
                for slot in pod_layout.slots(cluster, number)
            ]
    return found


def _result(pod: str, status: Mapping[str, Any]) -> Result:
    state = status.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated")
    if waiting.get("reason", "PodInitializing") not in _NORMAL:
        text = f"{waiting['reason']} {waiting.get('message', '')}".rstrip()
        return Result(pod, done=False, summary={"error": "Unknown", "message": text})
    last = ended or status.get("lastState", {}).get("terminated")
    if last is None:
        return Result(pod, done=False)
    text = last.get("message", "").strip()
    try:
        summary = json.loads(text)
    except ValueError:
        lines = text.splitlines() or [last.get("reason", "Error")]
        summary = {"error": "Unknown", "message": lines[-1]}
    done = ended is not None and ended.get("exitCode") == 0 and "error" not in summary
    return Result(pod, done, summary)


def status(found: Iterable[Result], now: str) -> dict[str, Any]:
    """Return `status.restore`. It has the results once all nodes have theirs."""
    every = list(found)
    fields: dict[str, Any] = {
        "phase": "Restoring",
        "brokersRestored": f"{sum(one.done for one in every)}/{len(every)}",
    }
    if not all(one.done for one in every):
        return fields
    # All nodes have the same numbers.
    summary = every[0].summary or {}
    written = datetime.datetime.fromtimestamp(summary["writtenMs"] / 1000, datetime.UTC)
    return fields | {
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
