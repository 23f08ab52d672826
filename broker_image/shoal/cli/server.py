"""`shoal server`: run a broker until it is told to stop.

The broker's modules are imported after the flags are read. A user's mistake (a bad setting, a port
or a data directory in use) ends the process with one sentence on standard error and status 1, and
before anything is written.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def server(
    listener: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="SHOAL_LISTENER",
            help="Address to listen on [default: 127.0.0.1:9092]; port 0 takes a free one.",
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(envvar="SHOAL_DATA_DIR", help="Where the logs are [default: ./shoal-data]."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(envvar="SHOAL_CONFIG", help="A properties file with broker configs."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker config, by Kafka's name."),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", help="Number of this node in its cluster (node.id)."),
    ] = None,
    quorum: Annotated[
        str | None,
        typer.Option(
            metavar="ID@HOST:PORT,…",
            help="Voters of the metadata quorum, the same on all nodes (controller.quorum.voters).",
        ),
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", help="Id of the cluster, the same on all nodes."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="HTTP with /metrics, /healthz and /readyz."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON.")] = False,
) -> None:
    """Run a broker.

    Every Kafka broker config can be set; the first place wins: a flag (--set log.retention.ms=9),
    the environment (SHOAL_LOG_RETENTION_MS=9), the file of --config.
    """
    started = time.perf_counter()
    if not __debug__:
        _fail("shoal server does not run with python -O: its assertions guard the data.")
    from shoal.server import config as settings
    from shoal.server import logs

    flags = _flags(listener, data_dir, set_ or [], metrics)
    named = {
        "node.id": None if node_id is None else str(node_id),
        "controller.quorum.voters": quorum,
        "shoal.cluster.id": cluster_id,
    }
    flags |= {name: value for name, value in named.items() if value is not None}
    file_text, file_name = _file(config)
    try:
        resolved = settings.resolve(flags, os.environ, file_text, file_name)
    except settings.InvalidConfig as error:
        _fail(str(error))
    if log_level not in ("debug", "info", "warning", "error"):
        _fail(f"--log-level is debug, info, warning or error, not {log_level}.")
    logs.configure(json=log_json, level=log_level)
    with logs.absent("hypothesis", "rich"):
        from shoal.server import process
    try:
        process.run(resolved, started=started, say=_say)
    except process.CannotStart as error:
        _fail(str(error))


def _flags(
    listeners: list[str] | None, data_dir: str | None, pairs: list[str], metrics: str | None
) -> dict[str, str]:
    """The flags under their property names."""
    flags = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            _fail(f"--set takes NAME=VALUE, not {pair}.")
        flags[name.strip()] = value.strip()
    if listeners:
        flags["listeners"] = ",".join(
            text if "://" in text else f"PLAINTEXT://{text}" for text in listeners
        )
    if data_dir is not None:
        flags["log.dirs"] = data_dir
    if metrics is not None:
        flags["shoal.metrics.listener"] = metrics
    return flags


def _file(path: Path | None) -> tuple[str, str]:
    if path is None:
        return "", ""
    try:
        return path.read_text(), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text file"
        _fail(f"Cannot read the configuration file {path}: {reason}.")


def _say(line: str) -> None:
    print(line, flush=True)


def _fail(sentence: str) -> NoReturn:
    print(f"shoal server: {sentence}", file=sys.stderr)
    raise typer.Exit(1)
