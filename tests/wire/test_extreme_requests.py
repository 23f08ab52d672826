"""A field at its limits costs neither the connection nor an error of the broker.

Every field of every API and version, one at a time: strings that are not UTF-8, truth values other
than 0 and 1, the smallest and the largest numbers. As Kafka, Shoal closes the connection only for a
null where the schema has none (`tests/compat/oracles/test_extreme_requests.py`).
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.server.handlers import HANDLERS
from support.attacks.extreme_requests import NAME, extremes, make_topic
from support.attacks.hostile_requests import framed
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker whose listener serves all APIs. Requests change it."""
    configs = {"controller.listener.names": "PLAINTEXT"}
    broker = ShoalProcess(tmp_path_factory.mktemp("extreme") / "data", configs=configs).start()
    yield broker
    assert broker.stop() == 0, "\n".join(broker.log[-40:])
    failed = [line for line in broker.log if "failed" in line]
    assert not failed


def connect(broker: ShoalProcess) -> socket.socket:
    host, port = broker.bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 120)


def is_answered(sock: socket.socket, frame: bytes) -> bool:
    """Send a request. Return whether the broker answers, and does not close the connection."""
    sock.sendall(frame)
    size, received = 4, bytearray()
    while len(received) < size:
        try:
            more = sock.recv(1 << 16)
        except ConnectionResetError:
            return False
        if not more:
            return False
        received += more
        if len(received) >= 4:
            (size,) = struct.unpack_from(">i", received)
            size += 4
    return True


@pytest.mark.parametrize(
    "has_all",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["last version", "all versions"],
)
@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: HANDLERS[key].key.name)
def test_only_a_null_closes_the_connection(shoal: ShoalProcess, key: int, has_all: bool) -> None:
    """A request for each field and value, by day of the last version; together they are
    thousands."""
    closed, expected = [], []
    api, versions = ApiKey(key), HANDLERS[key].versions
    sock = connect(shoal)
    for version in versions if has_all else versions[-1:]:
        with WireClient(shoal.bootstrap) as client:
            topic_id = make_topic(client)
        for extreme in extremes(api, version, topic_id):
            # Shoal's own reason of a failure may lack texts.
            if extreme.is_null and ".reason." not in extreme.what:
                expected.append(extreme.what)
            if not is_answered(sock, extreme.frame):
                closed.append(extreme.what)
                sock.close()
                sock = connect(shoal)
    sock.close()
    assert closed == expected


@pytest.mark.parametrize(
    "client_id",
    [b"\x00\x04caf\xe9", b"\x00\x00", b"\xff\xff", b"\xff\xfe", b"\x80\x00"],
    ids=["Latin-1", "empty", "null", "-2", "-32768"],
)
@pytest.mark.parametrize(("api", "version"), [(ApiKey.API_VERSIONS, 0), (ApiKey.METADATA, 12)])
def test_a_client_id_may_be_anything(
    shoal: ShoalProcess, client_id: bytes, api: ApiKey, version: int
) -> None:
    """Kafka takes every length below 0 as null."""
    head = frames.build_request_head(api, version, 1, "")
    body = codec.write_request(api, version, {"topics": []})
    with connect(shoal) as sock:
        assert is_answered(sock, framed(head[:8] + client_id + head[10:] + body))


def test_a_string_of_too_many_bytes(shoal: ShoalProcess) -> None:
    """As in Kafka: one above 32,767 bytes is refused, one that only its replacements make so long
    is not stored, and not echoed. The records of groups would have no length for it."""

    def ask(api: ApiKey, version: int, body: dict[str, object]) -> bool:
        head = frames.build_request_head(api, version, 1, "long")
        with connect(shoal) as sock:
            return is_answered(sock, framed(head + codec.write_request(api, version, body)))

    with WireClient(shoal.bootstrap) as client:
        make_topic(client)
        row = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
        topics = [{"name": NAME, "partitions": [row]}]
        commit = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        head = frames.build_request_head(ApiKey.OFFSET_COMMIT, 8, 1, "long")
        replaced = commit | {"group_id": b"\xe9" * 32_767}
        body = codec.write_request(ApiKey.OFFSET_COMMIT, 8, replaced)
        client.sock.sendall(framed(head + body))
        answer = client.receive(ApiKey.OFFSET_COMMIT, 8)[1]
        assert answer.topics[0].partitions[0].error_code == ErrorCode.unknown_server_error
    assert not ask(ApiKey.OFFSET_COMMIT, 8, commit | {"group_id": "x" * 32_768})
    assert not ask(ApiKey.METADATA, 1, {"topics": [{"name": b"\xe9" * 32_767}]})
    assert ask(ApiKey.METADATA, 12, {"topics": [{"name": b"\xe9" * 32_767}]})


@pytest.mark.parametrize("retention_ms", [86_400_000_000_000_000, 2**63 - 1])
def test_a_commit_may_be_kept_for_ever(shoal: ShoalProcess, retention_ms: int) -> None:
    """Longer than Python's durations, which have 2.7 million years."""
    with WireClient(shoal.bootstrap) as client:
        make_topic(client)
        for version in (2, 3, 4):
            group = f"kept-{retention_ms}-{version}"
            row = {"partition_index": 0, "committed_offset": version, "committed_metadata": ""}
            commit = {
                "group_id": group,
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "retention_time_ms": retention_ms,
                "topics": [{"name": NAME, "partitions": [row]}],
            }
            (answer,) = client.call(ApiKey.OFFSET_COMMIT, version, commit).topics
            assert answer.partitions[0].error_code == ErrorCode.none
            fetch = {"group_id": group, "topics": [{"name": NAME, "partition_indexes": [0]}]}
            (found,) = client.call(ApiKey.OFFSET_FETCH, 5, fetch).topics
            assert found.partitions[0].committed_offset == version


def test_entries_that_are_not_utf_8_are_bounded() -> None:
    """Each takes ten times as long to read as another one."""

    def read(count: int, last: bytes) -> int:
        names: list[bytes | str] = ["topic"] * (count - 1)
        topics = [{"name": name} for name in (*names, last)]
        body = codec.write_request(ApiKey.METADATA, 12, {"topics": topics})
        return len(codec.read_request(ApiKey.METADATA, 12, bytes(body)).topics)

    assert read(codec.ODD_ENTRIES_MAX, b"topi\xe9") == codec.ODD_ENTRIES_MAX
    assert read(codec.ODD_ENTRIES_MAX + 1, b"topic") == codec.ODD_ENTRIES_MAX + 1
    with pytest.raises(WireError, match="more than 10000 entries"):
        read(codec.ODD_ENTRIES_MAX + 1, b"topi\xe9")


@pytest.mark.parametrize(
    ("api", "version"), [(ApiKey.METADATA, 12), (ApiKey.OFFSET_COMMIT, 9)], ids=["plain", "own"]
)
def test_entries_beside_unknown_tags_are_bounded(api: ApiKey, version: int) -> None:
    """These, too, also if the API has tags of Shoal's own. The tag counts as an entry."""
    unknown = bytes([1, 0xFF, 0x7F, 0])

    def read(count: int, tags: bytes) -> int:
        topics = [{"name": "t", "partitions": []}] * count
        body = codec.write_request(api, version, {"topics": topics})
        assert body[-1] == 0, "the request ends with no tags"
        return len(codec.read_request(api, version, bytes(body[:-1]) + tags).topics)

    most = codec.ODD_ENTRIES_MAX - 1
    assert read(most, unknown) == most
    assert read(most + 2, b"\0") == most + 2
    with pytest.raises(WireError, match="more than 10000 entries"):
        read(most + 2, unknown)
