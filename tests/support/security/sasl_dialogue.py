"""Logins over a raw socket, one frame at a time, for tests that compare brokers.

A step sends a frame and notes what comes back: the fields of the response, a raw token, or that
the broker has closed the connection. Two brokers behave alike if their notes are equal.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import socket
import struct
from typing import TYPE_CHECKING, Any

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLOSED = "closed"
SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}
Note = Any


class Dialogue:
    """One connection. `notes` has what each step got."""

    def __init__(self, address: str, *, timeout_s: float = 60) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.notes: list[Note] = []
        self._correlation_id = 0
        #: The state of a SCRAM exchange: the client's first message and the server's.
        self.scram: tuple[str, str] = ("", "")

    def __enter__(self) -> Dialogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def frame(
        self, api: ApiKey, version: int, body: Mapping[str, Any], encode_as: int = -1
    ) -> bytes:
        """Return a request with its size prefix. `encode_as` is the version of its body."""
        known = version if encode_as < 0 else encode_as
        self._correlation_id += 1
        head = frames.build_request_head(api, known, self._correlation_id, "dialogue")
        data = bytearray(head + bytes(codec.write_request(api, known, body)))
        struct.pack_into(">h", data, 2, version)
        return struct.pack(">i", len(data)) + bytes(data)

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self) -> bytes | None:
        """Return the next frame, or None if the broker closes the connection."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def answer(self, api: ApiKey, version: int) -> Any:
        """Return the next response, or None if the broker closes the connection."""
        data = self.receive()
        if data is None:
            return None
        at = len(frames.build_response_head(api, version, 0))
        assert struct.unpack_from(">i", data)[0] == self._correlation_id
        return codec.read_response(api, version, data, at)

    def call(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send a request and return its response, or None."""
        self.send(self.frame(api, version, body))
        return self.answer(api, version)

    # Steps.

    def versions(self, version: int = 3, name: str = "test") -> None:
        body = SOFTWARE | {"client_software_name": name} if version >= 3 else {}
        known = version in range(5)
        self.send(self.frame(ApiKey.API_VERSIONS, version, body, encode_as=-1 if known else 3))
        data = self.receive()
        self.notes.append(
            CLOSED if data is None else ErrorCode(int.from_bytes(data[4:6], "big")).name
        )

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> None:
        self.send(
            self.frame(
                ApiKey.SASL_HANDSHAKE,
                version,
                {"mechanism": mechanism},
                encode_as=-1 if version in (0, 1) else 1,
            )
        )
        found = self.answer(ApiKey.SASL_HANDSHAKE, min(version, 1))
        self.notes.append(
            CLOSED if found is None else (found.error_code.name, sorted(found.mechanisms))
        )

    def token(self, data: bytes, version: int = 2) -> bytes:
        """Send SaslAuthenticate. Return the server's token."""
        known = version in range(3)
        body = {"auth_bytes": data}
        self.send(self.frame(ApiKey.SASL_AUTHENTICATE, version, body, encode_as=-1 if known else 2))
        found = self.answer(ApiKey.SASL_AUTHENTICATE, version if known else 2)
        if found is None:
            self.notes.append(CLOSED)
            return b""
        lifetime = found.session_lifetime.total_seconds() if version else None
        self.notes.append(
            (found.error_code.name, found.error_message, lifetime, _shape(found.auth_bytes))
        )
        return bytes(found.auth_bytes)

    def raw(self, data: bytes) -> bytes:
        """Send a raw token. Return the server's."""
        self.send(struct.pack(">i", len(data)) + data)
        found = self.receive()
        self.notes.append(CLOSED if found is None else _shape(found))
        return found or b""

    def plain(self, user: str = "alice", password: str = "secret", version: int = 2) -> None:
        self.token(f"\0{user}\0{password}".encode(), version)

    def junk(self, data: bytes) -> None:
        """Send bytes that are no request, and see the connection close."""
        self.send(data)
        self.notes.append(CLOSED if self.receive() is None else "an answer")

    def request(self, api: ApiKey = ApiKey.METADATA, version: int = 12) -> None:
        """Send another request."""
        body: dict[str, Any] = {"topics": []} if api is ApiKey.METADATA else {}
        found = self.call(api, version, body)
        self.notes.append(CLOSED if found is None else f"{api.name} answered")

    def scram_login(
        self,
        user: str = "alice",
        password: str = "secret",
        *,
        mechanism: str = "SCRAM-SHA-256",
        send: Callable[[bytes], bytes] | None = None,
        header: str = "n,,",
        nonce_suffix: str = "",
        extensions: str = "",
    ) -> None:
        """Send both messages of SCRAM, by `token` unless `send` is given."""
        send = send or self.token
        digest = "sha256" if mechanism.endswith("256") else "sha512"
        bare = f"n={user},r=clientnonce{extensions}"
        server = send((header + bare).encode()).decode()
        found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", server)
        if found is None:
            return
        salted = hashlib.pbkdf2_hmac(
            digest, password.encode(), base64.b64decode(found[2]), int(found[3])
        )
        key = hmac.digest(salted, b"Client Key", digest)
        binding = base64.b64encode(header.encode()).decode()
        unsigned = f"c={binding},r={found[1]}{nonce_suffix}"
        signed = f"{bare},{server},{unsigned}".encode()
        signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        last = send(f"{unsigned},p={base64.b64encode(proof).decode()}".encode())
        if last:
            verifier = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
            assert last == b"v=" + base64.b64encode(verifier)


def _shape(token: bytes) -> str:
    """Return a token with what differs from run to run left out."""
    text = bytes(token).decode()
    return re.sub(r"(?<=[rsv]=)[^,]+", "…", text)


def log_in_by_token(
    address: str, token: str, *, authzid: str = "", extensions: str = ""
) -> list[Note]:
    """Present a bearer token, acknowledge an error, and return the notes. The lifetime is noted as
    whether there is one."""
    with Dialogue(address) as dialogue:
        dialogue.handshake("OAUTHBEARER")
        message = f"n,{authzid},\x01auth=Bearer {token}\x01{extensions}\x01"
        if dialogue.token(message.encode()):
            dialogue.token(b"\x01")
        else:
            dialogue.request()
        return [
            (*note[:2], bool(note[2]), note[3]) if len(note) == 4 else note
            for note in dialogue.notes
        ]
