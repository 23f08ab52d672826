"""Dead letters of one topic: the newest ones, counted by reason, group and source topic.

At most `LETTERS_MAX` records and `LETTERS_BYTES_MAX` bytes at the end of the topic are read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.client.dead_letter_topics import bounds
from shoal.client.dead_letters import DeadLetter, DeadLetterFilter, parse_dead_letter
from shoal.client.errors import ClientError
from shoal.client.redrive_ledger import RedriveLedger
from shoal.console import records
from shoal.console.views import PLAIN

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.cluster import TopicPartition
    from shoal.console.views import View
    from shoal.record.offset_set import OffsetSet

LETTERS_MAX = 5_000
LETTERS_BYTES_MAX = 64 << 20
SHOWN_MAX = 100
CHUNK_BYTES = 1 << 20


@dataclass(slots=True)
class Letters:
    """Letters of one topic.

    `records` is the number of records in the topic, `read` how many were looked at. The counts are
    of all letters read, `shown` the newest that the filter matches.
    """

    topic: str
    records: int = 0
    read: int = 0
    matching: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    shown: list[DeadLetter] = field(default_factory=list)
    redriven: dict[int, OffsetSet] = field(default_factory=dict)

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
    for where, (start, end) in limits.items():
        first = max(start, end - LETTERS_MAX // len(limits))
        if first < end:
            await _read(client, wanted, found, where, first, end)
    found.shown.sort(key=lambda letter: (letter.timestamp_ms, letter.offset), reverse=True)
    del found.shown[SHOWN_MAX:]
    found.shown = [one._replace(record=await view.shown(topic, one.record)) for one in found.shown]
    return found


async def _read(
    client: Client,
    wanted: DeadLetterFilter,
    found: Letters,
    where: TopicPartition,
    first: int,
    end: int,
) -> None:
    size = 0
    mine: list[DeadLetter] = []
    async for fetched in client.fetcher.range(*where, first, end - 1, chunk_bytes=CHUNK_BYTES):
        for record in fetched.records():
            found.read += 1
            letter = parse_dead_letter(*where, record)
            if letter is None:
                continue
            found.reasons[letter.reason] += 1
            found.groups[letter.group] += 1
            found.sources[letter.source_topic] += 1
            if wanted.matches(letter):
                found.matching += 1
                mine.append(letter)
        del mine[:-SHOWN_MAX]
        size += len(fetched.data)
        if size >= LETTERS_BYTES_MAX:
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
