"""The wanted number of executors, as published for this application.

The operator computes it from the share group's lag. It publishes it over HTTP (SHOAL_SCALE_URL, or
the address in SHOAL_SCALE_URL_FILE; JSON with `desiredReplicas`) or in a file such as a mounted
ConfigMap (SHOAL_EXECUTORS_FILE, the number or the same JSON). The application follows it
(`allocation`).

SHOAL_SCALE_CA_FILE names the certificates to trust for a URL with https, and SHOAL_SCALE_TOKEN_FILE
a bearer token. All files are read for each request.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

URL, URL_FILE, FILE = "SHOAL_SCALE_URL", "SHOAL_SCALE_URL_FILE", "SHOAL_EXECUTORS_FILE"
CA_FILE, TOKEN_FILE = "SHOAL_SCALE_CA_FILE", "SHOAL_SCALE_TOKEN_FILE"
EXECUTORS_MAX = 1000
TIMEOUT_S = 5.0


class NumberUnavailable(Exception):
    """The number is unavailable; the executors stay as they are."""


class Executor(NamedTuple):
    """An executor that accepts tasks, and the number of its running tasks."""

    id: str
    running: int


def find_published(environment: Mapping[str, str] = os.environ) -> Callable[[], int] | None:
    """Return a function that reads the number, or None if none is published."""
    ca, token = environment.get(CA_FILE), environment.get(TOKEN_FILE)
    if url := environment.get(URL):
        return lambda: parse(_get(url, ca, token))
    if url_file := environment.get(URL_FILE):
        return lambda: parse(_get(_read(url_file).strip(), ca, token))
    if path := environment.get(FILE):
        return lambda: parse(_read(path))
    return None


def parse(text: str) -> int:
    """Parse a number, or JSON with `desiredReplicas`. Raises `NumberUnavailable`."""
    try:
        value = json.loads(text)
        count = int(value["desiredReplicas"] if isinstance(value, dict) else value)
    except (ValueError, TypeError, KeyError):
        raise NumberUnavailable(f"no number of executors in {text[:200]!r}") from None
    if not 0 <= count <= EXECUTORS_MAX:
        raise NumberUnavailable(f"{count} executors are not between 0 and {EXECUTORS_MAX}")
    return count


def choose_superfluous(executors: Iterable[Executor], count: int) -> list[str]:
    """Return the executors to remove: the least busy first, then the youngest."""
    ordered = sorted(executors, key=lambda e: (e.running, -_get_age(e.id)))
    return [e.id for e in ordered[: max(0, len(ordered) - count)]]


def _get_age(executor_id: str) -> int:
    """Return the executor's number; Spark counts executors in the order of requests."""
    return int(executor_id) if executor_id.isdigit() else 0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error, because it would carry the token to another address."""

    def redirect_request(self, *_: object) -> None:
        return None


def _get(url: str, ca_file: str | None, token_file: str | None) -> str:
    try:
        request = urllib.request.Request(url)
        if token := token_file and Path(token_file).read_text().strip():
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=ca_file)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects
        )
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read(65536).decode())
    except urllib.error.HTTPError as error:
        # The operator does not have the lag, but the body has the wanted number.
        if error.code == 503:
            return str(error.read(65536).decode())
        raise NumberUnavailable(f"{url}: {error}") from None
    except (OSError, ValueError) as error:
        raise NumberUnavailable(f"{url}: {error}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise NumberUnavailable(str(error)) from None
