"""Bounds of fields: what would fail later is refused when it is applied.

The schemas are checked without an API server. A rule in CEL with one `matches` is read from the
definition.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from kube.structural import CRDS, errors, schemas
from shoal.schedules.ticks import is_cron
from shoal_operator.cluster.decision import find_refusal
from shoal_operator.model import names
from shoal_operator.model.quantities import parse_duration_ms

INT64_MAX = 2**63 - 1
LONG = "99999999999999999h"
GROUP = {"cluster": "c", "startOffset": "ByDuration"}
CLUSTER = {"replicas": 1, "storage": {"size": "1Gi"}}
USER = {"cluster": "c", "authentication": {"type": "tls"}}


def wrong(kind: str, spec: dict[str, Any]) -> list[str]:
    return errors({"apiVersion": names.API_VERSION, "kind": kind, "spec": spec})


TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("ShareGroup", GROUP | {"startOffsetDuration": LONG}),
    ("ShareGroup", GROUP | {"deadLetters": {"topic": "dlq.a", "dropAfter": LONG}}),
    ("ShareConsumer", {"shareGroup": "g", "scaling": {"cooldown": LONG}}),
    ("ShareConsumer", {"shareGroup": "g", "scaling": {"scaleToZeroAfter": LONG}}),
    ("QueueTopic", {"cluster": "c", "partitions": 1, "localRetention": {"time": LONG}}),
    ("QueueCluster", CLUSTER | {"clientsCa": {"overlap": LONG}}),
    ("QueueUser", USER | {"secretTemplate": {"labels": {"team": "not a valid label!"}}}),
    ("QueueUser", USER | {"secretTemplate": {"labels": {"team": "ends-in-"}}}),
    (
        "QueueCluster",
        CLUSTER | {"template": {"pod": {"nodeSelector": {"disk": "very fast"}}}},
    ),
]


@pytest.mark.parametrize(("kind", "spec"), TOO_LARGE)
def test_values_that_would_fail_later_are_refused(kind: str, spec: dict[str, Any]) -> None:
    assert wrong(kind, spec)


def test_usual_values_are_allowed() -> None:
    for text in ("999999h99999999m99s", "1h30m", "90s", "8760h"):
        assert not wrong("ShareGroup", GROUP | {"startOffsetDuration": text})
    for label in ("", "a", "A-b_c.9"):
        assert not wrong("QueueUser", USER | {"secretTemplate": {"labels": {"team": label}}})


def test_the_longest_duration_fits_into_kafkas_milliseconds() -> None:
    """In every field. Its milliseconds are a signed number of 64 bits."""
    found = set()
    for file in CRDS.glob("*.yaml"):
        found |= set(re.findall(r"pattern: (\S*h\)\?\S*|\S*m\)\?\S*s\)\?\S*)", file.read_text()))
    assert found
    for pattern in found:
        digits = re.findall(r"\{1,(\d+)\}(h|m|s|ms)\b", pattern)
        assert digits, f"{pattern} has no bound"
        longest = "".join("9" * int(count) + unit for count, unit in digits)
        assert re.fullmatch(pattern.strip("'"), longest)
        assert parse_duration_ms(longest) < INT64_MAX / 100


def name_schema(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = schemas()[names.API_VERSION, kind]["properties"]["metadata"]
    return dict(found["properties"]["name"])


def test_the_names_of_resources_that_become_names_and_labels() -> None:
    """A QueueUser's name is a label, and a QueueCluster's begins the names of Services."""
    assert name_schema("QueueUser")["maxLength"] == 63
    of_cluster = name_schema("QueueCluster")
    assert of_cluster["maxLength"] == 40
    for name, allowed in (
        ("main", True),
        ("a1-b", True),
        ("my.cluster.v1", False),
        ("1st", False),
        ("ends-", False),
    ):
        assert bool(re.search(of_cluster["pattern"], name)) is allowed, name


def cron_rules() -> list[str]:
    """Return the expressions of all fields with a cron expression."""
    found = []
    for file in CRDS.glob("*.yaml"):
        for line in file.read_text().splitlines():
            rule = re.fullmatch(r' +- rule: self\.matches\(r"(.*)"\)', line)
            found += [rule[1]] if rule else []
    return found


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("0 2 * * 6", True),
        ("*/15 0-6,22 1,15 jan-mar MON-FRI", True),
        ("0 8 L * *", True),
        ("0 8 * * 5#2", True),
        ("59 23 31 12 7", True),
        ("99 3 * * *", False),
        ("0 24 * * *", False),
        ("0 0 32 * *", False),
        ("0 0 1 13 *", False),
        ("0 0 * * 8", False),
        ("every day at noon please", False),
        ("0 2 * * 6 2027", False),
    ],
)
def test_cron_expressions(text: str, allowed: bool) -> None:
    """The API server refuses those that the operator could not read."""
    rules = cron_rules()
    assert len(rules) == 4
    assert all(bool(re.search(rule, text)) is allowed for rule in rules)
    assert is_cron(text) is allowed


def cluster(**spec: Any) -> Any:
    listeners = [{"name": "plain", "port": 9092}]
    whole = CLUSTER | {"listeners": listeners, "metrics": {"port": 9404}} | spec
    return {"kind": "QueueCluster", "metadata": {"name": "c", "namespace": "n"}, "spec": whole}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        (
            {"maintenanceWindows": [{"schedule": "0 0 30 2 *", "duration": "1h"}]},
            "ScheduleNotValid",
            r"maintenanceWindows\[0\].schedule is '0 0 30 2 \*'.* or never comes\. Write it",
        ),
        (
            {"listeners": [{"name": "plain", "port": 9404}]},
            "ListenerNotAllowed",
            r"spec.listeners\[0\].port is 9404, which is spec.metrics.port. Choose another",
        ),
    ],
)
def test_what_a_schema_cannot_know_is_refused_with_its_remedy(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    assert find_refusal(cluster()) is None
    found = find_refusal(cluster(**spec))
    assert found is not None
    assert found.reason == reason
    assert re.search(words, found.message), found.message


def test_every_definition_is_valid_yaml() -> None:
    """Its rules contain quotes and backslashes."""
    for file in CRDS.glob("*.yaml"):
        assert yaml.safe_load(file.read_text())["kind"] == "CustomResourceDefinition"
