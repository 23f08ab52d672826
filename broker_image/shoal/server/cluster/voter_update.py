"""Keeps this node's entry in the voter set current, and joins the voters (KIP-853).

The first voters are configured by id and address only. UpdateRaftVoter adds the directory id, the
endpoints and the supported levels of a voter. From then on a node with the same id and another or
an empty disk is not that voter. A controller with controller.quorum.auto.join.enable joins the
voters once it has caught up. If it has lost its disk, it first removes the voter that it was,
because a voter set has an id only once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from shoal.metadata.names import METADATA_TOPIC
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.quorum import wire
from shoal.quorum.messages import UpdateRaftVoterRequest
from shoal.quorum.voters import ReplicaKey, Voter

if TYPE_CHECKING:
    from shoal.log.directory import LogDirectory
    from shoal.server.cluster.controller_channel import ControllerChannel
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.cluster.registration import Registration
    from shoal.server.node import Node

_RETRY_S = 0.5


class VoterUpdate:
    """Owns the task of the current update; there is at most one."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        registration: Registration,
        quorum: MetadataQuorum,
        channel: ControllerChannel,
    ) -> None:
        self._node = node
        self._directory = directory
        self._registration = registration
        self._quorum = quorum
        self._channel = channel
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Compare the voters with this node after each step of the quorum."""
        self._quorum.on_step(self._begin_if_due)

    def _begin_if_due(self) -> None:
        """Begin an update if one is due."""
        if self._task is not None:
            return
        if self._find_due_voter() is not None:
            self._task = asyncio.ensure_future(self._tell())
        elif self._may_join():
            self._task = asyncio.ensure_future(self._join())

    def _may_join(self) -> bool:
        node, quorum = self._node, self._quorum
        return (
            node.config["controller.quorum.auto.join.enable"]
            and node.cluster.is_controller
            and node.cluster.has_controller_listener
            and quorum.leader_id is not None
            and not quorum.raft.voters.latest.has_voter(quorum.local)
            and 0 <= quorum.raft.voters.latest_offset < quorum.high_watermark
        )

    async def _join(self) -> None:
        quorum = self._quorum
        try:
            while self._may_join():
                with contextlib.suppress(ApiError):
                    before = quorum.raft.voters.latest.voters.get(quorum.local.id)
                    if before is None:
                        await self._add()
                    elif await self._has_replaced(before.key):
                        await self._remove(before.key)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None

    async def _add(self) -> None:
        local = self._quorum.local
        fields = {
            "cluster_id": self._directory.cluster_id,
            "timeout_ms": self._node.config["request.timeout.ms"],
            "voter_id": local.id,
            "voter_directory_id": local.directory_id,
            "listeners": [e._asdict() for e in self._registration.get_quorum_endpoints()],
            "ack_when_committed": True,
        }
        await self._channel.request(ApiKey.ADD_RAFT_VOTER, fields)

    async def _has_replaced(self, before: ReplicaKey) -> bool:
        """Whether the voter with this node's id can be removed without loss.

        The leader has this node as an observer that has caught up, and that voter does not fetch.
        """
        topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        answer = await self._channel.request(ApiKey.DESCRIBE_QUORUM, {"topics": topics})
        if answer.error_code is not ErrorCode.none:
            return False
        (result,) = answer.topics[0].partitions

        def find_replica(replicas: Any, key: ReplicaKey) -> Any:
            identity = (key.id, key.directory_id)
            matches = (r for r in replicas if (r.replica_id, r.replica_directory_id) == identity)
            return next(matches, None)

        mine, voter = (
            find_replica(result.observers, self._quorum.local),
            find_replica(result.current_voters, before),
        )
        return (
            mine is not None
            and mine.last_caught_up_timestamp >= 0
            and voter is not None
            and voter.last_fetch_timestamp < 0
        )

    async def _remove(self, before: ReplicaKey) -> None:
        fields = {
            "cluster_id": self._directory.cluster_id,
            "voter_id": before.id,
            "voter_directory_id": before.directory_id,
        }
        await self._channel.request(ApiKey.REMOVE_RAFT_VOTER, fields)

    def _find_due_voter(self) -> Voter | None:
        """Return this node's voter if its entry in the voter set differs, else None."""
        quorum = self._quorum
        voters = quorum.raft.voters
        if quorum.leader_id is None or not 0 <= voters.latest_offset < quorum.high_watermark:
            return None
        voter = voters.latest.voters.get(quorum.local.id)
        mine = Voter(quorum.local, self._registration.get_quorum_endpoints())
        if voter is None or not voter.is_of(quorum.local) or voter == mine:
            return None
        return mine

    async def _tell(self) -> None:
        try:
            while (voter := self._find_due_voter()) is not None:
                quorum = self._quorum
                request = UpdateRaftVoterRequest(quorum.epoch, voter)
                if quorum.is_leader:
                    await quorum.receive(wire.CLIENT, request)
                elif quorum.leader_id is not None:
                    await quorum.peers.ask(quorum.leader_id, request)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None
