"""The client properties of a command: from --property, the environment, and a file or a profile.

A flag has priority over the environment, which has priority over the file or the profile. The
variable of a property is `SHOAL_CLIENT_` and its name in capitals, with `_` for `.`
(SHOAL_CLIENT_SASL_PASSWORD).
Flags may not contain secrets: all users of a machine can read them in the list of processes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.cli import profiles
from shoal.client import config_providers, settings
from shoal.client.properties import CLIENT_PREFIX
from shoal.client.security import security
from shoal.client.settings import Settings, get_variable_name


class ClusterOptions(NamedTuple):
    """What names the cluster of a command: addresses, a file of client properties, a profile."""

    bootstrap_server: str | None = None
    command_config: Path | None = None
    profile: str | None = None

    def drop_variables(self, variables: Collection[str]) -> ClusterOptions:
        """Return what applies; `variables` are the fields that environment variables set.

        A profile is a whole cluster, so it is never mixed with another source of the same rank:
        credentials must not reach another cluster. A flag --profile overrides the variables, and
        the flags of the other fields override SHOAL_PROFILE; --bootstrap-server changes only the
        address. Raises `ValueError` if two sources of the same rank name a cluster.
        """
        has_file = self.command_config is not None and "command_config" not in variables
        if self.profile is None:
            return self
        if "profile" not in variables:
            if has_file:
                raise ValueError("--profile and --command-config name two clusters. Use one")
            return self._replace(**dict.fromkeys(variables))
        if has_file:
            return self._replace(profile=None)
        rivals = [name for name in ("bootstrap_server", "command_config") if name in variables]
        if rivals:
            raise ValueError(
                f"SHOAL_PROFILE and {_VARIABLES[rivals[0]]} name two clusters. Unset one of them"
            )
        return self


#: The variables of the fields of `ClusterOptions`.
_VARIABLES = {
    "bootstrap_server": "SHOAL_BOOTSTRAP_SERVERS",
    "command_config": "SHOAL_COMMAND_CONFIG",
}


def load_client_settings(cluster: ClusterOptions, flags: Iterable[str] | None) -> Settings:
    """Return the settings of a command; see `Settings.from_file`. If nothing names a cluster, it is
    that of the `shoal up` of this folder, else the profile in use. Raises `CommandError` for a
    profile that does not exist.
    """
    fixed = read_environment(os.environ) | parse_flags(flags)
    profile = cluster.profile
    if cluster == (None, None, None):
        if (of_folder := find_folder_properties(Path.cwd())) is not None:
            return Settings.from_file(None, of_folder, fixed)
        profile = profiles.load().current
    if profile is None:
        return Settings.from_file(cluster.bootstrap_server, cluster.command_config, fixed)
    name = profile
    return Settings.from_properties(cluster.bootstrap_server, lambda: profiles.load()[name] | fixed)


def find_folder_properties(folder: Path) -> Path | None:
    """Return the properties that a running `shoal up` has written in this folder, or in the nearest
    one above that has any; None without them.

    A file of somebody else, or that others may read or change, could send a command's records to
    their cluster, and does not count.
    """
    for parent in (folder, *folder.parents):
        file = parent / ".shoal" / "client.properties"
        try:
            status = file.lstat()
        except OSError:
            continue
        if status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return file
    return None


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the properties among the variables. Raises `ValueError` for an unknown one."""
    names = {get_variable_name(name): name for name in settings.NAMES}
    values = {}
    for env_name in sorted(environment):
        if env_name in names:
            values[names[env_name]] = environment[env_name]
        elif env_name.startswith(CLIENT_PREFIX) and not _is_for_brokers(env_name):
            near = difflib.get_close_matches(env_name, names, n=1)
            hint = f". Did you mean {near[0]}?" if near else ""
            raise ValueError(f"the environment variable {env_name} names no client property{hint}")
    return values


def _is_for_brokers(variable: str) -> bool:
    """Return whether a variable names a broker's config, or the address of a Service."""
    from shoal.metadata.configs import BROKER
    from shoal.server import config

    if config.SERVICE_LINK.fullmatch(variable.removeprefix(CLIENT_PREFIX)):
        return True
    return variable in {config.to_variable_name(name) for name in BROKER}


def parse_flags(flags: Iterable[str] | None) -> dict[str, str]:
    """Return the properties of `--property`. Raises `ValueError` for a secret."""
    values = parse_pairs(flags, "--property")
    for name, value in values.items():
        if security.has_secret(name, value) and not config_providers.has_references({name: value}):
            raise ValueError(
                f"--property {name} would show a secret in the list of processes. Set the"
                f" environment variable {get_variable_name(name)}, put the property into a file for"
                f" --command-config, or refer to a file: --property"
                f" '{name}=${{directory:FOLDER:FILE}}'"
            )
    return values


def parse_pairs(words: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` words into a dict. Raises `ValueError` with the option's name."""
    values = {}
    for word in words or ():
        name, sign, value = word.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"{option} must be NAME=VALUE, not {word!r}")
        values[name.strip()] = value.strip()
    return values
