"""The operator's port to Kubernetes over a folder: one YAML file for each object.

It takes the requests that the operator makes: objects by path, server-side apply, merge patches,
the subresource `status`, finalizers, deletion of what an object owns, and events. Changes are
reported to listeners, as watches report them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

import structlog
import yaml

from shoal_operator.kube.kube import (
    PLURALS,
    KubeClient,
    KubeError,
    build_event,
    format_now,
    name_event,
    watch_nothing,
)
from shoal_operator.kube.store import get_kind_name
from shoal_operator.local.state_folder import write_text
from shoal_operator.model import names

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_operator.kube.store import R
    from shoal_operator.model.names import Manifest

KINDS = {plural: kind for kind, plural in PLURALS.items()}
#: The newest events that are kept.
EVENTS_MAX = 300
Key = tuple[str, str, str]
#: Called with an object that was written, or deleted (True).
Listener = Callable[["Manifest", bool], None]
log = structlog.get_logger()
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_objects(folder: Path) -> dict[Key, Manifest]:
    """Return the objects in a folder by kind, namespace and name."""
    objects = {}
    for file in sorted(folder.glob("*/*/*.yaml")):
        try:
            text = file.read_text()
        except FileNotFoundError:
            continue  # A running `shoal up` has removed it meanwhile.
        manifest = yaml.load(text, Loader=_LOADER)
        objects[get_key(manifest)] = manifest
    return objects


def get_key(manifest: Mapping[str, Any]) -> Key:
    """Return kind, namespace and name."""
    meta = manifest["metadata"]
    return manifest["kind"], meta.get("namespace", ""), meta["name"]


def dump_yaml(manifest: Mapping[str, Any]) -> str:
    """Return an object as YAML."""
    return yaml.dump(manifest, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=1000)


class LocalApi(KubeClient):
    """`KubeClient` over the objects in a folder instead of HTTP."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.objects = load_objects(folder)
        versions = (int(o["metadata"].get("resourceVersion", 0)) for o in self.objects.values())
        self._versions = itertools.count(max(versions, default=0) + 1)
        self._applied: dict[Key, Manifest] = {}
        #: Objects whose files the disk refused.
        self.unsaved: set[Key] = set()
        self._listeners: list[Listener] = []

    async def close(self) -> None:
        """There is nothing to close."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` soon after each change."""
        self._listeners.append(listener)

    @overload
    def find(self, kind: str, namespace: str, name: str) -> Manifest | None: ...
    @overload
    def find(self, kind: type[R], namespace: str, name: str) -> R | None: ...
    def find(self, kind: str | type[Any], namespace: str, name: str) -> Any:
        """Return an object, None if it does not exist. Do not modify it."""
        return self.objects.get((get_kind_name(kind), namespace, name))

    def iterate(self, kind: str) -> Iterator[Manifest]:
        """Yield the objects of a kind by namespace and name. Do not modify them."""
        return (o for (k, _, _), o in sorted(self.objects.items(), key=_get_order) if k == kind)

    # -- the requests of `KubeClient`

    async def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        kind, namespace, name, subresource = _parse_path(path)
        if verb == "list":
            listed = self._list(kind, namespace, (params or {}).get("labelSelector", ""))
            listed["items"] = [o for o in listed["items"] if _is_of_version(o, path)]
            return listed
        if verb == "create":
            name = body["metadata"].get("name") or (
                body["metadata"]["generateName"] + uuid.uuid4().hex[:10]
            )
            if (kind, namespace, name) in self.objects:
                raise KubeError(409, f'{PLURALS[kind]} "{name}" already exists')
            return copy.deepcopy(self.write((kind, namespace, name), body))
        key = (kind, namespace, name)
        have = self.objects.get(key)
        if verb == "patch" and "apply-patch" in content_type:
            return copy.deepcopy(self._apply(key, body))
        if have is None:
            raise KubeError(404, f'{PLURALS[kind]} "{name}" not found')
        if verb == "get":
            return copy.deepcopy(have)
        if verb == "delete":
            return copy.deepcopy(self._delete(key, body))
        version = body.get("metadata", {}).get("resourceVersion", "")
        if version and version != have["metadata"]["resourceVersion"]:
            raise KubeError(409, f'{PLURALS[kind]} "{name}": the object has been modified')
        if verb == "replace":
            return copy.deepcopy(self.write(key, {"status": have.get("status"), **body}))
        patched = merge_patch(have, {"status": body["status"]} if subresource == "status" else body)
        return copy.deepcopy(self.write(key, patched))

    #: All changes come through `subscribe`.
    watch = staticmethod(watch_nothing)

    def _list(self, kind: str, namespace: str, selector: str) -> Manifest:
        labels = dict(term.partition("=")[::2] for term in selector.split(",") if term)
        items = [
            copy.deepcopy(resource)
            for resource in self.iterate(kind)
            if namespace in ("", resource["metadata"].get("namespace", ""))
            and labels.items() <= resource["metadata"].get("labels", {}).items()
        ]
        return {"items": items, "metadata": {"resourceVersion": "0"}}

    def _apply(self, key: Key, body: Manifest) -> Manifest:
        """Server-side apply: fields that the manager applied before and no longer has go."""
        have = copy.deepcopy(self.objects.get(key, {}))
        _remove(have, self._applied.get(key, {}), body)
        self._applied[key] = copy.deepcopy(body)
        return self.write(key, merge_patch(have, body))

    def write(self, key: Key, manifest: Manifest) -> Manifest:
        """Store a version of an object, and report it; return it with its metadata."""
        have, kind = self.objects.get(key), key[0]
        made = {"apiVersion": manifest.get("apiVersion", ""), "kind": kind, **manifest}
        made = {name: value for name, value in made.items() if value is not None}
        meta = made["metadata"] = {**made["metadata"], "name": key[2], "namespace": key[1]}
        if have is not None and {**have, "metadata": _drop_version(have)} == {
            **made,
            "metadata": _drop_version(made),
        }:
            return have
        before = have["metadata"] if have else {}
        meta["uid"] = before.get("uid") or str(uuid.uuid4())
        meta["creationTimestamp"] = before.get("creationTimestamp") or format_now()
        changed = not have or have.get("spec") != made.get("spec")
        meta["generation"] = before.get("generation", 0) + changed
        meta["resourceVersion"] = str(next(self._versions))
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and kind != "Pod":
            return self.remove(key, made)
        self.objects[key] = made
        self._save(key, made)
        self._report(made, deleted=False)
        if kind == "Event":
            self._forget_events()
        return made

    def _save(self, key: Key, manifest: Manifest) -> None:
        """Write an object's file; a disk that refuses it keeps nothing from going on."""
        try:
            write_text(self._get_file(key), dump_yaml(manifest))
        except OSError as error:
            is_first = not self.unsaved
            self.unsaved.add(key)
            if is_first:
                self._warn_about_disk(error)
        else:
            self.unsaved.discard(key)

    def save_again(self) -> None:
        """Write the files that could not be written."""
        for key in list(self.unsaved):
            if key in self.objects:
                self._save(key, self.objects[key])
            else:
                self.unsaved.discard(key)

    def _warn_about_disk(self, error: OSError) -> None:
        """Add an event to each QueueCluster, whose brokers write to the same disk."""
        text = (
            f"{self._folder.parent} cannot be written: {error.strerror}. Free space there. Until "
            "then, the state is kept in memory only, and brokers may refuse records."
        )
        log.error("cannot write objects", error=str(error))
        for cluster in list(self.iterate("QueueCluster")):
            self.warn(cluster, "DiskNotWritable", text)

    def warn(self, involved: Manifest, reason: str, message: str) -> None:
        """Record a warning about an object; the same one again is counted."""
        message = " ".join(message.split())[:1024]
        event = build_event(involved, reason, message, "shoal-up", warning=True)
        key = ("Event", event["metadata"]["namespace"], name_event(involved, reason, message))
        if former := self.objects.get(key):
            event |= {"firstTimestamp": former["firstTimestamp"], "count": former["count"] + 1}
        self.write(key, event)

    def _delete(self, key: Key, options: Mapping[str, Any] | None) -> Manifest:
        have, uid = self.objects[key], (options or {}).get("preconditions", {}).get("uid")
        if uid and uid != have["metadata"]["uid"]:
            raise KubeError(409, "the UID in the precondition does not match the UID in record")
        if (options or {}).get("propagationPolicy") == "Orphan":
            self._orphan(have["metadata"]["uid"])
        meta = have["metadata"]
        # A pod stays until its processes have ended.
        if meta.get("finalizers") or key[0] == "Pod":
            stamp = meta.get("deletionTimestamp") or format_now()
            return self.write(key, {**have, "metadata": {**meta, "deletionTimestamp": stamp}})
        return self.remove(key, have)

    def delete_now(self, manifest: Manifest) -> None:
        """Delete an object outside of a request."""
        key = get_key(manifest)
        if key in self.objects:
            self._delete(key, None)

    def remove(self, key: Key, last: Manifest) -> Manifest:
        """Remove an object, and delete what it owns; return its last version."""
        self.objects.pop(key, None)
        self._applied.pop(key, None)
        with contextlib.suppress(FileNotFoundError):
            self._get_file(key).unlink()
        self._report(last, deleted=True)
        uid = last["metadata"].get("uid")
        for owned in [k for k, o in self.objects.items() if uid in _list_owners(o)]:
            if owned in self.objects:
                self._delete(owned, None)
        return last

    def _orphan(self, uid: str) -> None:
        for key, owned in list(self.objects.items()):
            if uid in _list_owners(owned):
                meta = owned["metadata"]
                kept = [r for r in meta["ownerReferences"] if r["uid"] != uid]
                self.write(key, {**owned, "metadata": {**meta, "ownerReferences": kept}})

    def _forget_events(self) -> None:
        keys = [key for key in self.objects if key[0] == "Event"]
        for key in keys[:-EVENTS_MAX]:
            self.remove(key, self.objects[key])

    def _get_file(self, key: Key) -> Path:
        kind, namespace, name = key
        return self._folder / PLURALS[kind] / (namespace or "_") / f"{name}.yaml"

    def _report(self, manifest: Manifest, *, deleted: bool) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # A command changes the folder while nothing runs.
        for listener in self._listeners:
            loop.call_soon(listener, copy.deepcopy(manifest), deleted)


def _get_order(entry: tuple[Key, Manifest]) -> Key:
    return entry[0]


def _drop_version(manifest: Manifest) -> Manifest:
    ours = ("uid", "creationTimestamp", "generation", "resourceVersion")
    return {k: v for k, v in manifest["metadata"].items() if k not in ours}


def _list_owners(manifest: Manifest) -> set[str]:
    return {owner["uid"] for owner in manifest["metadata"].get("ownerReferences", [])}


def _parse_path(path: str) -> tuple[str, str, str, str]:
    """Return kind, namespace, name and subresource, the last three empty where there is none."""
    parts = path.strip("/").split("/")
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    namespace = ""
    if rest and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest or rest[0] not in KINDS:
        raise KubeError(404, "the server could not find the requested resource")
    plural, name, subresource, *_ = [*rest, "", ""]
    return KINDS[plural], namespace, name, subresource


def _is_of_version(manifest: Manifest, path: str) -> bool:
    """Return whether an object has the API version of a path: two kinds may share their name."""
    parts = path.strip("/").split("/")
    api_version = "/".join(parts[1:3]) if parts[0] == "apis" else parts[1]
    return bool(manifest["apiVersion"] == api_version)


def merge_patch(have: Any, patch: Mapping[str, Any]) -> Manifest:
    """Return an object with a JSON merge patch (RFC 7386)."""
    merged = dict(have) if isinstance(have, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = merge_patch(merged.get(name), value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _remove(have: Any, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Remove from `have` the keys of `before` that `now` lacks."""
    for name, value in before.items():
        if name not in now:
            have.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(have.get(name), dict):
            _remove(have[name], value, now[name])


def is_of_operator(manifest: Mapping[str, Any]) -> bool:
    """Return whether the operator watches an object: a custom resource, or one that it made."""
    labels = manifest["metadata"].get("labels", {})
    return (
        manifest["apiVersion"] == names.API_VERSION
        or labels.get(names.MANAGED_BY) == names.FIELD_MANAGER
    )
