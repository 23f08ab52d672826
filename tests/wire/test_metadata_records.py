"""Metadata records that Apache Kafka 4.3.1 wrote into its own metadata log, read and rewritten."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.metadata.records import MetadataRecord, UnknownRecord, decode, encode
from shoal.protocol.errors import WireError

DIRECTORY = UUID("1cf101b2-0105-458c-b6af-bd08125d4b47")
TOPIC = UUID("f50917b6-1072-4f27-9685-ad9d7b3f77c3")
FEATURE = "010c00116d657461646174612e76657273696f6e001e00"
CONFIG = "0104000401146d696e2e696e73796e632e7265706c69636173023100"
BROKER = (
    "0100040000000100919bb4782c2242c098a907b0cb1dc1db000000000000000e020a504c41494e544558540a313237"
    "2e302e302e31526c000000080e67726f75702e76657273696f6e00000001001073747265616d732e76657273696f6e"
    "0000000100147472616e73616374696f6e2e76657273696f6e000000020021656c696769626c652e6c65616465722e"
    "7265706c696361732e76657273696f6e0000000100116d657461646174612e76657273696f6e0007001e000e736861"
    "72652e76657273696f6e00000001000e6b726166742e76657273696f6e0000000100000100010011021cf101b20105"
    "458cb6afbd08125d4b47"
)
UNFENCED = "01110000000001000000000000000e010001ff"
NEW_TOPIC = "010200037131f50917b610724f279685ad9d7b3f77c300"
PARTITION = (
    "01030200000000f50917b610724f279685ad9d7b3f77c302000000010200000001010100000001000000000000000002"
    "1cf101b20105458cb6afbd08125d4b4700"
)
REMOVED = "010900cef2a35628624104bc4aab5221b8a72100"
NOTHING = "01140000"
ALL = (FEATURE, CONFIG, BROKER, UNFENCED, NEW_TOPIC, PARTITION, REMOVED, NOTHING)


def test_feature() -> None:
    assert decode(bytes.fromhex(FEATURE)) == MetadataRecord(
        "FeatureLevelRecord", {"name": "metadata.version", "feature_level": 30}
    )


def test_config() -> None:
    fields = decode(bytes.fromhex(CONFIG)).fields
    assert fields == {
        "resource_type": 4,
        "resource_name": "",
        "name": "min.insync.replicas",
        "value": "1",
    }


def test_broker() -> None:
    record = decode(bytes.fromhex(BROKER))
    assert record.kind == "RegisterBrokerRecord"
    assert record.fields["end_points"] == [
        {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 21100, "security_protocol": 0}
    ]
    assert (record.fields["broker_epoch"], record.fields["fenced"]) == (14, True)
    assert record.fields["log_dirs"] == [DIRECTORY]
    assert {f["name"]: f["max_supported_version"] for f in record.fields["features"]}[
        "metadata.version"
    ] == 30


def test_unfenced() -> None:
    assert decode(bytes.fromhex(UNFENCED)).fields["fenced"] == -1


def test_topic_and_partition() -> None:
    topic = decode(bytes.fromhex(NEW_TOPIC))
    assert topic == MetadataRecord("TopicRecord", {"name": "q1", "topic_id": TOPIC})
    fields = decode(bytes.fromhex(PARTITION)).fields
    assert fields["topic_id"] == TOPIC
    assert (fields["replicas"], fields["isr"], fields["leader"]) == ([1], [1], 1)
    assert fields["directories"] == [DIRECTORY]
    assert fields["eligible_leader_replicas"] is None


@pytest.mark.parametrize("text", [t for t in ALL if t != UNFENCED])
def test_kafkas_bytes_come_out_again(text: str) -> None:
    assert encode(decode(bytes.fromhex(text))).hex() == text


def test_an_older_version_is_rewritten_in_the_newest() -> None:
    again = encode(decode(bytes.fromhex(UNFENCED)))
    assert again[:3] == bytes((1, 17, 3))
    assert decode(again).fields["fenced"] == -1


@pytest.mark.parametrize("text", ["02140000", "017f0000", "01140100", "01020900"])
def test_a_newer_release_is_refused(text: str) -> None:
    with pytest.raises(UnknownRecord):
        decode(bytes.fromhex(text))


@pytest.mark.parametrize("text", ALL)
def test_every_prefix_is_refused(text: str) -> None:
    whole = bytes.fromhex(text)
    for size in range(len(whole)):
        with pytest.raises(WireError):
            decode(whole[:size])


@given(st.binary(max_size=200))
def test_garbage_raises_wire_error_or_reads(data: bytes) -> None:
    try:
        decode(data)
    except WireError:
        pass
