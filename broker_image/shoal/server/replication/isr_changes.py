"""Requests of this broker, as a leader, to change the ISRs of its partitions (AlterPartition,
KIP-497).

All changes that partitions ask for in one turn of the event loop travel in one request. One request
is in flight at a time. `Partition.complete_isr_change` or `fail_isr_change` takes each result.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.replication.leadership import NOT_ELIGIBLE, AlterPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from shoal.replication.partition import Partition
    from shoal.replication.replica_fetcher import Key
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: Back-off after an AlterPartition that the controller refused or did not answer.
RETRY_BACKOFF_MS = 100
REQUEST_TIMEOUT_MS = 3_000


class ControllerRequests(Protocol):
    """Sends requests to the active controller (`cluster.controller_channel`)."""

    async def request(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, timeout_ms: int | None = None
    ) -> Any:
        """Return the controller's response. Raises `ApiError` with REQUEST_TIMED_OUT when no
        controller answers within `timeout_ms`."""


def get_broker_epoch(cache: MetadataCache, broker_id: int) -> int:
    """The epoch of a registered broker, or `NOT_ELIGIBLE`."""
    registered = cache.image.brokers.get(broker_id)
    return NOT_ELIGIBLE if registered is None else registered.broker_epoch


class IsrChanges:
    """Owns the ISR changes that the controller has not answered."""

    def __init__(self, node: Node, cache: MetadataCache, channel: ControllerRequests) -> None:
        self._node = node
        self._cache = cache
        self._channel = channel
        self._pending: dict[Partition, AlterPartition] = {}
        self._sender: asyncio.Task[None] | None = None

    def submit(self, partition: Partition, change: AlterPartition) -> None:
        """Send `change` with all others of this turn of the loop."""
        self._pending[partition] = change
        if self._sender is None:
            self._sender = asyncio.ensure_future(self._send_pending())

    def discard(self, partition: Partition) -> None:
        """Drop the unsent change of a partition that this broker no longer has."""
        self._pending.pop(partition, None)

    def stop(self) -> None:
        if self._sender is not None:
            self._sender.cancel()

    def get_broker_epoch(self, broker_id: int) -> int:
        """The epoch of a broker that may join an ISR, or `NOT_ELIGIBLE`."""
        if broker_id not in self._cache.image.active:
            return NOT_ELIGIBLE
        return get_broker_epoch(self._cache, broker_id)

    async def _send_pending(self) -> None:
        try:
            while self._pending:
                changes, self._pending = self._pending, {}
                await self._send(changes)
        finally:
            self._sender = None

    async def _send(self, changes: dict[Partition, AlterPartition]) -> None:
        results: dict[Key, Any] = {}
        request_error = ErrorCode.none
        try:
            response = await self._channel.request(
                ApiKey.ALTER_PARTITION, self._build_request(changes), timeout_ms=REQUEST_TIMEOUT_MS
            )
            request_error = ErrorCode(response.error_code)
            results = {
                (t.topic_id, p.partition_index): p for t in response.topics for p in t.partitions
            }
        except (ApiError, KeyError):
            request_error = ErrorCode.request_timed_out
        for partition, change in changes.items():
            result = results.get(partition.key)
            code = request_error if result is None else ErrorCode(result.error_code)
            if code is ErrorCode.none and result is not None:
                partition.complete_isr_change(tuple(result.isr), result.partition_epoch)
            else:
                self._fail(partition, change, code or ErrorCode.unknown_server_error)

    def _build_request(self, changes: dict[Partition, AlterPartition]) -> dict[str, Any]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for change in changes.values():
            entry = {
                "partition_index": change.partition_index,
                "leader_epoch": change.leader_epoch,
                "new_isr_with_epochs": [
                    {"broker_id": id, "broker_epoch": epoch} for id, epoch in change.isr
                ],
                "leader_recovery_state": change.leader_recovery_state,
                "partition_epoch": change.partition_epoch,
            }
            topics.setdefault(change.topic_id, []).append(entry)
        return {
            "broker_id": self._node.id,
            "broker_epoch": get_broker_epoch(self._cache, self._node.id),
            "topics": [{"topic_id": t, "partitions": entries} for t, entries in topics.items()],
        }

    def _fail(self, partition: Partition, change: AlterPartition, code: ErrorCode) -> None:
        clock = self._node.clock
        now_ms = clock.now_ms()
        self._node.log.info(
            "the controller did not take an ISR",
            topic=partition.topic,
            partition=partition.index,
            isr=change.members,
            error=code.name,
        )
        partition.fail_isr_change(change, code, now_ms, RETRY_BACKOFF_MS)
        retry_at_ms = now_ms + RETRY_BACKOFF_MS
        self._node.timers.call_at(retry_at_ms, lambda: partition.tick(clock.now_ms()))
