"""The console of a cluster in the test's process, opened by HTTP as a browser does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlsplit

from aiohttp.test_utils import TestClient, TestServer
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import Console as Parts
from shoal.console.app import build_application
from shoal.console.sampling.sampler import Sampler

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

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the page's form that is sent by POST, as a browser would send them."""
        parser = _Fields()
        parser.feed(self.text)
        return parser.fields


def encoded(fields: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the pairs of a form; a list has a pair for each of its values."""
    return [
        (name, str(one))
        for name, value in fields.items()
        for one in (value if isinstance(value, list | tuple) else [value])
    ]


class _Fields(HTMLParser):
    """Reads the inputs of a page's last form with the method POST."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._is_in = False
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in = given.get("method") == "post" and given.get("action") != "/logout"
            if self._is_in:
                self.fields = {}
        elif not self._is_in:
            return
        elif tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.fields[given["name"]] = given.get("value", "")
        elif tag == "select":
            self._select = given["name"]
        elif tag == "option" and (self._select not in self.fields or "selected" in given):
            self.fields[self._select] = given["value"]
        elif tag == "textarea":
            self._area = given["name"]
            self.fields[self._area] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.fields[self._area] = self.fields[self._area].removeprefix("\n")
            self._area = ""
        elif tag == "form":
            self._is_in = False

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area] += data


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
        query = [(name.rstrip("_"), value) for name, value in encoded(fields)]
        async with self.browser.get(path, params=query) as response:
            found = Opened(response.status, dict(response.headers), await response.text())
        assert found.status == status, found.words
        return found

    async def post(
        self, path: str, fields: Mapping[str, object], *, status: object = 200
    ) -> Opened:
        """Send a form, and follow its redirect. Expect this status."""
        async with self.browser.post(path, data=encoded(fields)) as response:
            found = Opened(response.status, dict(response.headers), await response.text())
        assert found.status == status, found.words
        return found

    async def preview(self, action: str, *, status: object = 200, **fields: object) -> Opened:
        """Open the form of an action with these fields, and show what will happen."""
        form = await self.get(f"/act-{action}", status=fields.pop("form_status", 200), **fields)
        if 'action="/confirm"' in form.text:
            return form
        return await self.post(f"/act-{action}", {**form.fields, **fields}, status=status)

    async def act(self, action: str, **fields: object) -> Opened:
        """Carry out an action: form, plan, confirmation. Return the page of its result."""
        return await self.confirm(await self.preview(action, **fields))

    async def confirm(self, plan: Opened, *, status: object = 200, **fields: object) -> Opened:
        """Confirm a plan."""
        return await self.post("/confirm", {**plan.fields, **fields}, status=status)

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
async def another_browser(page: Console) -> AsyncIterator[Console]:
    """Open the console in the browser of another person."""
    server = cast("TestServer", page.browser.server)
    browser: TestClient[web.Request, web.Application] = TestClient(server)
    await browser.start_server()
    try:
        yield Console(page.client, page.sampler, browser)
    finally:
        # `browser.close` would end the server, too.
        await browser.session.close()


@asynccontextmanager
async def console(
    settings: str | Settings,
    access: ConsoleAccess = ConsoleAccess(),
    *,
    metrics: list[str] | None = None,
) -> AsyncIterator[Console]:
    """Serve the console of a cluster, at `access.url` or on a free port."""
    if isinstance(settings, str):
        settings = Settings.from_bootstrap(settings)
    async with Client(settings) as client:
        sampler = Sampler(client, metrics=metrics, interval_s=5.0)
        parts = Parts(client, sampler, access)
        try:
            port = urlsplit(access.url).port if access.url else None
            async with TestClient(TestServer(build_application(parts), port=port)) as browser:
                yield Console(client, sampler, browser)
        finally:
            await parts.close()
