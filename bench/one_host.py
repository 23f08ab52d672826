"""One broker and two on this machine, under the same producers: `python bench/one_host.py`.

A broker is one process on one core. Two of them form one cluster, and each leads half of the
partitions. As many producers as partitions send 1 KB records with acks=1 to one replica.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path

from brokers import free_port
from cluster_loads import send
from clusters import ShoalNode, eventually
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2


def run(folder: Path, nodes: int, count: int) -> dict[str, float]:
    """Records a second of all producers, and the brokers' CPU for each GB."""
    ports = {id: free_port() for id in range(1, nodes + 1)}
    brokers = [ShoalNode(folder / str(id), id, ports) for id in ports]
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.wait()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        eventually(lambda: len(admin.list_topics(timeout=20).brokers) == nodes, "brokers")
        created = NewTopic("t", PARTITIONS, 1, config={"min.insync.replicas": "1"})
        admin.create_topics([created])["t"].result(60)
        before, began = sum(b.cpu_s() for b in brokers), time.perf_counter()
        senders = [
            multiprocessing.Process(target=send, args=(bootstrap, "t", count, p, "1"))
            for p in range(PARTITIONS)
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        elapsed = time.perf_counter() - began
        gigabytes = PARTITIONS * count * 1024 / 1e9
        used_s = sum(b.cpu_s() for b in brokers) - before
        return {"rate": PARTITIONS * count / elapsed, "cpu_s_gb": used_s / gigabytes}
    finally:
        for broker in brokers:
            broker.kill9()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=300_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        for number in range(options.rounds):
            for nodes in (1, 2):
                found = run(folder / f"{number}-{nodes}", nodes, options.count)
                print(f"{nodes} broker(s): {json.dumps(found)}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
