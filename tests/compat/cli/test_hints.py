"""What commands say to a new user about records that do not arrive, or that leave the queue."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess


@pytest.fixture
def queued(shared_broker: ShoalProcess) -> Iterator[Queue]:
    """A topic with three records, and no group yet."""
    with SyncClient(shared_broker.bootstrap) as client:
        queue = Queue(client, shared_broker.bootstrap, share_auto_offset_reset="latest")
        queue.produce(range(3))
        yield queue


def command_in(said: str) -> list[str]:
    """Return the words of the command that a message names."""
    shown = re.search(r"`shoal (groups reset-offsets [^`]+)`", said)
    assert shown is not None, said
    return shlex.split(shown[1])


def at_the_end(queue: Queue) -> list[str]:
    """Return the words of the command with which a group starts as a member's first fetch does."""
    words = f"groups reset-offsets {queue.group} -t {queue.topic} --to-latest --type share"
    return [*words.split(), "--execute"]


@pytest.mark.parametrize("command", ["share-consume", "consume"])
def test_a_new_group_says_what_it_leaves_behind(queued: Queue, command: str) -> None:
    shoal = Shoal(queued.bootstrap)
    take = (command, queued.topic, "-g", queued.group, "-f", "{value}")
    done = shoal.run(*take, "--timeout", "500ms")
    assert done.stdout == ""
    assert f"group {queued.group} is new to {queued.topic}" in done.stderr
    assert "leaves 3 records behind" in done.stderr
    shoal.run(*command_in(done.stderr))
    done = shoal.run(*take, "-n", "3")
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2"], "")


def test_key_ranges_of_a_topic_that_does_not_allow_them(queued: Queue) -> None:
    """In a process of its own, because the test's would take the warning of the client."""
    shoal = Shoal(queued.bootstrap)
    words = ("consume", queued.topic, "-g", f"ranges-{queued.group}", "--from-beginning", "-n", "3")
    done = shoal.start_process_to_end(*words, "--key-ranges", "assigned")
    assert done.stdout.split() == ["0", "1", "2"]
    change = re.search(
        r"`shoal (configs set topic [^`]+ shoal\.key\.ranges\.enable=true)`", done.stderr
    )
    assert change is not None, done.stderr
    shoal.run(*shlex.split(change[1]))
    done = shoal.start_process_to_end(*words[:-2], "--key-ranges", "assigned", "--timeout", "100ms")
    assert done.stderr == ""


def test_a_group_from_the_beginning_leaves_nothing_behind(queued: Queue) -> None:
    queued.configure(share_auto_offset_reset="earliest")
    take = ("share-consume", queued.topic, "-g", queued.group, "-n", "3", "-f", "{value}")
    done = Shoal(queued.bootstrap).run(*take)
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2"], "")


def test_the_description_of_a_group_that_has_done_nothing(queued: Queue) -> None:
    shoal = Shoal(queued.bootstrap)
    shoal.run(*at_the_end(queued))
    said = shoal.says("groups", "describe", queued.group)
    assert f"3 records of {queued.topic} are before the start of this group" in said
    assert "Nothing has changed." in shoal.says(*command_in(said))  # It only shows a plan.
    shoal.run(*command_in(said), "--execute")
    assert "before the start" not in shoal.says("groups", "describe", queued.group)


def test_a_queue_of_delayed_records(queued: Queue, shared_broker: ShoalProcess) -> None:
    """The description says when the next one is due."""
    shoal = Shoal(queued.bootstrap)
    queued.configure(share_auto_offset_reset="latest", share_delay_max_ms="3600000")
    shoal.run(*at_the_end(queued))
    shoal.run("produce", queued.topic, "-H", "shoal.deliver.after=3600000", stdin="later\n")
    worker = shoal.start("share-consume", queued.topic, "-g", queued.group)
    look = ("groups", "describe", queued.group, "--metrics", shared_broker.metrics_url)
    wanted = "No record can be delivered yet: 1 is delayed. The next one is due at "
    try:
        eventually(lambda: wanted in shoal.says(*look))
    finally:
        worker.kill()


def test_share_consume_at_a_terminal_says_that_it_accepts(queued: Queue) -> None:
    words = ("share-consume", queued.topic, "-g", queued.group, "--from-beginning", "-n", "3")
    terminal = Shoal(queued.bootstrap).at_a_terminal(*words, columns=200)
    terminal.expect(
        "shoal: printed records are accepted and leave the queue. To only look, use"
        f" `shoal consume {queued.topic} --from-beginning`.\n"
    )
    assert terminal.ended() == 0
