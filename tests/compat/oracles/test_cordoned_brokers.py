"""Brokers whose log directories are cordoned get no new replicas, as Kafka 4.4.0's (KIP-1066).

Shoal holds a dialogue with known answers, which Kafka gives at night. Each cluster has two brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import ShoalCluster, running
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaCluster
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SET, DELETE = 0, 1
NAME = "cordoned.log.dirs"


class Dialogue:
    """Requests to a cluster of two brokers. Answers are error codes and messages."""

    def __init__(self, addresses: dict[int, str]) -> None:
        self.wires = {id: WireClient(address) for id, address in addresses.items()}

    def alter(self, id: int, value: str | None) -> tuple[Any, ...]:
        """Set a broker's cordoned log directories, or remove the config."""
        config = {
            "name": NAME,
            "value": value,
            "config_operation": DELETE if value is None else SET,
        }
        resource = {"resource_type": 4, "resource_name": str(id), "configs": [config]}
        body = {"resources": [resource], "validate_only": False}
        answer = self.wires[id].call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
        return answer.responses[0].error_code, answer.responses[0].error_message

    def describe(self, id: int) -> tuple[str, bool]:
        """The log directory of a broker, and whether it is cordoned."""
        (found,) = self.wires[id].call(ApiKey.DESCRIBE_LOG_DIRS, 5, {"topics": None}).results
        return found.log_dir, found.is_cordoned

    def create(
        self,
        name: str,
        factor: int,
        *assigned: Sequence[int],
        partitions: int = 1,
        dry: bool = False,
    ) -> tuple[Any, ...]:
        rows = [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(assigned)]
        new = {
            "name": name,
            "num_partitions": -1 if rows else partitions,
            "replication_factor": -1 if rows else factor,
            "assignments": rows,
        }
        body = {"topics": [new], "timeout_ms": 30_000, "validate_only": dry}
        (made,) = self.wires[1].call(ApiKey.CREATE_TOPICS, 7, body).topics
        return made.error_code, made.error_message

    def grow(self, name: str, count: int) -> ErrorCode:
        body = {"topics": [{"name": name, "count": count}], "timeout_ms": 30_000}
        return ErrorCode(
            self.wires[1].call(ApiKey.CREATE_PARTITIONS, 3, body).results[0].error_code
        )

    def reassign(self, name: str, *replicas: int) -> tuple[Any, ...]:
        partition = {"partition_index": 0, "replicas": list(replicas)}
        body = {"topics": [{"name": name, "partitions": [partition]}], "timeout_ms": 30_000}
        answer = self.wires[1].call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
        (row,) = answer.responses[0].partitions
        return row.error_code, row.error_message

    def replicas(self, name: str, partitions: int = 1) -> list[list[int]]:
        def look() -> list[list[int]] | None:
            body = {"topics": [{"name": name, "topic_id": None}]}
            (topic,) = self.wires[1].call(ApiKey.METADATA, 12, body).topics
            found = sorted((p.partition_index, p.replica_nodes) for p in topic.partitions)
            return [list(nodes) for _, nodes in found] if len(found) == partitions else None

        return eventually(look, what=f"the partitions of {name}")

    def until_placed(self, factor: int, code: ErrorCode) -> None:
        """Wait until a new topic with so many replicas would get this answer."""
        eventually(
            lambda: self.create("probe", factor, dry=True)[0] == code, timeout_s=30, what=code.name
        )


def talk(d: Dialogue) -> list[Any]:
    """Cordon broker 2, and then broker 1 as well; return the answers."""
    refused = ErrorCode.invalid_replication_factor
    said: list[Any] = [d.create("before", -1, [1, 2])]
    said += [d.alter(2, text) for text in ("/nowhere", "*,/nowhere", "*")]
    d.until_placed(2, refused)
    said += [d.describe(id)[1] for id in (1, 2)]
    said += [d.create("spread", 1, partitions=4), d.replicas("spread", 4)]
    said += [d.create("assigned", -1, ids) for ids in ([2], [1, 2], [1])]
    said += [d.grow("before", 2), d.reassign("spread", 1, 2), d.reassign("before", 2, 1)]
    said.append(d.reassign("before", 1))
    said.append(d.alter(1, d.describe(1)[0]))
    d.until_placed(1, refused)
    said += [d.create("nowhere", 1), d.describe(1)[1]]
    said += [d.alter(1, ""), d.alter(2, None)]
    d.until_placed(2, ErrorCode.none)
    said += [d.describe(id)[1] for id in (1, 2)]
    said.append(d.create("after", 2))
    return said


_NONE = (ErrorCode.none, None)
_CORDONED = (
    ErrorCode.invalid_replica_assignment,
    "The manual partition assignment includes broker 2, but all its log directories are cordoned.",
)
#: What Kafka answers to `talk`.
ANSWERS: list[Any] = [
    _NONE,
    (
        ErrorCode.invalid_request,
        "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or "
        "log.dir. Missing entries : /nowhere",
    ),
    (
        ErrorCode.invalid_request,
        "requirement failed: When cordoned.log.dirs is set to *, it must not contain other values",
    ),
    _NONE,
    *(False, True),
    *(_NONE, [[1], [1], [1], [1]]),
    *(_CORDONED, _CORDONED, _NONE),
    *(ErrorCode.invalid_replica_assignment, _CORDONED, _CORDONED),
    _NONE,
    _NONE,
    (
        ErrorCode.invalid_replication_factor,
        "Unable to replicate the partition 1 time(s): All brokers are currently fenced, or have "
        "all their log directories cordoned.",
    ),
    True,
    *(_NONE, _NONE),
    *(False, False),
    _NONE,
]


def test_cordoned_brokers_get_no_new_replicas(tmp_path: Path) -> None:
    with running(ShoalCluster(tmp_path / "shoal", 2)) as shoal:
        assert talk(Dialogue(shoal.addresses)) == ANSWERS


@pytest.mark.java
@pytest.mark.nightly
def test_kafka_answers_the_same(tmp_path: Path) -> None:
    kafka = KafkaCluster(tmp_path / "kafka", nodes=2).start()
    try:
        answers = talk(Dialogue({id: node.bootstrap for id, node in kafka.nodes.items()}))
    finally:
        kafka.stop()
    assert answers == ANSWERS
