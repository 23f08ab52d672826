"""Loans between brokers of what tenants may use of a limit, for a group and a topic.

Each broker has a part of a limit (`tenant_limits`). A broker on which a tenant waits asks the other
leaders of the topic once a second, and each lends what it does not use of its part. The rules:

* A request states all that the borrower holds of this lender, by tenant, and what it lacks. What it
  does not name, it has returned. So the lender corrects what it has lent, only downwards, and what
  a lost answer granted comes back with the next request.
* The lender subtracts what it lends before the answer leaves. The answer states all that the
  borrower has now. So what a borrower believes to hold is never more than what the lender has lent,
  and the sum of what brokers allow stays that of their parts.
* Requests have growing numbers, and a lender ignores one that another has overtaken.
* Lender and borrower name each other by the broker epoch. A borrower that registered again has
  nothing, and a lender that registered again has lent nothing. A borrower that leads no partition
  of the topic any more has forgotten what its members hold, so the lender takes the loan back.
* A borrower uses no more of a loan than the lender's part is, as the metadata say. So when
  partitions move, it uses no part twice.
* The answer also has what the borrower may keep: what the lender does not need itself, divided by
  need between those that want it. The borrower delivers no record above that, and returns the rest
  as its records end. A tenant that has not waited for `IDLE_MS` returns what it does not use.
* A rate is lent for `LEASE_MS`, which begins at the borrower when it asks and at the lender when it
  answers. A burst is not lent.

All is soft state, and nothing here knows of sockets: `server.share.tenant_loans` carries requests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.tenant_limits import count_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.coordinator.share.tenant_limits import TenantLedger, TenantUse

#: Tenants that one broker borrows for from another, so that a request has some kilobytes.
TENANTS_MAX = 100
#: Waiting tenants that are looked at each second.
VISITED_MAX = 1000
#: How long a lent rate lasts, and how long a tenant keeps borrowed records that it does not use.
LEASE_MS = IDLE_MS = 3000
#: The shortest time in which deliveries are counted to tell which part of a rate is unused.
_SAMPLE_MS = 900
#: Counts of deliveries older than this say nothing about now.
_SAMPLE_OLD_MS = 5000


class Leader(NamedTuple):
    """A broker, and how many partitions of the topic it leads."""

    broker_epoch: int
    led: int


#: A broker that is not registered.
NO_LEADER = Leader(-1, 0)


class Wish(NamedTuple):
    """What a borrower has of a tenant's part of a lender, and what it would like to have more."""

    name: bytes
    #: Records.
    held: int
    wanted: int
    is_rate_wanted: bool


class Loan(NamedTuple):
    """What a borrower has of a tenant's part of a lender after its request."""

    name: bytes
    #: Records, and how many of these the lender does not need itself.
    lent: int
    kept: int
    #: Deliveries a second, for `LEASE_MS`.
    per_second: float


class LoanRequest(NamedTuple):
    """A request to a lender."""

    lender: int
    sequence: int
    wishes: tuple[Wish, ...]


def divide(amount: int, demands: Sequence[int]) -> list[int]:
    """Divide an amount so that the smallest share is as large as possible, and none is larger than
    its demand. The first ones get what does not divide."""
    shares = [0] * len(demands)
    order = sorted(range(len(demands)), key=lambda index: (demands[index], -index))
    for rank, index in enumerate(order):
        left = len(order) - rank
        shares[index] = min(demands[index], amount // left)
        amount -= shares[index]
    return shares


class _Borrowed:
    """A tenant's loan, at the borrower."""

    __slots__ = ("held", "kept", "per_ms", "until_ms")

    def __init__(self, loan: Loan, until_ms: float) -> None:
        self.held, self.kept = loan.lent, loan.kept
        self.per_ms, self.until_ms = loan.per_second / 1000, until_ms


class _Lender:
    """Another broker, as one that lends."""

    def __init__(self) -> None:
        self.leader = NO_LEADER
        self.loans: dict[bytes, _Borrowed] = {}
        #: The number of the last request and its time, and whether the answer is to come.
        self.sequence = self.asked_ms = 0
        self.is_pending = False
        #: Whether it knows that nothing is lent or wanted.
        self.is_settled = True


class Borrowing:
    """What this broker borrows."""

    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._lenders: dict[int, _Lender] = {}
        self._is_leader = False

    @property
    def is_active(self) -> bool:
        """Whether a tenant waits, or a lender has lent something, or may have."""
        if self._ledger.waiting:
            return True
        return any(x.loans or not x.is_settled for x in self._lenders.values())

    def count_records(self) -> int:
        """Return how many records of tenants' limits are borrowed."""
        return sum(loan.held for x in self._lenders.values() for loan in x.loans.values())

    def follow(self, leaders: Mapping[int, Leader], *, is_leader: bool, now_ms: int) -> None:
        """Follow the metadata: `leaders` are all other brokers, and `is_leader` tells whether this
        one leads partitions of the topic."""
        self._is_leader = is_leader
        changed: set[bytes] = set()
        for broker_id in [x for x in self._lenders if x not in leaders]:
            changed.update(self._lenders.pop(broker_id).loans)
        for broker_id, leader in leaders.items():
            lender = self._lenders.setdefault(broker_id, _Lender())
            if lender.leader != leader:
                changed.update(lender.loans)
            is_new = leader.broker_epoch != lender.leader.broker_epoch
            if is_new:
                lender.is_pending, lender.is_settled = False, True
            if is_new or not leader.led or not is_leader:
                changed.update(lender.loans)
                lender.loans = {}
            lender.leader = leader
        self._apply(changed, now_ms)

    def build_requests(self, now_ms: int) -> list[LoanRequest]:
        """Return the requests that are due, each of which needs `on_answer` or `on_failure`."""
        self._return_unused(now_ms)
        wanted = self._find_wanted(now_ms) if self._is_leader else {}
        requests = []
        for broker_id, lender in sorted(self._lenders.items()):
            if lender.is_pending or not lender.leader.led:
                continue
            names = [*lender.loans, *(name for name in wanted if name not in lender.loans)]
            wishes = tuple(
                Wish(name, self._count_held(lender, name), *wanted.get(name, (0, False)))
                for name in names[:TENANTS_MAX]
            )
            if wishes or not lender.is_settled:
                lender.sequence = max(lender.sequence + 1, now_ms)
                lender.asked_ms = now_ms
                lender.is_pending, lender.is_settled = True, False
                requests.append(LoanRequest(broker_id, lender.sequence, wishes))
        return requests

    def on_answer(self, request: LoanRequest, loans: Iterable[Loan], now_ms: int) -> None:
        """Note what a lender has lent. A tenant that the answer does not name has nothing."""
        lender = self._lenders.get(request.lender)
        if lender is None or not lender.is_pending or lender.sequence != request.sequence:
            return
        lender.is_pending = False
        before = lender.loans
        lender.loans = {
            loan.name: _Borrowed(loan, lender.asked_ms + LEASE_MS)
            for loan in loans
            if loan.lent > 0 or loan.per_second > 0
        }
        lender.is_settled = not request.wishes
        if not self._is_leader:
            lender.loans = {}
        self._apply({*before, *lender.loans}, now_ms)

    def on_failure(self, request: LoanRequest) -> None:
        """Note that no answer came: the lender may have lent something or not."""
        lender = self._lenders.get(request.lender)
        if lender is not None and lender.sequence == request.sequence:
            lender.is_pending = False

    def _find_wanted(self, now_ms: int) -> dict[bytes, tuple[int, bool]]:
        """Return the records that waiting tenants lack, and whether they lack a rate. The next call
        begins with others."""
        wanted: dict[bytes, tuple[int, bool]] = {}
        waiting = self._ledger.waiting
        for name in list(waiting)[:VISITED_MAX]:
            use = self._ledger.uses.get(name)
            records, is_rate = 0, False
            if use is not None:
                records, is_rate = use.count_waiting(), use.is_waiting_for_rate(now_ms)
            del waiting[name]
            if use is None or not (records or is_rate):
                continue
            waiting[name] = None
            lacks = 0.0
            if use.limit != math.inf:
                lacks = min(records, max(0, use.limit - use.part + use.lent - use.borrowed))
            if lacks or is_rate:
                wanted[name] = int(lacks), is_rate
                if len(wanted) == TENANTS_MAX:
                    break
        return wanted

    def _return_unused(self, now_ms: int) -> None:
        """Return what lenders need themselves and members do not hold, and what no record uses."""
        lenders = [lender for _, lender in sorted(self._lenders.items())]
        names = {name: None for lender in lenders for name in lender.loans}
        for name in names:
            use = self._ledger.find_or_add(name, now_ms)
            # What members do not hold, and what of it is of no use.
            free = spare = math.inf
            if use.limit != math.inf:
                has = use.part - use.lent
                has += sum(x.loans[name].held for x in lenders if name in x.loans)
                free = max(0, has - use.in_flight)
                is_idle = not use.waiting and now_ms - use.waited_ms >= IDLE_MS
                spare = free if is_idle else has - use.limit
            for lender in lenders:
                loan = lender.loans.get(name)
                if loan is None or lender.is_pending:
                    continue
                unneeded = loan.held - _count_usable(lender, name, use, self._ledger.part[1])
                returned = int(min(free, max(unneeded, min(loan.held, spare))))
                loan.held -= returned
                free, spare = free - returned, spare - returned
                if not loan.held and loan.until_ms <= now_ms:
                    del lender.loans[name]
        self._apply(names, now_ms)

    def _apply(self, names: Iterable[bytes], now_ms: int) -> None:
        """Let tenants use what they have."""
        for name in names:
            use = self._ledger.find_or_add(name, now_ms)
            records, per_ms, until_ms = 0, 0.0, math.inf
            for lender in self._lenders.values():
                loan = lender.loans.get(name)
                if loan is not None:
                    records += _count_usable(lender, name, use, self._ledger.part[1])
                    if loan.per_ms and loan.until_ms > now_ms:
                        per_ms += loan.per_ms
                        until_ms = min(until_ms, loan.until_ms)
            use.set_borrowed(records, per_ms, until_ms if per_ms else 0, now_ms)

    @staticmethod
    def _count_held(lender: _Lender, name: bytes) -> int:
        loan = lender.loans.get(name)
        return 0 if loan is None else loan.held


def _count_usable(lender: _Lender, name: bytes, use: TenantUse, partitions: int) -> int:
    """Return how many records of a loan a tenant may use."""
    loan = lender.loans[name]
    part = count_part(use.limit, lender.leader.led, partitions)
    return int(min(loan.held, loan.kept, part))


class _Lent:
    """A tenant's loan, at the lender."""

    __slots__ = ("demand", "is_rate_wanted", "leases", "records")

    def __init__(self) -> None:
        #: Records that are lent, and how many the borrower would like to have.
        self.records = self.demand = 0
        self.is_rate_wanted = False
        #: The rates that the borrower may use, as it may not have got the last answers: until when,
        #: and deliveries for a millisecond.
        self.leases: list[tuple[int, float]] = []

    def find_per_ms(self, now_ms: int) -> float:
        """Return the highest rate that the borrower may use, in deliveries for a millisecond."""
        if self.leases and self.leases[0][0] <= now_ms:
            self.leases = [lease for lease in self.leases if lease[0] > now_ms]
        return max((per_ms for _, per_ms in self.leases), default=0.0)


class _Borrower:
    """Another broker, as one that borrows."""

    def __init__(self) -> None:
        #: Broker epoch and number of its last request.
        self.last = (-1, -1)
        self.loans: dict[bytes, _Lent] = {}


class Lending:
    """What this broker lends."""

    def __init__(self, ledger: TenantLedger) -> None:
        self._ledger = ledger
        self._borrowers: dict[int, _Borrower] = {}
        #: By tenant: when deliveries were counted last, their number, and the rate before that.
        self._samples: dict[bytes, tuple[int, int, float]] = {}

    @property
    def is_active(self) -> bool:
        """Whether something is lent."""
        return any(borrower.loans for borrower in self._borrowers.values())

    def count_records(self) -> int:
        """Return how many records of tenants' limits are lent."""
        return sum(lent.records for x in self._borrowers.values() for lent in x.loans.values())

    def follow(self, leaders: Mapping[int, Leader], now_ms: int) -> None:
        """Follow the metadata, and the end of leases. Brokers that lead no partition of the topic
        have forgotten what their members hold."""
        for broker_id, borrower in self._borrowers.items():
            leader = leaders.get(broker_id, NO_LEADER)
            if not leader.led or leader.broker_epoch > borrower.last[0]:
                dropped, borrower.loans = borrower.loans, {}
                self._apply(dropped, now_ms)
            self._apply([name for name, lent in borrower.loans.items() if lent.leases], now_ms)

    def lend(
        self,
        borrower_id: int,
        broker_epoch: int,
        sequence: int,
        wishes: Sequence[Wish],
        now_ms: int,
        *,
        may_lend: bool,
    ) -> list[Loan]:
        """Return what a borrower has after its request; nothing if a later one was answered.

        `may_lend` tells whether this broker has a part, and the borrower leads partitions.
        """
        borrower = self._borrowers.setdefault(borrower_id, _Borrower())
        if (broker_epoch, sequence) <= borrower.last:
            return []
        before = borrower.loans
        borrower.last, borrower.loans = (broker_epoch, sequence), {}
        for wish in wishes:
            lent = before.get(wish.name) or _Lent()
            lent.records = max(0, min(lent.records, wish.held))
            lent.demand = lent.records + max(0, wish.wanted)
            lent.is_rate_wanted = wish.is_rate_wanted
            borrower.loans[wish.name] = lent
        self._apply([name for name in before if name not in borrower.loans], now_ms)
        loans = [self._grant(borrower, name, now_ms, may_lend=may_lend) for name in borrower.loans]
        self._apply(list(borrower.loans), now_ms)
        for name, lent in list(borrower.loans.items()):
            if not (lent.records or lent.leases or lent.demand or lent.is_rate_wanted):
                del borrower.loans[name]
        for name in [x for x in self._samples if x not in borrower.loans]:
            if not self._list_loans(name):
                del self._samples[name]
        return loans

    def _grant(self, borrower: _Borrower, name: bytes, now_ms: int, *, may_lend: bool) -> Loan:
        """Lend what is free of a tenant's part."""
        use = self._ledger.find_or_add(name, now_ms)
        lent = borrower.loans[name]
        others = [x for x in self._list_loans(name) if x is not lent]
        unused = 0
        if may_lend and use.limit != math.inf:
            unused = int(max(0, use.part - use.in_flight - use.count_needed(now_ms)))
        kept = divide(unused, [lent.demand, *(x.demand for x in others)])[0]
        free = unused - lent.records - sum(x.records for x in others)
        lent.records += max(0, min(kept - lent.records, free))
        per_ms = self._find_unused_per_ms(name, use, now_ms) if may_lend else 0.0
        if lent.is_rate_wanted:
            per_ms /= 1 + sum(x.is_rate_wanted for x in others)
            per_ms = max(
                0.0, min(per_ms, use.part_per_ms - sum(x.find_per_ms(now_ms) for x in others))
            )
            if per_ms:
                lent.leases.append((now_ms + LEASE_MS, per_ms))
        return Loan(name, lent.records, kept, 1000 * per_ms if lent.is_rate_wanted else 0.0)

    def _find_unused_per_ms(self, name: bytes, use: TenantUse, now_ms: int) -> float:
        """Return the part of a tenant's rate that it did not use in the last seconds, in deliveries
        for a millisecond."""
        if not use.part_per_ms or use.is_waiting_for_rate(now_ms):
            self._samples[name] = now_ms, use.deliveries, use.part_per_ms
            return 0.0
        if not use.queues and not use.in_flight:
            return use.part_per_ms
        then_ms, then, used_per_ms = self._samples.get(name, (-_SAMPLE_OLD_MS, 0, 0.0))
        if now_ms - then_ms >= _SAMPLE_OLD_MS:
            used_per_ms = use.part_per_ms
        elif now_ms - then_ms >= _SAMPLE_MS:
            used_per_ms = (use.deliveries - then) / (now_ms - then_ms)
        else:
            return max(0.0, use.part_per_ms - used_per_ms)
        self._samples[name] = now_ms, use.deliveries, used_per_ms
        return max(0.0, use.part_per_ms - used_per_ms)

    def _list_loans(self, name: bytes) -> list[_Lent]:
        return [x.loans[name] for x in self._borrowers.values() if name in x.loans]

    def _apply(self, names: Iterable[bytes], now_ms: int) -> None:
        """Take what is lent off this broker's part."""
        for name in names:
            loans = self._list_loans(name)
            records = sum(lent.records for lent in loans)
            per_ms = sum(lent.find_per_ms(now_ms) for lent in loans)
            self._ledger.find_or_add(name, now_ms).set_lent(records, per_ms, now_ms)


class TenantLoans:
    """What this broker lends and borrows for a group and a topic."""

    def __init__(self, ledger: TenantLedger) -> None:
        self.borrowing = Borrowing(ledger)
        self.lending = Lending(ledger)

    @property
    def is_active(self) -> bool:
        """Whether there is something to ask for, or to count."""
        return self.borrowing.is_active or self.lending.is_active

    def follow(self, leaders: Mapping[int, Leader], *, is_leader: bool, now_ms: int) -> None:
        """Follow the metadata; see `Borrowing.follow`."""
        self.borrowing.follow(leaders, is_leader=is_leader, now_ms=now_ms)
        self.lending.follow(leaders, now_ms)
