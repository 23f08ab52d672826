"""Decision records in `docs/adr` have one form: title, status, situation, decision, rejected.

A record whose point no longer holds links to the record that replaced it, and that one links back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from unit.test_tidy import ROOT, TEXT, name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = sorted((ROOT / "docs/adr").glob("*.md"))
#: What a status may say after "accepted": a point or a sentence, and the record that replaced it.
LINK = r"\[(\d+)\]\((\d{4}-[a-z0-9-]+\.md)\)"
PART = r"(?:part of )?point \d+"
SUPERSEDED = re.compile(rf"({PART}) is superseded by {LINK}")
SUPERSEDES = re.compile(rf"supersedes ({PART}) of {LINK}")
STATUS = re.compile(r"Status: accepted((?:; [^;]+)*)\. Date: (\d{4}-\d{2}-\d{2})\.")
HEADINGS = ("Situation", "Decision", "Rejected")
REFERENCE = re.compile(r"\bADR (\d+)")


def number(path: Path) -> int:
    return int(path.name[:4])


def clauses(text: str) -> list[str]:
    """Return the clauses of a status after 'accepted', or raise ValueError."""
    status = " ".join(text.split("\n\n")[1].split())
    match = STATUS.fullmatch(status)
    if match is None:
        raise ValueError(f"a status is 'Status: accepted[; clause]. Date: 2026-11-30.': {status}")
    found = match[1].split("; ")[1:]
    for clause in found:
        if not SUPERSEDED.fullmatch(clause) and not SUPERSEDES.fullmatch(clause):
            raise ValueError(f"'point 1 is superseded by [2](…)' or 'supersedes …': {clause}")
    return found


def faults(path: str, text: str) -> Iterator[str]:
    """Yield what a record's text lacks."""
    title = re.match(r"# (\d+)\. \S.*\n\n", text)
    if title is None or int(title[1]) != int(path[:4]):
        yield f"the first line is '# {int(path[:4])}. ' and the decision"
    try:
        clauses(text)
    except (ValueError, IndexError) as error:
        yield str(error)
    parts = text.split("\n## ")
    for part in parts[1:] or parts:
        found = re.findall(rf"^\*\*({'|'.join(HEADINGS)})\.\*\*", part, re.MULTILINE)
        if found != list(HEADINGS):
            yield f"the headings are {HEADINGS}, but they are {found}"


@pytest.mark.parametrize("path", RECORDS, ids=name)
def test_record_has_the_form(path: Path) -> None:
    found = list(faults(path.name, path.read_text()))
    assert not found, found


def test_superseded_points_link_to_each_other() -> None:
    superseded, supersedes = set(), set()
    for path in RECORDS:
        for clause in clauses(path.read_text()):
            if match := SUPERSEDED.fullmatch(clause):
                point = match[1].split()[-1]
                assert f"\n{point}. " in path.read_text(), f"{path.name} has no point {point}"
                superseded.add((path.name, match[1], match[3]))
                assert int(match[2]) == int(match[3][:4]), f"{path.name}: {clause}"
            elif match := SUPERSEDES.fullmatch(clause):
                supersedes.add((match[3], match[1], path.name))
                assert int(match[2]) == int(match[3][:4]), f"{path.name}: {clause}"
    assert superseded == supersedes, f"without a link back: {superseded ^ supersedes}"


def test_records_that_are_named_exist() -> None:
    known = {number(path) for path in RECORDS}
    missing = [
        f"{name(path)}: ADR {found}"
        for path in TEXT
        for found in REFERENCE.findall(path.read_text())
        if int(found) not in known
    ]
    assert not missing


GOOD = "# 7. Do it\n\nStatus: accepted. Date: 2026-11-30.\n\n**Situation.** A.\n\n"
GOOD += "**Decision.** B.\n\n**Rejected.** C.\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# 7.", "# 8."),
        ("# 7. Do it", "Do it"),
        ("accepted.", "accepted, mostly."),
        ("accepted.", "accepted; point 3 moved to [9](0009-x.md)."),
        ("Date: 2026-11-30.", "Date: 2026-11-30. Supersedes point 1 of [9](0009-x.md)."),
        ("**Decision.**", "**Decided.**"),
        ("**Rejected.** C.\n", ""),
        ("**Situation.** A.\n\n", "## One\n\n**Situation.** A.\n\n"),
    ],
)
def test_each_fault_is_found(old: str, new: str) -> None:
    assert not list(faults("0007-do-it.md", GOOD))
    broken = GOOD.replace(old, new)
    if new.startswith("## "):
        broken += "\n## Two\n\n**Decision.** D.\n"
    assert list(faults("0007-do-it.md", broken))
