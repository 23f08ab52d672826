"""Log levels as configs (BROKER_LOGGER): every request goes to Kafka and to Shoal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import ShoalCluster, running
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.brokers.shared_servers import SharedKafka

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, LOGGER = 2, 8
KAFKAS, OURS = "kafka.server.ControllerServer", "shoal.server.audit"
ONE = "LOGGER"
#: Logger, operation, level.
Change = tuple[str, int, str | None]
#: (resource name, changes); `ONE` stands for a logger of either.
ALTERATIONS: dict[str, tuple[str, list[Change]]] = {
    "set": ("1", [(ONE, SET, "DEBUG")]),
    "lower case": ("1", [(ONE, SET, "debug")]),
    "another word": ("1", [(ONE, SET, "LOUD")]),
    "off": ("1", [(ONE, SET, "OFF")]),
    "empty level": ("1", [(ONE, SET, "")]),
    "null": ("1", [(ONE, SET, None)]),
    "unknown logger": ("1", [("no.such", SET, "DEBUG")]),
    "unknown logger to delete": ("1", [("no.such", DELETE, None)]),
    "empty logger": ("1", [("", SET, "WARN")]),
    "root in upper case": ("1", [("ROOT", SET, "WARN")]),
    "append": ("1", [(ONE, APPEND, "DEBUG")]),
    "subtract": ("1", [(ONE, SUBTRACT, "DEBUG")]),
    "root does not change a level of its own": ("1", [("root", SET, "ERROR")]),
    "delete": ("1", [(ONE, DELETE, None)]),
    "delete again": ("1", [(ONE, DELETE, None)]),
    "delete root": ("1", [("root", DELETE, None)]),
    "no broker": ("", [("root", SET, "WARN")]),
    "no number": ("x", [("root", SET, "WARN")]),
    "another broker": ("7", [("root", SET, "WARN")]),
    "nothing if one is wrong": ("1", [("root", SET, "FATAL"), ("no.such", SET, "INFO")]),
    "twice": ("1", [("root", SET, "FATAL"), ("root", SET, "INFO")]),
    "no changes": ("1", []),
    **{level: ("1", [("root", SET, level)]) for level in ("TRACE", "FATAL", "WARN", "INFO")},
}
#: What only Kafka's brokers refuse. Its controllers fail at a null, and let the last of two changes
#: win.
OF_BROKERS = ("null", "twice")


@pytest.fixture(scope="module")
def controller() -> str:
    """The address of Shoal's listener for controllers."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory, controller: str) -> Iterator[ShoalProcess]:
    flags = [f"--listener=CONTROLLER://{controller}", "--set=controller.listener.names=CONTROLLER"]
    process = ShoalProcess(tmp_path_factory.mktemp("shoal"), flags=flags).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture(scope="module")
def kafka(get_kafka: Callable[..., SharedKafka]) -> SharedKafka:
    """The run's Kafka. No other file changes its levels."""
    return get_kafka()


def alter(
    bootstrap: str,
    *resources: tuple[int, str, list[Change]],
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    """Send IncrementalAlterConfigs; return code and message of each row."""
    body = {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [
                    {"name": n, "config_operation": operation, "value": value}
                    for n, operation, value in changes
                ],
            }
            for kind, name, changes in resources
        ],
        "validate_only": validate_only,
    }
    with WireClient(bootstrap) as client:
        found = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    return [(row.error_code, row.error_message) for row in found.responses]


def describe(
    bootstrap: str, *loggers: str, name: str = "1", documentation: bool = False
) -> tuple[int, str | None, list[tuple[Any, ...]]]:
    """Send DescribeConfigs; return its code, message and rows."""
    resource = {"resource_type": LOGGER, "resource_name": name}
    body = {
        "resources": [{**resource, "configuration_keys": loggers or None}],
        "include_synonyms": True,
        "include_documentation": documentation,
    }
    with WireClient(bootstrap) as client:
        (found,) = client.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
    rows = [
        (
            c.name,
            c.value,
            c.read_only,
            c.config_source,
            c.is_sensitive,
            c.synonyms,
            c.config_type,
            c.documentation or None,
        )
        for c in found.configs
    ]
    return found.error_code, found.error_message or None, rows


def levels(bootstrap: str, *loggers: str) -> dict[str, str]:
    return {row[0]: row[1] for row in describe(bootstrap, *loggers)[2]}


@pytest.mark.java
@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("listener", ["broker", "controller"])
def test_alterations_are_those_of_kafka(
    kafka: SharedKafka, shoal: ShoalProcess, controller: str, listener: str, *, validate_only: bool
) -> None:
    found: dict[str, dict[str, Any]] = {}
    theirs, ours = kafka.bootstrap, shoal.bootstrap
    if listener == "controller":
        theirs, ours = kafka.addresses["CONTROLLER"], controller
    for bootstrap, logger in ((theirs, KAFKAS), (ours, OURS)):
        alter(bootstrap, (LOGGER, "1", [("root", SET, "WARN")]))
        said = found[logger] = {}
        for what, (name, changes) in ALTERATIONS.items():
            if listener == "controller" and what in OF_BROKERS:
                continue
            mine = [(logger if n == ONE else n, o, v) for n, o, v in changes]
            rows = alter(bootstrap, (LOGGER, name, mine), validate_only=validate_only)
            now = levels(bootstrap, "root", logger)
            text = [(code, (message or "").replace(logger, ONE)) for code, message in rows]
            said[what] = (text, now["root"], now[logger])
    assert found[OURS] == found[KAFKAS]
    assert (found[OURS]["set"][2] == "DEBUG") is not validate_only


@pytest.mark.java
@pytest.mark.parametrize("name", ["1", "7", "x", ""])
@pytest.mark.parametrize("documentation", [True, False])
def test_descriptions_are_those_of_kafka(
    kafka: SharedKafka, shoal: ShoalProcess, controller: str, name: str, *, documentation: bool
) -> None:
    def descriptions(*addresses: str) -> list[Any]:
        asked = {"name": name, "documentation": documentation}
        return [describe(address, "root", **asked) for address in addresses]  # type: ignore[arg-type]

    theirs = descriptions(kafka.bootstrap, kafka.addresses["CONTROLLER"])
    assert descriptions(shoal.bootstrap, controller) == theirs


@pytest.mark.java
def test_a_resource_may_appear_once(kafka: SharedKafka, shoal: ShoalProcess) -> None:
    twice: list[tuple[int, str, list[Change]]] = [(LOGGER, "1", [("root", SET, "INFO")])] * 2
    rows = [alter(process.bootstrap, *twice) for process in (kafka, shoal)]
    assert rows[0] == rows[1]
    assert rows[0][0][0] == ErrorCode.invalid_request


@pytest.mark.java
@pytest.mark.parametrize(
    "option",
    ["--bootstrap-server", pytest.param("--bootstrap-controller", marks=pytest.mark.nightly)],
)
def test_kafkas_tool_changes_levels(shoal: ShoalProcess, controller: str, option: str) -> None:
    address = shoal.bootstrap if option == "--bootstrap-server" else controller
    tools = KafkaTools(address, option=option)
    entity = ("--entity-type", "broker-loggers", "--entity-name", "1")
    tools.run("configs", "--alter", *entity, "--add-config", f"{OURS}=TRACE")
    assert f"{OURS}=TRACE" in tools.run("configs", "--describe", *entity)
    alter(address, (LOGGER, "1", [(OURS, DELETE, None)]))


def test_the_old_request_is_refused(shoal: ShoalProcess) -> None:
    """As in Kafka, whose message is the same."""
    resource = {"resource_type": LOGGER, "resource_name": "1"}
    body = {
        "resources": [{**resource, "configs": [{"name": "root", "value": "WARN"}]}],
        "validate_only": False,
    }
    with WireClient(shoal.bootstrap) as client:
        (row,) = client.call(ApiKey.ALTER_CONFIGS, 2, body).responses
    assert (row.error_code, row.error_message) == (
        ErrorCode.invalid_request,
        "Unknown resource type 8",
    )


def test_a_package_has_the_level_of_its_modules(shoal: ShoalProcess) -> None:
    network = ("shoal.server.network", "shoal.server.network.listener")
    try:
        alter(shoal.bootstrap, (LOGGER, "1", [(network[0], SET, "DEBUG")]))
        assert levels(shoal.bootstrap, *network) == dict.fromkeys(network, "DEBUG")
        alter(shoal.bootstrap, (LOGGER, "1", [(network[1], SET, "ERROR")]))
        assert levels(shoal.bootstrap, *network) == dict(
            zip(network, ("DEBUG", "ERROR"), strict=True)
        )
    finally:
        alter(shoal.bootstrap, (LOGGER, "1", [(n, DELETE, None) for n in network]))
    assert set(levels(shoal.bootstrap, *network).values()) == {"INFO"}


def audited(process: ShoalProcess) -> list[str]:
    lines = [json.loads(line) for line in process.log if line.startswith("{")]
    return [line["what"] for line in lines if line.get("logger") == OURS]


def test_a_level_takes_effect_at_once(tmp_path: Path) -> None:
    """Each change of a level is an audit line at the level INFO."""
    process = ShoalProcess(tmp_path / "data", flags=["--log-json"]).start()
    try:
        for level in ("WARN", "INFO"):
            alter(process.bootstrap, (LOGGER, "1", [(OURS, SET, level)]))
        eventually(lambda: audited(process), timeout_s=10)
    finally:
        process.stop()
    assert audited(process) == [f"log level of {OURS}: INFO"]


def test_a_request_for_levels_and_topics_reaches_broker_and_controller(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path, 3)) as cluster:
        with WireClient(cluster.addresses[1]) as client:
            client.create_topic("jobs")
        cluster.on_all("jobs", cluster.brokers)
        for broker, bootstrap in cluster.addresses.items():
            time = str(1000 * broker)
            rows = alter(
                bootstrap,
                (LOGGER, str(broker), [(OURS, SET, "DEBUG")]),
                (TOPIC, "jobs", [("retention.ms", SET, time)]),
                (LOGGER, "9", [(OURS, SET, "DEBUG")]),
                (TOPIC, "absent", [("retention.ms", SET, time)]),
            )
            codes = [code for code, _ in rows]
            assert codes == [
                ErrorCode.none,
                ErrorCode.none,
                ErrorCode.invalid_request,
                ErrorCode.unknown_topic_or_partition,
            ]
            found = describe(bootstrap, OURS, name=str(broker))[2]
            assert found[0][1] == "DEBUG"
