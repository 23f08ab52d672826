"""Random topologies and members of streams groups, for the tests of the task assignor."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from shoal.coordinator.group.streams.sticky_assignor import StreamsMemberSpec, SubtopologySpec

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from shoal.coordinator.group.streams.tasks import TaskSets


class StreamsMaterial:
    """A group that changes: members join and leave, and subtopologies get other partitions."""

    def __init__(self, rng: random.Random, *, members_max: int = 12, tasks_max: int = 12) -> None:
        self._rng = rng
        self._members_max, self._tasks_max = members_max, tasks_max
        self.standby_replicas = rng.choice((0, 0, 1, 1, 2, 3))
        self.subtopologies = {
            str(n): self._subtopology() for n in range(rng.choice((1, 2, 3, 5, 12)))
        }
        self._processes = [self._id() for _ in range(rng.randint(1, 6))]
        self.members: dict[str, StreamsMemberSpec] = {}
        for _ in range(rng.randint(1, members_max)):
            self._join()

    def assigned(self, targets: Mapping[str, TaskSets]) -> None:
        """Make `targets` the last target assignment."""
        self.members = {m: s._replace(assigned=targets[m]) for m, s in self.members.items()}

    def change(self) -> None:
        """Change members, partitions or the number of standby replicas."""
        rng = self._rng
        what = rng.random()
        if what < 0.4 and len(self.members) < self._members_max:
            self._join()
        elif what < 0.75 and len(self.members) > 1:
            del self.members[rng.choice(sorted(self.members))]
        elif what < 0.85 and len(self.members) > 1:
            gone = rng.choice(sorted(m.process_id for m in self.members.values()))
            left = {m: s for m, s in self.members.items() if s.process_id != gone}
            self.members = left or self.members
        elif what < 0.95:
            self.subtopologies[rng.choice(sorted(self.subtopologies))] = self._subtopology()
        else:
            self.standby_replicas = rng.randint(0, 3)

    def _subtopology(self) -> SubtopologySpec:
        rng = self._rng
        return SubtopologySpec(rng.randint(1, self._tasks_max), rng.random() < 0.6)

    def _join(self) -> None:
        self.members[self._id()] = StreamsMemberSpec(self._rng.choice(self._processes))

    def _id(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))
