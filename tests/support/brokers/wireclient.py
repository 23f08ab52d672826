"""A client with one connection that sends any version of any API, for tests of the wire
protocol."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping


class WireClient:
    """Requests are mappings; responses are kio's entities."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 120,
        client_id: str = "wire",
        source: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`source` is the local address from which it connects, if it matters."""
        self.client_id = client_id
        host, port = bootstrap.rsplit(":", 1)
        self.sock = socket.create_connection(
            (host, int(port)), timeout_s, (source, 0) if source else None
        )
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self._correlation_id = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> int:
        """Send one request; return its correlation id."""
        self._correlation_id += 1
        head = frames.build_request_head(api, version, self._correlation_id, self.client_id)
        frame = head + codec.write_request(api, version, body)
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)
        return self._correlation_id

    def receive(self, api: ApiKey, version: int) -> tuple[int, Any]:
        """Receive the next response; return its correlation id and body."""
        (size,) = struct.unpack(">i", self._exactly(4))
        frame = self._exactly(size)
        (correlation_id,) = struct.unpack_from(">i", frame)
        at = len(frames.build_response_head(api, version, correlation_id))
        return correlation_id, codec.read_response(api, version, frame, at)

    def call(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send one request and return its response."""
        sent = self.send(api, version, body)
        correlation_id, answer = self.receive(api, version)
        assert correlation_id == sent
        return answer

    def log_in(self, user: str, password: str) -> None:
        """Log in by SASL with the mechanism PLAIN."""
        answer = self.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        assert not answer.error_code, answer
        token = f"\0{user}\0{password}".encode()
        answer = self.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        assert not answer.error_code, answer

    def closed(self) -> bool:
        """Return whether the broker closes the connection without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def refused(self) -> bool:
        """Return whether the broker closes the connection instead of answering."""
        try:
            self.call(ApiKey.API_VERSIONS, 0, {})
        except (ConnectionResetError, BrokenPipeError):
            return True
        return False

    def create_topic(self, name: str, partitions: int = 1, /, **configs: str) -> Any:
        """Create a topic and return its id; config names have `_` for `.`."""
        body = {
            "timeout_ms": 10_000,
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": [
                        {"name": key.replace("_", "."), "value": value}
                        for key, value in configs.items()
                    ],
                }
            ],
        }
        (row,) = self.call(ApiKey.CREATE_TOPICS, 7, body).topics
        assert row.error_code == 0, row
        return row.topic_id

    def is_led(self, topic: str, partition: int = 0) -> bool:
        """Return whether this broker leads a partition. Kafka answers CreateTopics before that."""
        epoch = {"partition": partition, "current_leader_epoch": -1, "leader_epoch": 0}
        body = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [epoch]}]}
        (row,) = self.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body).topics
        return not row.partitions[0].error_code

    def produce(self, topic: str, *values: bytes, partition: int = 0, **options: Any) -> Any:
        """Produce one batch with acks=all (or `acks`); return the partition's response."""
        acks = options.pop("acks", -1)
        now_ms = options.pop("timestamp_ms", 1)
        if "records" in options:
            records = options.pop("records")
        else:
            records = bytes(build_batch([(now_ms, None, v, ()) for v in values], **options))
        data = [{"index": partition, "records": records}]
        body = {
            "acks": acks,
            "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        if acks == 0:
            self.send(ApiKey.PRODUCE, 9, body)
            return None
        return self.call(ApiKey.PRODUCE, 9, body).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, **options: Any) -> Any:
        """Fetch without a session; return the partition's response."""
        version = options.pop("version", 12)
        asked = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": options.pop("partition_max_bytes", 1 << 20),
            **options.pop("asked", {}),
        }
        body = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 26,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
            **options,
        }
        return self.call(ApiKey.FETCH, version, body).responses[0].partitions[0]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            data += more
        return bytes(data)
