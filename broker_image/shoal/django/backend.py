"""`ShoalBackend`: the backend of Django's task framework that enqueues records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.utils import timezone
from django.utils.crypto import get_random_string

from shoal.client.errors import SecurityError
from shoal.client.queues.queue_settings import PRIORITY
from shoal.django import producers
from shoal.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultStatus,
    signals,
)
from shoal.django.messages import TaskMessage, now, to_priority
from shoal.django.options import DELAY_MAX_S, InvalidBackendOption, Options
from shoal.metadata.names import find_topic_name_error
from shoal.worker.backoff import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

#: The header of the time from which on a record is delivered, in milliseconds of the epoch.
DELIVER_AT = "shoal.deliver.at"
#: The header with the id of a task, which Redrive and the console can select by.
TASK_ID = "django.task.id"


class ShoalBackend(BaseTaskBackend):  # type: ignore[misc]
    """Enqueues each task as a record of the topic of its queue.

    There is no result store: `get_result` is not supported.
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        #: None if OPTIONS are invalid; `check` says why, and so does `enqueue`.
        self.read: Options | None
        try:
            self.read, self.problem = Options.from_settings(self.options), ""
        except InvalidBackendOption as error:
            self.read, self.problem = None, str(error)

    @property
    def shoal(self) -> Options:
        """The checked OPTIONS. Raises `InvalidBackendOption`."""
        if self.read is None:
            raise InvalidBackendOption(f"TASKS[{self.alias!r}]['OPTIONS']: {self.problem}")
        return self.read

    def validate_task(self, task: Any) -> None:
        """Raises `InvalidTask`."""
        super().validate_task(task)
        if task.run_after is not None:
            ahead_s = (_make_aware(task.run_after) - now()).total_seconds()
            if ahead_s > DELAY_MAX_S:
                raise InvalidTask(
                    f"run_after is {ahead_s / 86400:.1f} days ahead. A record can wait for"
                    f" {DELAY_MAX_S // 86400} days at most: enqueue the task later."
                )

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store the task; return once the brokers have it. Raises `KafkaError`, or `TimeoutError`
        if it may still be stored."""
        self.validate_task(task)
        options = self.shoal
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        enqueued_at = now()
        self._store(self._make_message(result, enqueued_at), task.run_after, options)
        # A frozen dataclass, which Django's own backends write to in this way.
        object.__setattr__(result, "enqueued_at", enqueued_at)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _make_message(self, result: Any, enqueued_at: datetime) -> TaskMessage:
        return TaskMessage(
            id=result.id,
            function=result.task.module_path,
            args=result.args,
            kwargs=result.kwargs,
            queue=result.task.queue_name,
            backend=self.alias,
            priority=result.task.priority,
            enqueued_at=enqueued_at,
        )

    def _store(self, message: TaskMessage, run_after: datetime | None, options: Options) -> None:
        headers = {TASK_ID: message.id, PRIORITY: str(to_priority(message.priority))}
        if run_after is not None:
            headers[DELIVER_AT] = str(round(_make_aware(run_after).timestamp() * 1000))
        record = {
            "value": message.to_bytes(),
            "key": None,
            "headers": tuple((name, text.encode()) for name, text in headers.items()),
        }
        topic = options.get_topic(message.queue)
        timeout_s = parse_seconds(options.enqueue_timeout)
        try:
            producers.send(options, topic, record, timeout_s)
        except TimeoutError:
            raise TimeoutError(
                f"task {message.function} was not stored in topic {topic} within {timeout_s:g} s"
                " (enqueue_timeout). It may still be."
            ) from None

    def check(self, **_: Any) -> list[Any]:
        """Return what is wrong with the settings, for `manage.py check`."""
        setting = f"TASKS[{self.alias!r}]"
        if self.read is None:
            return [checks.Error(f"{setting}: {self.problem}", id="shoal.E001")]
        problems: list[Any] = []
        try:
            self.read.read_client()
        except (ValueError, OSError, SecurityError) as error:
            problems.append(checks.Error(f"{setting}: {error}", id="shoal.E002"))
        for queue in sorted(self.queues):
            topic = self.read.get_topic(queue)
            if reason := find_topic_name_error(topic):
                message = f"{setting}: queue {queue!r} has no topic, since {topic!r}: {reason}"
                problems.append(checks.Error(message, id="shoal.E003"))
        if self.read.dead_letters and not self.read.dead_letters.startswith("dlq."):
            message = f"{setting}: dead_letters is {self.read.dead_letters!r}"
            hint = "Brokers write none there by default: a dead-letter topic is named dlq.NAME."
            problems.append(checks.Warning(message, hint=hint, id="shoal.W002"))
        if not apps.is_installed("shoal.django"):
            message = f"{setting}: without the application there is no `manage.py shoal_worker`"
            hint = "Add 'shoal.django' to INSTALLED_APPS."
            problems.append(checks.Warning(message, hint=hint, id="shoal.W001"))
        return problems


def _make_aware(time: datetime) -> datetime:
    """Return a time with its zone. With USE_TZ=False, Django's times have that of the settings."""
    return timezone.make_aware(time) if timezone.is_naive(time) and not settings.USE_TZ else time
