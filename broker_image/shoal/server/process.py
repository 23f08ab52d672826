"""The process of a broker: event loop, signals, garbage collector, messages on the console."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import resource
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import uvloop

from shoal import __version__
from shoal.log.errors import CorruptLog, DirectoryInUse
from shoal.protocol.errors import ApiError
from shoal.record import batch_validation
from shoal.server import ineffective_configs, open_files
from shoal.server.broker import Broker
from shoal.server.cluster.lifecycle import JoinError
from shoal.server.cluster.served_apis import ApiTables
from shoal.server.cluster_config import Listeners
from shoal.server.config import BrokerConfig, InvalidConfig, format_address
from shoal.server.handlers import HANDLERS, TABLES
from shoal.server.network.listener import ListenError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.server.system import System

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Buffers up to this size come from the heap. This is the largest value that glibc accepts.
MMAP_THRESHOLD_BYTES = 32 << 20
#: The secret divisor of hashes has a bit more. Python's own has 61.
_HASH_BITS = 60
#: Free memory at the end of the heap above this size is returned to the kernel.
TRIM_THRESHOLD_BYTES = 64 << 20


class StartError(Exception):
    """Why the broker does not start, or has ended, as a sentence with the remedy."""


def run(config: BrokerConfig, *, started: float, say: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT. `started` is `perf_counter` at the process' start.

    Raises `StartError`.
    """
    _raise_file_limit()
    _keep_freed_memory()
    _salt_hashes_of_ids()

    def on_ready() -> str:
        tune_collector()
        return f"Ready after {time.perf_counter() - started:.2f} s."

    with contextlib.closing(uvloop.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve(lambda: compose(config, loop), ready=on_ready, say=say))


def compose(
    config: BrokerConfig, loop: asyncio.AbstractEventLoop, system: System | None = None
) -> Broker:
    """Make a broker that serves all APIs. Its default `system` is this machine.

    Raises `InvalidConfig`.
    """
    return Broker(config, loop, ApiTables(HANDLERS, TABLES), system)


async def serve(
    make: Callable[[], Broker], *, ready: Callable[[], str], say: Callable[[str], None]
) -> None:
    """Start the broker that `make` returns, and stop it at SIGTERM or SIGINT.

    Calls `ready` once it serves, for a sentence about the start. Raises `StartError`.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        broker = make()
    except InvalidConfig as error:
        raise StartError(str(error)) from None
    try:
        await _start_broker(broker, stop)
    except (ListenError, DirectoryInUse, CorruptLog, ApiError, JoinError) as error:
        await broker.stop()
        raise StartError(str(error)) from None
    except OSError as error:
        await broker.stop()
        raise StartError(_explain(error, broker)) from None
    _announce(broker, ready(), say)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    await broker.stop()
    if broker.failed.done():
        raise StartError(broker.failed.result())
    say("Stopped.")
    sys.stdout.flush()


def _explain(error: OSError, broker: Broker) -> str:
    """Return why the data directory cannot be used, with the remedy for the error."""
    if error.errno in open_files.SHORTAGES:
        return open_files.explain_shortage(broker.directory.count_segments())
    directory = broker.config.data_dir
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk of the data directory {directory} is full ({error.strerror}). Free or add"
            " space, and start again."
        )
    return (
        f"Cannot use the data directory {directory}: {error.strerror}"
        f" ({error.filename or directory})."
        " Choose another by --data-dir, or give this user the right to write there."
    )


def _announce(broker: Broker, took: str, say: Callable[[str], None]) -> None:
    """Say where the broker listens, where its data is, and what the operator should know."""
    config = broker.config
    for listener in broker.listeners:
        address_text = format_address(listener.host, listener.port)
        if broker.cluster.is_broker and broker.cluster.kinds[listener.name] is Listeners.CONTROLLER:
            say(f"Controllers reach it at {address_text}.")
        else:
            say(f"Shoal {__version__}, broker {config.node_id}, listens on {address_text}.")
    say(f"Its data is in {Path(config.data_dir).resolve()}.")
    if broker.health is not None:
        say(f"Metrics are at {broker.health.url}.")
    ineffective = ineffective_configs.list_for_broker(broker.image)
    if ineffective:
        broker.log.warning("settings without effect", type="broker", settings=ineffective)
        say(ineffective_configs.format_sentence(ineffective))
    hidden = ineffective_configs.describe_hidden_min_isr(broker.image)
    if hidden:
        say(hidden)
    if batch_validation.native is None:
        remedy = f"with a C compiler, `{sys.executable} -m shoal.compile` makes them"
        say(f"Records are validated in Python, which is slower than compiled modules: {remedy}.")
    open_now = open_files.describe_usage()
    if open_now is not None:
        say(open_now)
    say(f"{took} Ctrl-C or SIGTERM stops it.")


async def _start_broker(broker: Broker, stop: asyncio.Event) -> None:
    """Start the broker. Raises what `Broker.start` raises.

    Raises `JoinError` if the cluster refuses the node, or if a signal stops it before it serves.
    """
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    if broker.failed.done():
        if not starting.cancelled():
            starting.exception()  # asyncio would log it; the failure explains more.
        raise JoinError(broker.failed.result())
    if starting.cancelled():
        raise JoinError("It was stopped before its cluster had admitted it.")
    await starting


def _raise_file_limit() -> None:
    """Raise the limit of open files. Each partition and each client needs one; 1024 is usual."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Configure glibc to reuse the buffers of large requests and responses.

    By default glibc returns a freed megabyte to the kernel, and the next one costs 256 page faults.
    A consumer of 1 KB records then takes 0.8 s of system time per GB instead of 0.2 s, at half the
    rate.
    """
    with contextlib.suppress(OSError, AttributeError):  # other C libraries lack these options
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def _salt_hashes_of_ids() -> None:
    """Hash UUIDs by the remainder of a division that this process alone knows.

    By default the divisor is Python's. So a client can name 10,000 topics by ids of one hash, and a
    table of these takes minutes. Python's salted hash of the bytes takes twice as long as this, and
    a replicated record needs some thirty hashes.
    """
    divisor = secrets.randbits(_HASH_BITS) | 1 << _HASH_BITS | 1
    UUID.__hash__ = lambda self: self.int % divisor  # type: ignore[method-assign]


def tune_collector() -> None:
    """Exclude the objects of the start from garbage collection, and collect seldom.

    Those objects live as long as the process, and few later objects are in cycles. With CPython's
    threshold of 700 the collector ran on every tenth request. A collection of the middle generation
    takes some 20 ms for 50,000 objects, and a large request makes as many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 80)
