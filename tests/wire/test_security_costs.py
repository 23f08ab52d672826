"""What security costs each request: functions that a broker calls, counted in its own thread.

The broker, with all its parts, and its client share an event loop, so one profile sees both. Of
their functions only the broker's count.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import shoal
import uvloop
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.authorizer import Authorizer
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.network.dispatch import Dispatcher
from shoal.server.process import compose
from support.brokers.connections import request_frame
from support.brokers.ports import free_ports
from support.security import permissions
from support.security.permissions import ADMIN, everything

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from uuid import UUID

    from shoal.server.broker import Broker

TOPIC, GROUP, MEMBER = "t", "g", "a-member-of-the-tests-x"
REQUESTS, AT_ONCE = 200, 50
ENTRIES = 2_000
PACKAGE = Path(shoal.__file__).parent
#: The modules of TLS, logins and permissions, beside all of `security`.
MODULES = {
    f"server/{name}.py"
    for name in (
        "audit",
        "authorization",
        "handlers/authorization",
        "listener_security",
        "network/authentication",
        "network/certificates",
        "network/cipher_suites",
        "network/keystores",
        "network/link_security",
        "network/listener_tls",
        "network/node_tls",
        "network/sasl",
        "network/scram_sessions",
        "network/tls",
    )
}


def test_the_modules_of_security_exist() -> None:
    assert not [name for name in MODULES if not (PACKAGE / name).exists()]


class Client:
    """A connection to the broker of the same event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def repeat(self, request: bytes, count: int) -> bytes:
        """Send a request `count` times, some at once. Return the last response."""
        answer = b""
        for _ in range(0, count, AT_ONCE):
            self._writer.write(request * min(count, AT_ONCE))
            for _ in range(min(count, AT_ONCE)):
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                answer = await self._reader.readexactly(size)
        return answer

    async def call(self, api: ApiKey, version: int, body: dict[str, Any]) -> Any:
        answer = await self.repeat(request_frame(api, version, body), 1)
        at = len(frames.build_response_head(api, version, 1))
        return codec.read_response(api, version, answer, at)

    async def create_topic(self) -> UUID:
        new = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        body = {"timeout_ms": 60_000, "topics": [new]}
        (row,) = (await self.call(ApiKey.CREATE_TOPICS, 7, body)).topics
        assert row.error_code == ErrorCode.none, row
        found: UUID = row.topic_id
        return found


@asynccontextmanager
async def serving(folder: Path, **configs: str) -> AsyncIterator[tuple[Broker, Client]]:
    """A broker that allows plaintext connections, and a client of it."""
    logs.configure(json=True, level="critical")
    (port,) = free_ports(1)
    own = {"log.dirs": str(folder), "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    given = {name.replace("_", "."): value for name, value in configs.items()}
    broker = compose(resolve({**own, **given}, {}), asyncio.get_running_loop())
    await broker.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield broker, Client(reader, writer)
        writer.close()
    finally:
        await broker.stop()


def produce() -> bytes:
    batch = bytes(build_batch([(1, None, b"v" * 100, ())]))
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
    body = {"acks": -1, "timeout_ms": 60_000, "topic_data": [data]}
    return request_frame(ApiKey.PRODUCE, 9, body)


def fetch() -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{"topic": TOPIC, "partitions": [partition]}],
    }
    return request_frame(ApiKey.FETCH, 12, body)


@contextmanager
def called() -> Iterator[Counter[str]]:
    """Count the calls of the broker's functions in the block, by file and function."""
    found: Counter[str] = Counter()
    names: dict[Any, str] = {}

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            name = f"{path.relative_to(PACKAGE)} {code.co_qualname}" if inside else ""
            names[code] = name
        found[name] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def of_security(found: Counter[str]) -> dict[str, int]:
    """Return the calls of functions of TLS, logins and permissions."""
    return {
        name: count
        for name, count in found.items()
        if name.startswith("security/") or name.partition(" ")[0] in MODULES
    }


@pytest.mark.parametrize("request_of", [produce, fetch])
def test_requests_without_security_call_nothing_of_it(
    tmp_path: Path, request_of: Callable[[], bytes]
) -> None:
    """On a plaintext listener of a broker without an authorizer."""

    async def main() -> None:
        async with serving(tmp_path) as (_, client):
            await client.create_topic()
            await client.repeat(produce(), 2)
            request = request_of()
            await client.repeat(request, 2)
            with called() as found:
                await client.repeat(request, REQUESTS)
        assert found["server/network/dispatch.py Dispatcher.handle"] == REQUESTS
        assert of_security(found) == {}

    uvloop.run(main())


# Entries of others.


def of_others(count: int) -> list[Acl]:
    """Entries of other users, for the same resources and for others."""
    kinds = (ResourceType.TOPIC, ResourceType.GROUP)
    patterns = (PatternType.LITERAL, PatternType.PREFIXED)
    names = {ResourceType.TOPIC: TOPIC, ResourceType.GROUP: GROUP}

    def entries() -> Iterator[Acl]:
        for n in range(count):
            kind = kinds[n % 2]
            name = names[kind] if n % 10 == 0 else f"other-{n}"
            pattern = patterns[n // 2 % 2]
            yield Acl(kind, name, pattern, f"User:{n}", "*", Operation.READ, Permission.ALLOW)

    return list(entries())


@contextmanager
def per_request() -> Iterator[list[int]]:
    """Count what each request calls until it is handled: functions of Python and of C."""
    found: list[int] = []
    handle, inside = Dispatcher.handle.__code__, False

    def note(frame: Any, event: str, _argument: Any) -> None:
        nonlocal inside
        if frame.f_code is handle and event in ("call", "return"):
            inside = event == "call"
            if inside:
                found.append(0)
        elif inside and event in ("call", "c_call"):
            found[-1] += 1

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def median(counts: list[int]) -> int:
    return sorted(counts)[len(counts) // 2]


class ShareMember:
    """A member of a share group with a session."""

    def __init__(self, client: Client, topic_id: UUID) -> None:
        self._client, self._topic_id = client, topic_id
        self._epoch = 0

    async def join(self) -> None:
        body = {"group_id": GROUP, "member_id": MEMBER, "subscribed_topic_names": [TOPIC]}
        codes = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
        while True:
            answer = await self._client.call(
                ApiKey.SHARE_GROUP_HEARTBEAT, 1, body | {"member_epoch": 0}
            )
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            assert answer.error_code in codes | {ErrorCode.none}, answer

    async def fetch(self, count: int) -> None:
        """Fetch what is there, which is nothing."""
        for _ in range(count):
            partition = {"partition_index": 0, "acknowledgement_batches": []}
            body = {
                "group_id": GROUP,
                "member_id": MEMBER,
                "share_session_epoch": self._epoch,
                "max_wait_ms": 0,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": 10,
                "batch_size": 10,
                "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
            }
            answer = await self._client.call(ApiKey.SHARE_FETCH, 2, body)
            assert answer.error_code == ErrorCode.none, answer
            assert not [p for t in answer.responses for p in t.partitions if p.error_code], answer
            self._epoch += 1


def test_requests_cost_the_same_with_thousands_of_entries(tmp_path: Path) -> None:
    """Produce, Fetch and ShareFetch on a broker with an authorizer."""

    async def main() -> None:
        configs = {name.replace(".", "_"): value for name, value in permissions.CONFIGS.items()}
        async with serving(tmp_path, **configs) as (broker, client):
            creations = permissions.creations(everything(ADMIN))
            answer = await client.call(ApiKey.CREATE_ACLS, 3, creations)
            assert not any(row.error_code for row in answer.results), answer
            member = ShareMember(client, await client.create_topic())
            await member.join()

            async def repeat(request: bytes, count: int) -> None:
                await client.repeat(request, count)

            works: dict[str, Callable[[int], Awaitable[None]]] = {
                "produce": lambda count: repeat(produce(), count),
                "fetch": lambda count: repeat(fetch(), count),
                "share fetch": member.fetch,
            }

            async def counts() -> dict[str, int]:
                found = {}
                for name, work in works.items():
                    await work(5)
                    with per_request() as calls:
                        await work(15)
                    assert len(calls) == 15
                    found[name] = median(calls)
                return found

            await counts()
            authorizer = broker.authorizer
            assert isinstance(authorizer, Authorizer)
            entries = iter(of_others(ENTRIES))
            authorizer.change(islice(entries, 20))
            few = await counts()
            assert min(few.values()) > 20, few
            authorizer.change(entries)
            assert await counts() == few

    uvloop.run(main())
