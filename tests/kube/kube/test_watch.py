"""The watch of a kind goes on after every failure, and says what fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from kube.api_server import ApiServer, CrashPoint
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster, Context, User
from shoal_operator.kube import http_client
from shoal_operator.kube import watch as watch_module
from shoal_operator.kube.http_client import HttpKubeClient
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.kube.watch import KindWatch
from shoal_operator.model import names
from structlog.testing import LogCapture
from support.runs.conditions import eventually_async
from support.runs.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shoal_operator.model.names import Manifest

KIND: tuple[str, str, dict[str, str], str] = (names.SPARK_API, "SparkApplication", {}, "n")
OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED, UNTIL_END = (
    OPEN + b"Transfer-Encoding: chunked\r\n\r\n",
    OPEN + b"Connection: close\r\n\r\n",
)


def application(name: str, **metadata: Any) -> Manifest:
    return {
        "apiVersion": names.SPARK_API,
        "kind": "SparkApplication",
        "metadata": {"namespace": "n", "name": name, **metadata},
    }


def line(change: str, manifest: Any) -> bytes:
    return json.dumps({"type": change, "object": manifest}).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def respond(body: Any, status: str = "200 OK") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(data), data)


FIRST = line("ADDED", application("first"))
PAGE = respond({"items": [], "metadata": {"resourceVersion": "7"}})
EXPIRED = {"kind": "Status", "code": 410, "message": "too old resource version"}
#: What the first watch gets: what the API server, or something between, may do to it.
WATCH_BREAKS = {
    "closed before the response": b"",
    "lost in the middle of a line": CHUNKED + chunk(FIRST[:20]),
    "ended in the middle of a line": UNTIL_END + FIRST[:20],
    "ended at once": UNTIL_END,
    "no JSON": CHUNKED + chunk(b"<html>\n"),
    "no object": CHUNKED + chunk(b"[]\n"),
    "a change of nothing": CHUNKED + chunk(line("ADDED", None)),
    "an object without a name": CHUNKED + chunk(line("ADDED", {"metadata": {}})),
    "no UTF-8": CHUNKED + chunk(b'{"\xff\xfe"\n'),
    "410 as an event": CHUNKED + chunk(line("ERROR", EXPIRED)),
    "410": respond(EXPIRED, "410 Gone"),
    "an event of an error without a code": CHUNKED + chunk(line("ERROR", {})),
    "500": respond(b"<html>bad gateway</html>", "500 Internal Server Error"),
    "403": respond({"message": "forbidden"}, "403 Forbidden"),
    # The connection stays open, and nothing comes.
    "silence": CHUNKED + chunk(FIRST) + b"stay",
    "silence instead of a response": b"stay",
}
LIST_BREAKS = {
    "a page of a proxy": respond(b"<html>log in</html>"),
    "a list without items": respond({"kind": "Status"}),
    "items that are none": respond({"items": ["x"], "metadata": {}}),
    "500": respond({"message": "etcd is away"}, "500 Internal Server Error"),
    "closed": b"",
}


class ScriptedServer:
    """An API server whose first list or watch gets the bytes `broken`."""

    def __init__(self, of: str, broken: bytes) -> None:
        self._broken = {of: broken}
        #: The lines of watches that work.
        self.changes: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                of = "watch" if b"watch=true" in request else "list"
                if (data := self._broken.pop(of, None)) is not None:
                    writer.write(data.removesuffix(b"stay"))
                    await writer.drain()
                    if data.endswith(b"stay"):
                        await reader.read()
                    break
                if of == "list":
                    writer.write(PAGE)
                    continue
                writer.write(CHUNKED)
                while True:
                    writer.write(chunk(await self.changes.get()))
        writer.close()


@contextlib.asynccontextmanager
async def client_of(server: ScriptedServer) -> AsyncIterator[KubeClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    address = Cluster(server=f"http://127.0.0.1:{port}")
    kube = HttpKubeClient(SingleConfig("here", Context(cluster="here"), address, User()))
    yield kube
    await kube.close()
    listening.close()


@contextlib.asynccontextmanager
async def watching(
    kube: KubeClient,
    on_update: Callable[[Manifest], None],
    on_delete: Callable[[Manifest], None] = lambda _: None,
) -> AsyncIterator[KindWatch]:
    watch = KindWatch(kube, *KIND, on_update, on_delete)
    task = asyncio.create_task(watch.run())
    yield watch
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled(), "it ends by its cancellation alone"


@pytest.fixture
def log_entries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the watch logs, whatever level and cached loggers another test has configured."""
    capture = LogCapture()
    logger = structlog.wrap_logger(None, processors=[capture], wrapper_class=structlog.BoundLogger)
    monkeypatch.setattr(watch_module, "log", logger)
    return capture.entries


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(http_client, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(http_client, "TIMEOUT_SECONDS", 0.1)


@pytest.mark.parametrize(
    ("of", "case"),
    [*(("watch", case) for case in WATCH_BREAKS), *(("list", case) for case in LIST_BREAKS)],
)
@pytest.mark.usefixtures("short_times")
def test_it_goes_on_after_every_failure(of: str, case: str, log_entries: list[Any]) -> None:
    broken = (WATCH_BREAKS if of == "watch" else LIST_BREAKS)[case]

    async def scenario() -> None:
        seen: list[str] = []
        server = ScriptedServer(of, broken)
        async with (
            client_of(server) as kube,
            watching(kube, lambda o: seen.append(o["metadata"]["name"])) as watch,
        ):
            server.changes.put_nowait(line("BOOKMARK", {"metadata": {}}))
            server.changes.put_nowait(line("MODIFIED", application("later")))
            await eventually_async(lambda: "later" in seen)
            assert watch.problem == ""
            assert watch.synced

    asyncio.run(scenario())
    causes = [entry["error"] for entry in log_entries if entry["event"] == "watch broke off"]
    assert causes, "the log says so"
    assert all(causes), "with the cause"
    defects = [entry for entry in log_entries if entry["event"].startswith("a defect")]
    assert bool(defects) == (case == "an object without a name"), "others are not the operator's"


def test_a_bug_in_a_handler_concerns_one_object(log_entries: list[Any]) -> None:
    seen: list[tuple[str, str]] = []

    def handle(change: str, manifest: Manifest) -> None:
        if manifest["metadata"]["name"] == "bad":
            raise LookupError("a bug")
        seen.append((change, manifest["metadata"]["name"]))

    async def scenario() -> None:
        server = ScriptedServer("list", respond(page))
        handlers = partial(handle, "put"), partial(handle, "gone")
        async with client_of(server) as kube, watching(kube, *handlers) as watch:
            for change in ("ADDED", "DELETED"):
                for name in ("bad", "good"):
                    server.changes.put_nowait(line(change, application(name)))
            await eventually_async(lambda: ("gone", "good") in seen)
            assert watch.problem == ""

    page = {"items": [application("bad"), application("old")], "metadata": {"resourceVersion": "1"}}
    asyncio.run(scenario())
    assert seen == [("put", "old"), ("put", "good"), ("gone", "good")]
    defects = [entry for entry in log_entries if entry["event"] == "a defect of the operator"]
    assert [entry["name"] for entry in defects] == ["bad"] * 3
    assert not [entry for entry in log_entries if entry["event"] == "watch broke off"]


class FailingServer(ApiServer):
    """Lists fail while `failing`, and the times of the attempts are noted."""

    def __init__(self) -> None:
        super().__init__(CrashPoint())
        self.failing, self.times = True, list[float]()
        #: Ends the open watch.
        self.end = asyncio.Event()

    async def list_snapshot(self, *arguments: Any) -> tuple[list[Manifest], str]:
        self.times.append(asyncio.get_running_loop().time())
        if self.failing:
            raise KubeError(500, "etcd is away")
        return await super().list_snapshot(*arguments)

    @contextlib.asynccontextmanager
    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[AsyncIterator[tuple[str, Manifest]]]:
        async def wait() -> AsyncIterator[tuple[str, Manifest]]:
            await self.end.wait()
            raise KubeError(0, "the connection is lost")
            yield "", {}

        yield wait()


def test_attempts_come_later_until_a_watch_has_lasted() -> None:
    loop = VirtualLoop()

    async def begin() -> tuple[FailingServer, KindWatch, asyncio.Task[None]]:
        server = FailingServer()
        watch = KindWatch(server, *KIND, lambda _: None, lambda _: None)
        return server, watch, asyncio.create_task(watch.run())

    async def stop(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait((task,))

    server, watch, task = loop.run_until_complete(begin())
    loop.advance(91)
    assert server.times == [0, 2, 6, 14, 30, 60, 90]
    what = f"SparkApplication ({names.SPARK_API}) in namespace 'n'"
    assert watch.problem == f"The watch of {what} fails: etcd is away"
    assert not watch.synced
    server.failing = False
    loop.advance(60)
    assert (watch.problem, watch.synced) == ("", True)
    server.times.clear()
    server.end.set()
    loop.advance(7)
    assert server.times == [153, 157], "it begins with the shortest pause again"
    assert watch.problem == f"The watch of {what} fails: the connection is lost"
    assert watch.synced
    loop.run_until_complete(stop(task))
    loop.close()
