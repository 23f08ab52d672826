"""One GET by HTTP/1.1 on the event loop, with bounds: for key sets of token providers.

The caller sets the deadline. The body and the headers have a maximum size, compression is not
accepted, and redirects stay with the scheme of the first URL.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

if TYPE_CHECKING:
    import ssl

REDIRECTS_MAX = 5
HEADERS_MAX = 100
CHUNKS_MAX = 10_000
#: Bytes of a line: the status, a header, the size of a chunk.
LINE_SIZE_MAX = 16 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: .*)?")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?")
#: An URL is sent as it is, so it has no blanks and no control characters.
_URL = re.compile(r"https?://[\x21-\x7e]+", re.IGNORECASE)


class HttpError(Exception):
    """No usable response. The message says why."""


class _Response(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def get(url: str, tls: ssl.SSLContext | None, size_max: int) -> bytes:
    """Return the body of an `http` or `https` URL. Raises `HttpError`, `OSError`."""
    scheme = urlsplit(url).scheme
    for _ in range(REDIRECTS_MAX + 1):
        parts = _check_url(url, scheme)
        response = await _get(parts, tls if scheme == "https" else None, size_max)
        if response.status not in _REDIRECTS:
            break
        location = response.headers.get(b"location", b"").decode("latin-1")
        url = urljoin(url, location)
    else:
        raise HttpError(f"more than {REDIRECTS_MAX} redirects")
    if response.status != 200:
        raise HttpError(f"the server answered with status {response.status}")
    return response.body


def _check_url(url: str, scheme: str) -> SplitResult:
    if not _URL.fullmatch(url):
        raise HttpError("a redirect leads to an URL that is neither http nor https")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise HttpError(f"an invalid URL: {error}") from None
    if parts.scheme != scheme:
        raise HttpError(f"a redirect leads from {scheme} to {parts.scheme}")
    if not parts.hostname or parts.username is not None:
        raise HttpError("an URL without a host, or with a user")
    return parts


async def _get(parts: SplitResult, tls: ssl.SSLContext | None, size_max: int) -> _Response:
    port = parts.port or (443 if tls else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=tls, limit=LINE_SIZE_MAX
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: application/json\r\n"
            "Accept-Encoding: identity\r\nUser-Agent: shoal\r\nConnection: close\r\n\r\n".encode()
        )
        return await _read_response(reader, size_max)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        raise HttpError("the response is cut off, or has a line that is too long") from None
    finally:
        writer.transport.abort()


async def _read_response(reader: asyncio.StreamReader, size_max: int) -> _Response:
    match = _STATUS.fullmatch(await _read_line(reader))
    if match is None:
        raise HttpError("the response is not HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for _ in range(HEADERS_MAX):
        line = await _read_line(reader)
        if not line:
            break
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    else:
        raise HttpError(f"more than {HEADERS_MAX} headers")
    status = int(match[1])
    body = b"" if status != 200 else await _read_body(reader, headers, size_max)
    return _Response(status, headers, body)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readuntil(b"\n")).rstrip(b"\r\n")


async def _read_body(
    reader: asyncio.StreamReader, headers: dict[bytes, bytes], size_max: int
) -> bytes:
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise HttpError("the response is compressed")
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return await _read_chunks(reader, size_max)
    length = headers.get(b"content-length")
    if length is None:
        body = bytearray()
        while more := await reader.read(LINE_SIZE_MAX):
            body += more
            _check_size(len(body), size_max)
        return bytes(body)
    if not length.isdigit():
        raise HttpError("the response has an invalid length")
    _check_size(int(length), size_max)
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader, size_max: int) -> bytes:
    body = bytearray()
    for _ in range(CHUNKS_MAX):
        match = _CHUNK.fullmatch(await _read_line(reader))
        if match is None:
            raise HttpError("a chunk of the response has no size")
        size = int(match[1], 16)
        if not size:
            return bytes(body)
        _check_size(len(body) + size, size_max)
        body += await reader.readexactly(size)
        if await _read_line(reader):
            raise HttpError("a chunk of the response is longer than its size")
    raise HttpError(f"more than {CHUNKS_MAX} chunks")


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise HttpError(f"the response is larger than {size_max} bytes")
