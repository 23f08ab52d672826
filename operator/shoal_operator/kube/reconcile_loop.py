"""Reconcile loops: level-triggered work queues with back-off.

A loop queues names and passes all of them to its reconciler at once. Names stay queued after a
failure and are retried with exponential back-off. The queue contains names only, so a restart of
the operator loses nothing: the watches enqueue all names again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog
from shoal.client.errors import ClientError

from shoal_operator import metrics
from shoal_operator.kube.kube import KubeError

log = structlog.get_logger()

#: Reconciles these names; returns the seconds until the next pass, or None.
Reconcile = Callable[[list[str]], Awaitable[float | None]]
BACKOFF_SECONDS = 0.5
BACKOFF_SECONDS_MAX = 30.0


class ReconcileLoop:
    """One reconciler with its queue and its back-off.

    `list_names` returns the names of all resources. A pass through all of them every
    `interval_seconds` finds changes inside the brokers, which no watch reports. Names that arrive
    within `settle_seconds` form one batch.
    """

    def __init__(
        self,
        kind: str,
        reconcile: Reconcile,
        list_names: Callable[[], list[str]],
        interval_seconds: float,
        settle_seconds: float = 0.0,
    ) -> None:
        self.kind = kind
        self._reconcile = reconcile
        self._list_names = list_names
        self._interval = interval_seconds
        self._settle = settle_seconds
        self._queue: dict[str, None] = {}
        self._wake = asyncio.Event()

    def enqueue(self, name: str) -> None:
        """Queue a name."""
        self._queue[name] = None
        self._wake.set()

    def enqueue_all(self) -> None:
        """Queue all names."""
        for name in self._list_names():
            self.enqueue(name)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        pause, monotonic = 0.0, asyncio.get_running_loop().time
        due = monotonic() + self._interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - monotonic()):
                    await self._wake.wait()
            if monotonic() >= due:
                self._queue.update(dict.fromkeys(self._list_names()))
                due = monotonic() + self._interval
            else:
                await asyncio.sleep(self._settle)
            self._wake.clear()
            names, self._queue = list(self._queue), {}
            metrics.QUEUE.labels(self.kind).set(len(names))
            if not names:
                continue
            again = await self._run_once(names)
            if again is None:
                pause = 0.0
                continue
            if again < 0:
                again = pause = min(max(pause * 2, BACKOFF_SECONDS), BACKOFF_SECONDS_MAX)
            due = min(due, monotonic() + again)

    async def _run_once(self, names: list[str]) -> float | None:
        """Run one pass; return the seconds until the next one, None without one, -1 on failure."""
        metrics.RECONCILES.labels(self.kind).inc()
        try:
            with metrics.DURATION.labels(self.kind).time():
                return await self._reconcile(names)
        except (KubeError, ClientError) as error:
            log.warning("will try again", kind=self.kind, resources=len(names), error=str(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A cancellation that leaked out of a call must not end this loop.
            log.exception("a defect of the operator; will try again", kind=self.kind)
        except Exception:
            log.exception("a defect of the operator; will try again", kind=self.kind)
        metrics.ERRORS.labels(self.kind).inc()
        self._queue.update(dict.fromkeys(names))
        return -1.0
