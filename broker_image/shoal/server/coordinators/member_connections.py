"""Lost connections of group members. A group may fence a member sooner than its session ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shoal.server.network.api import Peer


def watch(
    peer: Peer,
    key: tuple[str, ...],
    reply: asyncio.Future[Any],
    lost: Callable[[], None],
    *,
    leaves: bool,
) -> None:
    """Call `lost` when the connection of a member's heartbeat closes. `key` names the member.

    A heartbeat that is refused, or with which the member `leaves`, ends the watch.
    """
    if leaves:
        peer.closed_calls.drop(key)
        return
    if key in peer.closed_calls:
        return

    def on_answered(reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is not None:
            peer.closed_calls.drop(key)

    peer.closed_calls.put(key, lost)
    reply.add_done_callback(on_answered)
