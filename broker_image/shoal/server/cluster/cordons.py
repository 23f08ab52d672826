"""The cordoned log directories of a broker that is its own controller (KIP-1066).

Brokers of a cluster send them in heartbeats (`lifecycle`). This broker sends none, so it decides on
each change of its config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import brokers

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.cluster.registration import Registration
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node


class Cordons:
    """Decides about this broker's log directories. It owns no state."""

    def __init__(
        self, node: Node, cache: MetadataCache, metadata: MetadataLog, registration: Registration
    ) -> None:
        self._node = node
        self._cache = cache
        self._metadata = metadata
        self._registration = registration

    def start(self) -> None:
        """Follow the config. The broker is registered."""
        self._cache.subscribe(self._on_metadata_changed)
        self._decide(self._cache.image)

    def _on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.configs or delta.brokers:
            self._decide(image)

    def _decide(self, image: MetadataImage) -> None:
        cordoned = self._registration.list_cordoned(image)
        if brokers.build_cordon_records(image, self._node.id, cordoned):
            self._metadata.submit(
                lambda newest: brokers.cordon(newest, self._node.id, cordoned)
            ).add_done_callback(lambda future: future.cancelled() or future.exception())
