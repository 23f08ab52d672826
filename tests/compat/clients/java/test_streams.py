"""Kafka Streams counts words on a cluster of three whose brokers are killed meanwhile.

Every update of a count is written to the output. With exactly-once, a read_committed consumer sees
1, 2, 3, ... for each word, without gaps and repetitions.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
from cluster.test_replication import CONFIGS, in_sync
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from support.brokers.clusters import ShoalCluster, running
from support.kafka.java_classes import SOURCES
from support.runs.conditions import eventually
from support.runs.seeding import SEED
from support.streams.streams_applications import StreamsApplication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.java

PARTITIONS = 4
SOURCE = SOURCES / "WordCount.java"
WORDS = [f"word{n}" for n in range(40)]
WORDS_A_LINE = 6
#: Settings of an application, by its group protocol. The session timeout of a streams group is the
#: broker's.
PROTOCOLS = {
    "classic": {"consumer.session.timeout.ms": "6000"},
    "streams": {"group.protocol": "streams"},
}


class Application(StreamsApplication):
    """An instance of the word count."""

    def __init__(
        self, cluster: ShoalCluster, name: str, state: Path, settings: Mapping[str, str] = {}
    ) -> None:
        super().__init__(
            SOURCE,
            f"{name}-in",
            f"{name}-out",
            bootstrap=cluster.bootstrap,
            name=name,
            state=state,
            settings=settings,
        )


class Lines:
    """Writes lines of random words; `counts` has all words whose lines are acknowledged."""

    def __init__(self, cluster: ShoalCluster, topic: str) -> None:
        self.counts: Counter[str] = Counter()
        self._topic, self._random = topic, random.Random(SEED)
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )

    def write(self, lines: int) -> None:
        """Write lines, and return when they are acknowledged."""
        failed: list[object] = []

        def delivered(error: object, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for _ in range(lines):
            words = self._random.choices(WORDS, k=WORDS_A_LINE)
            self.counts.update(words)
            self._producer.produce(self._topic, " ".join(words), on_delivery=delivered)
        assert self._producer.flush(120) == 0, failed
        assert not failed, failed


class Counts:
    """What a consumer has seen of the output: the updates of each word in order."""

    def __init__(
        self, cluster: ShoalCluster, topic: str, isolation: str = "read_committed"
    ) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": topic,
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])

    def poll(self) -> int:
        """Read the available updates; return the number of updates so far."""
        for message in self._consumer.consume(1_000, timeout=0.2):
            if not message.error():
                self.seen[message.key().decode()].append(int(message.value()))
        return sum(map(len, self.seen.values()))

    def until(
        self, application: Application, wanted: Counter[str], *, at_least: bool = False
    ) -> None:
        """Poll until the last update of every word is this; raise if an application dies."""

        def reached() -> bool:
            self.poll()
            last = {word: seen[-1] for word, seen in self.seen.items()}
            if at_least:
                return all(last.get(word, 0) >= count for word, count in wanted.items())
            return last == wanted

        what = f"short of {wanted}: {self.seen}"
        eventually(lambda: reached() or application.died, timeout_s=120, what=what)
        assert not application.died, application.lines

    def close(self) -> None:
        self.poll()
        self._consumer.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CONFIGS)) as found:
        eventually(lambda: len(found.metadata(1).brokers) == 3, timeout_s=60)
        yield found


def prepare(cluster: ShoalCluster, name: str) -> tuple[Lines, Counts]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [NewTopic(f"{name}-{end}", PARTITIONS, 3) for end in ("in", "out")]
    for made in admin.create_topics(topics, operation_timeout=60).values():
        made.result(60)
    return Lines(cluster, f"{name}-in"), Counts(cluster, f"{name}-out")


def transactions(cluster: ShoalCluster, application: str) -> dict[int, list[str]]:
    """Return the states of the application's transactions by their coordinator."""
    found: dict[int, list[str]] = {}
    for id in cluster.brokers:
        for one in cluster.ask(id, ApiKey.LIST_TRANSACTIONS, {}).transaction_states:
            if one.transactional_id.startswith(application):
                found.setdefault(id, []).append(one.transaction_state)
    return found


def outage(cluster: ShoalCluster, victim: int, lines: Lines, work: Callable[[], None]) -> None:
    """Kill a broker while lines are written, let the others continue, and restart it."""
    lines.write(100)
    cluster.nodes[victim].kill9()
    lines.write(100)
    work()
    cluster.nodes[victim].start()
    for topic in cluster.metadata(victim).topics:
        eventually(lambda name=topic.name: in_sync(cluster, victim, name))


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_exactly_once_through_kills(cluster: ShoalCluster, tmp_path: Path, protocol: str) -> None:
    """The leader of a changelog, the transaction coordinator, and the application are killed. By
    day, `test_streams_groups` kills the application alone, and `test_transactions_librdkafka` the
    broker."""
    name, state = f"exactly-{protocol}", tmp_path / "state"
    lines, counts = prepare(cluster, name)
    dirty = Counts(cluster, f"{name}-out", "read_uncommitted")
    settings = {
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": "500",
        **PROTOCOLS[protocol],
    }
    application = Application(cluster, name, state, settings)

    def caught_in_a_transaction() -> bool:
        lines.write(50)
        application.freeze()
        states = [one for held in transactions(cluster, name).values() for one in held]
        if "Ongoing" in states and dirty.poll() > counts.poll():
            return True
        application.thaw()
        return False

    try:
        lines.write(100)
        counts.until(application, lines.counts)
        for victim in (
            lambda: cluster.topic(1, f"{name}-counts-changelog")[0].leader_id,
            lambda: next(iter(transactions(cluster, name))),
        ):
            outage(cluster, victim(), lines, lambda: counts.until(application, lines.counts))
        eventually(caught_in_a_transaction)
        application.kill9()
        lines.write(100)
        application = Application(cluster, name, state, settings)
        counts.until(application, lines.counts)
    finally:
        application.stop()
        counts.close()
        dirty.close()
    wanted = {word: [*range(1, count + 1)] for word, count in lines.counts.items()}
    assert counts.seen == wanted
    assert dirty.seen != wanted, "no transaction was aborted"


def test_at_least_once_through_a_kill(cluster: ShoalCluster, tmp_path: Path) -> None:
    """No word is lost, and the final counts are correct for an application that survives."""
    name = "at-least"
    lines, counts = prepare(cluster, name)
    application = Application(cluster, name, tmp_path / "state", PROTOCOLS["classic"])
    try:
        lines.write(100)
        counts.until(application, lines.counts, at_least=True)
        victim = cluster.topic(1, f"{name}-counts-changelog")[0].leader_id
        outage(
            cluster, victim, lines, lambda: counts.until(application, lines.counts, at_least=True)
        )
    finally:
        application.stop()
        counts.close()
