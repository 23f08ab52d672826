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

from shoal.client.admin.configs import ConfigSource
from shoal.console import figures
from shoal.console.reading import payloads, read_budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.admin.configs import ConfigEntry

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


def make_link(page: str, /, **fields: object) -> str:
    """Return the URL of a page; fields without a value are left out."""
    values = {name: str(value) for name, value in fields.items() if value not in (None, "")}
    return f"/{page}?{urlencode(values)}" if values else f"/{page}"


def render_prose(text: str) -> Markup:
    """Escape a sentence, and show what is in backquotes as code."""
    out = []
    for index, piece in enumerate(_CODE.split(payloads.make_visible(text))):
        out.append(Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece))
    return Markup().join(out)


def get_default(entry: ConfigEntry) -> str:
    """Return the built-in default of a config that was set; a dash if the broker reports none.

    A default that has another name, and perhaps another unit, is `NAME=VALUE`.
    """
    for name, value, source in entry.synonyms:
        if source == ConfigSource.DEFAULT_CONFIG:
            text = value or "empty"
            return text if name in (entry.name, f"log.{entry.name}") else f"{name}={text}"
    return figures.UNKNOWN


def describe_source(source: int) -> str:
    """Return where a config's value was set, in words."""
    return _SOURCES.get(source, "elsewhere")


@cache
def get_asset_url(name: str) -> str:
    """Return the URL of a file in `static`. It changes with the content, so caches keep it."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": figures.format_count,
        "rate": figures.format_rate,
        "size": figures.format_size,
        "duration": figures.format_duration,
        "instant": figures.format_instant,
        "plural": figures.format_plural,
        "preview": payloads.preview,
        "visible": lambda text: payloads.make_visible(str(text), lines=False),
        "prose": render_prose,
        # A name in a command that readers paste into a shell.
        "shell": lambda text: payloads.make_visible(shlex.quote(text), lines=False),
    }
    environment.globals |= {
        "link": make_link,
        "asset": get_asset_url,
        "default_of": get_default,
        "source_of": describe_source,
        "UNKNOWN": figures.UNKNOWN,
        "BATCH_BYTES_MAX": read_budget.BATCH_BYTES_MAX,
        "EXPANDED_BYTES_MAX": read_budget.EXPANDED_BYTES_MAX,
    }
    return environment


def compile_templates() -> None:
    """Compile all templates, so that the first page is not slower than others."""
    for name in _make_environment().list_templates():
        _make_environment().get_template(name)


def render(template: str, context: Mapping[str, object]) -> str:
    """Return a template's text. `context` has its variables; an unknown one is an error."""
    return _make_environment().get_template(template).render(context)
