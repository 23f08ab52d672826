"""Resources of an earlier version of the API, on a real API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from e2e.resources import queue_topic
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.release import Release
    from e2e.resources import Resources

DEFINITION = "customresourcedefinition/queuetopics.shoal.dev"
EARLIER, NOW = "v1alpha1", "v1beta1"


def stored(queue: Resources) -> list[str]:
    found: list[str] = queue.get(DEFINITION)["status"]["storedVersions"]
    return found


def test_manifests_of_the_earlier_version_work(queue: Resources) -> None:
    queue.apply(queue_topic("earlier") | {"apiVersion": f"shoal.dev/{EARLIER}"})
    queue.wait("queuetopic/earlier")
    for version in (EARLIER, NOW):
        found = queue.get(f"queuetopics.{version}.shoal.dev/earlier")
        assert found["apiVersion"] == f"shoal.dev/{version}"


def test_the_operator_rewrites_what_is_stored_in_the_earlier_version(
    queue: Resources, release: Release
) -> None:
    """As after an upgrade: the definition stored the earlier version, and then the present one."""
    served = queue.get(DEFINITION)["spec"]["versions"]

    def serve(*names: str, store: str) -> None:
        versions = [v | {"storage": v["name"] == store} for v in served if v["name"] in names]
        change = json.dumps({"spec": {"versions": versions}})
        queue.kubectl("patch", DEFINITION, "--type=merge", f"--patch={change}")

    assert stored(queue) == [NOW]
    serve(NOW, EARLIER, store=EARLIER)
    try:
        queue.apply(queue_topic("old", config={"retention.ms": "700000"}))
        queue.wait("queuetopic/old")
        serve(NOW, EARLIER, store=NOW)
        assert stored(queue) == [NOW, EARLIER]
        release.kill(release.wait_leader())
        eventually(lambda: stored(queue) == [NOW], timeout_s=60)
        # The API server lets a version go only once no resource is stored in it.
        serve(NOW, store=NOW)
        assert queue.get("queuetopic/old")["spec"]["config"] == {"retention.ms": "700000"}
    finally:
        serve(NOW, EARLIER, store=NOW)
    queue.wait("queuetopic/old")
