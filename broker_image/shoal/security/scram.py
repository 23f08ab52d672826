"""SCRAM (RFC 5802, KIP-84): the stored credential of a user."""

from __future__ import annotations

from typing import NamedTuple


class ScramCredential(NamedTuple):
    """What the server stores of a user's password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential([hidden], iterations={self.iterations})"
