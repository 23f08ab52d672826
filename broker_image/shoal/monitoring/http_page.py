"""One page of a broker's HTTP listener, over a connection of its own: brokers close each after one
response, so a client that keeps connections has nothing to keep."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

TIMEOUT_S = 3.0
#: The page of a broker with ten thousand share partitions is a few megabytes long.
PAGE_BYTES_MAX = 64 << 20


class HttpPage(NamedTuple):
    """The response to a GET; `headers` are by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str


async def get_page(
    url: str,
    *,
    context: ssl.SSLContext | None = None,
    token: str = "",
    timeout_s: float = TIMEOUT_S,
) -> HttpPage:
    """Return the page at a URL with http or, with a `context`, https. `token` is for the header
    Authorization, empty without one.

    Raises `OSError` (of TLS and of time-outs, too), and `ValueError` for what is no HTTP response
    and for one of more than `PAGE_BYTES_MAX`.
    """
    parts = urlsplit(url)
    secure, host = parts.scheme == "https", parts.hostname or ""
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"GET {parts.path or '/'} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{login}\r\n"
    async with asyncio.timeout(timeout_s):
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(host, port, ssl=context if secure else None)
        try:
            writer.write(head.encode())
            data = bytearray()
            while chunk := await reader.read(1 << 16):
                data += chunk
                if len(data) > PAGE_BYTES_MAX:
                    raise ValueError(f"{url} answers with more than {PAGE_BYTES_MAX} bytes")
        finally:
            writer.close()
    return _parse_page(url, bytes(data))


def _parse_page(url: str, response: bytes) -> HttpPage:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdecimal()):
        raise ValueError(f"{url} does not answer by HTTP/1.1")
    pairs = (line.partition(":")[::2] for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    return HttpPage(int(status), headers, body.decode(errors="replace"))
