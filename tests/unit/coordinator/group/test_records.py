"""Records of `__consumer_offsets` as bytes.

`kafka_group_records.txt` holds what Kafka 4.3.1 wrote while clients of every protocol read a topic
of four partitions: one record of each type, and its tombstone (`-`), as hex.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group.classic.classic_group import GroupMetadataValue
from shoal.coordinator.group.records import (
    LAYOUTS,
    RecordType,
    decode,
    encode_record,
    encode_tombstone,
)
from shoal.protocol.errors import WireError

LINES = (Path(__file__).parent / "kafka_group_records.txt").read_text().splitlines()


def parse(line: str) -> tuple[RecordType, CoordinatorRecord]:
    name, key, value = line.split()
    return RecordType[name], CoordinatorRecord(
        bytes.fromhex(key), None if value == "-" else bytes.fromhex(value)
    )


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[0])
def test_kafkas_records_are_read_and_written_alike(line: str) -> None:
    kind, stored = parse(line)
    found = decode(stored)
    assert found is not None
    assert found.type is kind
    version = None if stored.value is None else int.from_bytes(stored.value[:2], "big")
    again = encode_record(kind, found.key, found.value, version)
    if kind is RecordType.CONSUMER_GROUP_MEMBER_METADATA and stored.value is not None:
        # Kafka writes absent classic metadata as a tagged null.
        assert stored.value.endswith(b"\x01\x00\x01\x00")
        assert again == CoordinatorRecord(stored.key, stored.value[:-4] + b"\x00")
        assert decode(again) == found
    else:
        assert again == stored
        assert version in (None, LAYOUTS[kind].version)


def test_a_classic_group_has_the_fields_of_kafkas_record() -> None:
    lines = [line for line in LINES if line.startswith("GROUP_METADATA")]
    _, stored = parse(lines[0])
    found = decode(stored)
    assert found is not None
    assert found.value is not None
    group = GroupMetadataValue.from_value(found.value)
    assert (group.protocol_type, group.protocol_name, group.generation_id) == (
        "consumer",
        "range",
        1,
    )
    (member,) = group.members
    assert member.group_instance_id == "inst-1"
    assert (member.client_id, member.client_host) == ("cli", "/127.0.0.1")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (45_000, 300_000)
    assert group.to_record("static") == stored


def test_records_of_other_types_and_versions_are_ignored() -> None:
    assert decode(CoordinatorRecord(b"\x00\x12\x00\x01g", b"\x00\x00")) is None
    known = encode_record(RecordType.GROUP_METADATA, {"group": "g"}, {"protocol_type": ""})
    assert decode(CoordinatorRecord(known.key, b"\x00\x63" + (known.value or b"")[2:])) is None


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_bytes_that_do_not_fit_are_refused(cut: int) -> None:
    whole = encode_tombstone(RecordType.OFFSET_COMMIT, group="g", topic="t", partition=1)
    with pytest.raises(WireError):
        decode(CoordinatorRecord(whole.key[:cut], None))
