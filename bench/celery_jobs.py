"""Compare `shoal.worker` with Celery: no-op jobs of 100 bytes, eight at a time in each worker.

`python bench/celery_jobs.py [JOBS]` fills a queue, and drains it by one worker after the other:
`shoal.worker` with coroutines, and Celery with threads and with processes, on Redis and on Shoal.
It prints jobs per second, and the CPU time of the broker and the worker for a job, of the best of
the rounds. Redis stores nothing on disk, as it is mostly set up for Celery; Shoal stores all jobs.
It needs the package `redis` and a Redis server; REDIS_SERVER names the program if it is not in
PATH.

Rates and CPU times count from the first job on, so starting a worker costs nothing here. Each job
writes one byte to a file, in all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from brokers import process_cpu_s
from celery import Celery
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.worker import Queue
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOTS, ROUNDS, VALUE, TOPIC = 8, 3, "x" * 100, "jobs"
#: What `shoal.worker` gets, because it would be done before anybody looks.
MORE = 10

#: The program of both workers.
APPS = """
import os

from celery import Celery
from shoal.worker import Worker

DONE = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_APPEND)
app = Celery("jobs", broker=os.environ["BENCH_BROKER"])
app.conf.update(task_ignore_result=True, task_acks_late=True, task_default_queue="celery")
worker = Worker("bench")


@app.task(name="job")
def run_job(payload):
    os.write(DONE, b".")


@worker.handler("jobs", concurrency=8)
async def handle(payload: bytes) -> None:
    os.write(DONE, b".")
"""


class Figures(NamedTuple):
    """Jobs per second, and CPU microseconds of broker and worker for a job."""

    rate: float
    broker_us: float
    worker_us: float


def run_celery(pool: str) -> tuple[str, ...]:
    """Return the command of Celery's worker."""
    words = ("-A", "apps", "worker", "-P", pool, "-c", f"{SLOTS}", "--without-gossip")
    return (sys.executable, "-m", "celery", *words, "--without-mingle", "-l", "WARNING")


def measure(
    folder: Path, command: tuple[str, ...], broker_pid: int, environment: dict[str, str], jobs: int
) -> Figures:
    """Run a worker until all jobs are done."""
    done = folder / "done"
    done.write_bytes(b"")
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment, "BENCH_DONE": str(done)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            eventually(lambda: done.stat().st_size or worker.poll() is not None)
            assert worker.poll() is None, (folder / "worker.log").read_text()[-2_000:]
            first, began_s = done.stat().st_size, time.perf_counter()
            broker_s, worker_s = process_cpu_s(broker_pid), count_group_s(worker.pid)
            eventually(lambda: done.stat().st_size >= jobs, timeout_s=600)
            seconds = time.perf_counter() - began_s
            broker_s = process_cpu_s(broker_pid) - broker_s
            worker_s = count_group_s(worker.pid) - worker_s
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
    count = jobs - first
    return Figures(count / seconds, broker_s / count * 1e6, worker_s / count * 1e6)


def count_group_s(leader: int) -> float:
    """Return the CPU seconds of a worker and its processes."""
    total_s = 0.0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == leader:
                    total_s += process_cpu_s(int(entry.name))
    return total_s


def fill_celery(broker: str, jobs: int) -> None:
    """Send jobs to Celery's queue."""
    app = Celery("fill", broker=broker)
    app.conf.task_default_queue = "celery"
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(jobs):
            app.send_task("job", (VALUE,), producer=producer, ignore_result=True)
    app.close()


def fill_shoal(bootstrap: str, jobs: int) -> None:
    """Send jobs to a topic."""

    async def fill() -> None:
        async with Client(bootstrap) as client:
            if TOPIC not in await client.admin.topics.list():
                expect(await client.admin.topics.create([NewTopic(TOPIC, 1)]))
        async with Queue(TOPIC, settings=bootstrap) as queue:
            await queue.put_many([VALUE.encode()] * jobs)

    asyncio.run(fill())


@contextlib.contextmanager
def run_redis(folder: Path) -> Iterator[tuple[str, int]]:
    """Run Redis; yield its URL and its process id."""
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is missing: install it, or set REDIS_SERVER to its path")
    (port,) = free_ports(1)
    words = ("--port", f"{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with (folder / "redis.log").open("wb") as log:
        redis = subprocess.Popen((program, *words), cwd=folder, stdout=log)
        try:
            eventually(lambda: b"Ready to accept" in (folder / "redis.log").read_bytes())
            yield f"redis://127.0.0.1:{port}/0", redis.pid
        finally:
            redis.terminate()
            redis.wait()


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    best: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as running:
        folder = Path(directory)
        (folder / "apps.py").write_text(APPS)
        redis, redis_pid = running.enter_context(run_redis(folder))
        broker = ShoalProcess(folder / "data").start()
        running.callback(broker.stop)
        shoal = f"shoal://{broker.bootstrap}"

        def drain(
            side: str,
            fill: Callable[[int], None],
            command: tuple[str, ...],
            pid: int,
            url: str,
            count: int,
        ) -> None:
            fill(count)
            environment = {"BENCH_BROKER": url, "SHOAL_BOOTSTRAP_SERVERS": broker.bootstrap}
            figures = measure(folder, command, pid, environment, count)
            best[side] = max(best.get(side, figures), figures)

        for _ in range(ROUNDS):
            command = (str(Path(sys.executable).with_name("shoal")), "worker", "apps:worker")
            drain(
                "shoal.worker",
                lambda n: fill_shoal(broker.bootstrap, n),
                command,
                broker.pid,
                shoal,
                MORE * jobs,
            )
            for pool in ("threads", "prefork"):
                for name, url, pid in (("Redis", redis, redis_pid), ("Shoal", shoal, broker.pid)):
                    fill = lambda n, url=url: fill_celery(url, n)  # noqa: E731
                    drain(f"Celery on {name}, {pool}", fill, run_celery(pool), pid, url, jobs)
    for side, (rate, broker_us, worker_us) in best.items():
        print(
            f"{side}: {rate:,.0f} jobs/s; CPU for a job: {broker_us + worker_us:.0f} us, of it"
            f" {broker_us:.0f} us in the broker and {worker_us:.0f} us in the worker"
        )
    ours = best["shoal.worker"]
    theirs = max(figures for side, figures in best.items() if "Redis" in side)
    cpu = (ours.broker_us + ours.worker_us) / (theirs.broker_us + theirs.worker_us)
    print(f"shoal.worker to the better of Celery on Redis: {ours.rate / theirs.rate:.1f} x the"
          f" rate, {cpu:.2f} of the CPU")  # fmt: skip


if __name__ == "__main__":
    main()
