"""What an API server does with custom resources, as a program that the tests build: the program
has the API server's own code for CEL rules, defaults and the managers of fields."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from kube.structural import CRDS
from machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Manifest = dict[str, Any]


class Taken(NamedTuple):
    """What happens to a manifest.

    `errors` say why it is refused. `stored` is the object that `kubectl apply` makes of it.
    `conflict` is the error that another manager gets, which applies the same manifest server-side.
    """

    errors: list[str]
    stored: Manifest
    conflict: str


def take(manifests: Iterable[Manifest | tuple[Manifest, Manifest]]) -> list[Taken]:
    """Return what happens to each manifest; of a pair, the first is the object before it.

    Skips the test if the program cannot be built, except in CI.
    """
    pairs = [one if isinstance(one, tuple) else (None, one) for one in manifests]
    text = "\n".join(json.dumps({"before": old, "manifest": new}) for old, new in pairs)
    _, answers = _run(sorted(CRDS.glob("*.yaml")), text)
    return [Taken(**one) for one in answers]


def refusals(definitions: Iterable[Path]) -> list[str]:
    """Return why an API server refuses these definitions: their CEL rules have to have the right
    types, and to cost little."""
    wrong, _ = _run(list(definitions), "")
    return [text for texts in wrong for text in texts]


def _run(definitions: list[Path], text: str) -> tuple[list[Any], list[Any]]:
    try:
        path = program("custom-resources")
    except ClusterError as error:
        lacking(f"custom-resources was not built: {error}")
    command = [path, *definitions]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[: len(definitions)], lines[len(definitions) :]
