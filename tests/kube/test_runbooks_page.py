"""docs/runbooks.md has a section for each alert of the chart, and each alert links to its own."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
RULES = (ROOT / "helm" / "shoal" / "templates" / "monitoring.yaml").read_text()
#: An alert and the anchor of its link, up to the next alert.
ALERT = re.compile(r"- alert: (\w+)((?:(?!- alert:).)*)", re.DOTALL)


def test_every_alert_has_a_runbook() -> None:
    alerts = [name for name, _ in ALERT.findall(RULES)]
    assert len(alerts) >= 3
    assert sorted(re.findall(r"^## (.+)$", PAGE, re.MULTILINE)) == sorted(alerts)


def test_every_alert_links_to_its_runbook() -> None:
    for name, rule in ALERT.findall(RULES):
        links = re.findall(r'runbook_url: \{\{ printf "%s#(\w+)" \. \| quote \}\}', rule)
        assert links == [name.lower()], name


def test_every_runbook_has_effect_look_and_remedy() -> None:
    for section in PAGE.split("\n## ")[1:]:
        headings = re.findall(r"^\*\*(\w[\w ]*?)\.?\*\*", section, re.MULTILINE)
        assert headings == ["Effect", "Look at", "Remedy"], section.split("\n")[0]
