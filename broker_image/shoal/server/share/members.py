"""Effects of share-group membership: lost connections, and the state of new partitions.

The shard decides (`coordinator.group.share_membership`). This module reports to it when the
connection of a member's heartbeats closes. It passes the shard's request to initialize share-group
state to the share coordinator, and returns the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.share_membership import (
    LEAVE_EPOCH,
    HeartbeatRequest,
    InitializeShareState,
    MemberReassigned,
)
from shoal.server.coordinators import member_connections
from shoal.server.share.admin import ShareAdmin, acknowledged

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from uuid import UUID

    from shoal.coordinator.contract import Result
    from shoal.coordinator.group.assignment import Assignment
    from shoal.coordinator.group.shard import GroupShard
    from shoal.server.coordinators.groups import GroupService
    from shoal.server.network.api import Peer
    from shoal.server.node import Node
    from shoal.server.share.member_sessions import MemberSessions


class ShareMembers:
    """Carries out the effects of share groups. Owns nothing."""

    def __init__(
        self, node: Node, groups: GroupService, admin: ShareAdmin, sessions: MemberSessions
    ) -> None:
        self._node = node
        self._groups = groups
        self._admin = admin
        self._sessions = sessions
        groups.on_effect(InitializeShareState, self._initialize)
        groups.on_effect(MemberReassigned, self._reassigned)

    def watch(self, peer: Peer, heartbeat: HeartbeatRequest, reply: asyncio.Future[Any]) -> None:
        """Report to the group when this connection closes, unless the member has left by then."""

        def lost() -> None:
            self._submit(
                heartbeat.group_id,
                lambda shard, now_ms: shard.share.connection_lost(
                    heartbeat.group_id, heartbeat.member_id, heartbeat.connection_id, now_ms
                ),
            )

        key = ("share member", heartbeat.group_id, heartbeat.member_id)
        leaves = heartbeat.member_epoch == LEAVE_EPOCH
        member_connections.watch(peer, key, reply, lost, leaves=leaves)

    def _initialize(self, effect: InitializeShareState) -> None:
        done = self._admin.initialize(effect.group_id, effect.partitions, effect.state_epoch)
        done.add_done_callback(lambda done: self._initialized(effect, done))

    def _reassigned(self, effect: MemberReassigned) -> None:
        self._sessions.reassign(effect.group_id, effect.member_id)

    def _initialized(
        self, effect: InitializeShareState, done: asyncio.Future[dict[UUID, frozenset[int]]]
    ) -> None:
        """Return the outcome to the group. `done` gives the partitions that are initialized."""
        if done.cancelled():
            return
        error = done.exception()
        initialized: Assignment = {} if error is not None else done.result()
        missing = {t: p - initialized.get(t, frozenset()) for t, p in effect.partitions.items()}
        missing = {t: p for t, p in missing.items() if p}
        group_id = effect.group_id
        if missing:
            self._node.log.warning(
                "share-group state was not initialized",
                group=group_id,
                partitions=sum(map(len, missing.values())),
                error=None if error is None else str(error),
            )
            self._submit(
                group_id,
                lambda shard, now_ms: shard.share.not_initialized(group_id, missing, now_ms),
            )
        if initialized:
            self._submit(
                group_id,
                lambda shard, now_ms: shard.share.initialized(group_id, initialized, now_ms),
            )

    def _submit(self, group_id: str, decide: Callable[[GroupShard, int], Result]) -> None:
        """Have the group's shard decide without a request."""
        reply = self._groups.submit(group_id, acknowledged(decide))
        # A shard that moved or is loading loses its soft state anyway; nobody waits for this.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
