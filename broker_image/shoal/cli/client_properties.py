"""The client properties of a command: from --property, the environment, and a file.

A flag has priority over the environment, which has priority over the file. The variable of a
property is `SHOAL_CLIENT_` and its name in capitals, with `_` for `.` (SHOAL_CLIENT_SASL_PASSWORD).
Flags may not contain secrets: all users of a machine can read them in the list of processes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.client import config_providers, security, settings
from shoal.client.properties import CLIENT_PREFIX
from shoal.client.settings import Settings, variable


def client_settings(
    bootstrap: str | None, file: Path | None, flags: Iterable[str] | None
) -> Settings:
    """Return the settings of a command; see `Settings.of_file`."""
    return Settings.of_file(bootstrap, file, from_environment(os.environ) | from_flags(flags))


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties among the variables. Raises `ValueError` for an unknown one."""
    names = {variable(name): name for name in settings.NAMES}
    found = {}
    for one in sorted(environment):
        if one in names:
            found[names[one]] = environment[one]
        elif one.startswith(CLIENT_PREFIX) and not _is_for_brokers(one):
            near = difflib.get_close_matches(one, names, n=1)
            hint = f". Did you mean {near[0]}?" if near else ""
            raise ValueError(f"the environment variable {one} names no client property{hint}")
    return found


def _is_for_brokers(variable: str) -> bool:
    """Return whether a variable names a broker's config, or the address of a Service."""
    from shoal.metadata.configs import BROKER
    from shoal.server import config

    if config.SERVICE_LINK.fullmatch(variable.removeprefix(CLIENT_PREFIX)):
        return True
    return variable in {config.variable(name) for name in BROKER}


def from_flags(flags: Iterable[str] | None) -> dict[str, str]:
    """Return the properties of `--property`. Raises `ValueError` for a secret."""
    found = pairs(flags, "--property")
    for name, value in found.items():
        if security.has_secret(name, value) and not config_providers.has_references({name: value}):
            raise ValueError(
                f"--property {name} would show a secret in the list of processes. Set the"
                f" environment variable {variable(name)}, put the property into a file for"
                f" --command-config, or refer to a file: --property"
                f" '{name}=${{directory:FOLDER:FILE}}'"
            )
    return found


def pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` words into a dict. Raises `ValueError` with the option's name."""
    found = {}
    for word in given or ():
        name, sign, value = word.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"{option} must be NAME=VALUE, not {word!r}")
        found[name.strip()] = value.strip()
    return found
