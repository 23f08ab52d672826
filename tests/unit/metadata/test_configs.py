"""Config tables, parsing, layers and bounds (KIP-226, KIP-412, KIP-1240)."""

from pathlib import Path

import config_page
import pytest
from shoal.metadata import configs, listener_configs
from shoal.metadata.config_keys import (
    ConfigEffect,
    ConfigScope,
    ConfigType,
    format_value,
    parse_duration_ms,
)
from shoal.metadata.configs import BROKER, GROUP, TOPIC, ConfigError, ConfigSource, UnknownConfig
from shoal.metadata.image import ConfigResourceType, MetadataImage
from shoal.metadata.image import ImageScope as View

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "configs.md"
TABLES = (BROKER, TOPIC, GROUP)


def image(static: dict[str, str] | None = None, **texts: dict[str, str]) -> MetadataImage:
    """Return an image with configs by resource: `broker`, `cluster`, `topic` t, `group` g."""
    resources = {
        "broker": (ConfigResourceType.BROKER, "1"),
        "cluster": (ConfigResourceType.BROKER, ""),
        "topic": (ConfigResourceType.TOPIC, "t"),
        "group": (ConfigResourceType.GROUP, "g"),
    }
    return MetadataImage(
        scope=View(1, static or {}), configs={resources[k]: v for k, v in texts.items()}
    )


def test_every_default_passes_its_own_check() -> None:
    for table in TABLES:
        for key in table.values():
            if key.default is not None:
                assert key.parse(format_value(key.default)) == key.default, key


def test_every_row_is_documented_and_every_synonym_exists() -> None:
    for table in TABLES:
        for key in table.values():
            assert key.doc.endswith("."), key.name
            for name in (*(s.name for s in key.synonyms), *filter(None, key.bounds)):
                assert BROKER[name].type in (key.type, ConfigType.INT, ConfigType.LONG), (
                    key.name,
                    name,
                )


def test_a_topics_defaults_are_those_of_the_broker_configs_it_inherits() -> None:
    inherited = configs.resolve_inherited(
        TOPIC, configs.resolve_broker_values(configs.ConfigLayers())
    )
    assert inherited == {name: key.default for name, key in TOPIC.items()}


def test_the_generated_page_is_in_the_repository() -> None:
    assert DOCS.read_text() == config_page.build_page(), (
        "python tools/config_page.py > docs/configs.md"
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("preallocate", " TRUE ", True),
        ("segment.bytes", " +2000000 ", 2_000_000),
        ("retention.ms", "-1", -1),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("remote.storage.enable", "false", False),
    ],
)
def test_parse(name: str, text: str, value: object) -> None:
    assert configs.parse(TOPIC, {name: text}) == {name: value}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "x", "Not a number of type LONG"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1_000_000_0", "Not a number of type INT"),
        ("segment.bytes", "100", "at least 1048576"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "compact,purge", "one of: compact, delete"),
        ("compression.gzip.level", "0", "between 1 and 9"),
        ("min.cleanable.dirty.ratio", "1.5", "no more than 1"),
        ("leader.replication.throttled.replicas", "1", "partitionId:brokerId"),
    ],
)
def test_refusals_name_config_value_and_reason(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configs.parse(TOPIC, {name: text})
    assert f"Invalid value {text} for configuration {name}: " in str(caught.value)
    assert reason in str(caught.value)


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnknownConfig, match=r"Unknown topic config name: retention\.hours"):
        configs.parse(TOPIC, {"retention.hours": "1"})


def test_passwords_stay_out_of_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        listener_configs.parse({"listener.name.UPPER.ssl.key.password": "secret"})
    assert "secret" not in str(caught.value)
    assert "ssl.key.password" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P1D", 86_400_000),
        ("P1DT2H", 93_600_000),
        ("PT36H", 129_600_000),
        ("pt1s", 1000),
        ("PT1.5S", 1500),
        ("PT1H30M20.123456789S", 5_420_123),
        ("PT0S", 0),
        ("+PT+1S", 1000),
        ("P1DT-1H", 82_800_000),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("PT.5S", None),
        ("P1Y", None),
        ("P1W", None),
        ("-PT1S", None),
        ("P-1D", None),
        ("1H", None),
    ],
)
def test_durations_as_java_reads_them(text: str, ms: int | None) -> None:
    assert parse_duration_ms(text) == ms


def test_hours_minutes_milliseconds_in_that_order() -> None:
    assert image().resolve_topic_config("t")["retention.ms"] == 168 * 3_600_000
    assert (
        image({"log.retention.hours": "1"}).resolve_topic_config("t")["retention.ms"] == 3_600_000
    )
    both = {"log.retention.hours": "1", "log.retention.minutes": "1"}
    assert image(both).resolve_topic_config("t")["retention.ms"] == 60_000
    dynamic = image(both, cluster={"log.retention.ms": "5"})
    assert dynamic.resolve_topic_config("t")["retention.ms"] == 5
    assert image({"log.retention.hours": "-1"}).resolve_topic_config("t")["retention.ms"] == -1


def test_the_strongest_layer_wins() -> None:
    layered = image(
        {"log.segment.bytes": "4000000"},
        cluster={"log.segment.bytes": "3000000"},
        broker={"log.segment.bytes": "2000000"},
        topic={"segment.bytes": "1048576"},
    )
    assert layered.resolve_topic_config("t")["segment.bytes"] == 1_048_576
    assert layered.resolve_topic_config("other")["segment.bytes"] == 2_000_000
    assert layered.broker_config["log.segment.bytes"] == 2_000_000
    origins = layered.find_config_origins(ConfigResourceType.TOPIC, "t", "segment.bytes")
    assert [(o.text, o.source) for o in origins] == [
        ("1048576", ConfigSource.TOPIC),
        ("2000000", ConfigSource.BROKER),
        ("3000000", ConfigSource.BROKER_DEFAULT),
        ("4000000", ConfigSource.STATIC_BROKER),
        ("1073741824", ConfigSource.DEFAULT),
    ]


def test_group_values_are_held_between_the_brokers_bounds() -> None:
    """KIP-1240: a value set under wider bounds is limited where it is used."""
    own = {"share.record.lock.duration.ms": "55000"}
    assert image(group=own).resolve_group_config("g")["share.record.lock.duration.ms"] == 55_000
    narrow = image({"group.share.max.record.lock.duration.ms": "40000"}, group=own)
    assert narrow.resolve_group_config("g")["share.record.lock.duration.ms"] == 40_000
    assert narrow.resolve_group_config("other")["share.record.lock.duration.ms"] == 30_000


def test_groups_inherit_from_the_broker() -> None:
    wide = image({"group.share.session.timeout.ms": "50000"})
    assert wide.resolve_group_config("g")["share.session.timeout.ms"] == 50_000


def test_defaults_of_kafka_4_3_1() -> None:
    group = image().resolve_group_config("g")
    assert group["share.partition.max.record.locks"] == 2000
    assert group["share.delivery.count.limit"] == 5
    assert group["share.record.lock.duration.ms"] == 30_000
    assert group["share.auto.offset.reset"] == "latest"
    broker = image().broker_config
    assert broker["group.share.max.size"] == 200
    assert broker["offsets.topic.num.partitions"] == 50
    assert BROKER["log.retention.ms"].scope is ConfigScope.CLUSTER_WIDE
    assert BROKER["num.io.threads"].effect is ConfigEffect.ACCEPTED
