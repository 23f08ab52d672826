"""Headless Chromium, driven by the Chrome DevTools Protocol as a person drives a browser.

Each `Tab` has cookies of its own, as a person has. Clicks and keys are real input events. A tab
collects errors of scripts and violations of the Content-Security-Policy.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import itertools
import json
import re
import shutil
import tarfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from support.runs.machine import lacking
from support.runs.npm_packages import fetch_archive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 40.0
#: Seconds until a click that had no effect is repeated.
CLICK_S = 3.0
#: axe-core finds faults of accessibility. npm checks the archive; the hash is of the script in it.
AXE = "axe-core@4.10.3"
AXE_SHA256 = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"
_LISTENS = re.compile(rb"DevTools listening on (ws://\S+)")


def chromium_path() -> str:
    """Return the browser's path; skip the test, or fail in CI, without one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or lacking("no Chromium on the PATH: apt-get install chromium")


@functools.cache
def axe_source() -> str:
    """Return axe-core's script, which npm fetches once into `build`."""
    path = ROOT / "build" / "axe" / "axe.min.js"
    if not path.exists():
        with tarfile.open(fetch_archive(AXE, path.parent)) as archive:
            content = archive.extractfile("package/axe.min.js")
            assert content is not None
            path.write_bytes(content.read())
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == AXE_SHA256, f"{path} is not {AXE}"
    return data.decode()


class Browser:
    """One browser process and the connection to it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            found = json.loads(message.data)
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
            elif found.get("sessionId") in self._tabs:
                self._tabs[found["sessionId"]].note(found["method"], found["params"])

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises `AssertionError` for a refusal."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        async with asyncio.timeout(TIMEOUT_S):
            found = await answer
        assert "error" not in found, (method, found["error"])
        return dict(found["result"])

    async def tab(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """Open a tab in the browser of a new person."""
        context = await self.call("Target.createBrowserContext")
        target = await self.call(
            "Target.createTarget",
            url="about:blank",
            browserContextId=context["browserContextId"],
        )
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        session = attached["sessionId"]
        tab = self._tabs[session] = Tab(self, session, context["browserContextId"])
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        await tab.look(width=width, height=height, dark=dark)
        return tab

    async def close(self) -> None:
        """End the browser with all its processes."""
        await self.call("Browser.close")
        self._reader.cancel()
        await self._socket.close()


class Tab:
    """One page of one person."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context
        self.errors: list[str] = []

    async def close(self) -> None:
        """Close it, with the person's cookies and connections."""
        await self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        """Keep an error that the page reports."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    async def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, also of a promise. None while a page is loading."""
        try:
            found = await self.call(
                "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
            )
        except AssertionError as error:
            # A navigation ended the page in which it ran.
            if any(word in str(error) for word in ("context", "navigated", "destroyed")):
                return None
            raise
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def goto(self, url: str) -> None:
        """Open an address, and wait until the page is there."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href === {json.dumps(url)} && document.readyState")
        await self.until("document.readyState === 'complete'")

    async def until(self, expression: str) -> Any:
        """Wait until an expression of the page is true, and return its value."""
        # The page waits: one request covers up to half a second. Not each frame is looked at,
        # because the text of a page needs its layout.
        waits = (
            "new Promise(resolve => { const end = performance.now() + 500; const look = () => {"
            f" let found; try {{ found = {expression}; }} catch (error) {{ found = null; }}"
            " if (found || performance.now() > end)"
            " resolve(found instanceof Node ? true : found);"
            " else setTimeout(look, 50); }; look(); })"
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TIMEOUT_S
        while not (found := await self.evaluate(waits)):
            assert loop.time() < deadline, f"not true: {expression}\n{await self.text()}"
        return found

    async def text(self) -> str:
        """Return the text that the person sees, with single blanks."""
        return " ".join(str(await self.evaluate("document.body.innerText")).split())

    async def sees(self, text: str) -> None:
        """Wait until the page has a text. Blanks are single."""
        shown = "document.body.innerText.replace(/\\s+/g, ' ')"
        await self.until(f"{shown}.includes({json.dumps(text)})")

    async def click(self, text: str) -> None:
        """Click on the link or button with exactly this text, and wait for the page after it."""
        await self.until("document.documentElement.dataset.before = '1'")
        element = (
            "[...document.querySelectorAll('a, button')].find(one =>"
            f" one.innerText.trim() === {json.dumps(text)})"
        )
        gone = "document.readyState === 'complete' && !document.documentElement.dataset.before"
        loop = asyncio.get_running_loop()
        again_at = loop.time()
        deadline = again_at + TIMEOUT_S
        frame = f"new Promise(done => setTimeout(() => done({gone}), 30))"
        while not await self.evaluate(frame):
            assert loop.time() < deadline, f"no page after {text}: {await self.text()}"
            # A page that changes under the mouse loses a click. A person clicks again.
            if loop.time() >= again_at and not await self.evaluate(gone):
                await self._click_on(element, or_gone=gone)
                again_at = loop.time() + CLICK_S

    async def unfold(self, text: str) -> None:
        """Open the section with this summary."""
        await self._click_on(
            "[...document.querySelectorAll('summary')].find(one =>"
            f" one.innerText.trim() === {json.dumps(text)})"
        )

    async def choose(self, label: str) -> None:
        """Click on the input with this label."""
        await self._click_on(_labelled(label))

    async def fill(self, label: str, text: str) -> None:
        """Replace the text of an input by typing."""
        await self.until(f"{_labelled(label)} && ({_labelled(label)}.select(), true)")
        await self.until(f"({_labelled(label)}.focus(), true)")
        await self.call("Input.insertText", text=text)

    async def select(self, label: str, value: str) -> None:
        """Choose an option of a list."""
        found = _labelled(label)
        await self.until(
            f"{found} && ({found}.value = {json.dumps(value)},"
            f" {found}.dispatchEvent(new Event('change')), {found}.value === {json.dumps(value)})"
        )

    async def _click_on(self, element: str, *, or_gone: str = "false") -> None:
        box = await self.until(
            f"(() => {{ if ({or_gone}) return [0, 0]; const one = {element}; if (!one) return null;"
            " one.scrollIntoView({block: 'center'}); const [box] = [...one.getClientRects()]"
            ".sort((a, b) => b.width - a.width); if (!box) return null;"
            " return box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=box[0],
                y=box[1],
                button="left",
                clickCount=1,
            )

    async def font(self) -> str:
        """Return the name of the font in which the page's first heading is drawn."""
        for domain in ("DOM", "CSS"):
            await self.call(f"{domain}.enable")
        root = (await self.call("DOM.getDocument"))["root"]["nodeId"]
        node = (await self.call("DOM.querySelector", nodeId=root, selector="h1"))["nodeId"]
        found = await self.call("CSS.getPlatformFontsForNode", nodeId=node)
        return str(found["fonts"][0]["familyName"])

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the whole page, or the window, as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def faults(self, rule: str = "") -> list[str]:
        """Return what axe-core finds serious or critical, with the elements: all, or by a rule."""
        if not await self.evaluate("typeof axe === 'object'"):
            await self.evaluate(axe_source() + "; 0")
        options = {"resultTypes": ["violations"], **({"runOnly": [rule]} if rule else {})}
        call = f"axe.run({json.dumps(options)}).then(found => found.violations)"
        found = await self.evaluate(call)
        return [
            f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]


def _labelled(label: str) -> str:
    """Return the expression of the input with a label or an accessible name."""
    name = json.dumps(label)
    return (
        "(() => { const label = [...document.querySelectorAll('label')].find(one =>"
        f" one.innerText.trim() === {name}); return label ? label.control"
        f" : document.querySelector(`[aria-label=${{JSON.stringify({name})}}]`); }})()"
    )


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Browser]:
    """Start a browser with an empty profile."""
    process = await asyncio.create_subprocess_exec(
        chromium_path(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'chromium'}",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := _LISTENS.search(await process.stderr.readline())):
                assert process.returncode is None, "the browser has ended"
        drain = asyncio.create_task(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            address = found[1].decode()
            async with session.ws_connect(address, max_msg_size=0) as socket:
                browser = Browser(socket)
                try:
                    yield browser
                finally:
                    await browser.close()
        async with asyncio.timeout(TIMEOUT_S):
            await process.wait()
        drain.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
