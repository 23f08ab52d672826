"""One confirmed action as it runs: its page shows it, and its steps ask it whether to stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping


class RunStopped(Exception):
    """A person has stopped a run, or the console ends."""


class Stage(Enum):
    """How far a run is."""

    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(slots=True)
class ActionRun:
    """One confirmed action. `text` is its progress, and in the end its result."""

    id: str
    title: str
    action: str
    target: Mapping[str, str]
    back: tuple[str, str]
    user: str
    remote: str
    started_ms: int
    stage: Stage = Stage.RUNNING
    text: str = ""
    done: int = 0
    total: int = 0
    is_stopping: bool = False
    stopped_by: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise `RunStopped` if a person has stopped the run. Actions call it between their
        steps."""
        if self.is_stopping:
            raise RunStopped
