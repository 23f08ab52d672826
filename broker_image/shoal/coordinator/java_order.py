"""The orders of Java's collections, where a client or a comparison with Kafka can see them.

`hash_string` maps a key to its partition of an internal topic. The task assignor of streams groups
breaks ties by the iteration order of `HashMap` and by the heap of `PriorityQueue`. Both are
specified by their implementation, which has been stable since Java 8.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

#: The number of buckets of a `HashMap` that is created without a capacity.
DEFAULT_CAPACITY = 16
#: The number of units that `_fold` adds up at once, the power of 31 between two of them, and the
#: low halves of as many slots of 64 bits.
_RUN = 512
_RUN_POWER = pow(31, _RUN, 1 << 32)
_LOW_HALVES = int.from_bytes(b"\0\0\0\0\xff\xff\xff\xff" * _RUN, "big")


def hash_string(text: str) -> int:
    """`String.hashCode`: a signed 32-bit integer."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    if len(encoded) > 2 * _RUN:
        units = _fold(encoded)
    else:
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _fold(encoded: bytes) -> tuple[int, ...]:
    """Return `_RUN` numbers with the same hash as the units of a long text.

    A name may have 32,767 characters, and a request hundreds of such names. The hash is a
    polynomial in 31, so the runs of a text are added up as long integers of 64 bits for each unit,
    a multiplication by 31 ** _RUN apart. This takes a tenth of the time of a loop.
    """
    size = -(-len(encoded) // (2 * _RUN)) * 8 * _RUN
    slots, begin = bytearray(size), size - 4 * len(encoded)
    slots[begin + 6 :: 8], slots[begin + 7 :: 8] = encoded[::2], encoded[1::2]
    total = 0
    for run_start in range(0, size, 8 * _RUN):
        run = int.from_bytes(slots[run_start : run_start + 8 * _RUN], "big")
        total = (total * _RUN_POWER & _LOW_HALVES) + run
    return struct.unpack(f">{_RUN}Q", total.to_bytes(8 * _RUN, "big"))


def sort_by_hash(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """Return the distinct keys in the iteration order of a `HashMap` into which they are put.

    `capacity` is the argument of the map's constructor. The order of keys in one bucket is that of
    their insertion. `HashMap` turns a bucket of nine keys into a tree, whose order may differ: with
    random keys, less than one map in a million has such a bucket.
    """
    distinct = list(dict.fromkeys(keys))
    buckets = _round_up(capacity)
    while len(distinct) > buckets * 3 // 4:
        buckets *= 2
    return _sort_by_bucket(distinct, buckets)


def sort_computed_by_hash(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """The same for a `HashMap` with which `computeIfAbsent` is called for each of the keys.

    It puts a new key before the others of its bucket. It makes room when it is called next, also
    with a key that the map has.
    """
    distinct: dict[str, None] = {}
    buckets = _round_up(capacity)
    for key in keys:
        if len(distinct) > buckets * 3 // 4:
            buckets *= 2
        distinct.setdefault(key)
    return _sort_by_bucket(list(reversed(distinct)), buckets)


def _round_up(capacity: int) -> int:
    """Return the number of buckets of a new map."""
    buckets = 1
    while buckets < capacity:
        buckets *= 2
    return buckets


def _sort_by_bucket(keys: list[str], buckets: int) -> list[str]:
    def get_bucket(key: str) -> int:
        value = hash_string(key) & 0xFFFFFFFF
        return (value ^ value >> 16) & (buckets - 1)

    return sorted(keys, key=get_bucket)


class PriorityQueue(Generic[T]):
    """`java.util.PriorityQueue`. Among items with equal keys, the heap decides which comes first.

    `key` is called when an item is added. The key of a queued item must not change.
    """

    def __init__(self, items: Iterable[T], key: Callable[[T], Any]) -> None:
        self._key = key
        self._heap: list[tuple[Any, T]] = []
        for item in items:
            self.add(item)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, item: T) -> None:
        heap, key = self._heap, self._key(item)
        index = len(heap)
        entry = (key, item)
        heap.append(entry)
        while index:
            parent = (index - 1) // 2
            if key >= heap[parent][0]:
                break
            heap[index] = heap[parent]
            index = parent
        heap[index] = entry

    def poll(self) -> T:
        """Remove and return the first item. Raises `IndexError` if the queue is empty."""
        heap = self._heap
        entry = heap.pop()
        if not heap:
            return entry[1]
        first, key, index, size = heap[0], entry[0], 0, len(heap)
        while index < size // 2:
            child = 2 * index + 1
            if child + 1 < size and heap[child][0] > heap[child + 1][0]:
                child += 1
            if key <= heap[child][0]:
                break
            heap[index] = heap[child]
            index = child
        heap[index] = entry
        return first[1]
