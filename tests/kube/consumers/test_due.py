"""Which records count as work now: those that are due, not those that wait for a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, configured, resource
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal_operator.brokers.broker_states import GroupState, build_group_state
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.group_metrics import GroupMetrics, parse_group_metrics
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.queues.group_monitor import LAG_AGE_MS_MAX, GroupMonitor, format_due_time
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal_operator.http_access import HttpAccess

LABELS = 'group="g",topic="t",partition="0"'
PAGE = f"""\
shoal_share_partition_unavailable_records{{{LABELS}}} 7
shoal_share_partition_not_due_records{{{LABELS},within="0"}} 7
shoal_share_partition_not_due_records{{{LABELS},within="60"}} 5
shoal_share_partition_not_due_records{{{LABELS},within="600"}} 2
shoal_share_partition_next_due_timestamp_seconds{{{LABELS}}} 1767225600.5
"""
CLUSTER = resource(
    "QueueCluster",
    "main",
    replicas=1,
    listeners=[{"name": "plain", "port": 9092}],
    metrics={"port": 9404},
)
POD = {"template": {"spec": {"containers": [{"name": "a"}]}}}


def numbers(pages: int = 1) -> GroupMetrics:
    return parse_group_metrics([PAGE] * pages)["g"]


def test_numbers_are_summed_over_brokers_and_the_earliest_time_counts() -> None:
    two = numbers(2)
    assert two.unavailable == 14
    assert two.not_due == {0: 14, 60: 10, 600: 4}
    assert two.next_due_s == 1767225600.5
    assert format_due_time(GroupState("g", metrics=two)) == "2026-01-01T00:00:01Z"
    assert format_due_time(GroupState("g")) is None


@pytest.mark.parametrize(("within_s", "due"), [(0, 13), (1, 15), (60, 15), (61, 18), (9999, 18)])
def test_a_start_up_time_is_rounded_up_to_a_time_that_brokers_report(
    within_s: int, due: int
) -> None:
    assert GroupState("g", lag=20, in_flight=3, metrics=numbers()).count_due(within_s) == due


def test_available_is_what_a_fetch_could_get_now() -> None:
    assert GroupState("g", lag=20, in_flight=3, metrics=numbers()).available == 10
    # A record held by a dead letter is in both `stuck` and the broker's number.
    assert GroupState("g", lag=20, in_flight=3, blocked=4, metrics=numbers()).available == 10
    assert GroupState("g", lag=20, in_flight=3, blocked=9, metrics=GroupMetrics()).available == 8


def test_available_records_are_due_even_if_others_are_held_back_twice() -> None:
    """Ten records are available; a hundred are delayed, and behind a dead letter of their key."""
    twice = GroupMetrics(unavailable=101, not_due=Counter({0: 100, 30: 100}))
    assert GroupState("g", lag=111, in_flight=0, blocked=101, metrics=twice).count_due(30) == 10


def test_of_a_paused_group_only_records_in_flight_are_work() -> None:
    paused = GroupMetrics(unavailable=17, hold_reasons=frozenset({"paused"}))
    state = GroupState("g", lag=20, in_flight=3, metrics=paused)
    assert (state.count_due(30), state.available) == (3, 0)


class _About:
    type, state, members = "Share", "Empty", ()


@pytest.mark.parametrize(
    ("code", "known"),
    [(ErrorCode.coordinator_not_available, False), (ErrorCode.group_id_not_found, True)],
)
def test_a_lag_that_a_coordinator_does_not_report_is_unknown(code: ErrorCode, known: bool) -> None:
    assert (
        build_group_state("g", _About(), KafkaError(code, "x"), None, scraped=False).lag_known
        is known
    )


class FixedGroup(Brokers):
    """A group with the test's values, without a broker."""

    def __init__(self) -> None:
        super().__init__("nowhere:1")
        self.answer: GroupState | None = GroupState(
            "workers", "share", lag=20, in_flight=0, metrics=numbers()
        )

    async def describe_share_groups(self, groups: Any, *, of_any_type: bool = False) -> Any:
        del of_any_type
        if self.answer is None:
            raise KafkaError(ErrorCode.request_timed_out, "x")
        return dict.fromkeys(groups, self.answer)


class Shop:
    """One ShareConsumer, its group, and its scaler."""

    def __init__(self, http_access: HttpAccess | None = None, **scaling: Any) -> None:
        self.kube = ApiServer(CrashPoint())
        self.kube.add(CLUSTER)
        group = resource("ShareGroup", "workers", cluster="main", maxRecordLocks=2000)
        self.kube.add(configured(group))
        spec = {"shareGroup": "workers", "deployment": POD, "scaling": scaling}
        self.kube.add(resource("ShareConsumer", "eaters", **spec))
        self.store, self.brokers = self.kube.store(), FixedGroup()
        place = (self.kube, self.store, self.brokers, "n", "main")
        self.monitor = GroupMonitor(*place)
        settings = ChartSettings("b:1", "s:1", "role", "http://o", http_access=http_access)
        self.consumers = ShareConsumerReconciler(*place[:2], self.monitor, "n", "main", settings)

    async def look(self) -> dict[str, Any]:
        """Read the group and decide; return the ShareConsumer's status."""
        try:
            await self.monitor.watch([])
        except KafkaError:
            pass
        await self.consumers.reconcile(["eaters"])
        return self.kube.find("ShareConsumer", "eaters")["status"]


def test_only_records_due_within_the_start_up_time_need_consumers() -> None:
    async def scenario() -> None:
        status = await Shop(targetLagPerReplica=5, startupTime="60s").look()
        assert status["desiredReplicas"] == 3
        assert (status["lag"], status["due"], status["workable"]) == (20, 15, 20)
        assert status["nextDueTime"] == "2026-01-01T00:00:01Z"
        assert "5 more cannot be delivered yet" in status["decision"]
        later = Shop(targetLagPerReplica=5, startupTime="1s")
        later.brokers.answer = GroupState("workers", "share", lag=7, metrics=numbers())
        assert (await later.look())["desiredReplicas"] == 1
        later_s = Counter({0: 7, 30: 7, 60: 6})
        held = GroupMetrics(unavailable=7, not_due=later_s, next_due_s=1767225600)
        later = Shop(targetLagPerReplica=5)
        later.brokers.answer = GroupState("workers", "share", lag=7, metrics=held)
        assert (await later.look())["desiredReplicas"] == 0

    asyncio.run(scenario())


def test_a_lag_that_is_not_known_changes_nothing_and_is_no_signal(
    pass_time: Callable[[int], None],
) -> None:
    async def scenario() -> None:
        shop = Shop(targetLagPerReplica=5)
        assert (await shop.look())["desiredReplicas"] == 3
        assert shop.consumers.get_signal("eaters")["due"] == 15
        shop.brokers.answer = None
        pass_time(LAG_AGE_MS_MAX - 1)
        assert (await shop.look())["lag"] == 20
        pass_time(5_000)
        status = await shop.look()
        assert (status["desiredReplicas"], status["decision"]) == (3, "the lag is unknown")
        assert "lag" not in status
        assert shop.consumers.get_signal("eaters") == {
            "desiredReplicas": 3,
            "ceiling": 4,
            "replicas": 0,
            "readyReplicas": 0,
        }

    asyncio.run(scenario())


def test_a_standby_replica_repeats_the_status_while_another_leads() -> None:
    async def scenario() -> None:
        shop = Shop()
        await shop.look()
        another_leads = False
        settings = ChartSettings("b:1", "s:1", "role", "http://o")
        operator = Operator(shop.kube, settings, another_leads=lambda: another_leads)
        try:
            for found in shop.kube.all("ShareConsumer") + shop.kube.all("ShareGroup"):
                operator.store.put(found)
            assert operator.get_signal("n", "nobody") is None
            assert "lag" not in (operator.get_signal("n", "eaters") or {})
            another_leads = True
            assert (operator.get_signal("n", "eaters") or {})["lag"] == 20
        finally:
            await operator.close()

    asyncio.run(scenario())


def test_new_records_of_a_group_with_a_delay_count_once_their_delays_are_read(
    pass_time: Callable[[int], None],
) -> None:
    """A broker reads them every second. Until then, records that are due tomorrow look like work,
    and started consumers."""
    tomorrow = GroupMetrics(delayed=20, unavailable=20, not_due=Counter({0: 20, 600: 20}))

    async def scenario(delay: dict[str, str] | None) -> list[int]:
        shop = Shop(targetLagPerReplica=1, startupTime="1s")
        group = {"cluster": "main", "maxRecordLocks": 2000, **({"delay": delay} if delay else {})}
        shop.kube.add(configured(resource("ShareGroup", "workers", **group), generation=2))
        shop.store.put(shop.kube.find("ShareGroup", "workers"))
        found = []
        for seconds, lag, metrics in (
            (0, 0, GroupMetrics()),
            (2, 20, GroupMetrics()),  # Its delays are not read yet.
            (2, 20, tomorrow),
            (2, 25, tomorrow),  # Five more, which may be due.
            (2, 25, tomorrow),
        ):
            pass_time(seconds * 1000)
            shop.brokers.answer = GroupState("workers", lag=lag, in_flight=0, metrics=metrics)
            await shop.look()
            found.append(shop.consumers.get_signal("eaters")["due"])
        return found

    assert asyncio.run(scenario({"max": "48h"})) == [0, 0, 0, 0, 5]
    assert asyncio.run(scenario(None)) == [0, 20, 0, 5, 5]
