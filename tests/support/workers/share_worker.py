"""One member of a share group as a separate process that reports events and can be killed.

`python share_worker.py BOOTSTRAP GROUP TOPIC SEED|hold [WORK_MS [RELEASED]]` prints a JSON object a
line.
Times are of the monotonic clock, which all processes of a machine share. `got` is a record that
arrived. `begin` and `end` enclose each commit; `end` has the error code of each partition (0 for
none). With `hold`, the member keeps the records of its first poll. WORK_MS is the longest time that
it works on one record. With RELEASED, that fraction of the records is released, the others are
accepted, and empty polls are reported as `idle`. `Member` is the other side: it starts a worker and
reads its events. With `java`, the worker is `compat/java/ShareWorker.java`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Chances of accepting, releasing and rejecting a record.
CHANCES = {"ACCEPT": 0.7, "RELEASE": 0.25, "REJECT": 0.05}


def now() -> float:
    return time.monotonic()


def tell(**event: object) -> None:
    """Write each line at once, so that a kill leaves whole lines."""
    os.write(1, (json.dumps({"t": now(), **event}) + "\n").encode())


class Member:
    """A worker's process and all events that it reported."""

    def __init__(self, *words: str, java: Sequence[str] = ()) -> None:
        self.events: list[dict[str, Any]] = []
        self.died = float("inf")
        self._is_java = bool(java)
        command = java or [sys.executable, __file__]
        self._process = subprocess.Popen(
            [*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.events.append(json.loads(line))

    def got(self) -> dict[tuple[int, int], float]:
        """Return when each record last arrived."""
        return {
            (e["where"][0], e["where"][1]): e["t"] for e in list(self.events) if e["e"] == "got"
        }

    def kill9(self) -> None:
        self.died = now()
        self._process.kill()
        self._ended()

    def stop(self) -> None:
        if self._is_java:
            assert self._process.stdin is not None
            self._process.stdin.close()
        else:
            self._process.terminate()
        self._ended()

    def _ended(self) -> None:
        self._process.wait(30)
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def hold(consumer: ShareConsumer) -> None:
    """Acquire records and keep them until killed."""
    while not (polled := [m for m in consumer.poll(0.1) if m.error() is None]):
        pass
    for message in polled:
        tell(e="got", where=[message.partition(), message.offset()])
    sys.stdin.read()


def settle(
    consumer: ShareConsumer, rng: random.Random, work_ms: float, released: float | None = None
) -> None:
    """Poll once, choose an acknowledgement for each record at random, and commit."""
    since = now()
    chances = CHANCES if released is None else {"ACCEPT": 1 - released, "RELEASE": released}
    polled = [m for m in consumer.poll(0.3) if m.error() is None]
    if not polled:
        if released is not None:
            tell(e="idle", since=since)
        return
    acknowledgements = []
    for message in polled:
        where, count = [message.partition(), message.offset()], message.delivery_count()
        tell(e="got", where=where, count=count, value=message.value().decode())
        if work_ms:
            threading.Event().wait(rng.random() * work_ms / 1000)
        (acknowledgement,) = rng.choices(list(chances), list(chances.values()))
        consumer.acknowledge(message, AcknowledgeType[acknowledgement])
        acknowledgements.append([*where, count, acknowledgement])
    tell(e="begin", acknowledgements=acknowledgements)
    try:
        results = consumer.commit_sync(10)
        codes = {
            found.partition: error.args[0].code() if error else 0
            for found, error in results.items()
        }
    except KafkaException as error:
        codes = {partition: error.args[0].code() for partition in {m.partition() for m in polled}}
    tell(e="end", codes=codes)


def main() -> None:
    bootstrap, group, topic, seed, *numbers = sys.argv[1:]
    work_ms = float(numbers[0]) if numbers else 0.0
    released = float(numbers[1]) if len(numbers) > 1 else None
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    tell(e="joined")
    if seed == "hold":
        hold(consumer)
    rng = random.Random(seed)
    while not stop.is_set():
        try:
            settle(consumer, rng, work_ms, released)
        except KafkaException as error:
            tell(e="error", error=str(error))
    consumer.close()


if __name__ == "__main__":
    main()
