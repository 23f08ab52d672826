"""The voter set, and its history in the log (KIP-853).

A replica is identified by its node id and its directory id. A node that restarts with an empty disk
is therefore not the voter that it was. A configured set that no leader has written yet has no
directory ids: its voters are identified by their node ids alone.

A change adds or removes one voter, so the majorities of successive sets overlap. A set is in force
as soon as its record is in the log, committed or not. Truncating the record reverts the set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: The supported level of kraft.version: voter sets in the log.
KRAFT_VERSION = 1
NO_UUID = UUID(int=0)


class ReplicaKey(NamedTuple):
    """A replica: its node id, and its directory id if that is known."""

    id: int
    directory_id: UUID | None = None


class VoterEndpoint(NamedTuple):
    """The address of a voter's listener."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """One member of a voter set."""

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = KRAFT_VERSION

    def is_of(self, key: ReplicaKey) -> bool:
        """Whether `key` is this voter. Without a directory id in the set, the node id decides."""
        own_key = self.key
        return own_key.id == key.id and (
            own_key.directory_id is None or own_key.directory_id == key.directory_id
        )


@dataclass(frozen=True, slots=True)
class VoterSet:
    """The voters in force at some offset, by id."""

    voters: Mapping[int, Voter] = field(default_factory=dict)

    @classmethod
    def from_voters(cls, voters: Iterable[Voter]) -> VoterSet:
        """Raises `ValueError` when two voters have one id."""
        by_id: dict[int, Voter] = {}
        for voter in sorted(voters, key=lambda v: v.key.id):
            if voter.key.id in by_id:
                raise ValueError(f"node id {voter.key.id} is listed twice")
            by_id[voter.key.id] = voter
        return cls(by_id)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters.values())

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def has_voter(self, key: ReplicaKey) -> bool:
        """Whether the replica is a voter of this set."""
        voter = self.voters.get(key.id)
        return voter is not None and voter.is_of(key)

    def find_others(self, key: ReplicaKey) -> list[Voter]:
        """Return the voters other than `key`."""
        return [voter for voter in self if not voter.is_of(key)]

    def with_voter(self, voter: Voter) -> VoterSet:
        return VoterSet.from_voters([*self, voter])

    def without_voter(self, key: ReplicaKey) -> VoterSet:
        return VoterSet.from_voters(voter for voter in self if not voter.is_of(key))

    def with_updated_voter(self, voter: Voter) -> VoterSet:
        """Return the set with `voter` in place of the voter with its id."""
        return VoterSet.from_voters([*(v for v in self if v.key.id != voter.key.id), voter])

    def find_committed_offset(self, offsets: Mapping[int, int]) -> int:
        """Return the largest offset that a majority has reached; a missing voter counts as -1.

        id  offset
         1  ████████ 8
         3  █████ 5       <- two of three have at least 5
         2  ██ 2
        """
        reached = sorted((offsets.get(id, -1) for id in self.voters), reverse=True)
        return reached[self.majority - 1] if reached else -1

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a VotersRecord."""
        return {
            "voters": [
                {
                    "voter_id": voter.key.id,
                    "voter_directory_id": voter.key.directory_id or NO_UUID,
                    "endpoints": [endpoint._asdict() for endpoint in voter.endpoints],
                    "kraft_version_feature": {
                        "min_supported_version": voter.min_kraft_version,
                        "max_supported_version": voter.max_kraft_version,
                    },
                }
                for voter in self
            ]
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> VoterSet:
        """Return the set of a VotersRecord."""
        return cls.from_voters(
            Voter(
                ReplicaKey(v["voter_id"], _to_known_id(v["voter_directory_id"])),
                tuple(VoterEndpoint(e["name"], e["host"], e["port"]) for e in v["endpoints"]),
                v["kraft_version_feature"]["min_supported_version"],
                v["kraft_version_feature"]["max_supported_version"],
            )
            for v in fields["voters"]
        )


def _to_known_id(directory_id: UUID | None) -> UUID | None:
    return None if directory_id == NO_UUID else directory_id


class VoterHistory:
    """The voter sets of a log, by the offsets of their records.

    The first set comes from a snapshot, or from the configs; the latter has no offset.
    """

    def __init__(self, base: VoterSet, base_offset: int = -1) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(base_offset, base)]

    @property
    def latest(self) -> VoterSet:
        """The set in force."""
        return self._sets[-1][1]

    @property
    def latest_offset(self) -> int:
        """The offset of its record; -1 for the configured set."""
        return self._sets[-1][0]

    def find_set_at(self, offset: int) -> VoterSet:
        """Return the set in force for a reader of all records below `offset`."""
        return next(
            (s for record_offset, s in reversed(self._sets) if record_offset < offset),
            self._sets[0][1],
        )

    def find_sets_since(self, offset: int) -> list[VoterSet]:
        """Return the set of `record_offset`, and all later ones."""
        later_sets = [voters for record_offset, voters in self._sets if record_offset >= offset]
        return [self.find_set_at(offset), *later_sets]

    @property
    def logged_sets(self) -> list[VoterSet]:
        """The sets that are in the log or in its snapshot."""
        return [voters for record_offset, voters in self._sets if record_offset >= 0]

    def append(self, offset: int, voters: VoterSet) -> None:
        assert offset > self.latest_offset, (offset, self.latest_offset)
        self._sets.append((offset, voters))

    def truncate(self, offset: int) -> None:
        """Remove the sets whose records are at `offset` or later."""
        while len(self._sets) > 1 and self._sets[-1][0] >= offset:
            self._sets.pop()

    def trim(self, offset: int) -> None:
        """Remove the sets that were replaced before `offset`."""
        while len(self._sets) > 1 and self._sets[1][0] < offset:
            del self._sets[0]

    def restart(self, offset: int, voters: VoterSet) -> None:
        """Replace the history by the set of a snapshot that ends at `offset`."""
        self._sets = [(offset - 1, voters)]
