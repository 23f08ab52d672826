"""The actions of the console, by their names in addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.console.actions.cancel import Cancel
from shoal.console.actions.dead_letter_topic import RepairDeadLetterTopic
from shoal.console.actions.dead_letters import EditDeadLetter, PurgeDeadLetters, RedriveDeadLetters
from shoal.console.actions.delivery import Pause, Resume, SetLimit, Skip
from shoal.console.actions.offsets import ResetOffsets
from shoal.console.actions.records import ProduceRecord
from shoal.console.actions.tenants import PauseTenant, ResumeTenant

if TYPE_CHECKING:
    from shoal.console.actions.contract import Action

_ALL: tuple[Action, ...] = (
    Pause(),
    Resume(),
    PauseTenant(),
    ResumeTenant(),
    Skip(),
    Cancel(),
    SetLimit(),
    RepairDeadLetterTopic(),
    RedriveDeadLetters(),
    EditDeadLetter(),
    PurgeDeadLetters(),
    ResetOffsets(),
    ProduceRecord(),
)
ACTIONS: dict[str, Action] = {action.name: action for action in _ALL}
