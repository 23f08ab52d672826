"""Checks of configs that only a restart would apply, and hints for unknown names.

Brokers validate a change without making it. A static config is one that they cannot change while
they run: they say that last, so another answer names an unknown config or a bad value.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from shoal.client.configs import ConfigChange, Configs, Resource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

#: How an error begins that a restart with this config would end with, too.
_UNKNOWN, _INVALID = "Unknown broker config name: ", "Invalid value "
#: A value with a reference, which a broker resolves when it starts.
_REFERENCE = "${"
#: The part of an error that names an unknown config.
_NAME = re.compile(r"Unknown \w+ config name: ([A-Za-z0-9._-]+)")


async def find_problem(configs: Configs, static: Mapping[str, str]) -> str:
    """Return which of these static broker configs a broker would not start with, as a sentence
    without a period; empty if it would with all. Raises `ClientError`."""
    if not await _refusal(configs, static):
        return ""
    for name, value in sorted(static.items()):
        said = await _refusal(configs, {name: value})
        if said.startswith(_INVALID) and _REFERENCE in value:
            continue
        if said:
            return said
    return ""


async def _refusal(configs: Configs, static: Mapping[str, str]) -> str:
    """Return what is wrong with the first of these configs, by name; empty if nothing is."""
    everyone = Resource(ResourceType.BROKER, "")
    asked = {everyone: [ConfigChange(name, value) for name, value in sorted(static.items())]}
    error = (await configs.alter(asked, validate_only=True))[everyone]
    said = (error.message or "") if error else ""
    return said.rstrip(".") if said.startswith((_UNKNOWN, _INVALID)) else ""


def unknown_name(said: str) -> str:
    """Return the config that an error calls unknown; empty for another error."""
    found = _NAME.search(said)
    return found.group(1) if found else ""


def with_hint(said: str, known: Collection[str]) -> str:
    """Return an error about an unknown config with the nearest known name. Pure."""
    near = difflib.get_close_matches(unknown_name(said), known, n=1)
    return f"{said}. Did you mean {near[0]}?" if near else said
