"""Who owns which partition in a consumer group whose broker assigns (KIP-848), its classic members
among them, as far as members know for sure; two may not own one.

A member is told what it owns by a heartbeat's answer, or by that of SyncGroup. It owns that from
the answer on up to the last request of which the answer knows it as a member, be that answer one
that has it give up some: nobody takes a partition from a member that has not given it up, but by
putting it out. That holds within an epoch and across them, and whether or not the group was empty
and began anew with epoch 1 in between.

* `group-two-owners`: a member was told that it owns a partition while another one did.
* `group-epoch`: a member was told of an older epoch than before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Hold:
    """One stay of a partition with a member: told by a request that was sent at `asked`, for sure
    between `begins` and `ends`."""

    __slots__ = ("asked", "begins", "ends", "epoch", "who")

    def __init__(self, who: str, epoch: int, asked: float, begins: float) -> None:
        self.who, self.epoch, self.asked, self.begins, self.ends = who, epoch, asked, begins, begins

    def __repr__(self) -> str:
        return f"{self.who} since epoch {self.epoch}, from {self.begins:.6f} to {self.ends:.6f}"

    def was_told_within(self, other: Hold) -> bool:
        return other.begins <= self.asked and self.begins <= other.ends

    def overlaps(self, other: Hold) -> bool:
        return max(self.begins, other.begins) < min(self.ends, other.ends)


class Owners:
    """All members of one group. A static member is known by its instance id, whichever process has
    it at present. A violation goes to `broken`: heartbeats are tasks that nobody awaits."""

    def __init__(self, broken: Callable[[Violation], None]) -> None:
        self._broken = broken
        self._newest: dict[str, int] = {}
        self._holds: dict[int, list[Hold]] = {}
        #: What each member owns, by partition.
        self._held: dict[str, dict[int, Hold]] = {}
        self.told_times = 0

    def told(
        self, who: str, epoch: int, owned: Collection[int], *, sent: float, answered: float
    ) -> None:
        """A request from `sent` to `answered` was answered: in `epoch` the member owns these."""
        self.told_times += 1
        if epoch < self._newest.get(who, 0):
            what = f"{who} is in {epoch} after {self._newest[who]}"
            self._broken(Violation("group-epoch", what))
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
        """A request that was sent then has an answer that knows it as a member: it had until then
        what it was told of."""
        for partition, hold in self._held.get(who, {}).items():
            if sent > hold.ends:
                hold.ends = sent
                self._alone(partition, hold)

    def out(self, who: str) -> None:
        """It is not in the group, or gives up all that it owns before it says anything more."""
        self._held.pop(who, None)
        self._newest.pop(who, None)

    def _alone(self, partition: int, hold: Hold) -> None:
        for other in self._holds[partition]:
            if other.who != hold.who and (
                hold.overlaps(other) or hold.was_told_within(other) or other.was_told_within(hold)
            ):
                self._broken(Violation("group-two-owners", f"{partition}: {hold}; {other}"))
