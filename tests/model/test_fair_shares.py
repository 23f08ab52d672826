"""Fair groups in virtual time, beside SQS's rule for fair queues and ideal processor sharing.

Workers take a record at a time, as the queue says. SQS's rule serves quiet tenants first, in the
order of arrival. A tenant is noisy if it has more than a tenth of the records in flight and at
least 30 of its own, or more than a tenth of the time that workers spent lately. Processor sharing
divides the workers' time among all tenants with records at each moment, as no real queue can.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest
from shoal.coordinator.share.fair_queue import FairQueue
from shoal.coordinator.share.settings import SelectionPolicy
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenants import ALL_EQUAL, TenantPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORKERS = 100
#: How long SQS's rule remembers processing time, in ms. Its documents name no time.
RECENT_MS = 60_000


class Job(NamedTuple):
    arrival_ms: int
    tenant: str
    work_ms: int


class Queue(Protocol):
    """A queue of jobs by number."""

    def put(self, number: int, job: Job, now_ms: int) -> None: ...
    def take(self, now_ms: int) -> int | None: ...
    def finish(self, number: int, job: Job, now_ms: int) -> None: ...


class Fair:
    """The queue of fair groups."""

    def __init__(self, policy: TenantPolicy = ALL_EQUAL) -> None:
        ledger = TenantLedger()
        ledger.configure(policy, 1, 1, 0)
        self.queue = FairQueue(SelectionPolicy(fairness_by="key"), policy, ledger)

    def put(self, number: int, job: Job, now_ms: int) -> None:
        self.queue.add(number, 0, job.tenant.encode())
        self.queue.push(number, now_ms)

    def take(self, now_ms: int) -> int | None:
        self.queue.begin(now_ms)
        number = self.queue.pop()
        if number is not None:
            self.queue.take(number, now_ms)
        return number

    def finish(self, number: int, job: Job, now_ms: int) -> None:
        self.queue.end([number], now_ms)


class SqsRule:
    """Quiet tenants first."""

    def __init__(self) -> None:
        self.waiting: dict[str, deque[int]] = {}
        self.held: Counter[str] = Counter()
        self.spent: deque[tuple[int, str, int]] = deque()
        self.spent_ms: Counter[str] = Counter()

    def put(self, number: int, job: Job, now_ms: int) -> None:
        self.waiting.setdefault(job.tenant, deque()).append(number)

    def is_noisy(self, tenant: str) -> bool:
        held, total = self.held[tenant], self.held.total()
        if held >= 30 and held > total / 10:
            return True
        return self.spent_ms[tenant] > self.spent_ms.total() / 10 > 0

    def take(self, now_ms: int) -> int | None:
        while self.spent and self.spent[0][0] < now_ms - RECENT_MS:
            _, tenant, used_ms = self.spent.popleft()
            self.spent_ms[tenant] -= used_ms
        queues = [(name, jobs) for name, jobs in self.waiting.items() if jobs]
        if not queues:
            return None
        *_, tenant = min((self.is_noisy(name), jobs[0], name) for name, jobs in queues)
        self.held[tenant] += 1
        return self.waiting[tenant].popleft()

    def finish(self, number: int, job: Job, now_ms: int) -> None:
        self.held[job.tenant] -= 1
        self.spent.append((now_ms, job.tenant, job.work_ms))
        self.spent_ms[job.tenant] += job.work_ms


class FirstIn:
    """A queue without fairness."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()

    def put(self, number: int, job: Job, now_ms: int) -> None:
        self.waiting.append(number)

    def take(self, now_ms: int) -> int | None:
        return self.waiting.popleft() if self.waiting else None

    def finish(self, number: int, job: Job, now_ms: int) -> None:
        """It does not matter whose it is."""


def run(jobs: Sequence[Job], queue: Queue, workers: int = WORKERS) -> list[int]:
    """Return when each job is done, in ms."""
    done = [0] * len(jobs)
    events = [(job.arrival_ms, 0, number) for number, job in enumerate(jobs)]
    heapq.heapify(events)
    idle = workers
    while events:
        now_ms = events[0][0]
        while events and events[0][0] == now_ms:
            _, is_end, number = heapq.heappop(events)
            if is_end:
                done[number], idle = now_ms, idle + 1
                queue.finish(number, jobs[number], now_ms)
            else:
                queue.put(number, jobs[number], now_ms)
        while idle and (taken := queue.take(now_ms)) is not None:
            idle -= 1
            heapq.heappush(events, (now_ms + jobs[taken].work_ms, 1, taken))
    return done


def share_workers(jobs: Sequence[Job], step_ms: int = 10) -> list[float]:
    """Return when each job is done if the workers are shared ideally: each tenant with work gets
    the same, what it can't use goes to others, and a job uses one worker at most."""
    left = [float(job.work_ms) for job in jobs]
    done = [0.0] * len(jobs)
    order = sorted(range(len(jobs)), key=lambda n: jobs[n].arrival_ms)
    waiting: dict[str, deque[int]] = {}
    at, now_ms = 0, 0
    while at < len(order) or any(waiting.values()):
        while at < len(order) and jobs[order[at]].arrival_ms <= now_ms:
            waiting.setdefault(jobs[order[at]].tenant, deque()).append(order[at])
            at += 1
        room, active = float(WORKERS), sorted(filter(None, waiting.values()), key=len)
        for index, queue in enumerate(active):
            share = min(room / (len(active) - index), len(queue))
            room -= share
            unfinished = []
            while share > 0:
                number, part = queue.popleft(), min(1.0, share)
                share -= part
                left[number] -= part * step_ms
                if left[number] > 0:
                    unfinished.append(number)
                else:
                    done[number] = now_ms + step_ms
            queue.extendleft(reversed(unfinished))
        now_ms += step_ms
    return done


def find_waits(jobs: Sequence[Job], done: Sequence[float], tenants: Callable[[str], bool]) -> float:
    """Return the mean time from arrival to the end of the jobs of some tenants, in ms."""
    times = [d - j.arrival_ms for j, d in zip(jobs, done, strict=True) if tenants(j.tenant)]
    return sum(times) / len(times)


def is_quiet(tenant: str) -> bool:
    return not tenant.startswith("noisy")


def make_load(seed: int, *, noisy_ms: int, noisy_count: int) -> list[Job]:
    """One tenant has a backlog of jobs of about `noisy_ms`, 40 others have a few now and then.

    A worker is never taken from a job, so the jobs differ: some workers are free soon.
    """
    draw = random.Random(seed)
    times = range(noisy_ms // 20, 2 * noisy_ms)
    jobs = [Job(0, "noisy", draw.choice(times)) for _ in range(noisy_count)]
    return jobs + [
        Job(draw.randrange(10, 20_000, 10), f"t{n % 40}", draw.choice((100, 200, 400)))
        for n in range(600)
    ]


LOADS = {
    "a large backlog": {"noisy_ms": 200, "noisy_count": 12_000},
    "slow jobs": {"noisy_ms": 5_000, "noisy_count": 500},
}


@pytest.mark.parametrize("name", LOADS)
def test_quiet_tenants_wait_no_longer_than_by_sqs_rule(name: str) -> None:
    jobs = make_load(1, **LOADS[name])
    fair, sqs, plain, ideal = (
        find_waits(jobs, done, is_quiet)
        for done in (
            run(jobs, Fair()),
            run(jobs, SqsRule()),
            run(jobs, FirstIn()),
            share_workers(jobs),
        )
    )
    assert fair <= sqs * 1.01, (fair, sqs)
    assert fair <= 2 * ideal, (fair, ideal)
    assert fair < plain / 2, (fair, plain)


def test_ten_noisy_tenants_do_not_hide_behind_each_other() -> None:
    """None has more than a tenth, so that none is noisy by SQS's rule."""
    draw = random.Random(2)
    jobs = [Job(0, f"noisy{n % 12}", 300) for n in range(6000)]
    jobs += [Job(draw.randrange(10, 10_000, 10), f"t{n % 50}", 100) for n in range(300)]
    fair, sqs = (find_waits(jobs, run(jobs, queue), is_quiet) for queue in (Fair(), SqsRule()))
    assert fair < sqs / 3, (fair, sqs)
    assert fair <= 2 * find_waits(jobs, share_workers(jobs), is_quiet)


def test_one_tenant_is_served_as_without_fairness() -> None:
    draw = random.Random(3)
    jobs = [Job(draw.randrange(1000), "only", draw.randrange(10, 500)) for _ in range(2000)]
    jobs.sort()
    assert run(jobs, Fair(), 7) == run(jobs, FirstIn(), 7)


def test_no_tenant_starves_among_many_and_none_is_above_its_limit() -> None:
    """While all have work, none is two jobs ahead of another in the time that it has got."""
    limit = 3
    jobs = [Job(0, f"t{n % 50}", 50 + n % 50) for n in range(5000)]
    held: Counter[str] = Counter()
    served: Counter[str] = Counter()

    class Checked(Fair):
        def take(self, now_ms: int) -> int | None:
            number = super().take(now_ms)
            if number is not None:
                tenant = jobs[number].tenant
                held[tenant] += 1
                served[tenant] += jobs[number].work_ms
                assert held[tenant] <= limit
                if len(served) == 50 and min(served.values()) < 4500:  # None is done yet.
                    assert max(served.values()) <= min(served.values()) + 2 * 100
            return number

        def finish(self, number: int, job: Job, now_ms: int) -> None:
            held[job.tenant] -= 1
            super().finish(number, job, now_ms)

    assert all(run(jobs, Checked(TenantPolicy(max_in_flight=limit)), 20))
