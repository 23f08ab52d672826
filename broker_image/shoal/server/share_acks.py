"""Acknowledgements in ShareFetch and ShareAcknowledge: checked, applied, and awaited.

The answer leaves when all share partitions of the request have settled and their changes are
committed. Acknowledgements of one share partition succeed or fail together (KIP-932).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from shoal.coordinator.share.states import AcknowledgeType
from shoal.protocol.errors import ErrorCode
from shoal.protocol.share import AcknowledgementBatch, Acknowledgements
from shoal.server.share import ShareService
from shoal.server.share_leader import Phase
from shoal.server.share_writes import Failure

#: Releases may say how long they wait (`protocol.share`). Named to our own client alone, as the
#: headers-only fetch is.
RELEASE_DELAY_FEATURE = "shoal.share.release.delay"
_INVALID = ErrorCode.invalid_request
#: The largest acknowledge type, without and with renewals (KIP-1222).
_RENEW = int(AcknowledgeType.RENEW)
_RELEASE = bytes((AcknowledgeType.RELEASE,))
_TYPE_MAX = (int(AcknowledgeType.REJECT), _RENEW)


class Acks:
    """The acknowledgements of one request."""

    __slots__ = ("_left", "_service", "failures", "on_settled", "partitions")

    def __init__(self, service: ShareService) -> None:
        self._service = service
        self._left = 0
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
        service = self._service
        for topic_id, partitions in topics:
            for index, batches in partitions:
                if not batches:
                    continue
                key = (topic_id, index)
                self.partitions.append(key)
                leader = service.find(group_id, topic_id, index)
                failure = misuse(batches, version=version, is_renew=is_renew)
                if failure is None and (leader is None or leader.phase is not Phase.ACTIVE):
                    failure = service.unknown(topic_id, index)
                if failure is None and leader is not None:
                    self._left += 1
                    failure = leader.acknowledge(member_id, batches, self._waiter(key, batches))
                    if failure is not None:
                        self._left -= 1
                if failure is not None:
                    self.failures[key] = failure
                if leader is not None:
                    leader.meter.acknowledgements += 1
                    leader.meter.failed_acknowledgements += failure is not None

    def _waiter(
        self, key: tuple[UUID, int], batches: Sequence[AcknowledgementBatch]
    ) -> Callable[[Failure | None], None]:
        def written(failure: Failure | None) -> None:
            if failure is None:
                for first, last, types, *_ in batches:
                    self._service.count_acknowledged(types, last - first + 1)
            else:
                self.failures[key] = failure
            self._left -= 1
            if self._left == 0 and self.on_settled is not None:
                self.on_settled()

        return written


def misuse(
    batches: Sequence[AcknowledgementBatch], *, version: int, is_renew: bool
) -> Failure | None:
    """What is wrong with acknowledgements by themselves: Kafka's checks, in its order."""
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
