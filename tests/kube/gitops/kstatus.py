"""kstatus, the library by which Flux reads conditions, as a program that the tests build."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def results(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    """The kstatus result of each object: InProgress, Failed, Current or Terminating.

    Skips the test if the program cannot be built, except in CI.
    """
    try:
        path = program("kstatus")
    except ClusterError as error:
        lacking(f"kstatus was not built: {error}")
    text = "\n".join(json.dumps(one) for one in objects)
    done = subprocess.run([path], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split()
