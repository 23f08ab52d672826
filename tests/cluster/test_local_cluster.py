"""`shoal cluster` as users type it, stopped in any state. `test_cluster_page.py` has the rest."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from support.brokers.commands import Shoal
from support.brokers.ports import free_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Local:
    """The cluster in a folder."""

    def __init__(self, folder: Path) -> None:
        self._shoal, self._folder = Shoal(""), folder

    def says(self, *words: str) -> str:
        return self._shoal.says("cluster", *words, "--dir", str(self._folder))

    def status(self) -> dict[int, dict[str, object]]:
        found = self._shoal.json("cluster", "status", "--dir", str(self._folder))
        return {row["broker"]: row for row in found}

    def states(self) -> list[object]:
        return [row["state"] for row in self.status().values()]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    found = Local(tmp_path)
    found.says("start", "--brokers", "3", "--port", str(free_run(6)))
    yield found
    for row in found.status().values():
        if row["pid"] is not None:
            os.kill(int(str(row["pid"])), signal.SIGKILL)


def test_stop_ends_brokers_without_a_quorum_and_reports_each_end(local: Local) -> None:
    """One is dead, one is frozen, and the third finds no controller for its shutdown."""
    frozen = int(str(local.status()[2]["pid"]))
    local.says("kill", "1")
    os.kill(frozen, signal.SIGSTOP)
    said = local.says("stop", "--timeout", "8").splitlines()
    assert said[0] == "Broker 1 was already stopped."
    assert said[1].startswith("Broker 2 was killed: it did not stop within 8 s.")
    assert said[2].startswith("Broker 3 stopped without a controller")
    assert said[3].startswith("Stopped. The data stays in ")
    assert local.states() == ["stopped"] * 3
