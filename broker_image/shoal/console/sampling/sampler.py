"""Reads the cluster at an interval, and wakes the pages that show it.

One sample is read at a time. A failure of the whole cluster keeps the last sample and states the
error; the failure of one call keeps that call's earlier result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.groups import SHARE, STREAMS, GroupDescription
from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag, skipped_records
from shoal.client.queues.reserved_groups import is_reserved
from shoal.console import figures
from shoal.console.sampling import queues
from shoal.console.sampling.history import QueueHistory
from shoal.console.sampling.oldest import OldestRecords
from shoal.console.sampling.sample import ClusterSample, MetricsSource
from shoal.dead_letters.dead_letter_topics import list_groups_by_topic
from shoal.monitoring import cluster_health, scrape
from shoal.monitoring.remedies import format_remedy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from shoal.client.admin.admin import LogDir
    from shoal.client.client import Client
    from shoal.client.queues.lag import Position

T = TypeVar("T")
log = logging.getLogger("shoal.console")
#: Seconds after which the brokers' metrics listeners, their disks, and the dead-letter topics of
#: groups are read again. They rarely change, except that a new group has them at once.
SLOW_S = 30.0


class Sampler:
    """Owns the last sample, the queues in it, and the history."""

    def __init__(self, client: Client, *, metrics: list[str] | None, interval_s: float) -> None:
        """`metrics` are addresses of metrics listeners; the default is what brokers report."""
        self.interval_s = interval_s
        self.sample: ClusterSample | None = None
        self.queues: list[queues.MonitoredQueue] = []
        self.history = QueueHistory()
        #: Why the last attempt failed, and since when attempts fail (epoch milliseconds).
        self.error: str | None = None
        self.error_since_ms = 0
        self._client = client
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._hurried = asyncio.Event()
        self._oldest = OldestRecords(client)
        self._last_results: dict[str, Any] = {}
        self._problems: list[str] = []
        self._slow_at_s = float("-inf")
        #: The share groups whose dead-letter topics were read.
        self._known_groups: frozenset[str] = frozenset()
        self._addresses: list[str] = []
        self._is_shoal = False

    @property
    def change(self) -> asyncio.Event:
        """The event that the next sample or error sets."""
        return self._changed

    @property
    def time(self) -> str:
        """The time of the last sample; empty before the first."""
        return "" if self.sample is None else figures.format_clock(self.sample.at_ms)

    def hurry(self) -> None:
        """Wake the open pages, and read the next sample now: an action has changed the cluster."""
        self._slow_at_s = float("-inf")
        self._hurried.set()
        self._wake()

    async def run(self) -> None:
        """Read samples until cancelled."""
        while True:
            self._hurried.clear()
            await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.interval_s):
                    await self._hurried.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def step(self) -> None:
        """Read one sample."""
        try:
            self.sample = await self._read_sample()
        except (ClientError, OSError) as error:
            self._note_failure(str(error))
        except Exception:
            # A fault of the console. The pages state it, and the next sample may succeed.
            log.exception("sample")
            self._note_failure("the console failed; its error output has the reason")
        else:
            self.error = None
            points = queues.make_points(self.sample)
            for key, point in points.items():
                self.history.add(key, point)
            self.history.keep(set(points))
            self.queues = queues.make_queues(self.sample, self.history)
        self._wake()

    def _note_failure(self, why: str) -> None:
        if self.error is None:
            self.error_since_ms = int(time.time() * 1000)
        self.error = why

    async def _read_part(self, name: str, call: Awaitable[T], otherwise: T) -> T:
        """Return a call's result. If it fails, note the problem and return its earlier result."""
        try:
            self._last_results[name] = result = await call
        except ClientError as error:
            text = format_remedy(error) if isinstance(error, KafkaError) else f"{error}."
            self._problems.append(f"{name} could not be read: {text}")
            return self._last_results.get(name, otherwise)
        return result

    async def _read_sample(self) -> ClusterSample:
        admin = self._client.admin
        self._problems = []
        cluster = await admin.describe_cluster(fenced=True)
        topics = await admin.topics.list(internal=True)
        health = await cluster_health.judge(self._client, cluster, topics)
        listings = await self._read_part("The groups", admin.groups.list(), {})
        listed = {
            name: listing
            for name, listing in listings.items()
            if listing.type != STREAMS and not is_reserved(name)
        }
        share = [name for name, listing in listed.items() if listing.type == SHARE]
        groups = await self._read_part("The share groups", self._describe(share), {})
        positions: Mapping[str, list[Position]] = await self._read_part(
            "The positions of groups", self._find_positions(listed.values()), {}
        )
        paused = await self._read_part(
            "The configs of groups", scrape.find_paused_groups(admin, groups.values()), set()
        )
        is_late = time.monotonic() - self._slow_at_s >= SLOW_S
        if is_late or not self._known_groups.issuperset(share):
            await self._read_slow(share, [b.node_id for b in cluster.brokers], cluster.fenced)
        letter_topics: dict[str, str] = self._last_results.get("letter topics", {})
        dead_letters = await self._read_part(
            "The dead letters", self._count_dead_letters(letter_topics, topics), {}
        )
        numbers = await self._read_numbers()
        metrics = MetricsSource.SILENT if self._is_shoal else MetricsSource.UNSUPPORTED
        oldest = await self._oldest.read(
            (p.partition, p.offset)
            for name in groups
            for p in sorted(positions.get(name, ()), key=lambda p: -(p.lag or 0))
            if p.lag and p.offset is not None
        )
        return ClusterSample(
            int(time.time() * 1000),
            time.monotonic(),
            cluster,
            health,
            topics,
            listed,
            groups,
            positions,
            numbers,
            metrics if numbers is None else MetricsSource.REPORTED,
            frozenset(paused),
            letter_topics,
            dead_letters,
            self._last_results.get("The disks of brokers", {}),
            oldest,
            tuple(dict.fromkeys([*self._problems, *self._last_results.get("slow problems", ())])),
            await self._read_log_starts(groups, positions, numbers),
        )

    async def _describe(self, names: list[str]) -> dict[str, GroupDescription]:
        described = await self._client.admin.groups.describe_share(names) if names else {}
        return {
            name: group for name, group in described.items() if isinstance(group, GroupDescription)
        }

    async def _find_positions(self, listed: Any) -> dict[str, list[Position]]:
        return await lag.find_positions(self._client.admin, listed) if listed else {}

    async def _read_slow(
        self, share: list[str], brokers: list[int], fenced: frozenset[int]
    ) -> None:
        """Read what rarely changes."""
        admin = self._client.admin
        before, self._problems = self._problems, []
        by_topic = await self._read_part(
            "The dead-letter topics of groups", list_groups_by_topic(admin, share), {}
        )
        self._last_results["letter topics"] = {
            g: topic for topic, group_ids in by_topic.items() for g in group_ids
        }
        await self._read_part(
            "The disks of brokers",
            self._read_disks([node for node in brokers if node not in fenced]),
            {},
        )
        await self._read_part("The metrics listeners of brokers", self._find_metrics(), None)
        self._last_results["slow problems"] = self._problems
        self._problems = before
        self._known_groups = frozenset(share)
        self._slow_at_s = time.monotonic()

    async def _read_disks(self, nodes: list[int]) -> dict[int, tuple[LogDir, ...]]:
        return await self._client.admin.log_dirs(nodes, partitions=False)

    async def _find_metrics(self) -> None:
        admin = self._client.admin
        brokers = [
            ConfigResource(ConfigResourceType.BROKER, str(broker.node_id))
            for broker in (await admin.describe_cluster()).brokers
        ]
        described = await admin.configs.describe(brokers[:1], keys=[scrape.LISTENER_CONFIG])
        self._is_shoal = any(
            not isinstance(entries, KafkaError) and scrape.LISTENER_CONFIG in entries
            for entries in described.values()
        )
        self._addresses = self._metrics or await scrape.find_metrics_addresses(admin)

    async def _read_numbers(self) -> scrape.ShareGroupMetrics | None:
        if not self._addresses:
            return None
        return await scrape.read_numbers(
            self._client.admin, self._addresses, lambda text: self._problems.append(text)
        )

    async def _read_log_starts(
        self,
        groups: Mapping[str, GroupDescription],
        positions: Mapping[str, list[Position]],
        numbers: scrape.ShareGroupMetrics | None,
    ) -> dict[TopicPartition, int]:
        """Return the log starts that `queues.describe_skipped` needs. Each is read once."""
        if numbers is None:
            return {}
        partitions = {
            position.partition
            for name in groups
            for position in positions.get(name, ())
            if position.offset
            and (partition_numbers := numbers.partitions.get((name, position.partition)))
            and not partition_numbers.acquired
        }
        log_starts: dict[TopicPartition, int] = self._last_results.get("log starts", {})
        try:
            log_starts |= await skipped_records.read_log_starts(
                self._client.admin, partitions - log_starts.keys()
            )
        except ClientError:
            pass  # The sentence is only a hint, and the next sample may have it.
        self._last_results["log starts"] = starts = {
            p: log_starts[p] for p in partitions & log_starts.keys()
        }
        return starts

    async def _count_dead_letters(
        self, letter_topics: Mapping[str, str], topics: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the number of records in each dead-letter topic."""
        admin = self._client.admin
        names = sorted(set(letter_topics.values()) & topics.keys())
        partitions = [
            TopicPartition(name, p.index) for name in names for p in topics[name].partitions
        ]
        if not partitions:
            return {}
        counts = dict.fromkeys(names, 0)
        for spec, sign in ((OffsetSpec.LATEST, 1), (OffsetSpec.EARLIEST, -1)):
            listed = await admin.topics.offsets(
                dict.fromkeys(partitions, int(spec)), timeout_ms=2_000
            )
            for partition, listed_offset in listed.items():
                if not isinstance(listed_offset, KafkaError):
                    counts[partition.topic] += sign * listed_offset.offset
        return {name: max(0, number) for name, number in counts.items()}


@contextlib.asynccontextmanager
async def running(sampler: Sampler) -> Any:
    """Run a sampler in the background."""
    task = asyncio.create_task(sampler.run(), name="console sampler")
    try:
        yield sampler
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
