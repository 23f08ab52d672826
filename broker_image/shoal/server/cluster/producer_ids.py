"""Producer ids, from blocks that the controller allocates to a broker (KIP-730).

The controller writes each block to the metadata log, so no id is used twice. A broker that stops
loses the rest of its block.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from shoal.metadata import controller
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.server.cluster.controller_channel import ControllerChannel
    from shoal.server.cluster.lifecycle import BrokerLifecycle
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.network.api import BodyOrFuture
    from shoal.server.node import Node


class ProducerIds:
    """Owns the rest of the current block, and the requests that wait for the next one."""

    def __init__(
        self,
        node: Node,
        metadata: MetadataLog,
        channel: ControllerChannel,
        lifecycle: BrokerLifecycle,
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._channel = channel
        self._lifecycle = lifecycle
        self._remaining_ids: range = range(0)
        self._waiting: deque[asyncio.Future[responses.InitProducerIdResponse]] = deque()
        self._asking = False

    def allocate(self) -> BodyOrFuture[responses.InitProducerIdResponse]:
        """Return the response of InitProducerId, with a new id and epoch 0."""
        if self._remaining_ids:
            return self._take()
        return self._wait()

    def wait_if_empty(self) -> asyncio.Future[responses.InitProducerIdResponse] | None:
        """Return None if there are ids to `take`, else a future that waits for a block."""
        return None if self._remaining_ids else self._wait()

    def take(self) -> int:
        """Return a new id without waiting. Raises COORDINATOR_NOT_AVAILABLE if there is none."""
        if not self._remaining_ids:
            self._ask()
            raise ApiError(ErrorCode.coordinator_not_available)
        return self._take()["producer_id"]

    def _wait(self) -> asyncio.Future[responses.InitProducerIdResponse]:
        waiter: asyncio.Future[responses.InitProducerIdResponse] = self._node.loop.create_future()
        self._waiting.append(waiter)
        self._ask()
        return waiter

    def _take(self) -> responses.InitProducerIdResponse:
        producer_id, self._remaining_ids = self._remaining_ids[0], self._remaining_ids[1:]
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}

    def _ask(self) -> None:
        """Request a block, unless a request is pending."""
        if self._asking:
            return
        self._asking = True
        block: asyncio.Future[range]
        if self._metadata.is_active:
            block = self._metadata.submit(
                lambda image: controller.allocate_producer_ids(image, self._node.id)
            )
        else:
            block = asyncio.ensure_future(self._request_block())
        block.add_done_callback(self._on_block)

    async def _request_block(self) -> range:
        """Request a block from the controller on another node."""
        fields = {"broker_id": self._node.id, "broker_epoch": self._lifecycle.broker_epoch}
        answer = await self._channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, fields)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        start: int = answer.producer_id_start
        return range(start, start + answer.producer_id_len)

    def _on_block(self, block: asyncio.Future[Any]) -> None:
        self._asking = False
        waiting, self._waiting = self._waiting, deque()
        error = None if block.cancelled() else block.exception()
        if error is None and not block.cancelled():
            self._remaining_ids = block.result()
        for waiter in waiting:
            if waiter.done():
                continue
            if block.cancelled() or error is not None:
                waiter.set_result({"error_code": ErrorCode.coordinator_not_available})
            elif self._remaining_ids:
                waiter.set_result(self._take())
            else:
                self._waiting.append(waiter)
        if self._waiting:
            self._ask()
