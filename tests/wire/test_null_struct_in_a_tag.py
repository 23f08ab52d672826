"""A null struct inside a tagged field, as Apache Kafka 4.3.1 wrote it into `__consumer_offsets`."""

from __future__ import annotations

from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group.records import RecordType, decode
from shoal.protocol import compiler
from shoal.protocol.schema import FieldSpec, MessageSpec

MEMBER = "7bd2bde4-8d8b-47f6-9469-cda7dbdf4681"
KEY = b"\0\5\0\x0ccg1795249706\0$" + MEMBER.encode()
VALUE = bytes.fromhex(
    "0000 00 00 06 73686f616c 0b 2f3132372e302e302e31 02 0c 7031373935323439373036"
    "01 0000ea60 00 01 00 01 00"
)


def test_a_member_of_the_consumer_protocol_has_no_classic_metadata() -> None:
    found = decode(CoordinatorRecord(KEY, VALUE))
    assert found is not None
    assert found.type is RecordType.CONSUMER_GROUP_MEMBER_METADATA
    assert found.key == {"group_id": "cg1795249706", "member_id": MEMBER}
    assert found.value is not None
    assert found.value["classic_member_metadata"] is None
    assert found.value["rebalance_timeout_ms"] == 60_000


def test_null_is_0_in_a_tag_and_minus_1_elsewhere() -> None:
    inner = (FieldSpec("number", "int8"),)
    message = MessageSpec(
        "M",
        "0",
        (
            FieldSpec("plain", inner, struct=True, nullable="0"),
            FieldSpec(
                "tagged", inner, struct=True, nullable="0", tagged="0", tag=0, default={"number": 0}
            ),
        ),
        flexible="0+",
    )
    write, read = (
        compiler.get_writer(message.get_struct(0)),
        compiler.get_reader(message.get_struct(0)),
    )
    for value, wire in (
        ({"plain": None, "tagged": None}, "ff 01 00 01 00"),
        ({"plain": {"number": 1}, "tagged": {"number": 2}}, "01 01 00 01 00 03 01 02 00"),
        ({"plain": None, "tagged": {"number": 0}}, "ff 00"),
    ):
        out = bytearray()
        write(out, value)
        assert out == bytes.fromhex(wire)
        assert read(memoryview(out), 0) == (value, len(out))
