"""A client of NATS JetStream that waits with a blocking socket, for the loads in `nats_loads.py`.

The client on PyPI is not used: its `fetch` of several messages waits for all of them or its
timeout, so that it has no latency to compare, and asyncio would take much of the two cores on which
the servers run. librdkafka, which the other sides are measured with, is written in C.
"""

from __future__ import annotations

import json
import socket
import ssl
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from load_checks import LoadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Seconds without a byte after which a load has lost its server.
TIMEOUT_S = 60
_ACK = "$JS.ACK."


class Message(NamedTuple):
    """A message. `status` is 0, or that of an answer without a message, such as 408."""

    subject: str
    reply: str
    data: bytes
    status: int

    @property
    def is_stored(self) -> bool:
        """Whether it is a message of a stream."""
        return self.reply.startswith(_ACK)

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        """Return the place in the stream, from 0 on. A stream has no partitions."""
        words = self.reply.split(".")
        # Servers may add a domain and an account behind the prefix.
        return int(words[5 if len(words) == 9 else 7]) - 1


class Connection:
    """A connection to one server. All answers go to subjects below `inbox`.

    `properties` are librdkafka's, of which it takes the certificate and the login.
    """

    def __init__(self, address: str, properties: Mapping[str, Any]) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        self._number = 0
        self._waiting: deque[Message] = deque()
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
        }
        options |= {"lang": "python", "version": "1", "protocol": 1}
        self._read_info()
        if ca := properties.get("ssl.ca.location"):
            context = ssl.create_default_context(cafile=ca)
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
            options |= {
                "user": properties["sasl.username"],
                "pass": properties["sasl.password"],
                "tls_required": True,
            }
        self._stream = self._socket.makefile("rb")
        words = f"CONNECT {json.dumps(options)}\r\nSUB {self.inbox}.* 1\r\nPING\r\n"
        self._socket.sendall(words.encode())
        while (line := self._read_line()) != b"PONG":
            _check(line)

    def _read_info(self) -> None:
        """Read the server's first line, and no byte of a handshake that follows it."""
        while self._socket.recv(1) != b"\n":
            continue

    def close(self) -> None:
        self._socket.close()

    def send(self, messages: Iterable[tuple[str, str, bytes]]) -> None:
        """Publish messages, each a subject, the subject of answers (may be empty) and a value."""
        pieces: list[bytes] = []
        for subject, reply, data in messages:
            pieces += (f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")
        self._socket.sendall(b"".join(pieces))

    def request(self, subject: str, data: bytes = b"") -> Message:
        """Publish a message and return its answer. Raises `LoadFailed` if nobody answers."""
        self._number += 1
        reply = f"{self.inbox}.{self._number}"
        self.send([(subject, reply, data)])
        while (found := self._read()).subject != reply:
            self._waiting.append(found)
        if found.status:
            raise LoadFailed(f"NATS answered {subject} with the status {found.status}")
        return found

    def store(self, subject: str, data: bytes) -> None:
        """Publish a message and wait until its stream has it. Raises `LoadFailed`."""
        check_stored(self.request(subject, data))

    def call(self, name: str, /, **body: Any) -> dict[str, Any]:
        """Call JetStream's API, and return the answer. Raises `LoadFailed` for an error."""
        words = json.dumps(body).encode() if body else b""
        answer = json.loads(self.request(f"$JS.API.{name}", words).data)
        if "error" in answer:
            raise LoadFailed(f"NATS refused {name}: {answer['error']}")
        return dict(answer)

    def take(self) -> Message:
        """Wait for a message that is no answer of `request`, and return it."""
        return self._waiting.popleft() if self._waiting else self._read()

    def pull(self, stream: str, consumer: str, batch: int, wait_s: float) -> None:
        """Ask for up to `batch` messages. `take` returns them, and a status if fewer come within
        `wait_s`."""
        body = json.dumps({"batch": batch, "expires": int(wait_s * 1e9)}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self.send([(subject, f"{self.inbox}.pulled", body)])

    def _read(self) -> Message:
        while True:
            line = self._read_line()
            words = line.split()
            if words[0] == b"MSG":
                reply = words[3] if len(words) == 5 else b""
                data = self._stream.read(int(words[-1]) + 2)[:-2]
                return Message(words[1].decode(), reply.decode(), data, 0)
            if words[0] == b"HMSG":
                reply = words[3] if len(words) == 6 else b""
                whole = self._stream.read(int(words[-1]) + 2)[:-2]
                head, data = whole[: int(words[-2])], whole[int(words[-2]) :]
                status = head.split(b"\r\n", 1)[0].split()[1:2]
                number = int(status[0]) if status else 0
                return Message(words[1].decode(), reply.decode(), data, number)
            if words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")
            _check(line)

    def _read_line(self) -> bytes:
        line: bytes = self._stream.readline()
        if not line:
            raise LoadFailed("NATS closed the connection")
        return line.rstrip()


def _check(line: bytes) -> None:
    if line.startswith(b"-ERR"):
        raise LoadFailed(f"NATS sent {line.decode()}")


def check_stored(answer: Message) -> None:
    """Raise `LoadFailed` unless an answer says that a stream has a message."""
    if answer.status or b'"error"' in answer.data or b'"seq"' not in answer.data:
        raise LoadFailed(f"NATS did not store a message: {answer.status} {answer.data.decode()}")
