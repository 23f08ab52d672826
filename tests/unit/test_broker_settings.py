"""Broker configs from flags, environment and file."""

import pytest
from shoal.client.properties import properties
from shoal.server import config
from shoal.server.config import InvalidConfig, resolve


def test_flag_beats_environment_beats_file() -> None:
    text = "log.retention.ms=1\nlog.segment.bytes=2000000\nfetch.max.bytes=5000\n"
    environment = {"SHOAL_LOG_RETENTION_MS": "2", "SHOAL_LOG_SEGMENT_BYTES": "3000000"}
    found = resolve({"log.retention.ms": "3"}, environment, text, "x.properties")
    assert found["log.retention.ms"] == 3
    assert found["log.segment.bytes"] == 3_000_000
    assert found["fetch.max.bytes"] == 5000
    assert found["socket.request.max.bytes"] == 104_857_600


@pytest.mark.parametrize(
    ("flags", "environment", "text", "sentence"),
    [
        (
            {"log.retention.msx": "1"},
            {},
            "",
            "no broker config log.retention.msx, set by a flag. Did you mean log.retention.ms?",
        ),
        (
            {},
            {"SHOAL_LOG_RETENTON_MS": "1"},
            "",
            "SHOAL_LOG_RETENTON_MS names no broker config. Did you mean SHOAL_LOG_RETENTION_MS?",
        ),
        ({}, {}, "num.partitions = many", "Invalid value many for configuration num.partitions"),
        ({}, {}, "num.partitions = many", "set by x.properties"),
        ({"group.consumer.assignors": "range,foo"}, {}, "", "must be one of: uniform, range"),
        ({"listeners": "PLAINTEXT:/a:1"}, {}, "", "not of the form PLAINTEXT://host:port"),
        ({"listeners": "SSL://a:1"}, {}, "", "asks for SSL; this broker serves PLAINTEXT"),
        ({"listeners": "A://a:1"}, {}, "", "A has no security protocol"),
        ({"log.dirs": "a,b"}, {}, "", "log.dirs names 2 directories"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, {}, "", "no client can connect to"),
        ({"advertised.listeners": "B://b:1"}, {}, "", "which listeners has not"),
    ],
)
def test_a_mistake_is_named(
    flags: dict[str, str], environment: dict[str, str], text: str, sentence: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolve(flags, environment, text, "x.properties")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "group.share.max.share.sessions=150",
            "group.share.max.share.sessions must be greater than or equal to group.share.max.size",
        ),
        (
            "group.share.max.record.lock.duration.ms=30000"
            " group.share.record.lock.duration.ms=40000",
            "group.share.record.lock.duration.ms must be less than or equal to"
            " group.share.max.record.lock.duration.ms",
        ),
        (
            "group.share.min.delivery.count.limit=4 group.share.delivery.count.limit=3",
            "group.share.delivery.count.limit must be greater than or equal to"
            " group.share.min.delivery.count.limit",
        ),
        (
            "group.share.min.session.timeout.ms=70000",
            "group.share.max.session.timeout.ms must be greater than or equal to"
            " group.share.min.session.timeout.ms",
        ),
        (
            "group.share.heartbeat.interval.ms=50000 group.share.max.heartbeat.interval.ms=60000",
            "group.share.heartbeat.interval.ms must be less than group.share.session.timeout.ms",
        ),
        (
            "group.consumer.session.timeout.ms=70000",
            "group.consumer.session.timeout.ms must be less than or equal to"
            " group.consumer.max.session.timeout.ms",
        ),
        ("group.consumer.assignors=", "group.consumer.assignors must not be empty"),
        ("log.retention.hours=0", "log.retention.ms must be unlimited (-1) or, greater than"),
        ("queued.max.request.bytes=5", "queued.max.request.bytes must be larger or equal to"),
        ("replica.fetch.wait.max.ms=60000", "greater than or equal to replica.fetch.wait.max.ms"),
        ("log.cleaner.dedupe.buffer.size=1000", "must be at least 1MB per cleaner thread"),
    ],
)
def test_values_that_do_not_go_together_are_named(given: str, sentence: str) -> None:
    """Combinations that KafkaConfig of Apache Kafka 4.3.1 was seen to refuse."""
    flags = dict(pair.split("=") for pair in given.split(" "))
    with pytest.raises(InvalidConfig) as refused:
        resolve(flags, {})
    assert sentence in str(refused.value)


def test_variables_that_kubernetes_gives_are_no_settings() -> None:
    links = {
        "SHOAL_PORT": "tcp://10.0.0.1:9092",
        "SHOAL_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "SHOAL_PORT_9092_TCP_ADDR": "10.0.0.1",
        "SHOAL_SERVICE_HOST": "10.0.0.1",
        "SHOAL_SERVICE_PORT_KAFKA": "9092",
        "SHOAL_BROKER_0_SERVICE_PORT": "9092",
        # The variables of the command line, in a pod that has both.
        "SHOAL_BOOTSTRAP_SERVERS": "10.0.0.1:9092",
    }
    assert config.from_environment(links) == {}


def test_a_file_may_name_environment_variables() -> None:
    """KIP-887's `${env:NAME}`, so that brokers with different addresses can share one file."""
    text = "listeners=A://:1\nlistener.security.protocol.map=A:PLAINTEXT\n"
    text += "advertised.listeners=A://${env:NODE_IP}:${env:PORT_OUTSIDE}\n"
    found = resolve({}, {"NODE_IP": "10.0.0.7", "PORT_OUTSIDE": "31000"}, text, "x.properties")
    assert found.advertised["A"] == ("A", "10.0.0.7", 31000)
    with pytest.raises(InvalidConfig, match="variable PORT_OUTSIDE is not set"):
        resolve({}, {"NODE_IP": "10.0.0.7"}, text, "x.properties")


def test_properties_are_javas() -> None:
    text = "# no\n! no\n a=1\nb : 2\nc 3\nd=x\\\n   y\ne=\\u0041\\tz\nf\ng\\=h=i  \n\n"
    assert dict(properties(text)) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "xy",
        "e": "A\tz",
        "f": "",
        "g=h": "i",
    }


def test_addresses() -> None:
    assert config.endpoint("listeners", "PLAINTEXT://[::1]:9092") == ("PLAINTEXT", "::1", 9092)
    assert config.endpoint("listeners", ":9092") == ("PLAINTEXT", "", 9092)
    assert config.address("::1", 9092) == "[::1]:9092"
    assert config.address("", 9092) == "0.0.0.0:9092"
    assert config.address("a", 9092) == "a:9092"
    with pytest.raises(InvalidConfig):
        config.endpoint("listeners", "a:70000")
