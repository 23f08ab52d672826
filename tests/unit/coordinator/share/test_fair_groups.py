"""Groups that are fair between tenants: whose record comes next, and what a tenant may not exceed.

`tests/model/test_fair_queue_model.py` has the order in all combinations.
"""

from __future__ import annotations

import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from shoal.coordinator.share import compiled, fair_queue
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.batches import Batches, scan
from shoal.coordinator.share.compiled_fair_queue import CompiledFairQueue, make_fair_queue
from shoal.coordinator.share.fair_queue import IDLE_KEPT_MAX, QUANTA, FairQueue
from shoal.coordinator.share.reach import Reach
from shoal.coordinator.share.selection import Selection, open_lock
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.coordinator.share.states import ACQUIRED
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenants import ALL_EQUAL, NAME_BYTES_MAX
from shoal.metadata.config_keys import ConfigError
from shoal.metadata.configs import GROUP
from shoal.record.records import build_batch
from shoal.server.share import selection_fetch
from shoal.server.share.group_settings import build_selection_policy, build_tenant_policy
from support.brokers.share_leaders import LogLeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOW_MS = 1_000_000
BY_KEY = {"share.fairness.by": "key"}


def make_settings(configs: dict[str, str]) -> ShareSettings:
    """Return the settings of a group with these configs."""
    config = {key.name: key.default for key in GROUP.values()}
    config |= {name: GROUP[name].parse(text) for name, text in configs.items()}
    return ShareSettings(
        selection=build_selection_policy(config), tenants=build_tenant_policy(config)
    )


class Group:
    """A share partition of a fair group that has scanned a log."""

    def __init__(
        self, configs: dict[str, str], records: Sequence[Any], ledger: TenantLedger | None = None
    ) -> None:
        """`records` are keys, or pairs of a key and headers. A `ledger` is one that has limits."""
        self.settings = make_settings(configs)
        assert self.settings.selection is not None
        self.share = SharePartition(0)
        self.ledger = ledger or TenantLedger()
        if ledger is None:
            self.ledger.configure(self.settings.tenants, 1, 1, NOW_MS)
        self.selection = Selection(
            self.share, self.settings.selection, self.settings.tenants, self.ledger
        )
        self.now_ms, self.numbers = NOW_MS, 0
        self.batches = make_batches(records)
        self.scan(self.batches)

    def scan(self, batches: Batches) -> None:
        self.selection.scan(self.now_ms, 1 << 20, self.settings, batches)

    def configure(self, configs: dict[str, str]) -> None:
        """Change the group's limits."""
        self.settings = make_settings(configs)
        self.ledger.configure(self.settings.tenants, 1, 1, self.now_ms)
        self.fair.configure(self.settings.tenants)

    @property
    def fair(self) -> FairQueue:
        assert self.selection.fair is not None
        return self.selection.fair

    def fetch(self, count: int) -> list[int]:
        """Acquire records, and return their offsets."""
        self.selection.end_delays(self.now_ms)
        chosen, _ = self.selection.choose(count, self.settings, self.now_ms)
        self.numbers += 1
        records, _ = self.selection.lock(
            chosen, self.numbers, self.batches, self.settings, self.now_ms
        )
        if chosen:
            deadline_ms = self.now_ms + 86_400_000
            open_lock(
                self.share,
                self.numbers,
                "m",
                deadline_ms,
                records,
                len(chosen),
                now_ms=self.now_ms,
            )
        return chosen

    def settle(self, offset: int, kind: bytes = b"\1") -> None:
        """Accept (1) or release (2) a record."""
        outcome = self.share.acknowledge(self.now_ms, "m", [(offset, offset, kind)], self.settings)
        assert not outcome.error
        self.selection.apply_changes(outcome.changes, self.now_ms)


def make_batches(records: Sequence[Any], base: int = 0) -> Batches:
    pairs = [r if isinstance(r, tuple) else (r, ()) for r in records]
    rows = [(NOW_MS, key, b"x", list(headers)) for key, headers in pairs]
    return scan(bytes(build_batch(rows, base_offset=base)), base)


def test_a_quiet_tenant_does_not_wait_for_a_backlog() -> None:
    group = Group(BY_KEY, [b"noisy"] * 50 + [b"quiet"])
    assert group.fetch(2) == [0, 50]


def test_a_group_without_fairness_hands_out_the_log() -> None:
    assert make_settings({}).selection is None
    group = Group({"share.delay.max.ms": "1"}, [b"noisy"] * 50 + [b"quiet"])
    assert group.fetch(2) == [0, 1]


def test_one_tenant_gets_its_records_in_order() -> None:
    group = Group(BY_KEY, [b"only"] * 20)
    assert [group.fetch(3) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_large_fetch_compares_tenants_by_quanta_and_takes_neighbours() -> None:
    """Of 80 records, 10 make a quantum. The tenants' records alternate in the log."""
    group = Group(BY_KEY, [b"a", b"b", b"c"] * 10 + [b"a"] * 100 + [b"quiet"])
    assert group.fetch(1) == [0]
    chosen = group.fetch(80)
    assert chosen[:10] == list(range(1, 11)), "they lie side by side"
    assert 130 in chosen, "nothing of it was at a member"
    assert len(chosen) == 80


def test_a_quantum_is_the_most_that_a_large_fetch_lets_a_tenant_be_ahead() -> None:
    group = Group(BY_KEY, [b"a"] * 500 + [b"b"] * 500 + [b"c"] * 500)
    for _ in range(5):
        group.fetch(80)
        counts = [0, 0, 0]
        for offset in range(1500):
            run = group.share.runs.find_run(offset)
            counts[offset // 500] += group.share.runs.states[run] == ACQUIRED
        assert max(counts) - min(counts) <= 80 // QUANTA


def test_a_tenant_with_nothing_at_members_comes_first_in_a_large_fetch() -> None:
    """Also behind many others that have as little."""
    group = Group(BY_KEY, [b"a"] * 500 + [b"t%d" % n for n in range(90)])
    assert group.fetch(100) == [*range(12), *range(500, 588)]
    assert set(group.fetch(100)) >= {588, 589}


def test_large_fetches_serve_a_new_tenant_once_the_other_idle_ones_had_a_turn() -> None:
    """Each fetch of 64 serves a quantum of them, which is 8. The log would take 78 fetches."""
    group = Group(BY_KEY, [b"t%d" % n for n in range(100)] * 50 + [b"new"])
    fetches: list[list[int]] = [[]]
    while 5000 not in fetches[-1]:
        for offset in fetches[-1]:
            group.settle(offset)
        fetches.append(group.fetch(64))
    assert len(fetches) - 1 <= 1 + 101 // 8


def test_tenants_are_named_by_a_header_and_the_rest_share_one() -> None:
    named = [(b"k", [("customer", name)]) for name in (b"a", b"a", b"b", b"b")]
    group = Group({"share.fairness.by": "header:customer"}, [b"k", b"j", *named])
    assert group.fetch(3) == [0, 2, 4]
    assert group.fetch(3) == [1, 3, 5]


def test_weights_share_the_workers() -> None:
    configs = {**BY_KEY, "share.fairness.weights": "big:3,records:of:one:2"}
    group = Group(configs, [b"small"] * 20 + [b"big"] * 20 + [b"records:of:one"] * 20)
    chosen = group.fetch(12)
    counts = [sum(low <= o < low + 20 for o in chosen) for low in (0, 20, 40)]
    assert counts == [2, 6, 4]


def test_a_tenant_with_slow_jobs_is_no_cheaper_than_one_with_many() -> None:
    """One worker: in ten times the time, the tenant with fast jobs gets ten times the records."""
    group = Group(BY_KEY, [b"slow"] * 50 + [b"fast"] * 500)
    done = [0, 0]
    for _ in range(220):
        (offset,) = group.fetch(1)
        group.now_ms += 100 if offset < 50 else 10
        group.settle(offset)
        done[offset >= 50] += 1
    assert done[1] == pytest.approx(10 * done[0], rel=0.1)


def test_a_tenant_is_not_overtaken_forever_by_new_ones() -> None:
    """It has used an hour while others waited, and a new tenant comes for each that is served."""
    group = Group(BY_KEY, [b"waiting"] * 2 + [b"new"])
    assert group.fetch(1) == [0]
    group.now_ms += 3_600_000
    group.settle(0)
    served: list[int] = []
    while 1 not in served:
        served += group.fetch(1)
        group.now_ms += 50
        group.settle(served[-1])
        end = group.share.end_offset
        group.scan(make_batches([b"new-%d" % end], end))
    assert 1000 <= len(served) < 2500, "it has used more than the others, up to a minute"


def test_a_released_record_is_charged_and_comes_again() -> None:
    group = Group(BY_KEY, [b"a", b"b", b"b"])
    assert group.fetch(1) == [0]
    group.now_ms += 500
    group.settle(0, b"\2")
    assert group.fetch(1) == [1]
    assert group.fetch(1) == [0]


def test_priority_counts_inside_a_tenant() -> None:
    urgent = [("p", b"9")]
    group = Group(
        {**BY_KEY, "share.priority.header": "p"},
        [(b"noisy", []), (b"noisy", urgent), (b"quiet", []), (b"noisy", urgent)],
    )
    assert group.fetch(2) == [1, 2]
    assert group.fetch(2) == [0, 3]


def test_the_key_keeps_its_order_while_the_header_names_the_tenant() -> None:
    ordered = [(key, [("t", tenant)]) for key, tenant in ((b"k", b"a"), (b"k", b"a"), (b"j", b"b"))]
    group = Group({"share.fairness.by": "header:t", "share.ordering": "key"}, ordered)
    assert group.fetch(3) == [0, 2]
    group.settle(0)
    assert group.fetch(3) == [1]


def test_the_window_of_known_records_is_bounded_and_says_so() -> None:
    """Beyond `share.fairness.lookahead.records`, no tenant is seen, and records are delivered."""
    configs = {**BY_KEY, "share.fairness.lookahead.records": "1000"}
    group = Group(configs, [b"noisy"] * 1000)
    selection = group.selection
    assert selection.is_fairness_limited
    assert not selection.needs_scan(1, 5000)
    assert selection.find_exhausted_config() is None
    assert selection.count_available(5000) == 5000
    group.fetch(1)
    assert not selection.is_fairness_limited
    assert selection.needs_scan(1, 5000)


@pytest.mark.parametrize("limits", [{}, {"share.tenant.max.in.flight": "1000"}])
def test_what_the_queue_leaves_of_200_bytes_a_record_is_for_reads(limits: dict[str, str]) -> None:
    """With limits the queue is one of objects."""
    group = Group({**BY_KEY, **limits}, [b"%d" % n for n in range(1000)])
    group.selection.keep_read(group.batches)
    assert group.fair.size_bytes >= 1000 * 50
    assert group.selection.read_cache.bytes_max == 200 * 100_000 - group.fair.size_bytes


@pytest.mark.parametrize("header", ["", "p"])
def test_a_record_ahead_takes_less_than_200_bytes(header: str) -> None:
    policy = SelectionPolicy(fairness_by="key", priority_header=header)
    queue = FairQueue(policy, ALL_EQUAL, TenantLedger())
    names, count = [b"tenant-%d" % n for n in range(100)], 20_000
    offsets = [(1 << 40) + n for n in range(count)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for offset in offsets:
        queue.add(offset, 0, names[offset % 100])
        queue.push(offset, NOW_MS)
    used = tracemalloc.get_traced_memory()[0] - before + count * sys.getsizeof(offsets[0])
    tracemalloc.stop()
    assert len(queue) == count
    assert used / count <= 200, used / count


@pytest.mark.skipif(compiled.native is None, reason="there is no C compiler")
def test_100_000_tenants_take_less_than_200_bytes_each() -> None:
    """Each has one record, which is the most memory for a record."""
    queue = make_fair_queue(SelectionPolicy(fairness_by="key"), ALL_EQUAL, TenantLedger())
    assert isinstance(queue, CompiledFairQueue)
    count, records = 100_000, 0
    while records < count:
        keys = [b"tenant-%06d" % n for n in range(records, records + 1000)]
        assert queue.put_new(make_batches(keys, records), records, 1000) == 1
        records += 1000
    assert len(queue) == len(queue.list_names()) == count
    assert queue.size_bytes / count <= 200, queue.size_bytes / count


@pytest.mark.parametrize("make", [FairQueue, make_fair_queue])
def test_tenants_that_are_gone_are_forgotten(make: Callable[..., FairQueue]) -> None:
    """Those that have used most are remembered, up to a bound."""
    queue = make(SelectionPolicy(fairness_by="key"), ALL_EQUAL, TenantLedger())
    for n in range(3 * IDLE_KEPT_MAX):
        now_ms = NOW_MS + n
        queue.begin(now_ms)
        queue.add(n, 0, b"%d" % n)
        queue.push(n, now_ms)
        assert queue.pop() == n
        queue.take(n, now_ms)
        queue.end([n], now_ms + n % 7 * 1000)
    assert len(queue.list_names()) <= 2 * IDLE_KEPT_MAX + 1


def test_a_long_name_is_cut_and_stays_a_name_of_its_own() -> None:
    one, other = b"x" * 5000 + b"1", b"x" * 5000 + b"2"
    group = Group(BY_KEY, [one, one, other])
    assert group.fetch(2) == [0, 2]
    assert all(len(name) <= NAME_BYTES_MAX for name in group.fair.list_names())


def test_a_tenant_has_at_most_its_limit_in_flight() -> None:
    limits = {
        "share.tenant.max.in.flight": "2",
        "share.tenant.max.in.flight.overrides": "big:5,all:0",
    }
    group = Group({**BY_KEY, **limits}, [b"small"] * 10 + [b"big"] * 10 + [b"all"] * 10)
    got = group.fetch(30)
    assert [sum(low <= o < low + 10 for o in got) for low in (0, 10, 20)] == [2, 5, 10]
    assert group.fetch(30) == []
    assert not group.selection.may_choose()
    group.settle(0)
    group.settle(11, b"\2")
    assert group.fetch(30) == [2, 11]


def test_a_limit_also_counts_the_next_records_of_a_key() -> None:
    configs = {
        **BY_KEY,
        "share.ordering": "key",
        "share.ordering.key.batch": "10",
        "share.tenant.max.in.flight": "3",
    }
    assert Group(configs, [b"a"] * 10 + [b"b"]).fetch(20) == [0, 1, 2, 10]


def test_records_that_were_not_read_count_no_more() -> None:
    limits = {"share.tenant.max.in.flight": "1", "share.tenant.max.per.second": "1"}
    group = Group({**BY_KEY, **limits}, [b"a"] * 3)
    chosen, _ = group.selection.choose(5, group.settings, group.now_ms)
    assert chosen == [0]
    group.selection.put_back(chosen, group.now_ms)
    assert group.fetch(5) == [0]


def test_a_rate_holds_with_its_burst() -> None:
    limits = {
        "share.tenant.max.per.second": "10",
        "share.tenant.max.per.second.burst": "3",
        "share.tenant.max.per.second.overrides": "free:0",
    }
    group = Group({**BY_KEY, **limits}, [b"a"] * 100 + [b"free"] * 20)
    assert [o for o in group.fetch(100) if o < 100] == [0, 1, 2]
    assert group.selection.next_due_ms == group.now_ms + 100
    got = 3
    for _ in range(200):
        group.now_ms += 10
        got += len(group.fetch(100))
    assert got == 3 + 20
    group.now_ms += 60_000
    assert len(group.fetch(100)) == 3


def test_a_burst_is_a_second_of_the_rate_by_default() -> None:
    group = Group({**BY_KEY, "share.tenant.max.per.second": "7"}, [b"a"] * 100)
    assert len(group.fetch(100)) == 7
    slow = Group({**BY_KEY, "share.tenant.max.per.second": "0.5"}, [b"a"] * 100)
    assert len(slow.fetch(100)) == 1
    assert slow.selection.next_due_ms == slow.now_ms + 2000


def test_a_paused_tenant_waits_until_it_is_resumed() -> None:
    paused = {"share.tenant.paused": "a"}
    group = Group({**BY_KEY, **paused}, [b"a"] * 3 + [b"b"])
    assert group.fetch(10) == [3]
    assert group.selection.is_behind_limit(0)
    assert group.selection.count_available(4) == 0
    group.configure(BY_KEY)
    assert group.fetch(10) == [0, 1, 2]


def test_only_what_limits_allow_counts_as_available() -> None:
    group = Group({**BY_KEY, "share.tenant.max.in.flight": "4"}, [b"a"] * 500 + [b"b"] * 3)
    assert group.selection.count_available(503) == 7
    group.fetch(2)
    assert group.selection.count_available(503) == 5


def test_what_no_limit_allows_is_not_due() -> None:
    """An autoscaler starts no consumers for it. Of a rate, what it allows until then is due."""
    limits = {
        "share.tenant.max.in.flight.overrides": "held:4",
        "share.tenant.max.per.second.overrides": "metered:10",
        "share.tenant.max.per.second.burst": "3",
        "share.tenant.paused": "paused",
    }
    records = [b"held"] * 50 + [b"metered"] * 100 + [b"paused"] * 7 + [b"free"] * 20
    group = Group({**BY_KEY, **limits}, records)
    group.now_ms += 2000
    times_ms = [group.now_ms + ms for ms in (0, 2000, 60_000)]
    assert group.selection.count_not_due(times_ms, 177) == [150, 130, 53]
    assert group.selection.count_available(177) == 177 - 150


def test_partitions_of_a_broker_count_the_room_of_a_shared_limit_once() -> None:
    configs = {**BY_KEY, "share.tenant.max.in.flight": "3"}
    one = Group(configs, [b"a"] * 5)
    groups = [one, Group(configs, [b"a"] * 2, one.ledger), Group(configs, [b"a"] * 5, one.ledger)]

    def count() -> list[tuple[int, int]]:
        known = [group.selection for group in groups]
        return [(s.count_available(0), s.count_not_due([NOW_MS], 0)[0]) for s in known]

    assert count() == [(3, 2), (0, 2), (0, 5)]
    assert one.fetch(2) == [0, 1]
    assert count() == [(1, 2), (0, 2), (0, 5)]
    assert one.fetch(9) == [2]
    for offset in (0, 1, 2):
        one.settle(offset)
    assert one.fetch(1) == [3]
    assert count() == [(1, 0), (1, 1), (0, 5)]
    one.selection.close()
    assert sum(available for available, _ in count()[1:]) == 3


def test_records_behind_a_full_window_count_as_those_in_it() -> None:
    """Nobody knows their tenants yet."""
    configs = {**BY_KEY, "share.fairness.lookahead.records": "1000"}
    group = Group({**configs, "share.tenant.max.in.flight": "4"}, [b"noisy"] * 1000)
    assert group.selection.count_available(5000) == 4 + 16
    assert group.selection.count_not_due([NOW_MS], 5000) == [996 + 3984]


def test_records_behind_the_limits_of_many_tenants_are_counted_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scrape of metrics looks at so many tenants that others do not wait for it."""
    names = [b"%d" % number for number in range(25)]
    group = Group({**BY_KEY, "share.tenant.max.in.flight": "1"}, names * 3)
    assert group.fair.behind_limits == 50
    monkeypatch.setattr(fair_queue, "TENANTS_VISITED_MAX", 10)
    assert [group.fair.behind_limits for _ in range(3)] == [20, 40, 50]
    assert [group.fair.behind_limits for _ in range(3)] == [50] * 3


def test_share_partitions_of_a_broker_share_a_limit() -> None:
    """What one gives back, another may use at once."""
    configs = {**BY_KEY, "share.tenant.max.in.flight": "3"}
    one = Group(configs, [b"a"] * 5)
    other = Group(configs, [b"a"] * 5, one.ledger)
    woken: list[str] = []
    other.fair.wake = lambda: woken.append("other")
    assert len(one.fetch(2)) == 2
    assert len(other.fetch(5)) == 1
    assert not other.selection.may_choose()
    one.settle(0)
    assert woken
    assert len(other.fetch(5)) == 1
    one.selection.close()
    assert len(other.fetch(5)) == 1


@pytest.mark.parametrize(
    ("limit", "led"),
    [(10, [1, 2, 5]), (8, [8]), (2, [1, 1, 1, 5]), (7, [3, 5]), (98, [1] * 49), (58, [7, 13, 9])],
)
def test_the_parts_of_brokers_exceed_a_limit_by_one_record_each_at_most(
    limit: int, led: list[int]
) -> None:
    settings = make_settings({**BY_KEY, "share.tenant.max.in.flight": str(limit)})
    parts = []
    for count in led:
        ledger = TenantLedger()
        ledger.configure(settings.tenants, count, sum(led), NOW_MS)
        parts.append(ledger.open(b"a", NOW_MS).max_in_flight)
    assert parts == [max(1, limit * count // sum(led)) for count in led]
    assert sum(parts) <= max(limit, limit + sum(part == 1 for part in parts) - 1)
    if limit >= sum(led):
        assert sum(parts) <= limit


@pytest.mark.parametrize(("rate", "burst", "bursts"), [(40, 4, 4), (2, 1, 2), (0.8, 0, 2)])
def test_the_parts_of_brokers_add_up_to_the_rate(rate: float, burst: int, bursts: int) -> None:
    """Beside a burst, which is at least one delivery for each broker."""
    name = "share.tenant.max.per.second"
    settings = make_settings({**BY_KEY, name: str(rate), f"{name}.burst": str(burst)})
    got = 0
    for led in (1, 3):
        ledger = TenantLedger()
        ledger.configure(settings.tenants, led, 4, NOW_MS)
        use = ledger.open(b"a", NOW_MS)
        for now_ms in range(NOW_MS, NOW_MS + 10_000, 5):
            while not use.find_free_ms(now_ms):
                use.take()
                got += 1
    assert bursts + 10 * rate - 2 <= got <= bursts + 10 * rate


def test_a_new_selection_counts_what_members_hold() -> None:
    """Its group's configs changed: the records are scanned again."""
    configs = {**BY_KEY, "share.tenant.max.in.flight": "3"}
    group = Group(configs, [b"a"] * 9)
    assert group.fetch(2) == [0, 1]
    group.selection.close()
    policy = group.settings.selection
    assert policy is not None
    group.selection = Selection(group.share, policy, group.settings.tenants, group.ledger)
    group.scan(group.batches)
    assert group.fetch(9) == [2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("share.fairness.by", "header:"),
        ("share.fairness.by", "value"),
        ("share.fairness.weights", "a"),
        ("share.fairness.weights", "a:0"),
        ("share.fairness.weights", "a:1_0"),
        ("share.fairness.weights", "a:nan"),
        ("share.fairness.weights", "a:b"),
        ("share.tenant.max.in.flight.overrides", "a"),
        ("share.tenant.max.per.second.overrides", "a:-1"),
    ],
)
def test_invalid_configs_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        GROUP[name].parse(text)


def test_a_fetch_gives_up_records_of_the_log_s_end_only_in_turn() -> None:
    """It reads in few places. The choice ends there, and not with the last records of the log."""
    group = Group(BY_KEY, [b"t%d" % n for n in range(100)])
    reach = Reach(10, 3)
    chosen, _ = group.selection.choose(100, group.settings, group.now_ms, reach)
    assert chosen == list(range(30))
    chosen, _ = group.selection.choose(100, group.settings, group.now_ms, Reach(10, 3))
    assert chosen == list(range(30, 60))


def test_a_first_limit_counts_what_members_hold() -> None:
    """The queue in C has no limits, so another one reads the log from the first record in flight.
    A move of 100,000 tenants would be one turn of a second."""
    rows: list[Any] = [(NOW_MS, b"ab"[n % 2 : n % 2 + 1], b"v", []) for n in range(20)]
    log = bytes(build_batch(rows))
    share = SharePartition(0)
    leader = LogLeader(share, lambda *_: (log, len(rows)), lambda: len(rows), record_size=80)
    limited = make_settings({**BY_KEY, "share.tenant.max.in.flight": "3"})

    def fetch(settings: ShareSettings, count: int) -> list[int]:
        wanted = AcquireRequest("m", count, count)
        _, result = selection_fetch.fetch(leader, wanted, 1 << 20, settings, NOW_MS)
        return [o for first, last, _ in result.records for o in range(first, last + 1)]

    def accept(offset: int) -> None:
        result = share.acknowledge(NOW_MS, "m", [(offset, offset, b"\1")], limited)
        assert leader.selection is not None
        leader.selection.apply_changes(result.changes, NOW_MS)

    assert fetch(make_settings(BY_KEY), 6) == [0, 1, 2, 3, 4, 5]
    assert fetch(limited, 6) == []
    accept(2)
    assert fetch(limited, 6) == [6]
    accept(1)
    accept(3)
    assert fetch(limited, 6) == [7, 9]
