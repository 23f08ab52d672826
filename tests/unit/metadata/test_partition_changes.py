"""Leaders, in-sync replicas and eligible replicas (KIP-455, KIP-497, KIP-966)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from shoal.metadata import (
    alterations,
    brokers,
    controller,
    delta,
    elections,
    reassignments,
    topics,
)
from shoal.metadata.alter_partition import AlterPartitionItem, alter_partition
from shoal.metadata.controller import ControllerResult
from shoal.metadata.image import (
    BrokerEndpoint,
    BrokerImage,
    ImageScope,
    MetadataImage,
    PartitionImage,
)
from shoal.metadata.partition_changes import RECOVERED, RECOVERING
from shoal.metadata.reassignments import PartitionReassignment
from shoal.metadata.snapshot import build_records
from shoal.metadata.topics import NewTopic
from shoal.protocol.errors import ApiError, ErrorCode


def ids() -> Callable[[], UUID]:
    counter: Iterator[int] = iter(range(100, 1_000_000))
    return lambda: UUID(int=next(counter))


NEW_ID = ids()
STORE = {"remote.log.storage.system.enable": "true", "shoal.remote.store.url": "memory:///"}


class Cluster:
    """A controller's image, changed by decisions."""

    def __init__(self, size: int) -> None:
        self.image = MetadataImage(scope=ImageScope(1, STORE))
        self.do(controller.bootstrap())
        for id in range(1, size + 1):
            self.join(id)

    def do(self, decision: ControllerResult) -> ControllerResult:
        offset = self.image.offset + max(1, len(decision.records))
        self.image, _ = delta.apply(self.image, decision.records, offset=offset, epoch=1)
        return decision

    def join(self, id: int, *, clean: bool = True, disk: int = 0) -> None:
        endpoints = (BrokerEndpoint("PLAINTEXT", f"b{id}", 9092),)
        directory = UUID(int=disk or id)
        broker = BrokerImage(
            id, NEW_ID(), -1, endpoints, controller.SUPPORTED_FEATURES, log_dirs=(directory,)
        )
        self.do(brokers.register(self.image, broker, clean=clean, alive=False))
        self.do(brokers.unfence(self.image, id))

    def fence(self, *ids: int) -> None:
        for id in ids:
            self.do(brokers.fence(self.image, id))

    def create(self, replicas: list[int], **configs: str) -> None:
        new = NewTopic("t", assignments=[(0, replicas)], configs=tuple(configs.items()))
        named = new._replace(configs=tuple((k.replace("_", "."), v) for k, v in configs.items()))
        (row,) = self.do(topics.create_topics(self.image, [named], new_id=NEW_ID)).response
        assert row["error_code"] is ErrorCode.none, row

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics["t"].partitions[0]

    def epoch(self, id: int) -> int:
        return self.image.brokers[id].broker_epoch

    def alter(self, isr: list[int], *, by: int | None = None) -> ErrorCode:
        """Return the error that a leader gets when it proposes this ISR."""
        now = self.partition
        leader = now.leader if by is None else by
        wish = AlterPartitionItem(
            self.image.topics["t"].topic_id,
            0,
            now.leader_epoch,
            now.partition_epoch,
            tuple((id, self.epoch(id)) for id in isr),
        )
        (row,) = self.do(alter_partition(self.image, leader, self.epoch(leader), [wish])).response
        return row.result["error_code"]


TIERED = {"remote_storage_enable": "true"}


def test_with_an_empty_disk_the_last_leader_of_a_tiered_topic_does_not_lead() -> None:
    """It would begin at offset 0, where the object store has other records."""
    for replicas, min_isr in (([1], "1"), ([1, 2], "2"), ([1, 2, 3], "1")):
        cluster = Cluster(3)
        cluster.create(replicas, min_insync_replicas=min_isr, **TIERED)
        cluster.fence(*reversed(replicas))
        for id in reversed(replicas):
            cluster.join(id, clean=False, disk=100 + id)
        now = cluster.partition
        assert (now.leader, now.isr, now.last_known_elr) == (-1, (), ()), replicas
        # Nor after another restart.
        cluster.join(1, clean=True, disk=101)
        assert cluster.partition.leader == -1


def test_with_its_disk_or_without_tiers_the_last_leader_leads_again() -> None:
    for configs, disk in ((TIERED, 1), ({}, 101)):
        cluster = Cluster(1)
        cluster.create([1], **configs)
        cluster.fence(1)
        cluster.join(1, clean=False, disk=disk)
        assert (cluster.partition.leader, cluster.partition.isr) == (1, (1,))


def test_a_replica_that_kept_its_disk_leads_the_tiered_topic() -> None:
    cluster = Cluster(2)
    cluster.create([1, 2], min_insync_replicas="2", **TIERED)
    cluster.fence(1, 2)
    cluster.join(2, clean=False, disk=102)
    assert cluster.partition.leader == -1
    cluster.join(1)
    assert (cluster.partition.leader, cluster.partition.isr) == (1, (1,))


def test_a_fenced_leader_is_replaced_from_the_isr() -> None:
    cluster = Cluster(3)
    cluster.create([1, 2, 3])
    cluster.fence(1)
    now = cluster.partition
    assert (now.leader, now.leader_epoch, now.isr) == (2, 1, (2, 3))
    cluster.fence(3)
    now = cluster.partition
    assert (now.leader, now.leader_epoch, now.isr, now.partition_epoch) == (2, 1, (2,), 2)


def test_below_the_min_isr_a_leaving_replica_stays_eligible() -> None:
    cluster = Cluster(3)
    cluster.create([1, 2, 3], min_insync_replicas="2")
    cluster.fence(1, 2)
    assert (cluster.partition.isr, cluster.partition.eligible_leader_replicas) == ((3,), (2,))
    cluster.fence(3)
    now = cluster.partition
    assert (now.leader, now.isr, now.eligible_leader_replicas) == (-1, (), (2, 3))
    cluster.join(1)
    assert cluster.partition.leader == -1, "1 was not in sync when the last records were committed"
    cluster.join(2)
    now = cluster.partition
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERED)
    assert now.eligible_leader_replicas == (3,)
    assert cluster.alter([2, 1]) is ErrorCode.none
    assert cluster.partition.eligible_leader_replicas == ()


def test_after_an_unclean_stop_a_replica_is_not_eligible_and_the_last_leader_recovers() -> None:
    cluster = Cluster(2)
    cluster.create([1, 2], min_insync_replicas="2")
    cluster.fence(1, 2)
    assert cluster.partition.eligible_leader_replicas == (1, 2)
    cluster.join(1, clean=False)
    now = cluster.partition
    assert (now.leader, now.eligible_leader_replicas) == (-1, (2,))
    cluster.join(2, clean=False)
    now = cluster.partition
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERING)


def test_a_controlled_shutdown_hands_over_and_leaves_the_last_replica() -> None:
    cluster = Cluster(2)
    cluster.create([1, 2])
    cluster.do(brokers.shut_down(cluster.image, 1))
    now = cluster.partition
    assert (now.leader, now.isr, now.leader_epoch) == (2, (2,), 1)
    assert cluster.image.brokers[1].in_controlled_shutdown
    assert not brokers.may_stop(cluster.image, 2)
    cluster.do(brokers.shut_down(cluster.image, 2))
    assert cluster.partition.leader == 2, "no other replica could lead"
    assert brokers.may_stop(cluster.image, 2)


def test_alter_partition_is_of_one_partition_epoch_and_of_brokers_that_run() -> None:
    cluster = Cluster(3)
    cluster.create([1, 2, 3])
    assert cluster.alter([1, 2]) is ErrorCode.none
    assert cluster.partition.isr == (1, 2)
    assert cluster.alter([2, 3]) is ErrorCode.invalid_request
    assert cluster.alter([1, 2], by=2) is ErrorCode.invalid_request
    cluster.fence(3)
    assert cluster.alter([1, 2, 3]) is ErrorCode.ineligible_replica
    topic_id, now = cluster.image.topics["t"].topic_id, cluster.partition
    for leader_epoch, partition_epoch, expected in (
        (now.leader_epoch, now.partition_epoch - 1, ErrorCode.invalid_update_version),
        (now.leader_epoch - 1, now.partition_epoch, ErrorCode.fenced_leader_epoch),
        (now.leader_epoch + 1, now.partition_epoch, ErrorCode.not_controller),
    ):
        wish = AlterPartitionItem(
            topic_id, 0, leader_epoch, partition_epoch, ((1, cluster.epoch(1)),)
        )
        (row,) = alter_partition(cluster.image, 1, cluster.epoch(1), [wish]).response
        assert row.result["error_code"] is expected
    stale = AlterPartitionItem(topic_id, 0, now.leader_epoch, now.partition_epoch, ((1, 0), (2, 0)))
    (row,) = alter_partition(cluster.image, 1, cluster.epoch(1), [stale]).response
    assert row.result["error_code"] is ErrorCode.ineligible_replica
    with pytest.raises(ApiError):
        alter_partition(cluster.image, 1, cluster.epoch(1) - 1, [stale])


def test_an_unclean_election_needs_the_topics_config() -> None:
    cluster = Cluster(2)
    cluster.create([1, 2])
    assert cluster.alter([1]) is ErrorCode.none
    cluster.fence(1)
    asked = [("t", [0])]
    ((row,),) = [
        r["partition_result"]
        for r in elections.elect_leaders(cluster.image, elections.UNCLEAN, asked).response
    ]
    assert row["error_code"] is ErrorCode.eligible_leaders_not_available
    assert "unclean.leader.election.enable" in row["error_message"]
    other = Cluster(2)
    other.create([1, 2], unclean_leader_election_enable="true")
    assert other.alter([1]) is ErrorCode.none
    other.fence(1)
    now = other.partition
    assert (now.leader, now.isr, now.leader_recovery_state) == (2, (2,), RECOVERING)
    assert other.alter([2]) is ErrorCode.none
    assert other.partition.leader_recovery_state == RECOVERED


def test_leadership_goes_back_to_the_preferred_replica() -> None:
    cluster = Cluster(2)
    cluster.create([1, 2])
    cluster.fence(1)
    cluster.join(1)
    assert not elections.balance(cluster.image).records, "1 is not in sync yet"
    assert cluster.alter([2, 1]) is ErrorCode.none
    cluster.do(elections.balance(cluster.image))
    assert (cluster.partition.leader, cluster.partition.isr) == (1, (2, 1))


def test_a_reassignment_ends_when_what_it_adds_is_in_sync() -> None:
    cluster = Cluster(4)
    cluster.create([1, 2])
    (row,) = cluster.do(
        reassignments.alter(cluster.image, [PartitionReassignment("t", 0, [3, 4])])
    ).response
    assert row["partitions"][0]["error_code"] is ErrorCode.none
    now = cluster.partition
    assert (now.replicas, now.adding_replicas, now.removing_replicas) == (
        (3, 4, 1, 2),
        (3, 4),
        (1, 2),
    )
    ((topic,),) = [reassignments.list_reassignments(cluster.image, None)]
    assert topic["partitions"][0]["adding_replicas"] == (3, 4)
    assert cluster.alter([1, 2, 3]) is ErrorCode.none
    assert cluster.partition.adding_replicas == (3, 4)
    epoch = cluster.partition.leader_epoch
    assert cluster.alter([1, 2, 3, 4]) is ErrorCode.new_leader_elected
    now = cluster.partition
    assert (now.replicas, now.isr, now.leader) == ((3, 4), (3, 4), 3)
    assert now.leader_epoch == epoch + 1
    assert now.directories == (UUID(int=3), UUID(int=4))
    assert reassignments.list_reassignments(cluster.image, None) == []


def test_a_reassignment_is_cancelled() -> None:
    cluster = Cluster(3)
    cluster.create([1, 2])
    cluster.do(reassignments.alter(cluster.image, [PartitionReassignment("t", 0, [3, 2])]))
    assert cluster.alter([1, 2]) is ErrorCode.none
    cluster.do(reassignments.alter(cluster.image, [PartitionReassignment("t", 0, None)]))
    now = cluster.partition
    assert (now.replicas, now.adding_replicas, now.isr) == ((2, 1), (), (1, 2))
    again = reassignments.alter(cluster.image, [PartitionReassignment("t", 0, None)])
    assert again.response[0]["partitions"][0]["error_code"] is ErrorCode.no_reassignment_in_progress


def test_a_taken_id_and_features_out_of_reach_are_refused() -> None:
    cluster = Cluster(1)
    twin = cluster.image.brokers[1]._replace(incarnation_id=NEW_ID(), log_dirs=(UUID(int=9),))
    with pytest.raises(ApiError, match="another data directory"):
        brokers.register(cluster.image, twin, clean=True, alive=True)
    brokers.register(cluster.image, twin, clean=True, alive=False)
    old = twin._replace(broker_id=2, features={})
    with pytest.raises(ApiError, match="supports"):
        brokers.register(cluster.image, old, clean=True, alive=False)


def test_a_snapshot_has_the_whole_image() -> None:
    cluster = Cluster(4)
    cluster.create([1, 2, 3], min_insync_replicas="2")
    cluster.fence(1, 2)
    cluster.do(reassignments.alter(cluster.image, [PartitionReassignment("t", 0, [4, 3])]))
    cluster.do(brokers.shut_down(cluster.image, 4))
    cluster.do(controller.allocate_producer_ids(cluster.image, 3))
    image = cluster.image
    again, _ = delta.apply(
        MetadataImage(scope=image.scope),
        build_records(image),
        offset=image.offset,
        epoch=image.epoch,
    )
    assert again == image
    assert delta.diff_images(image, again) == delta.MetadataDelta()
    whole = delta.diff_images(MetadataImage(), image)
    assert [t.name for t in whole.created] == ["t"]
    assert whole.brokers == (1, 2, 3, 4)


def lower_min_isr(cluster: Cluster, resource: tuple[int, str]) -> None:
    change = alterations.ConfigChange("min.insync.replicas", "1")
    alteration = alterations.ConfigAlteration(*resource, [change])
    cluster.do(alterations.alter_configs(cluster.image, [alteration], incremental=True))


@pytest.mark.parametrize("resource", [(2, "t"), (4, "")])
def test_with_fewer_that_have_to_be_in_sync_nobody_else_is_eligible(
    resource: tuple[int, str],
) -> None:
    """From then on, the leader alone acknowledges records that an eligible replica lacks."""
    cluster = Cluster(2)
    set_default = alterations.ConfigChange("min.insync.replicas", "2")
    alteration = alterations.ConfigAlteration(*resource, [set_default])
    cluster.create([1, 2])
    cluster.do(alterations.alter_configs(cluster.image, [alteration], incremental=True))
    cluster.fence(2)
    assert (cluster.partition.isr, cluster.partition.eligible_leader_replicas) == ((1,), (2,))
    cluster.join(2)
    lower_min_isr(cluster, resource)
    assert (cluster.partition.isr, cluster.partition.eligible_leader_replicas) == ((1,), ())
    cluster.fence(1)
    assert cluster.partition.leader == -1
    cluster.join(1)
    assert cluster.partition.leader == 1


def read_min_isr(image: MetadataImage) -> dict[str, str]:
    """Return what each resource of brokers sets, by its name."""
    name = "min.insync.replicas"
    return {key[1]: own[name] for key, own in image.configs.items() if key[0] == 4 and name in own}


def turn_eligibility(cluster: Cluster, level: int) -> None:
    kind = controller.UPGRADE if level else controller.SAFE_DOWNGRADE
    updates = [("eligible.leader.replicas.version", level, kind)]
    answer = cluster.do(controller.update_features(cluster.image, updates, validate_only=False))
    assert answer.response == {}


def test_metadata_of_an_earlier_release_gets_one_min_insync_replicas() -> None:
    """The controller's file has it. Those that no longer may lead are not eligible then."""
    cluster = Cluster(2)
    cluster.create([1, 2])
    raised = alterations.ConfigAlteration(
        4, "", [alterations.ConfigChange("min.insync.replicas", "2")]
    )
    cluster.do(alterations.alter_configs(cluster.image, [raised], incremental=True))
    cluster.fence(2)
    assert cluster.partition.eligible_leader_replicas == (2,)
    assert not controller.complete(cluster.image).records
    earlier = {k: {} if k == (4, "") else v for k, v in cluster.image.configs.items()}
    for static, eligible in (("2", (2,)), ("1", ())):
        scope = ImageScope(1, {"min.insync.replicas": static})
        cluster.image = replace(cluster.image, configs=earlier, scope=scope)
        cluster.do(controller.complete(cluster.image))
        assert read_min_isr(cluster.image) == {"": static}
        assert cluster.partition.eligible_leader_replicas == eligible


def test_replicas_that_were_eligible_before_the_feature_was_off_are_not_afterwards() -> None:
    """Meanwhile, the leader's broker may have had a lower min.insync.replicas."""
    cluster = Cluster(2)
    cluster.create([1, 2], min_insync_replicas="2")
    cluster.fence(2)
    turn_eligibility(cluster, 0)
    assert cluster.partition.eligible_leader_replicas == (2,)
    change = alterations.ConfigChange("min.insync.replicas", "1")
    own = alterations.ConfigAlteration(4, "1", [change])
    cluster.do(alterations.alter_configs(cluster.image, [own], incremental=True))
    turn_eligibility(cluster, 1)
    assert read_min_isr(cluster.image) == {"": "1"}
    assert (cluster.partition.isr, cluster.partition.eligible_leader_replicas) == ((1,), ())
