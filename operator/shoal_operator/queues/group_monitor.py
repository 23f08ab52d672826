"""Lag, members and metrics of share groups: for statuses, the operator's metrics and the scaler.

`watch` reads the groups that ShareConsumers scale by every `WATCH_SECONDS`, and all others at a
multiple of that.
"""

from __future__ import annotations

import contextlib
import datetime
import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError

from shoal_operator import clock, metrics
from shoal_operator.brokers.batch_reconciler import find_owners
from shoal_operator.kube import failures
from shoal_operator.kube.conditions import is_seen
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model import hibernation
from shoal_operator.model.groups import get_group_id
from shoal_operator.model.resources.share_consumer import ShareConsumer
from shoal_operator.model.resources.share_group import ShareGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal_operator.brokers.broker_states import GroupState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.idle_members import MemberHolding
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.resources.share_group import ShareGroupStatusPatch

#: Seconds between reads of the groups that ShareConsumers scale by.
WATCH_SECONDS = 2.0
#: All other groups are read at every second call, and at fewer calls per `WATCH_GROUPS` groups.
WATCH_ALL_EVERY = 2
WATCH_GROUPS = 100
#: The shortest time between two status updates that carry measurements only.
STATUS_SECONDS = 5.0
PARTITIONS_IN_STATUS_MAX = 100
#: Brokers read the delays of new records every second, also without members.
SCANNED_MS = 2_000
#: A lag older than this is unknown; groups that are scaled are read every few seconds.
LAG_AGE_MS_MAX = 20_000
#: The shortest time over which a rate of redeliveries is computed.
RATE_INTERVAL_MS = 60_000
#: The metrics of a group are removed when its lag is older than this.
FORGET_MS = 300_000


class RedeliveryRates:
    """Redeliveries per minute by share group, from counters that restart with their brokers.

    Remembers a count of records by group, and when it was read.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def record(self, group: str, count: int, now_ms: int) -> None:
        """Record a counter's value; -1 means that no broker reported it."""
        previous = self._since.get(group)
        if count >= 0 and (previous is None or count < previous[0]):
            self._since[group] = (count, now_ms)

    def compute_per_minute(self, group: str, count: int, now_ms: int) -> int | None:
        """Return the rate since the last call that returned one.

        The result is None within `RATE_INTERVAL_MS` of that call, and without a recorded count.
        """
        previous = self._since.get(group)
        if count < 0 or previous is None or now_ms - previous[1] < RATE_INTERVAL_MS:
            return None
        self._since[group] = (count, now_ms)
        return max(0, round((count - previous[0]) * RATE_INTERVAL_MS / (now_ms - previous[1])))


class GroupMonitor:
    """The share groups of one cluster as they were read last.

    Subscribers get the names of the ShareGroups that were read or reconciled.
    """

    def __init__(
        self, kube: KubeClient, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._store, self._brokers = store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = StatusWriter(kube, store)
        self._subscribers: list[Callable[[list[str]], None]] = []
        self._calls = 0
        self._redelivery_rates = RedeliveryRates()
        self._read_ms: dict[str, int] = {}
        #: By group with a delay: times and lags of the last `SCANNED_MS`, and the one before.
        self._lags: dict[str, deque[tuple[int, int]]] = {}
        #: Timestamps of the oldest records, by id of the groups whose consumers scale by age.
        self._oldest_ms: dict[str, int] = {}
        #: The last known state by group id.
        self.states: dict[str, GroupState] = {}

    def subscribe(self, subscriber: Callable[[list[str]], None]) -> None:
        """Call `subscriber` with the names of ShareGroups whose state or status is new."""
        self._subscribers.append(subscriber)

    def notify(self, groups: Iterable[ShareGroup]) -> None:
        """Notify the subscribers about these ShareGroups."""
        changed = [group["metadata"]["name"] for group in groups]
        for subscriber in self._subscribers:
            subscriber(changed)

    async def watch(self, _: list[str]) -> float | None:
        """Read the groups that are due and write their statuses.

        Raises `ClientError` and, after all statuses, the first of their errors.
        """
        groups = self._store.list_of_cluster(ShareGroup, self._namespace, self._cluster)
        by_id = find_owners(groups, get_group_id)
        is_full = self._calls % (WATCH_ALL_EVERY + len(by_id) // WATCH_GROUPS) == 0
        self._calls += 1
        consumers = list_consumer_groups(self._store, self._namespace, self._cluster)
        scaled = {group for _, group in consumers}
        due = {g: o for g, o in by_id.items() if is_full or o["metadata"]["name"] in scaled}
        cluster = self._store.get_cluster(self._namespace, self._cluster)
        stopped = cluster is not None and hibernation.is_hibernated(cluster)
        if not due or cluster is None or cluster["spec"].get("paused") or stopped:
            self._forget_stale(by_id)
            return None
        try:
            await self.read(sorted(due))
            await self._read_ages(due)
        finally:
            self._forget_stale(by_id)
            # After a failure too: nothing may scale by a lag that is no longer known.
            self.notify(due.values())
        await failures.complete_all(
            self._statuses.update_measurements(
                resource, self.build_status_fields(resource, self.states[group]), STATUS_SECONDS
            )
            for group, resource in due.items()
            if is_seen(resource)
        )
        return None

    async def read(self, groups: list[str], *, of_any_type: bool = False) -> None:
        """Read these groups, by group id, from the brokers. Raises `ClientError`."""
        now_ms = clock.now_ms()
        states = await self._brokers.describe_share_groups(groups, of_any_type=of_any_type)
        delayed = self._list_delayed_groups()
        for group, state in states.items():
            self._redelivery_rates.record(group, state.redelivered, now_ms)
            if state.lag_known and group in delayed:
                state = replace(state, new=self._count_new(group, state.lag, now_ms))
            if state.lag_known or group not in self.states:
                self.states[group] = state
            if state.lag_known:
                self._read_ms[group] = now_ms

    async def _read_ages(self, groups: Mapping[str, ShareGroup]) -> None:
        """Read the oldest records of groups whose consumers have `scaling.targetRecordAge`."""
        targeted_groups = {
            consumer["spec"]["shareGroup"]
            for consumer in self._store.iterate(ShareConsumer)
            if consumer["metadata"]["namespace"] == self._namespace
            and consumer["spec"].get("scaling", {}).get("targetRecordAge")
        }
        for group, resource in groups.items():
            if resource["metadata"]["name"] not in targeted_groups:
                continue
            self._oldest_ms.pop(group, None)
            partitions = self.states[group].partitions
            starts = {(p.topic, p.partition): p.start_offset for p in partitions if p.lag > 0}
            # Without the age, the lag alone counts.
            with contextlib.suppress(ClientError):
                oldest_ms = await self._brokers.find_oldest_record_ms(starts) if starts else None
                if oldest_ms is not None:
                    self._oldest_ms[group] = oldest_ms

    def get_oldest_age_ms(self, group: str) -> int:
        """Return the age of a group's oldest record that is not completed; -1 if unknown."""
        oldest_ms = self._oldest_ms.get(group)
        return -1 if oldest_ms is None else max(0, clock.epoch_ms() - oldest_ms)

    async def list_holdings(self, group: str) -> Sequence[MemberHolding] | None:
        """Return the members of a group with the records that they hold, None if unknown."""
        partitions = [(p.topic, p.partition) for p in self.states[group].partitions]
        try:
            return await self._brokers.list_holdings(group, partitions)
        except ClientError:
            return None

    def _count_new(self, group: str, lag: int, now_ms: int) -> int:
        """Return how many records of a group with a delay joined the lag within `SCANNED_MS`.

        A broker counts a record as work until it has read the record's delay.
        """
        lags = self._lags.setdefault(group, deque())
        lags.append((now_ms, lag))
        while len(lags) > 1 and lags[1][0] <= now_ms - SCANNED_MS:
            lags.popleft()
        return lag - min(before for _, before in lags)

    def _list_delayed_groups(self) -> set[str]:
        """Return the ids of the groups with a delay."""
        resources = self._store.list_of_cluster(ShareGroup, self._namespace, self._cluster)
        return {get_group_id(resource) for resource in resources if resource["spec"].get("delay")}

    def get_read_ms(self, group: str) -> int:
        """Return when the last known lag of a group was read, 0 if it never was."""
        return self._read_ms.get(group, 0)

    def get_current(self, group: str) -> GroupState | None:
        """Return a group's state if its lag is at most `LAG_AGE_MS_MAX` old, else None."""
        return self.states.get(group) if self._get_lag_age_ms(group) < LAG_AGE_MS_MAX else None

    def build_status_fields(self, resource: ShareGroup, state: GroupState) -> ShareGroupStatusPatch:
        """Return the measured fields of a ShareGroup's status, and set the group's metrics."""
        meta = resource["metadata"]
        labels = (meta["namespace"], meta["name"])
        metrics.LAG.labels(*labels).set(state.lag)
        metrics.AVAILABLE.labels(*labels).set(state.available)
        metrics.IN_FLIGHT.labels(*labels).set(max(0, state.in_flight))
        fields: ShareGroupStatusPatch = {
            "state": state.state,
            "members": state.members,
            "lag": state.lag,
            "partitions": [
                {
                    "topic": p.topic,
                    "partition": p.partition,
                    "startOffset": p.start_offset,
                    "lag": max(0, p.lag),
                }
                for p in state.partitions[:PARTITIONS_IN_STATUS_MAX]
            ],
        }
        if state.in_flight >= 0:
            fields["inFlight"] = state.in_flight
            fields["available"] = state.available
            fields |= state.metrics.build_status()
            fields["nextDueTime"] = format_due_time(state)
        rate = self._redelivery_rates.compute_per_minute(
            state.group, state.redelivered, clock.now_ms()
        )
        if rate is not None:
            fields["redeliveriesPerMinute"] = rate
        return fields

    def _forget_stale(self, groups: Mapping[str, ShareGroup]) -> None:
        """Remove the metrics of groups whose lag is too old for an alert."""
        for group, resource in groups.items():
            if self._get_lag_age_ms(group) >= FORGET_MS:
                meta = resource["metadata"]
                metrics.forget_group(meta["namespace"], meta["name"])

    def _get_lag_age_ms(self, group: str) -> float:
        """Return the age of the group's lag in milliseconds."""
        return clock.now_ms() - self._read_ms.get(group, -math.inf)


def list_consumer_groups(store: Store, namespace: str, cluster: str) -> list[tuple[str, str]]:
    """Return the ShareConsumers of a cluster with their ShareGroups, by name."""
    consumer_groups = []
    for consumer in store.iterate(ShareConsumer):
        meta, group_name = consumer["metadata"], consumer["spec"]["shareGroup"]
        if meta["namespace"] != namespace:
            continue
        group = store.get(ShareGroup, namespace, group_name)
        if group and group["spec"]["cluster"] == cluster:
            consumer_groups.append((meta["name"], group_name))
    return consumer_groups


def format_due_time(state: GroupState) -> str | None:
    """Return the RFC 3339 time at which the next delayed record is due, None without any."""
    due_s = state.metrics.next_due_s
    if not due_s:
        return None
    when = datetime.datetime.fromtimestamp(math.ceil(due_s), datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
