"""`shoal.kombu`: messages as records, bindings, and names of topics."""

from __future__ import annotations

from typing import Any

import pytest
from shoal.kombu.bindings import is_match
from shoal.kombu.messages import decode, encode, is_expired
from shoal.kombu.names import make_log_name, make_topic_name
from shoal.record.records import Record


def make_message(body: bytes | str = b"{}", **parts: Any) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"delivery_info": {"exchange": "", "routing_key": "q"}},
    } | parts


def make_record(fields: dict[str, Any], timestamp_ms: int = 0) -> Record:
    return Record(0, timestamp_ms, None, fields["value"], fields["headers"])


def test_a_record_returns_the_message() -> None:
    message = make_message(headers={"id": "7", "eta": None}, properties={"correlation_id": "7"})
    decoded = decode(make_record(encode(message)), "q", "tag")
    assert decoded["body"] == b"{}"
    assert decoded["headers"] == {"id": "7", "eta": None}
    assert decoded["properties"]["correlation_id"] == "7"
    assert decoded["properties"]["delivery_tag"] == "tag"
    assert decoded["content-type"] == "application/json"


def test_a_record_of_another_producer_is_a_message() -> None:
    headers = (("content-type", b"application/json"), ("trace", b"1"))
    decoded = decode(Record(0, 0, None, b"[1]", headers), "q", "tag")
    assert decoded["content-type"] == "application/json"
    assert decoded["headers"]["trace"] == "1"
    plain = decode(Record(0, 0, None, None, ()), "q", "tag")
    assert (plain["body"], plain["content-type"]) == (b"", "application/data")
    assert plain["properties"]["delivery_info"] == {"exchange": "", "routing_key": "q"}


@pytest.mark.parametrize(
    ("eta", "due_ms"),
    [
        ("1970-01-01T00:00:01+00:00", b"1000"),
        ("1970-01-01T02:00:01.5+02:00", b"1500"),
        ("1970-01-01T00:00:01", b"1000"),
        ("soon", None),
        (None, None),
    ],
)
def test_an_eta_is_the_time_of_delivery(eta: str | None, due_ms: bytes | None) -> None:
    headers = dict(encode(make_message(headers={"eta": eta}))["headers"])
    assert headers.get("shoal.deliver.at") == due_ms


@pytest.mark.parametrize(
    ("priority", "header"),
    [(9, b"9"), (0, None), (None, None), (12, b"9"), (-1, None), ("x", None)],
)
def test_a_priority_is_a_header(priority: object, header: bytes | None) -> None:
    message = make_message(properties={"priority": priority})
    assert dict(encode(message)["headers"]).get("priority") == header


def test_an_expiration_counts_from_the_records_timestamp() -> None:
    message = make_message(properties={"expiration": "500"})
    record = make_record(encode(message), timestamp_ms=1_000)
    decoded = decode(record, "q", "tag")
    assert not is_expired(record, decoded, 1_499)
    assert is_expired(record, decoded, 1_500)
    assert not is_expired(record, decode(make_record(encode(make_message())), "q", "t"), 10**15)


@pytest.mark.parametrize(
    ("kind", "pattern", "key", "matches"),
    [
        ("direct", "a", "a", True),
        ("direct", "a.*", "a.b", False),
        ("fanout", "a", "b", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.*", "a", False),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "#", "", True),
        ("topic", "#.c", "a.b.c", True),
        ("topic", "*.b.#", "a.b", True),
        ("topic", "a+b", "aab", False),
    ],
)
def test_bindings_match_as_in_amqp(kind: str, pattern: str, key: str, matches: bool) -> None:
    assert is_match(kind, pattern, key) is matches


def test_names_that_topics_may_not_have() -> None:
    assert make_topic_name("celery") == "celery"
    assert make_topic_name("celery", "shop.") == "shop.celery"
    first, second = make_topic_name("mail@one"), make_topic_name("mail#one")
    assert first != second
    assert first.startswith("mail_one-")
    assert len(make_topic_name("q" * 300)) <= 249
    assert make_log_name("") == "kombu.exchange.default"
