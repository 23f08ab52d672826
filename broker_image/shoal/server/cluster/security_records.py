"""Decisions with records of security, once every node of the cluster supports them (ADR 62).

The controller asks each voter that is no broker for its features, because only brokers register.
It asks until the feature is enabled, which the first accepted decision does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError
from shoal.metadata import security_feature
from shoal.protocol.feature_levels import SECURITY_FEATURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.metadata.controller import Decision
    from shoal.metadata.image import MetadataImage
    from shoal.server.cluster.metadata_log import Decide, Metadata
    from shoal.server.cluster.quorum import Quorum


class SecurityRecords:
    """Submits decisions with records of security."""

    def __init__(self, quorum: Quorum, metadata: Metadata) -> None:
        self._quorum = quorum
        self._metadata = metadata

    def submit(
        self, decide: Decide, respond: Callable[[Any], Any] = lambda response: response
    ) -> asyncio.Future[Any]:
        """Decide as `Metadata.submit` does.

        The future fails with UNSUPPORTED_VERSION if a node of the cluster does not support the
        records.
        """
        if security_feature.is_enabled(self._metadata.newest):
            return self._metadata.submit(decide, respond)
        return asyncio.ensure_future(self._check_and_submit(decide, respond))

    async def _check_and_submit(self, decide: Decide, respond: Callable[[Any], Any]) -> Any:
        await self._check_voters()

        def guarded(image: MetadataImage) -> Decision:
            return security_feature.enabled_by(image, decide(image))

        return await self._metadata.submit(guarded, respond)

    async def _check_voters(self) -> None:
        """Raise `ApiError` if a voter that is no broker does not support the records."""
        brokers = self._metadata.newest.brokers
        me = self._quorum.local.id
        ids = [id for id in self._quorum.raft.voters.latest.ids if id != me and id not in brokers]
        found = await asyncio.gather(*(self._supports(id) for id in ids))
        older = [id for id, supports in zip(ids, found, strict=True) if not supports]
        if older:
            raise security_feature.unsupported(
                "controllers", older, "Upgrade them, and start those that do not answer."
            )

    async def _supports(self, id: int) -> bool:
        try:
            levels = await self._quorum.peers.features(id)
        except ClientError:
            return False
        return levels.get(SECURITY_FEATURE, 0) >= security_feature.LEVEL
