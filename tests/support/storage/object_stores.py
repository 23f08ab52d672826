"""An object store in memory with the faults of real ones, and S3 servers for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from shoal.tiered.store import (
    ObjectInfo,
    ObjectMissing,
    ObjectVersion,
    StoreConflict,
    StoreDenied,
    StoreUnavailable,
)
from support.brokers.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from shoal.record.batch import Buffer
    from shoal.tiered.store import ByteRange, ObjectSource

#: Faults by name. `landed` happens after the operation took effect, the others before it.
UNAVAILABLE, SLOW_DOWN, DENIED, HANG, CUT, GARBLED, LANDED = FAULTS = (
    "500",
    "503 SlowDown",
    "403",
    "hang",
    "cut",
    "garbled",
    "landed",
)
ERRORS = (UNAVAILABLE, SLOW_DOWN, DENIED, HANG)


class FaultyStore:
    """Objects in a dict. `choose(operation, key)` returns the next operation's fault, or "".

    The answers arrive in later turns of the loop, as those of a network do.
    """

    def __init__(self, choose: Callable[[str, str], str] = lambda operation, key: "") -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self.choose = choose
        self.now_ms = 0
        self._writes = 0
        self._e_tags: dict[str, str] = {}
        #: Every operation that arrived: (operation, key).
        self.calls: list[tuple[str, str]] = []

    async def put(self, key: str, source: ObjectSource) -> None:
        await self._put(key, source)

    async def put_if(
        self, key: str, source: ObjectSource, version: ObjectVersion | None
    ) -> ObjectVersion:
        return await self._put(key, source, lambda: self._version(key) == version)

    async def get_versioned(self, key: str) -> tuple[bytes, ObjectVersion]:
        data = await self.get(key)
        found = self._version(key)
        assert found is not None
        return data, found

    def _version(self, key: str) -> ObjectVersion | None:
        return ObjectVersion(self._e_tags[key], None) if key in self.objects else None

    async def _put(
        self, key: str, source: ObjectSource, allowed: Callable[[], bool] = lambda: True
    ) -> ObjectVersion:
        data = b"".join(source.iter_chunks())
        assert len(data) == source.size
        fault = await self._arrive("put", key)
        # A body that was cut or garbled on its way fails the request's checksum.
        if fault in (CUT, GARBLED):
            raise StoreUnavailable(key, "400 BadDigest")
        if not allowed():
            raise StoreConflict(key, "412 PreconditionFailed")
        self.objects[key] = data
        self.modified_ms[key] = self.now_ms
        self._writes += 1
        self._e_tags[key] = str(self._writes)
        self._depart(fault, key)
        return ObjectVersion(str(self._writes), None)

    async def get(self, key: str) -> bytes:
        fault = await self._arrive("get", key)
        return self._damage(fault, self._object(key))

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        fault = await self._arrive("get", key)
        data = self._object(key)
        found = [data[start:end] for start, end in ranges]
        if fault == CUT or any(
            len(d) != r.end - r.start for d, r in zip(found, ranges, strict=True)
        ):
            raise StoreUnavailable(key, "the answer is too short")
        return [self._damage(fault, part) for part in found]

    async def get_size(self, key: str) -> int:
        await self._arrive("head", key)
        return len(self._object(key))

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        fault = await self._arrive("list", prefix)
        keys = [k for k in sorted(self.objects) if k.startswith(f"{prefix.rstrip('/')}/")]
        for at, key in enumerate(keys):
            if fault == CUT and at == len(keys) // 2:
                raise StoreUnavailable(prefix, "the connection was closed")
            if key in self.objects:
                yield ObjectInfo(key, len(self.objects[key]), self.modified_ms[key])

    async def list_children(self, prefix: str) -> Sequence[str]:
        await self._arrive("list", prefix)
        start = f"{prefix}/" if prefix else ""
        below = (k.removeprefix(start) for k in self.objects if k.startswith(start))
        return sorted({start + k.split("/")[0] for k in below if "/" in k})

    async def delete(self, keys: Sequence[str]) -> None:
        fault = await self._arrive("delete", keys[0])
        for key in keys:
            self.objects.pop(key, None)
        self._depart(fault, keys[0])

    async def _arrive(self, operation: str, key: str) -> str:
        self.calls.append((operation, key))
        fault = self.choose(operation, key)
        await asyncio.sleep(0)
        if fault == HANG:
            await asyncio.Event().wait()
        if fault == DENIED:
            raise StoreDenied(key, "403 AccessDenied")
        if fault in (UNAVAILABLE, SLOW_DOWN):
            raise StoreUnavailable(key, fault)
        return fault

    def _depart(self, fault: str, key: str) -> None:
        if fault == LANDED:
            raise StoreUnavailable(key, "500 after the operation took effect")

    def _object(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(key, "404 NoSuchKey")
        return self.objects[key]

    def _damage(self, fault: str, data: bytes) -> bytes:
        if fault == GARBLED and data:
            return data[:-1] + bytes([data[-1] ^ 0x40])
        return data


class Gateway(NamedTuple):
    """An S3 server over a directory, with one bucket: how brokers reach it."""

    bucket: Path
    url: str
    endpoint: str
    region: str
    credentials: dict[str, str]

    @property
    def configs(self) -> dict[str, str]:
        return {
            "shoal.remote.store.url": self.url,
            "shoal.remote.store.endpoint": self.endpoint,
            "shoal.remote.store.region": self.region,
        }


@contextlib.contextmanager
def gateway(folder: Path) -> Iterator[Gateway]:
    """Run versitygw, which serves a directory by S3's protocol."""
    program = shutil.which("versitygw")
    module = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    assert program is not None, f"versitygw is missing: go install {module}"
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    (port,) = free_ports(1)
    keys = {"ROOT_ACCESS_KEY": "test-id", "ROOT_SECRET_KEY": "test-secret"}
    server = subprocess.Popen(
        [program, "--port", f"127.0.0.1:{port}", "posix", str(folder)],
        env=os.environ | keys,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield Gateway(
            bucket,
            "s3://bucket/prefix",
            f"http://127.0.0.1:{port}",
            "us-east-1",
            {"AWS_ACCESS_KEY_ID": "test-id", "AWS_SECRET_ACCESS_KEY": "test-secret"},
        )
    finally:
        server.kill()
        server.wait()
