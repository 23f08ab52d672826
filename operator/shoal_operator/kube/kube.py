"""Requests to the API server: server-side apply, status patches, events.

Objects are plain manifests. `metrics.API_CALLS` counts requests by verb. Every error is a
`KubeError` with the HTTP status and the server's message.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime
import hashlib
from typing import TYPE_CHECKING, Any

from shoal_operator import metrics
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from shoal_operator.model.names import Manifest

#: Plurals of the kinds that the operator uses.
PLURALS = {
    "Node": "nodes",
    "Pod": "pods",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "ResourceQuota": "resourcequotas",
    "LimitRange": "limitranges",
    "Event": "events",
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "Job": "jobs",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "NetworkPolicy": "networkpolicies",
    "Ingress": "ingresses",
    "TLSRoute": "tlsroutes",
    "RoleBinding": "rolebindings",
    "Lease": "leases",
    "SparkApplication": "sparkapplications",
    "Workload": "workloads",
    "Certificate": "certificates",
    "Issuer": "issuers",
    "ClusterIssuer": "clusterissuers",
    "CustomResourceDefinition": "customresourcedefinitions",
    "QueueCluster": "queueclusters",
    "QueueTopic": "queuetopics",
    "QueueUser": "queueusers",
    "ShareGroup": "sharegroups",
    "ShareConsumer": "shareconsumers",
    "Redrive": "redrives",
    "QueueRebalance": "queuerebalances",
    "QueueSchedule": "queueschedules",
}
PAGE_OBJECTS = 500
#: Objects whose events are read for one diagnosis.
INVOLVED_MAX = 10
#: Labels with the name of the resource for which an object was created, and its kind. The first one
#: counts: objects of consumers and users also have the label of their cluster, which may change.
_OWNERS = {
    names.CONSUMER_LABEL: "ShareConsumer",
    names.USER_LABEL: "QueueUser",
    names.CLUSTER_LABEL: "QueueCluster",
}
_NAME_LENGTH_MAX = 253
_MANAGER = {"fieldManager": names.FIELD_MANAGER}
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class KubeError(Exception):
    """The API server refused (`status` is the HTTP status) or did not answer (`status` 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def terminating(self) -> bool:
        """Whether the namespace is being deleted, so that nothing can be created in it."""
        return self.status == 403 and "being terminated" in str(self)


class NotOwned(KubeError):
    """An object of this name exists that the operator did not create; it has not been changed."""

    def __init__(self, want: Manifest) -> None:
        labels = want["metadata"].get("labels", {})
        object_kind, name = want["kind"], want["metadata"]["name"]
        owner = next(f"{kind} {labels[key]!r}" for key, kind in _OWNERS.items() if key in labels)
        super().__init__(
            409,
            f"{object_kind} {name!r} exists, and was not created for {owner}. It stays as it is. "
            f"Delete the {object_kind}, or choose another name for the resource.",
        )


def is_own(want: Manifest, have: Manifest) -> bool:
    """Return whether `have` was created for the same resource as `want`: as its labels say or, if
    somebody has removed them, its owner."""
    labels, actual = want["metadata"].get("labels", {}), have["metadata"].get("labels", {})
    key = next((key for key in _OWNERS if key in labels), "")
    if not key or all(actual.get(label) == labels[label] for label in (names.MANAGED_BY, key)):
        return True
    owners = {owner["uid"] for owner in have["metadata"].get("ownerReferences", [])}
    return any(owner["uid"] in owners for owner in want["metadata"].get("ownerReferences", []))


def build_event(
    involved: Mapping[str, Any], reason: str, message: str, component: str, *, warning: bool
) -> Manifest:
    """Return an event on an object that happened now, once; it has no name yet."""
    meta, stamp = involved["metadata"], format_now()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": involved["apiVersion"],
            "kind": involved["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta.get("uid", ""),
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message[:1024],
        "source": {"component": component},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def name_event(involved: Mapping[str, Any], reason: str, subject: str) -> str:
    """Return the name of the one event on an object with this reason and subject."""
    meta = involved["metadata"]
    digest = hashlib.sha256(f"{meta.get('uid')} {reason} {subject}".encode()).hexdigest()[:16]
    begin = meta["name"][: _NAME_LENGTH_MAX - len(digest) - 1].rstrip("-.")
    return f"{begin}.{digest}"


def format_now() -> str:
    """Return the time as RFC 3339 in UTC, in whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def build_path(api_version: str, kind: str, namespace: str | None, name: str = "") -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    namespace_path = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{namespace_path}/{PLURALS[kind]}" + (f"/{name}" if name else "")


def _build_object_path(manifest: Mapping[str, Any]) -> str:
    meta = manifest["metadata"]
    return build_path(manifest["apiVersion"], manifest["kind"], meta.get("namespace"), meta["name"])


def build_selector_params(labels: Mapping[str, str] | str) -> dict[str, str]:
    text = labels if isinstance(labels, str) else names.format_selector(labels)
    return {"labelSelector": text} if text else {}


def make_unreadable_error(text: str) -> KubeError:
    return KubeError(0, f"the API server's answer cannot be read: {text[:200]}")


@contextlib.asynccontextmanager
async def watch_nothing(*_: Any, **__: Any) -> AsyncIterator[AsyncIterator[tuple[str, Manifest]]]:
    """Open a watch that yields nothing and never ends, as `KubeClient.watch`: for clients that pass
    changes on in another way."""

    async def wait() -> AsyncIterator[tuple[str, Manifest]]:
        await asyncio.Event().wait()
        yield "", {}

    yield wait()


class KubeClient(abc.ABC):
    """Requests as one field manager. `HttpKubeClient` sends them to an API server; `shoal up` keeps
    objects in a folder, and loads no library of Kubernetes."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    @abc.abstractmethod
    async def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Make one request: `get`, `list`, `create`, `replace`, `patch` or `delete`. Raises
        `KubeError`."""

    @abc.abstractmethod
    def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str],
        version: str,
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, Manifest]]]:
        """Open a watch, which yields (ADDED, MODIFIED or DELETED, object) since `version` until the
        API server ends it.

        Raises `KubeError`, with status 410 if `version` is too old.
        """

    async def find_missing_kinds(self, kinds: Iterable[str]) -> list[str]:
        """Return those of the project's kinds that the API server does not serve."""
        try:
            resource_list = await self._call("get", f"/apis/{names.API_VERSION}")
        except KubeError as error:
            if error.status != 404:
                raise
            resource_list = {}
        served = {r["kind"] for r in resource_list.get("resources", []) if "watch" in r["verbs"]}
        return [kind for kind in kinds if kind not in served]

    async def has_group(self, group: str) -> bool:
        """Return whether the API server has an API group."""
        try:
            await self._call("get", f"/apis/{group}")
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def has_kind(self, api_version: str, kind: str) -> bool:
        """Return whether the API server has a kind in this version of its group."""
        try:
            resource_list = await self._call("get", f"/apis/{api_version}")
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return any(resource["kind"] == kind for resource in resource_list.get("resources", []))

    async def get(self, api_version: str, kind: str, name: str, namespace: str) -> Manifest | None:
        """Return the object, None if it does not exist; `namespace` is empty for nodes."""
        try:
            return await self._call("get", build_path(api_version, kind, namespace, name))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def get_scale(
        self, api_version: str, kind: str, name: str, namespace: str
    ) -> Manifest | None:
        """Return the subresource `get_scale` of a workload, None if the workload does not exist."""
        try:
            return await self._call(
                "get", build_path(api_version, kind, namespace, name) + "/scale"
            )
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def set_scale(
        self, api_version: str, kind: str, name: str, namespace: str, replicas: int
    ) -> None:
        """Set the number of replicas of a workload through its subresource `get_scale`."""
        path = build_path(api_version, kind, namespace, name) + "/scale"
        await self._call("patch", path, {"spec": {"replicas": replicas}}, _MERGE, _MANAGER)

    async def list_warnings(self, namespace: str, involved: Iterable[str]) -> list[Manifest]:
        """Return the warning events about objects of these names, the first `INVOLVED_MAX` of them;
        none if it is not allowed. Each is asked for by name, since a namespace may have many."""
        path = build_path("v1", "Event", namespace)
        events: list[Manifest] = []
        for name in list(dict.fromkeys(involved))[:INVOLVED_MAX]:
            selector = f"type=Warning,involvedObject.name={name}"
            params = {"limit": str(PAGE_OBJECTS), "fieldSelector": selector}
            try:
                page = await self._call("list", path, params=params)
            except KubeError as error:
                if error.status != 403:
                    raise
                return []
            # `shoal up` has no selectors of fields.
            events += [
                event
                for event in page["items"]
                if event.get("type") == "Warning" and event["involvedObject"]["name"] == name
            ]
        return events

    async def list_snapshot(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str] | str,
    ) -> tuple[list[Manifest], str]:
        """Return the objects with these labels, and the resource version from which to watch.

        `namespace` None means all namespaces. `labels` may be a label selector, too.
        """
        params = {"limit": str(PAGE_OBJECTS), **build_selector_params(labels)}
        objects: list[Manifest] = []
        while True:
            page = await self._call("list", build_path(api_version, kind, namespace), params=params)
            try:
                items, meta = page["items"], page["metadata"]
                # Items of a list lack these two fields.
                objects += [{**item, "apiVersion": api_version, "kind": kind} for item in items]
                more, version = meta.get("continue"), meta["resourceVersion"]
            except (AttributeError, KeyError, TypeError):
                raise make_unreadable_error(f"{page}") from None
            if not more:
                return objects, version
            params["continue"] = more

    async def apply(self, manifest: Manifest, *, adopt: bool = False) -> Manifest:
        """Server-side apply with force: owns the fields in `manifest` and keeps all others.

        Raises `NotOwned` for the object of somebody else, unless `adopt`.
        """
        if not adopt:
            have = await self._get_existing(manifest)
            if have is not None and not is_own(manifest, have):
                raise NotOwned(manifest)
        return await self._call(
            "patch",
            _build_object_path(manifest),
            manifest,
            _APPLY,
            {**_MANAGER, "force": "true"},
        )

    async def _get_existing(self, manifest: Manifest) -> Manifest | None:
        meta = manifest["metadata"]
        return await self.get(
            manifest["apiVersion"], manifest["kind"], meta["name"], meta.get("namespace", "")
        )

    async def delete(self, manifest: Mapping[str, Any], *, orphan: bool = False) -> Manifest | None:
        """Delete the object with this uid, and then what it owns unless `orphan`; return None if it
        does not exist."""
        options = {
            "preconditions": {"uid": manifest["metadata"]["uid"]},
            # The API server would leave the pods of a Job.
            "propagationPolicy": "Orphan" if orphan else "Background",
        }
        try:
            return await self._call("delete", _build_object_path(manifest), options)
        except KubeError as error:
            # 409: another object has the name now.
            if error.status in (404, 409):
                return None
            raise

    async def merge(
        self, resource: Mapping[str, Any], patch: Manifest, *, status: bool = False
    ) -> Manifest | None:
        """JSON merge patch of the object or its status; return None if it does not exist."""
        path = _build_object_path(resource) + ("/status" if status else "")
        try:
            return await self._call("patch", path, patch, _MERGE, _MANAGER)
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    async def resize(self, pod: Mapping[str, Any], patch: Manifest) -> Manifest:
        """Change the CPU and memory of a running pod by a merge patch of its spec; status 404 where
        the API server cannot."""
        return await self._call("patch", _build_object_path(pod) + "/resize", patch, _MERGE)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace the object; with a `resourceVersion`, status 409 if that is stale."""
        return await self._call("replace", _build_object_path(manifest), manifest, params=_MANAGER)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the object; status 409 if it exists."""
        path = build_path(
            manifest["apiVersion"], manifest["kind"], manifest["metadata"]["namespace"]
        )
        return await self._call("create", path, manifest, params=_MANAGER)

    async def record_event(
        self,
        involved: Mapping[str, Any],
        reason: str,
        message: str,
        *,
        warning: bool = False,
        once: str | None = None,
    ) -> None:
        """Record an event on an object; most failures are only counted.

        An event with the same object, reason and `once` is recorded once, also by several
        processes.
        """
        event = build_event(involved, reason, message, names.FIELD_MANAGER, warning=warning)
        if once is None:
            event["metadata"]["generateName"] = f"{involved['metadata']['name']}."
        else:
            event["metadata"]["name"] = name_event(involved, reason, once)
        try:
            await self.create(event)
        except KubeError as error:
            if error.status == 409:
                return
            metrics.ERRORS.labels("event").inc()
            if error.status not in (403, 404):
                raise
