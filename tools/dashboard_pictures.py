"""Draws the chart's dashboards for the docs: the queries of all panels, over some minutes of a
small cluster under load. Grafana shows the same panels in a style of its own.

Use for the dashboards of brokers:
`PYTHONPATH=tests python tools/dashboard_pictures.py docs/images --minutes 12`.
`tests/e2e/test_dashboards.py` draws that of the operator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dashboards
import matplotlib.dates
import matplotlib.pyplot as plt
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client, SyncClient
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.start_offsets import Reset
from shoal.client.errors import ClientError, expect
from shoal.client.share.member import AcknowledgeType, AcquireMode
from support.brokers.clusters import ShoalCluster, running
from support.brokers.queues import Queue
from support.pages.prometheus_server import Prometheus, with_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS, PANEL_INCHES, DPI = 3, (5.0, 2.6), 80
#: Points of a line, and lines of a panel that the legend names.
POINTS, NAMED = 120, 6
#: How long a broker is frozen, in seconds: longer than its session.
FROZEN_S = 30
#: Factors and signs of a unit, largest first.
_BYTES = ((1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (1, " B"))
_SHORT = ((1e6, " M"), (1e3, " k"), (1, ""))
_UNITS = {"bytes": (_BYTES, ""), "Bps": (_BYTES, "/s"), "ms": (((1000, " s"), (1, " ms")), "")}
_LABEL = re.compile(r"\{\{(\w+)\}\}")
_RATES = dict.fromkeys(("cps", "reqps", "ops"), (_SHORT, "/s"))


class Series(NamedTuple):
    """One line of a panel."""

    name: str
    times: list[datetime]
    values: list[float]


def draw(server: Prometheus, dashboard: str, began_s: float, into: Path) -> None:
    """Draw a dashboard as it is since `began_s`."""
    made = dashboards.build_dashboard(dashboard)
    panels = made["panels"]
    rows = -(-len(panels) // COLUMNS)
    size = (COLUMNS * PANEL_INCHES[0], rows * PANEL_INCHES[1])
    figure, places = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    figure.suptitle(made["title"], fontsize=13, x=0.01, ha="left")
    axes = list(places.flat)
    for panel, axis in zip(panels, axes, strict=False):
        _draw_panel(axis, panel, list(_read_series(server, panel, began_s)))
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(into / f"dashboard-{dashboard.removeprefix('shoal-')}.png", dpi=DPI)
    plt.close(figure)


def _read_series(server: Prometheus, panel: Mapping[str, Any], began_s: float) -> Iterator[Series]:
    now_s = time.time()
    for target in panel["targets"]:
        query = with_variables(target["expr"])
        for labels, points in server.lines(query, began_s, now_s, (now_s - began_s) / POINTS):
            times = [datetime.fromtimestamp(time_s, UTC) for time_s, _ in points]
            yield Series(
                format_legend(target["legendFormat"], labels), times, [v for _, v in points]
            )


def format_legend(legend: str, labels: Mapping[str, str]) -> str:
    """Return a legend with the values of its labels."""
    return _LABEL.sub(lambda match: labels.get(match[1], ""), legend)


def _draw_panel(axis: Any, panel: Mapping[str, Any], series: list[Series]) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axis.set_title(panel["title"], fontsize=9, loc="left")
    for line in series:
        axis.plot(line.times, line.values, label=line.name, linewidth=1.2)
    axis.grid(color="#dddddd", linewidth=0.5)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    formatter: Any = matplotlib.dates.DateFormatter
    axis.xaxis.set_major_formatter(formatter("%H:%M"))
    axis.yaxis.set_major_formatter(lambda value, _: format_value(value, unit))
    axis.set_ylim(bottom=0)
    if series:
        axis.legend(*_build_legend(axis), fontsize=6, frameon=False, loc="upper left")
    else:
        axis.text(0.5, 0.5, "no data", transform=axis.transAxes, ha="center", color="#888888")
        axis.set_xticks([])
        axis.set_yticks([])


def _build_legend(axis: Any) -> tuple[list[Any], list[str]]:
    """Return the first lines and their names; one without a name is left out."""
    handles, names = axis.get_legend_handles_labels()
    named = [(handle, name) for handle, name in zip(handles, names, strict=True) if name.strip()]
    return [handle for handle, _ in named[:NAMED]], [name for _, name in named[:NAMED]]


def format_value(value: float, unit: str) -> str:
    """Return a value with its unit, as Grafana shows it."""
    if unit == "percentunit":
        return f"{100 * value:g} %"
    if unit == "s":
        return f"{value:g} s"
    factors, suffix = (_UNITS | _RATES).get(unit, (_SHORT, ""))
    factor, sign = next((pair for pair in factors if abs(value) >= pair[0]), factors[-1])
    return f"{value / factor:.3g}{sign}{suffix}"


# The load.


class Load:
    """Queues and a group with key ranges on three brokers with tiered storage."""

    def __init__(self, client: SyncClient, bootstrap: str) -> None:
        self.client = client
        tiered = {"remote.storage.enable": "true", "segment.bytes": str(1 << 20)}
        self.jobs = Queue(
            client,
            bootstrap,
            topic="jobs",
            group="workers",
            partitions=6,
            replicas=3,
            topic_configs=tiered,
        )
        self.mail = Queue(
            client, bootstrap, topic="mail", group="mailers", partitions=2, replicas=3
        )
        letters = {"errors.deadletterqueue.group.enable": "true"}
        divided = {"shoal.key.ranges.enable": "true"}
        made = [
            NewTopic("dlq.jobs", 1, 3, configs=letters),
            NewTopic("orders", 2, 3, configs=divided),
        ]
        expect(client.run(client.admin.topics.create(made)))
        self.jobs.configure(
            errors_deadletterqueue_topic_name="dlq.jobs", share_record_lock_duration_ms="2000"
        )

    async def run(self) -> None:
        """Work until it is cancelled. An outage of a broker ends a task, which begins again."""
        client = self.client.client
        works = [
            lambda: self._produce(client, "jobs", 40, 0.2),
            lambda: self._produce(client, "mail", 5, 0.5),
            lambda: self._produce(client, "orders", 20, 0.2),
            *[lambda: self._take(client, self.jobs, 0.3)] * 3,
            lambda: self._take(client, self.mail, 1.5),
            *[lambda: self._read(client)] * 4,
        ]
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(self._repeat(work))

    async def _repeat(self, work: Any) -> None:
        while True:
            with contextlib.suppress(ClientError):
                await work()
            await asyncio.sleep(1)

    async def _produce(self, client: Client, topic: str, burst: int, every_s: float) -> None:
        async with client.producer() as producer:
            for turn in range(1 << 30):
                # The load has waves of two minutes.
                size = burst * (1 + 3 * (turn * every_s % 120 < 40))
                for number in range(size):
                    await producer.send(topic, bytes(200), key=b"k%d" % (number % 50))
                await producer.flush()
                await asyncio.sleep(every_s)

    async def _take(self, client: Client, queue: Queue, pause_s: float) -> None:
        """Accept most records of each acquisition, release some, reject a few."""
        async with await client.share(queue.group, [queue.topic]) as session:
            for turn in range(1 << 30):
                acquisition = await session.acquire(
                    max_records=60, max_wait_ms=500, mode=AcquireMode.RECORD_LIMIT
                )
                await asyncio.sleep(pause_s)
                kind = AcknowledgeType.ACCEPT
                if turn % 10 == 3:
                    kind = AcknowledgeType.RELEASE
                elif turn % 40 == 7:
                    kind = AcknowledgeType.REJECT
                for batch in acquisition:
                    await session.acknowledge(batch.acknowledge(kind))

    async def _read(self, client: Client) -> None:
        async with await GroupConsumer.join(
            client.cluster, "billing", ["orders"], reset=Reset.EARLIEST, key_ranges=True
        ) as consumer:
            while True:
                await consumer.poll(500)
                await consumer.commit()


def scrape(cluster: ShoalCluster) -> dict[str, Any]:
    """Return the scrape of all brokers, with the labels that the chart's PodMonitor gives."""
    targets = [
        {
            "targets": [node.metrics_url.removeprefix("http://")],
            "labels": {
                "namespace": "shop",
                "pod": f"main-broker-{id - 1}",
                "shoal_dev_cluster": "main",
            },
        }
        for id, node in cluster.nodes.items()
    ]
    return {"job_name": "brokers", "static_configs": targets}


def build_configs(store: Path) -> dict[str, str]:
    return {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "remote.log.storage.system.enable": "true",
        "shoal.remote.store.url": f"file://{store}",
        "shoal.remote.copy.interval.ms": "20000",
        "group.share.min.record.lock.duration.ms": "1000",
    }


async def work(load: Load, cluster: ShoalCluster, minutes: float) -> None:
    """Let the load run. A broker is frozen for a while after half of the time."""
    task = asyncio.create_task(load.run())
    await asyncio.sleep(30 * minutes)
    pid = cluster.nodes[3].pid
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(FROZEN_S)
    os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(30 * minutes)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "store").mkdir()
        with running(ShoalCluster(folder, configs=build_configs(folder / "store"))) as cluster:
            server = Prometheus(folder / "prometheus", [scrape(cluster)]).start()
            began_s = time.time()
            try:
                with SyncClient(cluster.bootstrap) as client:
                    load = Load(client, cluster.bootstrap)
                    client.run(work(load, cluster, options.minutes))
                for name in dashboards.DASHBOARDS:
                    if name != "shoal-scaling":
                        draw(server, name, began_s, options.folder)
            finally:
                server.stop()


if __name__ == "__main__":
    main()
