"""Counts of a query's source as Spark metrics.

Spark reports a Python source's counts only in the query's progress (`sources[].latestOffset` of a
`StreamingQueryProgress`). A listener copies them into gauges of the driver's metrics system. So
every configured sink, such as Prometheus, has them as

    APPLICATION.driver.AccumulatorSource.sharegroup.GROUP.NAME

with NAME one of `NAMES`. They change with the query's progress: at each batch, and every ten
seconds without data.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger("shoal_spark")
#: Record counts: unsettled in the group, held by this query, processed since its start.
NAMES = (
    "lag",
    "inFlight",
    "owed",
    "acquired",
    "redelivered",
    "accepted",
    "released",
    "rejected",
    "renewed",
    "lost",
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def parse_counts(sources: Iterable[Any]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield group and counts of each share-group source in a query's progress."""
    for source in sources:
        try:
            progress = json.loads(source.latestOffset or "")
            group = str(progress["group"])
            yield group, {name: int(progress[name]) for name in NAMES}
        except (ValueError, TypeError, KeyError):
            continue  # another source's, or none yet


class Gauges:
    """The gauges of one application, created when a group first appears."""

    def __init__(self, spark: SparkSession) -> None:
        # PySpark has no public names for the JVM and the Java context.
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._context: Any = spark._jsc.sc()  # noqa: SLF001
        self._groups: dict[str, dict[str, Any]] = {}

    def set(self, group: str, values: Mapping[str, int]) -> None:
        gauges = self._groups.get(group) or self._make_gauges(group)
        for name, value in values.items():
            gauges[name].setValue(value)

    def _make_gauges(self, group: str) -> dict[str, Any]:
        gauges = {name: self._context.longAccumulator() for name in NAMES}
        prefix = f"sharegroup.{_UNSAFE.sub('_', group)}"
        named_gauges = {f"{prefix}.{name}": gauge for name, gauge in gauges.items()}
        source = getattr(self._jvm.org.apache.spark.metrics.source, "LongAccumulatorSource$")
        to_scala = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
        java = self._jvm.java.util.HashMap()
        for name, gauge in named_gauges.items():
            java.put(name, gauge)
        getattr(source, "MODULE$").register(self._context, to_scala(java))
        self._groups[group] = gauges
        return gauges


def publish(spark: SparkSession) -> None:
    """Update the gauges of all queries of this session."""
    from pyspark.sql.streaming import StreamingQueryListener

    gauges = Gauges(spark)

    class ProgressListener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            for group, values in parse_counts(event.progress.sources):
                gauges.set(group, values)

    spark.streams.addListener(ProgressListener())
