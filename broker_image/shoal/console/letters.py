"""Dead letters of one topic: the newest ones, counted by reason, group, source topic and key.

At most `LETTERS_MAX` records at the end of the topic are read, and what a `Reading` admits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.cluster import TopicPartition
from shoal.client.dead_letter_topics import bounds
from shoal.client.dead_letters import DeadLetter, DeadLetterFilter, parse_dead_letter
from shoal.client.errors import ClientError
from shoal.client.redrive_ledger import RedriveLedger
from shoal.console import records
from shoal.console.payloads import Masked
from shoal.console.reading import Reading
from shoal.console.views import PLAIN

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.views import View
    from shoal.record.offset_set import OffsetSet

LETTERS_MAX = 5_000
SHOWN_MAX = 100
#: Keys that a page shows, those with the most letters.
KEYS_MAX = 10
CHUNK_BYTES = 1 << 20


class Key(NamedTuple):
    """A key that may be shown, the number of its letters, and the place of one, PARTITION@OFFSET.

    The place stands for the key in addresses, which have no key of a record.
    """

    shown: bytes | None
    letters: int
    place: str


@dataclass(slots=True)
class Letters:
    """Letters of one topic.

    `records` is the number of records in the topic, `read` how many were looked at. The counts are
    of all letters read, `shown` the newest that the filter matches. `reading` has what was not read
    because batches expand to too much.
    """

    topic: str
    records: int = 0
    read: int = 0
    matching: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    keys: list[Key] = field(default_factory=list)
    keys_in_all: int = 0
    shown: list[DeadLetter] = field(default_factory=list)
    redriven: dict[int, OffsetSet] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)

    def is_redriven(self, letter: DeadLetter) -> bool:
        """Whether the ledger has the letter as sent back."""
        done = self.redriven.get(letter.partition)
        return done is not None and letter.offset in done


async def letters(client: Client, view: View, topic: str, wanted: DeadLetterFilter) -> Letters:
    """Read the letters, with what may be shown of them.

    Raises `KafkaError` if the topic does not exist or may not be read.
    """
    limits = await bounds(client.admin, topic)
    found = Letters(topic, sum(end - start for start, end in limits.values()))
    found.redriven = await redriven(client, topic)
    by_key = _ByKey()
    for where, (start, end) in limits.items():
        first = max(start, end - LETTERS_MAX // len(limits))
        if first < end and not found.reading.is_over:
            await _read(client, wanted, found, by_key, where, first, end)
    found.keys_in_all = len(by_key.counts)
    found.keys = await by_key.shown(view, topic)
    found.shown.sort(key=lambda letter: (letter.timestamp_ms, letter.offset), reverse=True)
    del found.shown[SHOWN_MAX:]
    found.shown = [one._replace(record=await view.shown(topic, one.record)) for one in found.shown]
    return found


class _ByKey:
    """Letters counted by key, each with the oldest letter that was read, without its value."""

    def __init__(self) -> None:
        self.counts: Counter[bytes | None] = Counter()
        self._first: dict[bytes | None, DeadLetter] = {}

    def note(self, letter: DeadLetter) -> None:
        key = letter.record.key
        self.counts[key] += 1
        if key not in self._first:
            self._first[key] = letter._replace(record=letter.record._replace(value=None))

    async def shown(self, view: View, topic: str) -> list[Key]:
        """Return the keys with the most letters that are not masked."""
        found = []
        for key, count in self.counts.most_common(KEYS_MAX):
            one = self._first[key]
            shown = (await view.shown(topic, one.record)).key
            if not isinstance(shown, Masked):
                found.append(Key(shown, count, f"{one.partition}@{one.offset}"))
        return found


async def same_key(client: Client, view: View, topic: str, place: str) -> bytes | None:
    """Return the key of the letter at a place, PARTITION@OFFSET.

    Raises `KafkaError`, and `ValueError` with a sentence if there is none or its key is masked.
    """
    partition, sign, offset = place.partition("@")
    if not sign or not all(n.isdecimal() and len(n) < 19 for n in (partition, offset)):
        raise ValueError(f"A letter must be PARTITION@OFFSET, not {place!r:.60}.")
    letter = await read(client, TopicPartition(topic, int(partition)), int(offset))
    if letter is None:
        raise ValueError(f"{topic} has no letter at {place}.")
    shown = (await view.shown(topic, letter.record)).key
    if isinstance(shown, Masked):
        raise ValueError(f"Letters cannot be chosen by the key of {place}. {shown.why}")
    return letter.record.key


async def _read(
    client: Client,
    wanted: DeadLetterFilter,
    found: Letters,
    by_key: _ByKey,
    where: TopicPartition,
    first: int,
    end: int,
) -> None:
    mine: list[DeadLetter] = []
    async for fetched in client.fetcher.range(*where, first, end - 1, chunk_bytes=CHUNK_BYTES):
        async for record in found.reading.records(fetched):
            found.read += 1
            letter = parse_dead_letter(*where, record)
            if letter is None:
                continue
            found.reasons[letter.reason] += 1
            found.groups[letter.group] += 1
            found.sources[letter.source_topic] += 1
            by_key.note(letter)
            if wanted.matches(letter):
                found.matching += 1
                mine.append(letter)
        del mine[:-SHOWN_MAX]
        if found.reading.is_over:
            break
    found.shown += mine


async def redriven(client: Client, topic: str) -> dict[int, OffsetSet]:
    """Return the offsets that were redriven, by partition; empty if they cannot be read."""
    try:
        topic_id = (await client.cluster.topic(topic)).topic_id
        if topic_id is None:
            return {}
        states = await RedriveLedger(client.cluster).read(topic_id)
    except ClientError:
        return {}  # The client may not read the ledger. Letters are shown without this mark.
    return {partition: state.done for partition, state in states.items()}


async def read(client: Client, where: TopicPartition, offset: int) -> DeadLetter | None:
    """Return one letter as it is, not masked; None if there is no dead letter at this offset.

    Raises `KafkaError`.
    """
    record = await records.read(client, PLAIN, where, offset)
    return None if record is None else parse_dead_letter(*where, record)
