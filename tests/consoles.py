"""The console of a cluster in the test's process, opened by HTTP as a browser does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import TYPE_CHECKING, NamedTuple

from aiohttp.test_utils import TestClient, TestServer
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.console.app import application
from shoal.console.live import Streams
from shoal.console.pages import Pages
from shoal.console.sampler import Sampler
from shoal.console.security import Access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import ClientResponse, web


class Opened(NamedTuple):
    """A response: its status, headers and text."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def words(self) -> str:
        """The text that a reader sees, with single blanks."""
        parser = _Words()
        parser.feed(self.text)
        return " ".join(" ".join(parser.pieces).split())


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


class Console:
    """A console. Its sampler reads only when a test calls `sample`."""

    def __init__(
        self,
        client: Client,
        sampler: Sampler,
        browser: TestClient[web.Request, web.Application],
    ) -> None:
        self.client = client
        self.sampler = sampler
        self.browser = browser

    async def sample(self) -> None:
        """Read a sample; it must succeed."""
        await self.sampler.step()
        assert self.sampler.error is None, self.sampler.error

    async def get(self, path: str, *, status: object = 200, **fields: object) -> Opened:
        """Open a page with the fields in its query. Expect this status.

        A trailing `_` of a field's name is dropped: `from_`.
        """
        query = {name.rstrip("_"): str(value) for name, value in fields.items()}
        async with self.browser.get(path, params=query) as response:
            found = Opened(response.status, dict(response.headers), await response.text())
        assert found.status == status, found.words
        return found

    async def events(self, response: ClientResponse) -> AsyncIterator[tuple[str, str]]:
        """Yield the name and the data of each server-sent event."""
        name, data = "", []
        async for line in response.content:
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data.append(text.removeprefix("data: "))
            elif not text and name:
                yield name, "\n".join(data)
                name, data = "", []


@asynccontextmanager
async def console(
    settings: str | Settings, access: Access = Access(), *, metrics: list[str] | None = None
) -> AsyncIterator[Console]:
    """Serve the console of a cluster on a free port."""
    if isinstance(settings, str):
        settings = Settings.of(settings)
    async with Client(settings) as client:
        sampler = Sampler(client, metrics=metrics, interval_s=5.0)
        app = application(Pages(client, sampler), Streams(sampler), access)
        async with TestClient(TestServer(app)) as browser:
            yield Console(client, sampler, browser)
