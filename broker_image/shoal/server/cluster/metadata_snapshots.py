"""Snapshots of the metadata log: when one is due, and which ones are deleted (KIP-630)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.node import Node

#: The interval of the checks.
CHECK_MS = 1_000


class MetadataSnapshots:
    """Takes and deletes snapshots by the node's configs. It owns no state."""

    def __init__(self, node: Node, quorum: MetadataQuorum, metadata: MetadataLog) -> None:
        self._node = node
        self._quorum = quorum
        self._metadata = metadata

    def start(self) -> None:
        self._node.timers.call_every(CHECK_MS, self._take_if_due)
        self._node.timers.call_every(CHECK_MS, self._clean)

    def _take_if_due(self) -> None:
        config = self._node.config
        work = self._metadata.save_if_due(
            bytes_max=config["metadata.log.max.record.bytes.between.snapshots"],
            interval_ms=config["metadata.log.max.snapshot.interval.ms"],
        )
        if work is not None:
            work.add_done_callback(self._on_snapshot_done)

    def _on_snapshot_done(self, work: asyncio.Future[None]) -> None:
        error = None if work.cancelled() else work.exception()
        if error is not None:
            self._node.log.error("the metadata snapshot was not written", error=str(error))

    def _clean(self) -> None:
        config = self._node.config
        self._quorum.clean(
            bytes_max=config["metadata.max.retention.bytes"],
            age_max_ms=config["metadata.max.retention.ms"],
        )
