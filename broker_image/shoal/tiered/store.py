"""The port through which tiered storage uses an object store.

Keys are strings with "/" between parts, relative to the bucket and prefix of the cluster. An object
is immutable: no key gets two different contents, except manifests, which are replaced as a whole.
`put` is atomic: readers see all bytes or no object. An error of `put` or `delete` leaves open
whether it took effect, and both may be repeated.

`server/tiered/object_store.py` implements the port with a library, and `retrying_store.py` in the
same place adds deadlines, retries and bounded concurrency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from shoal.record.batch import Buffer


class StoreError(Exception):
    """An operation failed. `key` names the object. `retriable` is False if it fails again until
    someone changes a permission, a bucket or a config."""

    retriable = True

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class StoreUnavailable(StoreError):
    """The store did not answer, or answered with an error that passes, such as 500 or 503."""


class StoreDenied(StoreError):
    """The store refused the credentials, or they lack a permission."""

    retriable = False


class ObjectMissing(StoreError):
    """The object does not exist."""

    retriable = False


class StoreMisuse(StoreError):
    """The store does not support the operation, or its configuration is wrong."""

    retriable = False


class StoreConflict(StoreError):
    """The object has another version than a conditional put requires."""

    retriable = False


class ObjectVersion(NamedTuple):
    """The contents that an object had at one time, as the store names them."""

    e_tag: str | None
    version: str | None


class ObjectSource(Protocol):
    """The contents of an object to put. It is read again for each attempt."""

    @property
    def size(self) -> int:
        """The size in bytes; before the first read about that, if it is sealed while it is read."""

    def iter_chunks(self) -> Iterator[Buffer]:
        """Iterate over the contents in pieces. May be called from another thread."""


class ObjectInfo(NamedTuple):
    """One object in a list: its key, and its size in bytes."""

    key: str
    size: int
    #: Time of the last write by the store's clock, in epoch milliseconds.
    modified_ms: int


class ByteRange(NamedTuple):
    """Bytes [start, end) of an object."""

    start: int
    end: int


class ObjectStore(Protocol):
    """One bucket, or the part of it below a prefix. All methods raise `StoreError`."""

    async def put(self, key: str, source: ObjectSource) -> None:
        """Write an object, or replace it. Atomic."""

    async def get(self, key: str) -> bytes:
        """Return a whole object, which must be small. Raises `ObjectMissing`."""

    async def put_if(
        self, key: str, source: ObjectSource, version: ObjectVersion | None
    ) -> ObjectVersion:
        """Replace a small object that still has `version`, or create it if `version` is None.
        Return the new version. Raises `StoreConflict`.

        A store without conditional puts compares the version before the put. Then a writer that
        comes between the two is not noticed.
        """

    async def get_versioned(self, key: str) -> tuple[bytes, ObjectVersion]:
        """Return a whole object, which must be small, and its version. Raises `ObjectMissing`."""

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range, in full. Raises `ObjectMissing`, and
        `StoreUnavailable` if the answer is shorter than a range."""

    async def get_size(self, key: str) -> int:
        """Return the size of an object in bytes. Raises `ObjectMissing`."""

    def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Iterate over the objects below `prefix`, a whole number of key parts, in no order."""

    async def list_children(self, prefix: str) -> Sequence[str]:
        """Return the prefixes one key part below `prefix` that have objects, without a slash at
        their ends."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Missing ones are ignored."""


class BytesSource:
    """Contents that are in memory."""

    __slots__ = ("_parts", "size")

    def __init__(self, *parts: Buffer) -> None:
        self._parts = parts
        self.size = sum(map(len, parts))

    def iter_chunks(self) -> Iterator[Buffer]:
        yield from self._parts
