"""Changes of one partition's registration: ISR, leader, replicas and eligible leader replicas.

`with_isr_and_leader` returns the partition with a requested ISR (and replicas), its leader, and its
eligible leader replicas, which are outside the ISR (KIP-966). The rules, in order:

* The leader comes from the ISR, among brokers that may lead: the current leader if it is there, the
  preferred replica if that was requested, else the first in replica order.
* While the ISR is smaller than min.insync.replicas, no new records are committed. A replica that
  leaves the ISR then still has all committed records. It is *eligible* and may lead if no ISR
  member can.
* A broker that stopped uncleanly may have lost unsynced records. It is not eligible.
* A reassignment is complete when all added replicas are in the ISR. The removed ones then go.
* If no replica is left, the last leader may lead again once it is back. If an unclean election is
  allowed, any replica may. Both mark the partition as recovering, since records may be lost.

Without the feature the ISR keeps its last member. Pure; called by the controller.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.image import (
    NO_LEADER,
    UNASSIGNED,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shoal.metadata.records import MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

RECOVERED, RECOVERING = 0, 1
ELR_FEATURE = "eligible.leader.replicas.version"


class Election(Enum):
    """The replica to prefer: the current leader, the preferred replica, or any."""

    STAY = "stay"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class ElectionView(NamedTuple):
    """The input of an election: brokers that may lead, the topic's min ISR, whether the cluster
    keeps eligible leader replicas, and brokers that stopped uncleanly.
    """

    may_lead: Callable[[int], bool]
    min_isr: int
    elr: bool
    unclean: frozenset[int] = frozenset()


def build_view(
    image: MetadataImage,
    topic: str,
    *,
    but: Iterable[int] = (),
    also: Iterable[int] = (),
    unclean: Iterable[int] = (),
) -> ElectionView:
    """Return the view of a topic; brokers in `but` count as stopped, those in `also` as running."""
    active, stopped, come = image.active, frozenset(but), frozenset(also)
    return ElectionView(
        lambda id: (id in active or id in come) and id not in stopped,
        image.resolve_topic_config(topic)["min.insync.replicas"],
        image.features.get(ELR_FEATURE, 0) > 0,
        frozenset(unclean),
    )


def with_isr_and_leader(
    partition: PartitionImage,
    view: ElectionView,
    *,
    isr: tuple[int, ...],
    election: Election = Election.STAY,
) -> PartitionImage:
    """Return the partition with this ISR and an elected leader. The replay sets the epochs."""
    if not isr and not view.elr:
        isr = partition.isr
    after = _with_eligible_replicas(
        partition, _complete_reassignment(partition._replace(isr=isr)), view
    )
    leader = _elect_from_isr(after, view, election)
    if leader is not None:
        return after._replace(leader=leader)
    replica = next(
        (r for r in after.replicas if _may_lead(r, after.eligible_leader_replicas, view)), None
    )
    if replica is not None:
        return _with_eligible_replicas(after, after._replace(isr=(replica,), leader=replica), view)
    replica = _elect_last_resort(after, view, election)
    if replica is not None:
        return after._replace(
            isr=(replica,),
            leader=replica,
            leader_recovery_state=RECOVERING,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
    if not after.isr and partition.leader != NO_LEADER:
        after = after._replace(last_known_elr=(partition.leader,))
    return after._replace(leader=NO_LEADER)


def _complete_reassignment(partition: PartitionImage) -> PartitionImage:
    """Return the partition after its reassignment if that is complete (KIP-455)."""
    adding, removing = partition.adding_replicas, partition.removing_replicas
    isr = tuple(r for r in partition.isr if r not in removing)
    if not (adding or removing) or not isr or not set(adding) <= set(isr):
        return partition
    return partition._replace(
        replicas=tuple(r for r in partition.replicas if r not in removing),
        isr=isr,
        adding_replicas=(),
        removing_replicas=(),
    )


def _may_lead(replica: int, among: tuple[int, ...], view: ElectionView) -> bool:
    return replica in among and view.may_lead(replica)


def _elect_from_isr(
    partition: PartitionImage, view: ElectionView, election: Election
) -> int | None:
    first = [partition.leader]
    if election is Election.PREFERRED:
        first.insert(0, partition.replicas[0])
    for replica in (*first, *partition.replicas):
        if _may_lead(replica, partition.isr, view) and replica in partition.replicas:
            return replica
    return None


def _elect_last_resort(
    partition: PartitionImage, view: ElectionView, election: Election
) -> int | None:
    if election is Election.UNCLEAN:
        return next((r for r in partition.replicas if view.may_lead(r)), None)
    last = partition.last_known_elr
    nobody = not partition.isr and not partition.eligible_leader_replicas
    if view.elr and nobody and len(last) == 1 and view.may_lead(last[0]):
        return last[0]
    return None


def _with_eligible_replicas(
    before: PartitionImage, after: PartitionImage, view: ElectionView
) -> PartitionImage:
    """Return `after` with its eligible leader replicas."""
    if not view.elr or len(after.isr) >= min(view.min_isr, len(after.replicas)):
        return after._replace(eligible_leader_replicas=(), last_known_elr=())
    candidates = dict.fromkeys((*before.eligible_leader_replicas, *before.isr))
    return after._replace(
        eligible_leader_replicas=tuple(
            sorted(
                r
                for r in candidates
                if r not in after.isr and r not in view.unclean and r in after.replicas
            )
        )
    )


def end_eligibility(topic: TopicImage, min_isr: int) -> Iterator[MetadataRecord]:
    """Yield the changes that belong to a new min.insync.replicas of the topic.

    Where the ISR now suffices, its leader commits records that replicas outside it lack. Kafka
    removes all eligible replicas of the topic (ClearElrRecord). Here those of a partition stay that
    still commits nothing.
    """
    view = ElectionView(lambda _: False, min_isr, elr=True)
    for index, partition in enumerate(topic.partitions):
        if partition.eligible_leader_replicas:
            after = _with_eligible_replicas(partition, partition, view)
            record = build_change_record(topic.topic_id, index, partition, after)
            if record is not None:
                yield record


#: Fields of a PartitionChangeRecord except the leader.
_FIELDS = (
    "isr",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
    "leader_recovery_state",
)


def build_change_record(
    topic_id: UUID, index: int, before: PartitionImage, after: PartitionImage
) -> MetadataRecord | None:
    """Return the record of the change, or None if nothing changed.

    Removing a replica starts a new leader epoch even if the leader stays. The removed replica must
    not continue as a follower in that epoch.
    """
    fields: dict[str, Any] = {
        name: getattr(after, name)
        for name in _FIELDS
        if getattr(after, name) != getattr(before, name)
    }
    if "replicas" in fields:
        directories = dict(zip(before.replicas, before.directories, strict=False))
        fields["directories"] = [directories.get(id, UNASSIGNED) for id in after.replicas]
    if after.leader != before.leader or set(before.replicas) - set(after.replicas):
        fields["leader"] = after.leader
    if not fields:
        return None
    ids = {"topic_id": topic_id, "partition_id": index}
    return MetadataRecord("PartitionChangeRecord", ids | fields)
