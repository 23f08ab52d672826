"""Loans between brokers of what tenants may use of a limit, without a network."""

from __future__ import annotations

import random
from typing import Any

import pytest
from shoal.coordinator.share import tenant_loans
from shoal.coordinator.share.tenant_limits import NO_TIME, TenantLedger
from shoal.coordinator.share.tenant_loans import (
    LEASE_MS,
    TENANTS_MAX,
    Leader,
    Loan,
    LoanRequest,
    TenantLoans,
    divide,
)
from shoal.coordinator.share.tenants import TenantPolicy

START_MS = 1_000_000
NAME = b"acme"


class Backlog:
    """The records of a tenant that wait on a broker."""

    def __init__(self) -> None:
        self.records = 0

    def go_on(self) -> None:
        """The cluster offers all records again after each event."""


class Machine:
    """A broker of `Cluster`."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.epoch = 1
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.ledger = TenantLedger()
        self.loans = TenantLoans(self.ledger)
        self.backlogs: dict[bytes, Backlog] = {}


class Cluster:
    """Brokers that send each other requests. A test decides what becomes of each."""

    def __init__(self, policy: TenantPolicy, led: list[int]) -> None:
        self.policy, self.led = policy, led
        self.now_ms = START_MS
        self.machines = [Machine(index) for index in range(len(led))]
        self.delivered = [0] * len(led)
        for machine in self.machines:
            self.follow(machine)

    def follow(self, machine: Machine) -> None:
        """Let a broker see the metadata."""
        led, partitions = self.led[machine.id], sum(self.led)
        machine.ledger.configure(self.policy, led, partitions, self.now_ms)
        leaders = {
            other.id: Leader(other.epoch, self.led[other.id])
            for other in self.machines
            if other is not machine
        }
        machine.loans.follow(leaders, is_leader=led > 0, now_ms=self.now_ms)

    def add(self, index: int, records: int, name: bytes = NAME) -> None:
        """A broker has more records of a tenant."""
        machine = self.machines[index]
        if name not in machine.backlogs:
            machine.backlogs[name] = Backlog()
            machine.ledger.open(name, self.now_ms)
        machine.backlogs[name].records += records
        self.deliver(index)

    def deliver(self, index: int) -> None:
        """Deliver all that limits allow."""
        machine = self.machines[index]
        for name, backlog in machine.backlogs.items():
            use = machine.ledger.uses[name]
            while backlog.records and self.led[index]:
                free_ms = use.find_free_ms(self.now_ms)
                if free_ms:
                    use.note_waiting(0, backlog, free_ms, self.now_ms)
                    machine.ledger.note_waiting(name)
                    break
                backlog.records -= 1
                use.take()
                self.delivered[index] += 1

    def end(self, index: int, records: int) -> None:
        """Members finish records of a broker."""
        use = self.machines[index].ledger.find_or_add(NAME, self.now_ms)
        for _ in range(min(records, use.in_flight)):
            use.give_back()
        self.deliver(index)

    def collect(self, index: int) -> list[tuple[int, LoanRequest]]:
        """Return the requests of a broker that are due."""
        machine = self.machines[index]
        self.follow(machine)
        requests = machine.loans.borrowing.build_requests(self.now_ms)
        return [(index, request) for request in requests]

    def serve(self, index: int, request: LoanRequest) -> list[Loan]:
        """Let the lender decide."""
        lender, epoch = self.machines[request.lender], self.machines[index].epoch
        self.follow(lender)
        loans = lender.loans.lending.lend(
            index,
            epoch,
            request.sequence,
            request.wishes,
            self.now_ms,
            may_lend=self.led[lender.id] > 0 and self.led[index] > 0,
        )
        self.deliver(lender.id)
        return loans

    def answer(self, index: int, request: LoanRequest, loans: list[Loan] | None) -> None:
        """Give the borrower its answer, or none."""
        borrowing = self.machines[index].loans.borrowing
        if loans is None:
            borrowing.on_failure(request)
        else:
            borrowing.on_answer(request, loans, self.now_ms)
        self.deliver(index)

    def pass_seconds(self, seconds: int, ended: int = 0) -> None:
        """Let seconds pass in which nothing is lost, and members end so many records of each
        broker."""
        for _ in range(seconds):
            self.now_ms += 1000
            for index in range(len(self.machines)):
                self.end(index, ended)
                for _, request in self.collect(index):
                    self.answer(index, request, self.serve(index, request))

    @property
    def held(self) -> list[int]:
        """What members hold of the tenant by broker."""
        uses = [machine.ledger.uses.get(NAME) for machine in self.machines]
        return [0 if use is None else use.in_flight for use in uses]

    @property
    def allowances(self) -> list[float]:
        """What brokers allow now of the tenant."""
        ledgers = [machine.ledger for machine in self.machines]
        uses = [ledger.find_or_add(NAME, self.now_ms) for ledger in ledgers]
        return [max(0, use.max_in_flight) for use in uses]


class Post:
    """Requests and answers that are under way, and come in any order."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._requests: list[tuple[int, LoanRequest]] = []
        self._answers: list[tuple[int, LoanRequest, list[Loan] | None]] = []

    def collect(self, index: int) -> None:
        self._requests += self._cluster.collect(index)

    def serve(self, _index: int) -> None:
        if self._requests:
            sent = self._requests.pop(self._rng.randrange(len(self._requests)))
            self._answers.append((*sent, self._cluster.serve(*sent)))

    def answer(self, _index: int) -> None:
        if self._answers:
            index, request, loans = self._answers.pop(self._rng.randrange(len(self._answers)))
            self._cluster.answer(index, request, self._rng.choice((loans, loans, None)))

    def lose(self, _index: int) -> None:
        """The borrower waits no longer for an answer that may still come."""
        if self._requests:
            self._cluster.answer(*self._rng.choice(self._requests), None)

    def empty(self) -> None:
        """All requests come, and no answer."""
        for sent in self._requests:
            self._answers.append((*sent, self._cluster.serve(*sent)))
        for index, request, _ in self._answers:
            self._cluster.answer(index, request, None)


def make_cluster(led: list[int], **limits: Any) -> Cluster:
    return Cluster(TenantPolicy(**limits), led)


def test_a_tenant_on_one_broker_gets_the_whole_limit_and_others_get_their_parts_back() -> None:
    cluster = make_cluster([2, 2, 2], max_in_flight=12)
    cluster.add(0, 100)
    assert cluster.held == [4, 0, 0]
    cluster.pass_seconds(1)
    assert cluster.held == [12, 0, 0]
    cluster.add(1, 100)
    assert cluster.held == [12, 0, 0], "the limit is in use"
    cluster.pass_seconds(3, ended=12)
    assert cluster.held[1] >= 4
    assert sum(cluster.held) == 12
    cluster.pass_seconds(3, ended=12)
    assert cluster.held == [6, 6, 0], "the third broker's part is divided"
    cluster.add(2, 100)
    cluster.pass_seconds(3, ended=12)
    assert cluster.held == [4, 4, 4]


def test_what_a_tenant_does_not_use_returns_after_seconds() -> None:
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 8)
    cluster.pass_seconds(1)
    assert cluster.allowances == [8, 0]
    cluster.end(0, 8)
    cluster.pass_seconds(6)
    assert cluster.allowances == [4, 4]
    assert not any(machine.loans.is_active for machine in cluster.machines)


def test_a_lost_answer_grants_nothing_twice() -> None:
    """The lender has lent, and the borrower states that it has nothing."""
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 20)
    [(index, request)] = cluster.collect(0)
    cluster.serve(index, request)
    cluster.answer(index, request, None)
    assert cluster.allowances == [4, 0]
    cluster.pass_seconds(1)
    assert cluster.allowances == [8, 0]
    assert cluster.held == [8, 0]


def test_a_request_that_another_has_overtaken_is_ignored() -> None:
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 20)
    [(index, late)] = cluster.collect(0)
    cluster.answer(index, late, None)
    cluster.pass_seconds(1)
    assert cluster.serve(index, late) == []
    assert cluster.allowances == [8, 0]


@pytest.mark.parametrize("is_borrower", [False, True])
def test_a_broker_that_registers_again_has_and_lends_nothing(is_borrower: bool) -> None:
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 20)
    cluster.pass_seconds(1)
    machine = cluster.machines[0 if is_borrower else 1]
    machine.epoch += 1
    machine.restart()
    for each in cluster.machines:
        cluster.follow(each)
    assert cluster.allowances == [4, 4]


def test_a_loan_is_no_larger_than_the_part_of_its_lender() -> None:
    """The partitions of the lender move to a third broker."""
    cluster = make_cluster([2, 2, 2], max_in_flight=12)
    cluster.add(0, 100)
    cluster.pass_seconds(1)
    assert cluster.allowances[0] == 12
    for led, allowed in (([2, 1, 3], 4 + 2 + 4), ([2, 0, 4], 4 + 4)):
        cluster.led[:] = led
        for machine in cluster.machines:
            cluster.follow(machine)
        assert cluster.allowances[0] == allowed
    cluster.pass_seconds(2, ended=12)
    assert cluster.held == [12, 0, 0]


def test_a_lender_forgets_who_does_not_wait_any_more() -> None:
    """It had nothing to lend, and would divide what it has by all that asked."""
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 6)
    cluster.add(1, 4)
    cluster.pass_seconds(1)
    assert cluster.held == [4, 4]
    assert cluster.machines[1].loans.lending.is_active
    cluster.end(0, 4)
    cluster.pass_seconds(2)
    assert not cluster.machines[1].loans.lending.is_active


def test_records_that_are_about_to_be_delivered_are_not_lent_away() -> None:
    """Members have finished all, and their next fetch is to come."""
    cluster = make_cluster([1, 1], max_in_flight=8)
    cluster.add(0, 20)
    cluster.add(1, 20)
    lender = cluster.machines[1].ledger.uses[NAME]
    for _ in range(4):
        lender.give_back()
    assert not lender.waiting
    [(_, request)] = cluster.collect(0)
    assert [loan.lent for loan in cluster.serve(0, request)] == [0]


def test_more_waiting_tenants_than_a_request_names_take_turns() -> None:
    cluster = make_cluster([1, 1], max_in_flight=2)
    names = [b"tenant-%d" % number for number in range(2 * TENANTS_MAX + 50)]
    for name in names:
        cluster.add(0, 2, name)
    [(_, request)] = cluster.collect(0)
    assert [wish.name for wish in request.wishes] == names[:TENANTS_MAX]
    cluster.answer(0, request, [Loan(name, 0, 0, 0.0) for name in names[:TENANTS_MAX]])
    [(_, request)] = cluster.collect(0)
    assert [wish.name for wish in request.wishes] == names[TENANTS_MAX : 2 * TENANTS_MAX]


@pytest.mark.parametrize(
    ("amount", "demands", "shares"),
    [(12, [5, 20, 2], [5, 5, 2]), (3, [9, 9], [2, 1]), (0, [1], [0]), (9, [2, 3], [2, 3])],
)
def test_an_amount_is_divided_by_need(amount: int, demands: list[int], shares: list[int]) -> None:
    assert divide(amount, demands) == shares


def test_a_rate_moves_to_the_broker_with_the_work_for_the_time_of_a_lease() -> None:
    """Beside the bursts of the brokers, deliveries are never more than the rate."""
    cluster = make_cluster([1, 3], max_per_second=40.0, burst=16)
    cluster.add(0, 10_000)
    delivered: list[int] = []
    for second in range(14):
        before = sum(cluster.delivered)
        if second == 6:
            cluster.add(1, 10_000)
        for _ in range(100):
            cluster.now_ms += 10
            for index in (0, 1):
                cluster.deliver(index)
        for index in (0, 1):
            for _, request in cluster.collect(index):
                cluster.answer(index, request, cluster.serve(index, request))
        delivered.append(sum(cluster.delivered) - before)
        assert sum(cluster.delivered) <= 16 + 40 * (second + 1)
    assert delivered[3:6] == [40, 40, 40]
    assert delivered[-1] == 40
    assert cluster.machines[0].ledger.uses[NAME].find_free_ms(cluster.now_ms) != NO_TIME
    # Both have their own parts again.
    assert cluster.machines[1].ledger.uses[NAME].lent_per_ms == 0


def test_a_rate_that_is_used_here_is_not_lent() -> None:
    cluster = make_cluster([1, 1], max_per_second=20.0, burst=2)
    cluster.add(0, 10_000)
    for step in range(800):
        cluster.now_ms += 10
        if step % 20 == 0:
            cluster.add(1, 1)
        cluster.deliver(0)
        if step % 100 == 99:
            for _, request in cluster.collect(0):
                cluster.answer(0, request, cluster.serve(0, request))
    lent = 1000 * cluster.machines[1].ledger.uses[NAME].lent_per_ms
    assert lent == pytest.approx(5, abs=0.2)
    assert LEASE_MS > 1000


def test_a_smaller_rate_is_lent_when_the_lease_of_a_larger_one_ends() -> None:
    """The borrower may not get the later answers, and goes on until the end of its lease."""
    cluster = make_cluster([1, 1], max_per_second=20.0, burst=8)
    cluster.add(0, 10_000)
    cluster.pass_seconds(1)
    lender = cluster.machines[1].ledger.uses[NAME]
    lent = []
    for _ in range(6):
        cluster.now_ms += 1000
        cluster.add(1, 1)
        cluster.end(1, 1)
        for _, request in cluster.collect(0):
            cluster.serve(0, request)
            cluster.answer(0, request, None)
        lent.append(1000 * lender.lent_per_ms)
    assert lent == pytest.approx([10, 10, 9, 9, 9, 9])
    cluster.delivered[0] = 0
    for _ in range(100):
        cluster.now_ms += 100
        cluster.deliver(0)
    assert cluster.delivered[0] <= 10 * 10 + 4, "the lease has ended"


def test_a_borrowed_rate_ends_with_its_lease() -> None:
    cluster = make_cluster([1, 1], max_per_second=20.0, burst=8)
    cluster.add(0, 10_000)
    cluster.pass_seconds(1)
    cluster.delivered[0] = 0
    for _ in range(100):
        cluster.now_ms += 100
        cluster.deliver(0)
    own, borrowed = 10 * 10, 10 * LEASE_MS / 1000
    assert own + borrowed - 4 <= cluster.delivered[0] <= own + borrowed + 4


@pytest.mark.parametrize("seed", range(40))
def test_the_sum_never_exceeds_the_limit_whatever_is_lost_or_late(seed: int) -> None:
    """Requests and answers are lost, and come late and in another order."""
    rng = random.Random(seed)
    cluster = make_cluster([2, 1, 3], max_in_flight=12)
    post = Post(cluster, rng)
    for _ in range(400):
        cluster.now_ms += rng.choice((0, 100, 1000))
        index = rng.randrange(3)
        if rng.random() < 0.3:
            rng.choice((cluster.add, cluster.end))(index, rng.randrange(15))
        else:
            rng.choice((post.collect, post.serve, post.answer, post.lose))(index)
        assert sum(cluster.held) <= 12
        assert sum(cluster.allowances) <= 12
    post.empty()
    cluster.pass_seconds(8, ended=12)
    for machine in cluster.machines:
        machine.backlogs.clear()
    cluster.pass_seconds(8, ended=12)
    assert cluster.allowances == [4, 2, 6], "all loans are returned"
    assert tenant_loans.IDLE_MS < 8000
