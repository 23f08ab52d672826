"""Django's task framework: that of Django 6, or its backport django-tasks for an older Django."""

from __future__ import annotations

import importlib

try:
    from django import tasks
except ImportError:
    import django_tasks as tasks

_package = tasks.__name__
_base = importlib.import_module(f"{_package}.base")
_exceptions = importlib.import_module(f"{_package}.exceptions")

BaseTaskBackend = importlib.import_module(f"{_package}.backends.base").BaseTaskBackend
# The backport has kept the older name.
InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
Task = _base.Task
TaskContext = _base.TaskContext
TaskError = _base.TaskError
TaskResult = _base.TaskResult
TaskResultStatus = _base.TaskResultStatus
normalize_json = _base.normalize_json
signals = importlib.import_module(f"{_package}.signals")
task_backends = tasks.task_backends
