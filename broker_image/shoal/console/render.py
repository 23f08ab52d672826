"""Templates and their filters. Everything that a template prints is escaped."""

from __future__ import annotations

import hashlib
import re
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape

from shoal.client.configs import ConfigSource
from shoal.console import figures, payloads, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.configs import ConfigEntry

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_SOURCES: dict[int, str] = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "the topic",
    ConfigSource.GROUP_CONFIG: "the group",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "a broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "a broker's properties",
    ConfigSource.DEFAULT_CONFIG: "the default",
}
_CODE = re.compile(r"`([^`]+)`")


def link(page: str, /, **fields: object) -> str:
    """Return the URL of a page; fields without a value are left out."""
    given = {name: str(value) for name, value in fields.items() if value not in (None, "")}
    return f"/{page}?{urlencode(given)}" if given else f"/{page}"


def prose(text: str) -> Markup:
    """Escape a sentence, and show what is in backquotes as code."""
    out = []
    for at, piece in enumerate(_CODE.split(payloads.visible(text))):
        out.append(Markup("<code>{}</code>").format(piece) if at % 2 else escape(piece))
    return Markup().join(out)


def default_of(entry: ConfigEntry) -> str:
    """Return the built-in default of a config that was set; a dash if the broker reports none.

    A default that has another name, and perhaps another unit, is `NAME=VALUE`.
    """
    for name, value, source in entry.synonyms:
        if source == ConfigSource.DEFAULT_CONFIG:
            text = value or "empty"
            return text if name in (entry.name, f"log.{entry.name}") else f"{name}={text}"
    return figures.UNKNOWN


def source_of(source: int) -> str:
    """Return where a config's value was set, in words."""
    return _SOURCES.get(source, "elsewhere")


@cache
def asset(name: str) -> str:
    """Return the URL of a file in `static`. It changes with the content, so caches keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "count": figures.count,
        "rate": figures.rate,
        "size": figures.size,
        "duration": figures.duration,
        "instant": figures.instant,
        "plural": figures.plural,
        "preview": payloads.preview,
        "visible": lambda text: payloads.visible(str(text), lines=False),
        "prose": prose,
        # A name in a command that readers paste into a shell.
        "shell": lambda text: payloads.visible(shlex.quote(text), lines=False),
    }
    found.globals |= {
        "link": link,
        "asset": asset,
        "default_of": default_of,
        "source_of": source_of,
        "UNKNOWN": figures.UNKNOWN,
        "BATCH_BYTES_MAX": reading.BATCH_BYTES_MAX,
        "EXPANDED_BYTES_MAX": reading.EXPANDED_BYTES_MAX,
    }
    return found


def compile_templates() -> None:
    """Compile all templates, so that the first page is not slower than others."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def render(template: str, context: Mapping[str, object]) -> str:
    """Return a template's text. `context` has its variables; an unknown one is an error."""
    return _environment().get_template(template).render(context)
