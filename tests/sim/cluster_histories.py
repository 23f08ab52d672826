"""What the clients of a simulated cluster saw, and what must hold of that; `cluster_shares` has the
rules of share groups.

Names follow Jepsen's Kafka workload where it has one. All times are the kernel's; a call has the
time it began at and the time its answer came.

* `lost-write`: an acknowledged record is not where it was said to be.
* `duplicate`: an idempotent producer's record is there twice.
* `inconsistent-offsets`: a consumer or share member got something else than is committed there.
* `unseen`: a committed record was never given to the group.
* `int-poll-skip`: two records of one poll that do not follow each other, where all offsets have
  records.
* `offset-regression`: a group's committed offset went back.
* `classic-generation`: two members of one generation were told of different ones to be in it.
* `classic-two-owners`: two members of one generation own one partition, or one has another
  assignment when it asks again.
* `classic-old-generation`: a commit was taken from a generation after somebody was in a later one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sim.cluster_shares import Record, Where


class GroupOffsets:
    """What a group has committed, as far as its clients know."""

    def __init__(self) -> None:
        self.committed: dict[Where, int] = {}
        #: Offsets in commits that nobody had an answer to. One whose client has timed out and hung
        #: up may still be on its way, and be taken after a later one; Kafka has no fence for it.
        self.loose: set[tuple[Where, int]] = set()
        self.consumed: set[Record] = set()
        self.counts: Counter[str] = Counter()

    def offsets(self, who: str, before: dict[Where, int], now: dict[Where, int]) -> None:
        """Offsets that a commit was acknowledged for, or that were read; `before` is `committed`
        as it was when the call began."""
        for where, offset in now.items():
            excused = who == "observer" and (where, offset) in self.loose
            if offset < before.get(where, 0) and not excused:
                raise Violation(
                    "offset-regression", f"{where} from {before[where]} to {offset}, by {who}"
                )
            self.committed[where] = max(offset, self.committed.get(where, 0))
        for where in before:
            if who == "observer" and where not in now:
                raise Violation("offset-regression", f"{where} has no offset any more")
        self.counts["commits"] += 1


class Histories(GroupOffsets):
    """Takes what clients see, and raises `Violation` as soon as it can't be."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: set[bytes] = set()
        self.acknowledged: dict[bytes, Record] = {}
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
            raise Violation("inconsistent-offsets", f"nobody sent {value!r}, which {who} got")

    # Groups.

    def polled(self, who: str, records: Sequence[tuple[str, int, int, bytes | None]]) -> None:
        """What one poll gave, in its order."""
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
        """`final` is what a consumer reads below `ends` when all is quiet."""
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
        #: By generation: for whom it was made, and each one's partitions.
        self.generations: dict[int, tuple[bytes, dict[str, tuple[int, ...]]]] = {}
        #: All that there is at the end is read and committed.
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
