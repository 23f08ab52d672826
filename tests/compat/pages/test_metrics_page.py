"""`docs/metrics.md` has what a running broker serves: names, types, meanings and labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import metrics_page
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.pages.console import Console, steps
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
#: Makes nearly every family have a sample: a share group with key order, delays, tenants and
#: dead letters.
SCENARIO = """```console
$ shoal topics create jobs dlq.jobs -c errors.deadletterqueue.group.enable=true
Created topic jobs ...
$ shoal configs set group workers share.ordering=key share.delay.max.ms=3600000 \\
    share.redelivery.backoff.ms=60000 share.auto.offset.reset=earliest \\
    errors.deadletterqueue.topic.name=dlq.jobs share.fairness.by=key
Set ...
$ printf 'a:1\\na:2\\na:3\\nb:1\\n' | shoal produce jobs -K: -H shoal.deliver.after=soon
Produced 4 records to jobs.
$ shoal produce jobs -H shoal.deliver.after=3000000 <<< later
Produced 1 record to jobs.
$ shoal share-consume jobs -g workers --ack reject -n 1
jobs-0 @0 delivery 1: 1
$ shoal configs set group workers share.delivery.paused=true
Set ...
$ shoal topics create small -c max.message.bytes=1
Created topic small ...
$ shoal produce small <<< 'too large'
...
$ shoal quotas set --client-defaults producer_byte_rate=1000000 request_percentage=5000 \\
    consumer_byte_rate=1000000
Set ...
$ shoal produce jobs <<< more
Produced 1 record to jobs.
$ shoal consume jobs -g readers --from-beginning -n 1
...
```
"""
#: Families without a sample in the scenario, by what they need.
WITHOUT_SAMPLE = {
    "a listener with TLS": r"shoal_listener_",
    "clients that log in": r"kafka_server_socket_server_metrics_\w*(authentication|expired)",
    "a full look-ahead": r"shoal_share_partition_look_ahead_full",
    "a letter that cannot be written": r"shoal_share_group_dead_letter_failures",
    "a client that is throttled": r"kafka_server_\w+_throttle_time_total",
    "a client with a quota, in the last seconds": r"kafka_server_\w+_(byte_rate|request_time)$",
    "a broker with tiered storage": r"kafka_server_BrokerTopicMetrics_(Build)?Remote|shoal_remote_",
    "several brokers": r"shoal_share_group_limit_loans",
    "a redrive": r"shoal_share_group_redriven_total",
}


def test_the_page_is_what_a_broker_serves() -> None:
    assert PAGE.read_text() == metrics_page.build_page(metrics_page.scrape_broker()), "make docs"


def test_the_labels_are_those_of_the_samples(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    broker = start_broker()
    with Console(tmp_path, broker.bootstrap) as console:
        console.try_all(steps(SCENARIO))
        seen = eventually(lambda: complete(broker.scrape()), what="a sample of each family")
    wrong = {
        name: f"serves {names}, the page has {metrics_page.find_labels(name)}"
        for name, names in seen.items()
        if names and names != set(metrics_page.find_labels(name))
    }
    assert not wrong


def complete(text: str) -> dict[str, set[str]]:
    """Return the labels of each family, once all but `WITHOUT_SAMPLE` have a sample."""
    found: dict[str, set[str]] = {m.name: set() for m in metrics_page.parse_broker_metrics(text)}
    sampled: set[str] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = next(n for n in (sample.name, family.name) if n in found)
            sampled.add(name)
            found[name] |= sample.labels.keys() - {"le"}
    missing = found.keys() - sampled
    wanted = re.compile("|".join(WITHOUT_SAMPLE.values()))
    assert {name for name in missing if not wanted.match(name)} == set()
    return found


def test_every_pattern_matches_a_metric() -> None:
    names = [m.name for m in metrics_page.parse_broker_metrics(PAGE_TEXT)]
    names += [metric.name for metric, _ in metrics_page.list_operator_metrics()]
    patterns = [p for p, _ in (*metrics_page.LABELS, *metrics_page.UNITS)]
    patterns += [section.pattern for section in metrics_page.SECTIONS]
    assert [p for p in patterns if not any(re.search(p, name) for name in names)] == []


def test_a_metric_without_a_section_is_found() -> None:
    with pytest.raises(ValueError, match="no section of SECTIONS has other_metric"):
        metrics_page.build_page("# HELP other_metric What it is.\n# TYPE other_metric gauge\n")


#: The names on the page, as a broker serves them.
PAGE_TEXT = "".join(
    f"# HELP {name} x\n# TYPE {name} {kind}\n"
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+)[^|]* \|", PAGE.read_text(), re.MULTILINE)
)
