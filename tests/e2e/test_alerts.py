"""The chart's rules, dashboards and scraping as Helm renders them. Their content has tests in
tests/kube and tests/compat."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml
from e2e.release import CHART, KUBE

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

FILE = yaml.safe_load((CHART / "rules" / "alerts.yaml").read_text())
ON = "--set=metrics.prometheusRule.enabled=true"


def rules(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def rendered(cluster: Cluster, *words: str) -> dict[str, Any]:
    """The objects of the template for monitoring, by kind."""
    command = ("template", "shoal", CHART, KUBE, "--namespace=queues")
    shown = "--show-only=templates/monitoring.yaml"
    made = [m for m in yaml.safe_load_all(cluster.helm(*command, shown, *words).stdout) if m]
    return {m["kind"]: m for m in made}


def test_the_rules_are_those_of_the_file(cluster: Cluster) -> None:
    found = rules(rendered(cluster, ON)["PrometheusRule"]["spec"]["groups"])
    expected = rules(FILE["groups"])
    acts = expected["ShoalNoOperatorActs"]
    acts["expr"] = acts["expr"].replace("{OPERATOR}", "")
    assert found == expected


def test_an_operator_of_another_release_does_not_count(cluster: Cluster) -> None:
    both = rendered(cluster, ON, "--set=metrics.podMonitor.enabled=true")
    found = rules(both["PrometheusRule"]["spec"]["groups"])["ShoalNoOperatorActs"]
    assert found["expr"] == 'absent(shoal_operator_leader{namespace="queues"} == 1)'


def test_alerts_link_to_their_runbooks(cluster: Cluster) -> None:
    url = "https://docs.example/runbooks.html"
    made = rendered(cluster, ON, f"--set=metrics.prometheusRule.runbookUrl={url}")
    for name, rule in rules(made["PrometheusRule"]["spec"]["groups"]).items():
        assert rule["annotations"]["runbook_url"] == f"{url}#{name.lower()}"


def test_alerts_can_be_left_out(cluster: Cluster) -> None:
    words = "--set=metrics.prometheusRule.disabled={ShoalLockTooOld,ShoalDeadLetters}"
    found = rules(rendered(cluster, ON, words)["PrometheusRule"]["spec"]["groups"])
    assert rules(FILE["groups"]).keys() - found.keys() == {"ShoalLockTooOld", "ShoalDeadLetters"}


def test_grafana_gets_every_dashboard(cluster: Cluster) -> None:
    made = rendered(cluster, "--set=metrics.grafanaDashboard.enabled=true")["ConfigMap"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {file.name: file.read_text() for file in (CHART / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in made["data"].items()} == {
        name: json.loads(text) for name, text in files.items()
    }
    assert files.keys() == {
        f"shoal-{name}.json" for name in ("cluster", "key-ranges", "queues", "scaling")
    }


def test_scraping_keeps_the_labels_of_the_operator(cluster: Cluster) -> None:
    words = "--set=metrics.podMonitor.enabled=true,metrics.podMonitor.brokersPerPod=2"
    monitor = rendered(cluster, words)["PodMonitor"]["spec"]
    assert [e["port"] for e in monitor["podMetricsEndpoints"]] == ["metrics", "metrics-1"]
    assert all(e["honorLabels"] for e in monitor["podMetricsEndpoints"])
    assert monitor["podTargetLabels"] == ["shoal.dev/cluster"]
