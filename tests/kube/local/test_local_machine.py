"""Parts of `shoal up` without a process of it: what is listed, which processes end, what a
container runs."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local import commands, pod_runner
from shoal_operator.local.addresses import Addresses
from shoal_operator.local.api import LocalApi, load_objects
from shoal_operator.local.changes import CommandOutput, apply_manifests
from shoal_operator.local.commands import compute_stop_seconds
from shoal_operator.local.containers import (
    BROKER_IMAGE,
    ContainerFiles,
    Launch,
    NotRunnable,
    format_mount,
)
from shoal_operator.local.machine import choose_pods_to_remove
from shoal_operator.local.manifests import Folder, Overrides, load_folder
from shoal_operator.local.one_machine import adapt
from shoal_operator.local.pod_runner import PodRunner
from shoal_operator.local.printing import format_age
from shoal_operator.local.processes import ProcessTable, get_start
from shoal_operator.local.state_folder import StateFolder
from shoal_operator.model import names
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Manifest = dict[str, Any]


@pytest.mark.parametrize("same", [True, False])
def test_only_a_process_with_the_noted_start_is_ended(tmp_path: Path, *, same: bool) -> None:
    """A pid may be another process's by now. What a process leaves is removed in any case."""
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as process:
        start = get_start(process.pid) if same else "1"
        row = {"pid": process.pid, "start": start, "owner": "n/p/c", "is_broker": False}
        row["cleanup"] = ["touch", str(tmp_path / "removed")]
        (tmp_path / "processes.json").write_text(json.dumps([row]))
        ended = ProcessTable(tmp_path / "processes.json").end_leftovers()
        assert ended == (["n/p/c"] if same else [])
        assert (tmp_path / "removed").exists()
        if not same:
            assert process.poll() is None
            process.kill()
    assert process.returncode == (-15 if same else -9)


def test_what_a_process_leaves_is_noted_when_it_starts(tmp_path: Path) -> None:
    """The next `shoal up` removes a container whose `docker run` was killed."""
    file = tmp_path / "processes.json"
    launch = Launch(["true"], {}, tmp_path, ("docker", "rm", "--force", "c"))

    async def start() -> None:
        process = await ProcessTable(file).start(launch, tmp_path / "log", "c", is_broker=False)
        await process.wait()

    asyncio.run(start())
    (row,) = json.loads(file.read_text())
    assert row["cleanup"] == ["docker", "rm", "--force", "c"]


def test_down_waits_for_consumers_as_long_as_they_ask_for(tmp_path: Path) -> None:
    api = LocalApi(tmp_path)
    nothing = compute_stop_seconds(api)
    for number, grace in enumerate(({}, {"terminationGracePeriodSeconds": 300})):
        pod = make_pod({"name": "c"}, **grace)
        api.write(("Pod", "n", f"p-{number}"), {**pod, "apiVersion": "v1"})
    assert compute_stop_seconds(LocalApi(tmp_path)) == nothing + 300


def make_pod(container: Manifest, **spec: Any) -> Manifest:
    meta = {"name": "p-0", "namespace": "n", "labels": {"app.kubernetes.io/component": "consumer"}}
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": [container], **spec}}


def make_files(tmp_path: Path, pod: Manifest, *, runs_images: bool = False) -> ContainerFiles:
    state = StateFolder(tmp_path / ".shoal")
    addresses = Addresses(state.ports, lambda _, name: ["m-0", "m-1"] if name == "m" else [])
    api = LocalApi(state.objects)
    secret = {"metadata": {}, "apiVersion": "v1", "data": {"client.properties": "YT0vZXRjL3UvYg=="}}
    api.write(("Secret", "n", "keys"), secret)
    return ContainerFiles(api, state, addresses, tmp_path, pod, runs_images=runs_images)


def test_a_container_gets_addresses_and_paths_of_this_machine(tmp_path: Path) -> None:
    container = {
        "name": "c",
        "command": ["worker", "--at=$(SERVERS)", "/etc/u/client.properties", "/etc/under", "$(NO)"],
        "env": [{"name": "SERVERS", "value": "m.n.svc:9092"}],
        "volumeMounts": [{"name": "keys", "mountPath": "/etc/u"}],
    }
    pod = make_pod(container, volumes=[{"name": "keys", "secret": {"secretName": "keys"}}])
    files = make_files(tmp_path, pod)
    files.write_volumes()
    launch = files.build_launch(container)
    ports = json.loads((tmp_path / ".shoal" / "ports.json").read_text())
    servers = f"127.0.0.1:{ports['n/m-0:9092']},127.0.0.1:{ports['n/m-1:9092']}"
    mounted = tmp_path / ".shoal" / "pods" / "n" / "p-0" / "of" / "c" / "keys"
    wanted = ["worker", f"--at={servers}", f"{mounted}/client.properties", "/etc/under", "$(NO)"]
    assert launch.words == wanted
    assert launch.env["SERVERS"] == servers
    assert (mounted / "client.properties").read_text() == f"a={mounted}/b"
    assert (mounted / "client.properties").stat().st_mode & 0o077 == 0


def test_a_mount_has_no_file_outside_of_its_folder(tmp_path: Path) -> None:
    items = [{"key": "client.properties", "path": "a/../../b"}]
    volume = {"name": "keys", "secret": {"secretName": "keys", "items": items}}
    files = make_files(tmp_path, make_pod({"name": "c"}, volumes=[volume]))
    with pytest.raises(NotRunnable, match=r'a path must not contain "[.][.]"'):
        files.write_volumes()


def test_a_probe_asks_a_consumer_at_the_port_that_it_has_itself(tmp_path: Path) -> None:
    """Its program listens where it would in a pod: only brokers are told other ports."""
    container = {"name": "c", "ports": [{"name": "health", "containerPort": 8080}]}
    files = make_files(tmp_path, make_pod(container))
    assert [files.resolve_port(container, port) for port in ("health", 81)] == [8080, 81]


def test_an_image_without_a_command_is_not_run(tmp_path: Path) -> None:
    container = {"name": "c", "image": "registry.example/ours:1"}
    files = make_files(tmp_path, make_pod(container))
    with pytest.raises(NotRunnable, match="not on one machine, and the container has no command"):
        files.build_launch(container)


def test_an_image_runs_with_docker_if_that_is_asked_for(tmp_path: Path) -> None:
    """Both paths of a mount are the same folder, because files name that of this machine."""
    container = {
        "name": "c",
        "image": "registry.example/ours:1",
        "command": ["worker", "/etc/u/client.properties"],
        "args": ["--once"],
        "workingDir": "/app",
        "env": [{"name": "TOKEN", "value": "secret"}],
        "volumeMounts": [{"name": "keys", "mountPath": "/etc/u"}],
    }
    pod = make_pod(container, volumes=[{"name": "keys", "secret": {"secretName": "keys"}}])
    launch = make_files(tmp_path, pod, runs_images=True).build_launch(container)
    mounted = tmp_path / ".shoal" / "pods" / "n" / "p-0" / "of" / "c" / "keys"
    assert launch.words == [
        "docker",
        "run",
        "--rm",
        "--name=shoal-n-p-0-c",
        "--network=host",
        "--hostname=p-0",
        "--add-host=p-0:127.0.0.1",
        f"--user={os.getuid()}:{os.getgid()}",
        "--env=TOKEN",
        f"--mount=type=bind,source={mounted},target=/etc/u",
        f"--mount=type=bind,source={mounted},target={mounted}",
        "--workdir=/app",
        "--entrypoint=worker",
        "registry.example/ours:1",
        f"{mounted}/client.properties",
        "--once",
    ]
    assert launch.env["TOKEN"] == "secret"
    assert launch.cleanup == ("docker", "rm", "--force", "shoal-n-p-0-c")
    assert mounted.is_dir()  # Otherwise Docker refuses it, or makes it as root.
    probe = make_files(tmp_path, pod, runs_images=True).build_exec(container, ["test", "/etc/u/a"])
    assert probe.words == ["docker", "exec", "shoal-n-p-0-c", "test", f"{mounted}/a"]
    assert probe.cleanup == ()
    own = {**container, "image": BROKER_IMAGE}
    assert make_files(tmp_path, pod, runs_images=True).build_launch(own).words[0] == "worker"


def test_a_folder_of_any_name_is_a_mount_of_docker() -> None:
    mount = format_mount('/a:b/c,"d"', "/e")
    assert mount == '--mount=type=bind,"source=/a:b/c,""d""",target=/e'


#: Runs what comes after the image, or after the name of the container, on this machine.
DOCKER = """#!/bin/sh
[ $1 = rm ] && exit
[ $1 = exec ] && shift 2 && exec "$@"
while [ "$1" != image ]; do shift; done
shift
exec sleep "$@"
"""


@asynccontextmanager
async def running(tmp_path: Path, probe: list[str]) -> AsyncIterator[list[Manifest]]:
    """Run an image with an exec probe for readiness; yield the statuses of its pod."""
    container = {
        "name": "c",
        "image": "image",
        "command": ["sleep"],
        "args": ["100"],
        "readinessProbe": {"exec": {"command": probe}},
    }
    pod = make_pod(container, terminationGracePeriodSeconds=5)
    statuses: list[Manifest] = []
    runner = PodRunner(
        pod,
        make_files(tmp_path, pod, runs_images=True),
        ProcessTable(tmp_path / "processes.json"),
        tmp_path / "logs",
        statuses.append,
        lambda _: None,
    )
    try:
        yield statuses
    finally:
        await runner.begin_stop()


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("docker")
def test_a_probe_runs_in_the_container_of_docker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, ["test", "-e", str(tmp_path / "ready")]) as statuses:
            await eventually_async(lambda: "running" in get_container(statuses)["state"])
            assert not get_container(statuses)["ready"]
            (tmp_path / "ready").touch()
            await eventually_async(lambda: get_container(statuses)["ready"])

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_probe_that_takes_too_long_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of its periods would leave one more process. A probe has at least a second."""
    monkeypatch.setattr(pod_runner, "PROBE_SECONDS", 0.3)
    noted = tmp_path / "pid"

    async def scenario() -> None:
        script = f"echo $$ > {noted}; exec sleep 100"
        probe = ["sh", "-c", script]
        async with running(tmp_path, probe):
            await eventually_async(lambda: noted.exists() and noted.read_text().strip())
            first = int(noted.read_text())
            await eventually_async(lambda: not get_start(first))

    asyncio.run(scenario())


def get_container(statuses: list[Manifest]) -> Manifest:
    """Return the newest status of the container."""
    first: Manifest = {"state": {}, "ready": False}
    return statuses[-1]["containerStatuses"][0] if statuses else first


def test_plaintext_leaves_out_logins_and_keeps_the_address() -> None:
    listeners = [{"name": "out", "port": 9095, "type": "NodePort"}, {"name": "in", "port": 9094}]
    spec = {"listeners": listeners, "authorization": {"type": "simple"}, "replicas": 3}
    spec["metrics"] = {"tls": {}}
    options = Overrides(brokers=1, plaintext=True)
    cluster = {"kind": "QueueCluster", "metadata": {"name": "main"}, "spec": spec}
    changed, lines = options.change(cluster)
    assert lines == ["not with --plaintext: spec.authorization, spec.metrics.tls"]
    assert changed == {
        **cluster,
        "spec": {
            "metrics": {},
            "listeners": [
                {
                    "name": "in",
                    "port": 9094,
                    "tls": {"enabled": False},
                    "authentication": {"type": "none"},
                }
            ],
            "replicas": 1,
        },
    }
    user = {"kind": "QueueUser", "metadata": {}, "spec": {}}
    assert options.change(user) == (None, ["not with --plaintext: nobody logs in"])
    consumer = {"kind": "ShareConsumer", "metadata": {}, "spec": {"user": "u", "job": {}}}
    lines = ["not with --plaintext: spec.user"]
    assert options.change(consumer) == ({**consumer, "spec": {"job": {}}}, lines)
    assert Overrides().change(consumer) == (consumer, [])


def test_what_needs_more_brokers_is_limited_and_listed(tmp_path: Path) -> None:
    """A folder for many brokers runs on one: a second replica would never come."""
    cluster: Manifest = {
        "brokersPerPod": 2,
        "config": {
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "num.partitions": "6",
            "transaction.state.log.min.isr": "1",
        },
        "nodePools": [{"name": "big", "firstNodeId": 200, "replicas": 2}],
        "replicas": 3,
        "storage": {"size": "1Gi", "type": "ephemeral"},
    }
    topic: Manifest = {"cluster": "main", "replicas": 3, "config": {"min.insync.replicas": "2"}}
    letters = {"topic": "dead", "create": {"replicas": 3}}
    group = {"cluster": "main", "topics": ["jobs"], "deadLetters": letters}
    wanted: list[Manifest] = [
        {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": {"name": "main", "namespace": "default"},
            "spec": spec,
        }
        for kind, spec in (("QueueCluster", cluster), ("QueueTopic", topic), ("ShareGroup", group))
    ]
    api = LocalApi(tmp_path)
    outcome = apply_manifests(api, wanted, Overrides(brokers=1))
    assert outcome.errors == []
    fields = "brokersPerPod config[default.replication.factor] config[min.insync.replicas]".split()
    listed = [f"spec.{name}" for name in [*fields, "nodePools", "storage.type"]]
    assert outcome.lines == [
        "queuecluster.shoal.dev/main created",
        f"  not with --brokers 1: {', '.join(listed)}",
        "  not on one machine: spec.storage.size",
        "queuetopic.shoal.dev/main created",
        "  not with --brokers 1: spec.config[min.insync.replicas], spec.replicas",
        "sharegroup.shoal.dev/main created",
        "  not with --brokers 1: spec.deadLetters.create.replicas",
    ]
    of_cluster, of_topic, of_group = (
        api.objects[m["kind"], "default", "main"]["spec"] for m in wanted
    )
    assert "nodePools" not in of_cluster
    assert (of_cluster["replicas"], of_cluster["brokersPerPod"]) == (1, 1)
    assert of_cluster["config"] == {
        **cluster["config"],
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
    }
    assert (of_topic["replicas"], of_topic["config"]) == (1, {"min.insync.replicas": "1"})
    assert of_group["deadLetters"]["create"]["replicas"] == 1
    again = apply_manifests(api, wanted, Overrides(brokers=1)).lines
    assert len(again) == 3, "what has not changed is not listed again"


def test_fields_without_meaning_are_listed_and_some_left_out() -> None:
    listeners = [{"name": "in", "port": 1}, {"name": "out", "port": 2, "type": "NodePort"}]
    spec = {"storage": {"size": "1Gi", "storageClassName": ""}, "listeners": listeners}
    spec["rack"] = {"topologyKey": "zone"}
    spec |= {"tieredStorage": {"type": "S3", "bucket": "b"}, "restoreFrom": {"clusterId": "c"}}
    cluster = {"kind": "QueueCluster", "metadata": {"name": "main"}, "spec": spec}
    adapted, listed = adapt(cluster)
    left_out = ["spec.listeners[out]", "spec.rack", "spec.restoreFrom", "spec.tieredStorage"]
    assert listed == sorted([*left_out, "spec.storage.size"])
    assert adapted["spec"]["listeners"] == listeners[:1]
    assert adapted["spec"].keys() == {"storage", "listeners"}
    assert "rack" in cluster["spec"]


def test_files_are_read_in_the_order_of_names_and_other_kinds_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n")
    (tmp_path / "a.yml").write_text(
        "apiVersion: shoal.dev/v1beta1\nkind: QueueTopic\nmetadata: {name: t}\n---\n"
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
    )
    (tmp_path / "notes.txt").write_text("nothing")
    found = load_folder([tmp_path])
    assert [m["metadata"] for m in found.manifests] == [
        {"namespace": "default", "name": "t"},
        {"namespace": "default", "name": "s"},
    ]
    assert found.foreign == ["deployment/d"]


def test_a_file_is_followed_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor empties it first. Its resources must not be deleted meanwhile."""
    file, stat_files = tmp_path / "topic.yaml", commands._stat_files  # noqa: SLF001
    topic = "apiVersion: shoal.dev/v1beta1\nkind: QueueTopic\nmetadata: {name: NAME}\n"
    file.write_text(topic)
    stages = [topic.replace("NAME", "renamed"), "", topic]

    def write_and_stat(paths: list[Path]) -> dict[Path, tuple[int, int]]:
        if stages:
            file.write_text(stages.pop())
        return stat_files(paths)

    class FollowedUp:
        applied: asyncio.Future[Folder]

        def apply_folder(self, folder: Folder) -> CommandOutput:
            self.applied.set_result(folder)
            return CommandOutput([], [])

    async def follow() -> Folder:
        running: Any = FollowedUp()
        running.applied = asyncio.get_running_loop().create_future()
        loaded = load_folder([tmp_path])
        task = asyncio.create_task(commands._follow_files([tmp_path], loaded, running))  # noqa: SLF001
        folder: Folder = await running.applied
        task.cancel()
        return folder

    monkeypatch.setattr(commands, "_stat_files", write_and_stat)
    monkeypatch.setattr(commands, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(commands, "WRITTEN_SECONDS", 0.0)
    assert [m["metadata"]["name"] for m in asyncio.run(follow()).manifests] == ["renamed"]


def test_a_file_that_goes_while_a_command_reads_is_left_out(tmp_path: Path) -> None:
    """The folder lists it, and it cannot be opened any more."""
    api = LocalApi(tmp_path)
    api.write(("QueueTopic", "n", "jobs"), {"metadata": {}, "apiVersion": "shoal.dev/v1beta1"})
    (tmp_path / "queuetopics" / "n" / "gone.yaml").symlink_to("missing")
    assert list(load_objects(tmp_path)) == [("QueueTopic", "n", "jobs")]


def test_idle_and_new_pods_go_first() -> None:
    def make(name: str, *, ready: bool, cost: int, age: int) -> Manifest:
        created = f"2026-01-01T00:00:{age:02}Z"
        notes = {"controller.kubernetes.io/pod-deletion-cost": str(cost)}
        meta = {"name": name, "annotations": notes, "creationTimestamp": created}
        condition = {"type": "Ready", "status": str(ready)}
        return {"metadata": meta, "status": {"conditions": [condition]}}

    pods = [
        make("old", ready=True, cost=0, age=1),
        make("busy", ready=True, cost=9, age=3),
        make("new", ready=True, cost=0, age=2),
        make("starting", ready=False, cost=9, age=0),
    ]
    removed = [pod["metadata"]["name"] for pod in choose_pods_to_remove(pods, 3)]
    assert removed == ["starting", "new", "old"]


def test_ages_are_kubectls() -> None:
    now = datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)
    ages = {119: "119s", 200: "3m20s", 660: "11m", 10800: "3h", 90000: "25h", 700000: "8d"}
    for seconds, text in ages.items():
        stamp = (now - datetime.timedelta(seconds=seconds)).isoformat()
        assert format_age(stamp, now) == text
