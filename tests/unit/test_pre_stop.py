"""The first broker of a pod waits for those that stop, and for nobody else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ports import free_ports
from shoal.server.host import pre_stop

LONG_S = 60.0


class Broker(ThreadingHTTPServer):
    """What is known of another broker: what its /readyz says, and how often it was asked."""

    daemon_threads = True

    def __init__(self, *, ready: bool) -> None:
        self.ready, self.asked = ready, threading.Semaphore(0)
        super().__init__(("127.0.0.1", 0), Ready)


class Ready(BaseHTTPRequestHandler):
    server: Broker

    def do_GET(self) -> None:
        self.server.asked.release()
        self.send_response(200 if self.server.ready and self.path == "/readyz" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def other(*, ready: bool) -> Iterator[Broker]:
    with Broker(ready=ready) as broker:
        threading.Thread(target=broker.serve_forever, args=(0.01,), daemon=True).start()
        yield broker
        broker.shutdown()


@contextlib.contextmanager
def waiting(ports: list[int]) -> Iterator[threading.Thread]:
    thread = threading.Thread(
        target=pre_stop.wait_until_stopped,
        args=(ports,),
        kwargs={"ready_grace_s": LONG_S, "timeout_s": LONG_S},
    )
    thread.start()
    yield thread
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


def test_where_nobody_is_nothing_is_waited_for() -> None:
    with waiting(free_ports(2)):
        pass


@pytest.mark.parametrize("ready", [True, False])
def test_who_stops_is_waited_for(ready: bool) -> None:
    """Also where Kubernetes has not told it yet."""
    with other(ready=ready) as broker, waiting([*free_ports(1), broker.server_port]) as thread:
        for still in (ready, False):
            broker.ready = still
            for _ in range(3):
                assert broker.asked.acquire(timeout=LONG_S / 2)
        assert thread.is_alive()
        broker.shutdown()
        broker.server_close()


def test_who_does_not_stop_is_not_waited_for() -> None:
    """A container that is started anew by itself is not kept from it."""
    with other(ready=True) as broker:
        pre_stop.wait_until_stopped([broker.server_port], ready_grace_s=0.0, timeout_s=LONG_S)
        assert broker.asked.acquire(blocking=False)


def test_nobody_is_waited_for_without_end() -> None:
    with other(ready=False) as broker:
        pre_stop.wait_until_stopped([broker.server_port], timeout_s=0.2)
        assert broker.asked.acquire(blocking=False)
