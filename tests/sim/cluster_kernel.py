"""The machine that whole simulated clusters run on: one clock, one order of all callbacks, and one
asyncio loop for each process.

Real brokers and real clients run unchanged. Each process has its own event loop. All loops put
their callbacks in one queue, in the order of simulated time; no time passes between two callbacks.
So a process can be killed (none of its callbacks runs again) or stopped (they wait until it
resumes) while all others run.

One seed determines everything random. All events are hashed, so that two runs of a seed can be
compared byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import random
from asyncio import events
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sim.cluster_network import Host, Network

#: Simulated seconds since the machine was switched on, and since 1970, when a run begins.
START_S = 1_000.0
EPOCH_S = 1_700_000_000.0
#: A run with more callbacks than this does not make progress; usual runs take 100,000.
CALLBACKS_MAX = 5_000_000
#: The same limit for one instant.
INSTANT_CALLBACKS_MAX = 20_000


class Violation(AssertionError):
    """A broken rule: its name, and what was observed."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Stuck(AssertionError):
    """The run continues without progress."""


class Buried(BaseException):
    """Ends the coroutines of a finished run."""


class Kernel:
    """The clock, the queue, the seed's random numbers, and the trace."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        #: For all brokers and clients: choices such as election timeouts, and unpredictable bytes.
        self.shared_random = random.Random(seed)
        self.entropy = random.Random(f"{seed} entropy")
        self.now = START_S
        #: The process that runs now; None during the kernel's own events.
        self.current: Process | None = None
        self.lines: list[str] | None = [] if keep_trace else None
        self.callbacks = 0
        self._instant_ends = INSTANT_CALLBACKS_MAX
        self.stopped = False
        #: An error in a callback that no task awaits; it ends the run.
        self.failure: BaseException | None = None
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Process | None, Any]] = []
        self._ready: deque[tuple[Process | None, Any]] = deque()
        self._sequence = 0

    # The queue.

    def at(self, when: float, call: Callable[[], None], owner: Process | None = None) -> None:
        """Call at `when`, as `owner` unless that process is dead by then."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, owner, call))

    def after(self, delay_s: float, call: Callable[[], None], owner: Process | None = None) -> None:
        self.at(self.now + delay_s, call, owner)

    def soon(self, owner: Process | None, call: Any) -> None:
        """Call in this instant, after everything that is already queued for it."""
        self._ready.append((owner, call))

    def run(self, until: float) -> bool:
        """Run up to that time, or until `stopped` is set; return whether `stopped` came first.
        Raises the error that a process failed with."""
        heap, ready = self._heap, self._ready
        self.stopped = False
        try:
            while not self.stopped:
                if ready:
                    owner, call = ready.popleft()
                elif heap and heap[0][0] <= until:
                    when, _, owner, call = heapq.heappop(heap)
                    if when > self.now:
                        self.now = when
                        self._instant_ends = self.callbacks + INSTANT_CALLBACKS_MAX
                else:
                    self.now = max(self.now, until)
                    return False
                self._call(owner, call)
                if self.failure is not None:
                    raise self.failure
            return True
        finally:
            self.enter(None)

    def _call(self, owner: Process | None, call: Any) -> None:
        self.callbacks += 1
        if self.callbacks > self._instant_ends or self.callbacks > CALLBACKS_MAX:
            raise Stuck(f"{self.callbacks} callbacks, and no end")
        if owner is not None:
            if not owner.alive:
                return
            if owner.deferred is not None:
                owner.deferred.append(call)
                return
        if isinstance(call, asyncio.Handle):
            if call._cancelled:
                return
            self.enter(owner)
            call._run()
        else:
            self.enter(owner)
            call()

    def enter(self, process: Process | None) -> None:
        if process is not self.current:
            self.current = process
            events._set_running_loop(None if process is None else process.loop)

    def fail(self, error: BaseException) -> None:
        """End the run with the first error."""
        if self.failure is None:
            self.failure = error

    # The trace.

    def trace(
        self, line: str, data: bytes = b"", shown: Callable[[bytes], str] = lambda data: ""
    ) -> None:
        """Record an event. `data` is hashed whole; a kept trace shows it through `shown`."""
        line = f"{self.now - START_S:10.6f} {line}"
        self._hash.update(line.encode())
        self._hash.update(data)
        if self.lines is not None:
            self.lines.append(f"{line} {shown(data)}")

    @property
    def fingerprint(self) -> str:
        """Return a hash of all events of the run so far."""
        return self._hash.hexdigest()

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def wall_time_ns(self) -> int:
        """The wall clock of the process that runs now."""
        offset = 0.0 if self.current is None else self.current.clock_offset()
        return int((self.now - START_S + EPOCH_S + offset) * 1e9)


class Process:
    """An event loop with its tasks and connections, which end together."""

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        *,
        host: Host,
        network: Network,
        clock_offset: Callable[[], float],
        work_s: Callable[[], float],
    ) -> None:
        """`host` is the machine's end of the network. `clock_offset` returns the error of its wall
        clock in seconds, and `work_s` how long a thread takes for a call."""
        self.kernel = kernel
        self.name = name
        self.host = host
        self.alive = True
        #: Callbacks that wait until a stopped process resumes; None while it runs.
        self.deferred: deque[Any] | None = None
        self.clock_offset = clock_offset
        self.loop = ProcessLoop(self, network, work_s)
        #: Strong references: the tasks of a dead process must neither run nor be collected.
        self.tasks: set[asyncio.Task[Any]] = set()
        #: When the thread of each executor is free again.
        self.busy_until: dict[int, float] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process; its exception ends the simulation."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.kernel.fail(error)

    def kill(self) -> None:
        """End the process. None of its code runs from here on, not even `finally` blocks."""
        self.alive = False
        self.deferred = None

    def pause(self) -> None:
        if self.deferred is None:
            self.deferred = deque()

    def resume(self) -> None:
        deferred, self.deferred = self.deferred, None
        for call in deferred or ():
            self.kernel.soon(self, call)

    def bury(self) -> None:
        """Close all coroutines at the end of a run, whatever they raise."""
        self.alive = False
        self.kernel.enter(self)  # Ending coroutines may start new ones, which are closed too.
        while self.tasks:
            task = self.tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            with contextlib.suppress(BaseException):
                while True:  # Repeat for each await in its clean-up.
                    coroutine.throw(Buried())
        self.kernel.enter(None)


class ProcessLoop(asyncio.AbstractEventLoop):
    """A process's event loop: asyncio's interface to the kernel."""

    def __init__(self, process: Process, network: Network, work_s: Callable[[], float]) -> None:
        self.process = process
        self.kernel = process.kernel
        #: Makes connections and servers.
        self.network = network
        #: How long a thread takes for a call, and its result to arrive.
        self.work_s = work_s
        self.signals: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        return self.kernel.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.process.alive

    def is_closed(self) -> bool:
        return not self.process.alive

    # Callbacks.

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.process.alive:
            self.kernel.soon(self.process, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.kernel.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.process.alive:
            self.kernel.at(when, handle, self.process)  # type: ignore[arg-type]
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    # Futures and tasks.

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        # Python numbers unnamed tasks in the order of the whole process that runs the tests.
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self.process.tasks.add(task)
        task.add_done_callback(self.process.tasks.discard)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run a thread's work. Its effects happen at one moment, and the loop gets the result
        later. The calls of one executor run one after the other."""
        future, busy = self.create_future(), self.process.busy_until
        begins = max(self.kernel.now, busy.get(id(executor), 0.0))
        ends = busy[id(executor)] = begins + self.work_s()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as failed:
                result, error = None, failed
            except BaseException:
                assert not self.process.alive  # It died in this call.
                return
            self.call_soon(settle, result, error)

        def settle(result: Any, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.kernel.at(ends, work, self.process)
        return future

    # The network.

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self.network.connect(self.process, protocol_factory, host, port)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return self.network.serve(self.process, protocol_factory, options["sock"])

    # Errors.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.process.alive and isinstance(error, BaseException):
            error.add_note(f"in {self.process.name}: {context.get('message')}")
            self.process.fail(error)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        self.signals[sig] = lambda: callback(*args)
