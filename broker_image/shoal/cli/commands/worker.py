"""`shoal worker`: run the worker of an application, in one process or several."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import Annotated

import typer

from shoal.cli.session import UNREACHABLE, USAGE, CommandError, make_app, run_guarded
from shoal.client.errors import Unreachable
from shoal.monitoring import remedies
from shoal.worker.logs import configure_logs
from shoal.worker.process import InvalidApplication, Supervisor, load_worker, run_worker
from shoal.worker.worker import Worker

app = make_app("Run the handlers of an application for the records of its topics.")


@app.command()
def worker(
    application: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The worker, such as app:worker.")
    ],
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT,...",
            envvar="SHOAL_BOOTSTRAP_SERVERS",
            help="Brokers of the cluster, for a worker without settings of its own.",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs at once of each handler in each process."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file here changes.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics here."),
    ] = None,
    status_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C. Running jobs may then end; all other records go back
    undelivered. A second signal ends it at once.

    shoal worker app:worker --processes 4 --concurrency 8
    """
    configure_logs()
    if bootstrap_server:
        os.environ["SHOAL_BOOTSTRAP_SERVERS"] = bootstrap_server
    if processes > 1 or reload:
        command = [sys.executable, "-m", "shoal.cli", "worker", application]
        if concurrency is not None:
            command.append(f"--concurrency={concurrency}")
        _guard(lambda: _supervise(command, processes, listen, reload=reload))
    else:
        _guard(lambda: _run(application, concurrency, listen, status_fd))


def _guard(call: object) -> None:
    def run() -> None:
        try:
            call()  # type: ignore[operator]
        except InvalidApplication as error:
            raise CommandError(f"{error}.", USAGE) from None
        except Unreachable as error:
            raise CommandError(remedies.format_unreachable(error), UNREACHABLE) from None
        except OSError as error:
            if error.errno is None:
                raise
            raise CommandError(f"{os.strerror(error.errno)}: choose another --listen.") from None

    run_guarded(run)


def _run(
    application: str, concurrency: int | None, listen: str | None, status_fd: int | None
) -> None:
    loaded: Worker = load_worker(application)
    if concurrency is not None:
        loaded.handlers = [replace(h, concurrency=concurrency) for h in loaded.handlers]
    asyncio.run(run_worker(loaded, listen=listen, status_fd=status_fd))


def _supervise(command: list[str], processes: int, listen: str | None, *, reload: bool) -> None:
    async def run() -> int:
        return await Supervisor(command, processes, reload=reload).run(listen)

    if code := asyncio.run(run()):
        raise typer.Exit(code)
