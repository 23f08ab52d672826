"""A client that does little, and measures what a broker does for others while it waits."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.security import permissions

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

#: Pause between two requests, and the interval of heartbeats, in seconds.
PAUSE_S, HEARTBEAT_S = 0.002, 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(broker: ShoalProcess) -> float:
    """Return the CPU time of a broker, in seconds. It does not grow while other processes run."""
    return time.clock_gettime((~broker.pid << 3) | 2)  # As clock_getcpuclockid(3) makes it.


def hindering_s(broker: ShoalProcess) -> float:
    """Return the CPU time of a broker by which it may have held up its event loop, in seconds: all
    but what its other threads spent in the kernel, for instance to remove directories. They hold
    nothing there that the loop needs, and on a free core they go on beside it."""
    aside_ticks = 0
    for task in Path(f"/proc/{broker.pid}/task").iterdir():
        if task.name != str(broker.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # The thread ended.
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                aside_ticks += int(fields[12])  # stime, the 15th field of proc_pid_stat(5).
    return cpu_s(broker) - aside_ticks / TICKS_PER_S


class ThreadTimes(NamedTuple):
    """How long a thread has run, and how long it was ready and waited for a core, in seconds."""

    running_s: float
    queued_s: float

    @classmethod
    def from_kernel(cls, process_id: int, thread_id: int) -> ThreadTimes:
        stats = Path(f"/proc/{process_id}/task/{thread_id}/schedstat").read_text().split()
        return cls(int(stats[0]) / 1e9, int(stats[1]) / 1e9)  # As in the kernel's sched-stats.rst.


class QuietClient(threading.Thread):
    """Asks for the versions of APIs all the time, and is a member of a consumer group.

    `longest_s` is the most CPU time (`hindering_s`) that the broker took from a request to its
    answer, in seconds: no turn of its event loop was longer. `longest_loop_s` is the part of the
    loop's own thread, for when other threads have work for all cores. `longest_wall_s` is the
    longest time by the clock, without what the broker's event loop and this thread waited for a
    core. So it has the waits for disks and locks, too, and a busy machine adds little to it.
    `fenced` are the errors of heartbeats.
    """

    def __init__(self, broker: ShoalProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._ending = threading.Event()
        self._asking = threading.Lock()
        self._client = WireClient(broker.bootstrap, source=permissions.ADMIN)
        self.longest_s = self.longest_loop_s = self.longest_wall_s = 0.0
        self.answers = 0
        self.fenced: list[int] = []
        self.failure: Exception | None = None

    def reset(self) -> None:
        """Forget what was measured until now, with the request under way."""
        with self._asking:
            self.longest_s = self.longest_loop_s = self.longest_wall_s = 0.0

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _run(self) -> None:
        beat_at, epoch = 0.0, 0
        while not self._ending.wait(PAUSE_S):
            with self._asking:
                began, began_s = hindering_s(self._broker), time.monotonic()
                began_loop, began_own = self._read_times()
                self._client.call(ApiKey.API_VERSIONS, 0, {})
                loop, own = self._read_times()
                queued_s = loop.queued_s - began_loop.queued_s + own.queued_s - began_own.queued_s
                wall_s = time.monotonic() - began_s - queued_s
                self.longest_s = max(self.longest_s, hindering_s(self._broker) - began)
                loop_s = loop.running_s - began_loop.running_s
                self.longest_loop_s = max(self.longest_loop_s, loop_s)
                self.longest_wall_s = max(self.longest_wall_s, wall_s)
                self.answers += 1
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + HEARTBEAT_S
                epoch = self._beat(epoch)

    def _read_times(self) -> tuple[ThreadTimes, ThreadTimes]:
        """Return the times of the broker's event loop and of this thread."""
        own = ThreadTimes.from_kernel(os.getpid(), threading.get_native_id())
        return ThreadTimes.from_kernel(self._broker.pid, self._broker.pid), own

    def _beat(self, epoch: int) -> int:
        body = {
            "group_id": "quiet",
            "member_id": "quiet-member",
            "member_epoch": epoch,
            "rebalance_timeout_ms": 5000,
            "subscribed_topic_names": ["quiet"],
            "topic_partitions": [],
        }
        answer = self._client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, body)
        if answer.error_code:
            self.fenced.append(answer.error_code)
        return answer.member_epoch

    def end(self) -> None:
        """Stop, and raise what made it stop before."""
        self._ending.set()
        self.join()
        self._client.close()
        if self.failure is not None:
            raise self.failure
