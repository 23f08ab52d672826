"""The content of Kafka's `quorum-state` file: a replica's epoch, its leader and its vote.

The file is durable before a message depends on it. A voter that forgot its vote could vote twice,
and one that forgot its epoch could vote in an old one. Source: KIP-595, KIP-853 (version 1).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shoal.log.uuids import format_uuid, parse_uuid
from shoal.quorum.voters import NO_UUID, ReplicaKey

FILE_NAME = "quorum-state"
_VERSION = 1
_NOBODY = -1


class CorruptQuorumState(Exception):
    """A quorum-state file that cannot be read. Voting without it could elect two leaders."""


class QuorumState(NamedTuple):
    """The epoch, its leader if known, and the candidate that this replica voted for in it."""

    leader_epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None

    def encode(self) -> bytes:
        """Return the content of the file."""
        voted = self.voted
        fields = {
            "leaderId": _NOBODY if self.leader_id is None else self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": _NOBODY if voted is None else voted.id,
            "votedDirectoryId": format_uuid((voted and voted.directory_id) or NO_UUID),
            "data_version": _VERSION,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> QuorumState:
        """Raises `CorruptQuorumState`."""
        try:
            fields = json.loads(data)
            if fields["data_version"] not in (0, _VERSION):
                raise CorruptQuorumState(f"quorum-state is of version {fields['data_version']}")
            leader_id, voted_id = int(fields["leaderId"]), int(fields["votedId"])
            directory_id = parse_uuid(fields.get("votedDirectoryId", ""))
            epoch = int(fields["leaderEpoch"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptQuorumState(f"quorum-state does not read: {error!r}") from None
        voted_directory_id = None if directory_id in (None, NO_UUID) else directory_id
        return cls(
            epoch,
            None if leader_id == _NOBODY else leader_id,
            None if voted_id == _NOBODY else ReplicaKey(voted_id, voted_directory_id),
        )
