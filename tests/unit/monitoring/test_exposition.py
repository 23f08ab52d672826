"""Samples of Prometheus text: chosen metrics, label values as the broker wrote them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from shoal.monitoring.exposition import parse_samples

VALUES = [
    "plain",
    'q"uote',
    "back\\slash",
    "new\nline",
    "}",
    "# x",
    "a\u2028b",
    "c\x85d",
    'e="f",g',
]


def page() -> str:
    registry = CollectorRegistry()
    locked = Gauge("locked", "Records.", ["group"], registry=registry)
    Gauge("locked_other", "Not asked for.", registry=registry).set(3)
    done = Counter("done", "A counter.", ["group"], registry=registry)
    for number, value in enumerate(VALUES):
        locked.labels(value).set(number)
        done.labels(value).inc(number)
    return generate_latest(registry).decode()


def test_label_values_survive() -> None:
    found = list(parse_samples(page(), ["locked"], zeros=["locked"]))
    assert [s.labels["group"] for s in found] == VALUES
    assert [s.value for s in found] == list(range(len(VALUES)))
    assert {s.name for s in found} == {"locked"}


def test_zeros_are_left_out_unless_requested() -> None:
    found = list(parse_samples(page(), ["locked", "done_total"], zeros=["done_total"]))
    assert sum(s.name == "locked" for s in found) == len(VALUES) - 1
    assert sum(s.name == "done_total" for s in found) == len(VALUES)


def test_comments_and_timestamps_are_skipped() -> None:
    text = '# HELP b Some.\n# TYPE b gauge\nb{group="g",topic="t"} 2.5e1 1700000000\n'
    (found,) = parse_samples(text, ["b"])
    assert (found.labels, found.value) == ({"group": "g", "topic": "t"}, 25.0)


@pytest.mark.parametrize("line", ["locked{group=3} 1", 'locked{group="a"} one', "locked "])
def test_a_malformed_line_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"Invalid labels|could not convert"):
        list(parse_samples(line, ["locked"]))
