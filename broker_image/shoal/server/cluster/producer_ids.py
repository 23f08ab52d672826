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
    from shoal.server.cluster.controller_channel import ControllerChannel
    from shoal.server.cluster.lifecycle import Lifecycle
    from shoal.server.cluster.metadata_log import Metadata
    from shoal.server.network.api import Answer, Body
    from shoal.server.node import Node


class ProducerIds:
    """Owns the rest of the current block, and the requests that wait for the next one."""

    def __init__(
        self, node: Node, metadata: Metadata, channel: ControllerChannel, lifecycle: Lifecycle
    ) -> None:
        self._node = node
        self._metadata = metadata
        self._channel = channel
        self._lifecycle = lifecycle
        self._left: range = range(0)
        self._waiting: deque[asyncio.Future[Body]] = deque()
        self._asking = False

    def next(self) -> Answer:
        """Return the response of InitProducerId, with a new id and epoch 0."""
        if self._left:
            return self._take()
        return self._wait()

    def filled(self) -> asyncio.Future[Body] | None:
        """Return None if there are ids to `take`, else a future that waits for a block."""
        return None if self._left else self._wait()

    def take(self) -> int:
        """Return a new id without waiting. Raises COORDINATOR_NOT_AVAILABLE if there is none."""
        if not self._left:
            self._ask()
            raise ApiError(ErrorCode.coordinator_not_available)
        return self._take()["producer_id"]

    def _wait(self) -> asyncio.Future[Body]:
        waiter: asyncio.Future[Body] = self._node.loop.create_future()
        self._waiting.append(waiter)
        self._ask()
        return waiter

    def _take(self) -> dict[str, Any]:
        producer_id, self._left = self._left[0], self._left[1:]
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
            block = asyncio.ensure_future(self._asked())
        block.add_done_callback(self._given)

    async def _asked(self) -> range:
        """Request a block from the controller on another node."""
        fields = {"broker_id": self._node.id, "broker_epoch": self._lifecycle.broker_epoch}
        answer = await self._channel.request(ApiKey.ALLOCATE_PRODUCER_IDS, fields)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        start: int = answer.producer_id_start
        return range(start, start + answer.producer_id_len)

    def _given(self, block: asyncio.Future[Any]) -> None:
        self._asking = False
        waiting, self._waiting = self._waiting, deque()
        error = None if block.cancelled() else block.exception()
        if error is None and not block.cancelled():
            self._left = block.result()
        for waiter in waiting:
            if waiter.done():
                continue
            if block.cancelled() or error is not None:
                waiter.set_result({"error_code": ErrorCode.coordinator_not_available})
            elif self._left:
                waiter.set_result(self._take())
            else:
                self._waiting.append(waiter)
        if self._waiting:
            self._ask()
