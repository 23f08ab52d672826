"""A `ShoalBackend` as Django's own tests of task backends want it; see `django_cases`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_finished
from shoal.django import ShoalBackend
from shoal.django.messages import decode
from shoal.django.options import Options
from shoal.django.runner import run


class Remembering(ShoalBackend):
    """Also remembers what it has enqueued."""

    def __init__(self, alias: str, params: Any) -> None:
        super().__init__(alias, params)
        self.results: list[Any] = []

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        self.results.append(result)
        return deepcopy(result)

    def get_result(self, result_id: str) -> Any:
        for result in self.results:
            if result.id == result_id:
                return result
        raise TaskResultDoesNotExist(result_id)

    def clear(self) -> None:
        self.results.clear()


class Running(ShoalBackend):
    """Also runs the task at once, from what the record says. No failure is tried again."""

    @property
    def shoal(self) -> Options:
        return Options(retries=0)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        super().enqueue(task, args, kwargs)
        ended: list[Any] = []

        def on_finished(task_result: Any, **_: Any) -> None:
            ended.append(task_result)

        task_finished.connect(on_finished)
        try:
            run(self, decode(self._value), 1, "worker")
        except KeyboardInterrupt:
            raise
        except BaseException:
            assert ended, "a task that raised has not finished"
        finally:
            task_finished.disconnect(on_finished)
        return ended[0]

    def _store(self, message: Any, *arguments: Any) -> None:
        super()._store(message, *arguments)
        self._value = message.to_bytes()
