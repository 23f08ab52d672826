"""What an API server does with custom resources, as a program that the tests build: the program
has the API server's own code for CEL rules, defaults and the managers of fields.

It compiles the rules of all definitions when it starts, which takes seconds. So one process answers
all tests of a test process.
"""

from __future__ import annotations

import functools
import json
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from kube.structural import CRDS
from support.runs import leaks
from support.runs.machine import lacking

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
    process = _start_api_server()
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    for one in manifests:
        old, new = one if isinstance(one, tuple) else (None, one)
        process.stdin.write(json.dumps({"before": old, "manifest": new}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, f"custom-resources ended with {process.wait()}"
        found.append(Taken(**json.loads(answer)))
    return found


def refusals(definitions: Iterable[Path]) -> list[str]:
    """Return why an API server refuses these definitions: their CEL rules have to have the right
    types, and to cost little."""
    command = [_find_program(), *definitions]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    return [text for line in done.stdout.splitlines() for text in json.loads(line)]


@functools.cache
def _start_api_server() -> subprocess.Popen[str]:
    """Start the program with our definitions. It ends with its input, so with this process."""
    definitions = sorted(CRDS.glob("*.yaml"))
    with leaks.unmarked():
        process = subprocess.Popen(
            [_find_program(), *definitions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert process.stdout is not None
    for _ in definitions:
        process.stdout.readline()
    return process


def _find_program() -> Path:
    try:
        return program("custom-resources")
    except ClusterError as error:
        lacking(f"custom-resources was not built: {error}")
