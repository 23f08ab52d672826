"""Five thousand QueueUsers: certificates, permissions and Secrets, within the operator's memory."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from e2e.release import NAMESPACE, Release
from e2e.resources import Manifest, Resources, queue_cluster, queue_user
from support.runs.conditions import ceiling, eventually

COUNT = 5_000
READY_SECONDS_MAX, ONE_MORE_SECONDS_MAX = 300, 5


def user(number: int) -> Manifest:
    permission = {"topics": [f"topic-{number}"], "groups": [f"group-{number}"]}
    return queue_user(f"user-{number}", {"shareConsumer": permission})


@pytest.mark.timeout(900)
def test_five_thousand_users(resources: Resources, release: Release) -> None:
    resources.apply(queue_cluster())
    resources.wait("queuecluster/main")
    began = time.monotonic()
    text = yaml.dump_all([user(n) for n in range(COUNT)], Dumper=yaml.CSafeDumper)
    resources.kubectl("create", "--filename=-", stdin_text=text)
    limit_s = ceiling(READY_SECONDS_MAX)
    # `kubectl wait` asks for one object after the other, which alone takes five minutes.
    eventually(lambda: not not_ready(resources), timeout_s=2 * limit_s, what="all users are Ready")
    took = time.monotonic() - began
    began = time.monotonic()
    resources.apply(user(COUNT))
    resources.wait(f"queueuser/user-{COUNT}")
    more = time.monotonic() - began
    peaks = [peak_bytes(release, pod) for pod in release.pods()]
    print({"ready_s": round(took), "one_more_s": round(more, 1), "peaks": peaks})
    assert took < limit_s
    assert more < ceiling(ONE_MORE_SECONDS_MAX)
    limit = "{.spec.template.spec.containers[0].resources.limits.memory}"
    get = ("get", "deployment/shoal-operator", f"--namespace={NAMESPACE}")
    memory = resources.cluster.kubectl(*get, f"--output=jsonpath={limit}").stdout
    assert memory.endswith("Mi")
    assert max(peaks) < int(memory.removesuffix("Mi")) << 20


def not_ready(resources: Resources) -> list[str]:
    """Return the names of users that are not Ready. The raw list costs kubectl the least CPU, which
    the operator needs."""
    path = f"/apis/shoal.dev/v1beta1/namespaces/{resources.namespace}/queueusers"
    return [
        found["metadata"]["name"]
        for found in json.loads(resources.cluster.kubectl("get", "--raw", path).stdout)["items"]
        if not any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in found.get("status", {}).get("conditions", ())
        )
    ]


def peak_bytes(release: Release, pod: str) -> int:
    """Return the most memory that the operator has used."""
    read = "print(open('/proc/1/status').read())"
    exec_ = ("exec", f"--namespace={NAMESPACE}", pod, "--", "python3", "-c", read)
    lines = release.cluster.kubectl(*exec_).stdout.splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
