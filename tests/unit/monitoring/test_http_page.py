"""One page by HTTP: what a response says, and what is none."""

from __future__ import annotations

import asyncio

import pytest
from shoal.monitoring import http_page
from shoal.monitoring.http_page import HttpPage, get_page

PAGE = b"HTTP/1.1 503 Service Unavailable\r\nServer: shoal/1\r\nX:  y:z \r\n\r\nbusy\n"


async def fetch(response: bytes) -> tuple[HttpPage, bytes]:
    """Return the page that a server with this response gives, and the request."""
    requests = []

    async def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(response)
        writer.close()

    server = await asyncio.start_server(on_connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        page = await get_page(f"http://127.0.0.1:{port}/readyz", token="secret")
    return page, requests[0]


def test_a_page_has_a_status_headers_and_a_text() -> None:
    page, request = asyncio.run(fetch(PAGE))
    assert page == HttpPage(503, {"server": "shoal/1", "x": "y:z"}, "busy\n")
    first, *headers = request.decode().split("\r\n")
    assert first == "GET /readyz HTTP/1.1"
    assert "Authorization: Bearer secret" in headers


@pytest.mark.parametrize("response", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 \xb2\xb2 OK\r\n\r\n"])
def test_what_is_no_response_is_an_error(response: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not answer by HTTP/1[.]1"):
        asyncio.run(fetch(response))


def test_a_page_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_page, "PAGE_BYTES_MAX", len(PAGE) - 1)
    with pytest.raises(ValueError, match="answers with more than"):
        asyncio.run(fetch(PAGE))
