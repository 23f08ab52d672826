"""`shoal server`: run a broker until a signal stops it.

The broker's modules are imported after the flags are read. A user's mistake (an invalid setting, a
port or a data directory in use) ends the process before anything is written. It prints one sentence
on standard error and exits with 1.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from uuid import uuid4

import typer

from shoal.cli import add_scram as first_users
from shoal.cli import terminal

if TYPE_CHECKING:
    from shoal.cli.side_console import SideConsole
    from shoal.server.config import BrokerConfig

#: Configs of the listener that `controller_listener` may add.
_OF_CONTROLLER_LISTENER = "listener.name.controller."

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Listeners = Annotated[
    list[str] | None,
    typer.Option(
        "--listener",
        metavar="HOST:PORT",
        envvar="SHOAL_LISTENER",
        help="Address to listen on. Default: 127.0.0.1:9092. Port 0 uses a free port.",
    ),
]
Quorum = Annotated[
    str | None,
    typer.Option(
        metavar="ID@HOST:PORT,…",
        help="Voters of the metadata quorum, the same on all nodes (controller.quorum.voters)."
        " A voter's port is its controller port, for instance its client port + 1. The node listens"
        " on it at the host of its first --listener.",
    ),
]
BrokersPerHost = Annotated[
    int | None,
    typer.Option(
        "--brokers-per-host",
        metavar="N",
        help="Brokers to run on this host, one per core (shoal.brokers.per.host; docs/cluster.md)."
        " Without --quorum their controller listens on 127.0.0.1, at the port after the brokers'.",
    ),
]
ConsoleAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the console, a web page that shows the queues, such as 127.0.0.1:9080."
        " It only reads. See `shoal console`.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Let other hosts reach listeners without encryption"
        " (shoal.insecure.listeners.enable).",
    ),
]
AddScram = Annotated[
    list[str] | None,
    typer.Option(
        "--add-scram",
        metavar="MECHANISM=[name=…,password=…]|@FILE",
        help="A user of a new cluster, for instance 'SCRAM-SHA-512=[name=admin,password=secret]',"
        " also with iterations= and salt=, or saltedpassword= for password=. Other users of this"
        " host may see the flag for a moment. To avoid that, name a file with one user a line, or"
        " set SHOAL_ADD_SCRAM. Give all controllers the same users. A node of an existing cluster"
        " refuses it.",
    ),
]


@app.command()
def server(
    listener: Listeners = None,
    data_dir: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_DATA_DIR", help="Directory of the logs. Default: ./shoal-data."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_CONFIG", help="A properties file with broker configs."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker config."),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", help="Id of this node in its cluster (node.id)."),
    ] = None,
    quorum: Quorum = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", help="Id of the cluster, the same on all nodes."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the HTTP endpoints /metrics, /healthz and /readyz.",
        ),
    ] = None,
    brokers_per_host: BrokersPerHost = None,
    console: ConsoleAddress = None,
    insecure: Insecure = False,
    add_scram: AddScram = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON.")] = False,
) -> None:
    """Run a broker.

    Every Kafka broker config can be set. A flag (--set log.retention.ms=9) has priority over the
    environment (SHOAL_LOG_RETENTION_MS=9), which has priority over the file of --config.
    """
    started = time.perf_counter()
    if not __debug__:
        _fail("python -O disables the assertions that protect the data. Run without -O.")
    named = {
        "node.id": None if node_id is None else str(node_id),
        "controller.quorum.voters": quorum,
        "shoal.cluster.id": cluster_id,
        "log.dirs": data_dir,
        "shoal.metrics.listener": metrics,
        "shoal.brokers.per.host": None if brokers_per_host is None else str(brokers_per_host),
        "shoal.insecure.listeners.enable": "true" if insecure else None,
    }
    flags: Mapping[str, str] = _flags(listener, set_ or [], named)
    resolved = _resolved(flags, config)
    if log_level not in ("debug", "info", "warning", "error"):
        _fail(f"--log-level must be debug, info, warning or error, not {log_level}.")
    beside = None
    if console is not None:
        resolved, flags = _with_metrics(resolved, flags, config)
        beside = _side_console(console, resolved)
    _add_users(add_scram or [], resolved)
    try:
        _serve(resolved, flags, config, started, log_level, log_json=log_json, beside=beside)
    finally:
        if beside is not None:
            beside.stop()


def _serve(
    resolved: BrokerConfig,
    flags: Mapping[str, str],
    config: Path | None,
    started: float,
    log_level: str,
    *,
    log_json: bool,
    beside: SideConsole | None,
) -> None:
    """Run the broker, or the brokers of this host."""
    say = _say if beside is None else beside.say
    if resolved["shoal.brokers.per.host"] > 1:
        words = [f"--log-level={log_level}", *(["--log-json"] if log_json else [])]
        words += [f"--config={config}"] if config is not None else []
        _run_host(resolved, flags, words, started, say)
    else:
        _run(resolved, started, log_level, log_json, say)


def _with_metrics(
    resolved: BrokerConfig, flags: Mapping[str, str], config: Path | None
) -> tuple[BrokerConfig, Mapping[str, str]]:
    """Give a broker with a console a metrics listener for it, if it has none."""
    if resolved.metrics_listener is not None or resolved["shoal.brokers.per.host"] > 1:
        return resolved, flags
    flags = {**flags, "shoal.metrics.listener": "127.0.0.1:0"}
    return _resolved(flags, config), flags


def _side_console(listen: str, resolved: BrokerConfig) -> SideConsole:
    """Return the console beside this broker. It connects without TLS and login."""
    from shoal.cli import side_console
    from shoal.server.config import address

    first = resolved.listeners[0]
    protocol = resolved.security_protocols[first.name]
    if protocol.is_tls or protocol.is_sasl:
        _fail(
            f"--console connects to the first listener, and {first.name} needs {protocol.name}."
            " Start the console apart: `shoal console --command-config FILE`."
        )
    if lacking := side_console.missing():
        _fail(lacking)
    bootstrap = "" if resolved["shoal.brokers.per.host"] == 1 else address(first.host, first.port)
    return side_console.SideConsole(listen, _say, bootstrap)


def _add_users(flags: list[str], resolved: BrokerConfig) -> None:
    try:
        users = first_users.given(flags, os.environ)
        if users:
            first_users.store(users, resolved)
            first_users.restart_without_users()
    except first_users.CannotAdd as error:
        _fail(str(error))


def _resolved(flags: Mapping[str, str], path: Path | None) -> BrokerConfig:
    """Return the configs of flags, environment and file, checked."""
    from shoal.server import config
    from shoal.server.cluster.controller_listener import with_controller_listener

    file_text, file_name = _file(path)
    try:
        found = config.resolve(flags, os.environ, file_text, file_name)
        found = with_controller_listener(found)
        config.check_exposure(found)
    except config.InvalidConfig as error:
        _fail(str(error))
    return found


def _run_host(
    resolved: BrokerConfig,
    flags: Mapping[str, str],
    words: list[str],
    started: float,
    say: Callable[[str], None],
) -> NoReturn:
    """Run the brokers of this host, each a process with the host's flags and its own settings."""
    from shoal.log.uuids import uuid_text
    from shoal.server.config import FLAG_VARIABLES, InvalidConfig, variable
    from shoal.server.host import broker_slots, host

    def command(slot: broker_slots.BrokerSlot) -> list[str]:
        given = [f"--set={name}={value}" for name, value in {**flags, **slot.settings}.items()]
        return [sys.executable, "-m", "shoal.cli", "server", *words, *given]

    try:
        cluster_id = broker_slots.existing_cluster_id(resolved) or uuid_text(uuid4())
        found = broker_slots.allocate(resolved, host=socket.gethostname(), cluster_id=cluster_id)
    except InvalidConfig as error:
        _fail(str(error))
    data_dir_conflict = broker_slots.data_dir_conflict(resolved)
    if data_dir_conflict:
        _fail(data_dir_conflict)
    for name in FLAG_VARIABLES:
        os.environ.pop(name, None)  # They are among the flags.
    # A derived listener for controllers has these. A command line would show passwords.
    os.environ.update(
        (variable(name), text)
        for name, text in resolved.given.items()
        if name.startswith(_OF_CONTROLLER_LISTENER) and name not in flags
    )
    supervisor = host.Host(found, command, say, lambda line: terminal.say(line, file=sys.stderr))
    raise typer.Exit(asyncio.run(supervisor.run(started)))


def _run(
    resolved: BrokerConfig,
    started: float,
    log_level: str,
    log_json: bool,
    say: Callable[[str], None],
) -> None:
    from shoal.server import logs

    logs.configure(json=log_json, level=log_level)
    with logs.absent("hypothesis", "rich"):
        from shoal.server import process
    try:
        process.run(resolved, started=started, say=say)
    except process.CannotStart as error:
        _fail(str(error))


def _flags(
    listeners: list[str] | None, pairs: list[str], named: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the flags by property name; `named` are those with a flag of their own."""
    flags = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            _fail(f"--set must be NAME=VALUE, not {pair}.")
        flags[name.strip()] = value.strip()
    if listeners:
        flags["listeners"] = ",".join(
            text if "://" in text else f"PLAINTEXT://{text}" for text in listeners
        )
    return flags | {name: value for name, value in named.items() if value is not None}


def _file(path: Path | None) -> tuple[str, str]:
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
    raise typer.Exit(1)
