"""Responses that reference their records have the same bytes as responses that copy them."""

import random

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.compiler import GATHER_SIZE_MIN, ScatterBuffer

FETCH, SHARE_FETCH = 1, 78


@pytest.mark.parametrize("size", [0, 1, GATHER_SIZE_MIN - 1, GATHER_SIZE_MIN, 1_000_000])
@pytest.mark.parametrize("api_key", [FETCH, SHARE_FETCH])
def test_gathered_is_flat(api_key: int, size: int) -> None:
    rng = random.Random(size)
    data = rng.randbytes(size)
    partition = {"partition_index": 1, "high_watermark": 5, "records": memoryview(data)}
    empty = {"partition_index": 2, "records": None}
    topics = [{"topic": "t", "partitions": [partition, empty, partition]}]
    for version in codec.find_known_versions(api_key):
        body = {"responses": topics}
        out = ScatterBuffer()
        codec.get_writer(api_key, version, EntityType.response)(out, body)
        parts = out.get_parts()
        assert b"".join(parts) == codec.write_response(api_key, version, body)
        by_reference = [p for p in parts if isinstance(p, memoryview)]
        assert len(by_reference) == (2 if size >= GATHER_SIZE_MIN else 0)
