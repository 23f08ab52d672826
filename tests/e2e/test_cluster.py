"""The test cluster is a real Kubernetes: it has the properties that the product's tests need."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.cluster import host, images
from e2e.cluster.backend import Cluster, choose
from e2e.cluster.commands import wait_for
from e2e.cluster.layout import INDEX_MAX, Layout, layout_from_environment
from e2e.cluster.node_process import PID

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST = Path(__file__).with_name("test_cluster.yaml")

CALL_API = """
import json, ssl, urllib.error, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=account + "ca.crt")
namespaces = "https://kubernetes.default.svc/api/v1/namespaces/"
def status(kind):
    request = urllib.request.Request(
        namespaces + open(account + "namespace").read() + "/" + kind,
        headers={"Authorization": "Bearer " + open(account + "token").read()},
    )
    try:
        return urllib.request.urlopen(request, context=context, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps({kind: status(kind) for kind in ("pods", "secrets")}))
"""
READ_HOSTNAME = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode(), end="")
"""


@pytest.fixture
def web(cluster: Cluster, namespace: str) -> str:
    """The namespace of a StatefulSet of two web servers that serve their own volumes."""
    cluster.load(images.archive("broker"))
    manifest = MANIFEST.read_text().replace("IMAGE", images.tag("broker"))
    cluster.kubectl("apply", "--namespace", namespace, "--filename=-", stdin_text=manifest)
    rollout = ("rollout", "status", "statefulset/web", "--timeout=90s")
    cluster.kubectl(*rollout, "--namespace", namespace)
    return namespace


def in_pod(cluster: Cluster, namespace: str, pod: str, program: str, *arguments: str) -> str:
    python = ("--", "python3", "-c", program, *arguments)
    return cluster.kubectl("exec", "--namespace", namespace, pod, *python).stdout


def test_node_is_ready(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json").stdout)["items"]
    ready = [
        condition["status"]
        for node in nodes
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert ready == ["True"]


def test_up_again_changes_nothing(cluster: Cluster) -> None:
    before = cluster.kubectl("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}")
    cluster.up()
    after = cluster.kubectl("get", "namespace", "kube-system", "--output=jsonpath={.metadata.uid}")
    assert after.stdout == before.stdout != ""


def test_pods_have_names_and_a_service(cluster: Cluster, web: str) -> None:
    def read(url: str) -> str:
        """Return a server's response, once its name and address have propagated."""
        call = ("exec", "--namespace", web, "web-0", "--", "python3", "-c", READ_HOSTNAME, url)
        answers: list[str] = []

        def answered() -> bool:
            result = cluster.kubectl(*call, check=False)
            answers.append(result.stdout)
            return result.returncode == 0

        wait_for(f"an answer from {url}", answered, 30)
        return answers[-1]

    for pod in ("web-0", "web-1"):
        assert read(f"http://{pod}.web.{web}.svc.cluster.local:8080/name") == pod
    # Some of ten calls through the Service come back to the caller itself.
    assert {read("http://web-any/name") for _ in range(10)} <= {"web-0", "web-1"}


def test_service_account_has_the_rights_of_its_role(cluster: Cluster, web: str) -> None:
    assert json.loads(in_pod(cluster, web, "web-0", CALL_API)) == {"pods": 200, "secrets": 403}


def test_volume_outlives_its_pod(cluster: Cluster, web: str) -> None:
    write = "open('/data/kept', 'w').write('precious')"
    in_pod(cluster, web, "web-1", write)
    uid = ("get", "pod", "web-1", "--namespace", web, "--output=jsonpath={.metadata.uid}")
    before = cluster.kubectl(*uid).stdout
    cluster.kubectl("delete", "pod", "web-1", "--namespace", web)
    rollout = ("rollout", "status", "statefulset/web", "--timeout=60s")
    wait_for("a new web-1", lambda: cluster.kubectl(*uid, check=False).stdout != before, 30)
    cluster.kubectl(*rollout, "--namespace", web)
    assert in_pod(cluster, web, "web-1", "print(open('/data/kept').read())") == "precious\n"


def test_pod_reaches_its_memory_limit(cluster: Cluster, web: str) -> None:
    eat = ("exec", "--namespace", web, "web-0", "--", "python3", "-c", "bytearray(1 << 28)")
    assert cluster.kubectl(*eat, check=False).returncode == 137


def test_stopped_kubelet_makes_its_node_unready(cluster: Cluster, web: str) -> None:
    node = cluster.kubectl("get", "nodes", "--output=name").stdout.strip()
    wait_ready = ("wait", node, "--timeout=90s")
    cluster.stop_kubelet()
    try:
        cluster.kubectl(*wait_ready, "--for=condition=Ready=Unknown")
    finally:
        cluster.start_kubelet()
    cluster.kubectl(*wait_ready, "--for=condition=Ready=True")
    rollout = ("rollout", "status", "statefulset/web", "--timeout=60s")
    cluster.kubectl(*rollout, "--namespace", web)


def machine(layout: Layout) -> dict[str, object]:
    """Return everything on this machine that a local cluster could change. Others may come and go
    meanwhile: `make nightly` runs several."""
    others = [Layout(index).link for index in range(INDEX_MAX + 1) if index != layout.index]
    others += [link.replace("-nodes", "-node") for link in others]

    def list_lines(*argv: str) -> list[str]:
        lines = _output(*argv).splitlines()
        return [line for line in lines if not any(re.search(rf"\b{o}", line) for o in others)]

    return {
        "links": list_lines("ip", "-brief", "link"),
        "routes": list_lines("ip", "route", "show", "table", "all"),
        "rules": _output("nft", "list", "ruleset"),
        "mounts": Path("/proc/self/mounts").read_text(),
        "sysctls": [(Path("/proc/sys") / name).read_text() for name in host.SYSCTLS],
        "cgroups": [str(path) for path in host.cgroup_roots(layout) if path.exists()],
        "host directories": [
            name
            for name in ("lib/kubelet", "lib/cni", "log/pods", "log/containers")
            if (Path("/var") / name).exists()
        ],
    }


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def processes_under(root: int) -> list[Path]:
    """Return the /proc directories of a process and of all its descendants."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [root]
    for pid in found:
        found.extend(parents.get(pid, []))
    return [Path("/proc") / str(pid) for pid in found]


@pytest.fixture
def second_cluster() -> Iterator[Cluster]:
    """A cluster beside the shared one, so that its removal disturbs no other test."""
    cluster = choose(Layout((layout_from_environment().index + 1) % (INDEX_MAX + 1)))
    cluster.down()
    yield cluster
    cluster.down()


def test_down_leaves_nothing(cluster: Cluster, second_cluster: Cluster) -> None:
    before = machine(second_cluster.layout)
    second_cluster.up()
    assert second_cluster.is_up()
    assert cluster.is_up()
    second_cluster.load(images.archive("broker"))
    run = ("run", "probe", f"--image={images.tag('broker')}", "--command", "--")
    second_cluster.kubectl(*run, "python3", "-c", "import signal; signal.pause()")
    second_cluster.kubectl("wait", "--for=condition=Ready", "pod/probe", "--timeout=60s")
    file = second_cluster.state / PID
    processes = processes_under(int(file.read_text().split()[0])) if file.exists() else []
    second_cluster.down()
    second_cluster.down()
    assert not second_cluster.is_up()
    if second_cluster.kind == "local":
        assert len(processes) > 10
        assert [path for path in processes if path.exists()] == []
        assert machine(second_cluster.layout) == before
        assert not second_cluster.state.exists()
    else:
        name = f"name={second_cluster.layout.name}-control-plane"
        assert _output("docker", "ps", "--all", "--quiet", "--filter", name) == ""
