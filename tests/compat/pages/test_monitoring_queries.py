"""Alerts, dashboards and the page for Strimzi's dashboards query metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import dashboards
import metrics_page
import pytest
import yaml
from e2e.cluster.commands import run
from e2e.promtool import promtool

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "shoal"
RULES = yaml.safe_load((CHART / "rules" / "alerts.yaml").read_text())
STRIMZI = (ROOT / "docs" / "strimzi-metrics.md").read_text()
METRIC = re.compile(r"\b((?:kafka|shoal|process)_\w+)\b")
#: Labels that Prometheus gives to a target, or a query to its result.
OF_TARGETS = {"namespace", "pod", "job", "instance", "shoal_dev_cluster", "le"}


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """The labels of each metric that a broker or the operator serves."""
    found = {
        metric.name: set(metrics_page.find_labels(metric.name))
        for metric in metrics_page.parse_broker_metrics(metrics_page.scrape_broker())
    }
    found |= {metric.name: set(names) for metric, names in metrics_page.list_operator_metrics()}
    for name in [n for n in found if n.endswith(("Ms", "_seconds"))]:
        found |= {f"{name}_{suffix}": found[name] for suffix in ("bucket", "sum", "count")}
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each query."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"].replace("{OPERATOR}", "")
    for file in sorted((CHART / "dashboards").glob("*.json")):
        made = json.loads(file.read_text())
        for panel in made["panels"]:
            for target in panel["targets"]:
                yield f"{file.name}: {panel['title']}", target["expr"]


def variables() -> Iterator[tuple[str, str, str]]:
    """Yield the place, the query and the label of each variable of a dashboard."""
    for file in sorted((CHART / "dashboards").glob("*.json")):
        for one in json.loads(file.read_text())["templating"]["list"]:
            if one["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"])
                assert found is not None
                yield f"{file.name}: {one['name']}", found[1], found[2]


def problems(place: str, query: str, served: dict[str, set[str]]) -> list[str]:
    """Return the metrics and labels of a query that nothing serves."""
    plain = re.sub(r'"[^"]*"', '""', query)
    inner = re.findall(r"\{([^}]*)\}", plain)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", plain)
    labels = {name for text in inner for name in re.findall(r"(\w+)\s*(?:=|!)", text)}
    labels |= {name.strip() for text in grouped for name in text.split(",")}
    names = set(
        METRIC.findall(re.sub(r"\{[^}]*\}", "", re.sub(r"\b(?:by|on) \([^)]*\)", "", plain)))
    )
    assert names, f"{place}: {query} names no metric"
    wrong = [f"{place}: nothing serves {name}" for name in sorted(names - served.keys())]
    known = OF_TARGETS.union(*(served.get(name, set()) for name in names))
    return wrong + [f"{place}: no metric has {label}" for label in sorted(labels - known)]


def test_every_query_has_a_metric_and_its_labels(served: dict[str, set[str]]) -> None:
    found = [p for place, query in queries() for p in problems(place, query, served)]
    found += [p for place, query, _ in variables() for p in problems(place, query, served)]
    assert found == []
    assert len(list(queries())) > 50
    assert {label for _, _, label in variables()} == {"namespace", "shoal_dev_cluster"}


def test_a_query_that_nothing_serves_is_found(served: dict[str, set[str]]) -> None:
    wrong = 'sum by (grp) (shoal_share_partition_lag{topik="x"}) + shoal_no_such_metric'
    assert problems("here", wrong, served) == [
        "here: nothing serves shoal_no_such_metric",
        "here: no metric has grp",
        "here: no metric has topik",
    ]


def test_prometheus_reads_every_query(tmp_path: Path) -> None:
    """As recording rules, with values for the variables of Grafana."""
    values = {"$__rate_interval": "5m", "$namespace": ".*", "$cluster": ".*"}
    rules = []
    for number, (_, query) in enumerate(queries()):
        for name, value in values.items():
            query = query.replace(name, value)
        rules.append({"record": f"query:{number}", "expr": query})
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    run(promtool(), "check", "rules", file)


def test_the_dashboards_are_made_by_their_program() -> None:
    files = {file.stem: file.read_text() for file in (CHART / "dashboards").glob("*.json")}
    assert files == {name: dashboards.format_text(name) for name in dashboards.DASHBOARDS}, (
        "make docs"
    )


def test_every_metric_on_the_page_for_strimzi_is_served(served: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| .+ \|$", STRIMZI, re.MULTILINE)
    assert len(rows) > 20
    assert [ours for _, ours in rows if ours not in served] == []
    theirs = re.findall(r"`(\w+_\w+)`", STRIMZI.partition("## Kafka dashboard")[2])
    expected = (ROOT / "tests" / "compat" / "strimzi_metrics.txt").read_text().split()
    assert sorted(set(expected) - set(theirs)) == [], "names of Strimzi's dashboards"
