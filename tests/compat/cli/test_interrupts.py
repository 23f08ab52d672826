"""Ctrl-C ends every command at once: with 130, without a traceback, and nothing sent is lost.

A command that serves (`shoal server`, `shoal console`) stops in order instead, with 0. Each command
is a process at a terminal of its own, because the subject is how the process ends; together they
take some seconds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.net.cluster import TopicPartition
from support.brokers.commands import SHOAL, Shoal
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

CTRL_C = "\x03"
#: Commands, what each prints once it waits, and its exit status. `work` is a topic with one record,
#: `letters` one of dead letters.
COMMANDS = [
    ("consume work --from-beginning", "job", 130),
    ("consume work --from-beginning -g readers", "job", 130),
    ("share-consume work -g workers --from-beginning", "job", 130),
    ("share-consume work -g askers --from-beginning --ack ask", "[q]uit? ", 130),
    ("top --interval 60", "shoal top", 130),
    ("topics delete work", "[y/N]: ", 130),
    ("dlq purge letters", "[y/N]: ", 130),
    ("users add ann", "New password of ann: ", 130),
    ("schedule run {folder}/schedules.yaml", "SIGTERM ends them", 0),
    ("console --listen 127.0.0.1:0", "The console is at", 0),
    ("server --listener 127.0.0.1:0 --data-dir {folder}/d", "Ready after", 0),
]
SCHEDULE = """
kind: QueueSchedule
metadata: {name: yearly}
spec: {topic: work, schedule: "0 0 1 1 *"}
"""


@pytest.fixture
def work(shared_broker: ShoalProcess) -> Iterator[Queue]:
    with SyncClient(shared_broker.bootstrap) as client:
        yield Queue(client, shared_broker.bootstrap)


def end_of(queue: Queue) -> int:
    """Return the end of the topic's log."""
    where = TopicPartition(queue.topic, 0)
    asked = {where: OffsetSpec.LATEST}
    found = queue.client.run(queue.client.admin.topics.offsets(asked))[where]
    assert not isinstance(found, Exception)
    return found.offset


def test_ctrl_c_ends_a_command(shared_broker: ShoalProcess, tmp_path: Path) -> None:
    """All wait side by side: they start slowly and end quickly."""
    shoal = Shoal(shared_broker.bootstrap)
    with SyncClient(shared_broker.bootstrap) as client:
        Queue(client, shared_broker.bootstrap, topic="work", group="w").produce(["job"])
        letters = {"errors.deadletterqueue.group.enable": "true"}
        dead = Queue(client, shared_broker.bootstrap, topic="letters", topic_configs=letters)
        dead.produce(["letter"])
    (tmp_path / "schedules.yaml").write_text(SCHEDULE)
    terminals = [
        (words, said, status, shoal.at_a_terminal(*words.format(folder=tmp_path).split()))
        for words, said, status in COMMANDS
    ]
    endings = {}
    try:
        for words, said, _, terminal in terminals:
            terminal.expect(said)
            terminal.type(CTRL_C)
            endings[words] = terminal.ended()
            assert not re.search("Traceback|Fatal|Aborted", terminal.text), (words, terminal.text)
    finally:
        for _, _, _, terminal in terminals:
            terminal.kill()
    assert endings == {words: status for words, _, status in COMMANDS}


def test_ctrl_c_keeps_what_was_typed(work: Queue) -> None:
    terminal = Shoal(work.bootstrap).at_a_terminal("produce", work.topic)
    try:
        terminal.expect("Press Ctrl-D to end.\n")
        terminal.type("one\ntwo\n")
        eventually(lambda: end_of(work) == 2)
        terminal.type(CTRL_C)
        status = terminal.ended()
    finally:
        terminal.kill()
    # Nothing else is on the screen, such as a bar within the text.
    assert terminal.text.rstrip("\n") == f"one\ntwo\n^CProduced 2 records to {work.topic}."
    assert status == 130
    assert end_of(work) == 2


@pytest.mark.parametrize("source", ["standard input", "a named pipe"])
def test_ctrl_c_keeps_what_came_through_a_pipe(work: Queue, source: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ["produce", work.topic] + ([f"--file={pipe}"] if source == "a named pipe" else [])
    process = subprocess.Popen(
        [*SHOAL, *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=Shoal(work.bootstrap).environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    # The other end stays open, so the command waits for more.
    stream = pipe.open("w") if source == "a named pipe" else process.stdin
    try:
        stream.write("one\ntwo\n")
        stream.flush()
        eventually(lambda: end_of(work) == 2)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said, status = process.stderr.read(), process.wait()
    finally:
        process.kill()
        with process:
            stream.close()
    assert said == f"Produced 2 records to {work.topic}.\n"
    assert status == 130
    assert end_of(work) == 2
