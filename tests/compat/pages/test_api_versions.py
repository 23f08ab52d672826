"""ApiVersions lists Kafka's ranges for all APIs that one node needs, and the page matches it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import compat_page
import pytest
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess
    from support.kafka.kafka_tools import KafkaTools

#: APIs that producers, consumers, share consumers and administrators of one broker use.
SINGLE_NODE = [
    *range(4),
    *range(8, 24),
    32,
    33,
    35,
    37,
    *range(42, 48),
    55,
    57,
    60,
    61,
    *range(64, 67),
    68,
    69,
    *range(74, 80),
    *range(83, 88),
    90,
    91,
    92,
]
TELEMETRY = {71: (0, 0), 72: (0, 0)}


@pytest.mark.parametrize("version", range(6))
def test_the_ranges_are_kafkas(shared_broker: ShoalProcess, version: int) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        body = {"client_software_name": "test", "client_software_version": "1"}
        answer = client.call(ApiKey.API_VERSIONS, version, body)
    named = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    kafka = {int(key): span for key, span in compat_page.KAFKA.items()}
    assert {key: named[key] for key in SINGLE_NODE} == {key: kafka[key] for key in SINGLE_NODE}
    assert {key: named.pop(key) for key in TELEMETRY} == TELEMETRY
    for key, version in compat_page.OTHER_VERSIONS:
        if key in named:
            kafka[key] = (kafka[key][0], version - 1)
    assert named == {key: kafka[key] for key in named}


@pytest.mark.java
def test_kafkas_own_client_uses_the_latest_of_each(tools: KafkaTools) -> None:
    """kafka-broker-api-versions: `usable` is the highest version that both sides support."""
    said = tools.run("broker-api-versions")
    rows = re.findall(r"^\t(\w+)\((\d+)\): (?:(\d+)(?: to (\d+))?|UNSUPPORTED)", said, re.MULTILINE)
    usable = {
        int(key): int(top) for key, top in re.findall(r"\((\d+)\): .*\[usable: (\d+)\]", said)
    }
    for name, key, low, high in rows:
        if int(key) in compat_page.KAFKA:
            assert name == compat_page.get_name(ApiKey(int(key)))
        if low:
            assert usable[int(key)] == int(high or low), name
    unsupported = {int(key) for _, key, low, _ in rows if not low}
    assert unsupported.isdisjoint(SINGLE_NODE)
