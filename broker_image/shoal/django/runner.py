"""Runs tasks: the handlers of a `shoal.worker.Worker` that call functions of Django's tasks."""

from __future__ import annotations

import os
import socket
from random import Random
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils.module_loading import import_string

from shoal.django.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    signals,
)
from shoal.django.messages import TaskMessage, decode, now
from shoal.worker import Job, Rejected, Worker
from shoal.worker.backoff import Backoff
from shoal.worker.outcomes import decide

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.django.backend import ShoalBackend

#: Stands for the worker of an earlier delivery, which a record does not tell. `TaskResult.attempts`
#: is the number of workers.
EARLIER = "earlier"


def make_worker(
    backend: ShoalBackend, queues: Iterable[str], *, concurrency: int | None = None
) -> Worker:
    """Return the worker of queues of a backend."""
    options = backend.shoal
    worker = Worker(options.group, settings=options.read_client())
    name = f"{socket.gethostname()}-{os.getpid()}"

    def run_task(job: Job) -> None:
        try:
            run(backend, decode(job.value), job.delivery_count, name)
        finally:
            # A thread of its own runs each job, and a connection belongs to its thread.
            connections.close_all()

    worker.handler(
        *(options.get_topic(queue) for queue in queues),
        concurrency=concurrency or options.concurrency,
        timeout=options.timeout,
        retries=options.retries,
        backoff=options.backoff,
    )(run_task)
    return worker


def run(backend: ShoalBackend, message: TaskMessage, delivery_count: int, worker: str) -> Any:
    """Run a task and return its result, a `TaskResult`. Raises what the function raises; the signal
    `task_finished` is sent then if no other delivery follows."""
    result = _make_result(message, delivery_count, worker)
    signals.task_started.send(type(backend), task_result=result)
    try:
        context = (TaskContext(task_result=result),) if result.task.takes_context else ()
        returned = result.task.call(*context, *result.args, **result.kwargs)
        _set(result, _return_value=normalize_json(returned))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        trace = "".join(format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
        if _is_last(backend, error, delivery_count):
            _set(result, status=TaskResultStatus.FAILED, finished_at=now())
            # Inside of the handler, so that Django's log has the traceback.
            signals.task_finished.send(type(backend), task_result=result)
        raise
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=now())
    signals.task_finished.send(type(backend), task_result=result)
    return result


def _make_result(message: TaskMessage, delivery_count: int, worker: str) -> Any:
    """Return the result of a task that begins to run. Raises `ImportError`, and `TypeError` for a
    path that leads to another object: the application may be older or newer than the task."""
    task = import_string(message.function)
    if not isinstance(task, Task):
        raise TypeError(f"{message.function} is a {type(task).__name__}, but not a task")
    started_at = now()
    return TaskResult(
        task=task.using(
            priority=message.priority, queue_name=message.queue, backend=message.backend
        ),
        id=message.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=message.enqueued_at,
        started_at=started_at,
        last_attempted_at=started_at,
        finished_at=None,
        args=message.args,
        kwargs=message.kwargs,
        backend=message.backend,
        errors=[],
        worker_ids=[*[EARLIER] * (delivery_count - 1), worker],
    )


def _is_last(backend: ShoalBackend, error: BaseException, delivery_count: int) -> bool:
    """Whether the worker will reject the record of a task that raised this."""
    options = backend.shoal
    outcome = decide(
        error,
        delivery_count,
        retries=options.retries,
        backoff=Backoff.from_text(options.backoff),
        random=Random(),
    )
    return isinstance(outcome, Rejected)


def _set(result: Any, **values: Any) -> None:
    """Set fields of a result, which is a frozen dataclass, as Django's backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
