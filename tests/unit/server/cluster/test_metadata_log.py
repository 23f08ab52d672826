"""The metadata log on a disk that crashes, fills up and fails."""

import asyncio
import errno
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from shoal.log.directory import LogDirectory
from shoal.log.errors import CorruptLog
from shoal.log.memory import MemoryStorage
from shoal.metadata import topics
from shoal.metadata.controller import ControllerResult
from shoal.metadata.delta import ImageDraft
from shoal.metadata.image import BrokerEndpoint, BrokerImage, ImageScope, MetadataImage
from shoal.metadata.records import decode
from shoal.metadata.topics import NewTopic
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.quorum.voters import VoterEndpoint as VoterEndpoint
from shoal.record.records import build_batch
from shoal.server import node as server_node
from shoal.server.cluster import metadata_log
from shoal.server.cluster.metadata_log import MetadataLog
from shoal.server.cluster.quorum import MetadataQuorum
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.network.links import SetupTimeouts

BROKER = BrokerImage(
    1, UUID(int=5), -1, (BrokerEndpoint("PLAINTEXT", "127.0.0.1", 9092),), {}, fenced=False
)


class NoEndpoints:
    """A node that no other node asks."""

    def get_quorum_endpoints(self) -> tuple[VoterEndpoint, ...]:
        return ()


class Node:
    """Only a broker's metadata, on `storage`, within a running loop."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.directory = LogDirectory(storage, "/data")
        self.directory.open(cluster_id="c", node_id=1, directory_id=UUID(int=9))
        node = server_node.Node(resolve({"node.id": "1"}, {}), asyncio.get_running_loop())
        self.disk = node.disk
        self.quorum = MetadataQuorum(
            node, self.directory, NoEndpoints(), SetupTimeouts(1_000, 1_000)
        )
        self.cache = MetadataCache(ImageScope(1))
        self.metadata = MetadataLog(node, self.quorum, self.cache)
        self.quorum.open()
        self.metadata.open()
        self.quorum.start()
        self.metadata.register(BROKER, clean=self.directory.clean)
        self.directory.mark_started()

    def create(self, *names: str) -> asyncio.Future[Any]:
        return self.metadata.submit(
            lambda image: topics.create_topics(
                image, [NewTopic(name, 2, 1) for name in names], new_id=uuid4
            )
        )

    def stop(self) -> MetadataImage:
        self.directory.close()
        self.disk.close()
        return self.metadata.image


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


def refuse(operation: str, code: int) -> Any:
    def fault(found: str, path: str) -> None:
        if found == operation and "__cluster_metadata" in path:
            raise OSError(code, "refused", path)

    return fault


def test_acknowledged_changes_survive_a_power_loss() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        await node.create("a", "b")
        await node.create("c")
        image, epoch = node.metadata.image, node.metadata.epoch
        storage.crash(lambda n: 0)
        node.disk.close()
        again = Node(storage)
        assert again.metadata.image.topics.keys() == image.topics.keys()
        assert again.metadata.epoch > epoch
        for name, topic in image.topics.items():
            found = again.metadata.image.topics[name]
            assert found.topic_id == topic.topic_id
            # The stop was unclean, so the partitions of this broker got a new epoch.
            assert [p.leader_epoch for p in found.partitions] == [1, 1]
        again.stop()

    run(main())


def test_a_clean_stop_keeps_leader_epochs() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        await node.create("a")
        before = node.stop()
        again = Node(storage)
        assert again.metadata.image.topics == before.topics
        assert again.metadata.image.features == before.features
        again.stop()

    run(main())


def test_decisions_see_those_before_them_and_publish_in_order() -> None:
    async def main() -> None:
        node = Node(MemoryStorage())
        seen: list[list[str]] = []
        node.cache.subscribe(lambda image, delta: seen.append(sorted(image.topics)))
        answers = await asyncio.gather(
            node.create("a"), node.create("a"), node.create("b"), node.create("a.b")
        )
        assert [rows[0]["error_code"] for rows in answers] == [
            ErrorCode.none,
            ErrorCode.topic_already_exists,
            ErrorCode.none,
            ErrorCode.none,
        ]
        assert seen == [["a"], ["a", "b"], ["a", "a.b", "b"]]
        node.stop()

    run(main())


def test_a_refusal_does_not_overtake_the_commit_that_it_refers_to() -> None:
    """The error that a topic exists is sent only once the topic is durable."""

    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        synced = threading.Event()

        def hold(operation: str, _path: str) -> None:
            if operation == "sync":
                synced.wait(20)

        storage.fault = hold
        first = node.create("a")
        await asyncio.sleep(0)  # Its sync has begun, in the thread of the disk.
        second = node.create("a")
        assert not first.done()
        assert not second.done()
        done: list[str] = []
        first.add_done_callback(lambda _: done.append("first"))
        second.add_done_callback(lambda _: done.append("second"))
        synced.set()
        await asyncio.gather(first, second)
        assert done == ["first", "second"]
        node.stop()

    run(main())


def test_a_full_disk_refuses_and_changes_nothing() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        before = node.metadata.image
        storage.fault = refuse("write", errno.ENOSPC)
        with pytest.raises(ApiError) as caught:
            await node.create("a")
        assert caught.value.code == ErrorCode.kafka_storage_error
        assert node.metadata.image is before
        storage.fault = lambda operation, path: None
        (row,) = await node.create("a")
        assert row["error_code"] == ErrorCode.none
        image = node.stop()
        again = Node(storage)
        assert again.metadata.image.topics == image.topics
        again.stop()

    run(main())


def test_a_failed_sync_sends_no_responses_and_ends_decisions() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        before = node.metadata.image
        storage.fault = refuse("sync", errno.EIO)
        answers = [node.create("a"), node.create("b")]
        for answer in answers:
            with pytest.raises(ApiError, match="restarted"):
                await answer
        storage.fault = lambda operation, path: None
        with pytest.raises(ApiError, match="restarted"):
            await node.create("c")
        assert node.metadata.image is before
        node.disk.close()

    run(main())


def test_a_follower_that_fails_refuses_that_answer_alone() -> None:
    async def main() -> None:
        node = Node(MemoryStorage())
        failures: Iterator[Exception | None] = iter([OSError(errno.ENOSPC, "full"), None])

        def follow(*_: Any) -> None:
            error = next(failures)
            if error is not None:
                raise error

        node.cache.subscribe(follow)
        first, second = node.create("a"), node.create("b")
        with pytest.raises(ApiError, match="full"):
            await first
        assert (await second)[0]["error_code"] == ErrorCode.none
        node.stop()

    run(main())


def test_a_log_of_a_newer_release_is_refused() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        node = Node(storage)
        await node.create("a")
        node.stop()
        path = "/data/__cluster_metadata-0/00000000000000000000.log"
        data = bytearray(storage.read_file(path))
        at = data.index(b"\x01\x0c\x00\x11metadata.version")
        data[at + 2] = 9  # A version of FeatureLevelRecord that does not exist yet.
        storage.open(path).write(0, [data])
        with pytest.raises(CorruptLog, match="newer release"):
            Node(storage)

    run(main())


def test_an_empty_decision_is_answered_at_once() -> None:
    async def main() -> None:
        node = Node(MemoryStorage())
        answer = node.metadata.submit(lambda image: ControllerResult((), "x"), lambda r: r + "y")
        assert answer.done()
        assert answer.result() == "xy"
        node.stop()

    run(main())


def test_a_snapshot_is_written_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request waits for it, and it has the state of the moment at which it began."""
    turn = 0
    records_by_turn: Counter[int] = Counter()

    def noted(records: list[Any]) -> Any:
        records_by_turn[turn] += len(records)
        return build_batch(records)

    monkeypatch.setattr(metadata_log, "build_batch", noted)

    async def main() -> None:
        node = Node(MemoryStorage())
        for n in range(20):
            await node.create(*(f"t-{n}-{m}" for m in range(50)))
        image = node.metadata.image
        saving = node.metadata.save_if_due(bytes_max=1, interval_ms=0)
        assert saving is not None
        records_by_turn.clear()

        def tick() -> None:
            nonlocal turn
            turn += 1
            if not saving.done():
                asyncio.get_running_loop().call_soon(tick)

        tick()
        await node.create("meanwhile")
        await saving
        assert sum(records_by_turn.values()) > 1000
        assert max(records_by_turn.values()) < 300, records_by_turn
        snapshot_id = node.quorum.snapshot_id
        assert snapshot_id is not None
        assert snapshot_id.offset == image.offset + 1
        draft = ImageDraft(MetadataImage(scope=ImageScope(1)))
        for value in node.quorum.read_snapshot_values(snapshot_id):
            draft.replay(decode(value))
        found, _ = draft.finish(offset=image.offset, epoch=image.epoch)
        assert found.topics == image.topics
        assert found.brokers == image.brokers
        assert "meanwhile" in node.metadata.image.topics
        node.stop()

    run(main())
