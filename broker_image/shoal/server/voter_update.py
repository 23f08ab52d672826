"""A voter tells the quorum's leader who it is: directory, endpoints, levels (KIP-853).

The first voters are configured by id and address alone. From here on the quorum knows each by its
directory too, so that a node which comes back with an empty disk, or another one with its id, is
not taken for the voter that it was.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.quorum import wire
from shoal.quorum.messages import UpdateRaftVoterRequest
from shoal.quorum.voters import Voter

if TYPE_CHECKING:
    from shoal.server.broker import Broker

_RETRY_S = 0.5


class VoterUpdate:
    """Owns the one update that may be under way."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """After each step of the quorum: is there something to tell?"""
        if self._task is None and self._due() is not None:
            self._task = asyncio.ensure_future(self._tell())

    def _due(self) -> Voter | None:
        """This node as the voters should have it, if they have it otherwise."""
        quorum = self._broker.quorum
        voters = quorum.raft.voters
        if quorum.leader_id is None or not 0 <= voters.latest_offset < quorum.high_watermark:
            return None
        known = voters.latest.voters.get(quorum.local.id)
        mine = Voter(quorum.local, self._broker.quorum_endpoints())
        if known is None or not known.is_of(quorum.local) or known == mine:
            return None
        return mine

    async def _tell(self) -> None:
        try:
            while (voter := self._due()) is not None:
                quorum = self._broker.quorum
                request = UpdateRaftVoterRequest(quorum.epoch, voter)
                if quorum.is_leader:
                    await quorum.receive(wire.CLIENT, request)
                elif quorum.leader_id is not None:
                    await quorum.peers.ask(quorum.leader_id, request)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._task = None
