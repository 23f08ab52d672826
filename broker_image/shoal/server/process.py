"""A broker as a process: event loop, signals, garbage collector, and what it tells its user."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from shoal import __version__
from shoal.log.errors import CorruptLog, DirectoryInUse
from shoal.protocol.errors import ApiError
from shoal.record import walker
from shoal.server import ineffective_configs
from shoal.server.broker import Broker
from shoal.server.cluster.lifecycle import CannotJoin
from shoal.server.config import BrokerConfig, InvalidConfig, address
from shoal.server.network.api import Listeners
from shoal.server.network.listener import ListenError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Buffers up to this size come from the heap; glibc takes no larger value.
MMAP_THRESHOLD_BYTES = 32 << 20
#: Free memory at the heap's end beyond this is given back.
TRIM_THRESHOLD_BYTES = 64 << 20


class CannotStart(Exception):
    """Why there is no broker, as a sentence with its remedy."""


def run(config: BrokerConfig, *, started: float, say: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT. `started` is `perf_counter` at the process' start.

    Raises `CannotStart`.
    """
    _raise_file_limit()
    _keep_freed_memory()
    with contextlib.closing(uvloop.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(_serve(config, started, say))


async def _serve(config: BrokerConfig, started: float, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        broker = Broker(config, loop)
    except InvalidConfig as error:
        raise CannotStart(str(error)) from None
    try:
        await _started(broker, stop)
    except (ListenError, DirectoryInUse, CorruptLog, ApiError, CannotJoin) as error:
        await broker.stop()
        raise CannotStart(str(error)) from None
    except OSError as error:
        await broker.stop()
        where = error.filename or config.data_dir
        raise CannotStart(
            f"Cannot use the data directory {config.data_dir}: {error.strerror} ({where})."
            " Choose another by --data-dir, or give this user the right to write there."
        ) from None
    _tune_collector()
    for listener in broker.listeners:
        where = address(listener.host, listener.port)
        if broker.cluster.is_broker and broker.cluster.kinds[listener.name] is Listeners.CONTROLLER:
            say(f"Controllers reach it at {where}.")
        else:
            say(f"Shoal {__version__}, broker {config.node_id}, listens on {where}.")
    say(f"Its data is in {Path(config.data_dir).resolve()}.")
    if broker.health is not None:
        where = address(broker.health.host, broker.health.port)
        say(f"Metrics are at http://{where}/metrics.")
    ineffective = ineffective_configs.of_broker(broker.image)
    if ineffective:
        broker.log.warning("settings without effect", type="broker", settings=ineffective)
        say(ineffective_configs.sentence(ineffective))
    if walker.native is None:
        say("Records are validated in Python, which is slower: there is no compiled module.")
    say(f"Ready after {time.perf_counter() - started:.2f} s. Ctrl-C or SIGTERM stops it.")
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    await broker.stop()
    if broker.failed.done():
        raise CannotStart(broker.failed.result())
    say("Stopped.")
    sys.stdout.flush()


async def _started(broker: Broker, stop: asyncio.Event) -> None:
    """Start it, unless its cluster will not have it, or it is told to stop before. Raises what
    `Broker.start` raises."""
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    if broker.failed.done():
        raise CannotJoin(broker.failed.result())
    if starting.cancelled():
        raise CannotJoin("It was told to stop before its cluster had let it in.")
    await starting


def _raise_file_limit() -> None:
    """Every partition holds a file open and every client a socket; the soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Have glibc keep the buffers of large requests and answers for the next ones.

    By default it gives a freed megabyte back to the kernel, and the next one costs 256 page faults
    and as many cleared pages: consuming 1 KB records 0.8 s of system time a GB instead of 0.2, at
    half the rate.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such knobs
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def _tune_collector() -> None:
    """What start-up made lives as long as the process: the collector need not look at it again. And
    hardly anything is in cycles, so it looks seldom: at CPython's threshold of 700 it ran every
    tenth request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
