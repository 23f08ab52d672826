"""What Kubernetes does beside storing objects, on one machine: it runs workloads.

The controllers of StatefulSets, Deployments, Jobs (`jobs`) and SparkApplications (`spark`) create
and delete pods, and a `PodRunner` runs each pod as processes. The operator decides everything else,
since it only reads and writes objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shutil
from typing import TYPE_CHECKING, Any

import structlog

from shoal_operator.local.addresses import Addresses
from shoal_operator.local.containers import ContainerFiles, NotRunnable
from shoal_operator.local.jobs import JobController
from shoal_operator.local.pod_runner import PodRunner
from shoal_operator.local.pods import Pods, build_owner, is_broker, is_ready
from shoal_operator.local.processes import ProcessTable
from shoal_operator.local.spark import SparkController, is_executor
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shoal_operator.local.api import Key, LocalApi
    from shoal_operator.local.state_folder import StateFolder
    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: Seconds until objects that could not be written are tried again.
RETRY_SECONDS = 1.0
REVISION = "controller-revision-hash"
POD_NAME, POD_INDEX = "statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"
#: The label of a Deployment's pods with the digest of their template.
TEMPLATE_HASH = "pod-template-hash"
#: Kubernetes removes pods with lower costs first.
COST = "controller.kubernetes.io/pod-deletion-cost"
#: The logs of this many pods of a Deployment stay after the pods have gone.
LOGS_MAX = 20
_CHANGES = frozenset(
    {
        "StatefulSet",
        "Deployment",
        "Job",
        "SparkApplication",
        "ShareConsumer",
        "Pod",
        "Secret",
        "ConfigMap",
        "PersistentVolumeClaim",
    }
)


class Machine:
    """Runs the workloads of an API. `folder` has the manifests, where relative paths begin;
    `runs_images` lets consumers with an image of their own be containers of Docker."""

    def __init__(
        self, api: LocalApi, state: StateFolder, folder: Path, *, runs_images: bool = False
    ) -> None:
        self._api, self._state, self._folder = api, state, folder
        self._runs_images = runs_images
        self.addresses = Addresses(state.ports, self.list_service_pods)
        self.table = ProcessTable(state.processes)
        self._runners: dict[Key, PodRunner] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: Volume claims that were deleted, by namespace and name, until their folders are.
        self._deleted_claims: set[tuple[str, str]] = set()
        self._changed, self._stopped = asyncio.Event(), False
        self._pods = Pods(api)
        self._jobs = JobController(api, self._pods, self._wake_after)
        self._spark = SparkController(api, self._pods)
        api.subscribe(self._on_change)
        self._task = asyncio.create_task(self._run(), name="machine")

    def _on_change(self, manifest: Manifest, deleted: bool) -> None:
        if deleted and manifest["kind"] == "PersistentVolumeClaim":
            meta = manifest["metadata"]
            self._deleted_claims.add((meta["namespace"], meta["name"]))
        if manifest["kind"] in _CHANGES:
            self._changed.set()

    def _wake_after(self, seconds: float) -> None:
        """Look again after this time."""
        asyncio.get_running_loop().call_later(seconds, self._changed.set)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                self._sync()
            except OSError as error:
                # A full disk, for example. Processes go on.
                log.error("cannot bring pods to their objects", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._changed.wait()

    async def stop(self) -> None:
        """Stop all pods: those of consumers first, so that their records go back while brokers
        serve."""
        self._stopped = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for of_brokers in (False, True):
            runners = [r for r in self._runners.values() if is_broker(r.pod) is of_brokers]
            await asyncio.gather(*(r.begin_stop() for r in runners), return_exceptions=True)
        await asyncio.gather(*self._ending, return_exceptions=True)
        for pod in list(self._api.iterate("Pod")):
            self._remove_pod(pod)

    def clear(self) -> None:
        """Remove the pods of an earlier run, whose processes have ended."""
        for pod in list(self._api.iterate("Pod")):
            self._remove_pod(pod)

    def _remove_pod(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        self._api.remove(("Pod", meta["namespace"], meta["name"]), pod)
        shutil.rmtree(self._state.pods / meta["namespace"] / meta["name"], ignore_errors=True)

    # -- controllers

    def _sync(self) -> None:
        """Bring pods and processes to what the objects say."""
        self._api.save_again()
        if self._api.unsaved:
            self._wake_after(RETRY_SECONDS)
        for stateful in list(self._api.iterate("StatefulSet")):
            self._sync_stateful_set(stateful)
        for deployment in list(self._api.iterate("Deployment")):
            self._sync_deployment(deployment)
        for job in list(self._api.iterate("Job")):
            self._jobs.sync(job)
        for application in list(self._api.iterate("SparkApplication")):
            spec = {k: v for k, v in application["spec"].items() if k != "suspend"}
            self._spark.sync(application, compute_digest(spec))
        for claim in list(self._api.iterate("PersistentVolumeClaim")):
            self._sync_claim(claim)
        for pod in list(self._api.iterate("Pod")):
            self._sync_pod(pod)
        self._remove_volumes()

    def list_service_pods(self, namespace: str, service: str) -> list[str]:
        """Return the names of the pods that a Service selects, those that are ready first."""
        resource = self._api.find("Service", namespace, service)
        selector = (resource or {}).get("spec", {}).get("selector", {})
        pods = [
            pod
            for pod in self._api.iterate("Pod")
            if selector
            and pod["metadata"]["namespace"] == namespace
            and selector.items() <= pod["metadata"].get("labels", {}).items()
        ]
        pods.sort(key=lambda pod: (not is_ready(pod), pod["metadata"]["name"]))
        return [pod["metadata"]["name"] for pod in pods]

    def _sync_claim(self, claim: Manifest) -> None:
        """A volume is a folder, which has any size."""
        meta, size = claim["metadata"], claim["spec"]["resources"]["requests"]
        status = {"phase": "Bound", "capacity": {"storage": size["storage"]}}
        key = ("PersistentVolumeClaim", meta["namespace"], meta["name"])
        self._api.write(key, {**claim, "status": status})

    def _remove_volumes(self) -> None:
        """Remove the folders of deleted claims once no pod has them: `deletionPolicy: Delete`."""
        mounted = {
            (pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"])
            for pod in self._api.iterate("Pod")
            for volume in pod["spec"].get("volumes", [])
            if "persistentVolumeClaim" in volume
        }
        for namespace, claim in sorted(self._deleted_claims - mounted):
            self._deleted_claims.discard((namespace, claim))
            if self._api.find("PersistentVolumeClaim", namespace, claim) is None:
                shutil.rmtree(self._state.volumes / namespace / claim, ignore_errors=True)

    def _sync_stateful_set(self, stateful: Manifest) -> None:
        meta, spec = stateful["metadata"], stateful["spec"]
        namespace, revision = meta["namespace"], compute_digest(spec["template"])
        start = spec.get("ordinals", {}).get("start", 0)
        indexes = {f"{meta['name']}-{n}": n for n in range(start, start + spec["replicas"])}
        pods = {pod["metadata"]["name"]: pod for pod in self._pods.list_owned(stateful)}
        for name in pods.keys() - indexes.keys():
            self._pods.delete(pods[name])
        for name in indexes.keys() - pods.keys():
            index = str(indexes[name])
            labels = {REVISION: revision, POD_NAME: name, POD_INDEX: index}
            template = self._with_claims(stateful, name)
            self._pods.create(stateful, name, template, labels)
        status = {
            "replicas": len(pods),
            "readyReplicas": sum(map(is_ready, pods.values())),
            "updateRevision": revision,
            "observedGeneration": meta["generation"],
        }
        self._api.write(("StatefulSet", namespace, meta["name"]), {**stateful, "status": status})

    def _with_claims(self, stateful: Manifest, pod: str) -> Manifest:
        """Create the volume claims of a pod; return its template with them."""
        meta, spec = stateful["metadata"], stateful["spec"]
        volumes = list(spec["template"]["spec"].get("volumes", []))
        keep = spec.get("persistentVolumeClaimRetentionPolicy", {}).get("whenDeleted")
        for template in spec.get("volumeClaimTemplates", []):
            volume = template["metadata"]["name"]
            claim = names.format_claim(pod, volume)
            volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": claim}})
            key = ("PersistentVolumeClaim", meta["namespace"], claim)
            if self._api.find(*key) is None:
                owners = {"ownerReferences": [build_owner(stateful)]} if keep == "Delete" else {}
                body = {"metadata": {**template["metadata"], **owners}, "spec": template["spec"]}
                self._api.write(key, {"apiVersion": "v1", **body})
        template = spec["template"]
        return {**template, "spec": {**template["spec"], "volumes": volumes}}

    def _sync_deployment(self, deployment: Manifest) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        digest = compute_digest(spec["template"])
        pods = [
            p
            for p in self._pods.list_owned(deployment)
            if not p["metadata"].get("deletionTimestamp")
        ]
        newest = [p for p in pods if p["metadata"]["labels"].get(TEMPLATE_HASH) == digest]
        former = [p for p in pods if p not in newest]
        for _ in range(spec["replicas"] - len(newest)):
            name = f"{meta['name']}-{digest}-{secrets.token_hex(3)[:5]}"
            self._pods.create(deployment, name, spec["template"], {TEMPLATE_HASH: digest})
        for pod in choose_pods_to_remove(newest, len(newest) - spec["replicas"]):
            self._pods.delete(pod)
        # A pod of the former template goes for each new one that is ready.
        missing = spec["replicas"] - sum(map(is_ready, newest))
        for pod in choose_pods_to_remove(former, len(former) - max(0, missing)):
            self._pods.delete(pod)
        status = {
            "observedGeneration": meta["generation"],
            "replicas": len(pods),
            "updatedReplicas": len(newest),
            "readyReplicas": sum(map(is_ready, pods)),
        }
        key = ("Deployment", meta["namespace"], meta["name"])
        self._api.write(key, {**deployment, "status": status})

    # -- pods

    def _sync_pod(self, pod: Manifest) -> None:
        meta = pod["metadata"]
        key = ("Pod", meta["namespace"], meta["name"])
        runner = self._runners.get(key)
        if runner is None:
            if meta.get("deletionTimestamp"):
                self._remove_pod(pod)
            elif not is_executor(pod):
                self._runners[key] = self._make_runner(key, pod)
        elif meta.get("deletionTimestamp"):
            if not runner.is_stopping:
                task = asyncio.create_task(self._end_pod(key, runner))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        else:
            self._refresh(runner)

    def _make_runner(self, key: Key, pod: Manifest) -> PodRunner:
        files = ContainerFiles(
            self._api,
            self._state,
            self.addresses,
            self._folder,
            pod,
            runs_images=self._runs_images,
        )
        return PodRunner(
            pod,
            files,
            self.table,
            self._state.logs,
            lambda status: self._publish(key, status),
            lambda text: self._api.warn(self._pods.find_root(pod), "ContainerEnded", text),
        )

    def _publish(self, key: Key, status: Manifest) -> None:
        have = self._api.find(*key)
        if have is None:
            return
        self._api.write(key, {**have, "status": status})

    def _refresh(self, runner: PodRunner) -> None:
        """Write the files of ConfigMaps and Secrets that have changed."""
        try:
            runner.files.write_volumes()
        except NotRunnable:
            return  # The pod keeps the files that it has.

    async def _end_pod(self, key: Key, runner: PodRunner) -> None:
        await runner.begin_stop()
        self._runners.pop(key, None)
        if (pod := self._api.find(*key)) is not None:
            self._remove_pod(pod)
        self._forget_logs(key)
        self._changed.set()

    def _forget_logs(self, key: Key) -> None:
        """Remove the oldest logs of a consumer's pods that have gone."""
        folder = self._state.logs / key[1]
        living = {name for _, _, name in self._runners}
        prefix = key[2].rpartition("-")[0].rpartition("-")[0]
        gone = [
            path
            for path in folder.glob(f"{prefix}-*")
            if prefix and path.name not in living and path.is_dir()
        ]
        gone.sort(key=lambda path: path.stat().st_mtime)
        for path in gone[:-LOGS_MAX]:
            shutil.rmtree(path, ignore_errors=True)


def compute_digest(template: Mapping[str, Any]) -> str:
    """Return the digest of a pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def choose_pods_to_remove(pods: Sequence[Manifest], number: int) -> list[Manifest]:
    """Return the pods that a ReplicaSet removes first: not ready, of lower cost, newer."""

    def rank(pod: Manifest) -> tuple[bool, int]:
        return is_ready(pod), int(pod["metadata"].get("annotations", {}).get(COST, "0"))

    newest_first = sorted(pods, key=lambda p: p["metadata"]["creationTimestamp"], reverse=True)
    return sorted(newest_first, key=rank)[: max(0, number)]
