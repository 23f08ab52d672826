"""The chart's alerts, evaluated by Prometheus, and the labels that scraping must keep."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.cluster.commands import run
from e2e.promtool import promtool
from e2e.release import CHART, KUBE

if TYPE_CHECKING:
    from pathlib import Path

    from e2e.cluster.backend import Cluster

MINUTES = 40
GROUP = 'namespace="shop",share_group="workers"'
OPERATOR = 'shoal_operator_leader{namespace="queues",pod="%s"}'


@pytest.fixture(scope="module")
def rendered(cluster: Cluster) -> dict[str, Any]:
    """The PodMonitor and the PrometheusRule of the chart, by kind."""
    values = "metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true"
    command = ("template", "shoal", CHART, KUBE, "--namespace=queues", f"--set={values}")
    text = cluster.helm(*command, "--set=metrics.podMonitor.brokersPerPod=2").stdout
    made = [m for m in yaml.safe_load_all(text) if m]
    return {m["kind"]: m for m in made if m["kind"] in ("PodMonitor", "PrometheusRule")}


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


def group(lag: str, available: str, in_flight: str) -> list[dict[str, str]]:
    return [
        series(f"shoal_share_group_lag{{{GROUP}}}", lag),
        series(f"shoal_share_group_available{{{GROUP}}}", available),
        series(f"shoal_share_group_in_flight{{{GROUP}}}", in_flight),
    ]


#: Samples that Prometheus has, one a minute, and the alerts that fire after `MINUTES`.
CASES: dict[str, tuple[list[dict[str, str]], list[str]]] = {
    "one replica acts": ([series(OPERATOR % "a", "1x50"), series(OPERATOR % "b", "0x50")], []),
    "no replica holds the Lease": ([series(OPERATOR % "a", "0x50")], ["ShoalNoOperatorActs"]),
    "no operator runs": ([], ["ShoalNoOperatorActs"]),
    "the operator went away": ([series(OPERATOR % "a", "1x20 stale")], ["ShoalNoOperatorActs"]),
    "an operator elsewhere": (
        [series('shoal_operator_leader{namespace="other",pod="a"}', "1x50")],
        ["ShoalNoOperatorActs"],
    ),
    "no member consumes": (group("50x50", "50x50", "0x50"), ["ShoalShareGroupStuck"]),
    "members hold records and do not settle them": (
        group("50x50", "0x50", "50x50"),
        ["ShoalShareGroupStuck"],
    ),
    "records get done": (group("900-10x50", "900-10x50", "0x50"), []),
    "all records are due later, or delivery is paused": (group("50x50", "0x50", "0x50"), []),
    "the lag is no longer reported": (group("50x20 stale", "50x20 stale", "0x20 stale"), []),
    "reconciling fails": (
        [series('shoal_operator_errors_total{kind="QueueTopic"}', "0+5x50")],
        ["ShoalOperatorErrors"],
    ),
    "a store that fails on one broker": (
        [
            series('shoal_remote_failing_partitions{namespace="shop",pod="a"}', "2x50"),
            series('shoal_remote_failing_partitions{namespace="shop",pod="b"}', "0x50"),
        ],
        ["ShoalTieredStorageFailing"],
    ),
    "a missing object": (
        [series('shoal_remote_missing_objects{namespace="shop",pod="a"}', "0x20 1x30")],
        ["ShoalRemoteObjectsMissing"],
    ),
    "a store that works": (
        [
            series('shoal_remote_failing_partitions{namespace="shop",pod="a"}', "0x50"),
            series('shoal_remote_missing_objects{namespace="shop",pod="a"}', "0x50"),
        ],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_when_they_should(case: str, rendered: dict[str, Any], tmp_path: Path) -> None:
    given, expected = CASES[case]
    if not expected or expected != ["ShoalNoOperatorActs"]:
        given = [*given, series(OPERATOR % "acting", "1x50")]
    rules = rendered["PrometheusRule"]["spec"]
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    names = [rule["alert"] for g in rules["groups"] for rule in g["rules"]]
    assert names == [
        "ShoalOperatorErrors",
        "ShoalNoOperatorActs",
        "ShoalShareGroupStuck",
        "ShoalTieredStorageFailing",
        "ShoalRemoteObjectsMissing",
    ]
    # Prometheus lists firing alerts in ALERTS, without their texts.
    shown = [
        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in names if name in expected
    ]
    test = {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": shown,
            }
        ],
    }
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"rule_files": ["rules.json"], "tests": [test]}))
    run(promtool(), "test", "rules", file)


def test_alerts_link_to_their_runbooks(cluster: Cluster) -> None:
    url = "https://docs.example/runbooks.html"
    shown = "templates/monitoring.yaml"
    command = ("template", "shoal", CHART, KUBE, f"--show-only={shown}")
    on = "--set=metrics.prometheusRule.enabled=true"
    for value, wanted in ((url, "{}#{}"), ("", None)):
        given = f"--set=metrics.prometheusRule.runbookUrl={value}"
        rule = yaml.safe_load(cluster.helm(*command, on, given).stdout)
        rules = [r for g in rule["spec"]["groups"] for r in g["rules"]]
        assert len(rules) == 5
        for found in rules:
            link = wanted and wanted.format(url, found["alert"].lower())
            assert found["annotations"].get("runbook_url") == link


def test_scraping_keeps_the_labels_of_the_operator(rendered: dict[str, Any]) -> None:
    endpoints = rendered["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert [e["port"] for e in endpoints] == ["metrics", "metrics-1"]
    assert all(e["honorLabels"] for e in endpoints)
