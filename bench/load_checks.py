"""Checks that decide what a load may count as work, and that fail it.

A record counts once: on its first delivery, without an error, and, if the load acknowledges it,
after the broker confirmed the acknowledgement. Anything else raises `LoadFailed`. The row then
shows the error instead of a rate.

The checks have two parts, so that they cost the timed clients little and both brokers the same:

* In the timed pass a client checks the error and the offset of each record. librdkafka verifies the
  CRC32C of each batch (`check.crcs`), as Java's consumer does by default.
* After it, `verify` in `load_setup.py` reads the topic again and compares the stored records with
  the sent ones: the number of records of each partition, and the sum of the CRC32C of their values.

The module imports no other part of the bench, so that its tests need no broker.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import time
from array import array
from itertools import repeat
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Distinct values of a load. A batch of 1 MB holds fewer values of 1 KB, so that no codec finds a
#: value twice in it. The number is prime, so that partitions get different values.
VALUES = 4093
#: Seconds without progress after which a load has lost records.
STALL_S = 60.0
_SEED = 17
_ERROR, _OFFSET, _PARTITION = map(methodcaller, ("error", "offset", "partition"))
_VALUE, _DELIVERIES = map(methodcaller, ("value", "delivery_count"))
#: The words of compressible values, similar to logs or events of a web shop.
_WORDS = (
    "order item price customer address street city country payment card invoice total tax status "
    "pending shipped delivered returned request response header agent session token browser mobile "
    "error warning retry timeout service checkout basket search product category colour size stock"
).split()


class LoadFailed(Exception):
    """A load found an error, or missing, repeated or changed records."""


def random_values(size: int) -> list[bytes]:
    """Return incompressible values, `size` bytes each."""
    draw = random.Random(_SEED)
    return [draw.randbytes(size) for _ in range(VALUES)]


def text_values(size: int) -> list[bytes]:
    """JSON events with ids, numbers and words, `size` bytes each.

    A batch of 1 MB shrinks to about half with lz4 and to a third with zstd, as logs and events do.
    """
    draw = random.Random(_SEED)
    return [_event(draw, number, size) for number in range(VALUES)]


def _event(draw: random.Random, number: int, size: int) -> bytes:
    head = (
        f'{{"id":"{draw.getrandbits(128):032x}","sequence":{number},'
        f'"timestamp":{1_700_000_000_000 + draw.randrange(10**9)},'
        f'"user":{draw.randrange(10**7)},"amount":{draw.randrange(10**6) / 100:.2f},"text":"'
    )
    parts = size // 30  # Four words and an id of eight digits have at least 30 bytes.
    words, ids = draw.choices(_WORDS, k=4 * parts), draw.randbytes(4 * parts).hex()
    text = " ".join(
        f"{' '.join(words[4 * n : 4 * n + 4])} {ids[8 * n : 8 * n + 8]}" for n in range(parts)
    )
    return (head + text)[: size - 2].ljust(size - 2).encode() + b'"}'


class Sent:
    """Records that a producer sent to a topic: count and sum of checksums by partition.

    An instance is librdkafka's delivery callback. `checksums` is None if the producer is an
    external tool that chooses the values.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.checksums: dict[int, int] | None = {}
        self.acknowledged = 0
        self.errors: list[str] = []

    def __call__(self, error: Any, _message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))

    def note(self, partition: int, value: bytes, times: int = 1) -> None:
        """Count a value that was given to the producer `times` times."""
        self.counts[partition] = self.counts.get(partition, 0) + times
        if self.checksums is not None:
            before = self.checksums.get(partition, 0)
            self.checksums[partition] = before + crc32c(value) * times

    def add(self, other: Sent) -> None:
        """Add the records of another producer of the same topic."""
        for partition, count in other.counts.items():
            self.counts[partition] = self.counts.get(partition, 0) + count
        if self.checksums is not None and other.checksums is not None:
            for partition, checksum in other.checksums.items():
                self.checksums[partition] = self.checksums.get(partition, 0) + checksum
        self.acknowledged += other.acknowledged

    def check(self, left: int) -> None:
        """Raise LoadFailed unless every record is acknowledged; `left` is what flush returned."""
        wanted = sum(self.counts.values())
        if self.errors:
            raise LoadFailed(f"{len(self.errors)} of {wanted} records failed: {self.errors[0]}")
        if left or self.acknowledged != wanted:
            raise LoadFailed(f"{self.acknowledged} of {wanted} records are acknowledged")


def sent_values(values: Sequence[bytes], partitions: Iterable[int]) -> Sent:
    """Return the sent records if record n had `values[n % len(values)]` and went to the n-th
    partition.
    """
    sent = Sent()
    checksums = [crc32c(value) for value in values]
    assert sent.checksums is not None
    for n, partition in enumerate(partitions):
        sent.counts[partition] = sent.counts.get(partition, 0) + 1
        sums = sent.checksums
        sums[partition] = sums.get(partition, 0) + checksums[n % len(checksums)]
    return sent


class Stall:
    """Raise LoadFailed when a count stays the same for `STALL_S` seconds."""

    def __init__(self, wanted: int, stall_s: float = STALL_S) -> None:
        self._wanted, self._stall_s = wanted, stall_s
        self._count, self._since = -1, time.monotonic()

    def look(self, count: int) -> None:
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        elif time.monotonic() - self._since > self._stall_s:
            raise LoadFailed(
                f"{count} of {self._wanted} records, and none more for {self._stall_s:.0f} s"
            )


def check_errors(messages: Iterable[Any]) -> None:
    """Raise LoadFailed if a message is an error."""
    error = next(filter(None, map(_ERROR, messages)), None)
    if error is not None:
        raise LoadFailed(f"a consumer got an error: {error}")


class Taken:
    """The records that one consumer received: `new` counts first deliveries, `redelivered` the
    others.

    The checks of a poll run as C loops: they cost 0.1 µs per record with one partition.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.new = self.redelivered = 0
        self._one = partitions == 1
        self._partitions, self._offsets = array("i"), array("q")

    def add(self, messages: Sequence[Any]) -> None:
        """Count a poll. Raises LoadFailed on an error."""
        check_errors(messages)
        self._note(messages)

    def _note(self, messages: Sequence[Any]) -> None:
        if not self._one:
            self._partitions.extend(map(_PARTITION, messages))
        self._offsets.extend(map(_OFFSET, messages))
        self.new += len(messages)

    def add_shared(self, messages: Sequence[Any]) -> None:
        """Count a share consumer's poll, whose records may be redelivered."""
        check_errors(messages)
        if messages and max(map(_DELIVERIES, messages)) > 1:
            first = [message for message in messages if _DELIVERIES(message) == 1]
            self.redelivered += len(messages) - len(first)
            messages = first
        self._note(messages)

    def check(self, counts: Mapping[int, int], *, gaps: bool = False) -> None:
        """Raise LoadFailed unless the offsets of each partition are 0 to its count, once each.

        With `gaps`, control records may be between them, as in a topic with transactions.
        """
        got: dict[int, list[int]] = {}
        partitions = repeat(0, self.new) if self._one else self._partitions
        for partition, offset in zip(partitions, self._offsets, strict=True):
            got.setdefault(partition, []).append(offset)
        for partition in sorted({*got, *counts}):
            offsets, count = sorted(got.get(partition, [])), counts.get(partition, 0)
            if repeated := len(offsets) - len(set(offsets)):
                raise LoadFailed(f"partition {partition}: {repeated} offsets came twice")
            if len(offsets) != count or (not gaps and offsets != list(range(count))):
                raise LoadFailed(f"partition {partition}: {len(offsets)} of {count} records came")


def check_acknowledged(
    partition: int, acknowledged: Mapping[int, bytes], found: Mapping[int, bytes]
) -> None:
    """Raise LoadFailed unless `found` has each acknowledged value at its offset."""
    for offset, value in sorted(acknowledged.items()):
        if offset not in found:
            raise LoadFailed(f"partition {partition}: acknowledged offset {offset} is lost")
        if crc32c(found[offset]) != crc32c(value):
            raise LoadFailed(f"partition {partition}: offset {offset} has another value")


class Confirmed:
    """The acknowledgements of one share consumer that the broker confirmed.

    An instance is librdkafka's acknowledgement commit callback.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[str] = []

    def __call__(self, offsets: Mapping[Any, Any], error: Any) -> None:
        if error is None:
            self.count += sum(map(len, offsets.values()))
        else:
            self.errors.append(str(error))

    def check(self, wanted: int) -> None:
        """Raise LoadFailed unless `wanted` acknowledgements are confirmed."""
        if self.errors:
            raise LoadFailed(f"an acknowledgement failed: {self.errors[0]}")
        if self.count != wanted:
            raise LoadFailed(f"{self.count} of {wanted} acknowledgements are confirmed")


def check_commit(results: Mapping[Any, Any]) -> None:
    """Raise LoadFailed unless a share consumer's `commit_sync` confirmed every partition.

    `results` maps each partition to None or its error. An empty mapping confirms nothing.
    """
    if not results:
        raise LoadFailed("commit_sync confirmed nothing")
    for partition, error in results.items():
        if error is not None:
            raise LoadFailed(f"commit_sync: partition {partition.partition}: {error}")


class Work:
    """Records that several processes completed, each counted once, in shared memory."""

    def __init__(self, partitions: int, records: int) -> None:
        self._records = records
        self._finished = multiprocessing.RawArray(ctypes.c_uint8, partitions * records)
        self._count = multiprocessing.Value("q", 0)
        self._repeated = multiprocessing.Value("q", 0, lock=False)

    @property
    def count(self) -> int:
        """The number of completed records."""
        return int(self._count.value)

    @property
    def repeated(self) -> int:
        """The number of records that were completed again, which do not count."""
        return int(self._repeated.value)

    def finish(self, messages: Iterable[Any]) -> list[Any]:
        """Count records whose acknowledgement is confirmed; return those that are new."""
        new = []
        with self._count.get_lock():
            for message in messages:
                place = message.partition() * self._records + message.offset()
                if self._finished[place]:
                    self._repeated.value += 1
                else:
                    self._finished[place] = 1
                    new.append(message)
            self._count.value += len(new)
        return new


class Stored:
    """The contents of a topic, as a verifying pass reads it."""

    def __init__(self, partitions: int = 1) -> None:
        self._taken = Taken(partitions)
        self._checksums: dict[int, int] = {}

    @property
    def count(self) -> int:
        return self._taken.new

    def add(self, messages: Sequence[Any]) -> None:
        self._taken.add(messages)
        sums = self._checksums
        for partition, checksum in zip(
            map(_PARTITION, messages), map(crc32c, map(_VALUE, messages)), strict=True
        ):
            sums[partition] = sums.get(partition, 0) + checksum

    def check(self, sent: Sent, *, gaps: bool = False) -> None:
        """Raise LoadFailed unless the topic holds exactly the sent records."""
        self._taken.check(sent.counts, gaps=gaps)
        if sent.checksums is None:
            return
        for partition, checksum in sent.checksums.items():
            if self._checksums.get(partition, 0) != checksum:
                raise LoadFailed(
                    f"partition {partition}: the checksum of its values is not the producer's"
                )
