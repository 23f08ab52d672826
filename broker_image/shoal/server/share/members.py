"""The loop's side of share-group membership: lost connections, and the state of new partitions.

The shard decides (`coordinator.group.share_membership`); here is what it cannot see or do itself.
It is told when the connection of a member's heartbeats closes, and its request to initialize
share-group state is carried to the share coordinator and the outcome back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.group.assignment import Assignment
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.share_membership import (
    LEAVE_EPOCH,
    HeartbeatRequest,
    InitializeShareState,
    MemberReassigned,
)
from shoal.server.network.api import Peer

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def watch(
    broker: Broker, peer: Peer, heartbeat: HeartbeatRequest, reply: asyncio.Future[Any]
) -> None:
    """Tell the group when this connection closes, unless the member is refused or leaves."""
    key = ("share member", heartbeat.group_id, heartbeat.member_id)
    if heartbeat.member_epoch == LEAVE_EPOCH:
        peer.on_close.pop(key, None)
        return
    if key in peer.on_close:
        return

    def lost() -> None:
        _tell(
            broker,
            heartbeat.group_id,
            lambda shard, now_ms: shard.share.connection_lost(
                heartbeat.group_id, heartbeat.member_id, heartbeat.connection_id, now_ms
            ),
        )

    def answered(reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is not None:
            peer.on_close.pop(key, None)

    peer.on_close[key] = lost
    reply.add_done_callback(answered)


def initialize(broker: Broker, effect: InitializeShareState) -> None:
    """Carry out the effect, and tell the group how it went."""
    asked = broker.share.initialize(effect.group_id, effect.partitions, effect.state_epoch)
    asked.add_done_callback(lambda done: _initialized(broker, effect, done))


def reassigned(broker: Broker, effect: MemberReassigned) -> None:
    """Let the member's waiting fetch go: the next one asks for what it reads from now on."""
    session = broker.share.sessions.get(effect.group_id, effect.member_id)
    if session is not None:
        session.reassigned = True
        broker.purgatory.wake(("share member", effect.group_id, effect.member_id))


def _initialized(
    broker: Broker, effect: InitializeShareState, done: asyncio.Future[Assignment]
) -> None:
    """`done` gives the partitions that are initialized."""
    if done.cancelled():
        return
    error = done.exception()
    there: Assignment = {} if error is not None else done.result()
    missing = {t: p - there.get(t, frozenset()) for t, p in effect.partitions.items()}
    missing = {t: p for t, p in missing.items() if p}
    if missing:
        broker.log.warning(
            "share-group state was not initialized",
            group=effect.group_id,
            partitions=sum(map(len, missing.values())),
            error=None if error is None else str(error),
        )
        _tell(
            broker,
            effect.group_id,
            lambda shard, now_ms: shard.share.not_initialized(effect.group_id, missing, now_ms),
        )
    if there:
        _tell(
            broker,
            effect.group_id,
            lambda shard, now_ms: shard.share.initialized(effect.group_id, there, now_ms),
        )


def _tell(broker: Broker, group_id: str, decide: Callable[[GroupShard, int], Result]) -> None:
    """Let the group's shard decide on what no client has asked for."""

    def acknowledged(shard: GroupShard, now_ms: int, token: Token) -> Result:
        result = decide(shard, now_ms)
        return Result(result.records, (*result.replies, Reply(token, {})), result.effects)

    told = broker.groups.submit(group_id, acknowledged)
    # A shard that moved or is loading forgets its soft state anyway; nobody waits for this.
    told.add_done_callback(lambda done: done.cancelled() or done.exception())
