"""Acknowledgements in ShareFetch and ShareAcknowledge: checked, applied, and awaited.

The answer leaves when all share partitions of the request have settled and their changes are
committed. Acknowledgements of one share partition succeed or fail together (KIP-932).
Acknowledgements of many records are applied in several turns of the loop, so that no request blocks
the others for long. If the member's connection is lost meanwhile, the rest has no lock any more and
is refused.
"""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.coordinator.share.bulk import count_accepted
from shoal.coordinator.share.states import ACCEPT, AcknowledgeType
from shoal.protocol.errors import ErrorCode, WireError
from shoal.protocol.reasons import ENCODED_BYTES_MAX, REASON_BYTES_MAX, decode_reason
from shoal.server.share.leader import LeaderPhase
from shoal.server.share.state_write import Failure, Waiter

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from shoal.protocol.share import AcknowledgementBatch, Acknowledgements
    from shoal.server.metrics.share_meters import ShareTopicMeter

_INVALID = ErrorCode.invalid_request
#: The largest acknowledge type, without and with renewals (KIP-1222).
_RENEW = int(AcknowledgeType.RENEW)
_RELEASE = bytes((AcknowledgeType.RELEASE,))
_FAILED = bytes((AcknowledgeType.RELEASE, AcknowledgeType.REJECT))
#: The acknowledge types of a batch.
_TYPES = itemgetter(2)
_TYPE_MAX = (int(AcknowledgeType.REJECT), _RENEW)
#: Acknowledge types that one turn applies: some 10 ms of work if each differs from the one before.
STEP_TYPES = 3000


class _AckRequest(NamedTuple):
    """The member that acknowledges, and the rules of its request."""

    group_id: str
    member_id: str
    version: int
    is_renew: bool


class AcknowledgedPartition(Protocol):
    """A share partition, as far as acknowledgements use it."""

    @property
    def phase(self) -> LeaderPhase:
        """Whether it is served."""

    @property
    def meter(self) -> ShareTopicMeter:
        """The meter of its topic."""

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[AcknowledgementBatch], waiter: Waiter
    ) -> Failure | None:
        """Settle a member's records, and call `waiter` after the commit, or return the refusal."""


class AcknowledgedPartitions(Protocol):
    """The share partitions of one broker, as far as acknowledgements use them."""

    #: Records by acknowledge type.
    acknowledged: Counter[int]

    def find(self, group_id: str, topic_id: UUID, index: int) -> AcknowledgedPartition | None:
        """A share partition that is loaded or loading."""

    def make_unknown_failure(self, topic_id: UUID) -> Failure:
        """Why records of a share partition that is not served cannot be acknowledged."""


class PendingAcknowledgements:
    """The acknowledgements of one request."""

    __slots__ = (
        "_on_applied",
        "_on_settled",
        "_pending_count",
        "_permits",
        "_remaining",
        "_service",
        "failures",
        "partitions",
    )

    def __init__(
        self,
        service: AcknowledgedPartitions,
        permits: Callable[[UUID], bool] | None = None,
    ) -> None:
        """`permits` decides which topics the member may read; None for all."""
        self._service = service
        self._permits = permits
        self._pending_count = 0
        #: Batches that are to be applied, the last first.
        self._remaining: list[tuple[UUID, int, Sequence[AcknowledgementBatch]]] = []
        self._on_applied: Callable[[], None] | None = None
        #: The share partitions with acknowledgements, and their failures.
        self.partitions: list[tuple[UUID, int]] = []
        self.failures: dict[tuple[UUID, int], Failure] = {}
        self._on_settled: Callable[[], None] | None = None

    @property
    def settled(self) -> bool:
        """Whether all writes have a result."""
        return self._pending_count == 0

    def on_settled(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the last write has a result. `settled` must be false."""
        self._on_settled = call

    def apply(
        self,
        group_id: str,
        member_id: str,
        topics: Acknowledgements,
        *,
        version: int,
        is_renew: bool,
    ) -> None:
        """Acknowledge all partitions of a request, each individually."""
        self._remaining = [
            (topic_id, index, batches)
            for topic_id, partitions in reversed(topics)
            for index, batches in reversed(partitions)
            if batches
        ]
        if self._remaining:
            self._pending_count += 1
            self._apply_rest(_AckRequest(group_id, member_id, version, is_renew))

    def on_applied(self, call: Callable[[], None]) -> None:
        """Call `call` when all is applied, now if it is."""
        if self._remaining:
            self._on_applied = call
        else:
            call()

    def _apply_rest(self, request: _AckRequest) -> None:
        count, remaining = 0, self._remaining
        while remaining:
            if count >= STEP_TYPES:
                asyncio.get_running_loop().call_soon(self._apply_rest, request)
                return
            topic_id, index, batches = remaining.pop()
            accepted = count_accepted(batches)
            self._apply(request, topic_id, index, batches, accepted)
            count += len(batches) if accepted else sum(map(len, map(_TYPES, batches)))
        if self._on_applied is not None:
            self._on_applied()
        self._settle()

    def _apply(
        self,
        request: _AckRequest,
        topic_id: UUID,
        index: int,
        batches: Sequence[AcknowledgementBatch],
        accepted: int | None,
    ) -> None:
        """Acknowledge records of one partition. `accepted` is what `count_accepted` returns."""
        service, key = self._service, (topic_id, index)
        self.partitions.append(key)
        leader = service.find(request.group_id, topic_id, index)
        failure = None
        if accepted is None:
            failure = validate(batches, version=request.version, is_renew=request.is_renew)
        if failure is None and self._permits is not None and not self._permits(topic_id):
            failure = Failure(ErrorCode.topic_authorization_failed)
        if failure is None and (leader is None or leader.phase is not LeaderPhase.ACTIVE):
            failure = service.make_unknown_failure(topic_id)
        if failure is None and leader is not None:
            self._pending_count += 1
            waiter = self._make_waiter(key, batches, accepted)
            failure = leader.acknowledge(request.member_id, batches, waiter)
            if failure is not None:
                self._pending_count -= 1
        if failure is not None:
            self.failures[key] = failure
        if leader is not None:
            leader.meter.acknowledgements += 1
            leader.meter.failed_acknowledgements += failure is not None

    def _settle(self) -> None:
        """Decrement the pending count."""
        self._pending_count -= 1
        if self._pending_count == 0 and self._on_settled is not None:
            # Forget the caller, which holds these acknowledgements, so that both are freed at once.
            on_settled, self._on_settled = self._on_settled, None
            on_settled()

    def _make_waiter(
        self, key: tuple[UUID, int], batches: Sequence[AcknowledgementBatch], accepted: int | None
    ) -> Callable[[Failure | None], None]:
        def on_written(failure: Failure | None) -> None:
            if failure is None or failure.code is ErrorCode.none:
                count_by_type(self._service.acknowledged, batches, accepted)
            if failure is not None:
                self.failures[key] = failure
            self._settle()

        return on_written


def validate(
    batches: Sequence[AcknowledgementBatch], *, version: int, is_renew: bool
) -> Failure | None:
    """Return what is wrong with acknowledgements themselves. These are Kafka's checks, in its
    order. All are right of which `count_accepted` returns a number."""
    highest = _TYPE_MAX[version >= 2]
    previous = -1
    for first, last, types, *extensions in batches:
        if first > last:
            return Failure(_INVALID, f"The first offset {first} is above the last offset {last}.")
        if first <= previous:
            return Failure(
                _INVALID, f"Offset {first} follows offset {previous}; batches must ascend."
            )
        if not types:
            return Failure(_INVALID, "A batch has no acknowledge type.")
        if len(types) > 1 and len(types) != last - first + 1:
            return Failure(
                _INVALID,
                f"A batch of {last - first + 1} offsets has {len(types)} acknowledge types.",
            )
        largest = max(types)
        if largest > highest:
            return Failure(_INVALID, f"Version {version} has no acknowledge type {largest}.")
        if largest == _RENEW and not is_renew:
            return Failure(_INVALID, "Renewals need IsRenewAck.")
        if extensions and (refusal := _validate_extensions(types, *extensions)):
            return refusal
        previous = last
    return None


def _validate_extensions(types: bytes, delay_ms: int | None, reason: bytes = b"") -> Failure | None:
    """Return what is wrong with the delay or the reason of a batch."""
    if delay_ms is not None and (delay_ms < 0 or types.strip(_RELEASE)):
        return Failure(_INVALID, "Only a release can have a delay, and it is not negative.")
    if not reason:
        return None
    if types.strip(_FAILED):
        return Failure(_INVALID, "Only a release or a rejection can have a reason.")
    if len(reason) > ENCODED_BYTES_MAX:
        return Failure(
            _INVALID,
            f"A reason may have {REASON_BYTES_MAX} bytes of text at most; this one takes"
            f" {len(reason)}.",
        )
    try:
        decode_reason(reason)
    except WireError as error:
        return Failure(_INVALID, str(error))
    return None


def count_by_type(
    acknowledged: Counter[int],
    batches: Sequence[AcknowledgementBatch],
    accepted: int | None = None,
) -> None:
    """Add acknowledged records to a count by type: `accepted` ones, or those of the batches."""
    if accepted is not None:
        acknowledged[ACCEPT] += accepted
        return
    for first, last, types, *_ in batches:
        if len(types) == 1:
            acknowledged[types[0]] += last - first + 1
        else:
            for kind in AcknowledgeType:
                if records := types.count(kind):
                    acknowledged[kind] += records
