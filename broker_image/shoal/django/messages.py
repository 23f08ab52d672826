"""A task as the value of a record: JSON, so that other programs can read and write it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shoal.worker import PayloadError
from shoal.worker.payloads import encode, make_decoder


@dataclass(frozen=True)
class TaskMessage:
    """What a worker needs of a task. `function` is its path, `mail.tasks.send_welcome`."""

    id: str
    function: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    #: The alias in TASKS.
    backend: str
    priority: int
    enqueued_at: datetime

    def to_bytes(self) -> bytes:
        return encode(self)


_convert = make_decoder(TaskMessage)


def decode(value: bytes | None) -> TaskMessage:
    """Read the value of a record. Raises `PayloadError`, with which it is a dead letter."""
    message: TaskMessage = _convert(value)
    if message.enqueued_at.tzinfo is None:
        raise PayloadError("enqueued_at has no time zone")
    return message


def to_priority(priority: int) -> int:
    """Return the priority of a record, 0 to 9, for that of a task, -100 to 100. Its sign is never
    lost: 0 is 4, any positive one is higher, and any negative one lower."""
    if priority > 0:
        return 5 + (priority - 1) * 5 // 100
    return 4 if priority == 0 else 3 - (-priority - 1) * 4 // 100


def now() -> datetime:
    return datetime.now(UTC)
