"""Principals as bytes, as Kafka's DefaultKafkaPrincipalBuilder writes them (KIP-590).

An Envelope has the principal of the client whose request it carries. The bytes are a version of two
bytes, 0, and DefaultPrincipalData of that version: type, name, and whether a delegation token
authenticated it. Clients have principals of the type User. The bytes of another type are a node's:
`OWN`.
"""

from __future__ import annotations

from typing import NamedTuple

from shoal.protocol.compiler import get_uvarint, put_uvarint
from shoal.protocol.errors import WireError

#: The type of all principals that clients have.
USER = "User"
_VERSION = b"\x00\x00"


class _OwnPrincipal(str):
    """A text that equals only itself, as no client can send an object."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other


#: The principal of a node's own requests to the controller, which may do everything.
OWN = _OwnPrincipal("Node:own")


class ForwardedPrincipal(NamedTuple):
    """A principal, such as `User:alice`, and whether a delegation token authenticated it."""

    principal: str
    token_authenticated: bool = False


def encode(forwarded: ForwardedPrincipal) -> bytes:
    """Return the bytes of a principal. Raises `ValueError` for a text of another type than User:
    its bytes could be those of `OWN`."""
    kind, _, name = forwarded.principal.partition(":")
    if kind != USER and forwarded.principal is not OWN:
        raise ValueError(f"{forwarded.principal} is no principal of a client")
    out = bytearray(_VERSION)
    for text in (kind, name):
        data = text.encode()
        put_uvarint(out, len(data) + 1)
        out += data
    out.append(forwarded.token_authenticated)
    out.append(0)  # no tagged fields
    return bytes(out)


def decode(data: bytes) -> ForwardedPrincipal:
    """Return the principal in `data`. Raises `WireError`."""
    view = memoryview(data)
    if bytes(view[:2]) != _VERSION:
        raise WireError("a principal of an unknown version")
    try:
        kind, at = _read_text(view, 2)
        name, at = _read_text(view, at)
        principal = f"{kind}:{name}"
        return ForwardedPrincipal(OWN if principal == str(OWN) else principal, view[at] != 0)
    except (IndexError, UnicodeDecodeError):
        raise WireError("a malformed principal") from None


def _read_text(view: memoryview, at: int) -> tuple[str, int]:
    size, at = get_uvarint(view, at)
    end = at + size - 1
    if size < 1 or end > len(view):
        raise IndexError
    return bytes(view[at:end]).decode(), end
