"""Kafka's dump tool decodes `__consumer_offsets` of Shoal: groups of every type and their ends.

`shoal dump` prints the same records. Kafka's log of the same requests has the same kinds of them.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from shoal.coordinator.group.records import RecordType
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import dump_log
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.streams.streams_dialogues import (
    Dialogue,
    has_coordinators,
    internal,
    subtopology,
    topology,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.java

TOPIC = "dumped"
CONFIGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
#: Records of older versions. Kafka 4.3.1 still writes tombstones of the second.
OLD = {RecordType.LEGACY_OFFSET_COMMIT, RecordType.CONSUMER_GROUP_PARTITION_METADATA}
#: Those that Kafka has.
KAFKAS = {*RecordType} - {RecordType.KEY_RANGES_IN_TRANSACTION}
#: A record as `kafka-dump-log` prints it; `<DELETE>` is the value of a tombstone.
PRINTED = re.compile(r"^\| offset: (\d+) .* key: (\{.*\}) payload: (\{.*\}|<DELETE>)$")


class Printed(NamedTuple):
    """A record that the tool has printed. `value` is None for a tombstone."""

    offset: int
    type: RecordType
    key: dict[str, Any]
    version: int
    value: dict[str, Any] | None


def printed(log: Path) -> list[Printed]:
    """Return all records that the tool decodes, which must be all that it prints."""
    files = sorted(str(file) for file in log.glob("*.log"))
    said = dump_log("--offsets-decoder", "--files", ",".join(files))
    lines = [line for line in said.splitlines() if line.startswith("| offset: ")]
    found = []
    for line in lines:
        match = PRINTED.match(line)
        assert match is not None, line
        key = json.loads(match[2])
        stored = None if match[3] == "<DELETE>" else json.loads(match[3])
        found.append(
            Printed(
                int(match[1]),
                RecordType(int(key["type"])),
                key["data"],
                -1 if stored is None else int(stored["version"]),
                None if stored is None else stored["data"],
            )
        )
    return found


def offsets(d: Dialogue, member: str, epoch: int) -> None:
    d.commit(member, TOPIC, 0, epoch=epoch)
    (_, answer) = d.transcript[-1]
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer


def classic(d: Dialogue) -> Callable[[], object]:
    """Form a group of one member. Return what makes the member leave."""
    join = {
        "group_id": d.group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\0\xff\xff\xff\xff\0\0\0\0"}],
    }
    joined = d.wire.call(ApiKey.JOIN_GROUP, 3, join)
    assert joined.error_code == 0, joined
    member = {"group_id": d.group, "member_id": joined.member_id}
    assignment = {"member_id": joined.member_id, "assignment": b"\0\1\0\0\0\0\xff\xff\xff\xff"}
    sync = {**member, "generation_id": joined.generation_id, "assignments": [assignment]}
    assert d.wire.call(ApiKey.SYNC_GROUP, 2, sync).error_code == 0
    offsets(d, joined.member_id, joined.generation_id)
    return lambda: d.wire.call(ApiKey.LEAVE_GROUP, 2, member)


def assigned(d: Dialogue, api: ApiKey, body: dict[str, Any]) -> dict[str, Any]:
    """Heartbeat until the member has partitions. Return the fields of further heartbeats."""
    sent = {"group_id": d.group, "member_id": "member-of-the-group-dd", "member_epoch": 0, **body}

    def has_partitions() -> bool:
        answer = d.wire.call(api, 1, sent)
        assert answer.error_code == 0, answer
        sent.update(dict.fromkeys(body), rebalance_timeout_ms=-1, member_epoch=answer.member_epoch)
        return answer.assignment is not None and bool(answer.assignment.topic_partitions)

    eventually(has_partitions, timeout_s=30, what=f"partitions of {d.group}")
    return sent


def consumer(d: Dialogue) -> Callable[[], object]:
    api = ApiKey.CONSUMER_GROUP_HEARTBEAT
    body = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": [],
        "subscribed_topic_regex": f"{TOPIC}.*",
        "topic_partitions": [],
    }
    sent = assigned(d, api, body)
    offsets(d, sent["member_id"], sent["member_epoch"])
    return lambda: d.wire.call(api, 1, sent | {"member_epoch": -1})


def share(d: Dialogue) -> Callable[[], object]:
    api = ApiKey.SHARE_GROUP_HEARTBEAT
    sent = assigned(d, api, {"subscribed_topic_names": [TOPIC]})
    return lambda: d.wire.call(api, 1, sent | {"member_epoch": -1})


def streams(d: Dialogue) -> Callable[[], object]:
    d.join("a", topology(subtopology("0", [TOPIC], changelogs=[internal(f"{d.group}-log")])))
    d.until_ready("a")
    d.settle("a")
    offsets(d, "a", d.epochs["a"])
    return lambda: d.leave("a")


KINDS = {"classic": classic, "consumer": consumer, "share": share, "streams": streams}


def form_groups(bootstrap: str) -> None:
    """Form two groups of each type, and delete one of them."""
    with WireClient(bootstrap) as wire:
        wire.create_topic(TOPIC, 2)
        eventually(lambda: has_coordinators(wire), what="the coordinator of all groups")
    for kind, form in KINDS.items():
        for stays in (True, False):
            d = Dialogue(bootstrap, f"{kind}-{'stays' if stays else 'goes'}")
            with d.wire:
                leave = form(d)
                if not stays:
                    leave()
                    eventually(lambda d=d: deleted(d), what=f"the end of {d.group}")


def deleted(d: Dialogue) -> bool:
    (row,) = d.wire.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": [d.group]}).results
    return bool(row.error_code == ErrorCode.none)


@contextmanager
def shoals_log(directory: Path) -> Iterator[Path]:
    """The log of a broker that has stopped."""
    broker = ShoalProcess(directory, configs=CONFIGS).start()
    try:
        form_groups(broker.bootstrap)
        assert broker.stop() == 0, "\n".join(broker.log[-40:])
        yield directory / "__consumer_offsets-0"
    finally:
        broker.kill9()


def test_kafkas_tool_prints_every_kind_of_record_as_ours_does(tmp_path: Path) -> None:
    with shoals_log(tmp_path / "shoal") as log:
        theirs = printed(log)
        said = Shoal("127.0.0.1:1").says("dump", str(log))
    ours = [json.loads(line) for line in said.splitlines()]
    assert {record.type for record in theirs} == KAFKAS - OLD
    assert {record.type for record in theirs if record.value is None} == KAFKAS - OLD
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert our["offset"] == their.offset
        assert our["type"] == their.type.name
        assert camel(our["key"]) == their.key
        assert (our["value"] is None) == (their.value is None)
        if our["value"] is not None:
            same_scalars(camel(our["value"]), their)


def camel(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields by their names in Kafka's schemas."""
    return {
        first + "".join(map(str.capitalize, rest)): value
        for (first, *rest), value in ((name.split("_"), value) for name, value in fields.items())
    }


def same_scalars(ours: dict[str, Any], their: Printed) -> None:
    assert their.value is not None
    compared = {
        name for name, value in their.value.items() if isinstance(value, int | str) and name in ours
    }
    assert compared or not any(isinstance(v, int | str) for v in their.value.values()), their
    for name in compared:
        assert ours[name] == their.value[name], (name, their)


@pytest.mark.nightly
def test_kafkas_log_has_the_same_kinds_of_records(tmp_path: Path) -> None:
    """The tool prints the same types and versions, as values and as tombstones, for both."""

    def kinds(log: Path) -> set[tuple[str, int]]:
        return {(record.type.name, record.version) for record in printed(log)}

    with shoals_log(tmp_path / "shoal") as log:
        ours = kinds(log)
    kafka = KafkaProcess(tmp_path / "kafka", configs=CONFIGS).start()
    try:
        form_groups(kafka.bootstrap)
        theirs = kinds(tmp_path / "kafka/log/__consumer_offsets-0")
    finally:
        kafka.kill9()
    assert ours == {(kind, version) for kind, version in theirs if RecordType[kind] not in OLD}
