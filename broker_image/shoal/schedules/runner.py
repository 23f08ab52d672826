"""Runs schedules in this process: for `shoal schedule run` and the cron jobs of `shoal.worker`.

The clock is that of the client. What was produced is known while the process runs. A process that
starts cannot know which ticks have their records. So it begins with the next tick or, if the topic
deduplicates records, looks back by the deadline of the schedule, and by half the window at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError
from shoal.client.net.cluster import TopicPartition
from shoal.schedules import producing, specs
from shoal.schedules.ticks import MISSED_MAX, decide, format_tick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.client.client import Client
    from shoal.client.produce.producer import RecordMetadata
    from shoal.schedules.specs import Schedule

log = logging.getLogger("shoal.schedules")
#: Seconds until the next try of a record that was not stored, or has to wait for the one before.
RETRY_S = 5.0
#: The clocks may be set meanwhile, so no wait is longer.
WAIT_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class RunningSchedule:
    """A schedule with the payload of each tick."""

    schedule: Schedule
    make_payload: Callable[[datetime.datetime], bytes | None]


class ScheduleRunner:
    """Schedules of one cluster. `run` once."""

    def __init__(
        self,
        client: Client,
        schedules: Sequence[RunningSchedule],
        on_produced: Callable[[Schedule, datetime.datetime, RecordMetadata], None],
    ) -> None:
        """`on_produced` is called with the tick of each record, and where it is."""
        self._client, self._schedules = client, schedules
        self._on_produced = on_produced
        #: One schedule decides at a time, and others have a turn before.
        self._deciding = asyncio.Lock()

    async def run(self, stopping: asyncio.Event) -> None:
        """Produce the record of each tick until `stopping` is set."""
        start = self._get_now()
        topics = sorted({running.schedule.topic for running in self._schedules})
        windows = {topic: await self._read_window(topic) for topic in topics}
        async with asyncio.TaskGroup() as group:
            for running in self._schedules:
                deadline = running.schedule.rules.deadline or datetime.timedelta(0)
                settled = start - min(deadline, windows[running.schedule.topic] / 2)
                group.create_task(self._run_one(running, settled, stopping))

    async def _read_window(self, topic: str) -> datetime.timedelta:
        """Return for how long a topic knows the ids of its records. Warn if that may be 0."""
        try:
            window_ms = await producing.read_window_ms(self._client, topic)
        except ClientError as error:
            log.warning("cannot read the configs of topic %s: %s", topic, error)
            return datetime.timedelta(0)
        if not window_ms:
            log.warning(
                "topic %s has no %s, as far as is known, so each process that runs a schedule adds"
                " a record of its own for each tick. Set it, for example to 3600000, or run one"
                " process.",
                topic,
                specs.DEDUPLICATION_WINDOW,
            )
        return datetime.timedelta(milliseconds=window_ms or 0)

    def _get_now(self) -> datetime.datetime:
        now_ms = self._client.cluster.environment.now_ms()
        return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)

    async def _run_one(
        self, running: RunningSchedule, settled: datetime.datetime, stopping: asyncio.Event
    ) -> None:
        """Produce the record of each tick after `settled`."""
        schedule = running.schedule
        if schedule.suspended:
            log.info("schedule %s is suspended", schedule.name)
            return
        last: RecordMetadata | None = None
        while not stopping.is_set():
            async with self._deciding:
                await asyncio.sleep(0)
                decision = decide(schedule.rules, settled, self._get_now())
            if decision.missed > MISSED_MAX:
                log.warning("schedule %s has missed more than %d ticks", schedule.name, MISSED_MAX)
            wait_s = RETRY_S
            if decision.due is None:
                wait_s = max(0.0, (decision.wake - self._get_now()).total_seconds())
            elif stored := await self._produce(running, decision.due, last):
                settled, last = decision.due, stored
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, WAIT_S_MAX)):
                    await stopping.wait()

    async def _produce(
        self, running: RunningSchedule, tick: datetime.datetime, last: RecordMetadata | None
    ) -> RecordMetadata | None:
        """Produce the record of a tick; return where it is, None if it has to wait."""
        schedule = running.schedule
        try:
            if last is not None and await self._must_wait(schedule, last):
                log.info(
                    "schedule %s: the tick %s waits, as group %s has not %s offset %d of %s",
                    schedule.name,
                    format_tick(tick),
                    schedule.share_group,
                    "begun to read" if schedule.replaces else "completed",
                    last.offset,
                    TopicPartition(last.topic, last.partition),
                )
                return None
            payload = running.make_payload(tick)
            stored = await producing.produce(self._client, schedule, tick, payload)
        except ClientError as error:
            log.warning(
                "schedule %s: the record of %s is not stored: %s. Another try follows.",
                schedule.name,
                format_tick(tick),
                error,
            )
            return None
        except Exception:
            log.exception("schedule %s: the payload of its record fails", schedule.name)
            return None
        self._on_produced(schedule, tick, stored)
        return stored

    async def _must_wait(self, schedule: Schedule, last: RecordMetadata) -> bool:
        """Return whether the record before lets the next one wait. Cancel it if that replaces it.
        Raises `ClientError`."""
        group, partition = schedule.share_group, TopicPartition(last.topic, last.partition)
        if not group:
            return False
        if not await producing.is_unfinished(self._client, group, partition, last.offset):
            return False
        return not schedule.replaces or not await producing.cancel(
            self._client, group, partition, last.offset
        )
