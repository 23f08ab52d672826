"""The OPTIONS of a backend in the setting TASKS, checked."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from shoal.client.queues import reserved_groups
from shoal.client.settings import Settings
from shoal.worker.backoff import Backoff, Duration, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The longest time that a record can wait for its delivery (`share.delay.max.ms`).
DELAY_MAX_S = 7 * 86400


class InvalidBackendOption(ValueError):
    """Why OPTIONS cannot be used. The message names the option."""


@dataclass(frozen=True)
class Options:
    """OPTIONS of a backend."""

    #: Addresses of brokers, `HOST:PORT,...` or a list of them. Empty: those of the environment
    #: (`SHOAL_BOOTSTRAP_SERVERS`, ...).
    bootstrap_servers: str = ""
    #: Further client properties, such as `security.protocol`.
    client: Mapping[str, str] = field(default_factory=dict)
    #: The topic of a queue is this and the queue's name.
    topic_prefix: str = "tasks."
    #: The share group of the workers.
    group: str = "django-tasks"
    #: The topic for tasks that have failed for good; none if empty.
    dead_letters: str = ""
    #: How long `enqueue` waits until the task is stored.
    enqueue_timeout: Duration = "10s"
    # What follows is for each task, as in `Worker.handler`.
    concurrency: int = 8
    timeout: Duration = "5m"
    retries: int = 4
    backoff: Duration = "1s..5m"

    @classmethod
    def from_settings(cls, options: Mapping[str, Any]) -> Options:
        """Read OPTIONS. Raises `InvalidBackendOption`."""
        names = [each.name for each in fields(cls)]
        for name in options:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                hint = f"Did you mean {close[0]}?" if close else f"Known are {', '.join(names)}."
                raise InvalidBackendOption(f"there is no option {name!r}. {hint}")
        values = dict(options)
        servers = values.get("bootstrap_servers", "")
        if isinstance(servers, list | tuple):
            values["bootstrap_servers"] = ",".join(servers)
        made = cls(**values)
        made._check()
        return made

    def _check(self) -> None:
        for name in ("bootstrap_servers", "topic_prefix", "group", "dead_letters"):
            if not isinstance(getattr(self, name), str):
                raise InvalidBackendOption(f"{name} is {getattr(self, name)!r}, but not a text")
        for name, least in (("concurrency", 1), ("retries", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidBackendOption(
                    f"{name} is {value!r}; it is a number of at least {least}"
                )
        for name, parse in (
            ("enqueue_timeout", parse_seconds),
            ("timeout", parse_seconds),
            ("backoff", Backoff.from_text),
        ):
            try:
                parse(getattr(self, name))
            except (ValueError, TypeError) as error:
                raise InvalidBackendOption(f"{name}: {error}") from None
        if not self.group:
            raise InvalidBackendOption("group is empty. Name the share group of the workers.")
        if reserved_groups.is_reserved(self.group):
            raise InvalidBackendOption(f"{reserved_groups.format_refusal(self.group)}.")

    def read_client(self) -> Settings:
        """Return the settings of a client. Raises `ValueError`."""
        if not self.bootstrap_servers:
            return Settings.from_environment()
        return Settings.from_bootstrap(self.bootstrap_servers, self.client)

    def get_topic(self, queue: str) -> str:
        return self.topic_prefix + queue
