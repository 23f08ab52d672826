"""Attackers of a console's HTTP port, and a quiet browser that measures what the console does for
them. `tests/hostile` runs them. An attacker is a function of a `ConsoleTarget`.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import re
import resource
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.record.records import build_batch
from support.attacks.quiet_clients import PAUSE_S, ThreadTimes
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.record.records import NewRecord
    from support.brokers.servers import ShoalProcess

#: The users of the console, and the addresses of attackers. The quiet browser has none of them.
USERS = {"attacker": "guessed", "modest": "secret"}
STRANGER = "127.0.0.9"
#: Ends a hang, in seconds.
PATIENCE_S = 60.0
#: Seconds for which attackers hold their connections.
HELD_S = 1.0
#: Seconds after a sample within which all open pages have been rendered.
SAMPLE_S = 2.5
FORM = b"application/x-www-form-urlencoded"
MIB = 1 << 20


class ConsoleTarget(NamedTuple):
    """A console's process and port, a topic with records that are hard to show, and how much of an
    attack is wanted."""

    broker: ShoalProcess
    pid: int
    port: int
    part: float

    def count(self, whole: int) -> int:
        return max(1, int(whole * self.part))

    def connect(self, source: str = STRANGER) -> socket.socket:
        """Connect with a small buffer for answers."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE_S)
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", self.port))
        return connection

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


def make_head(path: bytes, *lines: bytes, method: bytes = b"GET", user: str = "attacker") -> bytes:
    """Return the head of a request; `user` may be empty."""
    login = base64.b64encode(f"{user}:{USERS[user]}".encode()) if user else b""
    head = [method + b" " + path + b" HTTP/1.1", *lines]
    if not any(line.startswith(b"Host:") for line in lines):
        head.append(b"Host: 127.0.0.1")
    if user:
        head.append(b"Authorization: Basic " + login)
    return b"\r\n".join((*head, b"", b""))


def make_form(body: bytes, *lines: bytes, kind: bytes = FORM, user: str = "attacker") -> bytes:
    more = (b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *lines)
    return make_head(b"/act-produce", *more, method=b"POST", user=user) + body


def ask(target: ConsoleTarget, request: bytes, source: str = STRANGER) -> int:
    """Send a request, read its answer, and return its status; 0 if the console ended it early."""
    with target.connect(source) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        answer = connection.makefile("rb")
        status = int(answer.readline().split()[1])
        sizes = [line for line in iter(answer.readline, b"\r\n") if b"ontent-Length" in line]
        answer.read(int(sizes[0].split()[1]) if sizes else 0)
        return status
    return 0


@contextlib.contextmanager
def holding(target: ConsoleTarget, count: int, data: bytes) -> Iterator[None]:
    """Open connections that send `data` as far as the console reads it, and read nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(target.connect())
            connection.settimeout(HELD_S)
            with contextlib.suppress(OSError):
                connection.sendall(data)
        end_s = time.monotonic() + HELD_S
        while time.monotonic() < end_s:
            yield_to_others()
        yield


def yield_to_others() -> None:
    threading.Event().wait(PAUSE_S)


class QuietBrowser(threading.Thread):
    """Asks for a page all the time. `longest_s` is the most CPU time that the console's event loop
    spent between a request and its answer."""

    def __init__(self, target: ConsoleTarget) -> None:
        super().__init__(daemon=True)
        self._target, self._ending = target, threading.Event()
        self.longest_s, self.answers = 0.0, 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._ending.wait(PAUSE_S):
                began_s = self._read_running_s()
                # Without a login: each page and its size are the same.
                assert ask(self._target, make_head(b"/", user=""), "127.0.0.1") == 401
                spent_s = self._read_running_s() - began_s
                self.longest_s, self.answers = max(self.longest_s, spent_s), self.answers + 1
        except Exception as error:
            self.failure = error

    def _read_running_s(self) -> float:
        return ThreadTimes.from_kernel(self._target.pid, self._target.pid).running_s

    def end(self) -> None:
        self._ending.set()
        self.join()


def prepare_topics(broker: ShoalProcess) -> None:
    """Write the records that pages show: batches of some kilobytes that expand."""
    empty: list[tuple[str, bytes | None]] = [("", None)]
    batches: dict[str, list[NewRecord]] = {
        "headers": [(1, b"k", b"v", empty * 32_000)] * 60,
        "few-headers": [(1, b"k", b"v", empty * 800)] * 3_000,
        "small": [(1, None, None, ())] * 300_000,
        "large": [(1, b"k", bytes(31 * MIB), ())],
        "deep": [(1, b"k", b"[" * 30_000 + b"]" * 30_000, [("h", b"{}" * 30_000)])],
    }
    with WireClient(broker.bootstrap) as wire:
        for topic, records in batches.items():
            wire.create_topic(topic)
            batch = build_batch(records, compression="zstd")
            assert not wire.produce(topic, records=bytes(batch)).error_code, topic


# The catalogue


def send_strange_heads(target: ConsoleTarget) -> None:
    """Hosts that are none, deep paths, and many fields, cookies and requests."""
    cookies = b"Cookie: " + b"a=b;" * 3_900
    for _ in range(target.count(20)):
        for host in (b"[::1", b"[" * 15_000, b"\xe2\x84\x80", b"::", b":" * 1000):
            assert ask(target, make_head(b"/", b"Host: " + host, user="")) in (400, 421)
        assert ask(target, make_head(b"/a" * 7_000)) == 404
        assert ask(target, make_head(b"/?" + b"&a" * 7_000)) == 200
        assert ask(target, make_head(b"/?q=" + b"%2" * 7_000)) == 200
        assert ask(target, make_head(b"/", *[cookies] * 40)) == 200
        ask(target, make_head(b"/", b"Origin: http://[", method=b"POST"))
        ask(target, b"\0" * 20_000)
        ask(target, make_head(b"/", user="") * 5_000)


def guess_passwords(target: ConsoleTarget) -> None:
    for number in range(target.count(300)):
        login = b"Authorization: Basic " + base64.b64encode(b"modest:%d" % number)
        refused = ask(target, make_head(b"/", login, user=""), f"127.1.{number // 200}.1")
        assert refused in (401, 429) if number < 3 else refused


def send_bodies_in_bytes(target: ConsoleTarget) -> None:
    """Each chunk is one byte."""
    head = make_head(b"/confirm", b"Transfer-Encoding: chunked", method=b"POST", user="")
    with target.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head + b"1\r\na\r\n" * target.count(1_000_000))
        connection.recv(4096)


def send_forms(target: ConsoleTarget) -> None:
    """Forms with many fields and files, and compressed ones that expand."""
    bomb = gzip.compress(bytes(100 * MIB))
    file = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\nc\r\n'
    files = file * (4_000_000 // len(file)) + b"--x--\r\n"
    for _ in range(target.count(10)):
        assert ask(target, make_form(b"a=&" * 1_390_000)) == 413
        assert ask(target, make_form(b"a=" + b"%61" * 1_390_000)) == 403
        assert ask(target, make_form(files, kind=b"multipart/form-data; boundary=x")) == 415
        for user, status in (("attacker", 415), ("", 401)):
            assert ask(target, make_form(bomb, b"Content-Encoding: gzip", user=user)) == status


def hold_heads(target: ConsoleTarget) -> None:
    """Requests without an end, from many connections. Others are answered."""
    lines = [b"a%d: " % number + bytes([98]) * 15_000 for number in range(50)]
    head = make_head(b"/", *lines, user="").removesuffix(b"\r\n")
    with holding(target, target.count(300), head):
        assert ask(target, make_head(b"/", user="modest")) == 200


def hold_forms(target: ConsoleTarget) -> None:
    form = make_form(bytes([97]) * 4_000_000)[:-1]
    with holding(target, target.count(100), form):
        assert ask(target, make_form(b"a=b", user="modest")) == 403


def connect_and_wait(target: ConsoleTarget) -> None:
    """More connections than the console has. Others are answered."""
    with holding(target, max(600, target.count(2_000)), b""):
        assert ask(target, make_head(b"/", user="modest")) == 200


def read_no_payload(target: ConsoleTarget) -> None:
    place = b"?topic=large&partition=0&offset=0"
    with holding(target, target.count(20), make_head(b"/payload" + place)):
        assert ask(target, make_head(b"/payload" + place, user="modest")) == 200


def read_no_events(target: ConsoleTarget) -> None:
    """One user opens more streams than the console has. Another one still gets one."""
    with holding(target, 250, make_head(b"/live/")):
        assert ask(target, make_head(b"/live/", user="modest")) == 200
        end_s = time.monotonic() + SAMPLE_S
        while time.monotonic() < end_s:
            yield_to_others()


def show_records(target: ConsoleTarget) -> None:
    """Pages of records that take long to read: headers by the million, or all before an offset."""
    for topic in (b"headers", b"small", b"few-headers", b"deep")[: target.count(20)]:
        assert ask(target, make_head(b"/topic?name=" + topic)) == 200
        for words in (b"&value=z", b"&header=z=1"):
            assert ask(target, make_head(b"/topic?from=offset&at=0&name=" + topic + words)) == 200
        assert ask(target, make_head(b"/letters?topic=" + topic)) == 200
        place = b"?partition=0&offset=%d&topic=" % (299_999 if topic == b"small" else 0) + topic
        assert ask(target, make_head(b"/record" + place)) == 200
        assert ask(target, make_head(b"/letter" + place)) == 404


CATALOGUE: tuple[Callable[[ConsoleTarget], None], ...] = (
    send_strange_heads,
    guess_passwords,
    send_bodies_in_bytes,
    send_forms,
    hold_heads,
    hold_forms,
    connect_and_wait,
    read_no_payload,
    read_no_events,
    show_records,
)


def find_port(line: str) -> int:
    """Return the port in the line that a console prints when it is ready."""
    (port,) = re.findall(r":(\d+)/", line)
    return int(port)
