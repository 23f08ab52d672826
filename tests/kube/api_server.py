"""An API server in memory behind the operator's port to it, and crashes of the operator.

It supports objects by path, server-side apply, merge patches, conflicts and finalizers. It acts as
the StatefulSet controller: pods appear at once and ready, a deleted pod is recreated from the
newest template, and pods beyond the number of replicas go. `Crash` is raised after the n-th change,
wherever that was made; from then on no call of the dead operator has an effect.
"""

from __future__ import annotations

import copy
import datetime
import functools
import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Any

import yaml
from kube.structural import CRDS, LOADER
from shoal_operator.kube.kube import PLURALS, KubeClient, KubeError, watch_nothing
from shoal_operator.kube.store import Store
from shoal_operator.model import names

Manifest = dict[str, Any]
#: What the API server takes for a name of most kinds.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
NAME_LENGTH_MAX = 253
KINDS = {plural: kind for kind, plural in PLURALS.items()}
STAMP = "2026-01-01T00:00:00Z"


def _statuses() -> dict[str, Manifest]:
    """Return the default status of each custom kind, from the definitions."""
    crds = (yaml.load(f.read_text(), Loader=LOADER) for f in sorted(CRDS.glob("*.yaml")))
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
            "properties"
        ]["status"]["default"]
        for crd in crds
    }


#: The status of a new resource, by kind.
STATUSES = _statuses()


class Crash(BaseException):
    """The operator's process ends here."""


class CrashPoint:
    """Counts changes and raises `Crash` after the last one."""

    def __init__(self) -> None:
        self.changes = 0
        self.last: int | None = None

    def check(self) -> None:
        """Refuse all calls of a dead operator."""
        if self.last is not None and self.changes >= self.last:
            raise Crash

    def count(self) -> None:
        """Count a change; the operator may die before it gets the response."""
        self.changes += 1
        self.check()


class ApiServer(KubeClient):
    """`KubeClient` over objects in memory instead of HTTP."""

    def __init__(self, crash_point: CrashPoint) -> None:
        self.crash_point = crash_point
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.deleted: list[str] = []
        self.controllers_paused = False
        #: Pods that are not ready when they appear.
        self.unready: set[str] = set()
        #: The node that each pod is scheduled to, by the pod's name.
        self.scheduled: dict[str, str] = {}
        self.numbers = itertools.count(1)
        #: The last applied manifest of each object, by kind and name.
        self.applied: dict[tuple[str, str], Manifest] = {}
        #: The kinds of definitions of others that are installed, by API version.
        self.installed: dict[str, list[str]] = {}
        #: Kinds whose definitions have been removed.
        self.absent: set[str] = set()
        #: Objects that admission denies, by kind and name, with the message.
        self.denied: dict[tuple[str, str], str] = {}
        #: Fields of a spec that this version of Kubernetes does not have, and drops.
        self.dropped: set[str] = set()
        #: Objects of which the API server refuses each change, by kind and name. The kind of their
        #: statuses ends in `/status`.
        self.refused: dict[tuple[str, str], KubeError] = {}

    async def close(self) -> None:
        pass

    def store(self) -> Store:
        """Return what a new operator's watches contain."""
        store = Store()
        for found in self.objects.values():
            store.put(copy.deepcopy(found))
        return store

    def add(self, manifest: Manifest) -> None:
        """Apply as `kubectl apply` does, with a new generation if the spec changes."""
        name = manifest["metadata"]["name"]
        self._write(manifest["kind"], name, copy.deepcopy(manifest), replace_spec=True)

    def find(self, kind: str, name: str) -> Any:
        return self.objects[kind, name]

    def all(self, kind: str) -> list[Manifest]:
        return [o for (k, _), o in sorted(self.objects.items()) if k == kind]

    async def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        # Field managers have no effect here, and the uid as a precondition has none.
        self.crash_point.check()
        if path.startswith("/apis/") and path.count("/") == 3:
            return self._discover(path.removeprefix("/apis/"))
        kind, *more = _parts(path)
        self._check(kind, more[0] if more else "")
        self._refuse(verb, kind, more, body)
        if verb == "list":
            return self._list(kind, params or {})
        if more[-1:] == ["scale"]:
            return self._scale(verb, kind, more[0], body)
        name = more[0] if more else body["metadata"].get("name", f"made-{next(self.numbers)}")
        have = self.objects.get((kind, name))
        if verb == "create":
            if have:
                raise KubeError(409, f"{name} exists")
            body["metadata"]["name"] = name
            made = self._write(kind, name, body)
        elif have is None and "apply-patch" not in content_type:
            raise KubeError(404, f"{name} not found")
        elif verb == "get":
            return copy.deepcopy(self.objects[kind, name])
        elif have and verb in ("replace", "patch") and self._is_stale(verb, have, body):
            raise KubeError(409, f"{name} has changed")
        elif verb == "delete":
            made = self._delete(kind, name)
        else:
            made = self._patch(kind, name, body, content_type, of_status=more[-1] == "status")
        self.crash_point.count()
        return copy.deepcopy(made)

    #: Tests pass changes on themselves.
    watch = staticmethod(watch_nothing)

    @staticmethod
    def _is_stale(verb: str, have: Manifest, body: Manifest) -> bool:
        """Whether a change was made to another version. A patch may leave the version out."""
        version = _version(body) if verb == "replace" or "metadata" in body else ""
        return (verb == "replace" or bool(version)) and version != _version(have)

    def _check(self, kind: str, name: str) -> None:
        if kind in self.absent:
            raise KubeError(404, "the server could not find the requested resource")
        if message := self.denied.get((kind, name)):
            raise KubeError(403, message)

    def _refuse(self, verb: str, kind: str, more: list[str], body: Any) -> None:
        """Refuse a change of an object itself, or of its status."""
        if verb in ("get", "list"):
            return
        name = more[0] if more else body["metadata"].get("name", "")
        part = "/status" if more[-1:] == ["status"] else ""
        if error := self.refused.get((kind + part, name)):
            raise error
        if verb == "create" and name and not (len(name) <= NAME_LENGTH_MAX and _NAME.match(name)):
            raise KubeError(422, f"metadata.name: Invalid value: {name}")

    def _discover(self, api_version: str) -> Manifest:
        if api_version not in self.installed:
            raise KubeError(404, "the server could not find the requested resource")
        return {"resources": [{"kind": kind} for kind in self.installed[api_version]]}

    def _list(self, kind: str, params: Mapping[str, str]) -> Manifest:
        """A page of the objects that both selectors name."""
        labels, fields = (
            [term.partition("=")[::2] for term in params.get(key, "").split(",") if term]
            for key in ("labelSelector", "fieldSelector")
        )
        found = [
            one
            for one in self.all(kind)
            if all(one["metadata"].get("labels", {}).get(k) == v for k, v in labels)
            and all(_get_field(one, path) == value for path, value in fields)
        ]
        begin, size = int(params.get("continue", 0)), int(params.get("limit", len(found)))
        meta = {"resourceVersion": "1"}
        if begin + size < len(found):
            meta["continue"] = str(begin + size)
        return {"items": copy.deepcopy(found[begin : begin + size]), "metadata": meta}

    def _scale(self, verb: str, kind: str, name: str, body: Any) -> Manifest:
        """The subresource `scale` of a Deployment or a StatefulSet."""
        if (kind, name) not in self.objects:
            raise KubeError(404, f"{name} not found")
        if verb == "patch":
            replicas = {"spec": {"replicas": body["spec"]["replicas"]}}
            self._write(kind, name, {"metadata": {}, **replicas}, merge=True)
            self.crash_point.count()
        have = self.objects[kind, name]
        selector = names.format_selector(have["spec"]["selector"]["matchLabels"])
        return {"spec": {"replicas": have["spec"]["replicas"]}, "status": {"selector": selector}}

    def _patch(
        self, kind: str, name: str, body: Manifest, content_type: str, *, of_status: bool
    ) -> Manifest:
        if "apply-patch" in content_type:
            self._disown(kind, name, body)
        merge = "merge" in content_type
        return self._write(kind, name, body, status=of_status, merge=merge)

    def _disown(self, kind: str, name: str, body: Manifest) -> None:
        """Remove the fields that the previous apply had and this one no longer has."""
        before = self.applied.get((kind, name), {})
        self.applied[kind, name] = copy.deepcopy(body)
        if have := self.objects.get((kind, name)):
            _remove(have, before, body)

    def _write(
        self,
        kind: str,
        name: str,
        body: Manifest,
        *,
        status: bool = False,
        merge: bool = False,
        replace_spec: bool = False,
    ) -> Manifest:
        have = self.objects.get((kind, name))
        made = copy.deepcopy(have) if have else {"apiVersion": body["apiVersion"], "kind": kind}
        if not have and kind in STATUSES:
            made["status"] = copy.deepcopy(STATUSES[kind])
        if replace_spec:
            made.pop("spec", None)
        _merge(made, {"status": body["status"]} if status else body)
        for field in self.dropped & made.get("spec", {}).keys():
            del made["spec"][field]
        meta = made["metadata"]
        meta.setdefault("uid", f"uid-{next(self.numbers)}")
        meta.setdefault("creationTimestamp", STAMP)
        spec_is_new = not have or have.get("spec") != made.get("spec")
        meta["generation"] = meta.get("generation", 0) + spec_is_new
        meta["resourceVersion"] = str(next(self.numbers))
        if merge and meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self.objects.pop((kind, name))
            return made
        self.objects[kind, name] = made
        if kind == "StatefulSet" and not status:
            self._control(made)
        return made

    def _delete(self, kind: str, name: str) -> Manifest:
        self.deleted.append(f"{kind}/{name}")
        if self.objects[kind, name]["metadata"].get("finalizers"):
            stamp = {"metadata": {"deletionTimestamp": STAMP}}
            return self._write(kind, name, stamp, merge=True)
        gone = self.objects.pop((kind, name))
        for stateful in self.all("StatefulSet"):
            self._control(stateful)
        return {**gone, "metadata": {**gone["metadata"], "deletionTimestamp": STAMP}}

    def resume_controllers(self) -> None:
        """Let the controllers handle the changes made while they were stopped."""
        self.controllers_paused = False
        for stateful in self.all("StatefulSet"):
            self._control(stateful)

    def _control(self, stateful: Manifest) -> None:
        """Create the pods of a StatefulSet, and update its status."""
        if self.controllers_paused:
            return
        template, meta = stateful["spec"]["template"], stateful["metadata"]
        revision = hashlib.sha256(repr(template).encode()).hexdigest()[:10]
        stateful["status"] = {"updateRevision": revision, "observedGeneration": meta["generation"]}
        start = stateful["spec"].get("ordinals", {}).get("start", 0)
        numbers = range(start, start + stateful["spec"]["replicas"])
        for kind, name in [*self.objects]:
            owner, _, end = name.rpartition("-")
            if kind == "Pod" and owner == meta["name"] and int(end) not in numbers:
                del self.objects[kind, name]
        for number in numbers:
            name = f"{meta['name']}-{number}"
            if ("Pod", name) in self.objects:
                continue
            labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
            notes = template["metadata"]["annotations"]
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": STAMP}
            containers = template["spec"]["containers"]
            serving = [{"name": c["name"], "ready": True, "state": {}} for c in containers]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": labels,
                    "annotations": notes,
                },
                "spec": template["spec"]
                | ({"nodeName": self.scheduled[name]} if name in self.scheduled else {}),
                "status": {
                    "conditions": [ready],
                    "hostIP": "127.0.0.1",
                    "containerStatuses": serving,
                },
            }
            self._write("Pod", name, pod)
            if name in self.unready:
                self.probe(name, succeeds=False)

    def probe(self, pod: str, *, succeeds: bool) -> None:
        """Set the result of a pod's probe, as the kubelet reports it from now on."""
        now = datetime.datetime.now(datetime.UTC).isoformat()
        status = {"type": "Ready", "status": str(succeeds), "lastTransitionTime": now}
        found = self.find("Pod", pod)["status"]
        found["conditions"] = [status]
        for container in found.get("containerStatuses", []):
            container["ready"] = succeeds


def _parts(path: str) -> list[str]:
    """Return the kind in a path, and what follows."""
    _, _, rest = path.partition("/namespaces/")
    # Nodes and definitions have no namespace, and lists may be of all.
    _, plural, *more = rest.split("/") if rest else path.split("/")[2 + path.startswith("/apis/") :]
    return [KINDS[plural], *more]


def _get_field(manifest: Manifest, path: str) -> Any:
    """Return the value of a field selector such as `involvedObject.name`."""
    return functools.reduce(lambda value, key: value.get(key, {}), path.split("."), manifest)


def _version(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("resourceVersion", ""))


def _merge(into: Manifest, patch: Mapping[str, Any]) -> None:
    """Merge as RFC 7386; together with `_remove`, it is server-side apply by one manager."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, Mapping):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def _remove(have: Manifest, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Remove the keys of `before` that `now` lacks."""
    for key, value in before.items():
        if key not in now:
            have.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(have.get(key), dict):
            _remove(have[key], value, now[key])


def resource(kind: str, name: str, **spec: Any) -> Any:
    """Return a resource, which passes for the type of its kind although it may lack fields."""
    meta = {"name": name, "namespace": "n"}
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def configured(group: Manifest, generation: int = 1) -> Manifest:
    """Return a ShareGroup whose configs the brokers have accepted, up to this generation."""
    return {**group, "status": {"configuredGeneration": generation}}
