"""QueueSchedules: records that the operator produces at the times of a cron expression.

Which tick is due is decided in `shoal.schedules.ticks`. For each one, the operator notes the tick
in `status.activeScheduleTime`, produces the record, and notes it in `status.lastScheduleTime`. The
first note needs the newest version of the resource, so an operator that no longer leads, without
knowing it, is refused there. An operator that continues after the first note cannot know whether
the record was produced, and produces it again with the same id: a topic with
`shoal.deduplication.window.ms` answers that with the first record.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.schedules import specs
from shoal.schedules.specs import KIND, PayloadMissing, Schedule
from shoal.schedules.ticks import (
    MISSED_MAX,
    InvalidSchedule,
    TickDecision,
    decide,
    format_tick,
    parse_tick,
)

from shoal_operator import clock
from shoal_operator.brokers.batch_reconciler import (
    WRITES_MAX,
    find_live_cluster,
    require_running,
)
from shoal_operator.kube import failures
from shoal_operator.kube.conditions import ExtraCondition, Verdict
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model.resources.queue_schedule import QueueSchedule
from shoal_operator.users import acting_users

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.client.produce.producer import RecordMetadata

    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.model.resources.queue_schedule import (
        QueueScheduleStatusLastRecord,
        QueueScheduleStatusPatch,
    )

RETRY_SECONDS = 10.0
#: Until the watch has brought the version that somebody else has written.
CONFLICT_SECONDS = 1.0
#: The age at which the configs of a topic are read again.
WINDOW_AGE_MS_MAX = 60_000
#: The age at which the payload and the user of a schedule that waits are looked at again. Each pass
#: comes to all schedules of a cluster, and a payload may have a megabyte.
CHECK_AGE_MS_MAX = 60_000


class QueueScheduleReconciler:
    """The reconciler of all QueueSchedules of one cluster."""

    def __init__(
        self,
        kube: KubeClient,
        store: Store,
        brokers: Brokers,
        namespace: str,
        cluster: str,
        *,
        epoch_ms: Callable[[], int] = clock.epoch_ms,
    ) -> None:
        """`epoch_ms` is the clock of the ticks, in milliseconds since 1970."""
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._epoch_ms = epoch_ms
        self._statuses = StatusWriter(kube, store)
        #: One schedule decides at a time, and others have a turn before.
        self._deciding = asyncio.Lock()
        #: By topic: when its configs were read, and the window of its deduplication.
        self._windows: dict[str, tuple[int, int | None]] = {}
        #: By uid and generation: when a schedule had all that its next tick needs.
        self._complete_ms: dict[tuple[str, int | None], int] = {}
        #: By uid: the tick produced last, and where. The second note of it may have failed.
        self._produced: dict[str, tuple[datetime.datetime, RecordMetadata]] = {}

    def list_names(self) -> list[str]:
        """Return the names of all QueueSchedules of the cluster."""
        return [o["metadata"]["name"] for o in self._list_resources()]

    def _list_resources(self) -> list[QueueSchedule]:
        manifests = self._store.list_of_cluster(QueueSchedule, self._namespace, self._cluster)
        return [o for o in manifests if not o["metadata"].get("deletionTimestamp")]

    async def reconcile(self, _: list[str]) -> float | None:
        """Produce the records that are due, and report all QueueSchedules; return seconds until the
        next pass, if any. Raises the first error of a status, after all of them."""
        gate = asyncio.Semaphore(WRITES_MAX)

        async def reconcile_one(resource: QueueSchedule) -> float | None:
            async with gate:
                return await self._reconcile_safely(resource)

        waits, resources = [], self._list_resources()
        present = {resource["metadata"]["uid"] for resource in resources}
        self._produced = {u: last for u, last in self._produced.items() if u in present}
        self._complete_ms = {k: ms for k, ms in self._complete_ms.items() if k[0] in present}
        passes = map(reconcile_one, resources)
        for result in await asyncio.gather(*passes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            waits.append(result)
        return min((seconds for seconds in waits if seconds is not None), default=None)

    async def _reconcile_safely(self, resource: QueueSchedule) -> float | None:
        """Reconcile one QueueSchedule; its failure becomes its condition, and the others go on."""
        try:
            return await self._reconcile_one(resource)
        except Exception as error:
            await self._statuses.write(self._find_newest(resource), _judge(resource, error))
            return RETRY_SECONDS

    async def _reconcile_one(self, resource: QueueSchedule) -> float | None:
        """Reconcile one QueueSchedule; return seconds until the next pass, None without one."""
        live = find_live_cluster(self._store, self._namespace, self._cluster)
        cluster = require_running(live, KIND, self._cluster)
        if isinstance(cluster, Verdict):
            await self._statuses.write(resource, cluster)
            return RETRY_SECONDS if cluster.progressing else None
        no_tick: QueueScheduleStatusPatch = {"nextScheduleTime": None}
        try:
            async with self._deciding:
                await asyncio.sleep(0)
                schedule = specs.parse_schedule(resource)
        except InvalidSchedule as error:
            verdict = Verdict.make_refused("ScheduleNotValid", f"spec.{error}")
            await self._statuses.write(resource, verdict, no_tick)
            return None
        if schedule.suspended:
            suspended = Verdict(False, "Paused", "spec.suspend is true.", paused=True)
            await self._statuses.write(resource, suspended, no_tick)
            return None
        deduplicated = await self._check_window(schedule.topic)
        async with self._deciding:
            await asyncio.sleep(0)
            decision = decide(schedule.rules, _get_settled(resource), self._get_now())
        await self._report_missed(resource, decision)
        fields: QueueScheduleStatusPatch = {}
        if decision.due is not None:
            waits = await self._produce(cluster, resource, schedule, decision.due)
            if isinstance(waits, float):
                return waits
            if waits is not None:
                await self._statuses.write(resource, waits, {}, [deduplicated])
                return RETRY_SECONDS
            resource = self._find_newest(resource)
            fields = _build_fields(*self._produced[schedule.uid])
            decision = decide(schedule.rules, decision.due, self._get_now())
        elif lacking := await self._find_lacking(cluster, resource):
            await self._statuses.write(resource, lacking, {}, [deduplicated])
            return min(RETRY_SECONDS, self._count_seconds_until(decision.wake))
        verdict = Verdict.make_reconciled(f"The next tick is {format_tick(decision.next_tick)}.")
        fields["nextScheduleTime"] = format_tick(decision.next_tick)
        await self._statuses.write(resource, verdict, fields, [deduplicated])
        return self._count_seconds_until(decision.wake)

    def _count_seconds_until(self, time: datetime.datetime) -> float:
        return max(0.0, (time - self._get_now()).total_seconds())

    def _find_newest(self, resource: QueueSchedule) -> QueueSchedule:
        """Return the newest version of a resource, which has what this pass has noted."""
        name = resource["metadata"]["name"]
        return self._store.get(QueueSchedule, self._namespace, name) or resource

    def _get_now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._epoch_ms() / 1000, datetime.UTC)

    async def _check_window(self, topic: str) -> ExtraCondition:
        """Return the condition `Deduplicated`. Raises `ClientError`."""
        read_ms, window_ms = self._windows.get(topic, (None, None))
        if read_ms is None or clock.now_ms() - read_ms >= WINDOW_AGE_MS_MAX:
            window_ms = await self._brokers.schedules.read_window_ms(topic)
            self._windows[topic] = (clock.now_ms(), window_ms)
        return make_window_condition(topic, window_ms)

    async def _report_missed(self, resource: QueueSchedule, decision: TickDecision) -> None:
        """Record an event for ticks without a record, once for each reason and tick."""
        if decision.missed > MISSED_MAX:
            text = (
                f"More than {MISSED_MAX} ticks were missed; the latest one gets a record. Set or "
                "decrease spec.startingDeadlineSeconds, or check the clocks."
            )
            await self._record(resource, "TooManyMissedTimes", text, decision.due)
        if decision.expired is not None:
            text = (
                f"The tick {format_tick(decision.expired)} gets no record: its "
                "spec.startingDeadlineSeconds are over."
            )
            await self._record(resource, "MissSchedule", text, decision.expired)

    async def _record(
        self,
        resource: QueueSchedule,
        reason: str,
        text: str,
        tick: datetime.datetime | None,
    ) -> None:
        once = format_tick(tick) if tick else ""
        await self._kube.record_event(resource, reason, text, warning=True, once=once)

    async def _produce(
        self,
        cluster: QueueCluster,
        resource: QueueSchedule,
        schedule: Schedule,
        tick: datetime.datetime,
    ) -> Verdict | float | None:
        """Produce the record of a tick, unless it has to wait: return why, or the seconds until the
        next try, or None. Raises `ClientError`, `KubeError` and `PayloadMissing`."""
        if self._produced.get(schedule.uid, (None,))[0] == tick:
            return None
        unfinished = await self._find_unfinished(resource, schedule)
        if unfinished is not None and not schedule.replaces:
            return await self._report_waiting(resource, schedule, tick, "completed")
        payload = await self._read_payload(resource)
        user = acting_users.connect(
            self._store, cluster, resource["spec"].get("user", ""), "producer"
        )
        if isinstance(user, Verdict):
            return user
        try:
            if not await self._claim(resource, tick):
                return CONFLICT_SECONDS
            if unfinished is not None and not await self._brokers.schedules.cancel(
                schedule.share_group, unfinished, user
            ):
                return await self._report_waiting(resource, schedule, tick, "begun to read")
            stored = await self._brokers.schedules.produce(schedule, tick, payload, user)
        finally:
            if user is not None:
                await user.close()
        self._produced[schedule.uid] = (tick, stored)
        return None

    async def _find_unfinished(
        self, resource: QueueSchedule, schedule: Schedule
    ) -> QueueScheduleStatusLastRecord | None:
        """Return the record before if the share group has still to complete it."""
        group, record = schedule.share_group, resource["status"].get("lastRecord")
        if not group or not record:
            return None
        return record if await self._brokers.schedules.is_unfinished(group, record) else None

    async def _report_waiting(
        self, resource: QueueSchedule, schedule: Schedule, tick: datetime.datetime, lacks: str
    ) -> Verdict:
        """Record that a tick waits for what the share group has not done with the record before,
        and return the verdict."""
        record = resource["status"]["lastRecord"]
        text = (
            f"The tick {format_tick(tick)} waits: share group {schedule.share_group!r} has not "
            f"{lacks} the record of the tick before, at offset {record['offset']} of "
            f"{record['topic']}-{record['partition']}."
        )
        await self._record(resource, "JobAlreadyActive", text, tick)
        return Verdict.make_waiting("PreviousUnfinished", text)

    async def _read_payload(self, resource: QueueSchedule) -> bytes | None:
        """Return the payload of the next record. Raises `PayloadMissing`."""
        reference = specs.find_reference(resource)
        if reference is None:
            return specs.get_inline_payload(resource)
        manifest = await self._kube.get("v1", reference.kind, reference.name, self._namespace)
        return specs.read_payload(reference, manifest)

    async def _find_lacking(self, cluster: QueueCluster, resource: QueueSchedule) -> Verdict | None:
        """Return what the next tick will lack, before it is due, None if it has all. Raises
        `PayloadMissing`."""
        meta = resource["metadata"]
        version, now_ms = (meta["uid"], meta.get("generation")), clock.now_ms()
        if now_ms - self._complete_ms.get(version, -CHECK_AGE_MS_MAX) < CHECK_AGE_MS_MAX:
            return None
        self._complete_ms.pop(version, None)
        await self._read_payload(resource)
        user = acting_users.connect(
            self._store, cluster, resource["spec"].get("user", ""), "producer"
        )
        if isinstance(user, Verdict):
            return user
        if user is not None:
            await user.close()
        self._complete_ms[version] = now_ms
        return None

    async def _claim(self, resource: QueueSchedule, tick: datetime.datetime) -> bool:
        """Note the tick before its record is produced. Return False if the resource has gone, or
        has changed since the store saw it."""
        version = resource["metadata"]["resourceVersion"]
        note = {"activeScheduleTime": format_tick(tick)}
        patch = {"metadata": {"resourceVersion": version}, "status": note}
        try:
            claimed = await self._kube.merge(resource, patch, status=True)
        except KubeError as error:
            if error.status == 409:
                return False
            raise
        if claimed is not None:
            self._store.put(claimed)
        return claimed is not None


def make_window_condition(topic: str, window_ms: int | None) -> ExtraCondition:
    """Return the condition `Deduplicated`; `window_ms` is None if the brokers do not say."""
    config = specs.DEDUPLICATION_WINDOW
    if window_ms:
        return ExtraCondition("Deduplicated", True, "WindowSet", f"Topic {topic!r} has {config}.")
    if window_ms is None:
        text = f"The configs of topic {topic!r} cannot be read."
        return ExtraCondition("Deduplicated", None, "WindowUnknown", text)
    text = (
        f"Topic {topic!r} has no {config}, so a tick has two records if the operator ends after "
        "it has produced the first one and before it has noted that. Set the config, for example "
        "to 3600000."
    )
    return ExtraCondition("Deduplicated", False, "NoWindow", text)


def _get_settled(resource: QueueSchedule) -> datetime.datetime:
    """Return the tick that was produced last, or when the resource was created."""
    last = resource.get("status", {}).get("lastScheduleTime")
    return parse_tick(last or resource["metadata"]["creationTimestamp"])


def _build_fields(tick: datetime.datetime, stored: RecordMetadata) -> QueueScheduleStatusPatch:
    return {
        "activeScheduleTime": None,
        "lastScheduleTime": format_tick(tick),
        "lastRecord": {
            "topic": stored.topic,
            "partition": stored.partition,
            "offset": stored.offset,
        },
    }


def _judge(resource: QueueSchedule, error: Exception) -> Verdict:
    """Return the verdict on a QueueSchedule at which a pass failed with this error."""
    if isinstance(error, PayloadMissing):
        return Verdict.make_blocked("PayloadNotFound", f"{error}")
    if isinstance(error, KafkaError) and error.code == ErrorCode.unknown_topic_or_partition:
        text = f"Topic {resource['spec']['topic']!r} does not exist. Create it as a QueueTopic."
        return Verdict.make_blocked("TopicNotFound", text)
    if isinstance(error, ClientError) and failures.is_of_all(error):
        return Verdict.make_waiting("BrokersUnreachable", f"No broker answered: {error}")
    return failures.report(KIND, resource, error)
