"""What a platform team applies by mistake: `trial/refused.yaml`, `accepted.yaml`, `patches.yaml`.

The API server refuses a manifest with the remedy, or the operator says within 30 s what is wrong:
nothing that is accepted stays without a reason for longer than that, and all good resources beside
it work.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.cluster import images, spark_operator
from e2e.conftest import new_namespace
from e2e.resources import (
    EVERYTHING,
    Manifest,
    Resources,
    client_pod,
    queue_cluster,
    queue_topic,
    queue_user,
    share_consumer,
    share_group,
)
from support.runs.conditions import ceiling, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

pytestmark = pytest.mark.nightly

HERE = Path(__file__).with_name("trial")
#: Seconds in which each resource has a reason, and a good neighbour is Ready.
SECONDS_MAX = 30
#: Reasons that only say that the operator has begun.
PROGRESS = {"", "Pending", "Starting", "Scaling", "Rolling", "Restarting", "ApplicationStarting"}
#: Little enough for all pods of the trial to be scheduled on a small node.
LITTLE = {"requests": {"cpu": "5m", "memory": "32Mi"}}
#: The spec of a kind, over which a table puts its own fields.
DEFAULTS: dict[str, Manifest] = {
    "QueueCluster": queue_cluster(resources=LITTLE)["spec"],
    "QueueTopic": {"cluster": "main", "partitions": 1},
    "ShareGroup": {"cluster": "main", "topics": ["jobs"], "startOffset": "Earliest"},
    "QueueUser": {"cluster": "main", "authentication": {"type": "tls"}},
    "Redrive": {"cluster": "main", "topic": "dlq.jobs", "id": "1", "user": "worker"},
    "QueueRebalance": {"cluster": "main", "mode": "Full"},
    "QueueSchedule": {
        "cluster": "main",
        "topic": "jobs",
        "schedule": "0 3 * * *",
        "user": "worker",
        "payload": {"inline": "now"},
    },
    "ShareConsumer": {
        "shareGroup": "workers",
        "user": "worker",
        "replicas": 1,
        "deployment": {"template": {"spec": {"containers": [{"name": "a"}]}}},
    },
}
#: The policies of the namespaces besides the one with the running cluster.
POLICIES: dict[str, Manifest] = {
    "quota": {"kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}},
    "secrets": {"kind": "ResourceQuota", "spec": {"hard": {"count/secrets": "0"}}},
    "limits": {
        "kind": "LimitRange",
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Mi"}}]},
    },
}


def build_pod(pod: Manifest) -> Manifest:
    """Return a template whose containers without an image have the brokers' and end at once."""
    for container in pod["containers"]:
        container["resources"] = LITTLE | container.get("resources", {})
        if "imag" not in container:
            container.setdefault("image", images.tag("broker"))
            container.setdefault("imagePullPolicy", "Never")
            container.setdefault("command", ["python3", "-c", "import signal; signal.pause()"])
    return {"template": {"spec": {"terminationGracePeriodSeconds": 1, **pod}}}


def load(name: str) -> list[tuple[Manifest, Manifest]]:
    """Return the manifests of a table, each with its row."""
    text = (HERE / f"{name}.yaml").read_text().replace("BROKER", images.tag("broker"))
    found = []
    for kind, rows in yaml.safe_load(text).items():
        for title, row in rows.items():
            spec = copy.deepcopy(DEFAULTS[kind]) | row.get("spec", {})
            if "pod" in row:
                spec["deployment"] = build_pod(row["pod"])
            if "job" in row:
                nothing = dict.fromkeys(("deployment", "replicas"))
                spec |= {"job": build_pod(row["job"]), "shareGroup": "long", **nothing}
            spec = {field: value for field, value in spec.items() if value is not None}
            manifest = {
                "apiVersion": "shoal.dev/v1beta1",
                "kind": kind,
                "metadata": {"name": title},
                "spec": spec,
            }
            found.append((manifest, row))
    return found


@pytest.fixture(scope="module")
def places(cluster: Cluster, release: Release) -> Iterator[dict[str, Resources]]:  # noqa: ARG001
    """The namespaces of the trial by their part in it; "" and `restricted` have a running cluster.

    In `restricted`, no pod but that cluster's may run.
    """
    # One row says that there is none, and other tests leave theirs.
    spark_operator.uninstall(cluster)
    places = {
        part: Resources(cluster, new_namespace(cluster, f"trial-{part or 'main'}"))
        for part in ("", "restricted", *POLICIES)
    }
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", "trial-restricted", level)
    for part, policy in POLICIES.items():
        places[part].apply(build_policy(policy))
    for part in ("", "restricted"):
        places[part].apply(
            queue_cluster(),
            queue_topic(),
            queue_topic("dlq.jobs"),
            *map(share_group, ("workers", "long", "shared")),
            queue_user("worker", *EVERYTHING),
        )
    for part in ("", "restricted"):
        places[part].wait("queuecluster/main", "sharegroup/workers", "queueuser/worker")
    one_pod = {"kind": "ResourceQuota", "spec": {"hard": {"pods": "1"}}}
    places["restricted"].apply(build_policy(one_pod))
    main = places[""]
    main.wait("queuetopic/jobs", "sharegroup/long")
    main.start_pods(client_pod("client", "worker"))
    # For the Jobs, which start for records only.
    main.produce("jobs", 10)
    yield places
    for place in places.values():
        cluster.kubectl("delete", "namespace", place.namespace, "--wait=false")


def build_policy(policy: Manifest) -> Manifest:
    return {"apiVersion": "v1", "metadata": {"name": "policy"}, **policy}


def test_the_api_server_refuses(places: dict[str, Resources]) -> None:
    """One command applies all; its answer has a line or more for each."""
    rows = load("refused")
    text = yaml.safe_dump_all([manifest for manifest, _ in rows])
    where = ("--dry-run=server", "--validate=strict", "--filename=-")
    answer = places[""].kubectl("apply", *where, stdin_text=text, check=False)
    wrong = {}
    for manifest, row in rows:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        about = find_answer(answer.stderr, kind, name)
        if row["says"] not in about:
            wrong[f"{kind} {name}"] = about or "accepted"
    assert not wrong, json.dumps(wrong, indent=1)


def find_answer(text: str, kind: str, name: str) -> str:
    """Return the lines of kubectl's errors about an object. That about an unknown field has the
    kind only."""
    about = (f'{kind}.shoal.dev "{name}" is', f"{kind} in version")
    return "\n".join(line for line in text.splitlines() if any(word in line for word in about))


def find_reasons(resource: Manifest) -> list[tuple[str, str]]:
    """Return the reasons and messages of the conditions of the present generation that are not
    plain progress: of Ready, and of Degraded while it is true."""
    status, generation = resource.get("status", {}), resource["metadata"]["generation"]
    if status.get("observedGeneration") != generation:
        return []
    return [
        (condition["reason"], condition["message"])
        for condition in status.get("conditions", [])
        if condition["type"] == "Ready"
        or (condition["type"] == "Degraded" and condition["status"] == "True")
        if condition["reason"] not in PROGRESS
    ]


def is_said(resource: Manifest, row: Manifest) -> bool:
    reason, words = row["says"]
    return any(
        re.fullmatch(reason, found) and words in message
        for found, message in find_reasons(resource)
    )


def test_what_is_accepted_has_a_reason_within_30_seconds(places: dict[str, Resources]) -> None:
    """The limit is the operator's promise to a person who waits for a resource."""
    apply_all(places)
    main, rows = places[""], load("accepted")
    wrong: dict[str, Any] = {}

    def is_explained() -> bool:
        everything = main.kubectl("get", "shoal", "--all-namespaces", "--output=json").stdout
        have = {
            (found["metadata"]["namespace"], found["kind"], found["metadata"]["name"]): found
            for found in json.loads(everything)["items"]
        }
        wrong.clear()
        for manifest, row in rows:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            found = have[places[row.get("in", "")].namespace, kind, name]
            if not is_said(found, row):
                wrong[f"{kind} {name}"] = [row["says"], found.get("status", {}).get("conditions")]
        return not wrong

    try:
        eventually(is_explained, timeout_s=ceiling(SECONDS_MAX))
    except AssertionError:
        pytest.fail(json.dumps(wrong, indent=1))


def apply_all(places: dict[str, Resources]) -> None:
    """Apply what is accepted, what it meets, and the good neighbours last: what is wrong before
    them must not hold them up."""
    main = places[""]
    foreign = {"selector": {"app": "payments"}, "ports": [{"port": 80}]}
    meta = {"apiVersion": "v1", "metadata": {"name": "foreign-bootstrap"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "taken"}}
    main.apply(
        {**meta, "kind": "Service", "spec": foreign},
        {**secret, "stringData": {"key": "of somebody else"}},
    )
    rows = load("accepted")
    for part, place in places.items():
        if here := [manifest for manifest, row in rows if row.get("in", "") == part]:
            place.apply(*here)
    main.apply(
        queue_topic("canary"),
        share_group("canary", topics=["canary"]),
        queue_user("canary", *EVERYTHING),
        share_consumer("canary", "canary", user="canary", replicas=1),
    )


@pytest.mark.parametrize("kind", ["queuetopic", "sharegroup", "queueuser", "shareconsumer"])
def test_good_neighbours_are_ready(places: dict[str, Resources], kind: str) -> None:
    places[""].wait(f"{kind}/canary", timeout_s=ceiling(SECONDS_MAX))


@pytest.mark.parametrize("patch", yaml.safe_load((HERE / "patches.yaml").read_text()), ids=str)
def test_patches_of_what_exists(places: dict[str, Resources], patch: Manifest) -> None:
    main = places[""]
    if words := patch.get("says"):
        text = json.dumps({"spec": patch["spec"]})
        argv = ("patch", patch["to"], "--type=merge", f"--patch={text}")
        answer = main.kubectl(*argv, check=False)
        assert answer.returncode != 0
        assert words in answer.stderr
        return
    main.patch(patch["to"], {"spec": patch["spec"]})
    if reason := patch.get("reason"):
        main.wait_reason(patch["to"], reason)
    else:
        main.wait(patch["to"])
