"""Owners of partitions in a KIP-848 consumer group, classic members included, as far as members
have learned for certain. No partition may have two owners. In a streams group the tasks have owners
(`cluster_streams`).

The response to a heartbeat or to SyncGroup assigns partitions to a member. The member owns them
from that response up to its last request whose response confirms its membership, even if that
response revokes some of them. The group may reassign a partition only after the owner has given it
up or was removed. That holds within an epoch and across epochs, also if the group was empty in
between and started again with epoch 1.

* `group-two-owners`: a member was assigned a partition while another member owned it.
* `group-epoch`: a member got an older epoch than before.

The rules of other groups begin with another word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Hold:
    """One ownership of a partition. The request was sent at `asked`; the member certainly owns the
    partition between `begins` and `ends`."""

    __slots__ = ("asked", "begins", "ends", "epoch", "who")

    def __init__(self, who: str, epoch: int, asked: float, begins: float) -> None:
        self.who, self.epoch, self.asked, self.begins, self.ends = who, epoch, asked, begins, begins

    def __repr__(self) -> str:
        return f"{self.who} since epoch {self.epoch}, from {self.begins:.6f} to {self.ends:.6f}"

    def is_within(self, other: Hold) -> bool:
        return other.begins <= self.asked and self.begins <= other.ends

    def overlaps(self, other: Hold) -> bool:
        return max(self.begins, other.begins) < min(self.ends, other.ends)


class Owners:
    """All members of one group. A static member is identified by its instance id, whichever process
    uses it. `broken` gets the violations, since no task awaits the heartbeats."""

    def __init__(self, broken: Callable[[Violation], None], group: str = "group") -> None:
        """`group` begins the names of the rules."""
        self._broken = broken
        self._group = group
        self._newest: dict[str, int] = {}
        self._holds: dict[Any, list[Hold]] = {}
        #: Partitions of each member, by partition.
        self._held: dict[str, dict[Any, Hold]] = {}
        self.confirmations = 0

    def confirmed(
        self, who: str, epoch: int, owned: Collection[Any], *, sent: float, answered: float
    ) -> None:
        """Record a response: the request was sent at `sent`, and in `epoch` the member owns
        these."""
        self.confirmations += 1
        if epoch < self._newest.get(who, 0):
            what = f"{who} is in {epoch} after {self._newest[who]}"
            self._broken(Violation(f"{self._group}-epoch", what))
        self._newest[who] = epoch
        self.still(who, sent)
        held = self._held.setdefault(who, {})
        for partition in sorted(owned):
            if partition not in held:
                held[partition] = Hold(who, epoch, sent, answered)
                self._holds.setdefault(partition, []).append(held[partition])
                self._alone(partition, held[partition])
        for partition in held.keys() - set(owned):
            del held[partition]

    def still(self, who: str, sent: float) -> None:
        """Record that a request sent at `sent` confirmed the membership: until then the member
        owned its partitions."""
        for partition, hold in self._held.get(who, {}).items():
            if sent > hold.ends:
                hold.ends = sent
                self._alone(partition, hold)

    def reported(self, who: str, owned: Collection[Any]) -> None:
        """Record a request without a response in which a member owned only these: the group may
        have given the others to somebody else since then."""
        held = self._held.get(who, {})
        for partition in held.keys() - set(owned):
            del held[partition]

    def out(self, who: str) -> None:
        """Record that a member is not in the group, or gives up everything before its next
        request."""
        self._held.pop(who, None)
        self._newest.pop(who, None)

    def successor(self, who: str, partition: Any, sent: float) -> Hold | None:
        """The hold of another member that had begun when `who` sent a request, and that is later
        than all of `who`. The group had given the partition away by then."""
        holds = self._holds.get(partition, ())
        last = max((hold.begins for hold in holds if hold.who == who), default=0.0)
        return next(
            (h for h in holds if h.who != who and last <= h.asked and h.begins <= sent), None
        )

    def _alone(self, partition: Any, hold: Hold) -> None:
        for other in self._holds[partition]:
            if other.who != hold.who and (
                hold.overlaps(other) or hold.is_within(other) or other.is_within(hold)
            ):
                what = f"{partition}: {hold}; {other}"
                self._broken(Violation(f"{self._group}-two-owners", what))
