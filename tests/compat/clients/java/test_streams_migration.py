"""A Kafka Streams application moves to the streams protocol and back, offline (KIP-1071).

The same application takes the same steps on Shoal and on Kafka. Both servers list the same groups,
refuse instances of the other protocol in the same way, and have the same offsets and results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from compat.clients.java.test_streams_groups import (
    CONFIGS,
    PARTITIONS,
    Instance,
    create,
    read,
    write,
)
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = [pytest.mark.java, pytest.mark.nightly]

BROKER_CONFIG = CONFIGS
APPLICATION = "moving"
#: Records that each step adds to the input.
EACH = 120
PROTOCOLS = {
    "classic": {"group_protocol": "classic", "consumer_session_timeout_ms": "6000"},
    "streams": {"group_protocol": "streams"},
}
STEPS = ("classic", "streams", "classic")


def listed(wire: WireClient) -> tuple[str, str, str]:
    """Return the type, the state and the protocol type of the application's group."""
    body: dict[str, Any] = {"states_filter": [], "types_filter": []}
    (group,) = [
        group
        for group in wire.call(ApiKey.LIST_GROUPS, 5, body).groups
        if group.group_id == APPLICATION
    ]
    return group.group_type, group.group_state, group.protocol_type


def positions(wire: WireClient) -> list[int]:
    """Return the committed offsets of the input. Those of internal topics depend on how many
    transactions there were."""
    topic = {"name": f"{APPLICATION}-left", "partition_indexes": list(range(PARTITIONS))}
    group = {"group_id": APPLICATION, "member_id": None, "member_epoch": -1, "topics": [topic]}
    body = {"groups": [group], "require_stable": False}
    (found,) = wire.call(ApiKey.OFFSET_FETCH, 9, body).groups
    return [p.committed_offset for t in found.topics for p in t.partitions]


def refused(bootstrap: str, protocol: str, state: Path) -> set[str]:
    """Start an instance with a protocol that the group does not have now. Return the classes of the
    errors that it dies of."""
    instance = Instance(bootstrap, "repartition", APPLICATION, state, **PROTOCOLS[protocol])
    try:
        eventually(lambda: "state ERROR" in instance.lines, timeout_s=90, what="its end")
    finally:
        instance.kill9()
    return {line.split()[1].rstrip(":") for line in instance.died}


def move(bootstrap: str, folder: Path) -> tuple[list[Any], dict[str, list[str]]]:
    """Take all steps. Return what was seen between them, and the output."""
    create(bootstrap, APPLICATION)
    seen: list[Any] = []
    output: dict[str, list[str]] = {}
    with WireClient(bootstrap) as wire:
        for number, protocol in enumerate(STEPS):
            first = number * EACH
            instance = Instance(
                bootstrap, "repartition", APPLICATION, folder / "state", **PROTOCOLS[protocol]
            )
            try:
                instance.wait_running()
                write(bootstrap, f"{APPLICATION}-left", range(first, first + EACH))
                output = read(bootstrap, f"{APPLICATION}-out", first + EACH, [instance])
                eventually(lambda: listed(wire)[1] == "Stable", what="all tasks are taken")
                seen.append(listed(wire))
                other = "classic" if protocol == "streams" else "streams"
                seen.append(refused(bootstrap, other, folder / f"other-{number}"))
                assert not instance.died, instance.lines
            finally:
                instance.stop()
            # As in Kafka, an instance of the classic protocol leaves by its session timeout.
            eventually(lambda: listed(wire)[1] == "Empty", what="all members have left")
            seen += [listed(wire), positions(wire)]
    return seen, output


def test_the_way_there_and_back_is_that_of_kafka(
    get_kafka: Callable[..., SharedKafka], shared_broker: ShoalProcess, tmp_path: Path
) -> None:
    theirs = move(get_kafka(CONFIGS).bootstrap, tmp_path / "of-kafka")
    ours = move(shared_broker.bootstrap, tmp_path / "of-shoal")
    assert ours == theirs
    seen, output = ours
    assert [entry[0].lower() for entry in seen[::4]] == list(STEPS)
    assert all(seen[1::4]), "an instance of the other protocol was not refused"
    counts = [str(n) for n in range(1, len(STEPS) * EACH // 10 + 1)]
    assert output == {f"last-{n}": counts for n in range(10)}
