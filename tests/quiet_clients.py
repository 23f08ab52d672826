"""A client that does little, and measures what a broker does for others while it waits."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import permissions
from shoal.protocol.api import ApiKey
from wireclient import WireClient

if TYPE_CHECKING:
    from servers import ShoalProcess

#: Pause between two requests, and the interval of heartbeats, in seconds.
PAUSE_S, HEARTBEAT_S = 0.002, 1.0


def cpu_s(broker: ShoalProcess) -> float:
    """Return the CPU time of a broker, in seconds. It does not grow while other processes run."""
    return time.clock_gettime((~broker.pid << 3) | 2)  # As clock_getcpuclockid(3) makes it.


class QuietClient(threading.Thread):
    """Asks for the versions of APIs all the time, and is a member of a consumer group.

    `longest_s` is the most CPU time that the broker took from a request to its answer, in seconds:
    no turn of its event loop was longer. `fenced` are the errors of heartbeats.
    """

    def __init__(self, broker: ShoalProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._ending = threading.Event()
        self._asking = threading.Lock()
        self._client = WireClient(broker.bootstrap, source=permissions.ADMIN)
        self.longest_s = self.longest_wall_s = 0.0
        self.answers = 0
        self.fenced: list[int] = []
        self.failure: Exception | None = None

    def reset(self) -> None:
        """Forget what was measured until now, with the request under way."""
        with self._asking:
            self.longest_s = self.longest_wall_s = 0.0

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _run(self) -> None:
        beat_at, epoch = 0.0, 0
        while not self._ending.wait(PAUSE_S):
            with self._asking:
                began, began_wall = cpu_s(self._broker), time.monotonic()
                self._client.call(ApiKey.API_VERSIONS, 0, {})
                self.longest_s = max(self.longest_s, cpu_s(self._broker) - began)
                self.longest_wall_s = max(self.longest_wall_s, time.monotonic() - began_wall)
                self.answers += 1
            if time.monotonic() > beat_at:
                beat_at = time.monotonic() + HEARTBEAT_S
                epoch = self._beat(epoch)

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
