"""QueueClusters: the Kubernetes objects of a cluster, its rolls, its settings and its status.

`reconcile` is a table of contents. What exists is observed through the store; objects are applied
only where what is wanted is not a part of what exists.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.client.errors import ClientError, KafkaError

from shoal_operator import __version__, clock, diagnostics, pods, roller
from shoal_operator.broker_states import ClusterState
from shoal_operator.brokers import Brokers
from shoal_operator.conditions import Verdict, is_ready, is_seen
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.kube import Kube, KubeError
from shoal_operator.maintenance_windows import is_open
from shoal_operator.membership import Membership, ScaleDown
from shoal_operator.model import broker_config, listeners, names, pod_layout
from shoal_operator.model import cluster as model
from shoal_operator.model.names import Manifest
from shoal_operator.quantities import size_bytes
from shoal_operator.roller import Wait
from shoal_operator.statuses import Statuses, transition_key
from shoal_operator.store import Store

KIND = "QueueCluster"
#: Pods are ready a little before the Service leads to them: between looks at that, and at most.
REACHED_SECONDS, REACHED_SECONDS_MAX = 0.5, 15.0
#: Kubernetes' controllers take up what is new within tens of milliseconds.
TAKEN_UP_SECONDS_MAX = 15.0
#: Seconds between looks: at a cluster that is well, and, first and at most, at one that is not.
STEADY_SECONDS = 30.0
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 2.0, 15.0


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
    if pod_layout.replicas(cluster) == 2:
        return Verdict.refused(
            "NoMajority",
            "spec.replicas is 2, of which neither has a majority without the other. Set it to 1 "
            "or to 3.",
        )
    if pod_layout.per_pod(cluster) > 1 and spec.get("rack"):
        return Verdict.refused(
            "RackNotSupported",
            "spec.rack is set and spec.brokersPerPod is not 1: the rack of brokers that share a "
            "pod is the pod. Take spec.rack out.",
        )
    if twice := broker_config.set_twice(spec):
        variable, name = twice
        return Verdict.refused(
            "ConfigTwice",
            f"spec.template.pod.env sets {variable} and spec.config sets {name}, which are the "
            "same setting. Take one of them out.",
        )
    for number, listener in enumerate(spec["listeners"]):
        for key in ("tls", "authentication"):
            if listener.get(key) is not None:
                return Verdict.refused(
                    "SecurityNotSupported",
                    f"spec.listeners[{number}].{key} is set; brokers of this version serve "
                    f"plain listeners only. Take it out, or keep the cluster unstarted.",
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
        pull_policy: str = model.PULL_POLICY,
    ) -> None:
        self._pull_policy = pull_policy
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._name, self._image = namespace, name, image
        self._reached, self._answered = reached, False
        self._statuses = Statuses(kube, store)
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        self._membership = Membership(kube, brokers)
        self._strays = False
        self._not_grown: Diagnosis | None = None
        self._pause, self._said, self._told = AGAIN_SECONDS, "", ""
        self._untaken_ms: int | None = None

    def list_names(self) -> list[str]:
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
            leaving = await self._leaving(cluster)
            held = _held(cluster, leaving)
            waits_for = await self._apply_objects(held)
        except KubeError as error:
            if error.terminating:
                return None
            await self._say(cluster, Verdict.blocked("ApplyFailed", f"{error}"))
            raise
        if waits_for:
            await self._say(cluster, no_address(waits_for))
            return self._again(Wait(STEADY_SECONDS, ""), None)
        if not pods.is_observed(self._stateful()):
            return await self._not_taken_up(cluster)
        self._untaken_ms = None
        state = await self._observe(held)
        config = await self._dynamic_config(cluster, state)
        step = await self._next_step(held, state)
        if isinstance(step, roller.Done) and state and not is_ready(cluster):
            state = state if await self._brokers.is_reachable() else None
        verdict = config or self._verdict(cluster, step, state, leaving)
        # Said before it is done: who comes after a death knows that the broker is away by our
        # doing, and tells when it is ready again.
        await self._say(cluster, verdict, state)
        await self._act(cluster, step)
        if state and verdict.ready and (asked := await self._membership.rebalance(cluster, state)):
            await self._statuses.merge(cluster, {"lastRebalance": asked})
        return self._again(step, verdict)

    async def _not_taken_up(self, cluster: Manifest) -> float:
        """Of a template that Kubernetes has not looked at nothing is known: whether it restarts
        anything, least of all. The status stays that of the generation before."""
        now_ms = clock.now_ms()
        if self._untaken_ms is None:
            self._untaken_ms = now_ms
        late = now_ms - self._untaken_ms > 1000 * TAKEN_UP_SECONDS_MAX
        text = f"Kubernetes has not taken up StatefulSet {names.stateful_set(self._name)}"
        if late:
            text += f" for over {TAKEN_UP_SECONDS_MAX:.0f} s; look at kube-controller-manager."
            await self._say(cluster, Verdict.blocked("StatefulSetNotTakenUp", text))
        elif not is_seen(cluster):
            await self._say(cluster, Verdict.waiting("Starting", f"{text} yet."))
        return AGAIN_SECONDS

    def _again(self, step: Any, verdict: Verdict | None) -> float:
        """Seconds until the next look: longer and longer while nothing changes."""
        if verdict and verdict.ready and not verdict.progressing:
            self._pause = AGAIN_SECONDS
            return STEADY_SECONDS
        if verdict and verdict.reason == "Starting" and isinstance(step, roller.Done):
            return REACHED_SECONDS
        self._pause = min(self._pause * 1.3, AGAIN_SECONDS_MAX)
        if verdict and verdict.reason != self._said:
            self._said, self._pause = verdict.reason, AGAIN_SECONDS
        waits = step.seconds if isinstance(step, Wait) and step.serving else 0.0
        return max(waits, self._pause)

    async def _leaving(self, cluster: Manifest) -> ScaleDown:
        """How many pods have to stay for now, if the spec has fewer than there are."""
        wanted, found = pod_layout.replicas(cluster), self._pods()
        running = {broker for p in found for broker in pods.broker_readiness(p)}
        asked = int((self._stateful() or {}).get("spec", {}).get("replicas", 0))
        have = max([wanted, asked, *(pods.ordinal(p) + 1 for p in found)])
        if have == wanted and not self._strays:
            return ScaleDown(wanted)
        nobody = ScaleDown(
            have, Diagnosis("ScalingDown", "No broker ends before brokers answer what is on it.")
        )
        state = await self._observe(_held(cluster, nobody))
        if state is None:
            return nobody
        try:
            return await self._membership.scale_down(cluster, state, running)
        except ClientError as error:
            return ScaleDown(
                have, Diagnosis("ScalingDown", f"Replicas could not be moved: {error}.")
            )

    async def _apply_objects(self, cluster: Manifest) -> list[str]:
        """Bring all objects to what is wanted, unless some Services, which are named, have no
        address yet that brokers have to know."""
        for want in model.service_manifests(cluster):
            await self._apply(cluster, want)
        services = {
            meta["name"]: s for s in self._ours(cluster, "Service") if (meta := s["metadata"])
        }
        waits_for = listeners.pending(cluster, services)
        if waits_for:
            return waits_for
        wanted = model.manifests(cluster, self._image, services, self._pull_policy)
        for want in wanted:
            await self._apply(cluster, want)
        names_wanted = {(w["kind"], w["metadata"]["name"]) for w in wanted}
        for kind in ("Service", "NetworkPolicy"):
            for have in self._ours(cluster, kind):
                if (kind, have["metadata"]["name"]) not in names_wanted:
                    await self._kube.delete(have)
                    self._store.drop(have)
        return []

    async def _apply(self, cluster: Manifest, want: Manifest) -> None:
        meta = want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        digest = broker_config.digest(repr(want))
        key = (want["kind"], meta["name"])
        version = have["metadata"]["resourceVersion"] if have else ""
        if have and (not missing(want, have) or self._applied.get(key) == (digest, version)):
            return
        if want["kind"] == "StatefulSet" and have:
            await self._grow_claims(cluster)
            # Claim templates cannot change: the volumes themselves are grown instead.
            kept = {"volumeClaimTemplates": have["spec"]["volumeClaimTemplates"]}
            want = {**want, "spec": {**want["spec"], **kept}}
        made = await self._kube.apply(want)
        self._applied[key] = (digest, made["metadata"]["resourceVersion"])
        self._store.put(made)

    def _ours(self, cluster: Manifest, kind: str) -> list[Manifest]:
        """Objects of a kind that this cluster owns and that stay."""
        uid = cluster["metadata"]["uid"]
        return [
            o
            for o in self._store.all(kind)
            if o["metadata"]["namespace"] == self._namespace
            and any(r["uid"] == uid for r in o["metadata"].get("ownerReferences", []))
            and not o["metadata"].get("deletionTimestamp")
        ]

    def _claims(self, cluster: Manifest) -> list[Manifest]:
        wanted = [
            names.claim(self._name, pod_layout.pod_of(b), pod_layout.volume(pod_layout.slot_of(b)))
            for b in pod_layout.brokers(cluster)
        ]
        found = [self._store.get("PersistentVolumeClaim", self._namespace, n) for n in wanted]
        return [{**c, "apiVersion": "v1", "kind": "PersistentVolumeClaim"} for c in found if c]

    async def _grow_claims(self, cluster: Manifest) -> None:
        size = cluster["spec"]["storage"]["size"]
        self._not_grown = None
        for claim in self._claims(cluster):
            name = claim["metadata"]["name"]
            if size_bytes(claim["spec"]["resources"]["requests"]["storage"]) >= size_bytes(size):
                continue
            try:
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                await self._kube.merge(claim, patch)
            except KubeError as error:
                if error.status not in (403, 422):
                    raise
                self._not_grown = Diagnosis("VolumeNotGrown", f"{name} stays as it is: {error}.")
                continue
            await self._kube.event(
                cluster, "VolumeGrows", f"{name} to {size}.", once=f"{name} {size}"
            )

    async def _observe(self, cluster: Manifest) -> ClusterState | None:
        ids = pod_layout.brokers(cluster)
        await self._brokers.set_addresses(
            model.bootstrap_servers(cluster), {b: model.http_url(cluster, b, "") for b in ids}
        )
        try:
            state = await self._brokers.cluster_state(
                ids, outside=bool(listeners.external(cluster))
            )
        except ClientError:
            self._answered = False
            return None
        self._strays = not state.registered <= set(ids)
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
        # Told before it is done: a death in between must not lose it, and the name tells it once.
        told = broker_config.digest(f"{cluster['metadata'].get('generation')} {sorted(changes)}")
        if told != self._told:
            text = f"{', '.join(sorted(changes))}, without a restart."
            await self._kube.event(cluster, "ConfigChanged", text, once=told)
            self._told = told
        try:
            await self._brokers.alter_broker_config(changes)
        except KafkaError as error:
            return Verdict.refused("ConfigRefused", f"spec.config: {error}")
        return None

    def _stateful(self) -> Manifest | None:
        return self._store.get("StatefulSet", self._namespace, names.stateful_set(self._name))

    def _pods(self) -> list[Manifest]:
        want = names.selector(self._name)
        return [
            p
            for p in self._store.all("Pod")
            if p["metadata"]["namespace"] == self._namespace
            and not missing(want, p["metadata"].get("labels", {}))
        ]

    async def _next_step(self, cluster: Manifest, state: ClusterState | None) -> Any:
        services = {o["metadata"]["name"]: o for o in self._ours(cluster, "Service")}
        told = state.advertised if state else {}
        seen = pods.broker_pods(cluster, self._pods(), self._stateful(), told, services)
        partitions = None
        if state and any(b.restart_reason and (b.ready or b.others) for b in seen):
            with contextlib.suppress(ClientError):
                partitions = await self._brokers.partitions()
        windows = cluster["spec"].get("maintenanceWindows", [])
        return roller.next_step(
            seen,
            partitions,
            state.controller_id if state else -1,
            quorum=state.quorum if state else None,
            window_open=is_open(windows, datetime.datetime.now(datetime.UTC)),
        )

    async def _act(self, cluster: Manifest, step: Any) -> None:
        if isinstance(step, roller.Proceed):
            pod = names.pod(self._name, step.broker_id)
            running = self._store.get("Pod", self._namespace, pod)
            if running is None or running["metadata"].get("deletionTimestamp"):
                return
            # Told before it is done, and once for each pod: a death in between loses nothing.
            once = running["metadata"]["uid"]
            await self._kube.event(cluster, "BrokerRestart", f"{pod}: {step.reason}.", once=once)
            going = await self._kube.delete(running)
            if going:
                self._store.put(going)

    def _verdict(
        self, cluster: Manifest, step: Any, state: ClusterState | None, leaving: ScaleDown
    ) -> Verdict:
        broken, coming = diagnostics.diagnose_disks(state.disks) if state else (None, None)
        asked = cluster["spec"].get("version", "")
        other = diagnostics.diagnose_versions(state.versions, asked, __version__) if state else None
        verdict = self._verdict_of_roll(cluster, step, state, broken)
        diagnosis = leaving.diagnosis
        if diagnosis and diagnosis.reason == "ScalingDown" and verdict.ready:
            return Verdict(True, *diagnosis, progressing=True)
        stuck, growing = diagnostics.diagnose_expansion(self._claims(cluster))
        if growing and verdict.ready and not verdict.progressing:
            verdict = Verdict(True, *growing, progressing=True)
        return verdict.warned(diagnosis or self._not_grown or stuck or coming or other)

    def _verdict_of_roll(
        self, cluster: Manifest, step: Any, state: ClusterState | None, broken: Diagnosis | None
    ) -> Verdict:
        if isinstance(step, roller.Done):
            if state is None:
                servers = model.bootstrap_servers(cluster)
                text = f"Pods are ready but no broker answers at {servers}."
                if min(map(pods.ready_seconds, self._pods()), default=0.0) < REACHED_SECONDS_MAX:
                    return Verdict.waiting("Starting", text)
                return Verdict.blocked("BrokersUnreachable", text)
            if broken:
                return Verdict.refused(*broken)
            return Verdict.fine("All brokers are ready and run what the spec asks.")
        if isinstance(step, roller.Proceed):
            who = roller.named(step.broker_id, step.others).capitalize()
            text = f"{who} restart{'' if step.others else 's'}: {step.reason}."
            return Verdict(False, "Rolling", text, progressing=True)
        if isinstance(step, roller.Wait) and step.serving:
            return Verdict(True, "RollWaits", f"{step.reason}.", progressing=True)
        found = diagnostics.diagnose_pods(self._pods(), self._claims(cluster)) or broken
        text = f"{step.reason} ({found.message})." if found else f"{step.reason}."
        if isinstance(step, roller.Refuse):
            return Verdict.refused(found.reason if found else "BrokerNotReady", text)
        if found:
            return Verdict.blocked(found.reason, text)
        return self._not_ready(cluster, text)

    def _not_ready(self, cluster: Manifest, text: str) -> Verdict:
        """Of a broker that was ready before: an alarm, unless we ourselves restart it."""
        status = cluster.get("status", {})
        said = next((c["reason"] for c in status.get("conditions", []) if c["type"] == "Ready"), "")
        if said in ("Rolling", "RollWaits", "Restarting"):
            return Verdict.waiting("Restarting", text)
        serving = {
            b for p in self._pods() for b, serves in pods.broker_readiness(p).items() if serves
        }
        lost = {b["id"] for b in status.get("brokers", []) if b["ready"]} - serving
        if lost or said == "BrokerNotReady":
            return Verdict.blocked("BrokerNotReady", text)
        return Verdict.waiting("Starting", text)

    async def _say(
        self, cluster: Manifest, verdict: Verdict, state: ClusterState | None = None
    ) -> None:
        found = self._pods()
        brokers = [(b, serves, p) for p in found for b, serves in pods.broker_readiness(p).items()]
        serving = sum(serves for _, serves, _ in brokers)
        fields: dict[str, Any] = {
            "replicas": len(found),
            "readyReplicas": sum(map(pods.is_ready, found)),
            "brokersReady": f"{serving}/{len(pod_layout.brokers(cluster))}",
            "selector": names.selector_text(names.selector(self._name)),
            "image": model.image(cluster, self._image),
            "bootstrapServers": model.bootstrap_servers(cluster),
            "listeners": self._listeners(cluster, found),
            "brokers": [
                {
                    "id": broker,
                    "pod": p["metadata"]["name"],
                    "ready": serves,
                    "node": p["spec"].get("nodeName", ""),
                    "version": state.versions.get(broker, "") if state else "",
                    "configHash": p["metadata"]["annotations"].get(names.CONFIG_HASH, ""),
                }
                for broker, serves, p in brokers
            ],
        }
        if state:
            fields |= {
                "clusterId": state.cluster_id,
                "controllerId": state.controller_id,
                "quorumVoters": sorted(state.quorum.voters),
                "appliedConfig": sorted(broker_config.dynamic(cluster["spec"].get("config", {}))),
            }
            if state.versions:
                fields["version"] = ", ".join(sorted(set(state.versions.values())))
        if verdict.ready and not is_ready(cluster):
            said = cluster.get("status", {}).get("conditions", [])
            await self._kube.event(cluster, "Ready", verdict.message, once=transition_key(said))
        await self._statuses.write(cluster, verdict, fields)

    def _listeners(self, cluster: Manifest, running: list[Manifest]) -> list[Manifest]:
        services = {s["metadata"]["name"]: s for s in self._ours(cluster, "Service")}
        nodes = sorted({ip for p in running if (ip := p.get("status", {}).get("hostIP"))})
        found = []
        for listener in cluster["spec"]["listeners"]:
            kind = listener.get("type", listeners.INTERNAL)
            where = listeners.bootstrap_servers(cluster, listener)
            if kind != listeners.INTERNAL:
                where = listeners.external_bootstrap_servers(cluster, listener, services, nodes)
            found.append({"name": listener["name"], "type": kind, "bootstrapServers": where})
        return found


def _held(cluster: Manifest, leaving: ScaleDown) -> Manifest:
    """The cluster with the brokers that have to stay for now."""
    return {**cluster, "spec": {**cluster["spec"], "replicas": leaving.replicas}}


def no_address(services: Sequence[str]) -> Verdict:
    """What to say while brokers of external listeners cannot know how they are reached."""
    return Verdict.blocked(
        "ListenerWithoutAddress",
        f"Service {services[0]} has no address yet; does this Kubernetes cluster have a load "
        "balancer? Listeners of type NodePort need none.",
    )
