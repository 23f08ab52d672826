"""Writes of share-group state to a coordinator on another broker: one at a time for each key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.coordinator.share.records import ShareKey
from shoal.metadata.image import BrokerImage, ImageScope, MetadataImage
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.node import Node
from shoal.server.share.persister import Decide, Persister
from shoal.server.share.state_write import Failure, StateWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

KEY = ShareKey("g", UUID(int=1), 0)
ELSEWHERE = 2


class PartitionResult(NamedTuple):
    error_code: ErrorCode
    error_message: str | None = None


class TopicResult(NamedTuple):
    partitions: list[PartitionResult]


class Response(NamedTuple):
    """The response to WriteShareGroupState."""

    results: list[TopicResult]


class ElsewhereStates:
    """Another broker coordinates all keys."""

    def find_coordinator(self, key: str) -> int:
        return ELSEWHERE

    def ensure_topic(self) -> None:
        return None

    def decide(self, key: ShareKey, decide: Decide) -> asyncio.Future[Any]:
        raise AssertionError("this broker decides on nothing")

    def begin_writes(self) -> None:
        """There are none."""

    def write(self, index: int, write: StateWrite, now_ms: int) -> None:
        raise AssertionError("this broker decides on nothing")

    def end_writes(self) -> None:
        """There are none."""


class SlowPeers:
    """Another broker, which answers a request when the test says so."""

    def __init__(self) -> None:
        self.requests: list[list[dict[str, Any]]] = []
        self._answers: list[asyncio.Future[ErrorCode]] = []

    async def request(self, broker_id: int, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        assert (broker_id, api_key) == (ELSEWHERE, ApiKey.WRITE_SHARE_GROUP_STATE)
        (topic,) = fields["topics"]
        self.requests.append(topic["partitions"][0]["state_batches"])
        self._answers.append(asyncio.get_running_loop().create_future())
        code = await self._answers[-1]
        return Response([TopicResult([PartitionResult(code)])])

    def answer(self, code: ErrorCode = ErrorCode.none) -> None:
        self._answers[-1].set_result(code)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(tmp_path: Path, check: Callable[[Persister, SlowPeers], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        node = Node(resolve(flags, {}), asyncio.get_running_loop())
        cache, peers = MetadataCache(ImageScope(node.id, {})), SlowPeers()
        brokers = {id: BrokerImage(id, UUID(int=id), 0, (), {}, None, False) for id in (1, 2)}
        cache.serve(MetadataImage(scope=ImageScope(node.id, {}), brokers=brokers))
        await check(Persister(node, cache, peers, ElsewhereStates()), peers)
        node.disk.close()

    asyncio.run(main())


def write(results: list[Failure | None], first: int) -> StateWrite:
    made = StateWrite(
        KEY,
        lambda _, failure: results.append(failure),
        partition=0,
        state_epoch=0,
        leader_epoch=0,
        begun_ms=0,
    )
    made.changes.append((first, first, 2, 1))
    return made


def test_a_write_waits_for_the_one_before_it_and_takes_changes_meanwhile(tmp_path: Path) -> None:
    async def check(persister: Persister, peers: SlowPeers) -> None:
        results: list[Failure | None] = []
        first, second = write(results, 0), write(results, 1)
        persister.write(first)
        await turns()
        persister.write(second)
        await turns()
        assert (first.is_closed, second.is_closed, len(peers.requests)) == (True, False, 1)
        second.changes.append((2, 2, 2, 1))
        peers.answer()
        await turns()
        assert results == [None]
        assert [batch["first_offset"] for batch in peers.requests[1]] == [1, 2]
        peers.answer(ErrorCode.fenced_state_epoch)
        await turns()
        assert results[1] is not None
        assert results[1].code is ErrorCode.not_leader_or_follower

    run(tmp_path, check)


def test_a_write_of_a_dropped_leader_is_not_sent(tmp_path: Path) -> None:
    async def check(persister: Persister, peers: SlowPeers) -> None:
        results: list[Failure | None] = []
        first, second, third = (write(results, first) for first in range(3))
        persister.write(first)
        await turns()
        persister.write(second)
        await turns()
        second.is_closed = True
        peers.answer()
        await turns()
        persister.write(third)
        await turns()
        assert [request[0]["first_offset"] for request in peers.requests] == [0, 2]
        peers.answer()
        await turns()
        assert results == [None, None]

    run(tmp_path, check)
