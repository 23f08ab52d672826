"""Record batches that a broker must refuse, and valid ones for comparison, built field by field.

`CASES` is the table; each case names a topic's settings and the bytes to produce to it. Batches
carry a valid CRC unless a case says otherwise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import cramjam
from shoal.record.batch import BatchHeader, seal, sign
from shoal.record.compression import Compression, compress

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
CODECS = tuple(Compression)
#: Configs of the topics, by the names that cases use.
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "timed": {
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(HOUR_MS),
    },
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "stamped-timed": {
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(HOUR_MS),
    },
    "stamped-compacted": {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "compact",
    },
    "compacted-timed": {
        "cleanup.policy": "compact",
        "message.timestamp.before.max.ms": str(HOUR_MS),
    },
    "zstd": {"compression.type": "zstd"},
    "zstd-compacted": {"compression.type": "zstd", "cleanup.policy": "compact"},
    "zstd-stamped": {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
    "uncompressed": {"compression.type": "uncompressed"},
    "small": {"max.message.bytes": "1000"},
    "small-uncompressed": {"compression.type": "uncompressed", "max.message.bytes": "1000"},
}


class Case(NamedTuple):
    """A batch and the topic it goes to; `version` is that of the Produce request.

    Kafka refuses a whole request for a header that it cannot read, or for one transactional batch.
    So a case with `alone` is sent in a separate request.
    """

    name: str
    topic: str
    data: bytes
    version: int = 12
    alone: bool = False


def varint(value: int) -> bytes:
    """The zigzag varint of a number."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(
    offset_delta: int = 0,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"value",
    headers: bytes = b"\0",
    attributes: int = 0,
    size: int | None = None,
    tail: bytes = b"",
    key_field: bytes | None = None,
    value_field: bytes | None = None,
    timestamp_field: bytes | None = None,
    offset_field: bytes | None = None,
    size_field: bytes | None = None,
) -> bytes:
    """Encode a record. `…_field` replaces a field's bytes, length included; `size` is the announced
    length if that is wrong; `tail` follows the headers within the record."""
    body = b"".join(
        (
            bytes((attributes,)),
            varint(timestamp_delta) if timestamp_field is None else timestamp_field,
            varint(offset_delta) if offset_field is None else offset_field,
            _bytes(key) if key_field is None else key_field,
            _bytes(value) if value_field is None else value_field,
            headers,
            tail,
        )
    )
    head = varint(len(body) if size is None else size) if size_field is None else size_field
    return head + body


def _bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else varint(len(value)) + value


def headers(*pairs: tuple[bytes | None, bytes | None], count: int | None = None) -> bytes:
    """Encode the headers of a record; `count` is the announced number if that is wrong."""
    fields = [_bytes(part) for pair in pairs for part in pair]
    return varint(len(pairs) if count is None else count) + b"".join(fields)


def batch(
    *records: bytes,
    codec: int = 0,
    count: int | None = None,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    base_timestamp: int = NOW_MS,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = -1,
    tail: bytes = b"",
    raw: bytes | None = None,
) -> bytes:
    """Encode a batch around encoded records. `tail` follows them inside the compressed data; `raw`
    replaces the compressed data; `producer` is (id, epoch, base sequence)."""
    number = len(records) if count is None else count
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        2,
        0,
        attributes | codec,
        number - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        base_timestamp if max_timestamp is None else max_timestamp,
        *producer,
        number,
    )
    body = compress(codec, b"".join(records) + tail) if raw is None else raw
    return bytes(seal(header, body))


def resealed(data: bytes, **at: int) -> bytes:
    """Return the batch with bytes replaced (`b16=1` for byte 16) and its CRC computed again."""
    out = bytearray(data)
    for place, value in at.items():
        out[int(place[1:])] = value
    sign(out)
    return bytes(out)


def records(count: int, **options: object) -> list[bytes]:
    return [record(i, **options) for i in range(count)]  # type: ignore[arg-type]


def cases() -> list[Case]:
    """Return all cases."""
    found = [case._replace(alone=True) for case in _headers()]
    found += [*_compressed_lies(), *_keys(), *_settings(), *_versions()]
    for codec in CODECS:
        found += _structure(codec)
        found += _times(codec)
        found += _bytes_of_records(codec)
    names = [case.name for case in found]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    return found


def _structure(codec: Compression) -> Iterator[Case]:
    """Counts and offsets that differ from those of the records."""

    def case(name: str, data: bytes, topic: str = "plain") -> Case:
        return Case(f"{codec.name} {name}", topic, data)

    three = records(3)
    yield case("sound", batch(*three, codec=codec))
    yield case("one sound", batch(record(), codec=codec))
    yield case(
        "sound, headers and nulls",
        batch(
            record(0, key=None, headers=headers((b"a", b"1"), (b"b", None))),
            record(1, value=None, headers=headers((b"", b""))),
            codec=codec,
        ),
    )
    yield case("count 4 over 3 records", batch(*three, codec=codec, count=4))
    yield case("count 2 over 3 records", batch(*three, codec=codec, count=2))
    yield case("count 1000 over 1", batch(record(), codec=codec, count=1000))
    yield case("count 2147483647 over 1", batch(record(), codec=codec, count=2**31 - 1))
    yield case("no bytes", batch(codec=codec, count=3))
    yield case("no records", batch(codec=codec, count=0, last_offset_delta=0))
    yield case("no compressed bytes", batch(codec=codec, count=1, raw=b""))
    yield case("plain bytes", batch(codec=codec, count=3, raw=b"these are no records at all"))
    yield case(
        "garbled",
        batch(codec=codec, count=3, raw=_flipped(bytes(compress(codec, b"".join(three))))),
    )
    yield case("cut", batch(codec=codec, count=3, raw=bytes(compress(codec, b"".join(three)))[:-4]))
    yield case("tail in the data", batch(*three, codec=codec, tail=b"\0\0\0"))
    yield case(
        "tail behind the data",
        batch(codec=codec, count=3, raw=bytes(compress(codec, b"".join(three))) + b"\0\0\0"),
    )
    deltas = {
        "from 1": (1, 2, 3),
        "all 0": (0, 0, 0),
        "a gap": (0, 1, 7),
        "backwards": (2, 1, 0),
        "negative": (0, -1, 1),
        "huge": (0, 1, 2**31 - 1),
    }
    for name, offsets in deltas.items():
        data = batch(*(record(i) for i in offsets), codec=codec, count=3)
        yield case(f"offsets {name}", data)
    yield case("last offset delta 0 of 3", batch(*three, codec=codec, last_offset_delta=0))
    yield case("last offset delta 9 of 3", batch(*three, codec=codec, last_offset_delta=9))
    yield case("last offset delta -1", batch(*three, codec=codec, last_offset_delta=-1))
    early = batch(*three, codec=codec, max_timestamp=NOW_MS - 50)
    yield case("max timestamp below the records'", early)
    late = batch(*three, codec=codec, max_timestamp=NOW_MS + 50)
    yield case("max timestamp above the records'", late)
    absent = batch(*three, codec=codec, base_timestamp=-1, max_timestamp=-1)
    yield case("no timestamps", absent)
    yield case("base offset 5", batch(*three, codec=codec, base_offset=5))
    yield case("leader epoch 7", batch(*three, codec=codec, leader_epoch=7))


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes((data[middle] ^ 0xFF,)) + data[middle + 1 :]


def _bytes_of_records(codec: Compression) -> Iterator[Case]:
    """Faults within one record between two valid ones."""
    long = b"\x80\x80\x80\x80\x80\x00"
    faults = {
        "attributes 1": record(1, attributes=1),
        "attributes 255": record(1, attributes=255),
        "size one less": record(1, size=len(record(1)) - 2),
        "size one more": record(1, size=len(record(1))),
        "size 0": record(1, size=0),
        "size 3": record(1, size=3),
        "size -1": record(1, size=-1),
        "size 1000000": record(1, size=1_000_000),
        "size 2147483647": record(1, size=2**31 - 1),
        "size of five bytes, too wide": record(1, size_field=b"\xff\xff\xff\xff\xff\x01"),
        "size of six bytes": record(1, size_field=long),
        "size overlong": record(1, size_field=bytes((len(record(1)) * 2 - 2 | 0x80, 0x80, 0))),
        "size wraps": record(1, size_field=b"\xff\xff\xff\xff\x7f"),
        "offset of six bytes": record(1, offset_field=long),
        "offset overlong": record(1, offset_field=b"\x82\x80\x80\x00"),
        "timestamp of eleven bytes": record(1, timestamp_field=b"\x80" * 10 + b"\x00"),
        "timestamp of ten bytes": record(1, timestamp_field=b"\x80" * 9 + b"\x00"),
        "timestamp of ten bytes, too wide": record(1, timestamp_field=b"\x80" * 9 + b"\x02"),
        "timestamp overflows": record(1, timestamp_delta=2**63 - 1),
        "timestamp far below": record(1, timestamp_delta=-(2**62)),
        "key of -2": record(1, key_field=varint(-2)),
        "key of -1000": record(1, key_field=varint(-1000)),
        "key too long": record(1, key_field=varint(1000) + b"k"),
        "key of 2147483647": record(1, key_field=varint(2**31 - 1) + b"k"),
        "key of six bytes": record(1, key_field=long),
        "value of -2": record(1, value_field=varint(-2)),
        "value too long": record(1, value_field=varint(1000) + b"v"),
        "value one too long": record(1, value_field=varint(6) + b"value"),
        "value too short": record(1, value_field=varint(4) + b"value"),
        "value of 2147483647": record(1, value_field=varint(2**31 - 1) + b"v"),
        "headers -1": record(1, headers=headers(count=-1)),
        "headers 1 of 0": record(1, headers=headers(count=1)),
        "headers 0 of 1": record(1, headers=headers((b"a", b"b"), count=0)),
        "headers 2 of 1": record(1, headers=headers((b"a", b"b"), count=2)),
        "headers 1000000": record(1, headers=headers(count=1_000_000)),
        "headers 2147483647": record(1, headers=headers(count=2**31 - 1)),
        "header key null": record(1, headers=headers((None, b"b"))),
        "header key of -2": record(1, headers=varint(1) + varint(-2) + _bytes(b"b")),
        "header key too long": record(1, headers=varint(1) + varint(99) + b"a"),
        "header key no UTF-8": record(1, headers=headers((b"\xff\xfe", b"b"))),
        "header value of -2": record(1, headers=varint(1) + _bytes(b"a") + varint(-2)),
        "header value too long": record(1, headers=varint(1) + _bytes(b"a") + varint(99) + b"b"),
        "no header count": record(1, headers=b""),
        "tail behind the headers": record(1, tail=b"\0\0"),
    }
    for name, fault in faults.items():
        data = batch(record(0), fault, record(2), codec=codec)
        yield Case(f"{codec.name} record: {name}", "plain", data)
    last = batch(record(0), record(1), record(2, size=20), codec=codec)
    yield Case(f"{codec.name} record: the last past the end", "plain", last)


def _headers() -> Iterator[Case]:
    """Faults that are visible in the batch header."""
    sound = batch(*records(3))
    yield Case("a wrong CRC", "plain", sound[:-1] + b"!")
    yield Case("magic 0", "plain", resealed(sound, b16=0))
    yield Case("magic 1", "plain", resealed(sound, b16=1))
    yield Case("magic 3", "plain", resealed(sound, b16=3))
    yield Case("magic 255", "plain", resealed(sound, b16=255))
    yield Case("two batches", "plain", sound + sound)
    yield Case("a batch and a half", "plain", sound + sound[:40])
    yield Case("a batch and three bytes", "plain", sound + b"abc")
    yield Case("a cut batch", "plain", sound[:-3])
    yield Case("half a header", "plain", sound[:40])
    yield Case("nothing", "plain", b"")
    yield Case("ten bytes", "plain", sound[:10])
    yield Case("length 20", "plain", sound[:8] + (20).to_bytes(4, "big") + sound[12:])
    yield Case("length -1", "plain", sound[:8] + b"\xff" * 4 + sound[12:])
    yield Case("length 0", "plain", sound[:8] + bytes(4) + sound[12:])
    yield Case("codec 5", "plain", batch(*records(3), attributes=5))
    yield Case("codec 7", "plain", batch(*records(3), attributes=7))
    yield Case("control", "plain", batch(*records(3), attributes=0x20))
    yield Case("log append time", "plain", batch(*records(3), attributes=0x08))
    yield Case("log append time, one record", "plain", batch(record(), attributes=0x08))
    yield Case("log append time, zstd", "plain", batch(*records(3), attributes=0x08, codec=4))
    yield Case("delete horizon", "plain", batch(*records(3), attributes=0x40))
    yield Case("unknown attributes", "plain", batch(*records(3), attributes=0x0F80))
    yield Case("count 0", "plain", batch(*records(3), count=0, last_offset_delta=-1))
    yield Case("count -1", "plain", batch(*records(3), count=-1, last_offset_delta=2))
    yield Case("count -1 and delta -2", "plain", batch(*records(3), count=-1))
    yield Case("base offset -1", "plain", batch(*records(3), base_offset=-1))
    yield Case("base offset huge", "plain", batch(*records(3), base_offset=2**63 - 1))
    yield Case("idempotent", "plain", batch(*records(3), producer=(7, 0, 0)))
    yield Case("idempotent, compressed", "plain", batch(*records(3), producer=(7, 0, 0), codec=4))
    yield Case("idempotent, sequence -1", "plain", batch(*records(3), producer=(7, 0, -1)))
    yield Case("idempotent, epoch -1", "plain", batch(*records(3), producer=(7, -1, 0)))
    yield Case("idempotent, sequence 5", "plain", batch(*records(3), producer=(7, 0, 5)))
    wrong = batch(*records(3), count=4, producer=(7, 0, 0))
    yield Case("idempotent, wrong count", "plain", wrong)
    keyless = batch(record(0), record(1, key=None), producer=(7, 0, 0))
    yield Case("idempotent, no key", "compacted", keyless)
    yield Case("transactional, no producer", "plain", batch(*records(3), attributes=0x10))
    yield Case("transactional", "plain", batch(*records(3), attributes=0x10, producer=(7, 0, 0)))
    yield Case("producer id -2", "plain", batch(*records(3), producer=(-2, 0, 0)))
    yield Case("sequence without producer", "plain", batch(*records(3), producer=(-1, 0, 5)))


def _compressed_lies() -> Iterator[Case]:
    """Small batches that announce or expand to very large sizes."""
    gzipped = bytes(compress(Compression.GZIP, b""))[:9]
    yield Case(
        "70 bytes of gzip, 2147483647 records",
        "plain",
        batch(codec=1, count=2**31 - 1, raw=gzipped),
    )
    for codec in CODECS[1:]:
        bomb = [record(0, value=bytes(8 << 20)), record(1)]
        yield Case(f"{codec.name} expands to 8 MiB", "plain", batch(*bomb, codec=codec))
        wrong = batch(*bomb, codec=codec, count=3)
        yield Case(f"{codec.name} expands to 8 MiB, wrong count", "plain", wrong)
        keyless = [record(0, key=None, value=bytes(8 << 20)), record(1)]
        yield Case(
            f"{codec.name} expands to 8 MiB, no key", "compacted", batch(*keyless, codec=codec)
        )
        zeros = batch(codec=codec, count=1, raw=bytes(compress(codec, bytes(8 << 20))))
        yield Case(f"{codec.name} expands to 8 MiB of zeros", "plain", zeros)
        twice = batch(*records(3), codec=codec, tail=bytes(compress(codec, record(3))))
        yield Case(f"{codec.name} twice", "plain", twice)
        parts = bytes(compress(codec, record(0))) + bytes(compress(codec, record(1)))
        yield Case(f"{codec.name} in two frames", "plain", batch(codec=codec, count=2, raw=parts))
    block = _raw_snappy(b"".join(records(3)))
    yield Case("SNAPPY raw block", "plain", batch(codec=2, count=3, raw=block))
    yield Case("too large", "small", batch(record(value=bytes(2000))))
    yield Case("too large, wrong CRC", "small", batch(record(value=bytes(2000)))[:-1] + b"!")
    large = batch(record(value=bytes(2000)), codec=4)
    yield Case("too large once expanded", "small", large)
    yield Case("too large once expanded and stored so", "small-uncompressed", large)


def _raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _keys() -> Iterator[Case]:
    mixed = [record(i, key=None if i % 10 == 3 else b"k") for i in range(100)]
    for codec in CODECS:
        yield Case(f"{codec.name} 10 of 100 without a key", "compacted", batch(*mixed, codec=codec))
        none = batch(*records(2, key=None), codec=codec)
        yield Case(f"{codec.name} none has a key", "compacted", none)
        yield Case(f"{codec.name} an empty key", "compacted", batch(record(key=b""), codec=codec))
        faulty = batch(record(0, key=None), record(1, size=3), codec=codec)
        yield Case(f"{codec.name} no key, and a fault behind it", "compacted", faulty)
        wrong = batch(*records(3, key=None), codec=codec, count=4)
        yield Case(f"{codec.name} no key, and a wrong count", "compacted", wrong)
        yield Case(
            f"{codec.name} no key, recompressed", "zstd-compacted", batch(*mixed, codec=codec)
        )
        yield Case(f"{codec.name} no key, stamped", "stamped-compacted", batch(*mixed, codec=codec))
    yield Case(
        "all but one without a key",
        "compacted",
        batch(record(0), *(record(i, key=None) for i in range(1, 50))),
    )


def _times(codec: Compression) -> Iterator[Case]:
    old, new = -2 * HOUR_MS, 2 * HOUR_MS

    def case(
        name: str, *deltas: int, topic: str = "timed", max_timestamp: int | None = None
    ) -> Case:
        rows = [record(i, timestamp_delta=delta) for i, delta in enumerate(deltas)]
        latest = NOW_MS + max(deltas) if max_timestamp is None else max_timestamp
        data = batch(*rows, codec=codec, max_timestamp=latest)
        return Case(f"{codec.name} times: {name}", topic, data)

    yield case("all within", 0, 1, 2)
    yield case("one too old", 0, old, 2)
    yield case("two too new", new, 1, new)
    yield case("old and new", old, 0, new)
    yield case("all too old", old, old)
    yield case("hidden by max_timestamp", 0, new, 2, max_timestamp=NOW_MS)
    yield case("max_timestamp alone too new", 0, 1, max_timestamp=NOW_MS + new)
    yield case("default topic, one too new", 0, new, 2, topic="plain")
    yield case("default topic, hidden", 0, new, 2, topic="plain", max_timestamp=NOW_MS)
    yield case("default topic, max alone", 0, 1, topic="plain", max_timestamp=NOW_MS + new)
    yield case("default topic, very old", 0, -NOW_MS + 5, topic="plain")
    yield case("stamped topic, old and new", old, 0, new, topic="stamped-timed")
    yield case("negative", -NOW_MS - 5, 0, topic="plain")
    yield case("minus one", -NOW_MS - 1, 0, topic="timed")
    none = batch(*records(2), codec=codec, base_timestamp=-1)
    yield Case(f"{codec.name} times: none", "timed", none)
    both = batch(
        record(0, key=None),
        record(1, timestamp_delta=old),
        record(2, key=None, timestamp_delta=old),
        codec=codec,
    )
    yield Case(f"{codec.name} times: no key and too old", "compacted-timed", both)


def _settings() -> Iterator[Case]:
    three = records(3)
    for topic in ("zstd", "uncompressed", "stamped", "zstd-stamped"):
        for codec in CODECS:
            yield Case(f"{codec.name} to {topic}", topic, batch(*three, codec=codec))
            wrong = batch(*three, codec=codec, count=4)
            yield Case(f"{codec.name} to {topic}, wrong count", topic, wrong)
            gap = batch(record(0), record(5), codec=codec)
            yield Case(f"{codec.name} to {topic}, a gap", topic, gap)
            late = batch(*three, codec=codec, max_timestamp=NOW_MS + 50)
            yield Case(f"{codec.name} to {topic}, max timestamp", topic, late)
            odd = batch(record(0, attributes=3), codec=codec)
            yield Case(f"{codec.name} to {topic}, attributes", topic, odd)


def _versions() -> Iterator[Case]:
    mixed = batch(record(0), record(1, key=None))
    for version in (3, 4, 5, 7, 8, 9, 11):
        yield Case(f"no key, version {version}", "compacted", mixed, version)
    zstd = batch(*records(3), codec=Compression.ZSTD)
    for version in (3, 6, 7):
        yield Case(f"zstd, version {version}", "plain", zstd, version)


CASES = cases()
