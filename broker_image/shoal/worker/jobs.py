"""A job: one delivery of one record, as a handler sees it and as the worker keeps it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shoal.client.share.acquired import SharedRecord
from shoal.record.records import Record
from shoal.worker.outcomes import JobLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
#: The header in which a producer sends the trace that a job belongs to (W3C Trace Context).
TRACEPARENT = "traceparent"


class State(IntEnum):
    """Where a delivery is. Only one that is RUNNING may get an outcome."""

    WAITING = 0
    RUNNING = 1
    #: It has an outcome, which is sent to the broker or about to be.
    ENDED = 2
    #: Its lock has ended: the broker may have delivered the record to another member.
    LOST = 3
    #: The worker stops: the record goes back undelivered when the session closes.
    RETURNED = 4


#: Looking up a member of an enumeration takes as long as a small function.
WAITING, RUNNING, ENDED = State.WAITING, State.RUNNING, State.ENDED
NEVER_S = float("inf")


class Hold:
    """The locks that one fetch got in a partition for records with the same number of deliveries,
    and the offsets that are accepted of them."""

    __slots__ = (
        "accepted",
        "delivery_count",
        "group",
        "leader_id",
        "partition",
        "session",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        leader_id: int,
        session: object,
        delivery_count: int = 1,
        group: str = "",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_id = leader_id
        #: The session that holds the locks (`ShareSession.hold_of`).
        self.session = session
        self.delivery_count = delivery_count
        #: The worker's share group; empty where no job needs it.
        self.group = group
        self.accepted: list[int] = []


class Delivery:
    """A locked record. Times are seconds of the monotonic clock. Every record needs one, so what is
    the same for many is in `hold`, and what is known later is set later."""

    __slots__ = (
        "cancelled",
        "deadline_s",
        "ended_s",
        "expires_s",
        "hold",
        "raw",
        "started_s",
        "state",
    )

    #: When the handler began, must end, and has returned or raised: set as soon as it does.
    started_s: float
    deadline_s: float
    ended_s: float

    def __init__(self, raw: Record, hold: Hold, expires_s: float) -> None:
        #: The record as it is in the log.
        self.raw = raw
        self.hold = hold
        #: When the lock ends unless it is renewed.
        self.expires_s = expires_s
        self.state = WAITING
        self.cancelled = False

    @classmethod
    def from_record(cls, record: SharedRecord, deadline_s: float, group: str) -> Delivery:
        """Return a delivery that runs, without a lock."""
        raw = Record(*record[2:-1])
        hold = Hold(record.topic, record.partition, -1, None, record.delivery_count, group)
        delivery = cls(raw, hold, NEVER_S)
        delivery.state, delivery.deadline_s = RUNNING, deadline_s
        return delivery

    @property
    def record(self) -> SharedRecord:
        """The record of the client. Most jobs end without it."""
        hold = self.hold
        return SharedRecord(hold.topic, hold.partition, *self.raw, hold.delivery_count)


def name_record(record: SharedRecord) -> str:
    """Return topic, partition and offset, as `images-0@17`."""
    return f"{record.topic}-{record.partition}@{record.offset}"


def read_trace_id(record: SharedRecord) -> str:
    """Return the trace in a record's `traceparent`; empty without one."""
    parent = dict(record.headers).get(TRACEPARENT) or b""
    parts = parent.decode(errors="replace").split("-")
    return parts[1] if len(parts) == 4 else ""


def describe(record: SharedRecord) -> dict[str, Any]:
    """Return the fields that a line of the log has about a record."""
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": None if record.key is None else record.key.decode(errors="backslashreplace"),
        "delivery_count": record.delivery_count,
        "trace_id": read_trace_id(record),
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


class Job(Generic[T]):
    """What a handler gets. It may be used from any thread.

    `payload` is the value as the handler's annotation asks for it, `value` its bytes.
    """

    def __init__(
        self,
        delivery: Delivery,
        timeout_s: float = float("inf"),
        on_renew: Callable[[float], None] | None = None,
    ) -> None:
        self._delivery = delivery
        #: The handler's `timeout`, which `renew` starts again.
        self.timeout_s = timeout_s
        self._on_renew = on_renew
        self.payload: T = delivery.raw.value  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Job {self.id}, delivery {self.delivery_count}>"

    @property
    def record(self) -> SharedRecord:
        """The record as it was delivered, with all its headers in order."""
        return self._delivery.record

    @property
    def id(self) -> str:
        """Topic, partition and offset, as `images-0@17`: the same at each delivery."""
        return name_record(self._delivery.record)

    @property
    def group(self) -> str:
        """The worker's share group."""
        return self._delivery.hold.group

    @property
    def topic(self) -> str:
        return self._delivery.hold.topic

    @property
    def partition(self) -> int:
        return self._delivery.hold.partition

    @property
    def offset(self) -> int:
        return self._delivery.raw.offset

    @property
    def key(self) -> bytes | None:
        return self._delivery.raw.key

    @property
    def value(self) -> bytes | None:
        return self._delivery.raw.value

    @property
    def timestamp(self) -> datetime:
        """When the record was produced."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            milliseconds=self._delivery.raw.timestamp_ms
        )

    @cached_property
    def headers(self) -> Mapping[str, bytes | None]:
        """The record's headers; the last one of each name."""
        return dict(self._delivery.raw.headers)

    @property
    def delivery_count(self) -> int:
        """The number of this delivery, 1 for the first."""
        return self._delivery.hold.delivery_count

    @property
    def trace_id(self) -> str:
        """The trace in the record's `traceparent`; empty without one."""
        return read_trace_id(self._delivery.record)

    @property
    def seconds_left(self) -> float:
        """The time until `deadline`; below 0 once it is over."""
        return self._delivery.deadline_s - time.monotonic()

    @property
    def deadline(self) -> datetime:
        """When the handler's `timeout` ends it."""
        return datetime.now(UTC) + timedelta(seconds=min(self.seconds_left, 10 * 365 * 86_400))

    @property
    def cancelled(self) -> bool:
        """Whether the worker has given this job up: no outcome of it counts anymore, it must end
        now, or somebody has cancelled it for the group. A function in a thread cannot be stopped,
        so a long one looks at this."""
        return self._delivery.cancelled

    def renew(self) -> None:
        """Start the handler's `timeout` again, from now. Raises `JobLost` if it is too late."""
        delivery = self._delivery
        if delivery.cancelled or delivery.state is not State.RUNNING:
            raise JobLost(f"job {self.id} no longer belongs to this worker")
        delivery.deadline_s = time.monotonic() + self.timeout_s
        if self._on_renew is not None:
            self._on_renew(delivery.deadline_s)
