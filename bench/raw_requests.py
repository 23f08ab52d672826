"""Equal requests over one socket, as frames: their client costs little, so a broker's CPU time for
them can be compared to a percent.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from load_checks import LoadFailed
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

TIMEOUT_S = 60
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 12, 12


def frame(api: ApiKey, version: int, body: Mapping[str, Any]) -> bytes:
    """Return a request with its size."""
    data = frames.build_request_head(api, version, 1, "bench") + codec.write_request(
        api, version, body
    )
    return struct.pack(">i", len(data)) + bytes(data)


def produce(topic: str, records: int, size: int) -> bytes:
    """Return a Produce request with acks=all of one batch."""
    batch = bytes(build_batch([(1, None, b"v" * size, ()) for _ in range(records)]))
    data = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
    body = {"acks": -1, "timeout_ms": 30_000, "topic_data": [data]}
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, body)


def fetch(topic: str, size: int) -> bytes:
    """Return a Fetch request of this size at most, from the start of the partition."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": size}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": size,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    return frame(ApiKey.FETCH, FETCH_VERSION, body)


def metadata(topic: str) -> bytes:
    body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    return frame(ApiKey.METADATA, METADATA_VERSION, body)


class Socket:
    """One connection to a port of this machine."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket: socket.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.cipher = ""
        if context is not None:
            wrapped = context.wrap_socket(self._socket, server_hostname="127.0.0.1")
            self._socket = wrapped
            self.cipher = (wrapped.cipher() or ("",))[0]
        self._stream = self._socket.makefile("rb", buffering=1 << 16)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send one request, and return its response."""
        self._socket.sendall(frame(api, version, body))
        return codec.read_response(
            api, version, self._receive(), len(frames.build_response_head(api, version, 1))
        )

    def repeat(self, request: bytes, count: int, depth: int = 1) -> int:
        """Send a request `count` times, `depth` at a time. Return the size of a response."""
        size = 0
        for _ in range(count // depth):
            self._socket.sendall(request * depth)
            for _ in range(depth):
                size = len(self._receive())
        return size

    def _receive(self) -> bytes:
        head = self._stream.read(4)
        if len(head) < 4:
            raise LoadFailed("the broker closed a connection")
        (size,) = struct.unpack(">i", head)
        return self._stream.read(size)

    def create_topic(self, name: str) -> None:
        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        body = {"topics": [new], "timeout_ms": 30_000}
        (row,) = self.call(ApiKey.CREATE_TOPICS, 5, body).topics
        if row.error_code:
            raise LoadFailed(f"topic {name}: {row}")
