"""How many executors are wanted, as published for this application.

The operator computes the number from the share group's lag and says it over HTTP (SHOAL_SCALE_URL,
JSON with `desiredReplicas`) or in a file, such as a mounted ConfigMap (SHOAL_EXECUTORS_FILE, the
number or the same JSON). Whoever publishes, the application follows (`allocation`).
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

URL, FILE = "SHOAL_SCALE_URL", "SHOAL_EXECUTORS_FILE"
EXECUTORS_MAX = 1000
TIMEOUT_S = 5.0


class Unknown(Exception):
    """The number cannot be had at present; what there is stays."""


class Executor(NamedTuple):
    """An executor that takes tasks, and how many it runs at the moment."""

    id: str
    running: int


def published(environment: Mapping[str, str] = os.environ) -> Callable[[], int] | None:
    """What asks for the number, or None where nobody publishes one."""
    if url := environment.get(URL):
        return lambda: parse(_get(url))
    if path := environment.get(FILE):
        return lambda: parse(_read(path))
    return None


def parse(text: str) -> int:
    """A number, or JSON with `desiredReplicas`. Raises `Unknown`."""
    try:
        found = json.loads(text)
        wanted = int(found["desiredReplicas"] if isinstance(found, dict) else found)
    except (ValueError, TypeError, KeyError):
        raise Unknown(f"no number of executors in {text[:200]!r}") from None
    if not 0 <= wanted <= EXECUTORS_MAX:
        raise Unknown(f"{wanted} executors are outside of 0 to {EXECUTORS_MAX}")
    return wanted


def superfluous(executors: Iterable[Executor], wanted: int) -> list[str]:
    """Which executors go: the least busy first, and of those the youngest."""
    some = sorted(executors, key=lambda e: (e.running, -_age(e.id)))
    return [e.id for e in some[: max(0, len(some) - wanted)]]


def _age(executor_id: str) -> int:
    """Spark numbers executors in the order of their requests."""
    return int(executor_id) if executor_id.isdigit() else 0


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return str(answer.read(65536).decode())
    except urllib.error.HTTPError as error:
        # The operator does not know the lag; the wanted number is in the body all the same.
        if error.code == 503:
            return str(error.read(65536).decode())
        raise Unknown(f"{url}: {error}") from None
    except (OSError, ValueError) as error:
        raise Unknown(f"{url}: {error}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise Unknown(str(error)) from None
