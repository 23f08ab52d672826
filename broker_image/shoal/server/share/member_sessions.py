"""The share sessions of members, which end with their connections, and what their end releases."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shoal.coordinator.share.sessions import ShareSession, ShareSessions
from shoal.server.share.cooperative_scheduler import CooperativeScheduler
from shoal.server.share.leader import LeaderPhase, ShareLeader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from shoal.server.network.api import Peer
    from shoal.server.network.purgatory import Purgatory
    from shoal.server.node import Node


class MemberSessions(ShareSessions):
    """Owns the sessions of this broker and the releases of locks that are under way."""

    def __init__(
        self,
        node: Node,
        purgatory: Purgatory,
        loaded_of: Callable[[str], Iterable[ShareLeader]],
    ) -> None:
        """`loaded_of` returns the loaded share partitions of a group."""
        super().__init__(node.config["group.share.max.share.sessions"])
        self._purgatory = purgatory
        self._loaded_of = loaded_of
        self._releases = CooperativeScheduler(node.loop)

    def begin(
        self,
        peer: Peer,
        group_id: str,
        member_id: str,
        partitions: Iterable[tuple[UUID, int]],
        client_id: str = "",
    ) -> ShareSession:
        """Open a member's session, which ends with its connection. Raises
        SHARE_SESSION_NOT_FOUND, SHARE_SESSION_LIMIT_REACHED."""
        session = self.open(
            group_id, member_id, peer.connection_id, partitions, client_id, peer.principal
        )
        self._purgatory.wake(("share member", group_id, member_id))
        peer.closed_calls.put(
            ("share session", group_id, member_id), partial(self._on_lost, session)
        )
        return session

    def end(
        self,
        group_id: str,
        member_id: str,
        peer: Peer | None = None,
        *,
        undelivered: bool = False,
    ) -> None:
        """End a member's session and the fetches that wait for it, and release its records.

        They count as `undelivered` if the member reports that it processed none of them.
        """
        self.close(group_id, member_id)
        self._purgatory.wake(("share member", group_id, member_id))
        if peer is not None:
            peer.closed_calls.drop(("share session", group_id, member_id))
        # By number: the member may be back, and hold other locks, before the last one is released.
        self._releases.begin(
            [
                partial(leader.release, locks, undelivered=undelivered)
                for leader in self._loaded_of(group_id)
                if leader.phase is LeaderPhase.ACTIVE
                and (locks := leader.share.locks.find_by_member(member_id))
            ]
        )

    def reassign(self, group_id: str, member_id: str) -> None:
        """Answer the member's waiting fetch, so that the next one names its new partitions."""
        session = self.get(group_id, member_id)
        if session is not None:
            session.reassigned = True
            self._purgatory.wake(("share member", group_id, member_id))

    def _on_lost(self, session: ShareSession) -> None:
        if self.get(session.group_id, session.member_id) is session:
            self.evictions_total += 1
            self.end(session.group_id, session.member_id)
