"""`shoal up`: manifests as processes on this machine, decided by the operator's own code.

A module has one `shoal up`, because each starts a broker; tests that kill or refuse have their own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from shoal.testing import BrokerFailed, shoal_up
from support.brokers.commands import SHOAL, Terminal
from support.brokers.local_up import LocalUp, make_manifest, make_queue, write_manifests
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


#: A consumer that waits for the file `go` in the folder of its manifests, so that the lag stays.
CONSUME = """
while [ ! -e go ]; do sleep 0.1; done
exec shoal share-consume "$SHOAL_TOPICS" --group "$SHOAL_GROUP_ID"
"""


#: A consumer that holds a record until it is told to end. Then it gives the record back, and asks
#: for it once more.
HOLD = """
import os, signal
from pathlib import Path
from shoal.client import SyncClient

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with SyncClient(os.environ["SHOAL_BOOTSTRAP_SERVERS"]) as client:
    def poll(consumer):
        while not (records := consumer.poll()):
            pass
        return records[0]

    with client.share_consumer(os.environ["SHOAL_GROUP_ID"], ["jobs"]) as consumer:
        poll(consumer)
        Path("holding").touch()
        signal.sigwait([signal.SIGTERM])
        consumer.close(undelivered=True)
    with client.share_consumer(os.environ["SHOAL_GROUP_ID"], ["jobs"]) as consumer:
        Path("again").write_text(f"delivery {poll(consumer).delivery_count}")
"""


#: A consumer that gives up all that it gets.
REJECT = 'exec shoal share-consume "$SHOAL_TOPICS" --group "$SHOAL_GROUP_ID" --ack reject'


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def try_to_listen(squatter: socket.socket, port: int) -> bool:
    try:
        squatter.bind(("127.0.0.1", port))
    except OSError:
        return False
    squatter.listen()
    return True


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalUp]:
    """A cluster, a topic of two partitions, a group, and up to four consumers."""
    folder = tmp_path_factory.mktemp("queue")
    manifests = make_queue(
        ["sh", "-c", CONSUME],
        minReplicas=0,
        maxReplicas=4,
        targetLagPerReplica=10,
        recordsPerReplica=10,
        cooldown="1s",
        scaleToZeroAfter="2s",
    )
    manifests[0]["spec"]["config"] = {"num.partitions": "3", "log.retention.ms": "3600000"}
    manifests[0]["spec"]["resources"] = {"limits": {"memory": "1Gi"}}
    write_manifests(folder, manifests)
    up = LocalUp(folder)
    up.start()
    try:
        up.wait_until("shareconsumer", "printers")
        yield up
    finally:
        up.close()


def test_the_operators_deciders_make_all_ready(queue: LocalUp) -> None:
    cluster = queue.wait_until("queuecluster", "main", reason="Reconciled")
    assert (cluster["brokersReady"], cluster["appliedConfig"]) == ("1/1", ["log.retention.ms"])
    topic = queue.wait_until("queuetopic", "jobs", reason="Reconciled")
    assert (topic["partitions"], topic["replicas"]) == (2, 1)
    assert queue.wait_until("sharegroup", "workers")["state"] == "Empty"


def test_other_commands_in_the_folder_reach_the_cluster(queue: LocalUp) -> None:
    """The static config is in the broker's file, and the dynamic one set by a request."""
    topics = json.loads(queue.run("topics", "list", "-o", "json").stdout)
    assert [row["topic"] for row in topics] == ["jobs"]
    configs = json.loads(queue.run("configs", "describe", "broker", "0", "-o", "json").stdout)
    values = {row["config"]: row["value"] for row in configs}
    assert (values["num.partitions"], values["log.retention.ms"]) == ("3", "3600000")


def test_get_prints_kubectls_tables(queue: LocalUp) -> None:
    head, row = queue.run("get", "qt").stdout.splitlines()
    assert head.split() == "NAME CLUSTER TOPIC PARTITIONS READY REASON AGE".split()
    assert row.split()[:6] == "jobs main jobs 2 True Reconciled".split()
    assert "127.0.0.1:" in queue.run("get", "queuecluster/main").stdout
    assert queue.run("get", "qt,sg", "-o", "name").stdout.splitlines() == [
        "queuetopic.shoal.dev/jobs",
        "sharegroup.shoal.dev/workers",
    ]
    missing = queue.run("get", "queuetopic", "other")
    assert (missing.returncode, missing.stderr) == (
        1,
        'Error from server (NotFound): queuetopics.shoal.dev "other" not found\n',
    )
    assert queue.run("get", "queues").returncode == 1


def test_get_follows_changes(queue: LocalUp) -> None:
    """One line for the resource, and one more when its status changes."""
    words = [*SHOAL, "get", "queuetopic", "--watch"]
    with subprocess.Popen(words, cwd=queue.folder, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert watching.stdout.readline().split()[:3] == ["NAME", "CLUSTER", "TOPIC"]
            assert watching.stdout.readline().split()[0] == "jobs"
            extra = make_manifest("QueueTopic", "extra", cluster="main", partitions=1)
            write_manifests(queue.folder / "extra", [extra])
            assert queue.run("apply", "-f", "extra").returncode == 0
            row: list[str] = []
            while row[4:6] != ["True", "Reconciled"]:
                row = watching.stdout.readline().split()
                assert row[0] == "extra"
        finally:
            watching.kill()
    assert queue.run("delete", "queuetopic", "extra").returncode == 0


def test_fields_for_kubernetes_are_listed_once(queue: LocalUp) -> None:
    listed = "  not on one machine: spec.resources, spec.storage.size\n"
    assert queue.output.count(listed) == 1
    described = queue.run("describe", "queuecluster", "main").stdout
    assert "not-on-one-machine=spec.resources, spec.storage.size" in described


def test_consumers_scale_past_the_partitions_and_to_zero(queue: LocalUp) -> None:
    """Their logs can be followed before the first one runs, as the quick start does."""
    assert queue.get_status("shareconsumer", "printers")["desiredReplicas"] == 0
    following = [*SHOAL, "logs", "printers", "--follow"]
    followed = queue.folder / "followed"
    with (
        followed.open("w") as output,
        subprocess.Popen(
            following, cwd=queue.folder, stdout=output, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stderr is not None
        try:
            waiting = '"printers" has not run yet: waiting for its first line.\n'
            assert process.stderr.readline() == waiting
            scale_to_four(queue)
            eventually(lambda: followed.read_text().count("job ") >= 200)
        finally:
            process.kill()
    eventually(lambda: not any("printers" in owner for owner in queue.list_processes()))
    lines = queue.run("logs", "printers").stdout.splitlines()
    assert {line.split()[-1] for line in lines if " job " in line} == {str(i) for i in range(200)}


def scale_to_four(queue: LocalUp) -> None:
    """Send records, and let the consumers print them once four of them run."""
    sent = queue.run("produce", "jobs", stdin="".join(f"job {i}\n" for i in range(200)))
    assert sent.returncode == 0, sent.stderr
    eventually(lambda: "Scaled" in queue.run("describe", "shc", "printers").stdout)
    described = queue.run("describe", "shc", "printers").stdout
    assert "lag 200 / 10 a consumer" in described
    eventually(lambda: sum("printers" in owner for owner in queue.list_processes()) == 4)
    (queue.folder / "go").touch()


def test_a_manifest_that_kubectl_refuses_changes_nothing(queue: LocalUp) -> None:
    write_manifests(
        queue.folder / "more",
        [
            make_manifest("QueueTopic", "none", cluster="main", partitions=0),
            make_manifest("QueueTopic", "more", cluster="main", partitions=1),
        ],
    )
    applied = queue.run("apply", "-f", "more")
    assert (applied.returncode, applied.stdout) == (1, "queuetopic.shoal.dev/more created\n")
    assert applied.stderr == (
        'The QueueTopic "none" is invalid: spec.partitions: Invalid value: 0: spec.partitions in '
        "body should be greater than or equal to 1\n"
    )
    queue.wait_until("queuetopic", "more")
    assert queue.run("get", "queuetopic", "none").returncode == 1
    gone = queue.run("delete", "queuetopic", "more")
    assert gone.stdout == 'queuetopic.shoal.dev "more" deleted from default namespace\n'
    assert queue.run("get", "queuetopic", "more").returncode == 1


def test_a_consumer_that_crashes_is_reported_as_in_a_cluster(queue: LocalUp) -> None:
    """Three starts take ten seconds, the kubelet's back-off; the test ends in the first one."""
    crashing = make_queue(["sh", "-c", "echo no such printer; exit 3"], minReplicas=1)[3]
    container = crashing["spec"]["deployment"]["template"]["spec"]["containers"][0]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    missing = make_queue(["no-such-program"], minReplicas=1)[3]
    for manifest, name in ((crashing, "crashing"), (missing, "missing")):
        manifest["metadata"]["name"] = name
    write_manifests(queue.folder / "crashes", [crashing, missing])
    assert queue.run("apply", "-f", "crashes").returncode == 0
    # Before the back-off, a container that has ended has the reason Error for a moment.
    wait_until = partial(queue.wait_until, "shareconsumer", ready="False", reason="ConsumerFails")
    status = wait_until("crashing", message="CrashLoopBackOff (exit code 3)")
    assert "no such printer" in status["Ready"]["message"]
    wait_until("missing", message='exec: "no-such-program": executable file not found in $PATH')
    assert queue.get_status("queuetopic", "jobs")["Ready"]["status"] == "True"
    assert queue.run("delete", "-f", "crashes").returncode == 0


def test_a_broker_whose_port_is_taken_is_reported_and_comes_back(queue: LocalUp) -> None:
    """The second restart waits for ten seconds, as the kubelet's does."""
    assert queue.run("produce", "jobs", stdin="before\n").returncode == 0
    pid = queue.list_processes()["default/main-broker-0/broker"]
    port = int(queue.run("get", "qc").stdout.split("127.0.0.1:")[1].split()[0])
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: try_to_listen(squatter, port))
        status = queue.wait_until("queuecluster", "main", ready="False", reason="BrokerFails")
        assert str(port) in status["Ready"]["message"]
        killed = "container broker of pod main-broker-0 ended with exit code 137; it is started"
        assert killed in queue.run("describe", "queuecluster", "main").stdout
    queue.wait_until("queuecluster", "main", reason="Reconciled")
    assert queue.list_processes()["default/main-broker-0/broker"] != pid
    assert queue.run("consume", "jobs", "--from-beginning", "-n", "1").stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.nightly
def test_a_full_disk_is_reported_and_ends_when_there_is_space(small_disk: Path) -> None:
    """Status and events are those in memory, since no file can be written. The operator asks the
    broker for its disk every half minute, so it runs at night (by day: `test_local_disk` and
    `test_diagnostics`)."""
    write_manifests(small_disk, make_queue(["true"])[:2])
    up = LocalUp(small_disk)
    try:
        assert up.run("up", "--detach").returncode == 0
        with pytest.raises(OSError, match="No space left on device"):
            (small_disk / "fill").write_bytes(bytes(32 << 20))
        eventually(lambda: "DiskFull" in up.run("get", "queuecluster").stdout)
        described = up.run("describe", "queuecluster", "main").stdout
        assert "DiskNotWritable" in described
        assert f"{up.state} cannot be written: No space left on device. Free" in described
        topic = up.run("get", "queuetopic").stdout.splitlines()[1].split()
        assert topic[4:6] == ["True", "Reconciled"], "the rest goes on"
        (small_disk / "fill").unlink()
        up.wait_until("queuecluster", "main", reason="Reconciled")
        assert up.run("produce", "jobs", stdin="one\n").returncode == 0
    finally:
        up.run("down")


def test_no_library_of_kubernetes_is_loaded() -> None:
    """Nor what `cel`'s own command and structlog's coloured tracebacks would import, a quarter."""
    code = "import sys, shoal_operator.local.up; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    unused = {"kopf", "lightkube", "kubernetes", "kubernetes_asyncio", "httpx2"}
    unused |= {"prompt_toolkit", "rich", "pygments", "colorama"}
    assert not unused & set(modules.split())


def test_an_interrupt_ends_consumers_while_the_brokers_serve(tmp_path: Path) -> None:
    """Until the consumer has ended, the broker takes its record back and delivers it again. It
    starts a broker."""
    write_manifests(tmp_path, make_queue([sys.executable, "-c", HOLD], minReplicas=1))
    up = LocalUp(tmp_path)
    up.start()
    try:
        up.wait_until("queuetopic", "jobs")
        assert up.run("produce", "jobs", stdin="one\n").returncode == 0
        eventually((tmp_path / "holding").exists)
        assert up.end(signal.SIGINT) == 0
        assert (tmp_path / "again").read_text() == "delivery 1"
        assert up.list_processes() == {}
    finally:
        up.close()


def test_the_next_up_ends_the_processes_of_a_killed_one(queue: LocalUp, tmp_path: Path) -> None:
    """Nothing of another folder is ended. Its consumers may end by themselves, without lag."""
    write_manifests(tmp_path, make_queue(["sleep", "1000"], minReplicas=1))
    processes = queue.list_processes()
    up, others = LocalUp(tmp_path), {o: p for o, p in processes.items() if o.endswith("/broker")}
    assert others
    up.start()
    try:
        eventually(lambda: len(up.list_processes()) == 2)
        up.wait_until("shareconsumer", "printers")
        assert up.run("produce", "jobs", stdin="kept\n").returncode == 0
        orphans = up.list_processes()
        up.end(signal.SIGKILL)
        assert all(map(is_alive, orphans.values()))
        up.start()
        eventually(lambda: not any(map(is_alive, orphans.values())))
        # The status is still that of the killed one.
        eventually(lambda: len(up.list_processes()) == 2)
        consumed = ("consume", "jobs", "--from-beginning", "-n", "1")
        eventually(lambda: up.run(*consumed).stdout == "kept\n")
        last = up.list_processes()
        assert up.end() == 0
        assert not any(map(is_alive, last.values()))
        assert all(map(is_alive, others.values()))
        assert not (up.state / "client.properties").exists()
    finally:
        up.close()


def test_a_detached_up_follows_the_files_and_goes_down(tmp_path: Path) -> None:
    """Two brokers. The manifests ask for certificates, and `--plaintext` for none."""
    folder = tmp_path / "queue"
    cluster, topic, group, consumer = make_queue(["sh", "-c", REJECT], minReplicas=1)
    del cluster["spec"]["listeners"]
    cluster["spec"]["brokersPerPod"] = 2
    consumer["spec"]["user"] = "worker"
    user = make_manifest("QueueUser", "worker", cluster="main", authentication={"type": "tls"})
    more = make_manifest("QueueTopic", "more", cluster="main", partitions=2)
    write_manifests(folder, [cluster, topic, group, consumer, user], "1.yaml")
    write_manifests(folder, [more], "2.yaml")
    up = LocalUp(folder)
    try:
        done = up.run("up", "--detach", "--watch", "--plaintext")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("Everything is ready. End it with `shoal down`.\n")
        skipped = "queueuser.shoal.dev/worker skipped\n  not with --plaintext: nobody logs in\n"
        assert skipped in done.stdout
        assert "security.protocol" not in (up.state / "client.properties").read_text()
        assert up.get_status("queuecluster", "main")["brokersReady"] == "2/2"
        assert up.run("apply", "-f", "1.yaml").returncode == 0
        assert up.get_status("queuecluster", "main")["Ready"]["status"] == "True"
        assert up.run("produce", "jobs", stdin="one\n").returncode == 0
        assert up.get_status("queuetopic", "more")["Ready"]["status"] == "True"
        more["spec"]["partitions"] = 4
        write_manifests(folder, [more], "2.yaml")
        eventually(lambda: up.get_status("queuetopic", "more").get("partitions") == 4)
        (folder / "2.yaml").write_text("nonsense: [")
        described = ("describe", "queuetopic", "more")
        eventually(lambda: "ManifestUnreadable" in up.run(*described).stdout)
        (folder / "2.yaml").unlink()
        eventually(lambda: not up.get("queuetopic", "more"))
        again = up.run("up")
        assert again.returncode == 1
        assert "another `shoal up` runs" in again.stderr
        assert up.run("down").stdout.startswith("stopped\n")
        assert up.list_processes() == {}
        assert up.run("down", "--purge", "--yes").returncode == 0
        assert not up.state.exists()
    finally:
        up.run("down")


def test_tables_are_redrawn_at_a_terminal(tmp_path: Path) -> None:
    """It starts no broker, because the group's cluster does not exist."""
    write_manifests(tmp_path, make_queue(["true"])[2:3])
    words = [*SHOAL, "up", "--filename", str(tmp_path)]
    terminal = Terminal(words, {**os.environ, "TERM": "xterm"}, columns=120)
    try:
        terminal.expect("sharegroup.shoal.dev/workers created\n")
        terminal.expect("workers      main ")
        terminal.expect("\x1b[1A\x1b[2K")
        terminal.expect("   False   ")
        terminal.type("\x03")
        terminal.expect("stopping: consumers first, brokers last\n")
        assert terminal.ended() == 0
    finally:
        terminal.kill()


def test_a_refused_manifest_fails_a_detached_up_and_a_test(tmp_path: Path) -> None:
    """The rest runs on, as after `kubectl apply`. It starts no broker."""
    none = make_manifest("QueueTopic", "none", cluster="main", partitions=0)
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    write_manifests(tmp_path, [none, settings])
    refusal = (
        'The QueueTopic "none" is invalid: spec.partitions: Invalid value: 0: spec.partitions in '
        "body should be greater than or equal to 1\n"
    )
    with pytest.raises(BrokerFailed) as failed, shoal_up(tmp_path):
        pass
    assert str(failed.value) == (
        f"`shoal up` failed: {refusal}shoal: all else is ready, and runs on. End it with `shoal "
        "down`."
    )


@pytest.mark.parametrize(
    ("docker", "says"),
    [
        ("", "there is no program docker in PATH"),
        ("echo 'Is the daemon running?' >&2; exit 1", "does not answer: Is the daemon running?"),
    ],
)
def test_containers_without_docker_are_refused(tmp_path: Path, docker: str, says: str) -> None:
    write_manifests(tmp_path, make_queue(["true"]))
    programs = tmp_path / "programs"
    programs.mkdir()
    if docker:
        (programs / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (programs / "docker").chmod(0o700)
    up = LocalUp(tmp_path)
    done = up.run("up", "--containers", environment={"PATH": str(programs)})
    assert done.returncode == 1
    assert "--containers needs Docker, " in done.stderr
    assert says in done.stderr
    assert "Without --containers, the commands of consumers run on this machine." in done.stderr


def test_a_secured_cluster_has_certificates_users_permissions_and_redrives(tmp_path: Path) -> None:
    """The schema's default is TLS, and a listener with passwords is beside it."""
    scram = {"name": "scram", "port": 9095, "tls": {}, "authentication": {"type": "scram-sha-512"}}
    mtls = {"name": "tls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}}
    manifests = make_queue(["sh", "-c", REJECT], minReplicas=1)
    manifests[0]["spec"]["listeners"] = [mtls, scram]
    manifests[2]["spec"]["deadLetters"] = {"topic": "dlq.jobs", "create": {}}
    manifests[3]["spec"]["user"] = "worker"
    acls = [{"shareConsumer": {"topics": ["jobs"], "groups": ["workers"]}}]
    redrive = {"deadLetterTopics": ["dlq.jobs"], "topics": ["jobs"], "groups": ["workers"]}
    write_manifests(
        tmp_path,
        [
            *manifests,
            make_manifest(
                "QueueUser", "worker", cluster="main", authentication={"type": "tls"}, acls=acls
            ),
            make_manifest(
                "QueueUser",
                "mender",
                cluster="main",
                authentication={"type": "scram-sha-512"},
                acls=[{"redrive": redrive}],
            ),
        ],
    )
    up = LocalUp(tmp_path)
    up.start()
    try:
        up.wait_until("queueuser", "mender")
        up.wait_until("shareconsumer", "printers")
        assert up.run("produce", "jobs", stdin="one\n").returncode == 0
        letters = ("dlq", "list", "-o", "json")
        eventually(lambda: "dlq.jobs" in up.run(*letters).stdout)
        eventually(lambda: "one" in up.run("dlq", "peek", "dlq.jobs").stdout)
        for user, principal in (("worker", "User:CN=worker"), ("mender", "User:mender")):
            config = f".shoal/users/{user}/client.properties"
            asked = up.run("whoami", "-o", "json", environment={"SHOAL_COMMAND_CONFIG": config})
            assert json.loads(asked.stdout)[0]["principal"] == principal, asked.stderr
        again = make_manifest("Redrive", "again", cluster="main", topic="dlq.jobs", user="mender")
        write_manifests(tmp_path / "more", [again])
        assert up.run("apply", "-f", "more").returncode == 0
        eventually(lambda: up.get_status("redrive", "again").get("sent") == 1)
        anybody = up.run(
            "topics", "list", "-b", up.run("get", "qc").stdout.split()[-2].split(",")[0]
        )
        assert anybody.returncode == 3
        mode = (up.state / "client" / "client.pem").stat().st_mode
        assert mode & 0o077 == 0
    finally:
        up.close()
