"""The client's side of a SASL/SCRAM exchange (RFC 5802, RFC 7677), without I/O.

`make_first_message()` returns the opening message and `make_final_message(server_first)` the proof.
`verify(server_final)` checks that the server also knows the password. The nonce is an argument, so
tests can replay an exchange.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache

from shoal.client.errors import SecurityError
from shoal.client.security.secret import Secret, SecretBytes

DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: Kafka's bounds of iterations. RFC 7677 requires at least 4096; millions would exhaust the CPU.
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
#: Derived keys that are kept for later logins (RFC 5802, section 9).
_KEYS_MAX = 64


@dataclass(slots=True)
class ScramClient:
    """One exchange. `mechanism` is a key of `DIGESTS`; `nonce` is printable ASCII, no comma.

    With `is_token`, user and password are the id and the HMAC of a delegation token (KIP-48).
    """

    mechanism: str
    username: str
    password: Secret
    nonce: str
    is_token: bool = False
    _first_bare: str = field(default="", init=False)
    _server_signature: bytes = field(default=b"", init=False)

    def make_first_message(self) -> bytes:
        name = self.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self.nonce}" + ",tokenauth=true" * self.is_token
        return f"n,,{self._first_bare}".encode()

    def make_final_message(self, server_first: bytes) -> bytes:
        """Return the client's proof for the server's challenge."""
        text = server_first.decode()
        parts = _parse_attributes(text)
        try:
            nonce, salt, rounds = parts["r"], base64.b64decode(parts["s"]), int(parts["i"])
        except (KeyError, ValueError):
            raise SecurityError("the broker's SCRAM challenge cannot be read") from None
        if not nonce.startswith(self.nonce) or len(nonce) == len(self.nonce):
            raise SecurityError("the broker's SCRAM nonce does not continue ours")
        if not ITERATIONS_MIN <= rounds <= ITERATIONS_MAX:
            raise SecurityError(
                f"the broker asks for {rounds} SCRAM iterations; {ITERATIONS_MIN} to"
                f" {ITERATIONS_MAX} are allowed"
            )
        digest = DIGESTS[self.mechanism]
        client_key, server_key = _derive_keys(digest, self.password, salt, rounds)
        stored_key = hashlib.new(digest, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(server_key, signed, digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise `SecurityError` if the broker refused, or does not know the password itself."""
        parts = _parse_attributes(server_final.decode())
        if "e" in parts:
            raise SecurityError(f"SCRAM authentication of {self.username!r} failed: {parts['e']}")
        try:
            signature = base64.b64decode(parts.get("v", ""))
        except ValueError:
            signature = b""
        if not hmac.compare_digest(signature, self._server_signature):
            raise SecurityError(
                "the broker's SCRAM signature is wrong: it does not know the password"
            )


@lru_cache(maxsize=_KEYS_MAX)
def _derive_keys(digest: str, password: Secret, salt: bytes, rounds: int) -> tuple[bytes, bytes]:
    """Return the client key and the server key of a password."""
    salted = salt_password(digest, password, salt, rounds)
    return hmac.digest(salted, b"Client Key", digest), hmac.digest(salted, b"Server Key", digest)


def salt_password(digest: str, password: Secret, salt: bytes, rounds: int) -> bytes:
    """Return RFC 5802's SaltedPassword. It takes milliseconds."""
    return SecretBytes(hashlib.pbkdf2_hmac(digest, password.encode(), salt, rounds))


def _parse_attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}
