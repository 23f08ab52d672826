"""Decision records in `docs/adr` have one form: title, status, situation, decision, rejected.

A record whose point no longer holds links to the record that replaced it, and that one links back.
The index, `docs/adr/README.md`, has one line for each record below the heading of its area.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lint.tree import File

FOLDER = "docs/adr/"
INDEX = "README.md"
#: What a status may say after "accepted": a point or a sentence, and the record that replaced it.
LINK = r"\[(\d+)\]\((\d{4}-[a-z0-9-]+\.md)\)"
PART = r"(?:part of )?point \d+"
SUPERSEDED = re.compile(rf"({PART}) is superseded by {LINK}")
SUPERSEDES = re.compile(rf"supersedes ({PART}) of {LINK}")
STATUS = re.compile(r"Status: accepted((?:; [^;]+)*)\. Date: (\d{4}-\d{2}-\d{2})\.")
HEADINGS = ("Situation", "Decision", "Rejected")
REFERENCE = re.compile(r"\bADR (\d+)")


def read_clauses(text: str) -> list[str]:
    """Return the clauses of a status after 'accepted', or raise ValueError."""
    status = " ".join(text.split("\n\n")[1].split())
    match = STATUS.fullmatch(status)
    if match is None:
        raise ValueError(f"a status is 'Status: accepted[; clause]. Date: 2026-11-30.': {status}")
    clauses = match[1].split("; ")[1:]
    for clause in clauses:
        if not SUPERSEDED.fullmatch(clause) and not SUPERSEDES.fullmatch(clause):
            raise ValueError(f"'point 1 is superseded by [2](…)' or 'supersedes …': {clause}")
    return clauses


def find_faults(path: str, text: str) -> Iterator[str]:
    """Yield what a record's text lacks."""
    title = re.match(r"# (\d+)\. \S.*\n\n", text)
    if title is None or int(title[1]) != int(path[:4]):
        yield f"the first line is '# {int(path[:4])}. ' and the decision"
    try:
        read_clauses(text)
    except (ValueError, IndexError) as error:
        yield str(error)
    parts = text.split("\n## ")
    for part in parts[1:] or parts:
        headings = re.findall(rf"^\*\*({'|'.join(HEADINGS)})\.\*\*", part, re.MULTILINE)
        if headings != list(HEADINGS):
            yield f"the headings are {HEADINGS}, but they are {headings}"


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield records without the form, links that do not lead back, and numbers of no record."""
    records = {f.path.name: f.text for f in files if f.name.startswith(FOLDER)}
    yield from _check_index(records.pop(INDEX, ""), records)
    for name, text in records.items():
        yield from (f"{FOLDER}{name}: {fault}" for fault in find_faults(name, text))
    yield from _check_links(records)
    numbers = {int(name[:4]) for name in records}
    for file in files:
        if file.is_source and "ADR " in file.text:
            for number in REFERENCE.findall(file.text):
                if int(number) not in numbers:
                    yield f"{file.name}: there is no ADR {number}"


def make_index_line(name: str, text: str) -> str:
    """Return the line of a record in the index: its title, and which of its points no longer hold.

    Raises `ValueError` or `IndexError` if the record has no title or status.
    """
    number, _, title = text.split("\n", 1)[0].removeprefix("# ").partition(". ")
    marks = [f"; *{c}*" for c in read_clauses(text) if SUPERSEDED.fullmatch(c)]
    return f"* [{number}]({name}): {title}{''.join(marks)}"


def _check_index(index: str, records: Mapping[str, str]) -> Iterator[str]:
    listed = [line for line in index.splitlines() if line.startswith("* [")]
    expected = []
    for name, text in records.items():
        with contextlib.suppress(ValueError, IndexError):  # `find_faults` reports it.
            expected.append(make_index_line(name, text))
    for line in expected:
        if (count := listed.count(line)) != 1:
            yield f"{FOLDER}{INDEX}: list this once below its area, not {count} times: {line}"
    for line in listed:
        if line not in expected:
            yield f"{FOLDER}{INDEX}: no record has this title and status: {line}"


def _check_links(records: dict[str, str]) -> Iterator[str]:
    superseded, supersedes = set(), set()
    for name, text in records.items():
        try:
            clauses = read_clauses(text)
        except (ValueError, IndexError):  # `find_faults` reports it.
            continue
        for clause in clauses:
            match = SUPERSEDED.fullmatch(clause) or SUPERSEDES.fullmatch(clause)
            assert match is not None
            if int(match[2]) != int(match[3][:4]):
                yield f"{FOLDER}{name}: the number and the file of the link differ: {clause}"
            if match.re is SUPERSEDES:
                supersedes.add((match[3], match[1], name))
                continue
            superseded.add((name, match[1], match[3]))
            point = match[1].split()[-1]
            if f"\n{point}. " not in text:
                yield f"{FOLDER}{name}: it has no point {point}"
    for name, point, other in sorted(superseded ^ supersedes):
        yield f"{FOLDER}{name}: {point} and {other} do not link to each other"
