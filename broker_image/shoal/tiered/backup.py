"""Objects of a cluster in the bucket, apart from segments: what a cluster is restored from.

An object has a header in JSON, and a body of record batches. The metadata is that of a snapshot of
the metadata log. The state of a partition of an internal topic is the last record of each key.
With a key of the key ring the body is encrypted, and the header has what opens it (`sealing`).
`<cluster>/backup/` has these objects, the lease that shows that the cluster is alive, and the
incarnation: the id of the last restore, which is in the metadata of the cluster that it made.
"""

from __future__ import annotations

import base64
import json
import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.record.batch import CorruptBatch, iter_headers
from shoal.record.control import ControlType, read_marker
from shoal.record.crc import crc32c
from shoal.record.records import build_batch, read_records
from shoal.tiered.sealing import SECTION, Envelope, open_envelope, unseal
from shoal.tiered.segment_object import DamagedObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shoal.record.batch import Buffer
    from shoal.tiered.sealing import KeyRing, Sealer

#: CRC-32C of all that follows it, format version, magic, size of the header.
_HEAD = struct.Struct(">IH6sI")
_CRC_END = 4
#: The format of a body in the clear, and of a sealed one, which earlier releases do not read.
_CLEAR, _SEALED = 0, 1
MAGIC = b"SHOALB"
#: The only part of an object that is sealed.
_BODY = 0
#: Records of a batch.
_BATCH_RECORDS = 200

Pair = tuple[bytes | None, bytes | None]


class Backup(NamedTuple):
    """The header and the body of an object. The body is as it is stored: `records` opens it."""

    fields: dict[str, Any]
    body: bytes

    @property
    def is_sealed(self) -> bool:
        """Whether the body is encrypted, so that nobody without a key of the ring wrote it."""
        return self.fields.get("sealed") is not None

    def open_records(self, ring: KeyRing, key: str) -> bytes:
        """Return the record batches of the object with a key, whose body may be sealed. Raises
        `DamagedObject`, `KeyUnavailable`."""
        sealed = self.fields.get("sealed")
        if sealed is None:
            return self.body
        try:
            nonce, data_key = (base64.b64decode(sealed[name]) for name in ("key_nonce", "data_key"))
            envelope = Envelope(sealed["key_id"], nonce, data_key)
            codec, size = sealed["codec"], sealed["size"]
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedObject(f"the header of {key} is invalid: {error!r}") from None
        cipher = open_envelope(ring, envelope, format_owner(key))
        try:
            opened = unseal(
                self.body, kind=SECTION, number=_BODY, codec=codec, size=size, cipher=cipher
            )
        except ValueError as error:
            raise DamagedObject(f"{key} is damaged: {error}") from None
        return bytes(opened)


def format_folder(cluster_id: str) -> str:
    """Return the prefix of a cluster's objects of this kind, without a slash at its end."""
    return f"{cluster_id}/backup"


def format_lease_key(cluster_id: str) -> str:
    return f"{format_folder(cluster_id)}/lease"


def format_incarnation_key(cluster_id: str) -> str:
    return f"{format_folder(cluster_id)}/incarnation"


def format_metadata_key(cluster_id: str) -> str:
    return f"{format_folder(cluster_id)}/metadata"


def format_state_key(cluster_id: str, topic: str, partition: int) -> str:
    """Return the key of the state of one partition of an internal topic."""
    return f"{format_folder(cluster_id)}/{topic}/{partition}"


def encode_incarnation(incarnation: str) -> bytes:
    """Return the contents of the object with the incarnation. It has a checksum: another one means
    that the bucket belongs to another cluster."""
    return encode({"incarnation": incarnation}, b"")


def decode_incarnation(data: Buffer) -> str:
    """Parse the contents of that object. Raises `DamagedObject`."""
    return str(decode(data).fields["incarnation"])


def format_owner(key: str) -> bytes:
    """Return what the envelope of the object with a key belongs to."""
    return f"the backup {key}".encode()


def encode(fields: Mapping[str, Any], body: bytes, sealer: Sealer | None = None) -> bytes:
    """Return the contents of an object. A sealer has the envelope of its `format_owner`."""
    version, header_fields = _CLEAR, dict(fields)
    if sealer is not None and sealer.envelope is not None:
        version, envelope, part = _SEALED, sealer.envelope, sealer.seal_section(_BODY, body)
        header_fields["sealed"] = {
            "key_id": envelope.key_id,
            "key_nonce": base64.b64encode(envelope.nonce).decode(),
            "data_key": base64.b64encode(envelope.data_key).decode(),
            "codec": int(part.codec),
            "size": len(body),
        }
        body = bytes(part.data)
    header = json.dumps(header_fields, sort_keys=True).encode()
    out = bytearray(_HEAD.pack(0, version, MAGIC, len(header)))
    out += header
    out += body
    out[:_CRC_END] = crc32c(memoryview(out)[_CRC_END:]).to_bytes(_CRC_END, "big")
    return bytes(out)


def decode(data: Buffer) -> Backup:
    """Parse the contents of an object. Raises `DamagedObject`."""
    if len(data) < _HEAD.size:
        raise DamagedObject(f"an object of {len(data)} bytes is not a backup")
    crc, version, magic, size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DamagedObject("the object is not a backup")
    if version > _SEALED:
        raise DamagedObject(
            f"the backup has format {version} of a newer release; this release reads {_SEALED}"
        )
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise DamagedObject("the backup has a wrong checksum")
    at = _HEAD.size + size
    return Backup(json.loads(bytes(data[_HEAD.size : at])), bytes(data[at:]))


def build_batches(pairs: Iterable[Pair]) -> Iterator[bytes]:
    """Yield (key, value) records as batches, in their order."""
    remaining = iter(pairs)
    while chunk := list(islice(remaining, _BATCH_RECORDS)):
        yield bytes(build_batch([(0, key, value, ()) for key, value in chunk]))


def read_pairs(body: Buffer) -> Iterator[Pair]:
    """Yield the (key, value) records of batches. Raises `DamagedObject`."""
    try:
        for at, header in iter_headers(body):
            if not header.is_control:
                for record in read_records(body, at):
                    yield record.key, record.value
    except CorruptBatch as error:
        raise DamagedObject(f"the backup has damaged records: {error}") from None


class CompactedView:
    """The last record of each key in one partition of an internal topic, replayed from its log.

    With `updates`, keys of two types differ in their first two bytes: a record whose key begins
    with `updates` changes what the last record of the other type has, and both count. Records of
    transactions count from their commit on.
    """

    def __init__(self, updates: bytes | None = None) -> None:
        self._updates = updates
        self._live: dict[bytes, list[tuple[bytes, bytes]]] = {}
        #: The records of open transactions, by producer id.
        self.open: dict[int, list[Pair]] = {}

    def replay(self, data: Buffer) -> None:
        """Apply whole batches. Raises `CorruptBatch`."""
        for at, header in iter_headers(data):
            if header.is_control:
                marker = read_marker(data, at)
                ended = self.open.pop(header.producer_id, [])
                if marker is not None and marker.control_type is ControlType.COMMIT:
                    self.put(ended)
                continue
            pairs: list[Pair] = [(record.key, record.value) for record in read_records(data, at)]
            if header.is_transactional:
                self.open.setdefault(header.producer_id, []).extend(pairs)
            else:
                self.put(pairs)

    def put(self, pairs: Iterable[Pair]) -> None:
        """Apply committed records."""
        for key, value in pairs:
            if key is None:
                continue
            name = key if self._updates is None else key[2:]
            if value is None:
                self._live.pop(name, None)
            elif self._updates is not None and key.startswith(self._updates):
                self._live.setdefault(name, []).append((key, value))
            else:
                self._live.pop(name, None)
                self._live[name] = [(key, value)]

    def __iter__(self) -> Iterator[Pair]:
        for records in self._live.values():
            yield from records
