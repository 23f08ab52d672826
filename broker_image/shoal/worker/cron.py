"""Cron jobs of a worker: records that its processes produce for a handler at given times.

Each process of a worker produces the record of each tick, with an id of the group, the handler and
the tick. A topic with `shoal.deduplication.window.ms` stores only the first one.
"""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Any

from shoal.schedules.runner import RunningSchedule
from shoal.schedules.specs import Schedule
from shoal.schedules.ticks import Cron, TickRules, format_tick
from shoal.worker.backoff import Duration, parse_seconds
from shoal.worker.payloads import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.produce.producer import RecordMetadata
    from shoal.worker.handlers import Handler

log = logging.getLogger("shoal.worker")


def make_cron(
    group: str,
    handler: Handler,
    expression: str,
    *,
    tz: str,
    value: Any,
    key: bytes | str | None,
    headers: Mapping[str, bytes | str] | None,
    starting_deadline: Duration,
    jitter: Duration,
) -> RunningSchedule:
    """Return a cron job; `Worker.cron` explains the arguments. Raises `ValueError`."""
    name = f"{group}/{handler.name}/{expression}/{tz}"
    rules = TickRules(
        Cron(expression, tz),
        name,
        datetime.timedelta(seconds=parse_seconds(starting_deadline)),
        datetime.timedelta(seconds=parse_seconds(jitter)),
    )
    schedule = Schedule(
        name,
        name,
        handler.topics[0],
        rules,
        key=key.encode() if isinstance(key, str) else key,
        headers={n: v.encode() if isinstance(v, str) else v for n, v in (headers or {}).items()},
    )

    def make_payload(tick: datetime.datetime) -> bytes | None:
        return encode(value(tick) if callable(value) else value, handler.codec)

    return RunningSchedule(schedule, make_payload)


def log_produced(schedule: Schedule, tick: datetime.datetime, stored: RecordMetadata) -> None:
    """Log where the record of a tick is; another process may have produced it."""
    log.info(
        "cron %s: the record of %s is in %s-%d at offset %d",
        schedule.name,
        format_tick(tick),
        stored.topic,
        stored.partition,
        stored.offset,
    )
