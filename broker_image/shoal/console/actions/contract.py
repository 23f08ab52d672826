"""What an action is: a form, a plan that says what will happen, and a run after confirmation.

`plan` reads the cluster and changes nothing. `Plan.run` changes it. Between the two a person reads
the plan. `Plan.seen` is what the plan depends on: if it is different when the person confirms, the
new plan is shown instead, so that of two people who act at once the second one decides again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.console.views import PLAIN, View

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shoal.client.client import Client
    from shoal.console.runs import Run
    from shoal.console.sample import Sample


class Mistake(ValueError):
    """Why an action cannot be planned: a sentence that names the field or the state, and the
    remedy."""


class Given:
    """The fields of a form or of an address. A field may have several values."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self.values = {name: list(some) for name, some in values.items()}

    def one(self, name: str, default: str = "") -> str:
        """Return a field's value, or the default if the field is missing."""
        some = self.values.get(name)
        return some[0] if some else default

    def with_fields(self, fields: Mapping[str, Sequence[str]]) -> Given:
        return Given({**self.values, **fields})

    def all(self, name: str) -> list[str]:
        return [value for value in self.values.get(name, ()) if value]

    def required(self, name: str, label: str) -> str:
        """Return a field's value. Raises `Mistake`."""
        value = self.one(name)
        if not value:
            raise Mistake(f"{label} is missing.")
        return value

    def number(self, name: str, label: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a field's number. Raises `Mistake`."""
        text = self.one(name).strip()
        digits = text.removeprefix("-")
        if not digits.isdecimal() or len(digits) > 19 or not least <= int(text) <= most:
            raise Mistake(f"{label} must be a number from {least:,} to {most:,}, not {text!r:.60}.")
        return int(text)

    def is_set(self, name: str) -> bool:
        """Whether a checkbox is checked."""
        return self.one(name) == "1"


@dataclass(frozen=True, slots=True)
class Field:
    """An input of a form. `kind` is hidden, text, number, area, check or select."""

    name: str
    label: str = ""
    kind: str = "text"
    value: str = ""
    help: str = ""
    options: tuple[tuple[str, str], ...] = ()
    is_required: bool = False


def hidden(given: Given, *names: str) -> list[Field]:
    """Return hidden fields for what the form is about."""
    return [Field(name, kind="hidden", value=value) for name in names for value in given.all(name)]


class Result(NamedTuple):
    """What an action did, as a sentence. It has no payload and no key of a record."""

    text: str
    failed: bool = False


class Table(NamedTuple):
    """Rows of a plan; numbers are right-aligned."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int, ...], ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen, in sentences with numbers.

    `target` names the resources, for the audit line. `back` is the path and the text of the link to
    the page on which the result shows. `typed` must be typed to confirm. `fixed` are fields with
    which the action plans the same again, although the cluster has grown.
    """

    title: str
    sentences: tuple[str, ...]
    button: str
    target: Mapping[str, str]
    back: tuple[str, str]
    seen: object
    run: Callable[[Client, Run], Awaitable[Result]]
    table: Table | None = None
    typed: str = ""
    warnings: tuple[str, ...] = ()
    fixed: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Scene(NamedTuple):
    """What an action reads: the cluster, with the rights of the person, and the last sample.

    `view` limits what its form and its plan show of records.
    """

    client: Client
    sample: Sample | None
    view: View = PLAIN


class Action(Protocol):
    """One kind of action. `name` is its name in addresses and audit lines."""

    name: str
    title: str

    async def form(self, scene: Scene, given: Given, /) -> list[Field]:
        """Return the inputs; all hidden if there is nothing to choose. Raises `Mistake`."""
        ...

    async def plan(self, scene: Scene, given: Given, /) -> Plan:
        """Return what will happen. Raises `Mistake` and `ClientError`."""
        ...
