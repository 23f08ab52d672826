"""The object store: one contract for every implementation, and retries around a faulty one."""

import asyncio
import contextlib
import hashlib
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from shoal.server.tiered import object_store
from shoal.server.tiered.object_store import InvalidStore, open_store
from shoal.server.tiered.retrying_store import CallLimits, RetryingStore
from shoal.server.tiered.service import make_store
from shoal.tiered.store import (
    ByteRange,
    BytesSource,
    ObjectMissing,
    StoreConflict,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from support.storage import object_stores, store_contract
from support.storage.object_stores import FaultyStore

LIMITS = CallLimits(timeout_ms=20, backoff_ms=1, backoff_max_ms=2)


@pytest.fixture(params=["simulated", "memory", "file"])
def store(request, tmp_path):
    if request.param == "simulated":
        return FaultyStore()
    pytest.importorskip("obstore")
    return open_store("memory:///" if request.param == "memory" else f"file://{tmp_path}/store")


def test_contract(store) -> None:
    asyncio.run(store_contract.objects(store))


def test_a_conditional_put_replaces_the_version_that_was_read(store) -> None:
    asyncio.run(store_contract.conditional_puts(store))


def test_children_are_the_next_part_of_the_keys(store) -> None:
    asyncio.run(store_contract.children(store))


def test_a_server_without_conditional_puts_gets_a_comparison_instead(monkeypatch) -> None:
    """It answers 501 to If-Match and If-None-Match, as some S3 servers do."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(object_store, "_PART_RETRIES", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    objects: dict[str, bytes] = {}
    conditional: list[bool] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                found = re.search(r"content-length: (\d+)", head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                method, path, _ = head.split(maxsplit=2)
                has_condition = "if-match:" in head or "if-none-match:" in head
                status, data = 200, objects.get(path, b"")
                if method == "put":
                    conditional.append(has_condition)
                    if has_condition:
                        status = 501
                    else:
                        objects[path] = data = body
                elif path not in objects:
                    status = 404
                shown = b"" if method in ("put", "head") or status != 200 else data
                length = len(data) if method == "head" and status == 200 else len(shown)
                tag = f'etag: "{hash(data)}"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
                reply = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Not Implemented'}\r\n"
                reply += f"{tag}content-length: {length}\r\n\r\n"
                writer.write(reply.encode() + shown)
                await writer.drain()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        store = open_store("s3://bucket/p", endpoint=f"http://{host}:{port}", region="here")
        first = await store.put_if("m", BytesSource(b"1"), None)
        assert not store.is_conditional
        with pytest.raises(StoreConflict):
            await store.put_if("m", BytesSource(b"x"), None)
        await store.put_if("m", BytesSource(b"22"), first)
        with pytest.raises(StoreConflict):
            await store.put_if("m", BytesSource(b"x"), first)
        assert await store.get("m") == b"22"
        server.close()

    asyncio.run(run())
    assert conditional == [True, False, False], "the server is asked once"


def test_a_missing_object_and_a_short_range_are_errors(store) -> None:
    asyncio.run(store_contract.errors(store))


def of_faults(*faults):
    """Return a store whose operations have these faults, one after the other, and then none."""
    left = list(faults)
    return FaultyStore(lambda operation, key: left.pop(0) if left else "")


def counted(totals):
    """Return the counters above 0."""
    return {operation: number for operation, number in totals.items() if number}


@pytest.mark.parametrize("fault", [f for f in object_stores.FAULTS if f != object_stores.DENIED])
def test_a_put_is_repeated_until_it_succeeds(fault) -> None:
    async def run() -> None:
        inner = of_faults(fault, fault, fault)
        store = RetryingStore(inner, LIMITS, random.Random(1))
        await store.put("k", BytesSource(b"data"))
        assert inner.objects == {"k": b"data"}
        assert (counted(store.attempts_total), counted(store.failures_total)) == (
            {"put": 4},
            {"put": 3},
        )

    asyncio.run(run())


def test_a_missing_object_is_no_failure() -> None:
    """A cluster that was never restored has no incarnation. Each look for it counted as one."""

    async def run() -> None:
        store = RetryingStore(FaultyStore(), LIMITS, random.Random(1))
        with pytest.raises(ObjectMissing):
            await store.get("k")
        version = await store.put_if("k", BytesSource(b"data"), None)
        with pytest.raises(StoreConflict):
            await store.put_if("k", BytesSource(b"other"), None)
        assert version
        assert counted(store.attempts_total) == {"get": 1, "put": 2}
        assert counted(store.failures_total) == {}

    asyncio.run(run())


def test_operations_are_counted_from_zero() -> None:
    """The rate of a counter that appears with its first failure leaves that failure out."""

    async def run() -> None:
        store = RetryingStore(FaultyStore(), LIMITS, random.Random(1))
        before = {*store.attempts_total}, {*store.failures_total}, {*store.bytes_total}
        await store.put("k", BytesSource(b"data"))
        await store.get_ranges("k", [ByteRange(0, 4)])
        await store.get_size("k")
        await store_contract.keys(store, "")
        await store.delete(["k"])
        assert set(store.attempts_total.values()) == {1}
        assert set(store.bytes_total.values()) == {4}
        after = {*store.attempts_total}, {*store.failures_total}, {*store.bytes_total}
        assert after == before
        assert before[0] == before[1]

    asyncio.run(run())


def test_the_last_error_is_raised_after_all_attempts() -> None:
    async def run() -> None:
        inner = FaultyStore(lambda operation, key: object_stores.HANG)
        store = RetryingStore(inner, LIMITS, random.Random(1))
        with pytest.raises(StoreUnavailable, match="k: no answer within"):
            await store.get("k")
        assert inner.calls == [("get", "k")] * LIMITS.attempts

    asyncio.run(run())


def test_a_refused_credential_is_not_repeated() -> None:
    async def run() -> None:
        inner = of_faults(object_stores.DENIED)
        store = RetryingStore(inner, LIMITS, random.Random(1))
        with pytest.raises(StoreDenied):
            await store.delete(["k"])
        assert len(inner.calls) == 1

    asyncio.run(run())


def test_a_list_is_complete_or_an_error() -> None:
    async def run() -> None:
        inner = of_faults("", "", "", object_stores.CUT, object_stores.CUT)
        store = RetryingStore(inner, LIMITS, random.Random(1))
        for name in "abc":
            await store.put(f"p/{name}", BytesSource(b""))
        assert await store_contract.keys(store, "p") == ["p/a", "p/b", "p/c"]

    asyncio.run(run())


def test_concurrency_is_bounded_and_uploads_do_not_delay_reads() -> None:
    async def run() -> None:
        running = {"put": 0, "get": 0}
        most = {"put": 0, "get": 0}
        gate = asyncio.Event()

        class Slow(FaultyStore):
            async def _hold(self, operation) -> None:
                running[operation] += 1
                most[operation] = max(most[operation], running[operation])
                await gate.wait()
                running[operation] -= 1

            async def put(self, key, source) -> None:
                await self._hold("put")

            async def get(self, key) -> bytes:
                await self._hold("get")
                return b""

        limits = CallLimits(uploads=2, reads=3)
        store = RetryingStore(Slow(), limits, random.Random(1))
        calls: list[asyncio.Future] = [
            asyncio.ensure_future(store.put("k", BytesSource())) for _ in range(9)
        ]
        calls += [asyncio.ensure_future(store.get("k")) for _ in range(9)]
        while running != {"put": 2, "get": 3}:
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*calls)
        assert most == {"put": 2, "get": 3}

    asyncio.run(run())


def test_a_wrong_url_names_the_config_and_the_remedy() -> None:
    pytest.importorskip("obstore")
    with pytest.raises(InvalidStore, match=r"shoal\.remote\.store\.url 'ftp://x'.*s3://"):
        open_store("ftp://x")
    with pytest.raises(InvalidStore, match=r"'file:///x'.*Remove shoal\.remote\.store\.endpoint"):
        open_store("file:///x", endpoint="http://127.0.0.1:1")
    with pytest.raises(InvalidStore, match=r"shoal\.remote\.store\.url 's3://'"):
        open_store("s3://")


def test_a_server_that_does_not_answer_is_unavailable(monkeypatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr(object_store, "_PART_RETRIES", 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def run() -> None:
        store = open_store("s3://bucket/prefix", endpoint="http://127.0.0.1:1", region="here")
        with pytest.raises(StoreError, match="k: ") as found:
            await store.get("k")
        assert isinstance(found.value, StoreUnavailable)
        assert "\n" not in str(found.value)

    asyncio.run(run())


def store_at(endpoint: str, signing: str = "auto") -> Any:
    """Return the store of a broker's configs."""
    config: Any = {
        "shoal.remote.store.url": "s3://bucket/prefix",
        "shoal.remote.store.endpoint": endpoint,
        "shoal.remote.store.region": "mars-1",
        "shoal.remote.store.payload.signing": signing,
    }
    return make_store(config)


def test_requests_go_to_the_endpoint_in_the_region(monkeypatch) -> None:
    """A broker's configs name the server and the region, which the signature contains."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    requests = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        with pytest.raises(StoreDenied):
            await store_at(f"http://{host}:{port}").get("key")
        server.close()

    asyncio.run(run())
    assert requests[0].split()[1].split("/") == ["", "bucket", "prefix", "key"]
    assert "mars-1/s3" in requests[0]


UNSIGNED = "x-amz-content-sha256: unsigned-payload"


@contextlib.asynccontextmanager
async def uploads_answered(status_of: Callable[[str], str]) -> AsyncIterator[tuple[str, list]]:
    """Answer uploads of b"contents" with `status_of(head)`. Yield the URL, and the heads."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert await reader.readexactly(8) == b"contents"
        heads.append(head)
        reply = f'HTTP/1.1 {status_of(head)}\r\netag: "1"\r\ncontent-length: 0\r\n'
        writer.write(f"{reply}connection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"http://{host}:{port}", heads
    server.close()


@pytest.mark.parametrize(
    ("signing", "refusal", "unsigned"),
    [
        ("auto", "", [False, False]),
        ("always", "", [False, False]),
        ("never", "", [True, True]),
        ("never", "400 Bad Request", [True, False, False]),
        ("never", "403 Forbidden", [True, False, False]),
        # The library tries it again.
        ("never", "501 Not Implemented", [True, True, True, False, False]),
    ],
)
def test_uploads_are_signed_or_have_a_checksum(
    monkeypatch, signing: str, refusal: str, unsigned: list[bool]
) -> None:
    """Over plain HTTP. A server that refuses the first upload that is not signed gets no other."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def status_of(head: str) -> str:
        return refusal if refusal and UNSIGNED in head else "200 OK"

    async def run() -> list[str]:
        async with uploads_answered(status_of) as (url, heads):
            store = store_at(url, signing)
            for key in ("one", "two"):
                await store.put(key, BytesSource(b"contents"))
        return heads

    heads = asyncio.run(run())
    assert [UNSIGNED in head for head in heads] == unsigned
    signed = f"x-amz-content-sha256: {hashlib.sha256(b'contents').hexdigest()}"
    for head in heads:
        assert ("x-amz-checksum-crc64nvme: " in head) is (UNSIGNED in head)
        assert (signed in head) is (UNSIGNED not in head)


def test_a_later_refusal_is_no_reason_to_sign(monkeypatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def run() -> list[str]:
        statuses = iter(["200 OK", "403 Forbidden", "200 OK"])
        async with uploads_answered(lambda _: next(statuses)) as (url, heads):
            store = store_at(url, "never")
            await store.put("one", BytesSource(b"contents"))
            with pytest.raises(StoreDenied):
                await store.put("two", BytesSource(b"contents"))
            await store.put("three", BytesSource(b"contents"))
        return heads

    assert all(UNSIGNED in head for head in asyncio.run(run()))
