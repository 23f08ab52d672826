"""The ConfigMap for Argo CD in `examples/gitops`, and the Lua engine by which Argo CD runs it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable

Manifest = dict[str, Any]
CONFIG_MAP = Path(__file__).parents[3] / "examples/gitops/argocd/argocd-cm.yaml"
HEALTH = "resource.customizations.health.shoal.dev_"
ACTIONS = "resource.customizations.actions.shoal.dev_"


def health_scripts() -> dict[str, str]:
    """Return the script that computes the health of a resource, by kind."""
    return _entries(HEALTH)


def actions() -> dict[str, Manifest]:
    """Return the actions by kind: `discovery.lua`, and `definitions` with a script for each."""
    return {kind: yaml.safe_load(text) for kind, text in _entries(ACTIONS).items()}


def _entries(prefix: str) -> dict[str, str]:
    data = yaml.safe_load(CONFIG_MAP.read_text())["data"]
    return {key.removeprefix(prefix): data[key] for key in data if key.startswith(prefix)}


def run(calls: Iterable[tuple[str, Manifest]]) -> list[Any]:
    """Return what each script returns for its resource.

    Raises AssertionError with the engine's message if a script fails. Skips the test if the engine
    cannot be built, except in CI.
    """
    try:
        path = program("argocd-lua")
    except ClusterError as error:
        lacking(f"argocd-lua was not built: {error}")
    text = "\n".join(json.dumps({"script": script, "obj": obj}) for script, obj in calls)
    done = subprocess.run([path], input=text, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, errors
    return [answer["value"] for answer in answers]
