"""Metadata records that Apache Kafka 4.3.1 wrote into its own metadata log, read and rewritten."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.cli.commands.dump import mask_secrets
from shoal.metadata import delta
from shoal.metadata.acls import build_acl_record
from shoal.metadata.image import MetadataImage
from shoal.metadata.records import MetadataRecord, UnknownRecord, decode, encode
from shoal.protocol.errors import WireError
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.delegation_tokens import DelegationToken
from shoal.security.scram import SCRAM_MECHANISMS, from_salted_password

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
ACL = "0112003317c06c0bfd4f6b8980fd15beca084c0202740307557365723a61022a030300"
ACL_REMOVED = "0113003317c06c0bfd4f6b8980fd15beca084c00"
CREDENTIAL = (
    "010b00026d010573616c7421e5f154c55d000f6eb15a4a09260edb5d5adfb02d7ca0effdb5ea09c7d3c9b53d211c4b"
    "5802f3b04ee6d6d368c92fee4c1049636db3a6b17850b86afd785a8948ed0000100000"
)
CREDENTIAL_REMOVED = "01160002620100"
TOKEN = (
    "010a000b557365723a616c6963650b557365723a616c6963650309557365723a626f6209557365723a626f62000001"
    "a21071c276000001a2347e4676000001a215981e761736413044744a3456523343746e686e4864686a76645100"
)
TOKEN_REMOVED = "011a0017384c49664e51302d535071657a747863414b4754314100"
SECURITY = (ACL, ACL_REMOVED, CREDENTIAL, CREDENTIAL_REMOVED, TOKEN, TOKEN_REMOVED)
ALL = (FEATURE, CONFIG, BROKER, UNFENCED, NEW_TOPIC, PARTITION, REMOVED, NOTHING, *SECURITY)


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


def test_access_control_entry() -> None:
    record = decode(bytes.fromhex(ACL))
    id = UUID("3317c06c-0bfd-4f6b-8980-fd15beca084c")
    entry = Acl(
        ResourceType.TOPIC,
        "t",
        PatternType.LITERAL,
        "User:a",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    assert record == build_acl_record(id, entry)
    assert decode(bytes.fromhex(ACL_REMOVED)).fields == {"id": id}
    image = applied(ACL)
    assert dict(image.acls) == {id: entry}
    assert not applied(ACL, ACL_REMOVED).acls


def test_scram_credential() -> None:
    """Kafka stored it for the salted password of 32 times `p`."""
    image = applied(CREDENTIAL)
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
    expected = from_salted_password(mechanism, b"p" * 32, b"salt", 4096)
    assert dict(image.scram_credentials) == {("m", mechanism.number): expected}
    assert decode(bytes.fromhex(CREDENTIAL_REMOVED)).fields == {"name": "b", "mechanism": 1}


def test_delegation_token() -> None:
    (token,) = applied(TOKEN).delegation_tokens.values()
    assert token == DelegationToken(
        "6A0DtJ4VR3CtnhnHdhjvdQ",
        "User:alice",
        "User:alice",
        ("User:bob", "User:bob"),
        1795572220534,
        1796177020534,
        1795658620534,
    )
    assert decode(bytes.fromhex(TOKEN_REMOVED)).fields == {"token_id": "8LIfNQ0-SPqeztxcAKGT1A"}


def applied(*texts: str) -> MetadataImage:
    records = [decode(bytes.fromhex(text)) for text in texts]
    return delta.apply(MetadataImage(), records, offset=0, epoch=0)[0]


def test_no_secret_is_in_the_text_of_a_record() -> None:
    record = decode(bytes.fromhex(CREDENTIAL))
    for text in (repr(record), str(record), repr(mask_secrets(record)), repr(applied(CREDENTIAL))):
        assert "iterations" in text
        for name in ("salt", "stored_key", "server_key"):
            assert repr(record.fields[name]) not in text


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("ssl.keystore.password", True),
        ("listener.name.x.ssl.keystore.password", True),
        ("listener.name.x.plain.sasl.jaas.config", True),
        ("a.config.of.a.newer.release", True),
        ("log.retention.ms", False),
    ],
)
def test_passwords_among_configs_are_masked(name: str, is_secret: bool) -> None:
    fields = {"resource_type": 4, "resource_name": "1", "name": name, "value": "1"}
    shown = mask_secrets(MetadataRecord("ConfigRecord", fields))
    assert shown == fields | ({"value": "[hidden]"} if is_secret else {})
    for unmasked in (fields | {"value": None}, fields | {"resource_type": 2}):
        assert mask_secrets(MetadataRecord("ConfigRecord", unmasked)) == unmasked


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
