"""A real S3 server for benches: versitygw over a directory, with one bucket and a log of requests.

With `delay_ms`, a second endpoint adds that time to each request. It is a process that sends what
clients write on with this delay, and answers at once. It delays no byte twice, so it limits no
rate: an upload in flight arrives as a whole, this much later.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import uvloop
from brokers import WAIT_S, free_port
from load_checks import LoadFailed

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
KEYS = {"AWS_ACCESS_KEY_ID": "bench-id", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
#: Bytes for a client that does not read them yet, above which the server's answer waits.
BUFFER_BYTES = 16 << 20
#: Requests by their names in the server's log.
GETS = ("s3_GetObject",)
PUTS = ("s3_PutObject", "s3_UploadPart")
PARTS = ("s3_UploadPart",)


class S3Server:
    """Owns the server, and how far its log was read. `bucket` is the bucket's directory."""

    def __init__(self, folder: Path, delay_ms: int = 0) -> None:
        self._folder = folder
        self.bucket = folder / "data/bucket"
        self._log = folder / "requests.log"
        self._log_bytes = 0
        self._port, self._delayed_port = free_port(), free_port()
        self._delay_ms = delay_ms
        self._server: subprocess.Popen[bytes] | None = None
        self._line: Any = None

    def __enter__(self) -> S3Server:
        program = shutil.which("versitygw")
        if program is None:
            raise SystemExit(f"versitygw is missing. Run: go install {MODULE}")
        self.bucket.mkdir(parents=True)
        os.environ.update(KEYS)
        names = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"]}
        names["ROOT_SECRET_KEY"] = KEYS["AWS_SECRET_ACCESS_KEY"]
        where = (f"--access-log={self._log}", "--port", f"127.0.0.1:{self._port}")
        self._server = subprocess.Popen(
            [program, "--quiet", *where, "posix", str(self.bucket.parent)],
            env=os.environ | names,
            stdout=subprocess.DEVNULL,
        )
        if self._delay_ms:
            words = (self._delayed_port, self._port, self._delay_ms / 1000)
            processes = multiprocessing.get_context("spawn")
            self._line = processes.Process(target=_delay, args=words, daemon=True)
            self._line.start()
        for port in (self._port, self._delayed_port) if self._delay_ms else (self._port,):
            _wait_for(port)
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.kill()
            self._line.join()
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def configs(self, prefix: str, *, delayed: bool = False) -> dict[str, str]:
        """Return the configs of a broker whose objects are below a prefix."""
        port = self._delayed_port if delayed else self._port
        return {
            "remote.log.storage.system.enable": "true",
            "shoal.remote.store.url": f"s3://bucket/{prefix}",
            "shoal.remote.store.endpoint": f"http://127.0.0.1:{port}",
            "shoal.remote.store.region": "us-east-1",
        }

    def requests(self, part: str = "") -> Counter[str]:
        """Count the requests since the last call, by name. `part` is a part of their keys."""
        with self._log.open("rb") as log:
            log.seek(self._log_bytes)
            lines = log.read()
        # The last line may be incomplete.
        lines = lines[: lines.rfind(b"\n") + 1]
        self._log_bytes += len(lines)
        found: Counter[str] = Counter()
        for line in lines.decode(errors="replace").splitlines():
            name = next((word for word in line.split() if word.startswith("s3_")), None)
            if name is not None and part in line:
                found[name] += 1
        return found

    def segments(self, topic: str) -> list[Path]:
        """Return the objects of a topic's segments, in order of their offsets."""
        found = [path for path in self.bucket.rglob("*.segment") if f"/{topic}-" in str(path)]
        return sorted(found, key=lambda path: path.name)


def total(found: Counter[str], names: tuple[str, ...]) -> int:
    return sum(found[name] for name in names)


def _wait_for(port: int) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise LoadFailed(f"nothing listens on port {port}") from None
            time.sleep(0.02)


class _Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, server_port: int, delay_s: float) -> None:
        self._server_port, self._delay_s = server_port, delay_s
        self._waiting: list[bytes] | None = []
        self._server = _Server(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._loop.create_connection(lambda: self._server, "127.0.0.1", self._server_port)
        except OSError:
            self.transport.close()
            return
        waiting, self._waiting = self._waiting or [], None
        for data in waiting:
            self._send(data)

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay_s, self._send, data)

    def _send(self, data: bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(data)
        elif not self._server.transport.is_closing():
            self._server.transport.write(data)

    def pause_writing(self) -> None:
        self._server.transport.pause_reading()

    def resume_writing(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is closed
            self._server.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        if self._waiting is None:
            self._loop.call_later(self._delay_s, self._server.transport.close)
        self._opening.cancel()


class _Server(asyncio.Protocol):
    """The connection to the server for one of a client."""

    def __init__(self, client: _Client) -> None:
        self._client = client

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._client.transport.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._client.transport.close()


def _delay(port: int, server_port: int, delay_s: float) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        make = lambda: _Client(server_port, delay_s)  # noqa: E731
        server = await loop.create_server(make, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(serve())
