"""`shoal share-consume --exec`: a shell command for each record, as a worker without code.

The command gets the record's value on standard input, and the rest as variables. Its exit code is
the outcome: 0 accepts, 65 (EX_DATAERR of sysexits.h) rejects, and any other one, 75 (EX_TEMPFAIL)
for example, releases with a back-off. The end of its standard error is the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.cli.failures import USAGE, CommandError

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.worker import Job

EX_DATAERR = 65
#: Bytes of standard error that become the reason.
REASON_BYTES_MAX = 2_000


class ExecOptions(NamedTuple):
    """The options of `shoal share-consume` that decide how commands run."""

    exec: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Run a shell command for each record, with its value on standard input. Exit code"
            " 0 accepts, 65 rejects, and any other one releases.",
        ),
    ] = None
    concurrency: Annotated[int, typer.Option(min=1, help="With --exec: commands at once.")] = 1
    exec_timeout: Annotated[
        str, typer.Option(metavar="5m", help="With --exec: the time after which it is killed.")
    ] = "5m"
    retries: Annotated[
        int, typer.Option(min=0, help="With --exec: deliveries after the first before it rejects.")
    ] = 4
    backoff: Annotated[
        str, typer.Option(metavar="1s..5m", help="With --exec: the waits between deliveries.")
    ] = "1s..5m"


async def run_commands(
    client: Client, group: str, topics: list[str], options: ExecOptions, max_messages: int | None
) -> None:
    """Run a command for each record until a signal, or for `max_messages` records.

    Raises `CommandError` for a time that is none.
    """
    from shoal.worker import Worker
    from shoal.worker.logs import configure_logs

    assert options.exec is not None
    worker, command = Worker(group), options.exec
    count = 0

    async def run(job) -> None:  # type: ignore[no-untyped-def]
        nonlocal count
        count += 1
        if max_messages is not None and count >= max_messages:
            worker.stop()
        await run_command(command, job)

    try:
        worker.handler(
            *topics,
            concurrency=options.concurrency,
            timeout=options.exec_timeout,
            retries=options.retries,
            backoff=options.backoff,
            prefetch=0,
        )(run)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from None
    configure_logs()
    worker.stop_on_signals()
    await worker.serve(client)


async def run_command(command: str, job: Job) -> None:
    """Run one command. Raises `Reject` or `RemoteFailure`. A cancellation kills it and what it has
    started."""
    from shoal.protocol.reasons import FailureReason
    from shoal.worker import Reject
    from shoal.worker.outcomes import RemoteFailure

    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        command,
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | make_variables(job),
        start_new_session=True,
    )
    try:
        _, tail = await asyncio.gather(_feed(process, job.value or b""), _pass_on(process))
        await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode == 0:
        return
    code = str(process.returncode)
    why = f"exit code {code}" + (f": {tail}" if tail else "")
    if process.returncode == EX_DATAERR:
        raise Reject(why, code=code)
    raise RemoteFailure(FailureReason("CommandFailed", why, code=code))


async def _feed(process: asyncio.subprocess.Process, value: bytes) -> None:
    """Write a value to a command, which need not read it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(value)
        await process.stdin.drain()
    process.stdin.close()


async def _pass_on(process: asyncio.subprocess.Process) -> str:
    """Pass on the standard error of a command; return its end."""
    assert process.stderr is not None
    tail = b""
    while data := await process.stderr.read(1 << 16):
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        tail = (tail + data)[-REASON_BYTES_MAX:]
    return tail.decode(errors="replace").strip()


def make_variables(job: Job) -> dict[str, str]:
    """Return the environment of a command. Zero bytes, which it cannot have, are left out."""
    variables: dict[str, Any] = {
        "SHOAL_TOPIC": job.topic,
        "SHOAL_PARTITION": job.partition,
        "SHOAL_OFFSET": job.offset,
        "SHOAL_TIMESTAMP_MS": job.record.timestamp_ms,
        "SHOAL_DELIVERY_COUNT": job.delivery_count,
    }
    if job.key is not None:
        variables["SHOAL_KEY"] = job.key.decode(errors="surrogateescape")
    for name, value in job.headers.items():
        variable = "SHOAL_HEADER_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
        variables[variable] = (value or b"").decode(errors="surrogateescape")
    return {name: str(value).replace("\0", "") for name, value in variables.items()}
