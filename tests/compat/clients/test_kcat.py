"""kcat: librdkafka at a shell, in the release that distributions carry (librdkafka 2.0)."""

from __future__ import annotations

import json
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess


#: librdkafka of this project's Python has these codecs by day.
CODECS = ("gzip", "snappy", "lz4")


class Kcat:
    """The program against one broker."""

    def __init__(self, program: str, bootstrap: str) -> None:
        self._start = [program, "-q", "-b", bootstrap]

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self._start, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def run(kcat: str, shared_broker: ShoalProcess) -> Kcat:
    return Kcat(kcat, shared_broker.bootstrap)


@pytest.fixture
def topic(run: Kcat) -> str:
    """A request for a topic creates it, with auto.create.topics.enable."""
    name = f"kcat-{uuid.uuid4().hex[:8]}"
    eventually(lambda: json.loads(run("-L", "-J", "-t", name))["topics"][0]["partitions"])
    return name


def test_metadata(run: Kcat, topic: str) -> None:
    metadata = json.loads(run("-L", "-J"))
    assert [broker["id"] for broker in metadata["brokers"]] == [1]
    (row,) = [t for t in metadata["topics"] if t["topic"] == topic]
    assert row["partitions"] == [
        {"partition": 0, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
    ]


@pytest.mark.parametrize(
    "codec",
    ["none", "zstd", *(pytest.param(c, marks=pytest.mark.nightly) for c in CODECS)],
)
def test_produce_and_consume(run: Kcat, topic: str, codec: str) -> None:
    lines = "".join(f"k{i}:v{i}\n" for i in range(200))
    run(
        "-P",
        "-t",
        topic,
        "-K:",
        "-H",
        "a=1",
        "-z",
        codec,
        "-X",
        "enable.idempotence=true",
        stdin=lines,
    )
    found = run("-C", "-t", topic, "-e", "-o", "beginning", "-f", "%o %h %k:%s\n").splitlines()
    assert found == [f"{i} a=1 k{i}:v{i}" for i in range(200)]
    assert run("-C", "-t", topic, "-e", "-o", "-2", "-f", "%o ") == "198 199 "
    assert run("-C", "-t", topic, "-o", "5", "-c", "2", "-f", "%o ") == "5 6 "


def test_offsets_by_time(run: Kcat, topic: str) -> None:
    run("-P", "-t", topic, stdin="one\ntwo\n")
    assert "offset 0" in run("-Q", "-t", f"{topic}:0:1")
    assert "offset 2" in run("-Q", "-t", f"{topic}:0:-1")


@pytest.mark.parametrize(
    "protocol",
    [
        "cooperative-sticky",
        pytest.param("range", marks=pytest.mark.nightly),
        pytest.param("roundrobin", marks=pytest.mark.nightly),
    ],
)
def test_a_group_resumes_where_it_stopped(run: Kcat, topic: str, protocol: str) -> None:
    run("-P", "-t", topic, stdin="".join(f"{i}\n" for i in range(20)))
    group = (
        "-X",
        "auto.offset.reset=earliest",
        "-X",
        f"partition.assignment.strategy={protocol}",
        "-f",
        "%o ",
    )
    first = run(*group, "-c", "12", "-G", f"g-{topic}", topic)
    second = run(*group, "-c", "8", "-G", f"g-{topic}", topic)
    assert (first + second).split() == [str(i) for i in range(20)]
