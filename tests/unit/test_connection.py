"""In which order answers leave a broker, on connections without sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop
from conditions import eventually_async
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server import logs
from shoal.server.broker import Broker
from shoal.server.config import resolve
from shoal.server.network.connection import Connection
from shoal.server.process import compose


class Wire:
    """A transport that notes, in a list that all share, whose answer left."""

    def __init__(self, broker: Broker, name: str, left: list[str]) -> None:
        self._name, self._left = name, left
        self.written: list[bytes] = []
        listener = broker.listeners[0]
        self.connection = Connection(listener, listener._dispatch)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._left.append(self._name)
        self.written.append(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def send(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> None:
        frame = frames.request_head(api, version, 1, "t")
        frame += bytes(codec.write_request(api, version, body))
        data = struct.pack(">i", len(frame)) + frame
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))


def test_a_record_leaves_to_its_consumer_before_its_producer_is_told(tmp_path: Path) -> None:
    """Found by profiles of a record's way: half of it was the write to its producer's socket, whose
    reader sleeps; a fetch that waited came after it."""
    left: list[str] = []

    async def main() -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        broker = compose(resolve(flags, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            producer, consumer = Wire(broker, "producer", left), Wire(broker, "consumer", left)
            producer.send(
                ApiKey.CREATE_TOPICS,
                7,
                {
                    "timeout_ms": 60_000,
                    "topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}],
                },
            )
            await eventually_async(lambda: left)
            left.clear()
            asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
            consumer.send(
                ApiKey.FETCH,
                12,
                {
                    "max_wait_ms": 60_000,
                    "min_bytes": 1,
                    "max_bytes": 1000,
                    "session_epoch": -1,
                    "topics": [{"topic": "t", "partitions": [asked]}],
                },
            )
            assert not left
            batch = bytes(build_batch([(1, None, b"v", ())]))
            producer.send(
                ApiKey.PRODUCE,
                10,
                {
                    "acks": -1,
                    "timeout_ms": 1000,
                    "topic_data": [
                        {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
                    ],
                },
            )
            assert left == ["consumer", "producer"]
            assert batch[61:] in consumer.written[-1]
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    uvloop.run(main())
