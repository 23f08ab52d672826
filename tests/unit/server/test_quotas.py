"""Client quotas: which are valid, which one applies to a client, and the throttle times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.metadata.client_quotas import (
    Entity,
    QuotaChange,
    QuotaFilterComponent,
    QuotaMatch,
    alter,
    describe,
    find_connection_rate,
    find_quota,
)
from shoal.metadata.delta import apply
from shoal.metadata.image import MetadataImage
from shoal.metadata.records import decode, encode
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.quota.rates import Rate, TokenBucket

Pair = tuple[str, str | None]


def after(image: MetadataImage, entity: list[Pair], **values: float | None) -> MetadataImage:
    """Return the image after the quotas of an entity are set, through encoded records."""
    decision = alter(image, [QuotaChange(entity, list(values.items()))])
    assert decision.response == [(ErrorCode.none, None)]
    records = [decode(encode(record)) for record in decision.records]
    return apply(image, records, offset=image.offset + 1, epoch=0)[0]


@pytest.mark.parametrize(
    ("entity", "values"),
    [
        ([], {"producer_byte_rate": 1.0}),
        ([("user", "")], {"producer_byte_rate": 1.0}),
        ([("host", "a")], {"producer_byte_rate": 1.0}),
        ([("user", "a"), ("user", "b")], {"producer_byte_rate": 1.0}),
        ([("user", "a"), ("ip", "10.0.0.1")], {"connection_creation_rate": 1.0}),
        ([("ip", "no address")], {"connection_creation_rate": 1.0}),
        ([("ip", "10.0.0.1")], {"producer_byte_rate": 1.0}),
        ([("user", "a")], {"connection_creation_rate": 1.0}),
        ([("user", "a")], {"produce_byte_rate": 1.0}),
        ([("user", "a")], {"producer_byte_rate": -1.0}),
        ([("user", "a")], {"producer_byte_rate": 1.5}),
        ([("user", "a")], {"producer_byte_rate": 1e30}),
        ([("user", "a")], {"request_percentage": float("nan")}),
    ],
)
def test_invalid_quotas_are_refused(entity: list[Pair], values: dict[str, float]) -> None:
    decision = alter(MetadataImage(), [QuotaChange(entity, list(values.items()))])
    ((code, message),) = decision.response
    assert code is ErrorCode.invalid_request
    assert message
    assert not decision.records


def test_duplicate_entities_and_keys_are_refused() -> None:
    one = QuotaChange([("user", "a")], [("producer_byte_rate", 1.0)])
    decision = alter(MetadataImage(), [one, one])
    assert [code for code, _ in decision.response] == [ErrorCode.none, ErrorCode.invalid_request]
    twice = QuotaChange([("user", "a")], [*one.values, *one.values])
    assert alter(MetadataImage(), [twice]).response[0][0] is ErrorCode.invalid_request


def test_only_changes_are_written() -> None:
    image = after(MetadataImage(), [("user", "a")], producer_byte_rate=5.0)
    same = QuotaChange([("user", "a")], [("producer_byte_rate", 5.0), ("consumer_byte_rate", None)])
    assert not alter(image, [same]).records
    other = QuotaChange([("user", "a")], [("producer_byte_rate", 6.0)])
    assert not alter(image, [other], validate_only=True).records
    image = after(image, [("user", "a")], producer_byte_rate=None)
    assert image.client_quotas == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "a")], ErrorCode.invalid_request),
        ([("user", 0, None)], ErrorCode.invalid_request),
        ([("user", 1, "a")], ErrorCode.invalid_request),
        ([("user", 2, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.invalid_request),
        ([("user", 0, "a"), ("ip", 1, None)], ErrorCode.invalid_request),
        ([("host", 0, "a")], ErrorCode.unsupported_version),
    ],
)
def test_invalid_filters(components: list[tuple[str, int, str | None]], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        describe({}, [QuotaFilterComponent(*c) for c in components], strict=False)
    assert refused.value.code is code


def test_the_most_specific_quota_applies() -> None:
    """Each level overrides the less specific ones; they are removed one by one (KIP-55)."""
    levels: list[tuple[list[Pair], tuple[str, str]]] = [
        ([("user", "u"), ("client-id", "c")], ("u", "c")),
        ([("user", "u"), ("client-id", None)], ("u", "c")),
        ([("user", "u")], ("u", "")),
        ([("user", None), ("client-id", "c")], ("u", "c")),
        ([("user", None), ("client-id", None)], ("u", "c")),
        ([("user", None)], ("u", "")),
        ([("client-id", "c")], ("", "c")),
        ([("client-id", None)], ("", "c")),
    ]
    image = MetadataImage()
    for at, (entity, _) in enumerate(levels):
        image = after(image, entity, producer_byte_rate=float(at + 1))
    for at, (entity, sharers) in enumerate(levels):
        found = find_quota(image.client_quotas, "producer_byte_rate", "u", "c")
        assert found == QuotaMatch(at + 1, sharers)
        assert find_quota(image.client_quotas, "consumer_byte_rate", "u", "c") is None
        image = after(image, entity, producer_byte_rate=None)
    assert find_quota(image.client_quotas, "producer_byte_rate", "u", "c") is None


def test_quotas_of_addresses() -> None:
    quotas: dict[Entity, dict[str, float]] = {
        (("ip", "10.0.0.1"),): {"connection_creation_rate": 3.0},
        (("ip", None),): {"connection_creation_rate": 7.0},
    }
    assert find_connection_rate(quotas, "10.0.0.1") == 3.0
    assert find_connection_rate(quotas, "10.0.0.2") == 7.0
    assert find_connection_rate({}, "10.0.0.2") is None


def test_a_rate_counts_as_all_windows_but_one_from_the_start() -> None:
    rate = Rate(11, 1000, 0)
    rate.add(1000, 0)
    assert rate.measure(0) == (100.0, 10_000)
    assert rate.compute_throttle_ms(100, 0) == 0
    assert rate.compute_throttle_ms(50, 0) == 10_000
    assert rate.measure(10_500) == (1000 / 10.5, 10_500)
    assert rate.measure(11_000)[0] == 0


@given(st.integers(50, 5000), st.lists(st.integers(1, 3000), min_size=30, max_size=60))
def test_a_client_that_waits_for_its_throttle_times_keeps_the_limit(
    limit: int, values: list[int]
) -> None:
    """The bound is the limit, one burst, and the error of the windows: eleven and the current one.
    A window that ends at a bad moment adds to that: a search found at most 1.6 times the limit."""
    rate, now_ms, total = Rate(11, 1000, 0), 0, 0
    for value in values:
        rate.add(value, now_ms)
        total += value
        now_ms += rate.compute_throttle_ms(limit, now_ms) + 1
    assert total <= limit * (now_ms / 1000 * 2 + 12) + max(values)


def test_a_bucket_fills_up_to_its_burst() -> None:
    bucket = TokenBucket(2, 10, 0)
    assert bucket.fill(2, 10, 0) == 0
    bucket.take(24)
    assert bucket.fill(2, 10, 0) == 2000
    assert bucket.fill(2, 10, 1999) > 0
    assert bucket.fill(2, 10, 2001) == 0
    bucket.fill(2, 10, 1_000_000)
    bucket.take(20)
    assert bucket.fill(2, 10, 1_000_000) > 0
