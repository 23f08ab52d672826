"""A cluster with eligible leader replicas has one min.insync.replicas, as in Kafka 4.4.0 (KIP-966).

Leaders acknowledge by it, and the controller keeps eligible replicas by it. So two brokers must not
have different ones.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from shoal.metadata.image import ConfigResourceType
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

#: Two Kafkas, one after the other.
pytestmark = [pytest.mark.java, pytest.mark.nightly]

NAME, ELR = "min.insync.replicas", "eligible.leader.replicas.version"
TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
#: What each broker's file says.
STATIC = {NAME: "2"}
#: Lets a new cluster of Shoal begin without the feature. It runs at the broker's start.
WITHOUT_ELR = f"""
from shoal.metadata import controller
controller.INITIAL_FEATURES = controller.INITIAL_FEATURES | {{"{ELR}": 0}}
"""
SET, DELETE, APPEND, SUBTRACT = range(4)
ONE, ALL = "1", ""
#: Changes of one config of a resource: its name, the config, its value and the operation.
CHANGES: list[tuple[str, str, str | None, int]] = [
    (ONE, NAME, "3", SET),
    (ONE, NAME, "2", SET),
    (ONE, NAME, None, DELETE),
    (ONE, NAME, "0", SET),
    (ONE, NAME, "1", APPEND),
    (ALL, NAME, "1", SUBTRACT),
    (ALL, "no.such.config", "1", APPEND),
    (ALL, NAME, None, DELETE),
    (ALL, NAME, "0", SET),
    (ALL, NAME, "x", SET),
    (ALL, NAME, "3", SET),
    (ALL, NAME, None, DELETE),
    (ALL, NAME, "3", SET),
    (ALL, "log.retention.ms", "9", SET),
    (ONE, "log.retention.ms", "9", SET),
]
#: Complete configs of a resource (the old AlterConfigs).
REPLACEMENTS: list[tuple[str, dict[str, str | None]]] = [
    (ALL, {}),
    (ALL, {"log.retention.ms": "10"}),
    (ALL, {NAME: None}),
    (ALL, {NAME: "1"}),
    (ONE, {NAME: "1"}),
    (ONE, {}),
    (ALL, {NAME: "2", "log.retention.ms": "10"}),
]


class Dialogue:
    """Requests to one broker, and all that it has said."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._changes = 0
        self.said: list[Any] = []

    def wait_for_all(self) -> None:
        """Wait until the broker has applied all earlier changes, by one more."""
        self._changes += 1
        value = str(1_000_000 + self._changes)
        change = {"name": "message.max.bytes", "config_operation": SET, "value": value}
        resource = {"resource_type": BROKER, "resource_name": ALL, "configs": [change]}
        body = {"resources": [resource], "validate_only": False}
        (row,) = self._client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
        assert row.error_code == 0, row
        keys = ["max.message.bytes"]
        resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": keys}
        body = {"resources": [resource], "include_synonyms": False}

        def is_applied() -> bool:
            (result,) = self._client.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
            return [config.value for config in result.configs] == [value]

        eventually(is_applied)

    def describe(self) -> None:
        """Note where each resource has its value from."""
        self.wait_for_all()
        for kind, name in ((BROKER, ONE), (BROKER, ALL), (TOPIC, "t")):
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [NAME]}
            body = {"resources": [resource], "include_synonyms": True}
            (result,) = self._client.call(ApiKey.DESCRIBE_CONFIGS, 4, body).results
            self.said.append(
                (
                    name,
                    result.error_code,
                    [
                        (
                            c.value,
                            c.config_source,
                            [(s.name, s.value, s.source) for s in c.synonyms],
                        )
                        for c in result.configs
                    ],
                )
            )

    def change(self, name: str, config: str, value: str | None, operation: int) -> None:
        """Check a change of a broker's or all brokers' config, and then make it."""
        change = {"name": config, "config_operation": operation, "value": value}
        resource = {"resource_type": BROKER, "resource_name": name, "configs": [change]}
        for dry in (True, False):
            body = {"resources": [resource], "validate_only": dry}
            answer = self._client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
            self._note(answer, (name, config, value, operation))

    def replace(self, name: str, values: dict[str, str | None]) -> None:
        """Give a broker or all brokers these configs alone."""
        rows = [{"name": config, "value": value} for config, value in values.items()]
        resource = {"resource_type": BROKER, "resource_name": name, "configs": rows}
        body = {"resources": [resource], "validate_only": False}
        self._note(self._client.call(ApiKey.ALTER_CONFIGS, 2, body), (name, values))

    def _note(self, answer: Any, asked: Any) -> None:
        (row,) = answer.responses
        self.said.append((asked, row.error_code, row.error_message))
        self.describe()

    def turn_feature(self, level: int) -> None:
        """Check an update of the feature, and then make it."""
        row = {"feature": ELR, "max_version_level": level, "upgrade_type": 1 if level else 2}
        for dry in (True, False):
            body = {"timeout_ms": 30_000, "feature_updates": [row], "validate_only": dry}
            answer = self._client.call(ApiKey.UPDATE_FEATURES, 2, body)
            self.said.append((level, dry, answer.error_code, answer.error_message))
            self.describe()


def talk_with_feature(bootstrap: str) -> list[Any]:
    with WireClient(bootstrap) as client:
        client.create_topic("t")
        dialogue = Dialogue(client)
        dialogue.describe()
        for change in CHANGES:
            dialogue.change(*change)
        for replacement in REPLACEMENTS:
            dialogue.replace(*replacement)
        dialogue.turn_feature(0)
        dialogue.change(ALL, NAME, None, DELETE)
        return dialogue.said


def talk_without_feature(bootstrap: str) -> list[Any]:
    with WireClient(bootstrap) as client:
        client.create_topic("t")
        dialogue = Dialogue(client)
        dialogue.describe()
        dialogue.change(ONE, NAME, "3", SET)
        dialogue.turn_feature(1)
        dialogue.change(ALL, NAME, "4", SET)
        dialogue.turn_feature(0)
        dialogue.change(ONE, NAME, "3", SET)
        dialogue.turn_feature(1)
        return dialogue.said


@pytest.mark.parametrize("level", [1, 0])
def test_a_cluster_has_one_value(
    level: int,
    start_broker: Callable[..., ShoalProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    talk = talk_with_feature if level else talk_without_feature
    kafka = KafkaProcess(
        tmp_path / "kafka", configs=STATIC, format_flags=("--feature", f"{ELR}={level}")
    ).start()
    try:
        theirs = talk(kafka.bootstrap)
    finally:
        kafka.kill9()
    if not level:
        (tmp_path / "sitecustomize.py").write_text(WITHOUT_ELR)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    ours = talk(start_broker(configs=STATIC).bootstrap)
    differing = [(m, t) for m, t in zip(ours, theirs, strict=True) if m != t]
    assert differing == []
