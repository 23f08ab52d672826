"""The key ring of encrypted objects, and how new objects are sealed by the configs.

A key is a file of a directory, under its id. A Secret of Kubernetes that is mounted is such a
directory. A file is read whenever its key is used, once for a chunk or an object. So keys are added
without a restart, and a config that may change names the one that encrypts new objects.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from shoal.metadata.config_keys import check_key_id as key_id_reason
from shoal.server.config import InvalidConfig
from shoal.tiered.sealing import KEY_BYTES, KeyUnavailable, Sealer, create_envelope

if TYPE_CHECKING:
    from shoal.log.storage import Storage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

_DIRECTORY = "shoal.remote.encryption.key.directory"
_KEY_ID = "shoal.remote.encryption.key.id"
_CLEAR_SEGMENTS = "shoal.remote.encryption.clear.segments.enable"
_COMPRESSION = "shoal.remote.compression.type"
_REMEDY = f"Put {KEY_BYTES} random bytes into it as base64: openssl rand -base64 {KEY_BYTES}"


class KeyDirectory:
    """The keys in a directory; an empty path has none."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path

    def get_secret(self, key_id: str) -> bytes:
        """Return a key. Raises `KeyUnavailable`."""
        if not self._path:
            raise KeyUnavailable(
                f"the key {key_id!r} is needed, and there is no key ring. Set {_DIRECTORY} to the "
                "directory that has it"
            )
        path = f"{self._path}/{key_id}"
        reason = key_id_reason(key_id) if key_id else "an id is not empty"
        if reason is not None:
            raise KeyUnavailable(f"{key_id!r} is not the id of a key: {reason}")
        try:
            text = self._storage.read_file(path)
        except FileNotFoundError:
            raise KeyUnavailable(
                f"the key {key_id!r} is missing in {_DIRECTORY}: there is no file {path}. Put it "
                "back, if objects are encrypted with it, or create it"
            ) from None
        except OSError as error:
            raise KeyUnavailable(
                f"the key {key_id!r} is unreadable: {path}: {error.strerror}. Make the file "
                "readable for the broker"
            ) from None
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise KeyUnavailable(f"the key {key_id!r} in {path} is invalid. {_REMEDY}")
        return key


class Sealing:
    """How the objects of this broker are sealed."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        """Raises `InvalidConfig` if the configs name a key that the ring does not have."""
        self._cache = cache
        self._random_bytes = node.system.random_bytes
        self.keys = KeyDirectory(node.system.storage, node.config[_DIRECTORY])
        key_id = node.config[_KEY_ID]
        if key_id:
            try:
                self.keys.get_secret(key_id)
            except KeyUnavailable as error:
                raise InvalidConfig(f"{_KEY_ID}={key_id}: {error}.") from None

    @property
    def key_id(self) -> str:
        """The id of the key that encrypts new objects; empty without one."""
        return str(self._cache.image.broker_config[_KEY_ID])

    @property
    def accepts_clear(self) -> bool:
        """Whether segments may be in the clear of which the metadata does not say how they were
        copied."""
        return not self.key_id or bool(self._cache.image.broker_config[_CLEAR_SEGMENTS])

    def make_sealer(self, owner: bytes) -> Sealer | None:
        """Return what seals a new object, None if it stays as it is. Reads the key's file. Raises
        `KeyUnavailable`.

        `owner` names the object, which alone can be opened with the envelope."""
        compresses = self._cache.image.broker_config[_COMPRESSION] == "zstd"
        if key_id := self.key_id:
            envelope, cipher = create_envelope(self.keys, key_id, owner, self._random_bytes)
            return Sealer(compresses=compresses, envelope=envelope, cipher=cipher)
        return Sealer(compresses=True) if compresses else None
