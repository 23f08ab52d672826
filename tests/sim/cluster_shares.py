"""Rules for a share group in a simulated cluster, checked by what its members saw.

All times are the kernel's. Each call has the time of its start and the time of its response. A
`Hold` records the state of the brokers at the time of a response (`cluster_shares_checker`). As
long as a share partition has the same leader in memory and a member the same session there, a lock
ends only through its member or by time.

* `share-accepted-twice`: two accepts of one record were acknowledged.
* `share-redelivered`: a record was acquired by a call that began after the response that settled it
  (accept or reject).
* `share-two-holders`: between a member's acquisition of a record and its accept, which succeeded,
  another member's whole call acquired the record.
* `share-lock-overlap`: a record was acquired while another member's lock on it ran.
* `share-late-accept`: an acknowledgement was accepted that was sent after its lock had expired.
* `share-delivery-count`: above the limit or below 1; or not above that of an earlier delivery that
  ended in an acknowledged release or was made by the same leader.
* `share-key-order`: a record was delivered before an earlier one with the same key was complete.
* `share-lag`: the reported lag is not the number of records up to the log's end that are
  incomplete.
* `share-dead-letters`: a rejected record has no dead letter, or an accepted one has; or a record
  left the group without an acknowledgement, and its dead letter does not give the reason.
* `share-start-offset`, `share-terminal`, `share-in-flight`, `share-stuck`: checked on the brokers
  (`cluster_shares_checker`).
* `share-lost`: neither settled nor delivered again at the end of the run.
* `unseen`: a committed record was never delivered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Record = tuple[str, int, int]
Where = tuple[str, int]
#: How long a lock runs, and the tolerance for a broker's clock, which counts milliseconds.
LOCK_S, TICK_S = 2.0, 0.001


class Hold(NamedTuple):
    """What holds a member's locks: the leader of the share partition in a broker's memory, and the
    member's session there. `in_time` means that all brokers' clocks are right."""

    leader: object
    session: object
    in_time: bool

    def lasts(self, now: Hold | None) -> bool:
        """Return whether nothing but time can have ended the member's locks, compared with
        `now`."""
        return (
            now is not None
            and self.session is not None
            and self.leader is now.leader
            and self.session is now.session
            and now.in_time
        )


@dataclass(eq=False)
class Delivery:
    """A record as a share member got it."""

    member: str
    began: float
    answered: float
    count: int
    #: The leaders when the call began, by partition (`ShareHistory.leaders`).
    leaders: Mapping[Where, object] = field(default_factory=dict, repr=False)
    #: The state at the time of the response; None unless one leader led during the whole call.
    hold: Hold | None = field(default=None, repr=False)
    #: The latest start of its lock: with the response, or with that of a renewal.
    locked: float = 0.0
    #: The earliest start of its lock: when the call began, or when a renewal was sent that
    #: succeeded.
    held_since: float = 0.0
    #: Whether the member has sent a request that ends its lock.
    ended: bool = False
    #: Whether it has requested a renewal and has no response.
    renewing: bool = False

    def __post_init__(self) -> None:
        self.locked = self.answered
        self.held_since = self.began


class Settled(NamedTuple):
    """The end of a record by a member's accept or reject that was acknowledged."""

    member: str
    delivery: Delivery
    sent: float
    answered: float
    accepted: bool


class Letter(NamedTuple):
    """A dead letter, by its headers."""

    record: Record
    delivery_count: int


@dataclass(eq=False)
class ShareRecord:
    """All that members saw of one record."""

    deliveries: list[Delivery] = field(default_factory=list)
    settled: Settled | None = None
    #: The delivery count and the response time of the newest acknowledged release.
    released: tuple[int, float] = (0, 0.0)
    #: Acknowledgements that were sent and may or may not have been applied.
    unanswered: int = 0
    #: Times and kinds of accepts and rejects that were sent and not refused.
    asked: list[tuple[float, bool]] = field(default_factory=list)


class ShareHistory:
    """Takes what the members of one group see, and raises `Violation` at the first
    contradiction."""

    def __init__(
        self,
        group: str,
        delivery_count_limit: int,
        counts: Counter[str],
        saw: Callable[[Record, bytes | None, str], None],
        look: Callable[[Record, str], Hold | None] = lambda record, member: None,
    ) -> None:
        """`saw` takes what a member got; `look` finds what holds a member's lock on a record."""
        self.group = group
        self.limit = delivery_count_limit
        self.records: dict[Record, ShareRecord] = {}
        self.counts = counts
        #: By partition: records that are certainly settled, and those that a member asked to
        #: settle.
        self.settled_counts: Counter[Where] = Counter()
        self.asked_counts: Counter[Where] = Counter()
        self._asked: set[Record] = set()
        self._saw, self._look = saw, look

    # Deliveries.

    def leaders(self, topic: str, partitions: int) -> dict[Where, object]:
        """Return the leaders of a topic's share partitions now, except where there is none or
        two."""
        places = [(topic, index) for index in range(partitions)]
        holds = {place: self._look((*place, 0), "") for place in places}
        return {place: hold.leader for place, hold in holds.items() if hold is not None}

    def acquired(self, record: Record, value: bytes | None, delivery: Delivery) -> None:
        self._saw(record, value, delivery.member)
        self.counts["acquired"] += 1
        shared = self.records.setdefault(record, ShareRecord())
        settled = shared.settled
        if settled is not None and delivery.began > settled.answered:
            raise Violation("share-redelivered", f"{record}: {delivery} after {settled}")
        if settled is not None and settled.accepted:
            self._one_holder(record, settled, delivery)
        if not 1 <= delivery.count <= self.limit:
            raise Violation("share-delivery-count", f"{record}: {delivery}")
        count, at = shared.released
        if delivery.began > at and delivery.count <= count:
            raise Violation(
                "share-delivery-count", f"{record}: {delivery} after a release with count {count}"
            )
        hold = self._look(record, delivery.member)
        if hold is not None and delivery.leaders.get(record[:2]) is hold.leader:
            delivery.hold = hold
        for other in shared.deliveries:
            self._counts_on(record, other, delivery)
            self._one_lock(record, other, delivery)
        shared.deliveries.append(delivery)

    def _counts_on(self, record: Record, other: Delivery, delivery: Delivery) -> None:
        """Check that one leader counts every delivery."""
        a, b = other.hold, delivery.hold
        same_leader = a is not None and b is not None and a.leader is b.leader
        if same_leader and other.answered < delivery.began and delivery.count <= other.count:
            raise Violation("share-delivery-count", f"{record}: {delivery} after {other}")

    def _one_lock(self, record: Record, other: Delivery, delivery: Delivery) -> None:
        """Check that no lock begins while another one runs."""
        now = delivery.answered
        if other.ended or other.hold is None or delivery.hold is None:
            return
        comes_later = other.answered <= delivery.began
        lasts_s = LOCK_S - TICK_S
        if not comes_later and (now >= delivery.began + lasts_s or delivery.hold.session is None):
            return  # It may have been first, and have ended, by time or with its session.
        if now < other.held_since + lasts_s and other.hold.lasts(self._look(record, other.member)):
            raise Violation("share-lock-overlap", f"{record}: {delivery} while {other}")

    def _one_holder(self, record: Record, settled: Settled, other: Delivery) -> None:
        if other is not settled.delivery and (
            settled.delivery.answered < other.began and other.answered < settled.sent
        ):
            raise Violation("share-two-holders", f"{record}: {other} within {settled}")

    # Acknowledgements.

    def sending(
        self, record: Record, delivery: Delivery, sent: float, accepted: bool | None
    ) -> None:
        """A member sends an accept, a reject (False) or a release (None)."""
        shared = self.records[record]
        shared.unanswered += 1
        delivery.ended = True
        if accepted is not None:
            shared.asked.append((sent, accepted))
            if record not in self._asked:
                self._asked.add(record)
                self.asked_counts[record[:2]] += 1

    def refused(self, record: Record, sent: float, accepted: bool | None) -> None:
        """The acknowledgement was refused."""
        shared = self.records[record]
        shared.unanswered -= 1
        if accepted is not None:
            shared.asked.remove((sent, accepted))

    def settled(
        self, record: Record, delivery: Delivery, sent: float, answered: float, *, accepted: bool
    ) -> None:
        shared = self.records[record]
        shared.unanswered -= 1
        self._in_time(record, delivery, sent)
        before = shared.settled
        now = Settled(delivery.member, delivery, sent, answered, accepted)
        if before is not None:
            raise Violation("share-accepted-twice", f"{record}: {before} and {now}")
        shared.settled = now
        self.settled_counts[record[:2]] += 1
        self.counts["accepted" if accepted else "rejected"] += 1
        for other in shared.deliveries:
            if other.began > answered:
                raise Violation("share-redelivered", f"{record}: {other} after {now}")
            self._one_holder(record, now, other)

    def released(self, record: Record, delivery: Delivery, sent: float, answered: float) -> None:
        shared = self.records[record]
        shared.unanswered -= 1
        self._in_time(record, delivery, sent)
        if delivery.count > shared.released[0]:
            shared.released = (delivery.count, answered)
        self.counts["released"] += 1

    def _in_time(self, record: Record, delivery: Delivery, sent: float) -> None:
        now = self._look(record, delivery.member)
        if now is None or not now.in_time or delivery.renewing:
            return
        if sent > delivery.locked + LOCK_S + TICK_S:
            raise Violation("share-late-accept", f"{record}: {delivery}, sent at {sent}")

    def renewing(self, deliveries: Iterable[Delivery]) -> None:
        """Locks may be renewed from now on."""
        for delivery in deliveries:
            delivery.renewing = True

    def renewed(self, deliveries: Iterable[Delivery], sent: float, answered: float) -> None:
        """The locks were renewed."""
        for delivery in deliveries:
            delivery.renewing = False
            delivery.held_since, delivery.locked = sent, answered

    # Facts for other checkers.

    def was_asked_for(self, record: Record) -> bool:
        """Return whether a member asked to settle the record."""
        return record in self._asked

    def may_be_complete(self, record: Record) -> bool:
        """Return whether a member asked to settle the record, or its deliveries reached the
        limit."""
        shared = self.records.get(record)
        if shared is None:
            return False
        return record in self._asked or any(d.count >= self.limit for d in shared.deliveries)

    def lag_seen(self, where: Where, lag: int, *, settled: int, end: int, least_end: int) -> None:
        """The broker reported a lag. `settled` records were settled before the request. The log
        ended at `least_end` then, and at `end` at the time of the response."""
        self.counts["lags"] += 1
        if lag > end - settled:
            raise Violation("share-lag", f"{where} has {lag}: end {end}, {settled} settled")
        if lag < least_end - self.asked_counts[where]:
            asked = self.asked_counts[where]
            raise Violation("share-lag", f"{where} has {lag}: end {least_end}, {asked} asked for")

    # At the end.

    def finish(self, final: Iterable[Record]) -> None:
        """Check the whole run. `final` is what a consumer reads at the end."""
        for record in final:
            shared = self.records.get(record)
            if shared is None:
                raise Violation("unseen", f"{record} by {self.group}")
            if shared.settled is None and not shared.unanswered:
                raise Violation("share-lost", f"{record}: {shared}")

    def finish_keys(self, keys: Mapping[Record, bytes | None], letters: Iterable[Letter]) -> None:
        """Check that each record was delivered after all earlier ones with its key were
        complete."""
        # The members do not learn when those reached their limit.
        given_up = {one.record for one in letters if one.delivery_count >= self.limit}
        by_key: dict[tuple[Where, bytes], list[Record]] = {}
        for record in sorted(keys):
            key = keys[record]
            if key is not None:
                by_key.setdefault((record[:2], key), []).append(record)
        for records in by_key.values():
            complete = 0.0  # The earliest time at which all earlier ones can be complete.
            for record in records:
                shared = self.records.get(record, ShareRecord())
                for delivery in shared.deliveries:
                    if delivery.answered < complete:
                        raise Violation(
                            "share-key-order", f"{record}: {delivery}, before them {records}"
                        )
                if record in given_up:
                    continue
                if shared.asked:
                    complete = max(complete, min(sent for sent, _ in shared.asked))
                else:
                    raise Violation("share-key-order", f"{record} was skipped: {shared}")

    def finish_letters(self, final: Iterable[Record], letters: Iterable[Letter]) -> None:
        """Check that dead letters are those of records that were rejected or reached the delivery
        limit. A record may have two, if the commit of its first one was uncertain."""
        by_record: dict[Record, Letter] = {letter.record: letter for letter in letters}
        known = set(final)
        for record, letter in by_record.items():
            shared = self.records.get(record, ShareRecord())
            settled = shared.settled
            rejected = any(not accepted for _, accepted in shared.asked)
            accepted = settled is not None and settled.accepted
            if record not in known or accepted:
                raise Violation("share-dead-letters", f"{letter} of {shared}")
            if not rejected and letter.delivery_count < self.limit:
                raise Violation("share-dead-letters", f"{letter} without a reason: {shared}")
        for record in known - by_record.keys():
            shared = self.records.get(record, ShareRecord())
            settled = shared.settled
            if not any(accepted for _, accepted in shared.asked) or (
                settled is not None and not settled.accepted
            ):
                raise Violation("share-dead-letters", f"{record} has none: {shared}")
        self.counts["letters"] += len(by_record)
