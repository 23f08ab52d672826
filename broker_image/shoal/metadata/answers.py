"""Encoded responses about one image, which are sent again to requests that ask the same."""

from __future__ import annotations

from typing import Any

#: Bytes of all responses that are cached with one image, and of their keys. A response about one
#: partition has about 150 bytes, and one about 10,000 partitions 300 KB.
ANSWERS_BYTES_MAX = 8 << 20
#: What a key takes, in bytes, beside what its size depends on.
_KEY_BYTES = 500


class EncodedResponseCache:
    """Owns the responses, by what they depend on beside the image. The oldest are dropped first."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._answers: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: Any) -> Any:
        """Return the response with that key, or None."""
        entry = self._answers.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Any, answer: Any, size: int) -> None:
        """Cache a response, unless it is larger than the cache. `size` are its bytes, and those by
        which its key is larger than others."""
        cost = size + _KEY_BYTES
        if key in self._answers or cost > self._bytes_max:
            return
        while self._bytes + cost > self._bytes_max:
            _, dropped = self._answers.pop(next(iter(self._answers)))
            self._bytes -= dropped
        self._answers[key] = answer, cost
        self._bytes += cost
