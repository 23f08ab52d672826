"""Dead letters in a dead-letter topic, as Shoal or Kafka (KIP-1191) writes them, and redriven
records.

A dead letter is the failed record with `__dlq.errors.*` headers added, or these headers only. A
redriven record has the original key, value and headers without the errors. Its `__dlq.redrive.*`
headers state its history. Its timestamp is the time of the redrive: with the original timestamp,
retention might delete the record before it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.reasons import REASON_HEADERS, FailureReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shoal.record.offset_set import OffsetSet
    from shoal.record.records import Record, RecordHeaders

ERRORS = "__dlq.errors."
REDRIVE = "__dlq.redrive."
#: Headers of a redriven record: its dead letter as topic-partition@offset; the time of the redrive
#: in epoch milliseconds; the number of redrives; the original timestamp; the operator's note;
#: "true" if key or value were edited.
FROM, TIME, COUNT, ORIGINAL_TIMESTAMP, NOTE, EDITED = (
    REDRIVE + name for name in ("from", "time", "count", "original.timestamp", "note", "edited")
)
#: Names of reasons, with the start of `__dlq.errors.message`.
REASONS = {
    "rejected": "Offset rejected by client",
    "limit": "Offset delivery count exceeded",
    "corrupt": "Record batch is corrupt",
    "cancelled": "Offset cancelled",
}
OTHER = "other"


class DeadLetter(NamedTuple):
    """A dead letter: its own position and that of its source record.

    `client_id` and `member_id` belong to the last member that acquired the record. They are "" if
    the headers lack them.
    """

    topic: str
    partition: int
    record: Record
    source_topic: str
    source_partition: int
    source_offset: int
    group: str
    delivery_count: int
    message: str
    #: Time at which the letter was written, in epoch milliseconds.
    timestamp_ms: int
    member_id: str
    client_id: str
    #: What the last member said that gave a reason.
    failure: FailureReason = FailureReason()
    #: The header of KIP-1317; "" in letters of brokers that do not write it.
    disposition: str = ""

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def name(self) -> str:
        """The letter's name in the headers of a redriven record."""
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def reason(self) -> str:
        """One of `REASONS`, or `OTHER`."""
        matching = (word for word, begin in REASONS.items() if self.message.startswith(begin))
        return next(matching, OTHER)

    @property
    def is_bare(self) -> bool:
        """Whether the record itself was not copied, so that key and value are missing."""
        return self.record.key is None and self.record.value is None


def parse_dead_letter(topic: str, partition: int, record: Record) -> DeadLetter | None:
    """Return the dead letter in a record, or None if the record is not one.

    Anybody who may write to the topic can write such headers: see `redrive` for what counts.
    """
    errors = _read_errors(record.headers)
    try:
        source = int(errors["partition"]), int(errors["offset"])
        if not (0 <= source[0] < 1 << 31 and 0 <= source[1] < 1 << 63):
            return None
        return DeadLetter(
            topic,
            partition,
            record,
            errors["topic"],
            *source,
            errors.get("group", ""),
            int(errors.get("delivery.count", 0)),
            errors.get("message", ""),
            int(errors.get("timestamp", record.timestamp_ms)),
            errors.get("member", ""),
            errors.get("client.id", ""),
            _make_failure(errors),
            errors.get("disposition", ""),
        )
    except (KeyError, ValueError):
        return None


def read_failure(headers: RecordHeaders) -> FailureReason:
    """Return the reason in the headers of a dead letter, as far as they may be shown."""
    return _make_failure(_read_errors(headers))


def _read_errors(headers: RecordHeaders) -> dict[str, str]:
    return {
        name[len(ERRORS) :]: (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(ERRORS)
    }


def _make_failure(errors: Mapping[str, str]) -> FailureReason:
    return FailureReason(*(errors.get(name, "") for name in REASON_HEADERS))


def make_redriven_headers(
    letter: DeadLetter,
    original: Record,
    *,
    now_ms: int,
    note: str = "",
    is_edited: bool = False,
) -> RecordHeaders:
    """Return the headers of the redriven record; `original` is the failed record."""
    original_headers = [(n, v) for n, v in original.headers if not n.startswith((ERRORS, REDRIVE))]
    before = dict(original.headers).get(COUNT) or b"0"
    count = int(before) + 1 if before.isdigit() else 1
    added = {FROM: letter.name, TIME: now_ms, COUNT: count}
    if not letter.is_bare or original is not letter.record:
        added[ORIGINAL_TIMESTAMP] = original.timestamp_ms
    if note:
        added[NOTE] = note
    if is_edited:
        added[EDITED] = "true"
    return (*original_headers, *((name, str(value).encode()) for name, value in added.items()))


def get_redrive_source(headers: RecordHeaders) -> str:
    """Return the name of the letter that a record was redriven from; "" for other records."""
    return (dict(headers).get(FROM) or b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """A selection of dead letters. An empty field matches all of them.

    `exceptions` are classes, with or without their module. `headers` match original and error
    headers of the letter; None matches any value. Letters match if they were written at or after
    `since_ms` and before `until_ms`. `offsets` and `partitions` refer to the dead-letter topic.
    """

    reasons: Collection[str] = ()
    exceptions: Collection[str] = ()
    groups: Collection[str] = ()
    source_topics: Collection[str] = ()
    keys: Collection[bytes | None] = ()
    headers: Mapping[str, bytes | None] = field(default_factory=dict)
    since_ms: int | None = None
    until_ms: int | None = None
    partitions: Collection[int] = ()
    offsets: OffsetSet | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the filter selects a letter."""
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (not self.exceptions or self._has_exception(letter.failure.exception_class))
            and (not self.groups or letter.group in self.groups)
            and (not self.source_topics or letter.source_topic in self.source_topics)
            and (not self.keys or letter.record.key in self.keys)
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
            and (not self.partitions or letter.partition in self.partitions)
            and (self.offsets is None or letter.offset in self.offsets)
            and self._has_headers(letter.record.headers)
        )

    def _has_exception(self, exception: str) -> bool:
        return exception in self.exceptions or exception.rpartition(".")[2] in self.exceptions

    def _has_headers(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        if not self.headers:
            return True
        have = dict(headers)
        return all(
            name in have and (value is None or have[name] == value)
            for name, value in self.headers.items()
        )
