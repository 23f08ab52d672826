"""Effects of share-group membership: lost connections, and the state of new partitions.

The shard decides (`coordinator.group.share.membership`). This module reports to it when the
connection of a member's heartbeats closes. It passes the shard's request to initialize share-group
state to the share coordinator, and returns the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.group.share.membership import (
    LEAVE_EPOCH,
    MemberReassignment,
    ShareGroupHeartbeatRequest,
    ShareStateInitialization,
)
from shoal.server.coordinators import member_connections
from shoal.server.share.admin import ShareAdmin, with_empty_reply

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from uuid import UUID

    from shoal.coordinator.contract import CoordinatorResult
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
        groups.on_effect(ShareStateInitialization, self._initialize)
        groups.on_effect(MemberReassignment, self._on_reassigned)

    def watch(
        self, peer: Peer, heartbeat: ShareGroupHeartbeatRequest, reply: asyncio.Future[Any]
    ) -> None:
        """Report to the group when this connection closes, unless the member has left by then."""

        def on_lost() -> None:
            self._submit(
                heartbeat.group_id,
                lambda shard, now_ms: shard.share.on_connection_lost(
                    heartbeat.group_id, heartbeat.member_id, heartbeat.connection_id, now_ms
                ),
            )

        key = ("share member", heartbeat.group_id, heartbeat.member_id)
        leaves = heartbeat.member_epoch == LEAVE_EPOCH
        member_connections.watch(peer, key, reply, on_lost, leaves=leaves)

    def _initialize(self, effect: ShareStateInitialization) -> None:
        future = self._admin.initialize(effect.group_id, effect.partitions, effect.state_epoch)
        future.add_done_callback(lambda future: self._on_initialized(effect, future))

    def _on_reassigned(self, effect: MemberReassignment) -> None:
        self._sessions.reassign(effect.group_id, effect.member_id)

    def _on_initialized(
        self, effect: ShareStateInitialization, future: asyncio.Future[dict[UUID, frozenset[int]]]
    ) -> None:
        """Return the outcome to the group. `future` gives the partitions that are initialized."""
        if future.cancelled():
            return
        error = future.exception()
        initialized: Assignment = {} if error is not None else future.result()
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
                lambda shard, now_ms: shard.share.on_initialization_failed(
                    group_id, missing, now_ms
                ),
            )
        if initialized:
            self._submit(
                group_id,
                lambda shard, now_ms: shard.share.on_initialized(group_id, initialized, now_ms),
            )

    def _submit(
        self, group_id: str, decide: Callable[[GroupShard, int], CoordinatorResult]
    ) -> None:
        """Have the group's shard decide without a request."""
        reply = self._groups.submit(group_id, with_empty_reply(decide))
        # A shard that moved or is loading loses its soft state anyway; nobody waits for this.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
