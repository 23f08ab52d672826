"""Options that are unknown, wrong or contradict each other are refused by name, with a remedy."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from shoal_spark import arguments
from shoal_spark.options import GroupOptions, InvalidOption, SourceOptions, TopicOptions

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "g", "subscribe": "t"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
LOGIN = {"kafka.sasl.username": "ann", "kafka.sasl.password": "secret"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"minPartitions": "11", "maxRecordsPerTrigger": "10"},
            "'minPartitions' is 11, and 'maxRecordsPerTrigger' is 10: .* raise 'maxRec",
        ),
        ({"minPartitions": "10001"}, "'maxRecordsPerTrigger' is 10000"),
        ({"group.id": "redrive.dlq"}, "'group.id': group redrive.dlq is reserved.*Choose another"),
        ({"path": "t"}, "'path' does not apply here: name topics by subscribe"),
        (LOGIN, "'kafka.sasl.password'.*'kafka.security.protocol' is PLAINTEXT.*SASL_SSL"),
        ({"kafka.security.protocol": "SSL", **LOGIN}, "'kafka.security.protocol' is SSL"),
        ({"kafka.ssl.ca.location": "/ca.pem"}, "'kafka.ssl.ca.location'.*PLAINTEXT.*set it to SSL"),
        (
            {"kafka.security.protocol": "SASL_PLAINTEXT", **LOGIN, "kafka.ssl.ca.location": "x"},
            "'kafka.ssl.ca.location'.*SASL_PLAINTEXT.*SASL_SSL",
        ),
        (
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                **LOGIN,
                "kafka.sasl.jaas.config": (
                    'PlainLoginModule required username="bob" password="secret";'
                ),
            },
            "kafka.*: sasl.jaas.config and sasl.username differ. Set one",
        ),
        (
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                **LOGIN,
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.mechanisms": "SCRAM-SHA-256",
            },
            "kafka.*: sasl.mechanism and sasl.mechanisms differ. Set one",
        ),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        SourceOptions.from_options({**RIGHT, **options})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("kafka.group.id", "use group.id"),
        ("groupIdPrefix", "use group.id"),
        ("assign", "use subscribe"),
        ("startingOffsets", "share.auto.offset.reset of the group"),
        ("startingOffsetsByTimestamp", "share.auto.offset.reset of the group"),
        ("kafka.auto.offset.reset", "share.auto.offset.reset of the group"),
        ("kafka.share.auto.offset.reset", "share.auto.offset.reset of the group"),
        ("endingTimestamp", "Trigger.AvailableNow"),
        ("minOffsetsPerTrigger", "batch.target.ms"),
        ("kafka.enable.auto.commit", "accepted once their batch is complete"),
        ("kafka.share.acknowledgement.mode", "accepted once their batch is complete"),
        ("kafka.share.acquire.mode", "use share.acquire.mode"),
        ("kafka.isolation.level", "share.isolation.level of the group"),
        ("kafka.max.poll.records", "use maxRecordsPerTrigger"),
        ("kafka.fetch.max.bytes", "use maxBytesPerTrigger"),
        ("kafka.max.partition.fetch.bytes", "use maxBytesPerTrigger"),
        ("kafka.fetch.max.wait.ms", "use fetch.max.wait.ms"),
        ("kafka.key.deserializer", "bytes"),
        ("kafka.value.deserializer", "bytes"),
    ],
)
def test_an_option_without_meaning_for_a_share_group_names_the_remedy(
    name: str, remedy: str
) -> None:
    with pytest.raises(InvalidOption, match=f"{name}' does not apply here: .*{remedy}"):
        SourceOptions.from_options({**RIGHT, name.lower(): "1"})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("kafka.compression.type", "use compression"),
        ("kafka.acks", "all replicas in sync"),
        ("kafka.enable.idempotence", "idempotent anyway"),
        ("kafka.transactional.id", "idempotent anyway"),
        ("kafka.key.serializer", "bytes"),
    ],
)
def test_an_option_without_meaning_for_the_sink_names_the_remedy(name: str, remedy: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}' does not apply here: .*{remedy}"):
        TopicOptions.from_sink_options({**SINK, name: "1"})


def test_a_jobs_tasks_are_no_more_than_a_batch_has_records() -> None:
    """The operator requests as many as there may be cores, whatever the size of a batch."""
    given = arguments.build_parser("work").parse_args(["--tasks=20", "--max-records=5"])
    assert arguments.build_options(given)["minPartitions"] == "5"


def test_a_login_from_a_file_is_only_named_in_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shows options in plans, and pickles them for executors."""
    file = tmp_path / "client.properties"
    text = "bootstrap.servers=b:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
    file.write_text(f"{text}sasl.username=ann\nsasl.password=planted\n")
    monkeypatch.setenv("SHOAL_COMMAND_CONFIG", str(file))
    given = arguments.build_parser("work").parse_args(["--topics=t", "--group=g"])
    options = arguments.build_options(given)
    assert options["kafka.bootstrap.servers"] == "localhost:9092"
    assert options["kafka.sasl.password"] == f"${{file:{file}:sasl.password}}"
    found = SourceOptions.from_options({name.lower(): value for name, value in options.items()})
    executors = pickle.dumps(found)
    assert b"planted" not in executors
    settings = pickle.loads(executors).connection.settings
    assert (settings.security.protocol, settings.security.username) == ("SASL_SSL", "ann")
    assert settings.security.password == "planted"
    file.write_text(file.read_text().replace("planted", "rotated"))
    assert settings.security.reload().password == "rotated"
    for sink in (
        TopicOptions.from_sink_options({**SINK, **arguments.select_connection_options(given)}),
        found,
    ):
        assert "planted" not in repr(sink)


def test_consistent_options_are_accepted() -> None:
    """As many tasks as records, a login where one is needed, and a value that is given twice."""
    found = SourceOptions.from_options(
        {
            **RIGHT,
            **LOGIN,
            "minPartitions": "10",
            "maxRecordsPerTrigger": "10",
            "kafka.security.protocol": "sasl_ssl",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.mechanisms": "PLAIN",
            "kafka.ssl.endpoint.identification.algorithm": "",
        }
    )
    assert (found.min_partitions, found.max_records) == (10, 10)
    assert found.connection.settings.security.username == "ann"
    assert GroupOptions.from_lag_options({"kafka.bootstrap.servers": "127.0.0.1:1"}).group_ids == ()
