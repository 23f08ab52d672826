"""`shoal console`: a web page over a cluster, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shoal.cli.groups import Metrics
from shoal.cli.session import USAGE, Failed, command, new_app
from shoal.client.client import Client

if TYPE_CHECKING:
    from shoal.console.security import Access

app = new_app("Serve a web page that shows the queues of a cluster.")

#: A page reports an unreachable broker soon, and the next sample tries again.
_RETRY_TIMEOUT_MS, _REQUEST_TIMEOUT_MS, _CONNECT_TIMEOUT_MS = 5_000, 10_000, 3_000


class PageOptions(NamedTuple):
    """The options that decide who reaches the page, and what users may do."""

    login: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Users of the page, a line USER:PASSWORD for each. Default: no login.",
        ),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A PEM file with the certificate chain and its key, to serve HTTPS.",
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key of --certificate, if it is in another file."),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other hosts reach the page without login or HTTPS."),
    ] = False
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let users pause, skip, redrive, purge, reset and produce. Without"
            " it the console only reads.",
        ),
    ] = False


@command(app)
async def console(
    client: Client,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the page. Port 0 uses a free port.",
        ),
    ] = "127.0.0.1:9080",
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=1, help="Seconds between two samples.")
    ] = 5.0,
    page: PageOptions = PageOptions(),
    metrics: Metrics = None,
    until_input_ends: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve a web page that shows the queues of a cluster. Ctrl-C ends it.

    It sees what the user of the connection may see; --command-config and --property set that user.
    """
    try:
        from shoal.console.app import serving
    except ModuleNotFoundError as error:
        raise Failed(
            f"the console needs the Python package {error.name}. Install it with"
            " `pip install 'shoal[console]'`.",
            USAGE,
        ) from None
    access = _access(listen, page)
    logging.basicConfig(format="shoal console: %(message)s", level=logging.WARNING)
    _write_audit_lines()
    settings = replace(
        client.cluster.settings,
        retry_timeout_ms=_RETRY_TIMEOUT_MS,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        connect_timeout_ms=_CONNECT_TIMEOUT_MS,
    )
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    if until_input_ends:
        # `shoal server --console` holds the other end of this pipe.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    context = None if page.certificate is None else _context(page.certificate, page.key)
    served = serving(settings, access, metrics=metrics, interval_s=interval, ssl_context=context)
    try:
        async with served as url:
            print(f"The console is at {url}. Ctrl-C or SIGTERM stops it.", flush=True)
            await ended.wait()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise Failed(f"cannot listen on {listen}: {reason}. Choose another --listen.") from None


def _write_audit_lines() -> None:
    """Write one line of JSON to standard error for each action."""
    from shoal.console.runs import audit_log

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit_log.addHandler(handler)
    audit_log.setLevel(logging.INFO)
    audit_log.propagate = False


def _access(listen: str, page: PageOptions) -> Access:
    """Return who may reach the page. Raises `Failed`."""
    from shoal.console import security

    try:
        host, port = security.parse_address(listen)
        login = page.login
        users = security.parse_users(login.read_text(), str(login)) if login else {}
        encrypted = page.certificate is not None
        access = security.Access(host, port, encrypted, users, page.allow_actions)
        access.check(insecure=page.insecure)
    except security.InvalidAccess as error:
        raise Failed(f"{error}.", USAGE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise Failed(f"cannot read {page.login}: {reason}.", USAGE) from None
    return access


def _context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Failed(
            f"cannot use {certificate}: {reason}. It must be a PEM file with the certificate chain"
            " and its key, or with --key for the key, without a password.",
            USAGE,
        ) from None
    return context
