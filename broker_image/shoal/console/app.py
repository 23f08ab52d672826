"""The console's web application: routes, errors as pages, and its life."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from shoal.client.client import Client
from shoal.client.errors import ClientError, KafkaError, is_transient
from shoal.console.access import openid
from shoal.console.access.actors import Actors
from shoal.console.access.connections import HttpConnectionLimits, count_requests, send_in_pieces
from shoal.console.access.openid import OpenIdLogin
from shoal.console.access.security import LOGIN, NO_RIGHT, USER, ConsoleAccess, guard, with_headers
from shoal.console.access.sessions import Sessions
from shoal.console.forms import FORM_BYTES_MAX, Forms
from shoal.console.live import EventStreams
from shoal.console.pages import Page, Pages
from shoal.console.reading.read_budget import PAGES_MAX
from shoal.console.reading.records import BatchTooLarge
from shoal.console.reading.registries import Registry
from shoal.console.reading.views import RecordView
from shoal.console.render import STATIC, compile_templates, render
from shoal.console.runs import ActionRuns
from shoal.console.sampling import sampler as samplers
from shoal.console.sampling.kubernetes import Kubernetes, reading
from shoal.console.sampling.prometheus import Prometheus
from shoal.monitoring.remedies import format_remedy
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp.typedefs import Handler, Middleware

    from shoal.client.settings import Settings

    PageHandler = Callable[[web.Request], Awaitable[Page]]

_Answer = TypeVar("_Answer")
log = logging.getLogger("shoal.console")
#: What aiohttp logs.
_http_log = logging.getLogger("shoal.console.http")
#: Seconds until open event streams are cut when the console ends.
SHUTDOWN_S = 1.0
#: The longest request line and header. Group ids in an address may be long.
LINE_BYTES_MAX = 16 << 10
#: Headers of a request. Browsers and a proxy send some 20.
HEADERS_MAX = 64
#: Titles of error pages that say more than the phrase of HTTP.
_TITLES = {
    HTTPStatus.CONFLICT: "Not possible now",
    HTTPStatus.FORBIDDEN: "No right",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Too large to show",
    HTTPStatus.UNAUTHORIZED: "Not logged in",
}
_ABSENT = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.group_id_not_found,
        ErrorCode.offset_out_of_range,
        ErrorCode.invalid_topic_exception,
    }
)


class Console:
    """The parts of one console over a client's cluster. `close` ends its actions."""

    def __init__(self, client: Client, sampler: samplers.Sampler, access: ConsoleAccess) -> None:
        self.access = access
        self.registry = None if access.registry is None else Registry(access.registry)
        view = RecordView(access.masks, self.registry)
        self.kubernetes = None if access.kubernetes is None else Kubernetes(access.kubernetes)
        self.prometheus = None if access.prometheus is None else Prometheus(access.prometheus)
        self.actors = Actors(client, access)
        self.pages = Pages(client, sampler, self.actors, view, self.kubernetes, self.prometheus)
        self.streams = EventStreams(sampler)
        self.reading = asyncio.Semaphore(PAGES_MAX)
        encrypted = access.is_encrypted or access.url.startswith("https:")
        self.sessions = Sessions(is_encrypted=encrypted, hosts=access.hosts)
        self.runs = ActionRuns(sampler.hurry)
        self.forms = Forms(self.pages, sampler, self.actors, self.sessions, self.runs, view)

    async def close(self) -> None:
        await self.runs.close()
        await self.actors.close()
        if self.access.login is not None:
            await self.access.login.close()
        if self.registry is not None:
            await self.registry.close()
        if self.kubernetes is not None:
            await self.kubernetes.close()
        if self.prometheus is not None:
            await self.prometheus.close()


def build_application(console: Console) -> web.Application:
    """Return the application."""
    compile_templates()
    pages = console.pages
    app = web.Application(
        middlewares=[
            count_requests,
            with_headers,
            console.sessions.middleware,
            _make_error_middleware(pages),
            guard(console.access),
        ],
        client_max_size=FORM_BYTES_MAX,
        handler_args={
            "max_line_size": LINE_BYTES_MAX,
            "max_field_size": LINE_BYTES_MAX,
            "max_headers": HEADERS_MAX,
            "auto_decompress": False,
        },
    )
    live: dict[str, PageHandler] = {
        "": pages.show_overview,
        "group": pages.show_group,
        "consumers": pages.show_consumers,
    }
    still: dict[str, PageHandler] = {
        "topics": pages.show_topics,
        "topic": _limit_concurrency(console.reading, pages.show_topic),
        "record": _limit_concurrency(console.reading, pages.show_record),
        "letters": _limit_concurrency(console.reading, pages.show_dead_letters),
        "letter": _limit_concurrency(console.reading, pages.show_dead_letter),
    }
    if console.access.allow_actions:
        live |= {"run": console.forms.show_run, "actions": console.forms.show_actions}
        still["act-{name}"] = console.forms.open
        app.router.add_post("/act-{name}", partial(_serve_page, console.forms.preview, False))
        app.router.add_post("/confirm", partial(_serve_page, console.forms.confirm, False))
        app.router.add_post("/stop", partial(_serve_page, console.forms.stop, False))
    for name, handler in live.items():
        app.router.add_get(f"/{name}", partial(_serve_page, handler, True))
        app.router.add_get(f"/live/{name}", partial(_serve_stream, console.streams, handler))
    for name, handler in still.items():
        app.router.add_get(f"/{name}", partial(_serve_page, handler, False))
    if isinstance(console.access.login, OpenIdLogin):
        login = console.access.login
        app.router.add_get(openid.RETURN, login.complete_login)
        app.router.add_post(openid.LOG_OUT, partial(_log_out, console, login))
        logged_out = partial(pages.show_logged_out, login)
        app.router.add_get(openid.LOGGED_OUT, partial(_serve_page, logged_out, False))
    reading_payload = _limit_concurrency(console.reading, pages.read_payload)
    app.router.add_get("/payload", partial(_serve_payload, reading_payload))
    app.router.add_get("/static/{name}", _serve_static)
    return app


def _limit_concurrency(
    turns: asyncio.Semaphore, handler: Callable[[web.Request], Awaitable[_Answer]]
) -> Callable[[web.Request], Awaitable[_Answer]]:
    """Return the handler of a page that reads records: few may hold them at a time."""

    async def read(request: web.Request) -> _Answer:
        async with turns:
            return await handler(request)

    return read


async def _serve_page(handler: PageHandler, is_live: bool, request: web.Request) -> web.Response:
    page = await handler(request)
    text = render(f"{page.template}.html", {**page.context, "is_live": is_live})
    response = web.Response(text=text, content_type="text/html")
    # The size of a compressed page with both a secret and a part of the request betrays the secret.
    if "token" not in page.context:
        response.enable_compression()
    return response


async def _serve_payload(
    read: Callable[[web.Request], Awaitable[tuple[web.StreamResponse, bytes]]], request: web.Request
) -> web.StreamResponse:
    response, payload = await read(request)
    await send_in_pieces(request, response, payload)
    return response


async def _log_out(console: Console, login: OpenIdLogin, request: web.Request) -> web.Response:
    console.sessions.check_origin(request)
    return await login.log_out(request)


async def _serve_stream(
    streams: EventStreams, handler: PageHandler, request: web.Request
) -> web.StreamResponse:
    async def render_part() -> str:
        if LOGIN in request:
            await request[LOGIN].renew()
            if request[LOGIN].is_over:
                raise web.HTTPUnauthorized(
                    text="Your login has ended. Reload the page to log in again."
                )
        async with streams.rendering:
            await asyncio.sleep(0)  # Otherwise a page that waits for nothing lets nobody else run.
            page = await handler(request)
            return render(f"{page.template}_live.html", page.context)

    return await streams.serve(request, render_part)


async def _serve_static(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in {path.name for path in STATIC.iterdir()}:
        raise web.HTTPNotFound(text=f"There is no file {name[:100]}.")
    response = web.FileResponse(STATIC / name)
    response.headers["Cache-Control"] = "max-age=31536000, immutable"
    return response


def _make_error_middleware(pages: Pages) -> Middleware:
    """Return the middleware that answers an error with a page, which has the remedy."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = {}
        try:
            return await handler(request)
        except web.HTTPRedirection as error:
            location = {"Location": error.headers["Location"]}
            return web.Response(status=error.status, headers=location)
        except web.HTTPException as error:
            status, text = HTTPStatus(error.status), error.text or error.reason
            kept_names = ("WWW-Authenticate", "Allow", "Retry-After")
            headers = {name: error.headers[name] for name in kept_names if name in error.headers}
        except ClientError as error:
            status, text = _find_status(error), _format_sentence(error)
        except ConnectionError as error:
            # aiohttp keeps the error, whose frames would hold what had arrived of a form.
            traceback.clear_frames(error.__traceback__)
            return web.Response(status=HTTPStatus.BAD_REQUEST)  # Nobody is there to read it.
        except Exception:
            log.exception("page %s", request.path)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            text = "The console failed. Its error output has the reason."
        context = {**pages.make_base(request), "status": int(status), "text": text}
        if USER not in request:
            # Without a login, nothing of the cluster is shown.
            context |= {"sample": None, "problem": None}
        title = _TITLES.get(status, status.phrase)
        page = render("error.html", {**context, "title": title})
        return web.Response(text=page, status=status, content_type="text/html", headers=headers)

    return answer


def _is_fault(record: logging.LogRecord) -> bool:
    """Whether a log record is no traceback of bytes that are not HTTP, which everybody may send."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, BadHttpMessage)


_http_log.addFilter(_is_fault)


def _find_status(error: ClientError) -> HTTPStatus:
    if isinstance(error, KafkaError):
        if error.code in NO_RIGHT:
            return HTTPStatus.FORBIDDEN
        if error.code in _ABSENT:
            return HTTPStatus.NOT_FOUND
    if isinstance(error, BatchTooLarge):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return HTTPStatus.SERVICE_UNAVAILABLE if is_transient(error) else HTTPStatus.BAD_GATEWAY


def _format_sentence(error: ClientError) -> str:
    return format_remedy(error) if isinstance(error, KafkaError) else f"{error}."


@asynccontextmanager
async def serving(
    settings: Settings,
    access: ConsoleAccess,
    *,
    metrics: list[str] | None = None,
    interval_s: float = 5.0,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve the console of a cluster; yield its URL.

    `metrics` are addresses of the brokers' metrics listeners; the default is what they report.
    Raises `OSError` if the address is in use.
    """
    async with Client(settings) as client:
        sampler = samplers.Sampler(client, metrics=metrics, interval_s=interval_s)
        console = Console(client, sampler, access)
        runner = web.AppRunner(
            build_application(console),
            access_log=None,
            logger=_http_log,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        try:
            assert runner.server is not None
            async with (
                HttpConnectionLimits().serving(
                    runner.server, access.host, access.port, ssl_context
                ) as port,
                samplers.running(sampler),
                reading(console.kubernetes),
            ):
                host = f"[{access.host}]" if ":" in access.host else access.host
                scheme = "http" if ssl_context is None else "https"
                yield f"{scheme}://{host}:{port}/"
        finally:
            await console.close()
            await runner.cleanup()
