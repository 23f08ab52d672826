"""Instances of Kafka Streams applications: JVMs that print their states and errors."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from line_process import LineProcess
from support.kafka import java_classes
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RUNNING = "state RUNNING"


class StreamsApplication(LineProcess):
    """An instance, run from a source file. It prints `died ERROR` for an error."""

    def __init__(
        self,
        source: Path,
        *words: str,
        bootstrap: str,
        name: str,
        state: Path,
        settings: Mapping[str, str],
    ) -> None:
        """`words` are the arguments before the settings."""
        given = {
            "application.id": name,
            "bootstrap.servers": bootstrap,
            "state.dir": str(state),
            "num.stream.threads": "2",
            "replication.factor": "-1",
            "consumer.auto.offset.reset": "earliest",
            **settings,
        }
        pairs = (f"{key}={value}" for key, value in given.items())
        super().__init__(java_classes.java(str(source), *words, *pairs, heap="384m"))

    @property
    def died(self) -> list[str]:
        return [line for line in self.lines if line.startswith("died ")]

    def wait_running(self) -> None:
        eventually(lambda: RUNNING in self.lines or self.died, timeout_s=90, what=RUNNING)
        assert not self.died, self.lines

    def stop(self) -> None:
        """Stop it cleanly; it must not have died before. Kill it if it does not end."""
        try:
            status = self.end()
        except subprocess.TimeoutExpired:
            self.kill9()
            raise
        assert status == 0, self.lines
        assert not self.died, self.lines
