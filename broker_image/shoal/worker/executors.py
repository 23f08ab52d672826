"""Where a handler runs: on the event loop, in a thread, or in a process.

Each slot of a handler has an executor. `start` begins a call and returns what to await. A call that
`may_stop` is stopped by cancelling the task that awaits it: a coroutine gets `CancelledError`, and
a process is killed, so that it surely ends. A thread cannot be stopped. It keeps its slot until its
function returns.
"""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import pickle
import signal
import time
from typing import TYPE_CHECKING, Any

from shoal.client.blocking_calls import run_in_thread
from shoal.worker.handlers import Arguments
from shoal.worker.jobs import Delivery, Job
from shoal.worker.outcomes import PayloadError, Reject, RemoteFailure, Retry, read_reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from shoal.client.share.acquired import SharedRecord
    from shoal.worker.handlers import Handler
    from shoal.worker.payloads import Codec

#: What a call gets: a job, or the jobs of a batch.
Work = Job | list[Job]


class AsyncExecutor:
    """Runs a coroutine function on the event loop."""

    may_stop = True

    def __init__(self, handler: Handler) -> None:
        #: Call the handler. Raises `PayloadError` at once.
        self.start: Callable[[Work], Awaitable[Any]]
        self.start = handler.arguments.make_call(handler.function)

    def close(self) -> None:
        """A coroutine needs nothing that outlives it."""


class ThreadExecutor:
    """Runs a function in a thread of its own, which does not hold up the end of the process."""

    may_stop = False

    def __init__(self, handler: Handler) -> None:
        self._call = handler.arguments.make_call(handler.function)

    def start(self, work: Work) -> Awaitable[Any]:
        """Decode the payload and call the handler, both in the thread."""
        context = contextvars.copy_context()
        return run_in_thread(lambda: context.run(_guard, self._call, work))

    def close(self) -> None:
        """Threads that still run end with the process."""


class ProcessExecutor:
    """Runs a function in a process, which serves one slot and is killed when its job must end.

    The function is found by its module and name, as by pickle. A process that dies (a crash, no
    memory) fails only its job; the next job gets a new one.
    """

    may_stop = True

    def __init__(self, handler: Handler) -> None:
        self._spec = pickle.dumps((handler.function, handler.is_batch, handler.codec))
        self._process: SpawnProcess | None = None
        self._link: Connection | None = None

    async def start(self, work: Work) -> Any:
        jobs = work if isinstance(work, list) else [work]
        link = self._link or self._open()
        now_s = time.monotonic()  # All processes of a machine have the same.
        deliveries = [
            (job.record, now_s + job.seconds_left, job.group, job.timeout_s) for job in jobs
        ]
        try:
            answer = await run_in_thread(lambda: _exchange(link, deliveries))
            while answer[0] == "renew":
                for job in jobs:
                    job.renew()
                answer = await run_in_thread(link.recv)
        except (EOFError, OSError) as error:
            code = self.close()
            raise ChildProcessError(f"the handler's process ended with {code}") from error
        except asyncio.CancelledError:
            self.close()
            raise
        if answer[0] == "result":
            return answer[1]
        raise answer[1]

    def _open(self) -> Connection:
        # A fork of a process with threads and an event loop may hang.
        context = multiprocessing.get_context("spawn")
        self._link, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, self._spec), daemon=True)
        self._process.start()
        there.close()
        return self._link

    def close(self) -> int | None:
        """Kill the process; return its exit code."""
        # The thread that reads from the pipe still has it: it closes with the last reference.
        process, self._process, self._link = self._process, None, None
        if process is None:
            return None
        process.kill()
        process.join()
        return process.exitcode


_EXECUTORS: dict[str, Callable[[Handler], AsyncExecutor | ThreadExecutor | ProcessExecutor]] = {
    "async": AsyncExecutor,
    "thread": ThreadExecutor,
    "process": ProcessExecutor,
}


def make_executor(handler: Handler) -> AsyncExecutor | ThreadExecutor | ProcessExecutor:
    """Return the executor of one slot."""
    return _EXECUTORS[handler.executor](handler)


def _guard(call: Callable[[Work], Any], work: Work) -> Any:
    """Call a function in a thread, and let any end of it be an exception that a task may raise."""
    try:
        return call(work)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:  # sys.exit, for example, which would end the thread alone.
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error


def _exchange(link: Connection, message: Any) -> Any:
    link.send(message)
    return link.recv()


def _serve(link: Connection, spec: bytes) -> None:
    """Run the jobs of one slot, in the process of an executor, until its end of the pipe closes."""
    # Ctrl-C at a terminal reaches this process, too. The worker decides what becomes of the job.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function, batch, codec = pickle.loads(spec)
    while True:
        try:
            work = link.recv()
        except EOFError:
            return
        link.send(_run(link, function, batch, codec, work))


def _run(
    link: Connection,
    function: Callable[..., Any],
    batch: bool,
    codec: Codec | None,
    work: Sequence[tuple[SharedRecord, float, str, float]],
) -> tuple[str, Any]:
    """Return `result` and what the function returned, or `error` and an exception that the parent
    knows."""
    jobs = [_make_job(*each, link) for each in work]
    try:
        arguments = Arguments.from_function(function, batch=batch, codec=codec)
        for job in jobs:
            job.payload = arguments.decode(job.value)
        result = arguments.make_call(function)(jobs if batch else jobs[0])
        pickle.dumps(result)
    except Reject as error:  # A subclass may not be picklable.
        return "error", Reject(str(error), code=error.code)
    except (Retry, PayloadError) as error:
        return "error", error
    except BaseException as error:
        return "error", RemoteFailure(read_reason(error))
    return "result", result


def _make_job(
    record: SharedRecord, deadline_s: float, group: str, timeout_s: float, link: Connection
) -> Job:
    delivery = Delivery.from_record(record, deadline_s, group)
    return Job(delivery, timeout_s, lambda _deadline_s: link.send(("renew", None)))
