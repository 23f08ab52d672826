"""Values of client properties that are in files or in the environment (KIP-297, KIP-421).

A value may contain `${file:PATH:NAME}`, a property of a properties file; `${directory:PATH:FILE}`,
the content of a file without the line break at its end; and `${env:NAME}`, an environment variable.
These are Kafka's own providers. Java clients need `config.providers` for them, and may choose other
names there, so `config.providers` and `config.providers.NAME.class` are read here too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.client.errors import SecurityError
from shoal.client.properties import parse_properties
from shoal.client.security.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

PROVIDERS = "config.providers"
_CLASS = re.compile(r"config\.providers\.([^.]+)\.class")
_PACKAGE = "org.apache.kafka.common.config.provider."
_CLASSES = {
    _PACKAGE + "FileConfigProvider": "file",
    _PACKAGE + "DirectoryConfigProvider": "directory",
    _PACKAGE + "EnvVarConfigProvider": "env",
}
_REFERENCE = re.compile(r"\$\{([^}:]+):(?:([^}]*):)?([^}:]*)\}")


def is_reference(text: str) -> bool:
    """Return whether a value has no text of its own, only a reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def has_references(settings: Mapping[str, str]) -> bool:
    return any(_REFERENCE.search(text) for text in settings.values())


def resolve(settings: Mapping[str, Secret]) -> dict[str, Secret]:
    """Return the properties with all references replaced, without those of the providers.

    Raises `SecurityError` if a file or variable does not exist.
    """
    kinds = _find_provider_kinds(settings)
    resolved = {}
    for name, text in settings.items():
        if name == PROVIDERS or _CLASS.fullmatch(name):
            continue

        def substitute(match: re.Match[str], name: str = name) -> str:
            kind = kinds.get(match[1])
            if kind is None:
                return match[0]
            return read_value(name, kind, match[2] or "", match[3]).reveal()

        resolved[name] = Secret(_REFERENCE.sub(substitute, text.reveal()))
    return resolved


def _find_provider_kinds(settings: Mapping[str, Secret]) -> dict[str, str]:
    """Return the kind of each provider by its name."""
    if PROVIDERS not in settings:
        return {kind: kind for kind in _CLASSES.values()}
    kinds = {}
    for provider in filter(None, (part.strip() for part in settings[PROVIDERS].split(","))):
        class_name = settings.get(f"{PROVIDERS}.{provider}.class", Secret()).reveal()
        if class_name not in _CLASSES:
            raise SecurityError(
                f"{PROVIDERS}.{provider}.class {class_name!r} is not one of {', '.join(_CLASSES)}"
            )
        kinds[provider] = _CLASSES[class_name]
    return kinds


def read_value(name: str, kind: str, path: str, key: str) -> Secret:
    """Return the value of one reference in the property `name`.

    Raises `SecurityError`. The messages never contain values.
    """
    if kind == "env":
        if key not in os.environ:
            raise SecurityError(f"{name} needs the environment variable {key}, which is not set")
        return Secret(os.environ[key])
    file = Path(path, key) if kind == "directory" else Path(path)
    try:
        text = Secret(file.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        missing = f"{name} needs {file}, which cannot be read: {reason}"
    else:
        if kind == "directory":
            return Secret(text.removesuffix("\n").removesuffix("\r"))
        value = _find_property(text, key)
        if value is not None:
            return value
        missing = f"{name} needs {key} of {file}, which does not have it"
    raise SecurityError(missing)


def _find_property(text: Secret, name: str) -> Secret | None:
    value = dict(parse_properties(text.reveal())).get(name)
    return None if value is None else Secret(value)
