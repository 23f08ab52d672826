"""Dead letters whose partition changes its leader before they are committed, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.share.member import Acknowledgement, AcknowledgeType
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import read_records
from shoal.replication.partition import Partition, ReplicaFetchResult
from sim.cluster_clients import wait
from sim.scenes import Asked, scene

if TYPE_CHECKING:
    import pytest

DLQ, LETTERS = "errors.deadletterqueue", "dlq.work"


def test_a_letter_that_is_lost_with_its_leader_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader of the dead-letter topic writes a dead letter that no follower gets, and later
    follows one of them. Its high watermark passes the offset with another record. The dead letter
    counted as committed, so its record left the window without one."""
    real, held = Partition.fetch_for_follower, [True]

    def fetched_by(self: Partition, *asked: Any, **limits: Any) -> ReplicaFetchResult:
        if self.topic == LETTERS and held:
            return ReplicaFetchResult(
                ErrorCode.none, self.high_watermark, self.log.log_start_offset
            )
        return real(self, *asked, **limits)

    monkeypatch.setattr(Partition, "fetch_for_follower", fetched_by)
    with scene() as cluster:
        work_id = cluster.make_topic("work", [1])
        letters_id = cluster.make_topic(LETTERS, [1, 2])

        async def reject() -> None:
            async with cluster.client() as client:
                group = [
                    ConfigChange("share.auto.offset.reset", "earliest"),
                    ConfigChange(f"{DLQ}.topic.name", LETTERS),
                ]
                changes = {
                    ConfigResource(ConfigResourceType.GROUP, "g"): group,
                    ConfigResource(ConfigResourceType.TOPIC, LETTERS): [
                        ConfigChange(f"{DLQ}.group.enable", "true")
                    ],
                }
                assert set((await client.admin.configs.alter(changes)).values()) == {None}
                async with await client.share("g", ["work"]) as session:
                    while not (found := await session.acquire(max_records=1)):
                        await wait(0.1)
                    (record,) = (r for acquired in found for r in acquired.records())
                    kind = AcknowledgeType.REJECT
                    await session.acknowledge(
                        [Acknowledgement("work", 0, record.offset, record.offset, kind)]
                    )

        cluster.produce(1, work_id).result()
        rejected = Asked(cluster, reject)
        first, second = (cluster.cluster.brokers[id].broker for id in (1, 2))
        assert first is not None
        assert second is not None
        written = first.partitions.find_by_name(LETTERS, 0)
        assert written is not None
        cluster.until(lambda: written.log.log_end_offset == 1, "a letter")
        rejected.result()

        where = {"name": LETTERS, "partitions": [{"partition_index": 0, "replicas": [2, 1]}]}
        cluster.asked(1, ApiKey.ALTER_PARTITION_REASSIGNMENTS, {
            "timeout_ms": 10_000, "allow_replication_factor_change": False, "topics": [where],
        })  # fmt: skip
        cluster.asked(1, ApiKey.ELECT_LEADERS, {
            "election_type": 0, "timeout_ms": 10_000,
            "topic_partitions": [{"topic": LETTERS, "partitions": [0]}],
        })  # fmt: skip
        cluster.until(lambda: cluster.leader(LETTERS, 0, 2) == 2, "another leader")
        held.clear()
        cluster.produce(2, letters_id).result()

        log = second.partitions.find_by_name(LETTERS, 0).log  # type: ignore[union-attr]
        cluster.until(lambda: log.log_end_offset == 2, "the letter again", 10.0)
        _, letter = (r for _, _, data in log.read_batches(0, 2) for r in read_records(data))
        assert (f"__dlq.{'errors.topic'}", b"work") in letter.headers
