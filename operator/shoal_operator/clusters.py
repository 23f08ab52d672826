"""QueueClusters: the Kubernetes objects of a cluster, its rolls, its settings and its status.

`reconcile` is a table of contents. What exists is observed through the store; objects are applied
only where what is wanted is not a part of what exists.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from shoal.client.errors import ClientError, KafkaError

from shoal_operator import clock, roller
from shoal_operator.brokers import Brokers, ClusterState
from shoal_operator.conditions import Verdict
from shoal_operator.kube import Kube, KubeError
from shoal_operator.model import broker_config, names
from shoal_operator.model import cluster as model
from shoal_operator.model.names import Manifest
from shoal_operator.statuses import Statuses
from shoal_operator.store import Store
from shoal_operator.windows import is_open

KIND = "QueueCluster"
#: Brokers that this version can join into one cluster.
REPLICAS_MAX = 1
STEADY_SECONDS = 30.0


def missing(want: Any, have: Any) -> bool:
    """Whether `want` asks for something that `have` lacks; what else `have` holds is not ours."""
    if isinstance(want, Mapping):
        return not isinstance(have, Mapping) or any(
            missing(v, have.get(k)) for k, v in want.items()
        )
    if isinstance(want, list):
        return (
            not isinstance(have, list)
            or len(want) != len(have)
            or any(missing(w, h) for w, h in zip(want, have, strict=True))
        )
    return bool(want != have and str(want) != str(have) and want not in ("", None))


def refusal(cluster: Manifest) -> Verdict | None:
    """What of the spec this version cannot do, if anything."""
    spec = cluster["spec"]
    if int(spec.get("replicas", 1)) > REPLICAS_MAX:
        return Verdict.refused(
            "ReplicasNotSupported",
            f"spec.replicas is {spec['replicas']}; this version runs {REPLICAS_MAX} broker in a "
            f"cluster. Set it to {REPLICAS_MAX}.",
        )
    for number, listener in enumerate(spec["listeners"]):
        for key in ("tls", "authentication"):
            if listener.get(key) is not None:
                return Verdict.refused(
                    "SecurityNotSupported",
                    f"spec.listeners[{number}].{key} is set; brokers of this version serve "
                    f"plain listeners only. Take it out, or keep the cluster unstarted.",
                )
        if listener.get("type", "Internal") != "Internal":
            return Verdict.refused(
                "ListenerTypeNotSupported",
                f"spec.listeners[{number}].type is {listener['type']}; brokers of this version "
                "advertise addresses inside the Kubernetes cluster only. Use Internal.",
            )
    return None


class Clusters:
    """The reconciler of one QueueCluster; `reached` is called when its brokers begin to answer."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        brokers: Brokers,
        namespace: str,
        name: str,
        image: str,
        *,
        reached: Callable[[], None],
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._name, self._image = namespace, name, image
        self._reached, self._answered = reached, False
        self._statuses = Statuses(kube, store)
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}

    def everything(self) -> list[str]:
        return [self._name] if self._store.get(KIND, self._namespace, self._name) else []

    async def reconcile(self, _: list[str]) -> float | None:
        """Bring the cluster to its spec; seconds until the next look."""
        cluster = self._store.get(KIND, self._namespace, self._name)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            return None
        if cluster["spec"].get("paused"):
            await self._say(cluster, Verdict(False, "Paused", "spec.paused is true.", paused=True))
            return STEADY_SECONDS
        refused = refusal(cluster)
        if refused:
            await self._say(cluster, refused)
            return None
        try:
            await self._apply_objects(cluster)
        except KubeError as error:
            if error.terminating:
                return None
            await self._say(cluster, Verdict.waiting("ApplyFailed", f"{error}"))
            raise
        state = await self._observe(cluster)
        config = await self._dynamic_config(cluster, state)
        step = self._next_step(cluster, state)
        await self._act(cluster, step)
        verdict = config or self._verdict(cluster, step, state)
        await self._say(cluster, verdict, state)
        return STEADY_SECONDS if verdict.ready and not verdict.progressing else 2.0

    async def _apply_objects(self, cluster: Manifest) -> None:
        for want in model.manifests(cluster, self._image):
            meta = want["metadata"]
            have = self._store.get(want["kind"], meta["namespace"], meta["name"])
            digest = broker_config.digest(repr(want))
            key = (want["kind"], meta["name"])
            version = have["metadata"]["resourceVersion"] if have else ""
            if have and (not missing(want, have) or self._applied.get(key) == (digest, version)):
                continue
            if want["kind"] == "StatefulSet" and have:
                want = await self._keep_claims(cluster, want, have)
            made = await self._kube.apply(want)
            self._applied[key] = (digest, made["metadata"]["resourceVersion"])
            self._store.put(made)

    async def _keep_claims(self, cluster: Manifest, want: Manifest, have: Manifest) -> Manifest:
        """Claim templates cannot change: the volumes themselves are grown instead."""
        kept = have["spec"]["volumeClaimTemplates"]
        size = cluster["spec"]["storage"]["size"]
        for broker in range(int(cluster["spec"].get("replicas", 1))):
            name = names.claim(self._name, broker)
            claim = self._store.get("PersistentVolumeClaim", self._namespace, name)
            if claim and claim["spec"]["resources"]["requests"]["storage"] != size:
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                await self._kube.merge(
                    {**claim, "apiVersion": "v1", "kind": "PersistentVolumeClaim"}, patch
                )
                await self._kube.event(cluster, "VolumeGrows", f"{name} to {size}.")
        spec = {**want["spec"], "volumeClaimTemplates": kept}
        return {**want, "spec": spec}

    async def _observe(self, cluster: Manifest) -> ClusterState | None:
        urls = [
            model.metrics_url(cluster, broker)
            for broker in range(int(cluster["spec"].get("replicas", 1)))
        ]
        await self._brokers.readdress(model.bootstrap_servers(cluster), urls)
        try:
            state = await self._brokers.cluster_state()
        except ClientError:
            self._answered = False
            return None
        if not self._answered:
            self._answered = True
            self._reached()
        return state

    async def _dynamic_config(
        self, cluster: Manifest, state: ClusterState | None
    ) -> Verdict | None:
        """Set what running brokers take without a restart; a verdict where they refuse."""
        if state is None:
            return None
        want = broker_config.dynamic(cluster["spec"].get("config", {}))
        changes: dict[str, str | None] = {
            k: v for k, v in want.items() if state.dynamic_config.get(k) != v
        }
        applied = cluster.get("status", {}).get("appliedConfig", [])
        changes |= {k: None for k in applied if k not in want and k in state.dynamic_config}
        if not changes:
            return None
        try:
            await self._brokers.alter_broker_config(changes)
        except KafkaError as error:
            return Verdict.refused("ConfigRefused", f"spec.config: {error}")
        await self._kube.event(
            cluster, "ConfigChanged", f"{', '.join(sorted(changes))}, without a restart."
        )
        return None

    def _pods(self) -> list[Manifest]:
        want = names.selector(self._name)
        return [
            p
            for p in self._store.all("Pod")
            if p["metadata"]["namespace"] == self._namespace
            and not missing(want, p["metadata"].get("labels", {}))
        ]

    def _brokers_seen(self, cluster: Manifest) -> list[roller.Broker]:
        """The pods as the roller sees them; an absent one is not ready and runs nothing old."""
        stateful = self._store.get("StatefulSet", self._namespace, names.stateful_set(self._name))
        revision = (stateful or {}).get("status", {}).get("updateRevision", "")
        generation = (stateful or {}).get("metadata", {}).get("generation", 0)
        seen = (stateful or {}).get("status", {}).get("observedGeneration", 0)
        pods = {p["metadata"]["name"]: p for p in self._pods()}
        out = []
        for broker in range(int(cluster["spec"].get("replicas", 1))):
            pod = pods.get(names.pod(self._name, broker))
            if pod is None:
                out.append(roller.Broker(broker, False))
                continue
            old = pod["metadata"]["labels"].get("controller-revision-hash", "")
            stale = bool(revision) and seen >= generation and old != revision
            reason = _why(pod, stateful) if stale else ""
            out.append(roller.Broker(broker, _ready(pod), reason, _unready_seconds(pod)))
        return out

    def _next_step(self, cluster: Manifest, state: ClusterState | None) -> Any:
        windows = cluster["spec"].get("maintenanceWindows", [])
        return roller.next_step(
            self._brokers_seen(cluster),
            state.partitions if state else None,
            state.controller_id if state else -1,
            window_open=is_open(windows, datetime.datetime.now(datetime.UTC)),
        )

    async def _act(self, cluster: Manifest, step: Any) -> None:
        if isinstance(step, roller.Proceed):
            pod = names.pod(self._name, step.broker_id)
            running = self._store.get("Pod", self._namespace, pod)
            if running is None or running["metadata"].get("deletionTimestamp"):
                return
            await self._kube.event(cluster, "BrokerRestart", f"{pod}: {step.reason}.")
            going = await self._kube.delete(running)
            if going:
                self._store.put(going)

    def _verdict(self, cluster: Manifest, step: Any, state: ClusterState | None) -> Verdict:
        if isinstance(step, roller.Done):
            if state is None:
                return Verdict.waiting(
                    "BrokersUnreachable", "Pods are ready but no broker answers."
                )
            return Verdict.fine("All brokers are ready and run what the spec asks.")
        if isinstance(step, roller.Refuse):
            return Verdict.refused("BrokerNotReady", f"{step.reason}{self._trouble()}.")
        if isinstance(step, roller.Proceed):
            text = f"Broker {step.broker_id} restarts: {step.reason}."
            return Verdict(False, "Rolling", text, progressing=True)
        if step.serving:
            return Verdict(True, "RollWaits", f"{step.reason}.", progressing=True)
        was_up = "clusterId" in cluster.get("status", {})
        text = f"{step.reason}{self._trouble()}."
        return Verdict.waiting("BrokerNotReady" if was_up else "Starting", text)

    def _trouble(self) -> str:
        """What Kubernetes says of pods and volumes that do not come up."""
        for pod in self._pods():
            for status in pod.get("status", {}).get("containerStatuses", []):
                waiting = status.get("state", {}).get("waiting")
                if waiting and waiting.get("reason") not in ("ContainerCreating", None):
                    last = status.get("lastState", {}).get("terminated", {})
                    end = last.get("message", "") or waiting.get("message", "")
                    return f" ({pod['metadata']['name']}: {waiting['reason']} {end})".rstrip()
            for condition in pod.get("status", {}).get("conditions", []):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    said = condition.get("message", "").rstrip(".")
                    return f" ({pod['metadata']['name']}: {said}{self._unbound()})"
        return ""

    def _unbound(self) -> str:
        """The volume that a pod that is not scheduled waits for, if that is why."""
        for broker in range(REPLICAS_MAX):
            name = names.claim(self._name, broker)
            claim = self._store.get("PersistentVolumeClaim", self._namespace, name)
            if claim and claim.get("status", {}).get("phase") == "Pending":
                wanted = claim["spec"].get("storageClassName", "the default one")
                return f"; volume claim {name} is pending: is there a storage class {wanted}?"
        return ""

    async def _say(
        self, cluster: Manifest, verdict: Verdict, state: ClusterState | None = None
    ) -> None:
        pods = self._pods()
        ready = sum(map(_ready, pods))
        wanted = int(cluster["spec"].get("replicas", 1))
        fields: dict[str, Any] = {
            "replicas": len(pods),
            "readyReplicas": ready,
            "brokersReady": f"{ready}/{wanted}",
            "selector": names.selector_text(names.selector(self._name)),
            "image": model.image(cluster, self._image),
            "version": model.image(cluster, self._image).rpartition(":")[2],
            "bootstrapServers": model.bootstrap_servers(cluster),
            "listeners": [
                {
                    "name": n["name"],
                    "type": n.get("type", "Internal"),
                    "bootstrapServers": model.bootstrap_servers(cluster, n),
                }
                for n in cluster["spec"]["listeners"]
            ],
            "brokers": [
                {
                    "id": int(p["metadata"]["name"].rpartition("-")[2]),
                    "pod": p["metadata"]["name"],
                    "ready": _ready(p),
                    "node": p["spec"].get("nodeName", ""),
                    "configHash": p["metadata"]["annotations"].get(names.CONFIG_HASH, ""),
                }
                for p in pods
            ],
        }
        if state:
            fields |= {
                "clusterId": state.cluster_id,
                "controllerId": state.controller_id,
                "appliedConfig": sorted(broker_config.dynamic(cluster["spec"].get("config", {}))),
            }
        await self._statuses.write(cluster, verdict, fields)


def _ready(pod: Mapping[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    found = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in found)


def _unready_seconds(pod: Mapping[str, Any]) -> float:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] != "True":
            return clock.seconds_since(condition["lastTransitionTime"])
    return 0.0


def _why(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> str:
    """The reason of a restart: what differs between the pod and its template."""
    template = (stateful or {}).get("spec", {}).get("template", {})
    have, want = pod["spec"]["containers"][0], template["spec"]["containers"][0]
    notes = template.get("metadata", {}).get("annotations", {})
    mine = pod["metadata"].get("annotations", {})
    if have["image"] != want["image"]:
        return f"image {have['image']} becomes {want['image']}"
    if mine.get(names.CONFIG_HASH) != notes.get(names.CONFIG_HASH):
        return "a setting changed that brokers read at their start"
    if mine.get(names.RESTART) != notes.get(names.RESTART):
        return f"the annotation {names.RESTART} asks for it"
    return "the pod's template changed"
