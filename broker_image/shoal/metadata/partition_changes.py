"""How one partition's registration moves when brokers come, go, or leave the in-sync replicas.

`settled` gives the partition after a wish for its ISR (and replicas): who leads it, and which
replicas outside of the ISR are eligible (KIP-966). Rules, in this order:

* A leader is taken from the ISR, among brokers that may lead: the present one if it is there, the
  preferred one if that was asked for, else the first in replica order.
* While the ISR is smaller than min.insync.replicas nothing new is committed, so who leaves it then
  still has all that is committed: it is *eligible*, and may lead if nobody in the ISR can.
* A broker whose stop was unclean may have lost what it had not synced: it is not eligible.
* A reassignment is complete when all replicas that it adds are in the ISR; then others go.
* When nobody is left, the last leader may take over once it is back; and any replica, where an
  unclean election is allowed. Both mark the partition as recovering, since records may be lost.

Without the feature the ISR keeps its last member instead. Pure; called by the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from shoal.metadata.image import NO_LEADER, UNASSIGNED, MetadataImage, PartitionImage
from shoal.metadata.records import MetadataRecord

RECOVERED, RECOVERING = 0, 1
ELR_FEATURE = "eligible.leader.replicas.version"


class Election(Enum):
    """Whom to prefer: the leader of now, the preferred replica, or anybody at all."""

    STAY = "stay"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class View(NamedTuple):
    """What an election looks at: who may lead, the topic's min ISR, whether ELRs are kept, and
    brokers that stopped uncleanly."""

    may_lead: Callable[[int], bool]
    min_isr: int
    elr: bool
    unclean: frozenset[int] = frozenset()


def view_of(
    image: MetadataImage,
    topic: str,
    *,
    but: Iterable[int] = (),
    also: Iterable[int] = (),
    unclean: Iterable[int] = (),
) -> View:
    """A topic's view as of `image`, with brokers `but` taken as gone and `also` as there."""
    active, gone, come = image.active, frozenset(but), frozenset(also)
    return View(
        lambda id: (id in active or id in come) and id not in gone,
        image.topic_config(topic)["min.insync.replicas"],
        image.features.get(ELR_FEATURE, 0) > 0,
        frozenset(unclean),
    )


def settled(
    partition: PartitionImage,
    view: View,
    *,
    isr: tuple[int, ...],
    election: Election = Election.STAY,
) -> PartitionImage:
    """The partition with that ISR, its leader elected; epochs are the replay's."""
    if not isr and not view.elr:
        isr = partition.isr
    after = _eligible(partition, _reassigned(partition._replace(isr=isr)), view)
    leader = _from_isr(after, view, election)
    if leader is not None:
        return after._replace(leader=leader)
    found = next((r for r in after.replicas if _may(r, after.eligible_leader_replicas, view)), None)
    if found is not None:
        return _eligible(after, after._replace(isr=(found,), leader=found), view)
    found = _last_resort(after, view, election)
    if found is not None:
        alone = after._replace(
            isr=(found,),
            leader=found,
            leader_recovery_state=RECOVERING,
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
        return alone
    if not after.isr and partition.leader != NO_LEADER:
        after = after._replace(last_known_elr=(partition.leader,))
    return after._replace(leader=NO_LEADER)


def _reassigned(partition: PartitionImage) -> PartitionImage:
    """The partition with its reassignment done, if it is (KIP-455)."""
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


def _may(replica: int, among: tuple[int, ...], view: View) -> bool:
    return replica in among and view.may_lead(replica)


def _from_isr(partition: PartitionImage, view: View, election: Election) -> int | None:
    first = [partition.leader]
    if election is Election.PREFERRED:
        first.insert(0, partition.replicas[0])
    for replica in (*first, *partition.replicas):
        if _may(replica, partition.isr, view) and replica in partition.replicas:
            return replica
    return None


def _last_resort(partition: PartitionImage, view: View, election: Election) -> int | None:
    if election is Election.UNCLEAN:
        return next((r for r in partition.replicas if view.may_lead(r)), None)
    last = partition.last_known_elr
    nobody = not partition.isr and not partition.eligible_leader_replicas
    if view.elr and nobody and len(last) == 1 and view.may_lead(last[0]):
        return last[0]
    return None


def _eligible(before: PartitionImage, after: PartitionImage, view: View) -> PartitionImage:
    """`after` with its eligible leader replicas."""
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


#: Fields that a PartitionChangeRecord has, apart from the leader.
_FIELDS = (
    "isr",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
    "leader_recovery_state",
)


def change(
    topic_id: UUID, index: int, before: PartitionImage, after: PartitionImage
) -> MetadataRecord | None:
    """The record from one registration to the other; None when they are the same.

    A replica that is taken away ends the leader epoch, also where the leader stays: it may not go
    on as a follower of it.
    """
    fields: dict[str, Any] = {
        name: getattr(after, name)
        for name in _FIELDS
        if getattr(after, name) != getattr(before, name)
    }
    if "replicas" in fields:
        known = dict(zip(before.replicas, before.directories, strict=False))
        fields["directories"] = [known.get(id, UNASSIGNED) for id in after.replicas]
    if after.leader != before.leader or set(before.replicas) - set(after.replicas):
        fields["leader"] = after.leader
    if not fields:
        return None
    ids = {"topic_id": topic_id, "partition_id": index}
    return MetadataRecord("PartitionChangeRecord", ids | fields)
