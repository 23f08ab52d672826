"""`shoal console`: a web page over a cluster, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from shoal.cli.commands import side_console
from shoal.cli.commands.groups import Metrics
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.client import Client

if TYPE_CHECKING:
    from shoal.console.access.security import ConsoleAccess, ConsoleLogin
    from shoal.console.reading.masks import Masks
    from shoal.console.reading.registries import RegistrySettings
    from shoal.console.sampling.kubernetes import KubernetesSettings
    from shoal.console.sampling.prometheus import PrometheusSettings

app = make_app("Serve a web page that shows the queues of a cluster.")

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
    openid: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The OpenID provider that logs users in: JSON with issuer, client_id and more.",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The address that browsers use, if it is another one."),
    ] = None
    proxy_user_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The header in which a proxy sends the user."),
    ] = None
    proxy_token_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The header in which a proxy sends an access token."),
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="An address or a network from which these headers count. Repeatable.",
        ),
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A PEM file with the authorities of users' certificates. The subject is the user.",
        ),
    ] = None
    client_principal_mapping: Annotated[
        str,
        typer.Option(
            metavar="RULES",
            help="The user for a subject, as in ssl.principal.mapping.rules.",
        ),
    ] = "DEFAULT"
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
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rules for what is masked in records: JSON, by topic, field, header and key.",
        ),
    ] = None
    schema_registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A schema registry, whose schemas decode keys and values.",
        ),
    ] = None
    schema_registry_login: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The console's login there, a line USER:PASSWORD."),
    ] = None
    schema_registry_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A PEM file with the authorities of its certificate."),
    ] = None
    prometheus_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Prometheus that scrapes the brokers, for the last hour of share groups."
            " Default: what the console has kept itself.",
        ),
    ] = None
    prometheus_labels: Annotated[
        str,
        typer.Option(
            metavar="MATCHERS",
            help="Matchers of the labels that this cluster has there, such as"
            ' namespace="shop",shoal_dev_cluster="main".',
        ),
    ] = ""
    prometheus_login: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The console's login there, a line USER:PASSWORD."),
    ] = None
    prometheus_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The console's bearer token there, read each time."),
    ] = None
    prometheus_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A PEM file with the authorities of its certificate."),
    ] = None
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="In a pod: show ShareConsumers, conditions and events of Shoal's resources.",
        ),
    ] = False
    kubernetes_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A namespace to show. Repeatable. Default: that of the pod."
        ),
    ] = None
    no_payloads: Annotated[
        bool,
        typer.Option(
            "--no-payloads", help="Show no keys and values of records, and only names of headers."
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
    if lacking := side_console.describe_missing():
        raise CommandError(lacking, USAGE)
    from shoal.console.app import serving

    access = _build_access(listen, page)
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
    context = None
    if page.certificate is not None:
        context = _make_context(page.certificate, page.key, page.client_ca)
    served = serving(settings, access, metrics=metrics, interval_s=interval, ssl_context=context)
    try:
        async with served as url:
            # What was made until now stays: otherwise each collection takes 0.1 s to look at it.
            gc.collect()
            gc.freeze()
            say(f"The console is at {url}. Ctrl-C or SIGTERM stops it.", flush=True)
            await ended.wait()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise CommandError(
            f"cannot listen on {listen}: {reason}. Choose another --listen."
        ) from None


def _write_audit_lines() -> None:
    """Write one line of JSON to standard error for each action."""
    from shoal.console.runs import audit_log

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit_log.addHandler(handler)
    audit_log.setLevel(logging.INFO)
    audit_log.propagate = False


def _build_access(listen: str, page: PageOptions) -> ConsoleAccess:
    """Return who may reach the page. Raises `CommandError`."""
    from shoal.console.access import security
    from shoal.console.access.providers import parse_url
    from shoal.console.login_files import InvalidAccess

    try:
        host, port = security.parse_address(listen)
        users = security.parse_users(_read_text(page.login), str(page.login)) if page.login else {}
        url = parse_url(page.url) if page.url else ""
        access = security.ConsoleAccess(
            host,
            port,
            page.certificate is not None,
            users,
            page.allow_actions,
            _load_masks(page),
            _build_login(page, url),
            url,
            _build_registry(page),
            _build_kubernetes(page),
            _build_prometheus(page),
        )
        access.check(insecure=page.insecure)
    except InvalidAccess as error:
        raise CommandError(f"{error}.", USAGE) from None
    return access


def _build_login(page: PageOptions, url: str) -> ConsoleLogin | None:
    """Return the login that is not by password, if there is one. Raises `InvalidAccess`."""
    from shoal.console.access import logins
    from shoal.console.access.openid import OpenIdLogin
    from shoal.console.access.providers import parse_openid
    from shoal.console.login_files import InvalidAccess

    ways = {
        "--login": page.login,
        "--openid": page.openid,
        "--proxy-user-header": page.proxy_user_header,
        "--client-ca": page.client_ca,
    }
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) > 1:
        raise InvalidAccess(f"{' and '.join(chosen)} are different logins. Choose one")
    if not page.proxy_user_header and (page.proxy_token_header or page.trusted_proxy):
        raise InvalidAccess("--proxy-token-header and --trusted-proxy need --proxy-user-header")
    if page.openid:
        return OpenIdLogin(parse_openid(_read_text(page.openid), str(page.openid), url))
    if page.proxy_user_header:
        trusted = logins.parse_networks(page.trusted_proxy or [])
        return logins.ProxyLogin(page.proxy_user_header, trusted, page.proxy_token_header or "")
    if page.client_ca:
        if page.certificate is None:
            raise InvalidAccess("--client-ca needs --certificate, because certificates need HTTPS")
        return logins.CertificateLogin(page.client_principal_mapping)
    return None


def _build_registry(page: PageOptions) -> RegistrySettings | None:
    """Return the schema registry, if there is one. Raises `InvalidAccess`."""
    from shoal.console.reading.registries import parse_registry

    if page.schema_registry is None:
        return None
    login = _read_text(page.schema_registry_login) if page.schema_registry_login else ""
    ca = str(page.schema_registry_ca) if page.schema_registry_ca else ""
    return parse_registry(page.schema_registry, login, ca)


def _build_prometheus(page: PageOptions) -> PrometheusSettings | None:
    """Return the Prometheus with the history, if there is one. Raises `InvalidAccess`."""
    from shoal.console.login_files import InvalidAccess
    from shoal.console.sampling.prometheus import parse_prometheus

    if page.prometheus_url is None:
        more = {
            "--prometheus-labels": page.prometheus_labels,
            "--prometheus-login": page.prometheus_login,
            "--prometheus-token": page.prometheus_token,
            "--prometheus-ca": page.prometheus_ca,
        }
        if options := [name for name, value in more.items() if value]:
            raise InvalidAccess(f"{options[0]} needs --prometheus-url")
        return None
    login = _read_text(page.prometheus_login) if page.prometheus_login else ""
    if page.prometheus_token:
        _read_text(page.prometheus_token)
    ca = str(page.prometheus_ca) if page.prometheus_ca else ""
    return parse_prometheus(
        page.prometheus_url, page.prometheus_labels, login, page.prometheus_token, ca
    )


def _build_kubernetes(page: PageOptions) -> KubernetesSettings | None:
    """Return the API server, if the page shows it. Raises `InvalidAccess`."""
    from shoal.console.sampling.kubernetes import make_pod_settings

    return (
        make_pod_settings(os.environ, page.kubernetes_namespace or []) if page.kubernetes else None
    )


def _read_text(path: Path) -> str:
    """Return the text of a file. Raises `CommandError`."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise CommandError(f"cannot read {path}: {reason}.", USAGE) from None


def _load_masks(page: PageOptions) -> Masks:
    """Return what is masked. Raises `CommandError`."""
    from shoal.console.reading import masks

    if page.no_payloads:
        return masks.OFF
    if page.mask is None:
        return masks.NO_MASKS
    try:
        return masks.parse_masks(_read_text(page.mask), str(page.mask))
    except masks.InvalidMasks as error:
        raise CommandError(f"{error}.", USAGE) from None


def _make_context(certificate: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(
            f"cannot use {certificate}: {reason}. It must be a PEM file with the certificate chain"
            " and its key, or with --key for the key, without a password.",
            USAGE,
        ) from None
    if client_ca is not None:
        from shoal.console.access.logins import request_client_certs

        try:
            request_client_certs(context, str(client_ca))
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CommandError(
                f"cannot use {client_ca}: {reason}. It must be a PEM file with the certificates of"
                " authorities.",
                USAGE,
            ) from None
    return context
