"""UpdateFeatures: upgrades, downgrades and their errors are those of Kafka 4.4.0.

Both clusters begin at metadata.version 30, that of Kafka 4.3, and go on to 4.4's: 31, 32 and 33.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.kafka.kafkas import KafkaProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

pytestmark = pytest.mark.java

UPGRADE, SAFE, UNSAFE = 1, 2, 3
#: Lets a new cluster of Shoal begin at the level of Kafka 4.3. It runs at the broker's start.
AT_30 = """
from shoal.metadata import controller
controller.INITIAL_FEATURES = controller.INITIAL_FEATURES | {"metadata.version": 30}
"""
#: Features that only one of both has.
UNSHARED = ("kraft.version", "shoal.security.version")
METADATA, SHARE, GROUP = "metadata.version", "share.version", "group.version"
#: Each request's updates: name, level and upgrade type. A request continues what the last one left.
UPDATES: list[list[tuple[str, int, int]]] = [
    [(METADATA, 6, UPGRADE)],
    [(METADATA, 99, UPGRADE)],
    *([(METADATA, 29, kind)] for kind in (UPGRADE, SAFE, UNSAFE)),
    [(METADATA, 0, SAFE)],
    [(METADATA, 30, UPGRADE)],
    [(METADATA, 31, UPGRADE)],
    *([(METADATA, 30, kind)] for kind in (UPGRADE, SAFE)),
    [(METADATA, 32, UPGRADE)],
    *([(METADATA, level, kind)] for level in (31, 30) for kind in (UPGRADE, SAFE, UNSAFE)),
    [(METADATA, 33, UPGRADE)],
    *([(METADATA, 32, kind)] for kind in (UPGRADE, SAFE, UNSAFE)),
    [(METADATA, 34, UPGRADE)],
    *([(SHARE, level, UPGRADE)] for level in (2, 9, 1)),
    *([(SHARE, level, SAFE)] for level in (1, 0)),
    [(SHARE, 1, UPGRADE)],
    [("nothing.version", 1, UPGRADE)],
    [("", 1, UPGRADE)],
    *([(GROUP, 1, kind)] for kind in (0, 4, UPGRADE, SAFE)),
    [(GROUP, -1, SAFE)],
    [(SHARE, 0, SAFE), (SHARE, 1, UPGRADE)],
    [(SHARE, 1, UPGRADE), (SHARE, 9, UPGRADE)],
    *([(GROUP, 0, kind)] for kind in (UPGRADE, UNSAFE)),
    [("streams.version", 0, SAFE), (SHARE, 9, UPGRADE)],
    *([("transaction.version", level, SAFE)] for level in (1, 0)),
    [("transaction.version", 2, UPGRADE)],
    [("eligible.leader.replicas.version", 0, SAFE)],
    [],
]
#: What Kafka's tool then does, with its exit status.
COMMANDS = {
    ("upgrade", "--feature", "share.version=2"): 0,
    ("downgrade", "--feature", "share.version=1"): 0,
    ("downgrade", "--feature", "metadata.version=32"): 1,
    ("upgrade", "--feature", "share.version=9"): 1,
}


def talk(bootstrap: str) -> list[Any]:
    """Check and then make each update; return the answers, and the levels at the end."""
    said: list[Any] = []
    with WireClient(bootstrap) as client:
        for updates in UPDATES:
            rows = [
                {"feature": name, "max_version_level": level, "upgrade_type": kind}
                for name, level, kind in updates
            ]
            for version, dry in ((1, True), (2, True), (2, False)):
                body = {"timeout_ms": 30_000, "feature_updates": rows, "validate_only": dry}
                answer = client.call(ApiKey.UPDATE_FEATURES, version, body)
                results = [
                    (r.feature, r.error_code, r.error_message)
                    for r in getattr(answer, "results", ())
                ]
                said.append((updates, answer.error_code, answer.error_message, results))
        body = {"client_software_name": "test", "client_software_version": "1"}
        levels = client.call(ApiKey.API_VERSIONS, 4, body).finalized_features
        said.append({f.name: f.max_version_level for f in levels if f.name not in UNSHARED})
    return said


def use_tool(bootstrap: str) -> list[str]:
    tools = KafkaTools(bootstrap)
    return [tools.run("features", *words, status=status) for words, status in COMMANDS.items()]


@pytest.mark.nightly
def test_updates_of_features(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = KafkaProcess(
        tmp_path / "kafka", format_flags=("--feature", "metadata.version=30")
    ).start()
    try:
        theirs = [*talk(kafka.bootstrap), *use_tool(kafka.bootstrap)]
    finally:
        kafka.kill9()
    (tmp_path / "sitecustomize.py").write_text(AT_30)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    bootstrap = start_broker().bootstrap
    ours = [*talk(bootstrap), *use_tool(bootstrap)]
    for mine, their in zip(ours, theirs, strict=True):
        assert mine == their
