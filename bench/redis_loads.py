"""Jobs of a consumer group of a Redis stream: `python redis_loads.py NAME HOST:PORT [SCALE]`.

The members are those of `job_queue` in `loads.py`, with a client that waits with a blocking socket.
"""

from __future__ import annotations

import multiprocessing
import socket
import uuid
from typing import TYPE_CHECKING, Any

from load_checks import LoadFailed, Work, random_values
from loads import Load, main, time_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Event

    from load_setup import Figures, Run

#: Members, the jobs that one asks for at a time, and the jobs that a producer sends at a time.
MEMBERS, READ, FILLED = 8, 100, 500
#: How long a member waits for a job, in milliseconds.
WAIT_MS = 200
GROUP = "jobs"


class Connection:
    """A connection that sends commands and reads their answers."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def call(self, *words: Any) -> Any:
        """Return the answer to a command. Raises `LoadFailed` for an error."""
        return self.call_all([words])[0]

    def call_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send several commands at once, and return their answers."""
        self._socket.sendall(b"".join(map(_encode, commands)))
        return [self._read() for _ in commands]

    def _read(self) -> Any:
        line: bytes = self._stream.readline().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._read() for _ in range(int(rest))]
        raise LoadFailed(f"Redis answered {line.decode() or 'nothing'}")


def _encode(words: Sequence[Any]) -> bytes:
    pieces = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(pieces)


class Job:
    """An entry of a stream, whose id begins with its place."""

    def __init__(self, id: bytes) -> None:
        self.id = id

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return int(self.id.split(b"-")[0]) - 1


def _worker(address: str, stream: str, name: str, go: Event, done: Event, work: Work) -> None:
    """One member: acknowledges each job, and waits for the answer."""
    one = Connection(address)
    go.wait()
    read = ("XREADGROUP", "GROUP", GROUP, name, "COUNT", READ, "BLOCK", WAIT_MS, "STREAMS")
    while not done.is_set():
        for _, entries in one.call(*read, stream, ">") or ():
            for id, _fields in entries:
                if one.call("XACK", stream, GROUP, id) != 1:
                    raise LoadFailed("Redis did not know a job that was acknowledged")
                work.finish((Job(id),))


def job_queue(run: Run) -> Figures:
    """Eight members of one group, which acknowledge one by one; jobs per second."""
    count, stream = run.count(20_000), f"bench-{uuid.uuid4().hex[:10]}"
    work, values = Work(1, count), random_values(100)
    go, done = multiprocessing.Event(), multiprocessing.Event()
    one = Connection(run.bootstrap)
    one.call("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
    workers = [
        multiprocessing.Process(
            target=_worker, args=(run.bootstrap, stream, f"member-{n}", go, done, work)
        )
        for n in range(MEMBERS)
    ]
    for worker in workers:
        worker.start()
    for first in range(0, count, FILLED):
        numbers = range(first, min(first + FILLED, count))
        commands = [("XADD", stream, f"{n + 1}-0", "v", values[n % len(values)]) for n in numbers]
        one.call_all(commands)
    rate = time_workers(workers, work, count, go, done)
    if (stored := one.call("XLEN", stream)) != count:
        raise LoadFailed(f"the stream has {stored} of {count} jobs")
    one.call("DEL", stream)
    return {"rate": rate, "repeated": work.repeated, "records": count}


#: By the name in `loads.py`.
LOADS: dict[str, Load] = {"jobs, 8 partitions, commit a record": job_queue}


if __name__ == "__main__":
    main(LOADS)
