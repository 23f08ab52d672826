"""Clients in the client's pod that continue while brokers come and go."""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.resources import Resources

#: Produces until it gets a line, and fifty more records; then prints the numbers of sent and of
#: refused records.
PRODUCE = """
import asyncio, sys
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.settings import Settings

async def main():
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    sent = failed = after = 0
    async with Client(Settings.from_environment()) as client:
        async with client.producer() as producer:
            while not stop.done() or after < 50:
                after += stop.done()
                try:
                    await (await producer.send("jobs", b"%d" % sent))
                    sent += 1
                    if sent == 1:
                        print("begun", flush=True)
                except ClientError as error:
                    failed += 1
                    print(error, file=sys.stderr)
                await asyncio.wait([stop], timeout=0.02)
    print(sent, failed)

asyncio.run(main())
"""


@contextmanager
def producing(queue: Resources) -> Iterator[list[int]]:
    """Run a producer in the client's pod; afterwards the list has the numbers of sent and failed
    records."""
    counts: list[int] = []
    with starting_to_produce(queue) as process:
        yield counts
        counts.extend(map(int, process.communicate("\n", timeout=60)[0].split()))


@contextmanager
def starting_to_produce(queue: Resources) -> Iterator[subprocess.Popen[str]]:
    """Run a producer in the client's pod, which has sent a record, until it ends."""
    with _in_client(queue, "python3", "-c", PRODUCE) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        yield process


@contextmanager
def consuming(queue: Resources, group: str, members: int) -> Iterator[list[tuple[int, int]]]:
    """Run share consumers in the client's pod until no record came for ten seconds; afterwards the
    list has each accepted delivery: value and delivery count."""
    deliveries: list[tuple[int, int]] = []
    words = ("shoal", "share-consume", "jobs", f"--group={group}", "--timeout=10s")
    with ExitStack() as stack:
        running = [
            stack.enter_context(_in_client(queue, *words, "--format={value} {delivery_count}"))
            for _ in range(members)
        ]
        yield deliveries
        for process in running:
            for line in process.communicate(timeout=120)[0].splitlines():
                value, count = map(int, line.split())
                deliveries.append((value, count))


def assert_taken_once(queue: Resources, count: int) -> None:
    """Check that members of the group `workers` get each of `count` records, and none twice."""
    taken = Counter(map(int, queue.share_consume("jobs", "workers", "-n", str(count))))
    again = {number: times for number, times in taken.items() if times > 1}
    missing = sorted(set(range(count)) - set(taken))
    assert (missing, again, taken.total()) == ([], {}, count)


def _in_client(queue: Resources, *words: str) -> subprocess.Popen[str]:
    servers = f"SHOAL_BOOTSTRAP_SERVERS=main-bootstrap.{queue.namespace}.svc:9092"
    exec_ = ("kubectl", "exec", f"--namespace={queue.namespace}", "--stdin", "client", "--")
    return subprocess.Popen(
        [*exec_, "env", servers, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=queue.cluster.environment(),
    )
