"""Scales a running application to the wanted number of executors, up and down.

`shoal_spark.register` calls `follow`, which does nothing without a published number (`scaling`). To
scale up, it calls `SparkContext.requestTotalExecutors`. To scale down, it decommissions executors.
A decommissioned executor gets no new tasks, completes its running ones, and exits, so no record
loses a delivery attempt.

Spark's dynamic allocation must be off. It requests executors by its own count of pending tasks and
removes idle executors between two micro-batches, which would undo a number from outside.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from shoal_spark import scaling
from shoal_spark.scaling import Executor, NumberUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

log = logging.getLogger("shoal_spark")
EVERY_S = 2.0


class Executors:
    """The executors of one application, through its scheduler back end (py4j)."""

    def __init__(self, spark: SparkSession) -> None:
        # PySpark has no public names for the JVM and the Java context.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._context: Any = spark._jsc.sc()  # noqa: SLF001
        self._backend: Any = self._context.schedulerBackend()
        self._leaving: set[str] = set()
        #: Tasks have no preferred host.
        self._nowhere = (
            getattr(self._jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
        )

    def find_obstacle(self) -> str:
        """Return why this application cannot be scaled; empty if it can."""
        if self._context.isLocal():
            return "a local application has no executors to request"
        if self._context.executorAllocationManager().isDefined():
            return "dynamic allocation is on; set spark.dynamicAllocation.enabled to false"
        return ""

    def list_present(self) -> list[Executor]:
        """Return the executors that accept tasks, without decommissioned ones."""
        ids = self._backend.getExecutorIds()
        present_ids = {str(ids.apply(n)) for n in range(ids.size())}
        self._leaving &= present_ids
        busy = self._context.taskScheduler().runningTasksByExecutors()
        executors = []
        for executor_id in sorted(present_ids - self._leaving):
            running = busy.get(executor_id)
            executors.append(
                Executor(executor_id, int(running.get()) if running.isDefined() else 0)
            )
        return executors

    def request(self, total: int) -> None:
        """Request this total number of executors from the cluster."""
        self._context.requestTotalExecutors(total, 0, self._nowhere)

    def decommission(self, executor_id: str) -> None:
        """Decommission an executor after its tasks. The requested total decreases by one."""
        nobody = self._jvm.scala.Option.empty()
        why = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("scaled down", nobody)
        if self._backend.decommissionExecutor(executor_id, why, True, False):
            self._leaving.add(executor_id)


class ExecutorScaler:
    """A thread that reads the wanted number and applies it; `stop` ends it."""

    def __init__(
        self, executors: Executors, read_wanted: Callable[[], int], every_s: float = EVERY_S
    ) -> None:
        self._executors = executors
        self._read_wanted = read_wanted
        self._every_s = every_s
        self._stopped = threading.Event()
        self._before: int | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-allocation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        from py4j.protocol import Py4JError

        while not self._stopped.is_set():
            try:
                self.step()
            except NumberUnavailable as error:
                log.warning("executors: %s", error)
            except (Py4JError, OSError) as error:
                if not self._stopped.is_set():
                    log.warning("executors: Spark does not answer: %s", error)
            self._stopped.wait(self._every_s)

    def step(self) -> None:
        """Read the number once and apply it. Raises `NumberUnavailable`."""
        count = self._read_wanted()
        if count != self._before:
            log.warning("executors: %d are wanted", count)
            self._before = count
        for executor_id in scaling.choose_superfluous(self._executors.list_present(), count):
            self._executors.decommission(executor_id)
        # Repeat the request each time: it costs one message and repairs a lost one.
        self._executors.request(count)


def follow(spark: SparkSession, every_s: float = EVERY_S) -> ExecutorScaler | None:
    """Follow the published number until the application ends. Return None if there is none."""
    read_wanted = scaling.find_published()
    if read_wanted is None:
        return None
    executors = Executors(spark)
    if reason := executors.find_obstacle():
        log.warning("executors: the published number is not followed: %s", reason)
        return None
    return ExecutorScaler(executors, read_wanted, every_s)
