"""`shoal server --add-scram`: the first users of a new cluster (KIP-900).

The users are written to the data directories of this host's new controllers before the broker
starts. Then the process replaces itself by one without the flag and the variable, so that neither
the process list nor its environment shows a password.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.server.config import BrokerConfig

FLAG, VARIABLE = "--add-scram", "SHOAL_ADD_SCRAM"


class AddScramError(Exception):
    """A sentence that names the problem and the remedy."""


def collect_users(flags: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the users of flags and variable, one argument each. Raises `AddScramError`."""
    arguments = []
    for text in (*flags, environment.get(VARIABLE, "")):
        if text.startswith("@"):
            text = _read_content(Path(text[1:]))
        arguments += [line for line in text.splitlines() if line.strip()]
    return arguments


def _read_content(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise AddScramError(f"Cannot read the users of {FLAG} in {path}: {reason}.") from None


def store(arguments: Sequence[str], config: BrokerConfig) -> None:
    """Write the users for the new controllers of this host. Raises `AddScramError`."""
    from shoal.metadata.scram_arguments import InvalidScramArgument, parse
    from shoal.server.cluster import first_users
    from shoal.server.system import System

    system = System()
    try:
        records = [parse(argument, system.random_bytes) for argument in arguments]
    except InvalidScramArgument as error:
        raise AddScramError(f"{FLAG} has a mistake. {error}") from None
    directories = _find_controller_directories(config)
    if not directories:
        raise AddScramError(f"This node is no controller. Give {FLAG} to the controllers.")
    for directory in directories:
        if first_users.is_formatted(system.storage, directory):
            raise AddScramError(
                f"{FLAG} adds the first users of a new cluster, and {directory} has the data of an"
                " existing one. Start without it, and add users with `shoal users`."
            )
    for directory in directories:
        try:
            first_users.write(system.storage, directory, records, now_ms=time.time_ns() // 10**6)
        except OSError as error:
            raise AddScramError(f"Cannot write to {directory}: {error.strerror}.") from None


def _find_controller_directories(config: BrokerConfig) -> list[str]:
    """Return the data directories of the controllers of this host. Raises `AddScramError`."""
    from shoal.server.cluster_config import make_cluster_config
    from shoal.server.config import InvalidConfig
    from shoal.server.host import broker_slots

    try:
        if config[broker_slots.SETTING] == 1:
            return [config.data_dir] if make_cluster_config(config).is_controller else []
        slots = broker_slots.allocate(config, host=socket.gethostname(), cluster_id="")
    except InvalidConfig as error:
        raise AddScramError(str(error)) from None
    settings = [slot.settings for slot in slots]
    return [s["log.dirs"] for s in settings if "controller" in s["process.roles"]]


def remove_users(words: Sequence[str]) -> list[str]:
    """Return a command line without the flag."""
    remaining: list[str] = []
    is_value = False
    for word in words:
        if is_value or word.startswith(f"{FLAG}="):
            is_value = False
        elif word == FLAG:
            is_value = True
        else:
            remaining.append(word)
    return remaining


def restart_without_users() -> None:
    """Replace this process by one whose command line and environment have no users. Return if they
    have none."""
    words = remove_users(sys.orig_argv)
    if len(words) == len(sys.orig_argv) and VARIABLE not in os.environ:
        return
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, words, environment)
