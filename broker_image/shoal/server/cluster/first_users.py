"""Records that a new cluster begins with, beside its features: its first users (KIP-900).

`bootstrap.checkpoint` in the data directory of a new controller has them. The first controller that
leads writes them to the metadata log, in one batch with the features. Only controllers without a
formatted directory may get the file. It is removed once the cluster has begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.directory import META
from shoal.log.errors import CorruptLog
from shoal.metadata.records import MetadataRecord, decode, encode
from shoal.protocol.errors import WireError
from shoal.record.batch import CorruptBatch, check_crc, read_header
from shoal.record.records import build_batch, read_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.storage import Storage
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.cluster.metadata_log import MetadataLog
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

_FILE = "bootstrap.checkpoint"


def is_formatted(storage: Storage, directory: str) -> bool:
    """Return whether a data directory belongs to a cluster already."""
    return storage.exists(f"{directory}/{META}")


def write(
    storage: Storage, directory: str, records: Sequence[MetadataRecord], *, now_ms: int
) -> None:
    """Let the cluster of a new controller begin with `records`. Raises `OSError`."""
    storage.make_directory(directory)
    batch = build_batch([(now_ms, None, encode(record), ()) for record in records])
    storage.replace_file(_get_path(directory), batch, sync=True)


def read(storage: Storage, directory: str) -> list[MetadataRecord]:
    """Return the records of the file; none without a file. Raises `CorruptLog`."""
    if not storage.exists(_get_path(directory)):
        return []
    data = storage.read_file(_get_path(directory))
    try:
        if not check_crc(data, 0, read_header(data, 0)):
            raise CorruptBatch("its checksum is wrong")
        return [decode(record.value or b"") for record in read_records(data)]
    except (CorruptBatch, WireError) as error:
        raise CorruptLog(
            f"{_get_path(directory)} cannot be read: {error}. Remove it, and give --add-scram "
            "again if the cluster is new."
        ) from None


class FirstUsers:
    """Passes the records of the file to the controller of this node."""

    def __init__(self, node: Node, cache: MetadataCache, metadata: MetadataLog) -> None:
        self._storage = node.system.storage
        self._directory: str = node.config.data_dir
        self._cache = cache
        self._metadata = metadata
        self._is_needed = False

    @property
    def has_file(self) -> bool:
        """Whether a new cluster begins here with the records of the file."""
        return self._storage.exists(_get_path(self._directory))

    def start(self) -> None:
        """Read the file, before the controller decides. Raises `CorruptLog`."""
        records = self._metadata.first_records = read(self._storage, self._directory)
        if records:
            self._is_needed = True
            self._cache.subscribe(self._on_metadata_changed)

    def _on_metadata_changed(self, image: MetadataImage, _delta: MetadataDelta) -> None:
        if self._is_needed and image.features:
            self._storage.remove(_get_path(self._directory))
            self._is_needed = False


def _get_path(directory: str) -> str:
    return f"{directory}/{_FILE}"
