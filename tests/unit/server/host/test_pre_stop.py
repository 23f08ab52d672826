"""The pre-stop hook of the first broker of a pod waits for the brokers that are stopping."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from shoal.server.host import pre_stop
from support.brokers.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG_S = 60.0


class Broker(ThreadingHTTPServer):
    """Another broker: the status of its /readyz, and the requests that it gets."""

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


def test_it_does_not_wait_without_other_brokers() -> None:
    with waiting(free_ports(2)):
        pass


@pytest.mark.parametrize("ready", [True, False])
def test_it_waits_for_a_broker_that_is_stopping(ready: bool) -> None:
    """Also if Kubernetes has not sent SIGTERM to it yet."""
    with other(ready=ready) as broker, waiting([*free_ports(1), broker.server_port]) as thread:
        for still in (ready, False):
            broker.ready = still
            for _ in range(3):
                assert broker.asked.acquire(timeout=LONG_S / 2)
        assert thread.is_alive()
        broker.shutdown()
        broker.server_close()


def test_it_does_not_wait_for_a_broker_that_stays_ready() -> None:
    """Only this container restarts, and the hook does not delay that."""
    with other(ready=True) as broker:
        pre_stop.wait_until_stopped([broker.server_port], ready_grace_s=0.0, timeout_s=LONG_S)
        assert broker.asked.acquire(blocking=False)


def test_the_wait_has_a_limit() -> None:
    with other(ready=False) as broker:
        pre_stop.wait_until_stopped([broker.server_port], timeout_s=0.2)
        assert broker.asked.acquire(blocking=False)
