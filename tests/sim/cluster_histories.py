"""What the clients of a simulated cluster saw, and the rules it must satisfy. `cluster_shares` has
the rules of share groups.

Names follow Jepsen's Kafka workload where it has one. All times are the kernel's. Each call has the
time of its start and the time of its response.

* `lost-write`: an acknowledged record is not at its acknowledged offset.
* `duplicate`: an idempotent producer's record is in the log twice.
* `inconsistent-offsets`: a consumer or share member got something other than the committed record.
* `unseen`: a committed record was never delivered to the group.
* `int-poll-skip`: one poll returned two records that are not adjacent, where all offsets have
  records.
* `offset-regression`: a group's committed offset went back.
* `classic-generation`: two members of one generation have assignments made for different members.
* `classic-two-owners`: two members of one generation own one partition, or a member got another
  assignment when it asked again.
* `classic-old-generation`: a commit of a generation was accepted after a member had joined a later
  one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster_shares import Record, Where


class GroupOffsets:
    """What a group has committed, as far as its clients have learned."""

    def __init__(self) -> None:
        self.committed: dict[Where, int] = {}
        #: Offsets in commits without a response. If the client timed out and closed the connection,
        #: its commit may still be accepted after a later one; Kafka has no fence against that.
        self.loose: set[tuple[Where, int]] = set()
        self.consumed: set[Record] = set()
        self.counts: Counter[str] = Counter()

    def offsets(self, who: str, before: dict[Where, int], now: dict[Where, int]) -> None:
        """Check offsets that were read, or whose commit was acknowledged. `before` is the value of
        `committed` at the start of the call."""
        for where, offset in now.items():
            excused = who == "observer" and (where, offset) in self.loose
            known = min(before.get(where, 0), self.committed.get(where, 0))
            if offset < known and not excused:
                raise Violation("offset-regression", f"{where} from {known} to {offset}, by {who}")
            self.committed[where] = max(offset, self.committed.get(where, 0))
        for where in before:
            if who == "observer" and where not in now:
                raise Violation("offset-regression", f"{where} has no offset any more")
        self.counts["commits"] += 1

    def went_back(self, where: Where, offset: int) -> None:
        """A commit without a response was accepted late, and a member continues from it."""
        self.committed[where] = min(offset, self.committed.get(where, 0))


class Histories(GroupOffsets):
    """Takes what clients see, and raises `Violation` at the first contradiction."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[bytes] = set()
        self.acknowledged: dict[bytes, Record] = {}
        #: Records that a response to a later one of the same producer acknowledges.
        self.implied: set[bytes] = set()
        self.values: dict[Record, bytes] = {}

    # Producers.

    def stored(self, value: bytes, record: Record) -> None:
        self.acknowledged[value] = record
        self.counts["acknowledged"] += 1
        self.saw(record, value, "its producer")

    def saw(self, record: Record, value: bytes | None, who: str) -> None:
        known = self.values.setdefault(record, value or b"")
        if known != value:
            raise Violation(
                "inconsistent-offsets", f"{record} is {known!r}, and {value!r} to {who}"
            )
        if value not in self.sent:
            raise Violation("inconsistent-offsets", f"no producer sent {value!r}, which {who} got")

    # Groups.

    def polled(self, who: str, records: Sequence[tuple[str, int, int, bytes | None]]) -> None:
        """Check the records of one poll, in their order."""
        last: dict[Where, int] = {}
        for topic, partition, offset, value in records:
            where, record = (topic, partition), (topic, partition, offset)
            if offset != last.get(where, offset - 1) + 1:
                raise Violation("int-poll-skip", f"{who} polled {record} after {last[where]}")
            last[where] = offset
            self.saw(record, value, who)
            self.consumed.add(record)
            self.counts["consumed"] += 1

    # At the end.

    def finish(self, final: dict[Record, bytes | None], ends: dict[Where, int]) -> None:
        """Check the whole run. `final` is what a consumer reads below `ends` after the run."""
        for value, record in self.acknowledged.items():
            if final.get(record) != value:
                raise Violation(
                    "lost-write",
                    f"{value!r} was stored at {record}; there is {final.get(record)!r}",
                )
        seen: dict[bytes | None, Record] = {}
        for record, stored in final.items():
            if stored in seen:
                raise Violation("duplicate", f"{stored!r} at {seen[stored]} and at {record}")
            seen[stored] = record
            self.saw(record, stored, "the last reader")
        for value in self.implied - seen.keys():
            raise Violation("lost-write", f"{value!r} was acknowledged with a later one")
        for record in self.values:
            if record not in final and record[2] < ends[record[:2]]:
                raise Violation("inconsistent-offsets", f"{record} was seen, and is not there")
        for record in final:
            if record not in self.consumed:
                raise Violation("unseen", f"{record} by the consumer group")


class ClassicHistory(GroupOffsets):
    """What the members of the classic group saw."""

    def __init__(self) -> None:
        super().__init__()
        #: By generation: the members it was made for, and the partitions of each.
        self.generations: dict[int, tuple[bytes, dict[str, tuple[int, ...]]]] = {}
        #: Whether every record is read and committed at the end.
        self.is_through = False

    def synced(self, who: str, generation: int, made_for: bytes, owned: tuple[int, ...]) -> None:
        known, owners = self.generations.setdefault(generation, (made_for, {}))
        if known != made_for or who.encode() not in made_for.split(b" "):
            raise Violation(
                "classic-generation",
                f"{generation} is of {known!r}, and {who} in that of {made_for!r}",
            )
        before = owners.setdefault(who, owned)
        taken = {p for other, some in owners.items() if other != who for p in some}
        if before != owned or taken & set(owned):
            raise Violation("classic-two-owners", f"{generation}: {who} has {owned}, of {owners}")
        self.counts["synced"] += 1

    @property
    def newest(self) -> int:
        return max(self.generations, default=-1)

    def finish(self, final: Iterable[Record]) -> None:
        for record in final:
            if record not in self.consumed:
                raise Violation("unseen", f"{record} by the classic group")
