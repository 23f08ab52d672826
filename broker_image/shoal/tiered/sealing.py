"""How an object's parts are sealed: compressed, encrypted, or both.

A part is a chunk of the log, or a section behind it. Each is sealed alone, so that an object is
read by ranges of chunks. A part is compressed by zstd if that makes it smaller, and then encrypted
by AES-256-GCM.

The data key encrypts the parts of one object, and no other. So the kind and the number of a part
are a nonce that occurs once with its key, and a part at another place is refused. A key of the key
ring encrypts the data key. The result, the envelope, is in the footer, with the id of the key of
the ring. The ring may get new keys: an old object needs the one that its envelope names.

An upload reads its parts again for each attempt, and gets the same bytes: the store never has two
objects under one key.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.record.batch import CorruptBatch, read_header
from shoal.record.compression import Compression, compress, decompress_into

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from shoal.record.batch import Buffer

#: Bytes of a key of AES-256.
KEY_BYTES = 32
#: Bytes of a nonce and of a tag of GCM.
_NONCE_BYTES, TAG_BYTES = 12, 16
#: The nonce of a part: its kind, and its number.
_PART_NONCE = struct.Struct(">IQ")
CHUNK, SECTION = 0, 1


class KeyUnavailable(Exception):
    """A key of the key ring is missing, invalid, or another one than before. The text names it,
    and has the remedy."""


class KeyRing(Protocol):
    """The keys that encrypt data keys, by their ids."""

    def get_secret(self, key_id: str) -> bytes:
        """Return a key. Raises `KeyUnavailable`."""


class Envelope(NamedTuple):
    """The data key of an object, encrypted by the key `key_id` of the ring with a nonce."""

    key_id: str
    nonce: bytes
    data_key: bytes


class SealedPart(NamedTuple):
    """A part as the object has it: its codec (`Compression`), and its bytes."""

    codec: int
    data: Buffer


def create_envelope(
    ring: KeyRing, key_id: str, owner: bytes, random_bytes: Callable[[int], bytes]
) -> tuple[Envelope, AESGCM]:
    """Draw a data key. Return its envelope and its cipher. Raises `KeyUnavailable`.

    `owner` names the object: the envelope fits no other one.
    """
    data_key, nonce = random_bytes(KEY_BYTES), random_bytes(_NONCE_BYTES)
    sealed = _build_cipher(ring.get_secret(key_id)).encrypt(nonce, data_key, owner)
    return Envelope(key_id, nonce, sealed), _build_cipher(data_key)


def open_envelope(ring: KeyRing, envelope: Envelope, owner: bytes) -> AESGCM:
    """Return the cipher of an object. Raises `KeyUnavailable`."""
    from cryptography.exceptions import InvalidTag

    secret = ring.get_secret(envelope.key_id)
    try:
        return _build_cipher(
            _build_cipher(secret).decrypt(envelope.nonce, envelope.data_key, owner)
        )
    except (InvalidTag, ValueError):
        raise KeyUnavailable(
            f"the key {envelope.key_id!r} in shoal.remote.encryption.key.directory is not the one "
            f"that encrypted {owner.decode()}. Put the former key back into its file: a new key "
            "needs another name"
        ) from None


def _build_cipher(key: bytes) -> AESGCM:
    # Imported here: it takes 5 MB, which a broker without encryption does not need.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


class Sealer:
    """Seals the parts of one object. Without a cipher they are not encrypted."""

    __slots__ = ("_cipher", "_compresses", "envelope")

    def __init__(
        self, *, compresses: bool, envelope: Envelope | None = None, cipher: AESGCM | None = None
    ) -> None:
        self._compresses = compresses
        self._cipher = cipher
        self.envelope = envelope

    def seal_chunk(self, number: int, data: Buffer) -> SealedPart:
        """Seal a chunk of the log. It is compressed unless its batches are: that of its first one
        stands for all."""
        compresses = read_header(data).compression == Compression.NONE
        return self._seal(_PART_NONCE.pack(CHUNK, number), data, compresses)

    def seal_section(self, kind: int, data: Buffer) -> SealedPart:
        return self._seal(_PART_NONCE.pack(SECTION, kind), data, compresses=True)

    def _seal(self, nonce: bytes, data: Buffer, compresses: bool) -> SealedPart:
        codec = Compression.NONE
        if compresses and self._compresses:
            smaller = compress(Compression.ZSTD, data)
            if len(smaller) < len(data):
                codec, data = Compression.ZSTD, smaller
        if self._cipher is not None:
            data = self._cipher.encrypt(nonce, data, None)
        return SealedPart(codec, data)


def unseal(
    data: Buffer, *, kind: int, number: int, codec: int, size: int, cipher: AESGCM | None
) -> Buffer:
    """Return the `size` bytes of a part before it was sealed. Raises `ValueError` if it has other
    bytes than were sealed, or is another part."""
    if cipher is not None:
        from cryptography.exceptions import InvalidTag

        try:
            data = cipher.decrypt(_PART_NONCE.pack(kind, number), data, None)
        except InvalidTag:
            raise ValueError("it fails its authentication") from None
    if codec != Compression.NONE:
        compressed, data = data, bytearray(size)
        try:
            with memoryview(data) as out:
                size = decompress_into(codec, compressed, out)
        except CorruptBatch as error:
            raise ValueError(f"it does not decompress: {error}") from None
    if len(data) != size:
        raise ValueError(f"it has {size} bytes instead of {len(data)}")
    return data
