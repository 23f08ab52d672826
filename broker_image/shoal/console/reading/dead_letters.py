"""Dead letters of a topic, counted by reason, group, source and key; exceptions of all topics.

At most `LETTERS_MAX` records at the end of the topics are read, and what a `PageReadBudget` admits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError
from shoal.client.net.cluster import TopicPartition
from shoal.console.reading import records
from shoal.console.reading.payloads import MaskedPayload
from shoal.console.reading.read_budget import PageReadBudget
from shoal.console.reading.views import PLAIN
from shoal.dead_letters.dead_letter_topics import find_bounds, list_dead_letter_topics
from shoal.dead_letters.failure_groups import FailureGroup, FailureGroups
from shoal.dead_letters.records import (
    DeadLetter,
    DeadLetterFilter,
    parse_dead_letter,
    read_failure,
)
from shoal.dead_letters.redrive_ledger import RedriveLedger, count_redriven

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.client.client import Client
    from shoal.console.reading.views import RecordView
    from shoal.record.offset_set import OffsetSet

LETTERS_MAX = 5_000
SHOWN_MAX = 100
#: Keys that a page shows, those with the most letters.
KEYS_MAX = 10
#: Exceptions that a page counts, those with the most letters.
EXCEPTIONS_MAX = 30
CHUNK_BYTES = 1 << 20


class DeadLetterTopic(NamedTuple):
    """A topic of dead letters. `redriven` of its records were sent back; None for unknown."""

    name: str
    records: int
    redriven: int | None
    groups: list[str]


class DeadLetterKey(NamedTuple):
    """A key that may be shown, the number of its letters, and the place of one, PARTITION@OFFSET.

    The place stands for the key in addresses, which have no key of a record.
    """

    shown: bytes | None
    letters: int
    place: str


@dataclass(slots=True)
class DeadLetterPage:
    """Letters of one topic.

    `records` is the number of records in the topic, `read_dead_letter` how many were looked at. The
    counts are of all letters read, `make_keys` the newest that the filter matches. `reading` has
    what was not read because batches expand to too much.
    """

    topic: str
    records: int = 0
    read: int = 0
    matching: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    failures: FailureGroups = field(default_factory=FailureGroups)
    #: Letters by the class of the exception, as far as it may be shown.
    exceptions: Counter[str] = field(default_factory=Counter)
    #: Where the records of an exception's letters came from: a topic, or the number of topics.
    places: dict[str, str] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    keys: list[DeadLetterKey] = field(default_factory=list)
    keys_in_all: int = 0
    shown: list[DeadLetter] = field(default_factory=list)
    redriven: dict[int, OffsetSet] = field(default_factory=dict)
    reading: PageReadBudget = field(default_factory=PageReadBudget)

    def is_redriven(self, dead_letter: DeadLetter) -> bool:
        """Whether the ledger has the letter as sent back."""
        offsets = self.redriven.get(dead_letter.partition)
        return offsets is not None and dead_letter.offset in offsets


@dataclass(slots=True)
class ExceptionsPage:
    """The newest letters of all topics, counted by exception, as far as it may be shown.

    `records` is the number of records in the topics, `read` how many were looked at. `unread` has
    the topics that this client may not read.
    """

    exceptions: FailureGroups = field(default_factory=FailureGroups)
    records: int = 0
    read: int = 0
    unread: list[str] = field(default_factory=list)
    reading: PageReadBudget = field(default_factory=PageReadBudget)


async def list_topics(client: Client) -> list[DeadLetterTopic]:
    """Return the topics of dead letters by name. Raises `KafkaError`."""
    topics = []
    for name, groups in (await list_dead_letter_topics(client.admin)).items():
        bounds = await find_bounds(client.admin, name)
        records = sum(end - start for start, end in bounds.values())
        redriven: int | None = 0
        if records:  # Otherwise, nobody needs the ledger.
            try:
                sent = await RedriveLedger(client.cluster).read_redriven(name)
                redriven = count_redriven(sent, bounds)
            except ClientError:
                redriven = None
        topics.append(DeadLetterTopic(name, records, redriven, groups))
    return topics


async def read_dead_letters(
    client: Client, view: RecordView, topic: str, letter_filter: DeadLetterFilter
) -> DeadLetterPage:
    """Read the letters, with what may be shown of them.

    Raises `KafkaError` if the topic does not exist or may not be read.
    """
    limits = await find_bounds(client.admin, topic)
    result = DeadLetterPage(topic, sum(end - start for start, end in limits.values()))
    result.redriven = await read_redriven(client, topic)
    by_key = _ByKey()
    for partition, (start, end) in limits.items():
        first = max(start, end - LETTERS_MAX // len(limits))
        await _read_partition(client, letter_filter, result, by_key, partition, first, end)
    result.keys_in_all = len(by_key.counts)
    result.keys = await by_key.make_keys(view, topic)
    for group in await _list_exceptions(view, result.failures):
        result.exceptions[group.exception] = group.letters
        result.places[group.exception] = group.place
    result.shown.sort(key=lambda letter: (letter.timestamp_ms, letter.offset), reverse=True)
    del result.shown[SHOWN_MAX:]
    result.shown = [await mask_letter(view, letter) for letter in result.shown]
    return result


async def read_exceptions(client: Client, view: RecordView) -> ExceptionsPage:
    """Read the newest letters of each topic, the same number of each. Raises `KafkaError`."""
    result = ExceptionsPage()
    topics = await list_dead_letter_topics(client.admin)
    for topic in topics:
        failures = FailureGroups()
        try:
            bounds = await find_bounds(client.admin, topic)
            result.records += sum(end - start for start, end in bounds.values())
            share = max(1, LETTERS_MAX // len(topics) // len(bounds))
            for partition, (start, end) in bounds.items():
                first = max(start, end - share)
                async for letter in _iterate_letters(client, result.reading, partition, first, end):
                    result.read += 1
                    if letter is not None:
                        failures.add(letter)
        except ClientError:
            result.unread.append(topic)
        for group in await _list_exceptions(view, failures):
            result.exceptions.merge(group)
    return result


async def mask_letter(view: RecordView, letter: DeadLetter) -> DeadLetter:
    """Return a letter with what may be shown of its record and of its reason."""
    record = await view.prepare_record(letter.topic, letter.record)
    return letter._replace(record=record, failure=read_failure(record.headers))


async def _list_exceptions(view: RecordView, failures: FailureGroups) -> list[FailureGroup]:
    """Return the letters by exception, without names that are masked."""
    groups: list[FailureGroup] = []
    for group in failures.list_largest():
        letter = group.newest
        if len(groups) <= EXCEPTIONS_MAX and letter.failure.exception_class:
            shown = await mask_letter(view, letter)
            if shown.failure.exception_class == group.exception:
                groups.append(group)
    return groups


class _ByKey:
    """Letters counted by key, each with the oldest letter that was read, without its value."""

    def __init__(self) -> None:
        self.counts: Counter[bytes | None] = Counter()
        self._first: dict[bytes | None, DeadLetter] = {}

    def note(self, dead_letter: DeadLetter) -> None:
        key = dead_letter.record.key
        self.counts[key] += 1
        if key not in self._first:
            self._first[key] = dead_letter._replace(record=dead_letter.record._replace(value=None))

    async def make_keys(self, view: RecordView, topic: str) -> list[DeadLetterKey]:
        """Return the keys with the most letters that are not masked."""
        keys = []
        for key, count in self.counts.most_common(KEYS_MAX):
            letter = self._first[key]
            shown = (await view.prepare_record(topic, letter.record)).key
            if not isinstance(shown, MaskedPayload):
                keys.append(DeadLetterKey(shown, count, f"{letter.partition}@{letter.offset}"))
        return keys


async def find_same_key(client: Client, view: RecordView, topic: str, place: str) -> bytes | None:
    """Return the key of the letter at a place, PARTITION@OFFSET.

    Raises `KafkaError`, and `ValueError` with a sentence if there is none or its key is masked.
    """
    partition, sign, offset = place.partition("@")
    if not sign or not all(n.isdecimal() and len(n) < 19 for n in (partition, offset)):
        raise ValueError(f"A letter must be PARTITION@OFFSET, not {place!r:.60}.")
    dead_letter = await read_dead_letter(client, TopicPartition(topic, int(partition)), int(offset))
    if dead_letter is None:
        raise ValueError(f"{topic} has no letter at {place}.")
    shown = (await view.prepare_record(topic, dead_letter.record)).key
    if isinstance(shown, MaskedPayload):
        raise ValueError(f"Letters cannot be chosen by the key of {place}. {shown.why}")
    return dead_letter.record.key


async def _read_partition(
    client: Client,
    letter_filter: DeadLetterFilter,
    result: DeadLetterPage,
    by_key: _ByKey,
    partition: TopicPartition,
    first: int,
    end: int,
) -> None:
    mine: list[DeadLetter] = []
    async for dead_letter in _iterate_letters(client, result.reading, partition, first, end):
        result.read += 1
        if dead_letter is None:
            continue
        result.reasons[dead_letter.reason] += 1
        result.groups[dead_letter.group] += 1
        result.sources[dead_letter.source_topic] += 1
        by_key.note(dead_letter)
        result.failures.add(dead_letter)
        if letter_filter.matches(dead_letter):
            result.matching += 1
            mine.append(dead_letter)
            if len(mine) > 2 * SHOWN_MAX:
                del mine[:-SHOWN_MAX]
    result.shown += mine[-SHOWN_MAX:]


async def _iterate_letters(
    client: Client, reading: PageReadBudget, partition: TopicPartition, first: int, end: int
) -> AsyncIterator[DeadLetter | None]:
    """Yield the letters from offset `first` to before `end`; None for a record that is none."""
    if first >= end or reading.is_over:
        return
    async for fetched in client.fetcher.fetch_range(
        *partition, first, end - 1, chunk_bytes=CHUNK_BYTES
    ):
        async for record in reading.iterate_records(fetched):
            yield parse_dead_letter(*partition, record)
        if reading.is_over:
            return


async def read_redriven(client: Client, topic: str) -> dict[int, OffsetSet]:
    """Return the offsets that were redriven, by partition; empty if they cannot be read."""
    try:
        return await RedriveLedger(client.cluster).read_redriven(topic)
    except ClientError:
        return {}  # The client may not read the ledger. Letters are shown without this mark.


async def read_dead_letter(
    client: Client, partition: TopicPartition, offset: int
) -> DeadLetter | None:
    """Return one letter as it is, not masked; None if there is no dead letter at this offset.

    Raises `KafkaError`.
    """
    record = await records.read_record(client, PLAIN, partition, offset)
    return None if record is None else parse_dead_letter(*partition, record)
