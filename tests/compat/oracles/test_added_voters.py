"""AddRaftVoter answers when the new voter is committed, or at once if the client asks for that.

The test plays the new voter: it fetches the metadata log until it has caught up, and commits the
change only when it fetches again.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.metadata.names import METADATA_TOPIC
from shoal.protocol.api import ApiKey
from shoal.quorum.wire import TOPIC_ID
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEADER, VOTER, DIRECTORY = 1, 2, UUID(int=0x2002)
TIMEOUT_MS = 30_000


@pytest.fixture(
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])]
)
def controller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of the only controller of a cluster."""
    if request.param == "kafka":
        kafka = KafkaProcess(tmp_path / "kafka").start()
        yield kafka.addresses["CONTROLLER"]
        kafka.kill9()
        return
    (port,) = free_ports(1)
    flags = [
        f"--listener=CONTROLLER://127.0.0.1:{port}",
        "--set=controller.listener.names=CONTROLLER",
    ]
    shoal = ShoalProcess(tmp_path / "data", flags=flags).start()
    yield f"127.0.0.1:{port}"
    shoal.kill9()


class FutureVoter:
    """Requests of a controller that wants to become a voter, and of an administrator."""

    def __init__(self, client: WireClient, address: str) -> None:
        self._client = client
        self._address = address

    def describe(self) -> Any:
        topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        answer = self._client.call(ApiKey.DESCRIBE_QUORUM, 2, {"topics": topics})
        return answer.topics[0].partitions[0]

    def is_voter(self) -> bool:
        return VOTER in [row.replica_id for row in self.describe().current_voters]

    def fetch(self) -> None:
        """Fetch at the end of the log, and so confirm all that is below."""
        quorum = self.describe()
        (end_offset,) = (r.log_end_offset for r in quorum.current_voters if r.replica_id == LEADER)
        partition = {
            "partition": 0,
            "current_leader_epoch": quorum.leader_epoch,
            "fetch_offset": end_offset,
            "last_fetched_epoch": quorum.leader_epoch,
            "log_start_offset": 0,
            "partition_max_bytes": 1 << 20,
            "replica_directory_id": DIRECTORY,
            "high_watermark": -1,
        }
        body = {
            "cluster_id": None,
            "replica_state": {"replica_id": VOTER, "replica_epoch": -1},
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": TOPIC_ID, "partitions": [partition]}],
            "forgotten_topics_data": (),
            "rack_id": "",
        }
        (topic,) = self._client.call(ApiKey.FETCH, 18, body).responses
        assert topic.partitions[0].error_code == 0, topic

    def catch_up(self) -> None:
        """Fetch until the leader knows that this node has caught up."""

        def has_caught_up() -> bool:
            self.fetch()
            rows = {row.replica_id: row for row in self.describe().observers}
            return VOTER in rows and rows[VOTER].last_caught_up_timestamp > 0

        eventually(has_caught_up)

    def build_addition(self, **fields: bool) -> dict[str, Any]:
        # Kafka's leader asks the new voter for its features, and so gets its own.
        host, _, port = self._address.rpartition(":")
        listener = {"name": "CONTROLLER", "host": host, "port": int(port)}
        voter = {"voter_id": VOTER, "voter_directory_id": DIRECTORY, "listeners": [listener]}
        return {"cluster_id": None, "timeout_ms": TIMEOUT_MS, **voter, **fields}


@pytest.mark.parametrize("version", [0, 1])
def test_the_answer_waits_for_the_commit(controller: str, version: int) -> None:
    with WireClient(controller) as client, WireClient(controller) as admin:
        voter = FutureVoter(client, controller)
        voter.catch_up()
        fields = {"ack_when_committed": True} if version else {}
        admin.send(ApiKey.ADD_RAFT_VOTER, version, voter.build_addition(**fields))
        eventually(voter.is_voter)
        assert select.select([admin.sock], [], [], 0) == ([], [], [])
        voter.fetch()
        _, answer = admin.receive(ApiKey.ADD_RAFT_VOTER, version)
        assert (answer.error_code, answer.error_message) == (0, None)


def test_a_client_may_ask_for_the_answer_at_once(controller: str) -> None:
    with WireClient(controller) as client, WireClient(controller) as admin:
        voter = FutureVoter(client, controller)
        voter.catch_up()
        body = voter.build_addition(ack_when_committed=False)
        answer = admin.call(ApiKey.ADD_RAFT_VOTER, 1, body)
        assert (answer.error_code, answer.error_message) == (0, None)
        assert voter.is_voter()
