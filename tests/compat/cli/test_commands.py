"""The everyday commands: their output, their errors, and their exit statuses."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from support.brokers.commands import SHOAL, Shoal
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker whose configs name its metrics listener, so that commands find it."""
    (port,) = free_ports(1)
    process = ShoalProcess(tmp_path_factory.mktemp("cli") / "data", metrics=f"127.0.0.1:{port}")
    yield process.start()
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture(scope="module")
def shoal(server: ShoalProcess) -> Shoal:
    return Shoal(server.bootstrap)


@pytest.fixture
def topic(shoal: Shoal) -> str:
    """A topic with two partitions and six records, 0 to 5, in turn."""
    name = f"numbers-{next(_numbers)}"
    shoal.run("topics", "create", name, "-p", "2")
    shoal.run("produce", name, stdin="0\n1\n2\n3\n4\n5\n")
    return name


def test_topics(shoal: Shoal) -> None:
    shoal.run("topics", "create", "kept", "-p", "2", "-c", "retention.ms=60000")
    assert (
        shoal.says("topics", "create", "kept", "--if-not-exists") == "Topic kept already exists.\n"
    )
    assert (
        shoal.says(
            "topics",
            "alter",
            "kept",
            "-p",
            "3",
            "--set",
            "max.message.bytes=5000",
            "--unset",
            "retention.ms",
        )
        == "Altered topic kept.\n"
    )
    (found,) = shoal.json("topics", "describe", "kept")
    assert found["configs"] == {"max.message.bytes": "5000"}
    assert [p["log_end_offset"] for p in found["partitions"]] == [0, 0, 0]
    text = shoal.says("topics", "describe", "kept")
    assert "max.message.bytes=5000" in text
    assert "LOG END OFFSET" in text
    assert "kept" in [row["topic"] for row in shoal.json("topics", "list")]
    assert shoal.says("topics", "delete", "kept", "--yes") == "Deleted topic kept.\n"
    assert shoal.says("topics", "delete", "kept", "--yes", "--if-exists") == ""


def test_offsets_and_old_records(shoal: Shoal, topic: str) -> None:
    assert [r["offset"] for r in shoal.json("topics", "offsets", topic)] == [3, 3]
    assert [r["offset"] for r in shoal.json("topics", "offsets", topic, "--at", "1h")] == [0, 0]
    shoal.run("topics", "delete-records", topic, "--before", "2", "-p", "0")
    (found,) = shoal.json("topics", "describe", topic)
    assert [p["log_start_offset"] for p in found["partitions"]] == [2, 0]
    shoal.run("topics", "delete-records", topic, "--before", "all")
    assert shoal.says("consume", topic, "--from-beginning", "--exit-at-end") == ""


def test_produce_and_consume(shoal: Shoal, tmp_path: Path) -> None:
    shoal.run("topics", "create", "words", "-p", "1")
    shoal.run("produce", "words", "-K", ":", "-H", "from=test", stdin="a:1\nb:2\nno value:\n")
    file = tmp_path / "records.json"
    file.write_text('{"value": {"x": 1}, "key": "c", "headers": {"h": "v"}, "timestamp": 5}\n')
    shoal.run("produce", "words", "--file", str(file), "--input", "json", "--compression", "zstd")
    rows = [
        json.loads(line)
        for line in shoal.says(
            "consume", "words", "--from-beginning", "-e", "-f", "json"
        ).splitlines()
    ]
    assert [(r["key"], r["value"]) for r in rows] == [
        ("a", "1"),
        ("b", "2"),
        ("no value", ""),
        ("c", '{"x": 1}'),
    ]
    assert rows[0]["headers"] == [["from", "test"]]
    assert rows[3]["headers"] == [["h", "v"]]
    assert rows[3]["timestamp"] == 5
    read = ("consume", "words", "-f", "{offset}")
    assert shoal.says(*read, "--offset", "1", "-n", "2") == "1\n2\n"
    assert shoal.says(*read, "--offset", "-1", "-e") == "3\n"
    assert shoal.says(*read, "--timestamp", "1h", "-n", "1") == "0\n"
    assert shoal.says(*read, "--timeout", "200ms") == ""


def test_a_consumer_group_from_its_first_record_to_its_end(shoal: Shoal, topic: str) -> None:
    group = f"group-of-{topic}"
    read = ("consume", topic, "-g", group, "--from-beginning", "-f", "{partition} {offset}")
    first = shoal.says(*read, "-n", "2").splitlines()
    assert len(first) == 2
    (found,) = shoal.json("groups", "describe", group)
    assert (found["type"], found["lag"], found["members"]) == ("Consumer", 4, [])
    rest = shoal.says(*read, "-n", "4").splitlines()
    assert sorted(first + rest) == [f"{p} {o}" for p in (0, 1) for o in (0, 1, 2)]
    plan = shoal.says("groups", "reset-offsets", group, "-t", f"{topic}:1", "--to-earliest")
    assert "Nothing has changed. Add --execute" in plan
    assert shoal.json("groups", "lag", group)[0]["lag"] == 0
    shoal.run("groups", "reset-offsets", group, "-t", topic, "--shift-by", "-1", "--execute")
    assert shoal.json("groups", "lag", group)[0]["lag"] == 2
    shoal.run("groups", "delete-offsets", group, "-t", topic)
    assert shoal.json("groups", "describe", group)[0]["partitions"] == []
    assert shoal.says("groups", "delete", group) == f"Deleted group {group}.\n"


def test_a_share_group_from_its_first_record_to_its_end(shoal: Shoal, topic: str) -> None:
    group = f"share-of-{topic}"
    take = ("share-consume", topic, "-g", group, "--from-beginning", "--timeout", "60s")
    text = shoal.says(*take, "-n", "1", "-a", "accept")
    assert text.startswith(f"{topic}-")
    assert " @0 delivery 1: " in text
    assert shoal.json("groups", "lag", group)[0]["lag"] == 5
    again = shoal.says(
        *take, "-f", "{partition} {offset} {delivery_count}", "-n", "10", "-a", "release"
    ).splitlines()
    assert len(again) == 10
    assert max(int(line.split()[2]) for line in again) > 1
    shoal.run("groups", "reset-offsets", group, "-t", topic, "--to-latest", "--execute")
    assert shoal.json("groups", "lag", group)[0]["lag"] == 0
    shoal.run("groups", "reset-offsets", group, "-t", topic, "--by-duration", "1h", "--execute")
    assert shoal.json("groups", "lag", group)[0]["lag"] == 6
    assert len(shoal.says(*take, "-n", "6", "-a", "accept").splitlines()) == 6
    assert shoal.json("groups", "lag", group)[0]["lag"] == 0
    shoal.run("groups", "delete-offsets", group, "-t", topic)
    assert shoal.says("groups", "delete", group) == f"Deleted group {group}.\n"


def test_from_beginning_sets_positions_once_and_no_config(shoal: Shoal, topic: str) -> None:
    group = f"begins-{topic}"
    take = ("share-consume", topic, "-g", group, "--from-beginning", "-f", "{value}")
    assert len(shoal.says(*take, "-n", "6").split()) == 6
    described = shoal.says("configs", "describe", "group", group)
    assert "earliest" not in described, described
    # A group that has a position resumes from there.
    shoal.run("produce", topic, stdin="6\n")
    assert shoal.says(*take, "-n", "1").split() == ["6"]
    shoal.run("groups", "reset-offsets", group, "-t", topic, "--to-latest", "--execute")
    shoal.run("produce", topic, stdin="7\n")
    assert shoal.says(*take, "-n", "1").split() == ["7"]
    # The command joins a group that has a running member.
    member = shoal.start("share-consume", topic, "-g", group, "--timeout", "60s")
    eventually(lambda: len(shoal.json("groups", "describe", group)[0]["members"]) == 1)
    assert shoal.says(*take, "--timeout", "1s") == ""
    assert member.interrupt() == 130


def test_where_brokers_are_is_read_from_the_environment(shoal: Shoal, topic: str) -> None:
    """SHOAL_BOOTSTRAP is the name of earlier versions."""
    where = shoal.environment["SHOAL_BOOTSTRAP_SERVERS"]
    rest = {k: v for k, v in shoal.environment.items() if not k.startswith("SHOAL_BOOTSTRAP")}
    for names, found in (
        ({"SHOAL_BOOTSTRAP": where}, True),
        ({"SHOAL_BOOTSTRAP_SERVERS": where, "SHOAL_BOOTSTRAP": "127.0.0.1:1"}, True),
        ({"SHOAL_BOOTSTRAP": "127.0.0.1:1"}, False),
    ):
        one = Shoal(where)
        one.environment = rest | names
        done = one.run("topics", "list", status=0 if found else 3)
        assert (topic in done.stdout) is found
        assert found or "SHOAL_BOOTSTRAP_SERVERS" in done.stderr


def test_asking_for_each_acknowledgement(shoal: Shoal) -> None:
    letters = "dlq.asked"
    shoal.run("topics", "create", "asked", "-p", "1")
    shoal.run("topics", "create", letters, "-c", "errors.deadletterqueue.group.enable=true")
    config = f"errors.deadletterqueue.topic.name={letters}"
    shoal.run("configs", "set", "group", "askers", config)
    shoal.run("produce", "asked", stdin="first\nsecond\nthird\n")
    terminal = shoal.at_a_terminal(
        "share-consume", "asked", "-g", "askers", "--from-beginning", "--ack", "ask"
    )
    terminal.expect("@0 delivery 1: first\n")
    terminal.expect("[q]uit? ")
    terminal.type("n\n")  # Renew; the command asks again.
    terminal.expect("[q]uit? ")
    terminal.type("l\n")
    terminal.expect("@0 delivery 2: first\n")
    terminal.type("a\n")
    terminal.expect("@1 delivery 1: second\n")
    terminal.type("j no second chance\n")
    terminal.expect("@2 delivery 1: third\n")
    terminal.type("q\n")
    assert terminal.ended() == 0
    assert eventually(lambda: shoal.json("groups", "lag", "askers")[0]["lag"] == 1)
    take = ("share-consume", "asked", "-g", "askers", "-n", "1", "-f", "{value}")
    assert shoal.says(*take) == "third\n"
    (letter,) = shoal.json("dlq", "peek", letters)
    assert (letter["source_offset"], letter["exception_message"]) == (1, "no second chance")


def test_configs(shoal: Shoal) -> None:
    said = shoal.says("configs", "set", "group", "tuned", "share.delivery.count.limit=7")
    assert said == "Set share.delivery.count.limit of group tuned.\n"
    (row,) = shoal.json("configs", "describe", "group", "tuned", "--changed")
    assert (row["config"], row["value"]) == ("share.delivery.count.limit", "7")
    assert {"type": "group", "name": "tuned"} in shoal.json("configs", "list", "group")
    shoal.run("configs", "unset", "group", "tuned", "share.delivery.count.limit")
    assert "have their default values" in shoal.says(
        "configs", "describe", "group", "tuned", "--changed"
    )
    broker = shoal.json("configs", "describe", "broker", "1", "group.share.max.size")
    assert broker[0]["value"] == "200"
    assert "share.no.such" in shoal.refusal("configs", "set", "group", "tuned", "share.no.such=1")


def test_top(shoal: Shoal, topic: str) -> None:
    shoal.run("share-consume", topic, "-g", "watched", "--from-beginning", "-n", "2")
    text = shoal.says("top", "--once", "--interval", "0.2")
    assert "1 broker" in text
    assert "IN/S" in text
    (line,) = [line for line in text.splitlines() if line.startswith("watched ")]
    assert line.split()[:5] == ["watched", "Share", "Empty", "0", "4"]
    in_flight, redelivered, waiting, dead_lettered = line.split()[7:]
    assert in_flight.isdigit()
    assert (redelivered, waiting, dead_lettered) == ("0", "0", "0")


def test_top_for_programs(shoal: Shoal, topic: str) -> None:
    group = f"watched-{topic}"
    shoal.run("share-consume", topic, "-g", group, "--from-beginning", "-n", "2")
    found = shoal.json("top", "--interval", "0.2")
    assert found["brokers"] == 1
    assert {"topic": topic, "partitions": 2, "records": 6, "in_per_s": 0.0} in found["topics"]
    (row,) = [row for row in found["groups"] if row["group"] == group]
    assert (row["state"], row["members"], row["lag"], row["dead_per_s"]) == ("Empty", 0, 4, 0.0)
    as_yaml = yaml.safe_load(shoal.says("top", "--interval", "0.2", "-o", "yaml"))
    assert as_yaml["groups"] == found["groups"]


def test_yaml_has_what_json_has(shoal: Shoal, topic: str) -> None:
    words = ("topics", "describe", topic)
    assert yaml.safe_load(shoal.says(*words, "-o", "yaml")) == shoal.json(*words)


def test_groups_of_redrives_are_reserved_and_hidden(shoal: Shoal, topic: str) -> None:
    for command in ("consume", "share-consume"):
        assert "is reserved" in shoal.mistake(command, topic, "-g", "redrive.mine")
    shoal.run("queue", "create", f"{topic}-q", "--dead-letters")
    shoal.run("dlq", "redrive", f"dlq.{topic}-q")
    reserved = f"redrive.dlq.{topic}-q"
    for words in (("groups", "list"), ("groups", "lag")):
        assert reserved not in [row["group"] for row in shoal.json(*words)]
        assert reserved in [row["group"] for row in shoal.json(*words, "--all")]
    seen = [shoal.json("top", "--interval", "0.2", *all_)["groups"] for all_ in ((), ("--all",))]
    assert [reserved in [row["group"] for row in rows] for rows in seen] == [False, True]


def test_a_live_top(shoal: Shoal) -> None:
    terminal = shoal.at_a_terminal("top", "--interval", "0.2")
    terminal.expect("shoal top")
    terminal.expect("shoal top")
    terminal.type("\x03")
    assert terminal.ended() == 130


def test_dump(shoal: Shoal, server: ShoalProcess, topic: str) -> None:
    group = f"dumped-{topic}"
    taken = int(
        shoal.says(
            "share-consume",
            topic,
            "-g",
            group,
            "--from-beginning",
            "-n",
            "1",
            "-a",
            "accept",
            "-f",
            "{partition}",
        )
    )
    shoal.run("consume", topic, "-g", f"c-{group}", "--from-beginning", "-n", "6")

    def dump(*words: str) -> list[dict]:
        return [json.loads(line) for line in shoal.says("dump", *words).splitlines()]

    rows = dump(str(server.data_dir / f"{topic}-0"))
    assert [(r["offset"], r["value"]) for r in rows] == [(0, "0"), (1, "2"), (2, "4")]
    (header,) = dump("--batches", str(server.data_dir / f"{topic}-0"))
    assert header["records"] == 3
    assert header["crc_is_right"]
    state = [r for r in dump("--topic", "__share_group_state") if r["key"]["group_id"] == group]
    assert {r["type"] for r in state} <= {"SHARE_SNAPSHOT", "SHARE_UPDATE"}
    assert [r["value"]["start_offset"] for r in state if r["key"]["partition"] == taken][-1] == 1
    commits = [
        (r["key"]["partition"], r["value"]["offset"])
        for r in dump("--topic", "__consumer_offsets")
        if r.get("type") == "OFFSET_COMMIT" and r["key"]["group"] == f"c-{group}"
    ]
    assert dict(commits) == {0: 3, 1: 3}
    metadata = dump(str(server.data_dir / "__cluster_metadata-0"))
    assert topic in [r["value"]["name"] for r in metadata if r.get("type") == "TopicRecord"]


def test_a_damaged_segment(shoal: Shoal, server: ShoalProcess, topic: str, tmp_path: Path) -> None:
    (segment,) = (server.data_dir / f"{topic}-0").glob("*.log")
    copy = tmp_path / "copy-0" / segment.name
    copy.parent.mkdir()
    data = bytearray(segment.read_bytes())
    copy.write_bytes(data + data[:30])
    said = shoal.refusal("dump", str(copy))
    assert "the 30 bytes after byte" in said
    assert "some data is corrupt" in said
    data[-1] ^= 1
    copy.write_bytes(data)
    done = shoal.run("dump", str(copy))
    assert [json.loads(line)["crc_is_right"] for line in done.stdout.splitlines()] == [False]


REFUSALS = [
    (["consume", "never-was"], 1, "there is no topic 'never-was'"),
    (["topics", "describe", "taks"], 1, "Did you mean 'task'?"),
    (["topics", "create", "no good"], 1, "INVALID_TOPIC_EXCEPTION"),
    (["topics", "create", "y", "-p", "0"], 2, "--partitions must be at least 1"),
    (["topics", "create", "y", "-c", "retention.ms"], 2, "--config must be NAME=VALUE"),
    (["topics", "create", "y", "-c", "no.such=1"], 1, "no.such"),
    (["topics", "create", "y", "--replication-factor", "3"], 1, "at most as many replicas"),
    (["topics", "alter", "task"], 2, "nothing to alter"),
    (["groups", "describe", "never-was"], 1, "shoal groups list"),
    (["groups", "delete", "never-was"], 1, "there is no group 'never-was'"),
    (["groups", "reset-offsets", "g", "-t", "task"], 2, "exactly one of --to-earliest"),
    (["groups", "list", "--type", "big"], 2, "--type must be classic, consumer, share or streams"),
    (["configs", "describe", "broker", "x"], 2, "node id or 'default'"),
    (["share-consume", "task", "-g", "g", "-a", "maybe"], 2, "not 'maybe'"),
    (["share-consume", "task", "-g", "g", "-a", "ask"], 2, "needs a terminal"),
    (["consume", "task", "-f", "{nosuch}"], 2, "must be text, json or a template"),
    (["consume", "task", "--from-beginning", "--offset", "1"], 2, "use only one of"),
    (["consume", "task", "-g", "g", "--offset", "1"], 2, "do not work with --group"),
    (["consume", "task", "-o", "-1"], 2, "An offset needs --offset"),
    (["consume", "task", "-p", "7", "-n", "1"], 1, "has 1 partitions, no partition 7"),
    (["produce", "task", "--file", "no such file"], 2, "cannot read no such file"),
    (["dump"], 2, "give either paths of segments, or --topic"),
    (["dump", "no such file"], 2, "no such file does not exist"),
    (["topics", "list", "-b", "a:b"], 2, "'a:b' is not HOST:PORT"),
    (["topics", "list", "-X", "no.such=1"], 2, "does not support property 'no.such'"),
    (["topics", "list", "--command-config", "no file"], 2, "cannot read no file"),
]


@pytest.fixture(scope="module")
def task(shoal: Shoal) -> None:
    shoal.run("topics", "create", "task", "-p", "1")


@pytest.mark.parametrize(("words", "status", "said"), REFUSALS, ids=lambda v: str(v)[:40])
@pytest.mark.usefixtures("task")
def test_refusals(shoal: Shoal, words: list[str], status: int, said: str) -> None:
    assert said in shoal.refusal(*words, status=status)


def test_no_broker_there(shoal: Shoal) -> None:
    (port,) = free_ports(1)
    said = shoal.refusal("topics", "list", "-b", f"127.0.0.1:{port}", status=3)
    assert f"no broker at 127.0.0.1:{port}: connection refused" in said
    assert "Start a broker with `shoal server`" in said


def test_a_short_form_of_format(shoal: Shoal, topic: str) -> None:
    assert json.loads(shoal.says("topics", "describe", topic, "-o", "json"))[0]["topic"] == topic
    line = shoal.says("consume", topic, "--from-beginning", "-n", "1", "-o", "json")
    assert json.loads(line)["topic"] == topic


def test_a_table_fits_the_terminal(shoal: Shoal) -> None:
    name = "long-" + "n" * 40
    shoal.run("topics", "create", name, "-p", "1")
    narrow = shoal.at_a_terminal("topics", "list", columns=50)
    assert narrow.ended() == 0
    shown, _, left_out = re.sub(r"\x1b\[\d*m", "", narrow.text).partition("Too narrow for ")
    assert name in shown
    assert all(len(line) <= 50 for line in shown.splitlines()), shown
    assert "TOPIC ID" in left_out
    wide = shoal.at_a_terminal("topics", "list", columns=150)
    assert wide.ended() == 0
    assert "TOPIC ID" in wide.text
    assert "Too narrow" not in wide.text


def test_a_group_of_another_type(shoal: Shoal, topic: str) -> None:
    group = f"one-kind-{topic}"
    member = shoal.start("share-consume", topic, "-g", group, "--from-beginning")
    try:
        eventually(lambda: len(member.lines) == 6)
        said = shoal.refusal("consume", topic, "-g", group)
        assert "shoal groups list" in said
        said = shoal.refusal("groups", "delete", group)
        assert "still has members" in said
        said = shoal.refusal(
            "groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute"
        )
        assert "has 1 members. Stop them first" in said
    finally:
        member.kill()


def test_a_reader_that_closes_the_pipe(shoal: Shoal, topic: str) -> None:
    """`shoal consume … | head -1` ends quietly."""
    command = " ".join([*SHOAL, "consume", topic, "--from-beginning", "--timeout", "3s"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1"],
        env=shoal.environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
