"""The console on Kubernetes, installed by the chart and reached through `kubectl port-forward`."""

from __future__ import annotations

import contextlib
import html
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from e2e.cluster.backend import tool
from e2e.resources import (
    Resources,
    queue_cluster,
    queue_topic,
    queue_user,
    share_consumer,
    share_group,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.release import Release

#: The permissions of the console's user, as `docs/console.md` gives them.
READS = (
    {"resource": {"type": "cluster"}, "operations": ["describe", "describe-configs"]},
    {
        "resource": {"type": "topic", "name": "*"},
        "operations": ["describe", "describe-configs", "read"],
    },
    {"resource": {"type": "group", "name": "*"}, "operations": ["describe", "describe-configs"]},
)


@contextlib.contextmanager
def forwarded(resources: Resources, deployment: str, port: int) -> Iterator[str]:
    """The address at which `kubectl port-forward` makes a port of the deployment reachable."""
    resources.kubectl("rollout", "status", f"deployment/{deployment}", "--timeout=60s")
    where = f"--namespace={resources.namespace}"
    with subprocess.Popen(
        [tool("kubectl"), "port-forward", where, f"deployment/{deployment}", f":{port}"],
        env=resources.cluster.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            # Forwarding from 127.0.0.1:40123 -> 9080
            yield f"http://{process.stdout.readline().split()[2]}"
        finally:
            process.terminate()


def api_version(event: dict[str, Any]) -> str:
    """Return the version of the object that an event is about."""
    version: str = event["involvedObject"].get("apiVersion", "")
    return version


def shows(page: str, *words: str) -> None:
    """Wait until the page has these words."""

    def found() -> bool:
        try:
            with urllib.request.urlopen(page, timeout=10) as answer:
                text = html.unescape(answer.read().decode())
        except (urllib.error.URLError, ConnectionError) as error:
            raise AssertionError(f"{page}: {error}") from None
        missing = [word for word in words if word not in text]
        assert not missing, f"{page} lacks {missing}"
        return True

    eventually(found, timeout_s=60)


def test_the_console_shows_consumers_and_what_is_wrong(
    resources: Resources, release: Release
) -> None:
    limits = {"minReplicas": 2, "maxReplicas": 2}
    resources.apply(queue_cluster(), queue_topic(), share_group(), queue_user("console", *READS))
    resources.start_client()
    resources.apply(share_consumer(scaling=limits), share_consumer("typo", group="wrokers"))
    resources.wait("queueuser/console", "shareconsumer/eaters", timeout_s=120)
    resources.produce("jobs", 2_000)
    enabled = {"enabled": True, "userSecret": "console", "namespace": resources.namespace}
    release.install(console=enabled | {"kubernetes": {"enabled": True}})
    try:
        with forwarded(resources, "shoal-console", 9080) as address:
            shows(address, "jobs", "workers")
            row = f'id="c-{resources.namespace}-eaters"'
            cells = [f'data-label="{name}">2<' for name in ("Wanted", "Running", "Ready")]
            shows(f"{address}/consumers", row, *cells)
            wrong = resources.condition("shareconsumer/typo")
            shows(f"{address}/consumers", wrong["reason"], wrong["message"])
            of_ours = [e for e in resources.find_all("events") if "shoal.dev" in api_version(e)]
            assert of_ours
            shows(f"{address}/consumers", *(event["message"] for event in of_ours))
    finally:
        release.install()
