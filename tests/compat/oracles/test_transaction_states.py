"""Shoal's transaction coordinator answers as Apache Kafka's does, also while markers are written.

Both brokers get every request in every state for each producer (`transaction_answers`), which is a
minute of CPU. By day, the unit tests have the table. Where markers are to be written, one partition
of the transaction is led by a broker that is registered and does not exist, so that they wait for
as long as the test asks.
Requests that reach the coordinator through another handler have no row in the table; for these the
two answers are equal.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import compat_page
import pytest
from shoal.metadata.controller import SUPPORTED_FEATURES
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.scenarios.transaction_answers import WRITERS
from support.scenarios.transaction_drivers import (
    ABSENT,
    HERE,
    Driver,
    check_answers,
    collect_answers,
    create_topic_on,
    draw_cases,
    find_coordinator,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = [pytest.mark.java, pytest.mark.nightly]

ABSENT_BROKER = 2
#: An own Kafka, since a registered broker changes it for all tests.
CONFIGS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    # The absent broker stays a leader, however long the test takes.
    "broker.session.timeout.ms": "1800000",
}


def _register_absent_broker(controller: WireClient, cluster_id: str) -> None:
    """Register and unfence a broker at an address where nothing listens."""
    (port,) = free_ports(1)
    listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": port, "security_protocol": 0}
    body = {
        "broker_id": ABSENT_BROKER,
        "cluster_id": cluster_id,
        "incarnation_id": uuid.uuid4(),
        "listeners": [listener],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in {**SUPPORTED_FEATURES, **compat_page.KAFKA_FEATURES}.items()
        ],
        "rack": None,
        "is_migrating_zk_broker": False,
        "log_dirs": [uuid.uuid4()],
        "previous_broker_epoch": -1,
    }
    registered = controller.call(ApiKey.BROKER_REGISTRATION, 4, body)
    assert registered.error_code == 0, registered
    beat = {
        "broker_id": ABSENT_BROKER,
        "broker_epoch": registered.broker_epoch,
        "current_metadata_offset": 1 << 40,
        "want_fence": False,
        "want_shut_down": False,
    }
    eventually(lambda: not controller.call(ApiKey.BROKER_HEARTBEAT, 1, beat).is_fenced)


def _driver(client: WireClient, controller: WireClient) -> Driver:
    """Create the two topics and the internal ones, and return the driver."""
    cluster_id = client.call(ApiKey.DESCRIBE_CLUSTER, 0, {}).cluster_id
    for key_type in (0, 1):
        find_coordinator(client, key_type, "group")
    client.create_topic(HERE)
    _register_absent_broker(controller, cluster_id)
    create_topic_on(client, ABSENT, [ABSENT_BROKER])

    def has_topics() -> bool:
        """Return whether the broker has both: Kafka answers before that."""
        topics = client.call(ApiKey.METADATA, 12, {"topics": None}).topics
        return {HERE, ABSENT} <= {topic.name for topic in topics} and client.is_led(HERE)

    eventually(has_topics, what="the topics")
    return Driver(client)


@pytest.fixture(scope="module")
def kafka_driver(get_kafka: Callable[..., SharedKafka]) -> Iterator[Driver]:
    kafka = get_kafka(CONFIGS)
    with (
        WireClient(kafka.bootstrap) as client,
        WireClient(kafka.addresses["CONTROLLER"]) as controller,
    ):
        yield _driver(client, controller)


@pytest.fixture
def driver(start_broker: Callable[..., ShoalProcess]) -> Iterator[Driver]:
    broker = start_broker(configs=CONFIGS | {"controller.listener.names": "PLAINTEXT"})
    with WireClient(broker.bootstrap) as client, WireClient(broker.bootstrap) as controller:
        yield _driver(client, controller)


def test_the_answers_are_kafkas(driver: Driver, kafka_driver: Driver, seed: int) -> None:
    cases = draw_cases(seed, len(WRITERS))
    theirs, ours = collect_answers(kafka_driver, cases), collect_answers(driver, cases)
    check_answers(ours, theirs)
