"""docs/runbooks.md has a section for each alert of the chart."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
RULES = yaml.safe_load((ROOT / "helm" / "shoal" / "rules" / "alerts.yaml").read_text())


def test_every_alert_has_a_runbook() -> None:
    alerts = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
    assert len(alerts) >= 15
    assert sorted(re.findall(r"^## (.+)$", PAGE, re.MULTILINE)) == sorted(alerts)


def test_every_runbook_names_the_severity_of_its_alert() -> None:
    rules = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
    for section in PAGE.split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        word = rules[name]["labels"]["severity"]
        assert f"The severity is {'critical' if word == 'critical' else 'a warning'}." in text, name


def test_every_runbook_has_effect_look_and_remedy() -> None:
    for section in PAGE.split("\n## ")[1:]:
        headings = re.findall(r"^\*\*(\w[\w ]*?)\.?\*\*", section, re.MULTILINE)
        assert headings == ["Effect", "Look at", "Remedy"], section.split("\n")[0]
