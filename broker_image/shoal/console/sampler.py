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

from shoal.client import cluster_health, lag, scrape, skipped_records
from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.dead_letter_topics import groups_by_topic
from shoal.client.errors import ClientError, KafkaError
from shoal.client.groups import SHARE, STREAMS, Group
from shoal.client.remedies import remedy
from shoal.client.topics import OffsetSpec
from shoal.console import figures, queues
from shoal.console.history import History
from shoal.console.oldest import OldestRecords
from shoal.console.sample import Metrics, Sample

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from shoal.client.admin import LogDir
    from shoal.client.client import Client
    from shoal.client.lag import Position

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
        self.sample: Sample | None = None
        self.queues: list[queues.Queue] = []
        self.history = History()
        #: Why the last attempt failed, and since when attempts fail (epoch milliseconds).
        self.error: str | None = None
        self.error_since_ms = 0
        self._client = client
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._hurried = asyncio.Event()
        self._oldest = OldestRecords(client)
        self._kept: dict[str, Any] = {}
        self._problems: list[str] = []
        self._slow_at_s = float("-inf")
        #: The share groups whose dead-letter topics were read.
        self._known: frozenset[str] = frozenset()
        self._addresses: list[str] = []
        self._is_shoal = False

    @property
    def change(self) -> asyncio.Event:
        """The event that the next sample or error sets."""
        return self._changed

    @property
    def time(self) -> str:
        """The time of the last sample; empty before the first."""
        return "" if self.sample is None else figures.clock(self.sample.at_ms)

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
            self.sample = await self._read()
        except (ClientError, OSError) as error:
            self._failed(str(error))
        except Exception:
            # A fault of the console. The pages state it, and the next sample may succeed.
            log.exception("sample")
            self._failed("the console failed; its error output has the reason")
        else:
            self.error = None
            points = queues.points(self.sample)
            for key, point in points.items():
                self.history.add(key, point)
            self.history.keep(set(points))
            self.queues = queues.queues(self.sample, self.history)
        self._wake()

    def _failed(self, why: str) -> None:
        if self.error is None:
            self.error_since_ms = int(time.time() * 1000)
        self.error = why

    async def _part(self, what: str, call: Awaitable[T], otherwise: T) -> T:
        """Return a call's result. If it fails, note the problem and return its earlier result."""
        try:
            self._kept[what] = found = await call
        except ClientError as error:
            text = remedy(error) if isinstance(error, KafkaError) else f"{error}."
            self._problems.append(f"{what} could not be read: {text}")
            return self._kept.get(what, otherwise)
        return found

    async def _read(self) -> Sample:
        admin = self._client.admin
        self._problems = []
        cluster = await admin.describe_cluster(fenced=True)
        topics = await admin.topics.list(internal=True)
        health = await cluster_health.judge(self._client, cluster, topics)
        every = await self._part("The groups", admin.groups.list(), {})
        listed = {name: one for name, one in every.items() if one.type != STREAMS}
        share = [name for name, one in listed.items() if one.type == SHARE]
        groups = await self._part("The share groups", self._describe(share), {})
        positions: Mapping[str, list[Position]] = await self._part(
            "The positions of groups", self._positions(listed.values()), {}
        )
        paused = await self._part(
            "The configs of groups", scrape.paused(admin, groups.values()), set()
        )
        is_late = time.monotonic() - self._slow_at_s >= SLOW_S
        if is_late or not self._known.issuperset(share):
            await self._read_slow(share, [b.node_id for b in cluster.brokers], cluster.fenced)
        letter_topics: dict[str, str] = self._kept.get("letter topics", {})
        letters = await self._part("The dead letters", self._letters(letter_topics, topics), {})
        numbers = await self._numbers()
        metrics = Metrics.SILENT if self._is_shoal else Metrics.UNSUPPORTED
        oldest = await self._oldest.read(
            (p.where, p.offset)
            for name in groups
            for p in sorted(positions.get(name, ()), key=lambda p: -(p.lag or 0))
            if p.lag and p.offset is not None
        )
        return Sample(
            int(time.time() * 1000),
            time.monotonic(),
            cluster,
            health,
            topics,
            listed,
            groups,
            positions,
            numbers,
            metrics if numbers is None else Metrics.REPORTED,
            frozenset(paused),
            letter_topics,
            letters,
            self._kept.get("The disks of brokers", {}),
            oldest,
            tuple(dict.fromkeys([*self._problems, *self._kept.get("slow problems", ())])),
            await self._log_starts(groups, positions, numbers),
        )

    async def _describe(self, names: list[str]) -> dict[str, Group]:
        found = await self._client.admin.groups.describe_share(names) if names else {}
        return {name: one for name, one in found.items() if isinstance(one, Group)}

    async def _positions(self, listed: Any) -> dict[str, list[Position]]:
        return await lag.positions(self._client.admin, listed) if listed else {}

    async def _read_slow(
        self, share: list[str], brokers: list[int], fenced: frozenset[int]
    ) -> None:
        """Read what rarely changes."""
        admin = self._client.admin
        before, self._problems = self._problems, []
        by_topic = await self._part(
            "The dead-letter topics of groups", groups_by_topic(admin, share), {}
        )
        self._kept["letter topics"] = {g: topic for topic, some in by_topic.items() for g in some}
        await self._part(
            "The disks of brokers",
            self._disks([node for node in brokers if node not in fenced]),
            {},
        )
        await self._part("The metrics listeners of brokers", self._find_metrics(), None)
        self._kept["slow problems"] = self._problems
        self._problems = before
        self._known = frozenset(share)
        self._slow_at_s = time.monotonic()

    async def _disks(self, nodes: list[int]) -> dict[int, tuple[LogDir, ...]]:
        return await self._client.admin.log_dirs(nodes, partitions=False)

    async def _find_metrics(self) -> None:
        admin = self._client.admin
        brokers = [
            Resource(ResourceType.BROKER, str(broker.node_id))
            for broker in (await admin.describe_cluster()).brokers
        ]
        described = await admin.configs.describe(brokers[:1], keys=[scrape.LISTENER_CONFIG])
        self._is_shoal = any(
            not isinstance(entries, KafkaError) and scrape.LISTENER_CONFIG in entries
            for entries in described.values()
        )
        self._addresses = self._metrics or await scrape.addresses(admin)

    async def _numbers(self) -> scrape.Numbers | None:
        if not self._addresses:
            return None
        return await scrape.numbers(
            self._client.admin, self._addresses, lambda text: self._problems.append(text)
        )

    async def _log_starts(
        self,
        groups: Mapping[str, Group],
        positions: Mapping[str, list[Position]],
        numbers: scrape.Numbers | None,
    ) -> dict[TopicPartition, int]:
        """Return the log starts that `queues.describe_skipped` needs. Each is read once."""
        if numbers is None:
            return {}
        wanted = {
            one.where
            for name in groups
            for one in positions.get(name, ())
            if one.offset
            and (found := numbers.partitions.get((name, one.where)))
            and not found.acquired
        }
        known: dict[TopicPartition, int] = self._kept.get("log starts", {})
        try:
            known |= await skipped_records.read_log_starts(
                self._client.admin, wanted - known.keys()
            )
        except ClientError:
            pass  # The sentence is only a hint, and the next sample may have it.
        self._kept["log starts"] = starts = {p: known[p] for p in wanted & known.keys()}
        return starts

    async def _letters(
        self, letter_topics: Mapping[str, str], topics: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the number of records in each dead-letter topic."""
        admin = self._client.admin
        names = sorted(set(letter_topics.values()) & topics.keys())
        wanted = [TopicPartition(name, p.index) for name in names for p in topics[name].partitions]
        if not wanted:
            return {}
        found = dict.fromkeys(names, 0)
        for spec, sign in ((OffsetSpec.LATEST, 1), (OffsetSpec.EARLIEST, -1)):
            listed = await admin.topics.offsets(dict.fromkeys(wanted, int(spec)), timeout_ms=2_000)
            for where, one in listed.items():
                if not isinstance(one, KafkaError):
                    found[where.topic] += sign * one.offset
        return {name: max(0, number) for name, number in found.items()}


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
