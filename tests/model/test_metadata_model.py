"""The controller compared with a twin, and the live image with one replayed from the bytes."""

import itertools
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from shoal.metadata import alterations, controller, delta, topics
from shoal.metadata.alterations import AlterConfigOperation, ConfigAlteration, ConfigChange
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import BrokerEndpoint, BrokerImage, ConfigResourceType, MetadataImage
from shoal.metadata.records import decode, encode
from shoal.protocol.errors import ErrorCode
from support.runs.example_counts import scale_examples

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "bad name"])
CONFIGS = st.sampled_from(
    [("retention.ms", "5"), ("retention.ms", "x"), ("segment.ms", "7"), ("no.such", "1")]
)


class Metadata(RuleBasedStateMachine):
    """The twin holds a partition count and a dict of configs by topic name."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = itertools.count(1)
        self.image = MetadataImage()
        self.log: list[bytes] = []
        self.twin: dict[str, tuple[int, dict[str, str]]] = {}
        self.commit(controller.bootstrap())
        broker = BrokerImage(
            1, UUID(int=1), -1, (BrokerEndpoint("PLAINTEXT", "h", 1),), {}, fenced=False
        )
        self.commit(controller.register_broker(self.image, broker, clean=True))

    def commit(self, decision: ControllerResult) -> delta.MetadataDelta:
        self.log += [encode(record) for record in decision.records]
        before = self.image
        self.image, change = delta.apply(
            before, decision.records, offset=len(self.log) - 1, epoch=1
        )
        assert {t.name for t in change.created} >= set(self.image.topics) - set(before.topics)
        assert {t.name for t in change.deleted} >= set(before.topics) - set(self.image.topics)
        return change

    @rule(name=NAMES, partitions=st.integers(-2, 4), config=st.none() | CONFIGS)
    def create(self, name: str, partitions: int, config: tuple[str, str] | None) -> None:
        new = topics.NewTopic(name, partitions, 1, configs=[config] if config else [])
        decision = topics.create_topics(
            self.image, [new], new_id=lambda: UUID(int=next(self.ids) + 1000)
        )
        self.commit(decision)
        taken = any(n.replace(".", "_") == name.replace(".", "_") for n in self.twin)
        fine = not taken and " " not in name and partitions not in (0, -2)
        fine = fine and (config is None or config in (("retention.ms", "5"), ("segment.ms", "7")))
        assert (decision.response[0]["error_code"] is ErrorCode.none) == fine
        if fine:
            self.twin[name] = (max(partitions, 1), dict([config] if config else []))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        topic = self.image.topics.get(name)
        assert (topic is not None) == (name in self.twin)
        if topic is not None:
            self.commit(topics.delete_topics(self.image, [topic]))
            del self.twin[name]

    @rule(name=NAMES, partitions=st.integers(0, 8))
    def grow(self, name: str, partitions: int) -> None:
        decision = topics.create_partitions(
            self.image, [topics.CreatePartitionsTopic(name, partitions)]
        )
        self.commit(decision)
        fine = name in self.twin and partitions > self.twin[name][0]
        assert (decision.response[0]["error_code"] is ErrorCode.none) == fine
        if fine:
            self.twin[name] = (partitions, self.twin[name][1])

    @rule(
        name=NAMES,
        config=CONFIGS,
        operation=st.sampled_from(AlterConfigOperation),
        old=st.booleans(),
    )
    def alter(self, name: str, config: tuple[str, str], operation: int, old: bool) -> None:
        key, value = config
        operation = AlterConfigOperation.SET if old else operation
        change = ConfigChange(
            key, None if operation == AlterConfigOperation.DELETE else value, operation
        )
        decision = alterations.alter_configs(
            self.image,
            [ConfigAlteration(ConfigResourceType.TOPIC, name, [change])],
            incremental=not old,
        )
        self.commit(decision)
        fine = decision.response[0]["error_code"] is ErrorCode.none
        if name not in self.twin or operation in (
            AlterConfigOperation.APPEND,
            AlterConfigOperation.SUBTRACT,
        ):
            assert not fine
        elif operation == AlterConfigOperation.DELETE:
            assert fine
            self.twin[name][1].pop(key, None)
        else:
            assert fine == (key != "no.such" and value != "x")
            if fine:
                kept = {} if old else self.twin[name][1]
                self.twin[name] = (self.twin[name][0], {**kept, key: value})

    @invariant()
    def image_is_the_twins(self) -> None:
        assert {name: len(t.partitions) for name, t in self.image.topics.items()} == {
            name: count for name, (count, _) in self.twin.items()
        }
        texts = {n: dict(t) for (kind, n), t in self.image.configs.items() if kind == 2}
        assert texts == {name: own for name, (_, own) in self.twin.items() if own}
        for name, (_, own) in self.twin.items():
            in_force = self.image.resolve_topic_config(name)
            assert in_force["retention.ms"] == int(own.get("retention.ms", 604_800_000))
            assert in_force["segment.ms"] == int(own.get("segment.ms", 604_800_000))

    @invariant()
    def replaying_the_log_gives_the_live_image(self) -> None:
        replayed, _ = delta.apply(
            MetadataImage(), map(decode, self.log), offset=len(self.log) - 1, epoch=1
        )
        assert replayed == self.image
        for topic in replayed.topics.values():
            assert replayed.topics_by_id[topic.topic_id] is topic


Metadata.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=25, deadline=None
)
TestMetadata = Metadata.TestCase
