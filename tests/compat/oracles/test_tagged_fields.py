"""How many tagged fields a request may have: Kafka 4.4 and Shoal close the connection above it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.compiler import put_uvarint
from shoal.protocol.schema import TAGS_MAX
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java

#: Requests with the general parser, and with parsers of their own.
REQUESTS: dict[ApiKey, tuple[int, dict[str, Any]]] = {
    ApiKey.METADATA: (12, {"topics": []}),
    ApiKey.PRODUCE: (9, {"acks": 1, "timeout_ms": 1_000, "topic_data": []}),
    ApiKey.SHARE_FETCH: (1, {"group_id": "g", "member_id": "m", "topics": []}),
}


@pytest.fixture(params=["kafka", "shoal"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    server: SharedKafka | ShoalProcess = request.getfixturevalue(
        "kafka" if request.param == "kafka" else "shared_broker"
    )
    return server.bootstrap


def is_answered(bootstrap: str, key: ApiKey, *, in_header: int = 0, in_body: int = 0) -> bool:
    """Send a request with unknown tagged fields."""
    version, body = REQUESTS[key]
    head = frames.build_request_head(key, version, 1, "c")
    data = bytes(codec.write_request(key, version, body))
    assert head[-1] == data[-1] == 0  # no tagged fields
    frame = head[:-1] + build_tags(in_header) + data[:-1] + build_tags(in_body)
    with WireClient(bootstrap) as client:
        client.sock.sendall(struct.pack(">i", len(frame)) + frame)
        try:
            return bool(client.sock.recv(4))
        except ConnectionResetError:
            return False


def build_tags(count: int) -> bytes:
    out = bytearray()
    put_uvarint(out, count)
    for number in range(count):
        put_uvarint(out, 10_000 + number)
        put_uvarint(out, 0)
    return bytes(out)


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name.lower())
def test_ten_thousand_tagged_fields_are_the_most(bootstrap: str, key: ApiKey) -> None:
    assert is_answered(bootstrap, key, in_header=TAGS_MAX, in_body=TAGS_MAX)
    assert not is_answered(bootstrap, key, in_header=TAGS_MAX + 1)
    assert not is_answered(bootstrap, key, in_body=TAGS_MAX + 1)
