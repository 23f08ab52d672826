"""The machine that whole simulated clusters run on: one clock, one order of all callbacks, and an
asyncio loop for each process.

Real brokers and real clients run unchanged. Each process has an event loop of its own, and all
loops put their callbacks in one queue, in the order of simulated time; between two callbacks no
time passes. So a process can be killed (its callbacks never run, and nothing of it runs after) or
stopped (they wait until it goes on) while all others live.

One seed decides all that is random. What has happened is hashed, so that two runs of a seed can be
told to be the same, byte for byte.
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

#: Simulated seconds since the machine was switched on, and since 1970, when a run begins.
START_S = 1_000.0
EPOCH_S = 1_700_000_000.0
#: A run that takes more callbacks than this goes round in circles; usual ones take 100,000.
CALLBACKS_MAX = 5_000_000
#: And one that takes more than this in one instant.
INSTANT_CALLBACKS_MAX = 20_000


class Violation(AssertionError):
    """A rule that was broken: its name, and what was seen."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


class Stuck(AssertionError):
    """The run goes on and on and gets nowhere."""


class Buried(BaseException):
    """What ends the coroutines of a run that is over."""


class Kernel:
    """The clock, the queue, the seed's random numbers, and the trace."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        #: Of all brokers and clients: choices such as election timeouts, and unpredictable bytes.
        self.shared_random = random.Random(seed)
        self.entropy = random.Random(f"{seed} entropy")
        self.now = START_S
        #: What runs now; None while the kernel's own events do.
        self.current: Process | None = None
        self.lines: list[str] | None = [] if keep_trace else None
        self.callbacks = 0
        self._instant_ends = INSTANT_CALLBACKS_MAX
        self.stopped = False
        #: What went wrong in a callback that nobody awaits; the run ends with it.
        self.failure: BaseException | None = None
        self._hash = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Process | None, Any]] = []
        self._ready: deque[tuple[Process | None, Any]] = deque()
        self._sequence = 0

    # The queue.

    def at(self, when: float, call: Callable[[], None], owner: Process | None = None) -> None:
        """Call at `when`; as `owner`, unless that is dead by then."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, owner, call))

    def after(self, delay_s: float, call: Callable[[], None], owner: Process | None = None) -> None:
        self.at(self.now + delay_s, call, owner)

    def soon(self, owner: Process | None, call: Any) -> None:
        """Call in this instant, behind all that is to be called in it already."""
        self._ready.append((owner, call))

    def run(self, until: float) -> bool:
        """Let things happen up to that time, or until somebody sets `stopped`; whether that came
        first. Raises what a process failed with."""
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
            if owner.held is not None:
                owner.held.append(call)
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
        """End the run with what went wrong first."""
        if self.failure is None:
            self.failure = error

    # The trace.

    def trace(
        self, line: str, data: bytes = b"", shown: Callable[[bytes], str] = lambda data: ""
    ) -> None:
        """Note what happens; `data` is hashed whole, and told of in a kept trace by `shown`."""
        line = f"{self.now - START_S:10.6f} {line}"
        self._hash.update(line.encode())
        self._hash.update(data)
        if self.lines is not None:
            self.lines.append(f"{line} {shown(data)}")

    @property
    def fingerprint(self) -> str:
        """What the whole run up to now comes down to."""
        return self._hash.hexdigest()

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def wall_time_ns(self) -> int:
        """The wall clock of whoever runs now."""
        offset = 0.0 if self.current is None else self.current.clock_offset()
        return int((self.now - START_S + EPOCH_S + offset) * 1e9)


class Process:
    """What lives and dies as one: an event loop, its tasks, its connections."""

    def __init__(
        self, kernel: Kernel, name: str, clock_offset: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.alive = True
        #: Callbacks that wait for a stopped process to go on; None while it runs.
        self.held: deque[Any] | None = None
        self.clock_offset = clock_offset
        self.loop = ProcessLoop(self)
        #: Strong: who else would hold a dead process's tasks, whose ends must not run?
        self.tasks: set[asyncio.Task[Any]] = set()
        #: Called when it dies, by the machine it runs on.
        self.on_kill: list[Callable[[], None]] = []
        #: When each of its threads is free again, by executor.
        self.busy_until: dict[int, float] = {}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it in this process; an exception that it ends with ends the simulation."""
        task = self.loop.create_task(work)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self.kernel.fail(error)

    def kill(self) -> None:
        """Nothing of it runs from here on, not even what stands in a `finally`."""
        self.alive = False
        self.held = None
        for call in self.on_kill:
            call()

    def pause(self) -> None:
        if self.held is None:
            self.held = deque()

    def resume(self) -> None:
        held, self.held = self.held, None
        for call in held or ():
            self.kernel.soon(self, call)

    def bury(self) -> None:
        """At the end of a run: let the coroutines go, whatever they say to that."""
        self.alive = False
        self.kernel.enter(self)  # What ends may begin something, which is let go too.
        while self.tasks:
            task = self.tasks.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            with contextlib.suppress(BaseException):
                while True:  # Once more for each thing that it awaits while it ends.
                    coroutine.throw(Buried())
        self.kernel.enter(None)


class ProcessLoop(asyncio.AbstractEventLoop):
    """A process's event loop: asyncio's interface to the kernel."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.kernel = process.kernel
        #: Makes connections and servers; set by the machine that the process runs on.
        self.network: Any = None
        #: How long a thread works at a call, and how long its result takes; set by the machine.
        self.work_s: Callable[[], float] = lambda: 0.0
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
        """A thread's work: what it does happens at one moment, and the loop hears of it later.
        The calls of one executor run one behind the other."""
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

    # What goes wrong.

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.process.alive and isinstance(error, BaseException):
            error.add_note(f"in {self.process.name}: {context.get('message')}")
            self.process.fail(error)

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        self.signals[sig] = lambda: callback(*args)
