"""The rate of redeliveries, from a counter that is lost with its broker."""

from shoal_operator.queues.group_monitor import RedeliveryRates


def test_a_rate_is_of_the_last_minute_and_more() -> None:
    rates = RedeliveryRates()
    rates.record("g", 10, 0)
    assert rates.compute_per_minute("g", 20, 59_999) is None
    assert rates.compute_per_minute("g", 40, 120_000) == 15
    assert rates.compute_per_minute("g", 40, 150_000) is None
    assert rates.compute_per_minute("g", 40, 180_000) == 0


def test_a_missing_or_reset_counter_gives_no_rate() -> None:
    rates = RedeliveryRates()
    rates.record("g", -1, 0)
    rates.record("g", -1, 1)
    assert rates.compute_per_minute("g", -1, 90_000) is None
    rates.record("g", 7, 100_000)
    assert rates.compute_per_minute("g", 7, 130_000) is None
    rates.record("g", 3, 140_000)
    assert rates.compute_per_minute("g", 5, 200_000) == 2
