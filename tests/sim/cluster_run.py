"""One run: a cluster of real brokers under load and faults, which must recover.

The seed draws the size of the cluster, the clients and the faults. After the faults all machines
are repaired, and the cluster has to recover: every broker serves, every replica is in sync, and
both groups have processed all records. At the end a consumer reads the topic, and all logs are
compared.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

from sim import cluster_classic as classic
from sim import cluster_clients as clients
from sim import cluster_ordered as ordered
from sim import cluster_pipeline as pipeline
from sim import cluster_queues as queues
from sim import cluster_ranges as ranges
from sim import cluster_share_clients as shares
from sim import cluster_streams as streams
from sim import cluster_tenants as tenants
from sim import cluster_transactions as transactions
from sim import cluster_unique as unique
from sim.cluster_brokers import SimCluster
from sim.cluster_clients import Workload
from sim.cluster_faults import FAULTS, End
from sim.cluster_kernel import Kernel
from support.runs.seeding import DRAWN_FROM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Interval of the checks of all brokers.
LOOK_S = 0.1
#: How long a cluster may take to recover after the last fault.
REST_S = 60.0
SHORT_UP_TO = 1000
#: Optional parts of a run beside the producer, the consumer group and the share group.
PARTS = (
    "transactions",
    "classic",
    "mixed",
    "queues",
    "streams",
    "ranges",
    "pipeline",
    "ordered",
    "unique",
    "tenants",
)
#: The shares of the drawn runs with an application of Kafka Streams, and of the others with a group
#: that has key ranges. Each takes the place of other consumer groups, so that these runs do not
#: cost more.
STREAMS_SHARE, RANGES_SHARE, REPLACED = 0.25, 0.25, ("classic", "mixed")
#: The share of the drawn runs with a producer that has several batches under way.
PIPELINE_SHARE = 0.2
#: The share of the drawn runs with transactions in the order of partitions, in the place of other
#: groups and transactions.
ORDERED_SHARE, UNORDERED = 0.03, ("transactions", "streams", "ranges", *REPLACED)

#: The share of the drawn runs with producers of unique jobs.
UNIQUE_SHARE = 0.15
#: The share of the drawn runs with a group that is fair between tenants, in the place of the other
#: queues.
TENANTS_SHARE = 0.15


class Run:
    """The run of one seed."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 0,
        faults: Sequence[str] | None = None,
        duration_s: float = 0.0,
        short: bool = False,
        synced: bool | None = None,
        parts: Sequence[str] | None = None,
        rest_s: float = REST_S,
        keep_trace: bool = False,
    ) -> None:
        """Options that are not given are drawn. A `short` run has a third of the duration. `rest_s`
        bounds each step of the recovery."""
        self.seed = seed
        self.kernel = Kernel(seed, keep_trace=keep_trace)
        rng = self.rng = random.Random(f"{seed} plan")
        count = rng.choice((1, 3, 3, 3, 3, 5))
        self.count = brokers or count
        drawn = rng.random() < (0.7 if self.count == 1 else 0.3)
        self.synced = drawn if synced is None else synced
        drawn_s = rng.uniform(6.0, 14.0)
        self.duration_s = duration_s or (drawn_s / 3 if short else drawn_s)
        # A separate generator: a run with given faults does not change when there are more.
        of_faults = random.Random(f"{seed} faults")
        some = [of_faults.choice(sorted(FAULTS)) for _ in range(of_faults.randint(1, 5))]
        self.faults = some if faults is None else list(faults)
        of_parts = random.Random(f"{seed} parts")
        drawn_parts = [part for part in PARTS[:4] if of_parts.random() < 0.4]
        if of_parts.random() < STREAMS_SHARE:
            drawn_parts = [p for p in drawn_parts if p not in REPLACED] + ["streams"]
        elif random.Random(f"{seed} ranges").random() < RANGES_SHARE:
            drawn_parts = [p for p in drawn_parts if p not in REPLACED] + ["ranges"]
        if random.Random(f"{seed} pipeline").random() < PIPELINE_SHARE:
            drawn_parts = [*drawn_parts, "pipeline"]
        if random.Random(f"{seed} ordered").random() < ORDERED_SHARE:
            drawn_parts = [p for p in drawn_parts if p not in UNORDERED] + ["ordered"]
        if random.Random(f"{seed} unique").random() < UNIQUE_SHARE:
            drawn_parts = [*drawn_parts, "unique"]
        if random.Random(f"{seed} fair").random() < TENANTS_SHARE:
            drawn_parts = [p for p in drawn_parts if p != "queues"] + ["tenants"]
        self.parts = drawn_parts if parts is None else list(parts)
        self.rest_s = rest_s

    def go(self) -> Run:
        """Run it. Raises `AssertionError` for a broken rule."""
        try:
            with streams.slices(self.seed), ranges.balanced(self.seed):
                self._go()
        finally:
            for machine in self.cluster.machines():
                machine.bury()
        return self

    def _go(self) -> None:
        kernel = self.kernel
        configs = {"shoal.log.flush.group.commit": "true"} if self.synced else {}
        if (
            random.Random(f"{self.seed} snapshots").random() < 0.4
        ):  # Then replicas that restart get snapshots.
            configs["metadata.log.max.record.bytes.between.snapshots"] = "2000"
        if "streams" in self.parts:
            configs |= streams.configs(self.seed)
        if "ranges" in self.parts:
            configs |= ranges.configs(self.seed)
        cluster = self.cluster = SimCluster(kernel, self.count, configs)
        cluster.synced = self.synced
        load = self.load = Workload(cluster)
        kernel.trace(f"{self.count} brokers, synced {self.synced}, faults {self.faults}")
        for machine in cluster.brokers.values():
            machine.start()
        kernel.after(LOOK_S, self._look)
        load.run("admin", clients.prepare)
        cluster.until(lambda: load.prepared, 30.0, "a fresh cluster serves")
        self._run_clients()
        if "queues" in self.parts:
            self._queues()
        self._befall()
        self._rest()

    def _run_clients(self) -> None:
        load = self.load
        for index in range(self.rng.randint(1, 2)):
            load.run(f"producer-{index}", clients.produce)
        for index in range(self.rng.randint(1, 3)):
            load.run(f"reader-{index}", clients.read_in_group)
        for index in range(self.rng.randint(1, 3)):
            load.run(f"worker-{index}", shares.work_in_share_group)
        load.run("observer", clients.observe)
        self._run_parts()

    def _run_parts(self) -> None:
        """Start the clients of optional parts that need no preparation."""
        load = self.load
        if "pipeline" in self.parts:
            load.run("pipeline", pipeline.produce)
        if "transactions" in self.parts:
            load.run("accountant", transactions.prepare)
            for index in range(self.rng.randint(1, 2)):
                load.run(f"processor-{index}", transactions.process)
            load.run("auditor", transactions.audit)
            load.run("examiner", transactions.examine)
        for part, most, program in (
            ("classic", 3, classic.read_in_classic_group),
            ("mixed", 2, classic.read_in_mixed_group),
        ):
            for index in range(self.rng.randint(1, most) if part in self.parts else 0):
                load.run(f"{part}-{index}", program)
        for part, start in (
            ("streams", self._streams),
            ("ranges", self._ranges),
            ("unique", self._unique),
            ("tenants", self._tenants),
        ):
            if part in self.parts:
                start()
        if "ordered" in self.parts:
            load.ordered = ordered.OrderedHistory()
            load.run("umpire", ordered.prepare)
            for index in range(ordered.MEMBERS):
                load.run(f"ranker-{index}", ordered.rank)

    def _queues(self) -> None:
        """Start two share groups that use more than the defaults."""
        load, rng = self.load, random.Random(f"{self.seed} queues")
        load.queues = queues.Queues(load)
        load.run("foreman", queues.prepare)
        self.cluster.until(lambda: load.queues.prepared, 30.0, "the queues are there")
        load.run("boss", queues.produce)
        load.run("scaler", shares.watch_lags)
        for group, member in (("sorter", queues.sort), ("hoarder", queues.hoard)):
            for index in range(rng.randint(1, 2)):
                load.run(f"{group}-{index}", member)

    def _streams(self) -> None:
        """Start an application of one to three threads, and a tool that watches it."""
        load = self.load
        load.application = streams.Application(load)
        for index in range(random.Random(f"{self.seed} streams").randint(1, 3)):
            load.run(f"thread-{index}", streams.run)
        load.run("inspector", streams.watch)

    def _ranges(self) -> None:
        """Start members that share partitions, and a tool that watches the stable offset."""
        load = self.load
        load.ranges = ranges.RangesHistory(load)
        load.run("divider", ranges.prepare)
        for index in range(ranges.MEMBERS):
            load.run(f"sharer-{index}", ranges.share)
        load.run("surveyor", ranges.observe)

    def _unique(self) -> None:
        """Start two producers of the same jobs."""
        load = self.load
        load.unique = unique.UniqueHistory()
        load.logs.on_batch(load.unique.on_batch)
        load.run("registrar", unique.prepare)
        self.cluster.until(lambda: load.unique.prepared, 30.0, "the topic is there")
        for index in range(2):
            load.run(f"vendor-{index}", unique.produce)

    def _tenants(self) -> None:
        """Start a group that is fair between tenants."""
        load = self.load
        load.tenants = tenants.TenantsHistory(load)
        load.logs.on_batch(load.tenants.on_batch)
        load.looks.append(load.tenants.look)
        load.run("landlord", tenants.prepare)
        self.cluster.until(lambda: load.tenants.prepared, 30.0, "the group has its configs")
        load.run("guest", tenants.produce)
        for index in range(2):
            load.run(f"clerk-{index}", tenants.work)

    def _look(self) -> None:
        self.load.look()
        self.kernel.after(LOOK_S, self._look)

    def _befall(self) -> None:
        """Begin and end faults until the time is over."""
        kernel, rng = self.kernel, self.rng
        ends: list[End] = []
        begin = kernel.now + 1.0

        def befall(name: str, lasts_s: float) -> None:
            kernel.trace(f"fault: {name} for {lasts_s:.2f} s")
            end = FAULTS[name](self.load, rng)
            ends.append(end)
            kernel.after(lasts_s, lambda: over(end))

        def over(end: End) -> None:
            if end in ends:
                ends.remove(end)
                end()

        last = begin + self.duration_s
        for name in self.faults:
            at = rng.uniform(begin, last - 1.0)
            lasts_s = min(rng.choice((0.3, 1.5, 4.0, 8.0)) * rng.uniform(0.7, 1.3), last - at)
            kernel.at(at, lambda name=name, lasts_s=lasts_s: befall(name, lasts_s))  # type: ignore[misc]
        kernel.run(last)
        while ends:
            ends.pop()()
        kernel.trace("all faults are over")

    def _rest(self) -> None:
        cluster, load = self.cluster, self.load
        for machine in cluster.brokers.values():
            machine.start()
        for client in cluster.clients[1:]:
            if client.process is None:
                load.boot(client)
        load.producing = False
        load.draining = True
        cluster.until(cluster.fully_replicated, self.rest_s, "all replicas are in sync")
        cluster.until(
            lambda: not any(load.under_way.values()),
            self.rest_s,
            "all produce requests have responses",
        )
        load.run("last reader", clients.read_all)
        cluster.until(lambda: load.final is not None, self.rest_s, "both groups are through")
        self._rest_of_parts()
        load.logs.look_through()
        load.shares.look()
        assert load.final is not None
        load.histories.finish(load.final, load.ends)
        load.share.finish(load.final)
        if "queues" in self.parts:
            load.queues.finish()
        if "classic" in self.parts:
            load.classic.finish(load.final)
        if "streams" in self.parts:
            load.application.finish(load.final)
        if "ranges" in self.parts:
            load.ranges.finish()
        if "unique" in self.parts:
            load.unique.finish()
        if "tenants" in self.parts:
            load.tenants.finish()

    def _rest_of_parts(self) -> None:
        """Wait until the optional parts are through."""
        cluster, load = self.cluster, self.load
        if "transactions" in self.parts:
            load.run("last auditor", transactions.audit_all)
            cluster.until(lambda: load.audited, self.rest_s, "all input is processed")
        if "classic" in self.parts:
            load.run("last classic", classic.read_to_the_end)
            through = load.classic
            cluster.until(lambda: through.is_through, self.rest_s, "the classic group is through")
        if "queues" in self.parts:
            load.run("last clerk", queues.read_to_the_end)
            cluster.until(lambda: load.queues.is_through, self.rest_s, "the queues are through")
        if "streams" in self.parts:
            load.run("last inspector", streams.read_to_the_end)
            app = load.application
            cluster.until(lambda: app.is_through, self.rest_s, "the application is through")
        if "ranges" in self.parts:
            load.run("last surveyor", ranges.read_to_the_end)
            cluster.until(
                lambda: load.ranges.log is not None, self.rest_s, "all key ranges are through"
            )
        if "tenants" in self.parts:
            load.run("last clerk of tenants", tenants.read_to_the_end)
            cluster.until(lambda: load.tenants.is_through, self.rest_s, "all tenants are served")
        if "ordered" in self.parts:
            load.run("last umpire", ordered.read_to_the_end)
            cluster.until(lambda: load.ordered.is_through, self.rest_s, "all records are ranked")


@contextlib.contextmanager
def shown(run: Run) -> Iterator[None]:
    """Print the trace of a run that fails."""
    try:
        yield
    except BaseException:
        print("\n".join(run.kernel.lines or ()))
        raise


def of_seed(seed: int, **options: Any) -> Run:
    """Return the run of a single seed: a short one for CI up to `SHORT_UP_TO` and for drawn seeds,
    and a long one for the seeds between them, which nightly runs use."""
    return Run(seed, short=seed <= SHORT_UP_TO or seed >= DRAWN_FROM, **options)


def try_seed(seed: int) -> None:
    """Run a seed. Raises the errors of `Run.go`."""
    of_seed(seed).go()


def simulate(seed: int, **options: Any) -> Run:
    """Run a seed. Raises `AssertionError` for a broken rule."""
    return Run(seed, **options).go()
