"""Waits of quiet tenants with Redis, one list for each tenant, polled round robin:
`python bench/fair_redis.py [SCALE]`.

The load is that of `fair_tenants.quiet_waits`: a backlog of 1,000 busy tenants by Zipf, eight
members with 5 ms of work for a job, and 100 quiet tenants that send now and then. A member asks for
a job of any list, in an order that begins behind the tenant that it served last. It holds one job
at a time, and keeps it in a list of its own until it is done, as a queue without loss does.

Redis runs if `redis-server` is in PATH, or REDIS_SERVER names it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fair_tenants import MEMBERS, QUIET_PER_S, TENANTS, WORK_S, collect_waits, draw_tenants
from loads import percentiles
from redis_loads import Connection
from redis_servers import Redis, find_server

if TYPE_CHECKING:
    from load_setup import Figures

QUIET_TENANTS = 100
NAMES = [f"busy-{n}" for n in range(TENANTS)] + [f"quiet-{n}" for n in range(QUIET_TENANTS)]
#: Takes the first job of the lists in an order that begins at a tenant, and moves it to the
#: member's own list. Returns the tenant's number and the job.
TAKE = """
local first, held = tonumber(ARGV[1]), KEYS[#KEYS]
for step = 0, #KEYS - 2 do
  local number = (first + step) % (#KEYS - 1)
  local job = redis.call('LMOVE', KEYS[number + 1], held, 'LEFT', 'RIGHT')
  if job then return {number, job} end
end
return false
"""
#: How long a member waits when all lists are empty, in seconds.
IDLE_S = 0.002


def measure_waits(address: str, backlog: int, quiet: int) -> Figures:
    """Return the time from the send of a quiet tenant's job until a member begins it."""
    client = Connection(address)
    jobs = [("RPUSH", f"busy-{tenant}", f"{0:017.6f}") for tenant in draw_tenants(backlog)]
    for begin in range(0, len(jobs), 500):
        client.call_all(jobs[begin : begin + 500])
    waits: Any = multiprocessing.Queue()
    end, ready = multiprocessing.Event(), multiprocessing.Semaphore(0)
    members = [
        multiprocessing.Process(target=_work, args=(address, number, ready, end, waits))
        for number in range(MEMBERS)
    ]
    sender = threading.Thread(target=_send_quiet, args=(client, quiet))
    return percentiles(sorted(collect_waits(members, sender, quiet, ready, end, waits)))


def _send_quiet(client: Connection, count: int) -> None:
    for n in range(count):
        client.call("RPUSH", f"quiet-{n % QUIET_TENANTS}", f"{time.time():017.6f}")
        time.sleep(1 / QUIET_PER_S)


def _work(address: str, number: int, ready: Any, end: Any, waits: Any) -> None:
    """One member. It begins at a tenant of its own, so that members do not all ask the same."""
    client, held = Connection(address), f"held-{number}"
    script = client.call("SCRIPT", "LOAD", TAKE)
    tenant, is_ready = number * len(NAMES) // MEMBERS, False
    while not end.is_set():
        taken = client.call("EVALSHA", script, len(NAMES) + 1, *NAMES, held, tenant)
        if taken is None:
            time.sleep(IDLE_S)
            continue
        served, job = taken
        tenant = (served + 1) % len(NAMES)
        if not is_ready:
            is_ready = True
            ready.release()
        if served >= TENANTS:
            waits.put(time.time() - float(job))
        time.sleep(WORK_S)
        client.call("LREM", held, 1, job)


def main(scale: float) -> None:
    if find_server() is None:
        sys.exit("redis-server is missing. Install it, or set REDIS_SERVER to its path.")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        server = Redis(Path(folder))
        server.start()
        try:
            backlog, quiet = (max(100, int(count * scale)) for count in (20_000, 1000))
            print(json.dumps(measure_waits(f"127.0.0.1:{server.port}", backlog, quiet)))
        finally:
            server.kill9()


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 1.0)
