"""The port `tiered.store` on obstore: S3, Google Cloud Storage, Azure, a directory, or memory.

obstore runs requests in threads of its own, so the event loop never blocks. Its retries are off
except within an upload of several parts: `RetryingStore` repeats whole operations.

Credentials come from the environment, from files or from workload identity, as in the clients of
the providers: for example `AWS_ACCESS_KEY_ID`, `AWS_WEB_IDENTITY_TOKEN_FILE` or
`GOOGLE_APPLICATION_CREDENTIALS`.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.tiered.store import (
    ObjectInfo,
    ObjectMissing,
    ObjectVersion,
    StoreConflict,
    StoreDenied,
    StoreError,
    StoreMisuse,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from shoal.record.batch import Buffer
    from shoal.tiered.store import ByteRange, ObjectSource

#: Size in bytes of a part of an upload. S3 allows 10,000 parts and at least 5 MiB.
PART_BYTES = 8 << 20
#: Parts of one upload that are sent at the same time. Each is in memory until it was sent.
PARTS_MAX = 2
#: Retries of one part.
_PART_RETRIES = 2
#: Longest request of the library. The deadlines of `RetryingStore` are shorter.
_REQUEST_MAX = timedelta(hours=1)
_SCHEMES = ("s3", "gs", "az", "file", "memory")
#: Parts of errors about an operation that the library or the server does not have.
_NOT_IMPLEMENTED = ("not yet implemented", "501 Not Implemented")
#: Uploads without a signature of their contents: S3 compares this checksum with what it received.
#: SHA-256, which the signature has, takes 0.56 s of CPU for a GB, and this one 0.05 s.
_CHECKSUM = {"unsigned_payload": "true", "checksum_algorithm": "crc64nvme"}
#: Answers of a server that does not know the checksum, or whose policy is that uploads are signed.
_REFUSED = ("400 Bad Request", "403 Forbidden", "501 Not Implemented")
_REMEDY = "Install the optional dependencies: pip install 'shoal[tiered]'."


class InvalidStore(Exception):
    """The store's URL or its options are wrong. The text says which, and what to do."""


def open_store(
    url: str, *, endpoint: str = "", region: str = "", payload_signing: str = "auto"
) -> LibraryStore:
    """Return the store of a URL such as `s3://bucket/prefix`. Sends no request.

    `endpoint` is the URL of a server other than the provider's, `region` that of an S3 bucket;
    empty uses the environment. `payload_signing` is a value of the config
    `shoal.remote.store.payload.signing`. Raises `InvalidStore`.
    """
    scheme = urlsplit(url).scheme
    if scheme not in _SCHEMES:
        accepted = ", ".join(f"{s}://" for s in _SCHEMES)
        raise InvalidStore(
            f"shoal.remote.store.url {url!r} has an unknown scheme. Use one of {accepted}."
        )
    try:
        import obstore.store
    except ImportError:
        raise InvalidStore(f"shoal.remote.store.url {url!r} needs obstore. {_REMEDY}") from None
    options: dict[str, Any] = {}
    if endpoint:
        options["endpoint"] = endpoint
    if region:
        options["region"] = region
    if scheme in ("file", "memory"):
        if options:
            raise InvalidStore(
                f"shoal.remote.store.url {url!r} is not on a network. Remove "
                "shoal.remote.store.endpoint and shoal.remote.store.region."
            )
        arguments: dict[str, Any] = {"mkdir": True} if scheme == "file" else {}
    else:
        arguments = {
            "config": options,
            "client_options": {
                "allow_http": endpoint.startswith("http://"),
                "timeout": _REQUEST_MAX,
            },
            "retry_config": {
                "max_retries": _PART_RETRIES,
                "retry_timeout": timedelta(seconds=30),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=2),
                    "base": 2,
                },
            },
        }
    try:
        store = obstore.store.from_url(url, **arguments)
        if scheme != "s3" or _should_sign(payload_signing, endpoint):
            return LibraryStore(store)
        arguments["config"] = options | _CHECKSUM
        return LibraryStore(obstore.store.from_url(url, **arguments), signing=store)
    except Exception as error:
        raise InvalidStore(
            f"shoal.remote.store.url {url!r} is refused: {get_first_line(error)}"
        ) from None


def _should_sign(payload_signing: str, endpoint: str) -> bool:
    """Whether uploads are signed with their contents."""
    if payload_signing == "auto":
        return endpoint.startswith("http://")
    return payload_signing == "always"


class LibraryStore:
    """One bucket through obstore, or the part of it below a prefix."""

    def __init__(self, store: Any, signing: Any = None) -> None:
        """`signing` is the same bucket whose uploads are signed with their contents, if those of
        `store` are not. It is used if the server refuses the first upload without."""
        import obstore

        self._obstore: Any = obstore
        self._store = store
        self._signing = signing
        #: Whether the store has conditional puts, as far as it is known.
        self.is_conditional = True

    async def put(self, key: str, source: ObjectSource) -> None:
        await self._upload(
            key,
            lambda store: self._obstore.put_async(
                store,
                key,
                _SourceBuffers(source),
                use_multipart=source.size > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_MAX,
            ),
        )

    async def _upload(self, key: str, put: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return `put(store)`."""
        signing = self._signing
        try:
            with _translate_errors(key):
                result = await put(self._store)
        except StoreError as error:
            if signing is None or not any(status in str(error) for status in _REFUSED):
                raise
            with _translate_errors(key):
                result = await put(signing)
            self._store = signing
        self._signing = None
        return result

    async def get(self, key: str) -> bytes:
        data, _ = await self.get_versioned(key)
        return data

    async def get_versioned(self, key: str) -> tuple[bytes, ObjectVersion]:
        with _translate_errors(key):
            response = await self._obstore.get_async(self._store, key)
            data = bytes(await response.bytes_async())
            meta = response.meta
        if len(data) != meta["size"]:
            raise StoreUnavailable(key, f"the store sent {len(data)} of {meta['size']} bytes")
        return data, ObjectVersion(meta["e_tag"], meta["version"])

    async def put_if(
        self, key: str, source: ObjectSource, version: ObjectVersion | None
    ) -> ObjectVersion:
        data = b"".join(source.iter_chunks())
        if self.is_conditional:
            mode = "create" if version is None else _to_condition(version)
            try:
                return await self._put(key, data, mode)
            except StoreMisuse:
                # Neither directories nor some S3 servers have them.
                self.is_conditional = False
        try:
            with _translate_errors(key):
                meta = await self._obstore.head_async(self._store, key)
            current = ObjectVersion(meta["e_tag"], meta["version"])
        except ObjectMissing:
            current = None
        if current != version:
            raise StoreConflict(key, "the object was replaced")
        return await self._put(key, data, "overwrite")

    async def _put(self, key: str, data: bytes, mode: Any) -> ObjectVersion:
        put = await self._upload(
            key, lambda store: self._obstore.put_async(store, key, data, mode=mode)
        )
        return ObjectVersion(put["e_tag"], put["version"])

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        with _translate_errors(key):
            buffers = await self._obstore.get_ranges_async(
                self._store, key, starts=[r.start for r in ranges], ends=[r.end for r in ranges]
            )
        # No copies: one of a chunk of 8 MB would keep the event loop for 1 to 7 ms.
        out: list[Buffer] = [memoryview(data) for data in buffers]
        for data, (start, end) in zip(out, ranges, strict=True):
            if len(data) != end - start:
                raise StoreUnavailable(
                    key, f"the store sent {len(data)} of {end - start} bytes from byte {start} on"
                )
        return out

    async def get_size(self, key: str) -> int:
        with _translate_errors(key):
            return (await self._obstore.head_async(self._store, key))["size"]

    async def list_objects(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        with _translate_errors(prefix):
            async for page in self._obstore.list(self._store, prefix, chunk_size=1000):
                for entry in page:
                    modified_ms = int(entry["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(entry["path"], entry["size"], modified_ms)

    async def list_children(self, prefix: str) -> Sequence[str]:
        with _translate_errors(prefix):
            listing = await self._obstore.list_with_delimiter_async(self._store, prefix)
        return [child.rstrip("/") for child in listing["common_prefixes"]]

    async def delete(self, keys: Sequence[str]) -> None:
        # Directories and some S3 servers report a missing object; then the others follow singly.
        try:
            with _translate_errors(keys[0] if keys else ""):
                await self._obstore.delete_async(self._store, list(keys))
        except ObjectMissing:
            for key in keys:
                with contextlib.suppress(ObjectMissing), _translate_errors(key):
                    await self._obstore.delete_async(self._store, key)


class _SourceBuffers:
    """A source as an iterable of buffers, which obstore reads in a thread of its own."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._source.iter_chunks())


def _to_condition(version: ObjectVersion) -> dict[str, str]:
    return {name: value for name, value in version._asdict().items() if value is not None}


@contextlib.contextmanager
def _translate_errors(key: str) -> Iterator[None]:
    """Raise the library's errors as those of the port."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError:
        raise ObjectMissing(key, "the object does not exist") from None
    except Exception as error:
        raise _classify(error)(key, get_first_line(error)) from None


def _classify(error: Exception) -> type[StoreError]:
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
    misuse = (
        exceptions.NotSupportedError,
        exceptions.InvalidPathError,
        exceptions.UnknownConfigurationKeyError,
        ValueError,
    )
    if isinstance(error, denied):
        return StoreDenied
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return StoreConflict
    # The library has no class for what it lacks itself, and what an S3 server answers with 501.
    if isinstance(error, misuse) or any(text in str(error) for text in _NOT_IMPLEMENTED):
        return StoreMisuse
    return StoreUnavailable


def get_first_line(error: Exception) -> str:
    """Return the first line of an error of the library, without the structure behind it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
