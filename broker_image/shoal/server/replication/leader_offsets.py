"""What a follower asks its leader besides records: offsets of the log, and ends of leader epochs.

With both it finds the remote segment behind which it continues, when the leader has the records at
its fetch offset only in the object store (KIP-405), or when it begins there (KIP-1023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.log.remote import RemoteUnavailable
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.log.remote import RebuiltState
    from shoal.replication.partition import Partition
    from shoal.server.network.peers import BrokerPeers

LATEST, EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -6


class LeaderRefused(Exception):
    """The leader answered with an error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(f"the leader answered {code.name}")
        self.code = code


class OffsetAndEpoch(NamedTuple):
    """An offset, and the leader epoch in which it was written; -1 if it is unknown."""

    offset: int
    leader_epoch: int


class Rebuild(NamedTuple):
    """The state behind which a follower continues; None if the leader has all records on its disk.
    `log_start_offset` is the leader's."""

    state: RebuiltState | None
    log_start_offset: int


class RemoteStates(Protocol):
    """The object store (`tiered.service`)."""

    async def fetch_state_behind(
        self, partition: Partition, offset: int, leader_epoch: int
    ) -> RebuiltState:
        """Return the state behind the remote segment with an offset, which has it in that leader
        epoch. Raises `RemoteUnavailable`."""


class LeaderOffsets:
    """The log of one partition at its leader, as of the follower's leader epoch."""

    def __init__(
        self, peers: BrokerPeers, node_id: int, leader_id: int, partition: Partition
    ) -> None:
        self._peers = peers
        self._node_id = node_id
        self._leader_id = leader_id
        self._partition = partition
        self._epoch = partition.leader_epoch

    async def list(self, timestamp: int) -> OffsetAndEpoch:
        """Return the offset of a special timestamp. Raises `ClientError`, `LeaderRefused`."""
        partition = {
            "partition_index": self._partition.index,
            "current_leader_epoch": self._epoch,
            "timestamp": timestamp,
        }
        fields = {
            "replica_id": self._node_id,
            "topics": [{"name": self._partition.topic, "partitions": [partition]}],
        }
        entry = await self._ask(ApiKey.LIST_OFFSETS, fields)
        return OffsetAndEpoch(entry.offset, entry.leader_epoch)

    async def rebuild(self, remote: RemoteStates, *, from_last_tiered: bool) -> Rebuild:
        """Return the state behind which the follower continues: below the leader's local log, or
        below the first record that is not in the object store.

        Raises `ClientError`, `LeaderRefused`, `RemoteUnavailable`.
        """
        start = (await self.list(EARLIEST)).offset
        begin = await self.list(EARLIEST_PENDING_UPLOAD if from_last_tiered else EARLIEST_LOCAL)
        if begin.offset < 0:
            raise RemoteUnavailable("the leader has not read the metadata of its remote segments")
        if begin.offset <= start:
            return Rebuild(None, start)
        epoch = await self._find_epoch_before(begin)
        return Rebuild(
            await remote.fetch_state_behind(self._partition, begin.offset - 1, epoch), start
        )

    async def _find_epoch_before(self, begin: OffsetAndEpoch) -> int:
        """Return the leader epoch of the offset before that one. Only an earlier epoch that ends
        there has it."""
        if begin.leader_epoch <= 0:
            return begin.leader_epoch
        partition = {
            "partition": self._partition.index,
            "current_leader_epoch": self._epoch,
            "leader_epoch": begin.leader_epoch - 1,
        }
        fields = {
            "replica_id": self._node_id,
            "topics": [{"topic": self._partition.topic, "partitions": [partition]}],
        }
        entry = await self._ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, fields)
        earlier: int = entry.leader_epoch
        return earlier if entry.end_offset >= begin.offset else begin.leader_epoch

    async def _ask(self, api_key: ApiKey, fields: dict[str, Any]) -> Any:
        answer = await self._peers.request(self._leader_id, api_key, fields)
        entry = answer.topics[0].partitions[0]
        if entry.error_code:
            raise LeaderRefused(ErrorCode(entry.error_code))
        return entry
