"""Apache Kafka's Java clients in fault runs: one JVM, and the events of each client.

`compat/java/FaultClients.java` is the other side. Each client has the shape of
`fault_clients.Worker`.
A Java member does not report which broker delivered a record, nor when it sent the fetch. So lock
overlap is left to the runs with other clients.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.kafka.java_classes import java
from support.scenarios.fault_clients import TIMEOUT_S
from support.scenarios.histories import Acquire, Assigned, Commit, History, Poll, Send, Settle

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).parents[2] / "compat" / "java" / "FaultClients.java"
SHARE_GROUP = "java-sharers"
#: Records may wait in a member's memory for this long after an outage of their leader began.
BUFFERED_S = 30.0


class JavaProcess:
    """The JVM of all clients of a run."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, protocol: str) -> None:
        self._words = (bootstrap, topic, str(partitions), protocol)
        self._clients: dict[str, JavaClient] = {}
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)

    def add(self, client: JavaClient) -> None:
        self._clients[client.name] = client

    def start(self) -> None:
        """Start the JVM once, with all clients that were added."""
        if self._process is None:
            roles = [f"{one.role}:{name}" for name, one in self._clients.items()]
            self._process = subprocess.Popen(
                java(str(SOURCE), *self._words, *roles, heap="384m"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._reader.start()

    def finish(self, name: str) -> None:
        """Stop one client."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                event = json.loads(line)
                self._clients[event["c"]].heard(event)
        finally:
            for client in self._clients.values():
                client.over()


class JavaClient:
    """One client of the JVM; `heard` records its events in the history."""

    role = ""

    def __init__(self, process: JavaProcess, history: History, name: str) -> None:
        self.name, self.history = name, history
        self.done = 0
        self.errors: list[str] = []
        #: When each record arrived, or was acknowledged to the writer.
        self.times: list[float] = []
        self._process = process
        self._died = ""
        self._ended = threading.Event()
        process.add(self)

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name}"

    def start(self) -> None:
        self._process.start()

    def finish(self) -> None:
        self._process.finish(self.name)
        assert self._ended.wait(TIMEOUT_S), f"{self} hangs"
        self.check()

    def check(self) -> None:
        assert not self._died, f"{self} died: {self._died}"

    def over(self) -> None:
        """Note that the JVM has ended."""
        if not self._ended.is_set():
            self._died = self._died or "the JVM has ended"
            self._ended.set()

    def heard(self, event: dict[str, Any]) -> None:
        kind = event["e"]
        if kind in ("died", "ended"):
            self._died = event.get("error", "")
            self._ended.set()
        else:
            self._note(kind, event)

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        raise TypeError("only a subclass takes events")


class JavaWriter(JavaClient):
    """An idempotent producer with acks=all."""

    role = "writer"

    def finish(self) -> None:
        """Put its sends into their order. Results may come in another one: a batch that waits at a
        frozen leader is sent again after later ones, and has its first offset."""
        super().finish()
        sends = self.history.sends
        own = [send for send in sends if send.producer == self.name]
        sends[:] = [send for send in sends if send.producer != self.name]
        sends += sorted(own, key=lambda send: int(send.value.rpartition(b"-")[2]))

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "refused":
            self.errors.append(f"{event['v']}: {event['error']}")
            return
        self.history.sends.append(Send(self.name, event["p"], event["v"].encode(), event["o"]))
        self.times.append(event["t"])
        self.done += 1


class JavaReader(JavaClient):
    """A member of a consumer group."""

    role = "reader"
    _generation = 0

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "generation":
            self._generation += 1
        elif kind == "assigned":
            self.history.assigned.append(Assigned(event["p"], event["o"], event["asked"]))
        elif kind == "committed":
            self.history.commits.append(Commit(event["p"], event["o"], event["t"]))
            self.done += 1
        elif kind == "read":
            value = event["v"].encode()
            poll = Poll(self.name, self._generation, event["p"], event["o"], value)
            self.history.polls.append(poll)
            self.times.append(event["t"])


class JavaSharer(JavaClient):
    """A member of a share group with explicit acknowledgement."""

    role = "sharer"

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "got":
            sent = _fetched(event["since"], self.history)
            value = event["v"].encode()
            self.history.acquires.append(
                Acquire(
                    self.name,
                    event["p"],
                    event["o"],
                    value,
                    event["n"],
                    sent,
                    event["t"],
                    lock_s=0.0,
                    leader=-1,
                )
            )
            self.times.append(event["t"])
        elif kind == "settled":
            for offset, acknowledgement in event["acknowledgements"].items():
                self.history.settles.append(
                    Settle(
                        self.name,
                        event["p"],
                        int(offset),
                        acknowledgement,
                        event["since"],
                        event["t"],
                        event["ok"],
                    )
                )
                self.done += event["ok"] is True


def _fetched(since: float, history: History) -> float:
    """Return the earliest time at which the fetch of a record polled at `since` can have been
    sent."""
    begun = (o.began for o in list(history.outages) if since - BUFFERED_S <= o.began <= since)
    return min(since, min(begun, default=since))


def gap_s(clients: Sequence[JavaClient], since: float) -> float:
    """Return the longest silence of all these clients together after `since`, in seconds."""
    times = sorted(t for client in clients for t in list(client.times) if t >= since)
    return max((b - a for a, b in zip([since, *times], times, strict=False)), default=float("inf"))
