"""The ids of records that a topic stores once: the header `shoal.dedup.id`.

An id is any bytes. The broker compares the first 80 bits of its BLAKE2b, so an id costs the same
whatever its length (docs/adr/0162-cut-known-records-out-of-a-batch.md). A record with an empty or
null id has none. If a record has the header several times, the first one counts.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shoal.record import batch_validation
from shoal.record.records import iter_spans, read_headers

if TYPE_CHECKING:
    from shoal.record.batch import Buffer

DEDUP_ID = "shoal.dedup.id"
#: Bytes of an id's digest. Among 10 million ids, a new one has the digest of another with a
#: probability of 10^-17.
DIGEST_SIZE = 10
SALT_SIZE = 16

#: The name of the header as records encode it, behind its length as a zigzag varint.
_NAME = DEDUP_ID.encode()
_ENCODED = bytes((len(_NAME) << 1,)) + _NAME
_search = re.compile(re.escape(_ENCODED)).search


class DedupId(NamedTuple):
    """The id of one record: its offset delta in the batch, and its digest."""

    offset_delta: int
    digest: bytes


class _Salt:
    """The secret of this process's digests. Clients do not know it, so nobody makes ids whose
    digests are alike."""

    def __init__(self) -> None:
        self.value = os.urandom(SALT_SIZE)
        self._is_fixed = False

    def fix(self, stored: bytes) -> bytes:
        """Adopt a stored secret, unless the process has fixed its own before. Return its secret."""
        if not self._is_fixed and len(stored) == SALT_SIZE:
            self.value = stored
        self._is_fixed = True
        return self.value


_salt = _Salt()
#: Makes the digests those of an earlier process with the secret that it has stored.
fix_salt = _salt.fix


def digest_id(dedup_id: bytes) -> bytes:
    """Return what the broker compares of an id."""
    return blake2b(dedup_id, digest_size=DIGEST_SIZE, salt=_salt.value).digest()


def find_ids(body: Buffer, count: int) -> tuple[DedupId, ...]:
    """Return the ids of the `count` records in `body`, by their offset delta. Records without an
    id cost one search of the bytes. Raises `CorruptBatch`.

    `native/header_values.c` looks through the headers if it is compiled.
    """
    if _search(body) is None:
        return ()
    if batch_validation.native is not None:
        values = batch_validation.native.first_header_values(body, count, _NAME)
        if values is not None:
            return tuple([DedupId(delta, digest_id(value)) for delta, value in values])
    return find_ids_in_python(bytes(body), count)


def find_ids_in_python(records: bytes, count: int) -> tuple[DedupId, ...]:
    """Return what `find_ids` does, also where records have an unusual layout."""
    ids = []
    for span in iter_spans(records, count):
        # The bytes may be part of a value, so only the headers decide.
        if records.find(_ENCODED, span.value_at + max(span.value_size, 0), span.end) < 0:
            continue
        for name, content in read_headers(records, span):
            if name == DEDUP_ID:
                if content:
                    ids.append(DedupId(span.offset_delta, digest_id(content)))
                break
    return tuple(ids)
