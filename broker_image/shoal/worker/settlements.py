"""The outcomes on their way to the broker, as acknowledgements.

Nothing is acknowledged whose lock has ended since: each outcome remembers the session that held the
lock (`ShareSession.hold_of`), and `take` drops those of another one. The broker accepts or refuses
the acknowledgements of a partition together, so `resend` sends refused ones again in halves, until
it knows which of them are too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import STALE_COORDINATOR, KafkaError
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType, RejectedAcknowledgement
from shoal.protocol.errors import ErrorCode
from shoal.record.offset_set import to_ranges
from shoal.worker.outcomes import Released

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.client.share.member import ShareSession
    from shoal.worker.jobs import Delivery, Hold
    from shoal.worker.outcomes import Rejected

#: Refusals after which the lock is still held: the broker could not store the outcome now.
_TRY_AGAIN = STALE_COORDINATOR | {ErrorCode.network_exception, ErrorCode.request_timed_out}


class Settlement(NamedTuple):
    """An acknowledgement, and what holds its locks."""

    acknowledgement: Acknowledgement
    hold: Hold


class Outbox:
    """Outcomes that the next request carries."""

    def __init__(self, delay_max_s: float, worker: str = "") -> None:
        """`delay_max_s` is the group's `share.redelivery.backoff.max.ms`; `worker` is the name in
        reasons of failures."""
        self._worker = worker
        self._delay_max_s = delay_max_s
        self._holds: list[Hold] = []
        self._others: list[Settlement] = []
        #: Whether brokers support releases with a wait. Those of Apache Kafka do not.
        self.has_delays = True

    def __bool__(self) -> bool:
        return bool(self._holds or self._others)

    def accept(self, hold: Hold, offset: int) -> None:
        """Take the outcome of a job that is done."""
        if not hold.accepted:
            self._holds.append(hold)
        hold.accepted.append(offset)

    def accept_all(self, deliveries: Iterable[Delivery]) -> None:
        """Take the outcomes of many jobs that are done."""
        for delivery in deliveries:
            hold = delivery.hold
            if not hold.accepted:
                self._holds.append(hold)
            hold.accepted.append(delivery.raw.offset)

    def refuse(self, delivery: Delivery, outcome: Released | Rejected) -> None:
        """Take the outcome of a job that failed, with its reason."""
        kind, delay_ms = AcknowledgeType.REJECT, -1
        if isinstance(outcome, Released):
            kind = AcknowledgeType.RELEASE
            if self.has_delays:
                delay_ms = int(min(outcome.delay_s, self._delay_max_s) * 1000)
        topic, partition, offset = delivery.record[:3]
        reason = outcome.reason._replace(worker=self._worker)
        ack = Acknowledgement(topic, partition, offset, offset, kind, delay_ms, reason)
        self._others.append(Settlement(ack, delivery.hold))

    def add_settlements(self, settlements: Iterable[Settlement]) -> None:
        """Take acknowledgements as they are: of gaps, or of a request that failed."""
        self._others += settlements

    def take(self, session: ShareSession) -> tuple[list[Settlement], list[Settlement]]:
        """Return what is to be sent, and what is too late, and forget both."""
        settlements = self._others
        for hold in self._holds:
            hold.accepted.sort()
            settlements += [
                Settlement(Acknowledgement(hold.topic, hold.partition, first, last), hold)
                for first, last in to_ranges(hold.accepted)
            ]
            hold.accepted = []
        self._holds, self._others = [], []
        sent = [s for s in settlements if is_held(session, s.hold)]
        return sent, [s for s in settlements if not is_held(session, s.hold)]


def is_held(session: ShareSession, hold: Hold) -> bool:
    """Whether the session that acquired these locks still exists."""
    return session.hold_of(hold.leader_id) is hold.session


class Resent(NamedTuple):
    """What became of refused acknowledgements."""

    #: Refused permanently, with the broker's error: these records are delivered again.
    lost: list[RejectedAcknowledgement]
    #: To be sent once more, later.
    later: list[Settlement]


async def resend(
    session: ShareSession, sent: Sequence[Settlement], refusals: Iterable[RejectedAcknowledgement]
) -> Resent:
    """Find out which of the refused acknowledgements the broker takes after all."""
    by_ack = {s.acknowledgement: s for s in sent}
    result = Resent([], [])
    by_partition: dict[tuple[str, int], list[RejectedAcknowledgement]] = {}
    for refusal in refusals:
        ack, error = refusal
        settlement = by_ack[ack]
        if not is_held(session, settlement.hold):
            result.lost.append(refusal)
        elif isinstance(error, KafkaError) and error.code in _TRY_AGAIN:
            result.later.append(settlement)
        elif isinstance(error, KafkaError) and error.code is ErrorCode.unsupported_version:
            plain = settlement._replace(acknowledgement=ack._replace(delay_ms=-1))
            result.later.append(plain)
        else:
            by_partition.setdefault(ack[:2], []).append(refusal)
    for some in by_partition.values():
        await _resend_halves(session, some, result.lost)
    return result


async def _resend_halves(
    session: ShareSession,
    refused: Sequence[RejectedAcknowledgement],
    lost: list[RejectedAcknowledgement],
) -> None:
    """Send the halves of refused acknowledgements of one partition in requests of their own."""
    if len(refused) > 1:
        middle = len(refused) // 2
        halves = [[r.acknowledgement for r in refused[:middle]]]
        halves.append([r.acknowledgement for r in refused[middle:]])
    else:
        ack = refused[0].acknowledgement
        if ack.first_offset == ack.last_offset:
            lost.append(refused[0])
            return
        middle = (ack.first_offset + ack.last_offset) // 2
        halves = [[ack._replace(last_offset=middle)], [ack._replace(first_offset=middle + 1)]]
    for half in halves:
        if again := await session.acknowledge(half):
            await _resend_halves(session, again, lost)
