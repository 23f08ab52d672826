"""The health script of docs/gitops.md in a Lua interpreter, as Argo CD runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api_server import STATUSES
from shoal_operator.conditions import Verdict, conditions

lupa = pytest.importorskip("lupa", reason="the package lupa, a Lua interpreter, is not installed")

DOCUMENT = Path(__file__).parents[2] / "docs/gitops.md"
KEY = "resource.customizations.health.shoal.dev_"


def scripts() -> dict[str, str]:
    """Return the scripts of the ConfigMap argocd-cm by kind."""
    blocks = DOCUMENT.read_text().split("```yaml\n")[1:]
    found = [b.partition("```")[0] for b in blocks if "kind: ConfigMap" in b and KEY in b]
    (config_map,) = map(yaml.safe_load, found)
    return {k.removeprefix(KEY): v for k, v in config_map["data"].items() if k.startswith(KEY)}


def health(script: str, resource: dict[str, Any]) -> tuple[str, str]:
    """Return the status and the message for a resource."""
    lua = lupa.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(resource, recursive=True)
    found = lua.execute(script)
    return found["status"], found["message"]


def resource(verdict: Verdict, generation: int = 2) -> dict[str, Any]:
    found = conditions(verdict, 2, "2026-01-01T00:00:00Z", None)
    return {
        "metadata": {"generation": generation},
        "status": {"observedGeneration": 2, "conditions": found},
    }


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.fine("text"), ("Healthy", "text")),
        (Verdict(True, "Scaling", "text", progressing=True), ("Healthy", "text")),
        (Verdict.fine("text").warned(("DiskNearlyFull", "soon")), ("Healthy", "text")),
        (Verdict.waiting("Starting", "text"), ("Progressing", "text")),
        (Verdict.blocked("BrokerNotReady", "text"), ("Progressing", "text")),
        (Verdict.refused("NoMajority", "text"), ("Degraded", "text")),
        (Verdict(False, "Paused", "text", paused=True), ("Suspended", "text")),
    ],
)
def test_each_state_has_a_health(verdict: Verdict, expected: tuple[str, str]) -> None:
    assert sorted(scripts()) == sorted(STATUSES)
    for script in scripts().values():
        assert health(script, resource(verdict)) == expected


def test_a_new_or_changed_resource_is_progressing() -> None:
    (script,) = set(scripts().values())
    changed = resource(Verdict.fine("text"), generation=3)
    assert health(script, changed)[0] == "Progressing"
    assert health(script, {"metadata": {"generation": 1}})[0] == "Progressing"
    for status in STATUSES.values():
        new = {"metadata": {"generation": 1}, "status": status}
        assert health(script, new)[0] == "Progressing"
