"""What an action is: a form, a plan that says what will happen, and a run after confirmation.

`plan` reads the cluster and changes nothing. `Plan.run` changes it. Between the two a person reads
the plan. `Plan.observed_state` is what the plan depends on: if it is different when the person
confirms, the new plan is shown instead, so that of two people who act at once the second one
decides again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.console.reading.views import PLAIN, RecordView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun
    from shoal.console.sampling.sample import ClusterSample


class ActionError(ValueError):
    """Why an action cannot be planned: a sentence that names the field or the state, and the
    remedy."""


class FormData:
    """The fields of a form or of an address. A field may have several values."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self.values = {name: list(field_values) for name, field_values in values.items()}

    def get(self, name: str, default: str = "") -> str:
        """Return a field's value, or the default if the field is missing."""
        field_values = self.values.get(name)
        return field_values[0] if field_values else default

    def with_fields(self, fields: Mapping[str, Sequence[str]]) -> FormData:
        return FormData({**self.values, **fields})

    def get_all(self, name: str) -> list[str]:
        return [value for value in self.values.get(name, ()) if value]

    def require(self, name: str, label: str) -> str:
        """Return a field's value. Raises `ActionError`."""
        value = self.get(name)
        if not value:
            raise ActionError(f"{label} is missing.")
        return value

    def get_number(self, name: str, label: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a field's number. Raises `ActionError`."""
        text = self.get(name).strip()
        digits = text.removeprefix("-")
        if not digits.isdecimal() or len(digits) > 19 or not least <= int(text) <= most:
            raise ActionError(
                f"{label} must be a number from {least:,} to {most:,}, not {text!r:.60}."
            )
        return int(text)

    def is_set(self, name: str) -> bool:
        """Whether a checkbox is checked."""
        return self.get(name) == "1"


@dataclass(frozen=True, slots=True)
class FormField:
    """An input of a form. `kind` is hidden, text, number, area, check or select."""

    name: str
    label: str = ""
    kind: str = "text"
    value: str = ""
    help: str = ""
    options: tuple[tuple[str, str], ...] = ()
    is_required: bool = False


def make_hidden_fields(form: FormData, *names: str) -> list[FormField]:
    """Return hidden fields for what the form is about."""
    return [
        FormField(name, kind="hidden", value=value)
        for name in names
        for value in form.get_all(name)
    ]


class ActionResult(NamedTuple):
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
class ActionPlan:
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
    observed_state: object
    run: Callable[[Client, ActionRun], Awaitable[ActionResult]]
    table: Table | None = None
    typed: str = ""
    warnings: tuple[str, ...] = ()
    fixed: Mapping[str, Sequence[str]] = field(default_factory=dict)


class ActionContext(NamedTuple):
    """What an action reads: the cluster, with the rights of the person, and the last sample.

    `view` limits what its form and its plan show of records.
    """

    client: Client
    sample: ClusterSample | None
    view: RecordView = PLAIN


class Action(Protocol):
    """One kind of action. `name` is its name in addresses and audit lines."""

    name: str
    title: str

    async def build_fields(self, context: ActionContext, form: FormData, /) -> list[FormField]:
        """Return the inputs; all hidden if there is nothing to choose. Raises `ActionError`."""
        ...

    async def plan(self, context: ActionContext, form: FormData, /) -> ActionPlan:
        """Return what will happen. Raises `ActionError` and `ClientError`."""
        ...
