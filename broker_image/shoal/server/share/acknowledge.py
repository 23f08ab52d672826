"""Acknowledgements in ShareFetch and ShareAcknowledge: checked, applied, and awaited.

The answer leaves when all share partitions of the request have settled and their changes are
committed. Acknowledgements of one share partition succeed or fail together (KIP-932). Those of many
records are applied in several turns of the loop, so that no request stops all others for long; what
is left of them when the member's connection is lost has no lock any more, and is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from shoal.coordinator.share.bulk import accepted_records
from shoal.coordinator.share.states import AcknowledgeType
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import AcknowledgementBatch, Acknowledgements
from shoal.server.share.leader import Phase
from shoal.server.share.service import ShareService
from shoal.server.share.state_write import Failure

_INVALID = ErrorCode.invalid_request
#: The largest acknowledge type, without and with renewals (KIP-1222).
_RENEW = int(AcknowledgeType.RENEW)
_RELEASE = bytes((AcknowledgeType.RELEASE,))
#: The acknowledge types of a batch.
_TYPES = itemgetter(2)
_TYPE_MAX = (int(AcknowledgeType.REJECT), _RENEW)
#: Acknowledge types after which the rest of a request has to wait for the next turn: some 10 ms
#: where each is another one than the one before.
STEP_TYPES = 3000


class _Asked(NamedTuple):
    """Who acknowledges, and by which rules."""

    group_id: str
    member_id: str
    version: int
    is_renew: bool


class Acks:
    """The acknowledgements of one request."""

    __slots__ = ("_left", "_rest", "_service", "_then", "failures", "on_settled", "partitions")

    def __init__(self, service: ShareService) -> None:
        self._service = service
        self._left = 0
        #: What has not been applied yet, the last first.
        self._rest: list[tuple[UUID, int, Sequence[AcknowledgementBatch]]] = []
        self._then: Callable[[], None] | None = None
        #: The share partitions with acknowledgements, and what went wrong with them.
        self.partitions: list[tuple[UUID, int]] = []
        self.failures: dict[tuple[UUID, int], Failure] = {}
        #: Called when the last write is committed, unless `settled` was true before.
        self.on_settled: Callable[[], None] | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is awaited any more."""
        return self._left == 0

    def apply(
        self,
        group_id: str,
        member_id: str,
        topics: Acknowledgements,
        *,
        version: int,
        is_renew: bool,
    ) -> None:
        """Acknowledge everything in a request, each share partition by itself."""
        self._rest = [
            (topic_id, index, batches)
            for topic_id, partitions in reversed(topics)
            for index, batches in reversed(partitions)
            if batches
        ]
        if self._rest:
            self._left += 1
            self._go_on(_Asked(group_id, member_id, version, is_renew))

    def then(self, call: Callable[[], None]) -> None:
        """Have `call` called when all is applied: now, if it is."""
        if self._rest:
            self._then = call
        else:
            call()

    def _go_on(self, asked: _Asked) -> None:
        done, rest = 0, self._rest
        while rest:
            if done >= STEP_TYPES:
                asyncio.get_running_loop().call_soon(self._go_on, asked)
                return
            topic_id, index, batches = rest.pop()
            self._apply(asked, topic_id, index, batches)
            alike = len(batches) > 1 and accepted_records(batches) is not None
            done += len(batches) if alike else sum(map(len, map(_TYPES, batches)))
        if self._then is not None:
            self._then()
        self._settle()

    def _apply(
        self, asked: _Asked, topic_id: UUID, index: int, batches: Sequence[AcknowledgementBatch]
    ) -> None:
        service, key = self._service, (topic_id, index)
        self.partitions.append(key)
        leader = service.find(asked.group_id, topic_id, index)
        failure = misuse(batches, version=asked.version, is_renew=asked.is_renew)
        if failure is None and (leader is None or leader.phase is not Phase.ACTIVE):
            failure = service.unknown(topic_id, index)
        if failure is None and leader is not None:
            self._left += 1
            failure = leader.acknowledge(asked.member_id, batches, self._waiter(key, batches))
            if failure is not None:
                self._left -= 1
        if failure is not None:
            self.failures[key] = failure
        if leader is not None:
            leader.meter.acknowledgements += 1
            leader.meter.failed_acknowledgements += failure is not None

    def _settle(self) -> None:
        """One thing less is awaited."""
        self._left -= 1
        if self._left == 0 and self.on_settled is not None:
            self.on_settled()

    def _waiter(
        self, key: tuple[UUID, int], batches: Sequence[AcknowledgementBatch]
    ) -> Callable[[Failure | None], None]:
        def written(failure: Failure | None) -> None:
            if failure is None:
                self._service.count_acknowledged(batches)
            else:
                self.failures[key] = failure
            self._settle()

        return written


def misuse(
    batches: Sequence[AcknowledgementBatch], *, version: int, is_renew: bool
) -> Failure | None:
    """What is wrong with acknowledgements by themselves: Kafka's checks, in its order."""
    if accepted_records(batches) is not None:
        return None
    highest = _TYPE_MAX[version >= 2]
    previous = -1
    for first, last, types, *delay_ms in batches:
        if first > last:
            return Failure(_INVALID, f"offsets {first} to {last} are no range")
        if first <= previous:
            return Failure(_INVALID, f"offset {first} comes behind offset {previous}")
        if not types:
            return Failure(_INVALID, "there is no acknowledge type")
        if len(types) > 1 and len(types) != last - first + 1:
            return Failure(
                _INVALID, f"{len(types)} acknowledge types for {last - first + 1} offsets"
            )
        largest = max(types)
        if largest > highest:
            return Failure(_INVALID, f"there is no acknowledge type {largest}")
        if largest == _RENEW and not is_renew:
            return Failure(_INVALID, "a renewal needs IsRenewAck")
        if delay_ms and (delay_ms[0] < 0 or types.strip(_RELEASE)):
            return Failure(_INVALID, "only a release waits, and for no negative time")
        previous = last
    return None
