"""The controller on the quorum: decide, records, replay, in simulation.

Each node's state machine is the metadata image. The leader is the active controller. It decides on
the image of its whole log, committed or not. A response counts once its records are committed in
the same epoch. A new leader begins with the content of its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.metadata import controller, topics
from shoal.metadata.delta import apply
from shoal.metadata.image import BrokerEndpoint, BrokerImage, MetadataImage
from shoal.metadata.records import MetadataRecord, decode, encode
from shoal.protocol.errors import ErrorCode
from shoal.quorum.events import Propose
from shoal.record.records import build_batch
from sim.quorum_checker import Violation
from sim.quorum_cluster import Cluster
from sim.quorum_node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from shoal.metadata.controller import ControllerResult

BROKERS = (101, 102, 103)


class MetadataNode(Node):
    """A controller: its image follows the high watermark, its head the log's end."""

    snapshot_every = 1 << 62

    def clear(self) -> None:
        self.image = MetadataImage()
        self._head: MetadataImage | None = None
        self._head_epoch = -1

    @property
    def state(self) -> Hashable:
        image = self.image
        return image.topics, image.brokers, image.features, image.next_producer_id

    def replay(self, values: Sequence[bytes], *, offset: int, epoch: int) -> None:
        self.image, _ = apply(self.image, map(decode, values), offset=offset, epoch=epoch)

    def head(self) -> MetadataImage:
        """Return the image that a leader decides on."""
        raft = self.live()
        if self._head is None or self._head_epoch != raft.epoch:
            head = self.image
            for offset, epoch, values in self.batches(self.applied, raft.index.end_offset):
                head, _ = apply(head, map(decode, values), offset=offset, epoch=epoch)
            self._head, self._head_epoch = head, raft.epoch
        return self._head

    def submit(self, decide: Callable[[MetadataImage], ControllerResult]) -> tuple[int, Any]:
        """Decide and propose; return the offset to wait for, and the response."""
        decision = decide(self.head())
        offset = self.live().high_watermark - 1
        if decision.records:
            offset = self._propose(decision.records)
        return offset, decision.response

    def _propose(self, records: Sequence[MetadataRecord]) -> int:
        batch = build_batch([(self.now_ms, None, encode(record), ()) for record in records])
        epoch, head = self.live().epoch, self._head
        assert head is not None
        effects = self.step(Propose(batch))
        assert effects is not None
        assert effects.proposed is not None
        self._head, _ = apply(head, records, offset=effects.proposed, epoch=epoch)
        return effects.proposed


class Asked(NamedTuple):
    """A response that waits for its commit."""

    incarnation: int
    epoch: int
    offset: int
    answer: tuple[str, Any]


class MetadataCluster(Cluster):
    """Clients create topics and take producer id blocks; the cluster records their responses."""

    node_type = MetadataNode

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.asked: dict[int, list[Asked]] = {}
        self.acknowledged_topics: dict[str, UUID] = {}
        self.acknowledged_blocks: list[range] = []

    def propose(self, node: Node) -> None:
        assert isinstance(node, MetadataNode)
        rng = self.world.random
        head = node.head()
        kind = rng.random()
        if not head.features:
            what: tuple[str, Any] = ("start", None)
            offset, _ = node.submit(lambda image: controller.bootstrap())
        elif len(head.brokers) < len(BROKERS):
            broker = _broker(BROKERS[len(head.brokers)])
            what = ("register", None)
            offset, _ = node.submit(
                lambda image: controller.register_broker(image, broker, clean=True)
            )
        elif kind < 0.5:
            offset, block = node.submit(
                lambda image: controller.allocate_producer_ids(image, BROKERS[0])
            )
            what = ("block", block)
        else:
            name = f"t{rng.randrange(200)}"
            new = topics.NewTopic(name, partitions=rng.randint(1, 3), replication_factor=3)
            offset, (row,) = node.submit(
                lambda image: topics.create_topics(
                    image, [new], new_id=lambda: UUID(int=rng.getrandbits(127))
                )
            )
            if row["error_code"] is not ErrorCode.none:
                return
            what = ("topic", (name, row["topic_id"]))
        one = Asked(node.incarnation, node.live().epoch, offset, what)
        self.asked.setdefault(node.id, []).append(one)

    def _collect(self) -> None:
        for id, waiting in self.asked.items():
            raft = self.nodes[id].raft
            left = []
            for one in waiting:
                if raft is None or one.incarnation != self.nodes[id].incarnation:
                    continue
                if not raft.is_leader or raft.epoch != one.epoch:
                    continue
                if raft.high_watermark > one.offset:
                    self._acknowledge(*one.answer)
                else:
                    left.append(one)
            self.asked[id] = left

    def _acknowledge(self, kind: str, answer: Any) -> None:
        self.checker.acknowledged_count += 1
        if kind == "block":
            for block in self.acknowledged_blocks:
                if block.start < answer.stop and answer.start < block.stop:
                    raise Violation("producer_ids", f"{answer} was given out as {block}")
            self.acknowledged_blocks.append(answer)
        elif kind == "topic":
            name, topic_id = answer
            if self.acknowledged_topics.setdefault(name, topic_id) != topic_id:
                raise Violation("topic_names", f"{name} was created twice")

    def check_images(self) -> None:
        """Check that all nodes have one image, and that it contains every acknowledged change."""
        nodes = [n for n in self.nodes.values() if isinstance(n, MetadataNode)]
        first = nodes[0].image
        for node in nodes[1:]:
            if (node.image.topics, node.image.brokers) != (first.topics, first.brokers):
                raise Violation("same_image", f"n{node.id} and n{nodes[0].id} differ")
        for name, topic_id in self.acknowledged_topics.items():
            if name not in first.topics or first.topics[name].topic_id != topic_id:
                raise Violation("acknowledged", f"topic {name} of {topic_id} is not there")


def _broker(id: int) -> BrokerImage:
    endpoint = BrokerEndpoint("PLAINTEXT", f"b{id}", 9092)
    levels = controller.SUPPORTED_FEATURES
    return BrokerImage(id, UUID(int=id), -1, (endpoint,), levels, fenced=False)
