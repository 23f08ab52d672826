"""The cost of metadata for a cluster larger than this machine: `python metadata_scale.py`.

Makes the image of `--brokers` brokers with `--partitions` partitions of three replicas from the
controller's own decisions. Measures replay, snapshot, the failure of a broker, its return, one
partition's change, and the periodic checks. Uses one process without disk and network. Prints a row
per step, and JSON with `--json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.metadata import brokers, controller, elections, internal_topics, topics
from shoal.metadata.controller import ControllerResult
from shoal.metadata.delta import ImageDraft, apply
from shoal.metadata.image import BrokerEndpoint, BrokerImage, MetadataImage
from shoal.metadata.partition_changes import build_change_record
from shoal.metadata.records import decode, encode
from shoal.metadata.snapshot import build_records

if TYPE_CHECKING:
    from collections.abc import Iterator


def rss_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


class Scale:
    """An image, and the figures of operations on it."""

    def __init__(self, seed: int) -> None:
        self.image = MetadataImage()
        self.figures: dict[str, float] = {}
        self._draw = random.Random(seed)
        self.do(controller.bootstrap())

    def do(self, decision: ControllerResult) -> int:
        """Replay a decision; return its number of records."""
        offset = self.image.offset + len(decision.records)
        self.image, _ = apply(self.image, decision.records, offset=offset, epoch=1)
        return len(decision.records)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.note(name, (time.perf_counter() - began) * 1000)

    def note(self, name: str, value: float) -> None:
        self.figures[name] = value
        print(f"{name:58} {value:14,.3f}", flush=True)

    def build(self, count: int, partitions: int, per_topic: int) -> None:
        for id in range(1, count + 1):
            endpoint = BrokerEndpoint("PLAINTEXT", f"broker-{id}.example", 9092)
            features = controller.SUPPORTED_FEATURES
            new = BrokerImage(
                id,
                UUID(int=id),
                -1,
                (endpoint,),
                features,
                f"rack-{id % 3}",
                log_dirs=(UUID(int=id),),
            )
            self.do(brokers.register(self.image, new, clean=True, alive=False))
            self.do(brokers.unfence(self.image, id))
        gc.collect()
        before_mb, began = rss_mb(), time.perf_counter()
        for first in range(0, partitions // per_topic, 100):
            new_topics = [
                topics.NewTopic(f"topic-{n:06}", per_topic, 3)
                for n in range(first, min(first + 100, partitions // per_topic))
            ]
            step = max(1, 10_000 // (per_topic + 1))
            for at in range(0, len(new_topics), step):
                made = topics.create_topics(self.image, new_topics[at : at + step], new_id=self._id)
                self.do(made)
        self.note("making them, us a partition", (time.perf_counter() - began) * 1e6 / partitions)
        gc.collect()
        self.note("image, bytes a partition", (rss_mb() - before_mb) * (1 << 20) / partitions)

    def _id(self) -> UUID:
        return UUID(int=self._draw.getrandbits(128))

    def snapshot(self) -> None:
        began = time.perf_counter()
        data = [encode(record) for record in build_records(self.image)]
        self.note("snapshot written, us a record", (time.perf_counter() - began) * 1e6 / len(data))
        self.note("snapshot, bytes a record", sum(map(len, data)) / len(data))
        began = time.perf_counter()
        draft = ImageDraft(MetadataImage())
        for value in data:
            draft.replay(decode(value))
        draft.finish(offset=1, epoch=1)
        self.note("snapshot read, us a record", (time.perf_counter() - began) * 1e6 / len(data))

    def changes(self) -> None:
        name = f"topic-{0:06}"
        topic = self.image.topics[name]
        before = topic.partitions[0]
        shrunk = build_change_record(topic.topic_id, 0, before, before._replace(isr=before.isr[:2]))
        assert shrunk is not None
        with self.timed("one partition's ISR moves: the next image, ms"):
            self.do(ControllerResult([shrunk]))
        with self.timed("a topic is made: decision and image, ms"):
            self.do(
                topics.create_topics(self.image, [topics.NewTopic("one", 3, 3)], new_id=self._id)
            )
        with self.timed("a broker dies: decision, ms"):
            decision = brokers.fence(self.image, 1)
        self.note("a broker dies: records", len(decision.records))
        with self.timed("a broker dies: bytes encoded, ms"):
            for record in decision.records:
                encode(record)
        with self.timed("a broker dies: the next image, ms"):
            self.do(decision)
        with self.timed("it comes back: decision and image, ms"):
            self.do(brokers.unfence(self.image, 1))
        with self.timed("a broker stops in order: decision and image, ms"):
            self.do(brokers.shut_down(self.image, 2))
        with self.timed("its next heartbeat: may it stop, ms"):
            brokers.may_stop(self.image, 2)
        with self.timed("the look for preferred leaders, ms"):
            elections.balance(self.image)
        with self.timed("the look for unclean elections, ms"):
            elections.elect_unclean(self.image)
        with self.timed("the look at internal topics, ms"):
            internal_topics.grow(self.image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--per-topic", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    scale = Scale(options.seed)
    scale.build(options.brokers, options.partitions, options.per_topic)
    scale.changes()
    scale.snapshot()
    if options.json is not None:
        options.json.write_text(json.dumps(vars(options) | scale.figures, indent=1, default=str))


if __name__ == "__main__":
    main()
