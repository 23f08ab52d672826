"""One broker and two on this machine, under the same clients: `python bench/one_host.py`.

A broker is one process on one core. The two brokers are one cluster from `shoal server
--brokers-per-host 2`, and each leads half of the partitions. One producer per partition sends
records of 1 KB with acks=1 to one replica. Then one consumer per partition reads them. The bench
prints the CPU of clients and of brokers: on a machine of two cores they share it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokers import SHOAL, Broker, process_cpu_s
from clusters import eventually
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from load_checks import LoadFailed, Stall, Taken, random_values
from load_setup import CHECKED, QUIET, produce

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 2
RECORD_BYTES = 1024
#: Number of times that consumers read the records. One time is too short to reach full speed.
PASSES = 5


class Host(Broker):
    """`shoal server` with a number of brokers."""

    name = "shoal"

    def __init__(self, directory: Path, brokers: int) -> None:
        super().__init__(directory)
        self.brokers = brokers

    def command(self) -> list[str]:
        return [
            *SHOAL,
            "server",
            f"--brokers-per-host={self.brokers}",
            f"--listener={self.bootstrap}",
            f"--data-dir={self.directory / 'data'}",
            "--log-level=warning",
        ]

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return super().cpu_s() + sum(process_cpu_s(int(child)) for child in children)


def send(bootstrap: str, topic: str, count: int, partition: int) -> None:
    """Fill a partition."""
    produce(bootstrap, topic, count, random_values(RECORD_BYTES), first=partition, acks="1")


def receive(bootstrap: str, topic: str, count: int, partition: int) -> None:
    """Read the `count` records of a partition `PASSES` times."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "fetch.max.bytes": 50 << 20,
            "max.partition.fetch.bytes": 8 << 20,
            "enable.auto.commit": False,
            # librdkafka pauses for a second if it holds more than the requested bytes.
            "queued.max.messages.kbytes": 1 << 17,
            "fetch.queue.backoff.ms": 10,
            **CHECKED,
            **QUIET,
        }
    )
    for _ in range(PASSES):
        consumer.assign([TopicPartition(topic, partition, 0)])
        taken, stall = Taken(PARTITIONS), Stall(count)
        while taken.new < count:
            taken.add(consumer.consume(10_000, 1.0))
            stall.look(taken.new)
        taken.check({partition: count})
    consumer.close()


def measured(
    host: Host, target: Callable[..., Any], words: list[tuple[Any, ...]], passes: int = 1
) -> dict[str, float]:
    """Return the clients' total rate in MB/s, and CPU seconds per GB."""
    size = sum(word[2] for word in words) * RECORD_BYTES * passes
    clients = [multiprocessing.Process(target=target, args=word) for word in words]
    before, began = host.cpu_s(), time.perf_counter()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    elapsed, used = time.perf_counter() - began, host.cpu_s() - before
    if failed := [client.exitcode for client in clients if client.exitcode]:
        raise LoadFailed(f"{len(failed)} of {len(clients)} clients failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_clients = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    gigabytes = size / 1e9
    return {
        "mb_s": round(size / elapsed / 1e6, 1),
        "brokers_cpu_s_gb": round(used / gigabytes, 2),
        "clients_cpu_s_gb": round(of_clients / gigabytes, 2),
        "cores": round((used + of_clients) / elapsed, 2),
    }


def run(folder: Path, brokers: int, count: int) -> dict[str, dict[str, float]]:
    host = Host(folder, brokers)
    host.prepare()
    host.launch()
    try:
        host.wait()
        admin = AdminClient({"bootstrap.servers": host.bootstrap})
        eventually(lambda: len(admin.list_topics(timeout=20).brokers) == brokers, "brokers")
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(60)
        words = [(host.bootstrap, "t", count, p) for p in range(PARTITIONS)]
        produced = measured(host, send, words)
        return {"produce": produced, "consume": measured(host, receive, words, PASSES)}
    finally:
        host.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        for number in range(options.rounds):
            for brokers in (1, 2):
                found = run(folder / f"{number}-{brokers}", brokers, options.count)
                print(f"{brokers} broker(s): {json.dumps(found)}", flush=True)
                shutil.rmtree(folder / f"{number}-{brokers}", ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
