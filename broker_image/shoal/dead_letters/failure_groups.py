"""Dead letters grouped by why they failed: by the class of the exception that a worker named.

Letters without a reason, such as those of other clients, are grouped by their cause in parentheses.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.dead_letters.records import DeadLetter


@dataclass(slots=True)
class FailureGroup:
    """The letters of one exception, and the newest of them. `topics` counts them by their topic."""

    exception: str
    newest: DeadLetter
    topics: Counter[str] = field(default_factory=Counter)
    source_topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    def add(self, letter: DeadLetter) -> None:
        """Count a letter."""
        self.topics[letter.topic] += 1
        self.source_topics.add(letter.source_topic)
        self.groups.add(letter.group)
        if letter.timestamp_ms >= self.newest.timestamp_ms:
            # Of a letter that is kept, nobody needs the payload.
            self.newest = letter._replace(record=letter.record._replace(key=None, value=None))

    def merge(self, other: FailureGroup) -> None:
        """Count the letters of another group, too."""
        self.topics += other.topics
        self.source_topics |= other.source_topics
        self.groups |= other.groups
        self.newest = max(self.newest, other.newest, key=lambda letter: letter.timestamp_ms)

    @property
    def letters(self) -> int:
        """How many there are."""
        return self.topics.total()

    @property
    def place(self) -> str:
        """The source topic, or how many there are."""
        if len(self.source_topics) == 1:
            return next(iter(self.source_topics))
        return f"{len(self.source_topics)} topics"


class FailureGroups:
    """Counts letters one after another."""

    def __init__(self) -> None:
        self._by_exception: dict[str, FailureGroup] = {}

    def add(self, letter: DeadLetter) -> None:
        """Count a letter in its group."""
        name = letter.failure.exception_class or f"({letter.reason})"
        group = self._by_exception.get(name)
        if group is None:
            group = self._by_exception[name] = FailureGroup(name, letter)
        group.add(letter)

    def merge(self, group: FailureGroup) -> None:
        """Count the letters of a group of other letters."""
        stored = self._by_exception.setdefault(group.exception, group)
        if stored is not group:
            stored.merge(group)

    def list_largest(self) -> list[FailureGroup]:
        """Return the groups, the largest first."""
        return sorted(self._by_exception.values(), key=lambda g: (-g.letters, g.exception))
