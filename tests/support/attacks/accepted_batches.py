"""Batches that Produce accepts, as strange as clients can make them, for tests of their readers."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from shoal.log.config import LogConfig
from shoal.log.validation import validate
from shoal.record.records import build_batch

NOW_MS = 1_800_000_000_000
#: Accepts every timestamp.
CONFIG = LogConfig(message_timestamp_after_max_ms=2**63 - 1)
_BYTES = st.none() | st.binary(max_size=4)
#: A key of a header: any bytes, as C and Go clients write them, and names with a meaning.
_HEADER_KEYS = st.one_of(
    st.binary(max_size=4).map(lambda key: key.decode(errors="surrogateescape")),
    st.sampled_from(["priority", "shoal.deliver.at", "shoal.deliver.after", "\x1b[2J", ""]),
)
#: The earliest timestamp that a topic accepts, and the latest.
_FIRST_MS, _LAST_MS = NOW_MS - (2**63 - 1), 2**63 - 1
_TIMESTAMPS_MS = st.integers(_FIRST_MS, _LAST_MS) | st.sampled_from(
    [NOW_MS, -1, 0, 1_700_000_000_000_000_000, _FIRST_MS, _LAST_MS]
)
_RECORDS = st.tuples(
    _TIMESTAMPS_MS, _BYTES, _BYTES, st.lists(st.tuples(_HEADER_KEYS, _BYTES), max_size=3)
)


class Accepted(NamedTuple):
    """A batch at offset 0 as the log stores it, and the records that it was built of."""

    data: bytes
    #: (timestamp_ms, key, value, headers) of each record.
    records: list[tuple]


def build(records: list[tuple], compression: str) -> Accepted:
    """Build a batch and let the log validate it. Raises `AppendRefused`."""
    data = bytes(build_batch(records, compression=compression))
    return Accepted(bytes(validate(data, CONFIG, NOW_MS).data), records)


batches = st.builds(
    build,
    st.lists(_RECORDS, min_size=1, max_size=4),
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
)
