"""Removes expired delegation tokens while this node is the active controller (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.delegation_tokens import remove_expired
from shoal.protocol.errors import ApiError

if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from shoal.security.delegation_tokens import DelegationToken
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.node import Node


class TokenExpiry:
    """Looks for expired tokens every delegation.token.expiry.check.interval.ms."""

    def __init__(self, node: Node, metadata: MetadataLog) -> None:
        self._node = node
        self._metadata = metadata

    def start(self) -> None:
        interval_ms = self._node.config["delegation.token.expiry.check.interval.ms"]
        self._node.timers.call_every(interval_ms, self._expire_tokens)

    def _expire_tokens(self) -> None:
        metadata = self._metadata
        if not metadata.is_active or not metadata.newest.delegation_tokens:
            return
        now_ms = self._node.clock.now_ms()
        future = metadata.submit(lambda image: remove_expired(image, now_ms), self._on_removed)
        future.add_done_callback(self._on_done)

    def _on_removed(self, tokens: list[DelegationToken]) -> None:
        for token in tokens:
            self._node.log.info(
                "a delegation token has expired", token_id=token.token_id, owner=token.owner
            )

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, ApiError):
            self._node.log.error("expired delegation tokens were not removed", exc_info=error)
