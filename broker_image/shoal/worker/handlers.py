"""Handlers: the functions of an application, their options, and what their parameters ask for."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shoal.worker.backoff import Backoff, Duration, parse_seconds
from shoal.worker.jobs import Job
from shoal.worker.payloads import make_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.worker.payloads import Codec

Executor = Literal["async", "thread", "process"]
#: Deliveries of a record that a group has by default (`group.share.delivery.count.limit`), less
#: the first one.
RETRIES = 4
#: The longest time of a job by default. Its lock is renewed up to it.
TIMEOUT: Duration = "5m"
BACKOFF: Duration = "1s..5m"
CONCURRENCY = 8


class Arguments(NamedTuple):
    """What a function takes: the job, its payload, or both in either order; lists in a batch."""

    order: tuple[Literal["job", "payload"], ...]
    decode: Callable[[bytes | None], Any]
    batch: bool

    @classmethod
    def from_function(
        cls, function: Callable[..., Any], *, batch: bool, codec: Codec | None
    ) -> Arguments:
        """Read a function's annotations. Raises `TypeError` for parameters that nothing fills."""
        name = getattr(function, "__qualname__", repr(function))
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if not 1 <= len(parameters) <= 2:
            raise TypeError(
                f"handler {name} takes {len(parameters)} arguments. Let it take the job, its"
                " payload, or both."
            )
        hints = typing.get_type_hints(function, include_extras=True)
        kinds = [_read_kind(name, hints.get(p.name, p.empty), batch=batch) for p in parameters]
        order = tuple(which for which, _ in kinds)
        if len(set(order)) != len(order):
            raise TypeError(
                f"both arguments of handler {name} ask for the {order[0]}. Annotate one with Job,"
                " and the other with the type of the payload."
            )
        payload = [kind for which, kind in kinds if which == "payload"]
        kind = payload[0] if payload else kinds[0][1]
        return cls(order, make_decoder(kind, codec), batch)

    def make_call(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return a call of the function with a job, or with the jobs of a batch, whose payloads are
        decoded before. The call raises `PayloadError`."""
        decode, order = self.decode, self.order
        if self.batch:
            return lambda jobs: function(
                *(jobs if which == "job" else [job.payload for job in jobs] for which in order)
            )
        if order == ("payload",):
            return lambda job: function(decode(job.value))

        def call(job: Job) -> Any:
            job.payload = decode(job.value)
            return function(*(job if which == "job" else job.payload for which in order))

        return call


def _read_kind(name: str, hint: Any, *, batch: bool) -> tuple[Literal["job", "payload"], Any]:
    """Return what one parameter asks for, and the type of the payload."""
    if batch and hint is not inspect.Parameter.empty:
        if typing.get_origin(hint) is not list:
            raise TypeError(
                f"handler {name} takes batches, but is annotated with {hint}. Use list[Job], or a"
                " list of the payload's type."
            )
        hint = typing.get_args(hint)[0]
    if hint in (inspect.Parameter.empty, Job):
        return "job", bytes
    if typing.get_origin(hint) is Job:
        return "job", typing.get_args(hint)[0]
    return "payload", hint


@dataclass(frozen=True)
class Handler:
    """A function and its options. Times are seconds."""

    function: Callable[..., Any]
    topics: tuple[str, ...]
    executor: Executor
    arguments: Arguments
    concurrency: int
    timeout_s: float
    retries: int
    backoff: Backoff
    batch: int
    linger_s: float
    results: str
    codec: Codec | None
    prefetch: int | None

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    @property
    def is_batch(self) -> bool:
        return self.arguments.batch

    def decode(self, job: Job) -> None:
        """Decode the payload of a job of a batch. Raises `PayloadError`."""
        job.payload = self.arguments.decode(job.value)


def make_handler(
    function: Callable[..., Any],
    topics: Sequence[str],
    *,
    concurrency: int,
    timeout: Duration,
    retries: int,
    backoff: Duration,
    executor: Executor | None,
    batch: int | None,
    linger: Duration,
    results: str,
    codec: Codec | None,
    prefetch: int | None,
) -> Handler:
    """Check the options and return the handler. Raises `ValueError` or `TypeError`."""
    is_async = inspect.iscoroutinefunction(function)
    executor = executor or ("async" if is_async else "thread")
    if executor not in ("async", "thread", "process"):
        raise ValueError(f"executor {executor!r} is not async, thread or process")
    if is_async != (executor == "async"):
        kind = "async def" if is_async else "def"
        raise ValueError(f"a function with `{kind}` cannot run with executor={executor!r}")
    for name, number, least in (
        ("concurrency", concurrency, 1),
        ("retries", retries, 0),
        ("batch", batch or 1, 1),
        ("prefetch", prefetch or 0, 0),
    ):
        if number < least:
            raise ValueError(f"{name} is {number}; it is at least {least}")
    if not topics:
        raise ValueError("name at least one topic: @worker.handler('images')")
    if results and batch is not None:
        raise ValueError("a batch has no result of its own: use results without batch")
    timeout_s = parse_seconds(timeout)
    if not timeout_s:
        raise ValueError("timeout is 0, so every job would time out")
    return Handler(
        function,
        tuple(topics),
        executor,
        Arguments.from_function(function, batch=batch is not None, codec=codec),
        concurrency,
        timeout_s,
        retries,
        Backoff.from_text(backoff),
        batch or 1,
        parse_seconds(linger),
        results,
        codec,
        prefetch,
    )
