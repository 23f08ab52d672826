"""docs/troubleshooting.md has a section for each reason that the operator's code gives a condition.

The test reads the code: the reason is an argument of `Verdict` or `Diagnosis`, or the first of a
pair that becomes a warning. A reason that is computed must be listed in `COMPUTED`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
OPERATOR = ROOT / "operator" / "shoal_operator"
REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
#: Calls that have a reason, and the position of that argument.
CALLS = {
    "Verdict": 1,
    "ExtraCondition": 2,
    **dict.fromkeys(
        (
            "make_waiting",
            "make_blocked",
            "make_refused",
            "make_verdict",
            "Diagnosis",
            "AuthorityLost",
        ),
        0,
    ),
}
#: Reasons that are no literals: the expression, and where the reasons come from.
COMPUTED = {
    "reason": "the argument of AuthorityLost, or the reason of a ShareGroup",
    "*scaling_down": "a Diagnosis",
    "*growing": "a Diagnosis",
    "*renewal": "a Diagnosis",
    "*disk": "a Diagnosis",
    "*error.diagnosis": "a Diagnosis",
    "source.reason": "a Diagnosis",
    "verdict.reason": "another Verdict",
    "diagnosis.reason": "a Diagnosis",
    "''.join((part.capitalize() for part in error.code.name.split('_')))": "Kafka's errors",
}
#: Pairs of words that are not a reason and its message.
NOT_REASONS = {
    *("Service", "Ready", "ContainerCreating", "Pending", "QueueCluster", "StatefulSet", "Secret"),
    *("InFlight", "PerSecond", "ResourceQuota", "Container"),
}
#: The reason of the default status in the CRDs.
OF_CRDS = "Pending"


def literals(node: ast.expr) -> list[str]:
    """Return the reasons that an expression may be; raise `AssertionError` for an unknown one."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return [*literals(node.body), *literals(node.orelse)]
    assert ast.unparse(node) in COMPUTED, f"add {ast.unparse(node)!r} to COMPUTED, with its source"
    return []


def reasons(source: str) -> Iterator[str]:
    """Yield the reasons in the source of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = name or getattr(node.func, "id", "")
            # `cls(...)` makes a Verdict in `conditions.py`, with the reasons of its callers.
            if name in CALLS and len(node.args) > CALLS[name]:
                yield from literals(node.args[CALLS[name]])
            elif name in CALLS and node.args:
                yield from literals(node.args[-1])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            first = node.elts[0]
            word = first.value if isinstance(first, ast.Constant) else None
            if isinstance(word, str) and REASON.fullmatch(word):
                yield word


def of_operator() -> set[str]:
    found = {r for path in OPERATOR.rglob("*.py") for r in reasons(path.read_text())}
    # `Verdict.make_reconciled` has its reason in `conditions.py`.
    return (found - NOT_REASONS) | {"Reconciled", OF_CRDS}


def sections(text: str) -> dict[str, str]:
    """Return the texts of the page's sections by their headings."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_reason_has_a_section_and_every_section_a_reason() -> None:
    found = {title for title in sections(PAGE.read_text()) if REASON.fullmatch(title)}
    headings = set(re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE))
    assert found - headings == of_operator()
    assert len(of_operator()) > 60


def test_every_section_has_a_cause_a_place_to_look_and_a_remedy() -> None:
    text = re.sub(r"^## .+$", "", PAGE.read_text(), flags=re.MULTILINE)
    for title, content in sections(text).items():
        assert re.match(r"\n\n\S.+?\n\n\* Look at: .+\n\* Remedy: ", content, re.DOTALL), title


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Verdict.make_refused('NewReason', text)", ["NewReason"]),
        ("Verdict(True, 'OneReason' if x else 'Other', text)", ["OneReason", "Other"]),
        ("return Diagnosis('NewReason', f'{name}')", ["NewReason"]),
        ("warning=('NewReason', str(error))", ["NewReason"]),
        ("verdict = Verdict.make_blocked(diagnosis.reason, text)", []),
    ],
)
def test_reasons_in_code_are_found(source: str, found: list[str]) -> None:
    assert list(reasons(source)) == found


def test_a_computed_reason_is_found() -> None:
    with pytest.raises(AssertionError, match=r"add 'self\.reason' to COMPUTED"):
        list(reasons("Verdict.make_refused(self.reason, text)"))
