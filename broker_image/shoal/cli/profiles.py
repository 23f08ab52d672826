"""Profiles: named clusters in one file of the user, each a set of client properties.

The file is `shoal/profiles.json` in the user's folder for configs (`XDG_CONFIG_HOME`, or
`~/.config`). Only its owner may read it. It is replaced as a whole, so that a crash leaves the old
one. A command looks up its profile in `chosen`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cli.failures import USAGE, CommandError
from shoal.client import config_providers
from shoal.client.security import security

Properties = dict[str, str]
#: The value that is shown in place of a secret.
HIDDEN = "(hidden)"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VERSION = 1


@dataclass
class Profiles:
    """The content of the file: properties by the name of the profile, and the one in use."""

    profiles: dict[str, Properties] = field(default_factory=dict)
    current: str | None = None

    def __getitem__(self, name: str) -> Properties:
        """Return the properties of a profile. Raises `CommandError` if it does not exist."""
        if name not in self.profiles:
            hint = f"Known: {', '.join(sorted(self.profiles))}." if self.profiles else ""
            raise CommandError(
                f"there is no profile {name!r} in {get_path()}. {hint or 'Create it with'}"
                + ("" if hint else f" `shoal profile create {name}`."),
                USAGE,
            )
        return self.profiles[name]


def get_path() -> Path:
    """Return where the file is, or would be."""
    configs = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configs) if configs else Path.home() / ".config") / "shoal" / "profiles.json"


def load() -> Profiles:
    """Read the file; without one there are no profiles. Raises `CommandError`."""
    file = get_path()
    try:
        with file.open() as opened:
            mode = os.fstat(opened.fileno()).st_mode & 0o777
            text = opened.read()
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {file}: {error}.", USAGE) from None
    if mode & 0o077:
        raise CommandError(
            f"others may read {file}, which may have secrets. Run `chmod 600 {file}`.", USAGE
        )
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}.", USAGE) from None
    match document:
        case {"version": 1, "profiles": dict(known), "current": str() | None as current} if all(
            isinstance(profile, dict) and all(isinstance(value, str) for value in profile.values())
            for profile in known.values()
        ):
            return Profiles(known, current)
    raise CommandError(f"{file} has no profiles of version {_VERSION}. Repair or remove it.", USAGE)


def save(profiles: Profiles) -> None:
    """Replace the file. Raises `CommandError`."""
    file = get_path()
    document = {
        "version": _VERSION,
        "current": profiles.current,
        "profiles": dict(sorted(profiles.profiles.items())),
    }
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".profiles-")  # Mode 0600.
        try:
            with os.fdopen(descriptor, "w") as opened:
                json.dump(document, opened, indent=2)
                opened.write("\n")
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}.", USAGE) from None


def check_name(name: str) -> None:
    """Raise `CommandError` for a name that a profile may not have."""
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"{name!r} is not a name for a profile. Use up to 63 letters, digits, '.', '_', '-'.",
            USAGE,
        )


def hide_secrets(properties: Mapping[str, str]) -> Properties:
    """Return properties without secrets. A reference to a file or a variable is no secret."""
    return {
        name: HIDDEN
        if security.has_secret(name, value) and not config_providers.is_reference(value)
        else value
        for name, value in sorted(properties.items())
    }
