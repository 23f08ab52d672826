"""`shoal worker` and `shoal share-consume --exec`: processes, their status, and exit codes.

Commands are processes, because the subject is how they start and end.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from shoal.client.client import SyncClient
from support.brokers import forks
from support.brokers.commands import SHOAL, Shoal
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

APPLICATION = """
import asyncio, logging, os, sys
from shoal.worker import Job, Worker

worker = Worker("{group}", shutdown_timeout="{shutdown}")

@worker.handler("{topic}", backoff="10ms")
async def handle(text: str, job: Job) -> None:
    logging.getLogger("app").info("VERSION %s %s", os.getpid(), text)
    if text == "crash" and job.delivery_count == 1:
        os._exit(7)
    if text == "slow":
        await asyncio.Event().wait()
"""


@pytest.fixture
def queue(shared_broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Queue(client, shared_broker.bootstrap)


class Command:
    """A `shoal worker` with an application in a folder of its own."""

    def __init__(self, queue: Queue, folder: Path, *words: str, shutdown: str = "10s") -> None:
        self.folder = folder
        self._text = APPLICATION.format(group=queue.group, topic=queue.topic, shutdown=shutdown)
        self.write_application("one")
        (self._port,) = free_ports(1)
        listen = f"127.0.0.1:{self._port}"
        self._log = (folder / "log").open("w+b")
        self.process = forks.start(
            [*SHOAL, "worker", "app:worker", "--listen", listen, *words],
            environment=os.environ | {"SHOAL_BOOTSTRAP_SERVERS": queue.bootstrap},
            streams=(0, 1, self._log.fileno()),
            folder=folder,
            can_be_interrupted=True,
        )

    def write_application(self, version: str) -> None:
        (self.folder / "app.py").write_text(self._text.replace("VERSION", version))

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the log so far."""
        whole = (self.folder / "log").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in whole if line.endswith("\n") and line[0] == "{"]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines()]

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a page; 0 while nothing listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def count(self, outcome: str) -> float:
        """Return the jobs that ended so, in all processes."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [s for family in families for s in family.samples]
        return sum(
            s.value
            for s in samples
            if s.name == "shoal_worker_jobs_total" and s.labels["outcome"] == outcome
        )

    def wait_until_ready(self) -> None:
        eventually(lambda: self.get("/readyz")[0] == 200, what="the worker is ready")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()


@pytest.fixture
def start(queue: Queue, tmp_path: Path) -> Iterator[Any]:
    commands = []

    def run(*words: str, **options: str) -> Command:
        commands.append(Command(queue, tmp_path, *words, **options))
        return commands[-1]

    yield run
    for command in commands:
        command.close()


def test_a_worker_serves_its_status_and_logs_the_job(queue: Queue, start: Any) -> None:
    headers = (("traceparent", b"00-4bf9-00f0-01"),)
    queue.produce(["a"], key=b"k", headers=headers)
    worker = start()
    worker.wait_until_ready()
    eventually(lambda: worker.count("accepted") == 1)
    assert worker.get("/healthz") == (200, "a slot is left\n")
    line = next(line for line in worker.lines() if line["logger"] == "app")
    assert {name: line[name] for name in ("topic", "partition", "offset", "key")} == {
        "topic": queue.topic,
        "partition": 0,
        "offset": 0,
        "key": "k",
    }
    assert (line["delivery_count"], line["trace_id"]) == (1, "4bf9")
    assert worker.stop() == 0
    queue.drained()


def test_several_processes_share_the_work_and_add_their_counts(queue: Queue, start: Any) -> None:
    """One of them crashes: another starts, and the counts stay."""
    queue.produce(range(20))
    worker = start("--processes", "2", "--concurrency", "1")
    worker.wait_until_ready()
    eventually(lambda: worker.count("accepted") == 20, what="all jobs are done and counted")
    queue.produce(["crash"])
    eventually(lambda: worker.count("accepted") == 21, what="the job of the crash is done")
    assert "ended with 7: another starts" in " ".join(worker.messages())
    worker.wait_until_ready()
    assert worker.stop() == 0
    queue.drained()


def test_a_second_signal_ends_at_once(queue: Queue, start: Any) -> None:
    queue.produce(["slow"])
    worker = start(shutdown="1h")
    eventually(lambda: any("slow" in message for message in worker.messages()))
    worker.process.terminate()
    eventually(lambda: any("stopping" in message for message in worker.messages()))
    assert worker.get("/readyz")[0] in (200, 503)
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(60) == 1
    # The connection is gone, so the record returns to the group.
    eventually(lambda: queue.lag == 1)


def test_children_end_with_their_parent(queue: Queue, start: Any) -> None:
    queue.produce(["a"])
    worker = start("--processes", "2")
    worker.wait_until_ready()
    worker.process.kill()
    eventually(lambda: worker.messages().count("the parent process has ended: stopping") == 2)


def test_a_worker_starts_again_when_its_application_changes(queue: Queue, start: Any) -> None:
    queue.produce(["a"])
    worker = start("--reload")
    eventually(lambda: any(m.startswith("one ") for m in worker.messages()))
    (worker.folder / "app.py").write_text("this is not Python")
    eventually(lambda: "ended with 1: another starts" in " ".join(worker.messages()))
    worker.write_application("two")
    queue.produce(["b"])
    eventually(lambda: any(m.startswith("two ") and m.endswith(" b") for m in worker.messages()))
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("application", "message"),
    [
        ("app", "'app' is not MODULE:NAME, such as app:worker"),
        ("none:worker", "there is no module 'none' in"),
        ("json:dumps", "json:dumps is <function dumps"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_named(
    application: str, message: str, shared_broker: ShoalProcess
) -> None:
    assert message in Shoal(shared_broker.bootstrap).mistake("worker", application)


def test_an_unreachable_broker_is_one_sentence(start: Any) -> None:
    """The last of the log, and no traceback."""
    (port,) = free_ports(1)
    command = start("--bootstrap-server", f"127.0.0.1:{port}")
    assert command.process.wait() == 3
    *_, said = (command.folder / "log").read_text().splitlines()
    assert said.startswith(f"shoal: no broker at 127.0.0.1:{port}: connection refused. Start a")
    assert "warning" not in (command.folder / "log").read_text()


# Commands for records.

SCRIPT = """
read value
echo "$value $SHOAL_TOPIC $SHOAL_PARTITION $SHOAL_OFFSET $SHOAL_DELIVERY_COUNT $SHOAL_KEY \
$SHOAL_HEADER_A_B" >> {out}
echo "cannot do $value" >&2
case $value in
  good) exit 0 ;;
  bad) exit 65 ;;
  *) test "$SHOAL_DELIVERY_COUNT" = 2 || exit 75 ;;
esac
"""


def test_exit_codes_of_a_command_are_outcomes(queue: Queue, tmp_path: Path) -> None:
    letters = f"dlq.{queue.topic}"
    shoal = Shoal(queue.bootstrap)
    shoal.run("topics", "create", letters, "-c", "errors.deadletterqueue.group.enable=true")
    queue.configure(errors_deadletterqueue_topic_name=letters)
    queue.produce(["good", "bad", "later"], key=b"k", headers=(("a-b", b"h"),))
    out = tmp_path / "out"
    script = tmp_path / "script"
    script.write_text(SCRIPT.format(out=out))
    words = ["share-consume", queue.topic, "-g", queue.group, "--backoff", "10ms"]
    with (tmp_path / "log").open("w") as log_file:
        process = forks.start(
            [*SHOAL, *words, "--exec", f"sh {script}"],
            environment=shoal.environment,
            streams=(0, 1, log_file.fileno()),
        )
    try:
        eventually(lambda: out.exists() and len(out.read_text().splitlines()) == 4)
        queue.drained()
    finally:
        process.terminate()
        assert process.wait() == 0
    log = (tmp_path / "log").read_text()
    topic = queue.topic
    assert sorted(out.read_text().splitlines()) == [
        f"bad {topic} 0 1 1 k h",
        f"good {topic} 0 0 1 k h",
        f"later {topic} 0 2 1 k h",
        f"later {topic} 0 2 2 k h",
    ]
    assert "@1 rejected at delivery 1: shoal.worker.Reject: exit code 65: cannot do bad" in log
    assert "CommandFailed: exit code 75: cannot do later" in log
    (letter,) = shoal.json("dlq", "peek", letters)
    assert letter["exception_message"] == "exit code 65: cannot do bad"
    assert (letter["exception"], letter["code"]) == ("shoal.worker.Reject", "65")


def test_a_command_that_takes_too_long_is_killed_with_its_children(
    queue: Queue, tmp_path: Path
) -> None:
    queue.produce(["a"])
    pids = tmp_path / "pids"
    command = f"sleep 1000 & echo $! >> {pids}; test $SHOAL_DELIVERY_COUNT = 2 && kill $! || wait"
    words = ["share-consume", queue.topic, "-g", queue.group, "--backoff", "10ms"]
    process = forks.start(
        [*SHOAL, *words, "--exec-timeout", "500ms", "--exec", command],
        environment=Shoal(queue.bootstrap).environment,
        streams=(0, 1, 2),
    )
    try:
        eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        queue.drained()
        first = int(pids.read_text().split()[0])
        eventually(lambda: not is_alive(first), what="the child of the command ended")
    finally:
        process.terminate()
        assert process.wait() == 0


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--ack", "accept", "the exit code decides"), ("--backoff", "soon", "not a duration")],
)
def test_options_that_commands_cannot_have_are_refused(
    option: str, value: str, message: str, shared_broker: ShoalProcess
) -> None:
    words = ["share-consume", "t", "-g", "g", "--exec", "cat", option, value]
    assert message in Shoal(shared_broker.bootstrap).refusal(*words, status=2)
