"""Checks of configs that only a restart would apply, and hints for unknown names.

Brokers validate a change without making it. A static config is one that they cannot change while
they run: they say that last, so another answer names an unknown config or a bad value.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType, Configs

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
    if not await _find_refusal(configs, static):
        return ""
    for name, value in sorted(static.items()):
        message = await _find_refusal(configs, {name: value})
        if message.startswith(_INVALID) and _REFERENCE in value:
            continue
        if message:
            return message
    return ""


async def _find_refusal(configs: Configs, static: Mapping[str, str]) -> str:
    """Return what is wrong with the first of these configs, by name; empty if nothing is."""
    everyone = ConfigResource(ConfigResourceType.BROKER, "")
    changes = {everyone: [ConfigChange(name, value) for name, value in sorted(static.items())]}
    error = (await configs.alter(changes, validate_only=True))[everyone]
    message = (error.message or "") if error else ""
    return message.rstrip(".") if message.startswith((_UNKNOWN, _INVALID)) else ""


def parse_unknown_name(message: str) -> str:
    """Return the config that an error calls unknown; empty for another error."""
    match = _NAME.search(message)
    return match.group(1) if match else ""


def add_hint(message: str, known_names: Collection[str]) -> str:
    """Return an error about an unknown config with the nearest known name. Pure."""
    near = difflib.get_close_matches(parse_unknown_name(message), known_names, n=1)
    return f"{message}. Did you mean {near[0]}?" if near else message
