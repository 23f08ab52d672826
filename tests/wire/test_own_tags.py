"""Tagged fields that only our brokers use, and that every other reader ignores."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader
from kio.static.constants import EntityType
from shoal.coordinator.share.backoff import Delay
from shoal.protocol import codec, length_check
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import WireError
from shoal.server.share.persister import build_delay_entries, parse_delays

WRITE, READ = ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE
WAITS = [Delay(3, 5, 1, 1_700_000_000_000), Delay(9, 9, 2, 1_700_000_000_500)]


def written(*waits: Delay) -> dict[str, Any]:
    batch = {"first_offset": 3, "last_offset": 5, "delivery_state": 0, "delivery_count": 1}
    row = {
        "partition": 1,
        "state_epoch": 2,
        "leader_epoch": 3,
        "start_offset": 4,
        "delivery_complete_count": 0,
        "state_batches": [batch],
        "delays": build_delay_entries(waits),
    }
    return {"group_id": "g", "topics": [{"topic_id": UUID(int=7), "partitions": [row]}]}


def test_a_state_that_is_written_contains_the_waits() -> None:
    for version in (0, 1):
        data = bytes(codec.write_request(WRITE, version, written(*WAITS)))
        (topic,) = codec.read_request(WRITE, version, memoryview(data)).topics
        (row,) = topic.partitions
        assert topic.topic_id == UUID(int=7)
        assert parse_delays(row) == WAITS
        assert (row.start_offset, row.state_batches[0].last_offset) == (4, 5)


def test_a_state_that_is_read_contains_the_waits() -> None:
    row = {
        "partition": 1,
        "state_epoch": 2,
        "start_offset": 4,
        "delays": build_delay_entries(WAITS),
    }
    body = {"results": [{"topic_id": UUID(int=7), "partitions": [row]}]}
    data = bytes(codec.write_response(READ, 0, body))
    (found,) = codec.read_response(READ, 0, memoryview(data)).results[0].partitions
    assert parse_delays(found) == WAITS
    assert found.error_code == 0


def test_without_waits_the_bytes_are_kafkas() -> None:
    data = bytes(codec.write_request(WRITE, 1, written()))
    read = entity_reader(codec.load_entity(WRITE, 1, EntityType.request))
    (row,) = read(data, 0)[0].topics[0].partitions
    assert parse_delays(row) == []
    assert b"\xe8\x07" not in data


def test_unknown_tags_are_ignored() -> None:
    data = bytearray(codec.write_request(WRITE, 1, written(*WAITS)))
    at = data.index(b"\xe8\x07")
    data[at : at + 2] = b"\xe9\x07"
    (row,) = codec.read_request(WRITE, 1, memoryview(bytes(data))).topics[0].partitions
    assert parse_delays(row) == []
    assert row.start_offset == 4


def test_a_request_for_loans_has_no_partitions_for_other_readers() -> None:
    """So a broker without the field answers nothing, which is to lend nothing."""
    summary = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
    wish = {"name": b"acme", "held": 2, "wanted": 3, "rate_wanted": True}
    wishes = {
        "topic_id": UUID(int=7),
        "broker_id": 1,
        "broker_epoch": 5,
        "sequence": 9,
        "tenants": [wish],
    }
    data = codec.write_request(summary, 1, {"group_id": "g", "topics": [], "tenant_wishes": wishes})
    body = codec.read_request(summary, 1, memoryview(bytes(data)))
    assert {name: getattr(body.tenant_wishes.tenants[0], name) for name in wish} == wish
    assert (body.tenant_wishes.broker_epoch, body.tenant_wishes.sequence) == (5, 9)
    at = bytes(data).index(b"\xe8\x07")
    data[at : at + 2] = b"\xe9\x07"
    body = codec.read_request(summary, 1, memoryview(bytes(data)))
    assert not body.topics
    assert getattr(body, "tenant_wishes", None) is None
    loan = {"name": b"acme", "lent": 2, "kept": 1, "per_second": 2.5}
    answer = codec.write_response(summary, 1, {"results": [], "tenant_loans": [loan]})
    (found,) = codec.read_response(summary, 1, memoryview(bytes(answer))).tenant_loans
    assert {name: getattr(found, name) for name in loan} == loan


def test_a_forwarded_request_has_an_id() -> None:
    fields = {"request_data": b"r", "request_principal": None, "client_host_address": b"1234"}
    data = codec.write_request(ApiKey.ENVELOPE, 0, fields | {"request_id": b"i" * 16})
    found = codec.read_request(ApiKey.ENVELOPE, 0, memoryview(bytes(data)))
    assert (found.request_data, found.request_id) == (b"r", b"i" * 16)
    plain = codec.write_request(ApiKey.ENVELOPE, 0, fields)
    assert entity_reader(codec.load_entity(ApiKey.ENVELOPE, 0, EntityType.request))(
        bytes(plain), 0
    )[0]


def test_null_is_refused_beside_an_own_field() -> None:
    """A body with a field of ours has the same limits as one that kio reads."""
    wanted = {"group_id": "g", "topics": None, "key_ranges_wanted": True}
    for group_id in ("h", None):
        body = {"groups": [wanted, {"group_id": group_id, "topics": None}]}
        data = bytes(codec.write_request(ApiKey.OFFSET_FETCH, 9, body))
        if group_id is None:
            with pytest.raises(WireError, match="group_id is null"):
                codec.read_request(ApiKey.OFFSET_FETCH, 9, data)
        else:
            assert codec.read_request(ApiKey.OFFSET_FETCH, 9, data).groups[0].key_ranges_wanted

    key_range = {"finished": None, "last_hash": 1}
    part = {"partition_index": 0, "committed_metadata": None, "key_ranges": [key_range]}
    commit = {"group_id": "g", "topics": [{"name": "t", "partitions": [part]}]}
    data = bytes(codec.write_request(ApiKey.OFFSET_COMMIT, 9, commit))
    with pytest.raises(WireError, match="finished is null"):
        codec.read_request(ApiKey.OFFSET_COMMIT, 9, data)


def test_a_fetch_with_the_tag_of_a_newer_client_is_read_like_kafkas() -> None:
    """Fields of ours that have their default are no reason to read a body in our way."""
    asked = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 9, "key_hash_version": 2}
    body = {"max_wait_ms": 7, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [asked]}]}
    data = bytearray(codec.write_request(ApiKey.FETCH, 12, body))
    at = data.index(b"\xe9\x07\x01\x02")
    assert codec.read_request(ApiKey.FETCH, 12, bytes(data)).max_wait_ms == 7
    data[at : at + 2] = b"\xea\x07"
    read = codec.read_request(ApiKey.FETCH, 12, bytes(data))
    assert codec.to_ms(read.max_wait) == 7
    assert read.topics[0].partitions[0].fetch_offset == 5


def test_the_check_of_lengths_tells_which_parser_reads_a_body() -> None:
    """kio's parser knows the tags of Kafka's schema alone, at any depth."""

    def has_foreign_tags(api: ApiKey, version: int, data: bytes | bytearray) -> bool:
        layout = codec.build_struct(codec.load_entity(api, version, EntityType.request))
        return bool(length_check.compile_check(layout)(bytes(data), 0, 100)[2])

    ranges = [{"first_hash": 0, "last_hash": 1}]
    for own, expected in (({}, False), ({"key_ranges": ranges}, True)):
        asked = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 9} | own
        body = {"cluster_id": "c", "topics": [{"topic": "t", "partitions": [asked]}]}
        data = codec.write_request(ApiKey.FETCH, 12, body)  # The cluster's id is Kafka's tag 0.
        assert has_foreign_tags(ApiKey.FETCH, 12, data) is expected
    heartbeat = codec.write_request(ApiKey.BROKER_HEARTBEAT, 2, {"cordoned_log_dirs": ()})
    assert not has_foreign_tags(ApiKey.BROKER_HEARTBEAT, 2, heartbeat)
    # The tag of a newer client, in place of one of ours.
    data[data.index(b"\xe8\x07")] += 8
    assert has_foreign_tags(ApiKey.FETCH, 12, data)


def test_a_tag_that_is_larger_than_its_value_hides_no_other_one() -> None:
    """kio goes on at the end of the value, where this body has the tag 21."""
    data = bytes(codec.write_request(ApiKey.FETCH, 12, {"cluster_id": "c"}))
    cluster_id = b"\x01\x00\x02\x02c"
    assert data.endswith(cluster_id)
    larger = data.removesuffix(cluster_id) + b"\x02\x00\x03\x02c\x15\x00\x02\x02d"
    assert codec.read_request(ApiKey.FETCH, 12, larger).cluster_id == "d"
