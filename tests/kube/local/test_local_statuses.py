"""Statuses of `shoal up` and of the operator in Kubernetes, for every example.

Before pods are there, both have everything to decide: what is refused, what waits, and for whom.
`folder_twin` compares what follows.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint
from kube.model.test_custom_resources import examples
from shoal_operator.local.api import KINDS, LocalApi, get_key
from shoal_operator.local.changes import apply_manifests
from shoal_operator.local.up import make_settings
from shoal_operator.model import names
from shoal_operator.runtime import CUSTOM, Operator
from support.runs.conditions import eventually_async
from support.runs.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from pathlib import Path

Manifest = dict[str, Any]
#: Times, and digests of keys: each operator has made its own.
#: A resource of each kind that waits for somebody else, so that nothing asks a broker.
SPECS: dict[str, Manifest] = {
    "QueueCluster": {"paused": True, "replicas": 1, "storage": {"size": "1Gi"}},
    "QueueTopic": {"cluster": "none", "partitions": 1},
    "QueueUser": {"cluster": "none", "authentication": {"type": "tls"}},
    "ShareGroup": {"cluster": "none", "topics": ["one"]},
    "ShareConsumer": {
        "shareGroup": "none",
        "deployment": {"template": {"spec": {"containers": [{"name": "c", "command": ["true"]}]}}},
    },
    "Redrive": {"cluster": "none", "id": "1", "topic": "dlq.one"},
    "QueueRebalance": {"cluster": "none", "mode": "Full"},
    "QueueSchedule": {"cluster": "none", "topic": "one", "schedule": "0 3 * * *"},
}
_OWN = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9a-f]{16,}\b")


def list_examples() -> dict[str, list[Manifest]]:
    """Return the resources of the examples by their folder; one of a name that the folder has had
    is by its file."""
    found: dict[str, dict[tuple[str, str], Manifest]] = {}
    for name, manifest in examples():
        key = (manifest["kind"], manifest["metadata"]["name"])
        file = name.partition(":")[0]
        folder = file.rpartition("/")[0]
        meta = {"namespace": "default", **manifest["metadata"]}
        of = file if key in found.get(folder, {}) else folder
        found.setdefault(of, {})[key] = {**manifest, "metadata": meta}
    return {of: list(manifests.values()) for of, manifests in found.items()}


class Kubernetes(ApiServer):
    """Starts no pod, and reports changes to the operator as watches do."""

    operator: Operator

    def __init__(self) -> None:
        super().__init__(CrashPoint())
        self.controllers_paused = True

    def _write(self, *words: Any, **options: Any) -> Manifest:
        made = super()._write(*words, **options)
        asyncio.get_running_loop().call_soon(self.operator.on_update, made)
        return made


async def compare(folder: Path, manifests: list[Manifest]) -> None:
    """Wait until both have reconciled all resources, with the same statuses."""
    local, theirs = LocalApi(folder), Kubernetes()
    ours = Operator(local, make_settings(), ("default",))
    theirs.operator = Operator(theirs, make_settings(), ("default",))
    local.subscribe(lambda changed, deleted: None if deleted else ours.on_update(changed))
    try:
        ours.set_leading(True)
        theirs.operator.set_leading(True)
        outcome = apply_manifests(local, manifests)
        assert outcome.errors == []
        for kind in CUSTOM:
            for manifest in list(local.iterate(kind)):
                # With what is not on one machine left out, and the defaults filled in.
                meta = {name: manifest["metadata"][name] for name in ("name", "namespace")}
                theirs.add({**manifest, "metadata": meta, "status": {}})

        def list_statuses(of: Any) -> dict[tuple[str, str], str]:
            return {
                (kind, one["metadata"]["name"]): _OWN.sub("", repr(one.get("status")))
                for kind in CUSTOM
                for one in of(kind)
            }

        def have_same() -> bool:
            here, there = list_statuses(local.iterate), list_statuses(theirs.all)
            return here == there and "Unknown" not in here and "not seen" not in repr(here)

        await eventually_async(have_same)
    finally:
        await ours.close()
        await theirs.operator.close()


class EditedFolder(LocalApi):
    """Somebody changes the spec of each resource just before its first status is written."""

    async def _call(self, verb: str, path: str, *words: Any, **options: Any) -> Manifest:
        *_, plural, name, subresource = path.split("/")
        have = self.find(KINDS.get(plural, ""), "default", name)
        if subresource == "status" and have and have["metadata"]["generation"] == 1:
            self.write(get_key(have), {**have, "spec": {**have["spec"], "changed": True}})
        return await super()._call(verb, path, *words, **options)


def test_a_change_beside_the_operators_own_write_is_seen_at_once(tmp_path: Path) -> None:
    """The answer to the write of a status has the change already, before the watch reports it. The
    pass through all resources would find it after a minute."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    local = EditedFolder(tmp_path)

    meta = {"name": "one", "namespace": "default"}
    manifests = [
        {"apiVersion": names.API_VERSION, "kind": kind, "metadata": meta, "spec": spec}
        for kind, spec in SPECS.items()
    ]

    async def start() -> Operator:
        operator = Operator(local, make_settings(), ("default",))
        local.subscribe(lambda changed, deleted: None if deleted else operator.on_update(changed))
        operator.set_leading(True)
        assert apply_manifests(local, manifests).errors == []
        return operator

    operator = loop.run_until_complete(start())
    try:
        loop.advance(2.0)
        seen = {
            kind: local.objects[kind, "default", "one"].get("status", {}).get("observedGeneration")
            for kind in CUSTOM
        }
        assert seen == dict.fromkeys(CUSTOM, 2)
    finally:
        loop.run_until_complete(operator.close())
        loop.close()


@pytest.mark.parametrize("name", sorted(list_examples()))
def test_every_example_has_the_operators_statuses(tmp_path: Path, name: str) -> None:
    asyncio.run(compare(tmp_path, list_examples()[name]))
