"""Runs a broker with the flags of `shoal server`.

The broker's modules are imported after the flags are read. A user's mistake (an invalid setting, a
port or a data directory in use) ends the process before anything is written. It prints one sentence
on standard error and exits with 1.

Typer, which describes the flags (`server`), and pydantic behind it take 10 MB and a fifth of a
second, which every broker would pay for as long as it runs. So `read_flags` reads a usual command
line, and leaves help and mistakes to typer.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import uuid4

from shoal.cli import terminal
from shoal.cli.commands import add_scram as first_users

if TYPE_CHECKING:
    from shoal.cli.commands.side_console import SideConsole
    from shoal.server.config import BrokerConfig

#: Configs of the listener that `controller_listener` may add.
_OF_CONTROLLER_LISTENER = "listener.name.controller."


class ServerFlags(NamedTuple):
    """The flags of `shoal server`, by their names (`server` has the help of each)."""

    listener: Sequence[str] = ()
    data_dir: str | None = None
    config: Path | None = None
    set: Sequence[str] = ()
    node_id: int | None = None
    quorum: str | None = None
    cluster_id: str | None = None
    metrics: str | None = None
    brokers_per_host: int | None = None
    console: str | None = None
    insecure: bool = False
    add_scram: Sequence[str] = ()
    log_level: str = "info"
    log_json: bool = False


#: Flags with values that are no text.
_CONVERTERS: Mapping[str, Callable[[str], Any]] = {
    "config": Path,
    "node_id": int,
    "brokers_per_host": int,
}


def read_flags(words: Sequence[str], environment: Mapping[str, str]) -> ServerFlags | None:
    """Return the flags of a command line; None if it asks for help or may be wrong."""
    from_environment = {
        "listener": environment.get("SHOAL_LISTENER", "").split(),
        "data_dir": environment.get("SHOAL_DATA_DIR") or None,
        "config": Path(environment["SHOAL_CONFIG"]) if environment.get("SHOAL_CONFIG") else None,
    }
    from_words: dict[str, Any] = {}
    remaining = list(reversed(words))
    while remaining:
        flag, has_value, value = remaining.pop().partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in ServerFlags._fields or "_" in flag:
            return None
        default = ServerFlags._field_defaults[name]
        if default is False:
            if has_value:
                return None
            from_words[name] = True
            continue
        if not has_value:
            value = remaining.pop() if remaining else ""
            if value.startswith("-"):
                return None
        if not value or (_CONVERTERS.get(name) is int and not value.isdecimal()):
            return None
        converted = _CONVERTERS.get(name, str)(value)
        from_words[name] = [*from_words.get(name, ()), converted] if default == () else converted
    return ServerFlags(**from_environment | from_words)


def serve(server_flags: ServerFlags) -> None:
    """Run a broker until a signal stops it."""
    started = time.perf_counter()
    if not __debug__:
        _fail("python -O disables the assertions that protect the data. Run without -O.")
    flags: Mapping[str, str] = _make_flags(server_flags)
    resolved = _resolve(flags, server_flags.config)
    if server_flags.log_level not in ("debug", "info", "warning", "error"):
        _fail(f"--log-level must be debug, info, warning or error, not {server_flags.log_level}.")
    beside = None
    if server_flags.console is not None:
        resolved, flags = _with_metrics(resolved, flags, server_flags.config)
        beside = _make_side_console(server_flags.console, resolved)
    _add_users(server_flags.add_scram, resolved)
    try:
        _serve(resolved, flags, server_flags, started, beside)
    finally:
        if beside is not None:
            beside.stop()


def _serve(
    resolved: BrokerConfig,
    flags: Mapping[str, str],
    server_flags: ServerFlags,
    started: float,
    beside: SideConsole | None,
) -> None:
    """Run the broker, or the brokers of this host."""
    say = _say if beside is None else beside.say
    if resolved["shoal.brokers.per.host"] > 1:
        words = [
            f"--log-level={server_flags.log_level}",
            *(["--log-json"] if server_flags.log_json else []),
        ]
        words += [f"--config={server_flags.config}"] if server_flags.config is not None else []
        _run_host(resolved, flags, words, started, say)
    else:
        _run(resolved, started, server_flags.log_level, server_flags.log_json, say)


def _with_metrics(
    resolved: BrokerConfig, flags: Mapping[str, str], config: Path | None
) -> tuple[BrokerConfig, Mapping[str, str]]:
    """Give a broker with a console a metrics listener for it, if it has none."""
    if resolved.metrics_listener is not None or resolved["shoal.brokers.per.host"] > 1:
        return resolved, flags
    flags = {**flags, "shoal.metrics.listener": "127.0.0.1:0"}
    return _resolve(flags, config), flags


def _make_side_console(listen: str, resolved: BrokerConfig) -> SideConsole:
    """Return the console beside this broker. It connects without TLS and login."""
    from shoal.cli.commands import side_console
    from shoal.server.config import format_address

    first = resolved.listeners[0]
    protocol = resolved.security_protocols[first.name]
    if protocol.is_tls or protocol.is_sasl:
        _fail(
            f"--console connects to the first listener, and {first.name} needs {protocol.name}."
            " Start the console apart: `shoal console --command-config FILE`."
        )
    if lacking := side_console.describe_missing():
        _fail(lacking)
    bootstrap = (
        "" if resolved["shoal.brokers.per.host"] == 1 else format_address(first.host, first.port)
    )
    return side_console.SideConsole(listen, _say, bootstrap)


def _add_users(flags: Sequence[str], resolved: BrokerConfig) -> None:
    try:
        users = first_users.collect_users(flags, os.environ)
        if users:
            first_users.store(users, resolved)
            first_users.restart_without_users()
    except first_users.AddScramError as error:
        _fail(str(error))


def _resolve(flags: Mapping[str, str], path: Path | None) -> BrokerConfig:
    """Return the configs of flags, environment and file, checked."""
    from shoal.server import config
    from shoal.server.cluster.controller_listener import with_controller_listener

    file_text, file_name = _read_file(path)
    try:
        resolved = config.resolve(flags, os.environ, file_text, file_name)
        resolved = with_controller_listener(resolved)
        config.check_exposure(resolved)
    except config.InvalidConfig as error:
        _fail(str(error))
    return resolved


def _run_host(
    resolved: BrokerConfig,
    flags: Mapping[str, str],
    words: list[str],
    started: float,
    say: Callable[[str], None],
) -> NoReturn:
    """Run the brokers of this host, each a process with the host's flags and its own settings."""
    from shoal.log.uuids import format_uuid
    from shoal.server.config import FLAG_VARIABLES, InvalidConfig, to_variable_name
    from shoal.server.host import broker_slots, host

    def make_command(slot: broker_slots.BrokerSlot) -> list[str]:
        arguments = [f"--set={name}={value}" for name, value in {**flags, **slot.settings}.items()]
        return [sys.executable, "-m", "shoal.cli", "server", *words, *arguments]

    try:
        cluster_id = broker_slots.read_cluster_id(resolved) or format_uuid(uuid4())
        slots = broker_slots.allocate(resolved, host=socket.gethostname(), cluster_id=cluster_id)
    except InvalidConfig as error:
        _fail(str(error))
    data_dir_conflict = broker_slots.find_data_dir_conflict(resolved)
    if data_dir_conflict:
        _fail(data_dir_conflict)
    for name in FLAG_VARIABLES:
        os.environ.pop(name, None)  # They are among the flags.
    # A derived listener for controllers has these. A command line would show passwords.
    os.environ.update(
        (to_variable_name(name), text)
        for name, text in resolved.explicit.items()
        if name.startswith(_OF_CONTROLLER_LISTENER) and name not in flags
    )
    supervisor = host.Host(
        slots, make_command, say, lambda line: terminal.say(line, file=sys.stderr)
    )
    sys.exit(asyncio.run(supervisor.run(started)))


def _run(
    resolved: BrokerConfig,
    started: float,
    log_level: str,
    log_json: bool,
    say: Callable[[str], None],
) -> None:
    from shoal.protocol.hidden_modules import hide_modules
    from shoal.server import logs

    logs.configure(json=log_json, level=log_level)
    with hide_modules("rich"):
        from shoal.server import process
    try:
        process.run(resolved, started=started, say=say)
    except process.StartError as error:
        _fail(str(error))


def _make_flags(server_flags: ServerFlags) -> dict[str, str]:
    """Return the flags by property name."""
    flags = {}
    for pair in server_flags.set:
        name, sign, value = pair.partition("=")
        if not sign:
            _fail(f"--set must be NAME=VALUE, not {pair}.")
        flags[name.strip()] = value.strip()
    if server_flags.listener:
        flags["listeners"] = ",".join(
            text if "://" in text else f"PLAINTEXT://{text}" for text in server_flags.listener
        )
    brokers = server_flags.brokers_per_host
    configs = {
        "node.id": None if server_flags.node_id is None else str(server_flags.node_id),
        "controller.quorum.voters": server_flags.quorum,
        "shoal.cluster.id": server_flags.cluster_id,
        "log.dirs": server_flags.data_dir,
        "shoal.metrics.listener": server_flags.metrics,
        "shoal.brokers.per.host": None if brokers is None else str(brokers),
        "shoal.insecure.listeners.enable": "true" if server_flags.insecure else None,
    }
    return flags | {name: value for name, value in configs.items() if value is not None}


def _read_file(path: Path | None) -> tuple[str, str]:
    if path is None:
        return "", ""
    try:
        return path.read_text(), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        _fail(f"Cannot read the configuration file {path}: {reason}.")


def _say(line: str) -> None:
    terminal.say(line, flush=True)


def _fail(sentence: str) -> NoReturn:
    terminal.say(f"shoal server: {sentence}", file=sys.stderr)
    sys.exit(1)
