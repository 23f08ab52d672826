"""Decisions with records of security, once every node of the cluster supports them (ADR 62).

The controller asks each voter that is no broker for its features, because only brokers register.
It asks until the feature is enabled, which the first accepted decision does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, overload

from shoal.client.errors import ClientError
from shoal.metadata import security_feature
from shoal.protocol.feature_levels import SECURITY_FEATURE

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.metadata.controller import ControllerResult
    from shoal.metadata.image import MetadataImage
    from shoal.server.cluster.metadata_log import Decide, MetadataLog
    from shoal.server.cluster.quorum import MetadataQuorum

T = TypeVar("T")


class SecurityRecords:
    """Submits decisions with records of security."""

    def __init__(self, quorum: MetadataQuorum, metadata: MetadataLog) -> None:
        self._quorum = quorum
        self._metadata = metadata

    @overload
    def submit(self, decide: Decide) -> asyncio.Future[Any]: ...

    @overload
    def submit(self, decide: Decide, respond: Callable[[Any], T]) -> asyncio.Future[T]: ...

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

        def decide_guarded(image: MetadataImage) -> ControllerResult:
            return security_feature.with_feature_enabled(image, decide(image))

        return await self._metadata.submit(decide_guarded, respond)

    async def _check_voters(self) -> None:
        """Raise `ApiError` if a voter that is no broker does not support the records."""
        brokers = self._metadata.newest.brokers
        me = self._quorum.local.id
        ids = [id for id in self._quorum.raft.voters.latest.ids if id != me and id not in brokers]
        supported = await asyncio.gather(*(self._is_security_supported(id) for id in ids))
        older = [id for id, supports in zip(ids, supported, strict=True) if not supports]
        if older:
            raise security_feature.build_unsupported_error(
                "controllers", older, "Upgrade them, and start those that do not answer."
            )

    async def _is_security_supported(self, id: int) -> bool:
        try:
            levels = await self._quorum.peers.fetch_features(id)
        except ClientError:
            return False
        return levels.get(SECURITY_FEATURE, 0) >= security_feature.LEVEL
