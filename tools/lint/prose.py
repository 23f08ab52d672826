"""Prose is plain English: phrases that a reader has to decode are banned, each with better words.

The rest of the style needs a reader. The test covers the whole tree: documents, the docstrings,
comments and string literals of Python files, and other source files as plain text.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, NamedTuple

import pytest
from unit.test_tidy import name, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Files that are not checked, each with the reason.
EXCEPT = {
    "LICENSE": "the text of the Apache License",
    "tests/kube/driver_ends/undecodable.txt": "the recorded output of a driver",
    "tests/unit/test_prose.py": "lists the banned phrases",
}
#: Generated files, recorded data and images.
DATA = (".json", ".lock", ".mod", ".png", ".sum")


class Ban(NamedTuple):
    """A banned phrase: a pattern, the better wording, and an example."""

    pattern: str
    better: str
    example: str


BANS = (
    Ban(r"\bso many\b", "give the number's name: 'at most N records'", "after so many records"),
    Ban(
        r"\b(is|are|was|were|been|be|being) told\b",
        "gets, receives, learns; or name the call",
        "the broker is told",
    ),
    Ban(r"\btells\b", "reports, returns, states, shows", "a record tells how often"),
    Ban(r"\b(it|which|that|who) tell\b", "report, return, state, show", "headers that tell why"),
    Ban(r"\b(can|cannot|could) tell\b", "detects, finds out", "a standby can tell whether"),
    Ban(
        r"\bwhoever\b|\bwhomever\b|\bwho(?= (asks|fetches|reads|writes|leads|has|waits|is))\b",
        "the component's name",
        "whoever takes over",
    ),
    Ban(r"\banew\b", "again", "read anew"),
    Ban(r"\bby (itself|themselves)\b", "individually, automatically, alone", "each by itself"),
    Ban(r"\bshall\b", "must, or the present tense", "it shall wait"),
    Ban(r"\b(has|have|had) to be had\b", "is needed", "what has to be had"),
    Ban(r"\bof (it|them) that\b", "name the part", "of it that is left"),
    Ban(r"\bin (its|their) own words\b", "quote the message", "in its own words"),
    Ban(r"\bgoes? without\b(?! saying)", "has no, needs no", "a group goes without"),
    Ban(r"\bbe there\b.{0,30}\bor not\b", "whether it exists", "be there whole or not"),
    Ban(
        r"\b(broker|leader|follower|controller|client|server|operator|coordinator|node|voter"
        r"|replica|observer|candidate|group|member|partition|process|shard|consumer|producer"
        r"|driver|executor)s? (knows?|wants?|says?|thinks?|believes?)\b",
        "has, needs, reports, assumes",
        "the broker knows",
    ),
    Ban(
        r", and so (is|are|was|were|do|does|did|has|have|had)\b",
        "a second sentence, or 'as'",
        "is refused, and so is the other",
    ),
    Ban(r"\bstands? twice\b", "is listed twice", "a name stands twice"),
    Ban(r"\bfor good\b", "permanently, until it restarts", "it stops for good"),
    Ban(
        # The exception is a log event, whose text stays.
        r"\b(go|goes|going|went|gone) on\b(?!: the flood has passed)",
        "continues",
        "the batch goes on",
    ),
    Ban(r"\bas good as\b|\bso much as\b", "say it directly", "nobody so much as refuses"),
    Ban(r"\bno more than that\b|\brather\b(?! than)", "say it directly", "are rather sorted"),
    Ban(
        r"\bof one'?s own\b|\bof (its|their) own\b(?= (choice|accord))",
        "chosen, own",
        "a template of one's own",
    ),
    Ban(
        r"\bfor so long\b|\bso long as\b|\bso long ago\b",
        "for this time, while",
        "silent for so long",
    ),
    Ban(
        r"\bpass(es|ed)? by\b(?! (reference|value|name|position|keyword))", "skips", "it passes by"
    ),
    Ban(r"\bpass(es|ed)? over\b", "ignores, skips", "passes over the rest"),
    Ban(r"\bfor trying out\b", "for tests", "a cluster for trying out"),
    Ban(r"\bbeside that\b|\bbesides that\b", "also", "beside that of brokers"),
    Ban(
        r"(?<!there) is no (topic|time|group|number|file|record|JSON|frame|batch|range)\b",
        "is not a ...",
        "'soon' is no time",
    ),
)


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose blanks match any white space."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


#: Finds whether a text has any banned phrase.
ANY = compiled("|".join(f"(?:{ban.pattern})" for ban in BANS))
PATTERNS = [(ban, compiled(ban.pattern)) for ban in BANS]


class Prose(NamedTuple):
    """A piece of text and the line where it starts."""

    line: int
    text: str


def python_prose(source: str) -> Iterator[Prose]:
    """Yield the comments and string literals of a module; adjacent comment lines are one text."""
    comment: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != comment[-1][0] + 1:
                yield joined(comment)
                comment = []
            comment.append((token.start[0], token.string.lstrip("#: ")))
    if comment:
        yield joined(comment)
    tree = ast.parse(source)
    parts = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = (str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
            yield Prose(node.lineno, "".join(words))
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield Prose(node.lineno, node.value)


def joined(comment: list[tuple[int, str]]) -> Prose:
    return Prose(comment[0][0], "\n".join(text for _, text in comment))


def document_prose(source: str) -> Iterator[Prose]:
    """Yield the paragraphs of a document without code blocks."""
    start, fenced = 1, False
    lines: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        fenced ^= line.lstrip().startswith("```")
        if line.strip() and not fenced and not line.lstrip().startswith("```"):
            start = start if lines else number
            lines.append(line)
        elif lines:
            yield Prose(start, "\n".join(lines))
            lines = []


def prose_of(path: Path) -> Iterator[Prose]:
    read = python_prose if path.suffix == ".py" else document_prose
    return read(path.read_text())


def hits(prose: Prose) -> list[str]:
    """Return the banned phrases in a text, each with its line and the better wording."""
    found: list[str] = []
    if not ANY.search(prose.text):
        return found
    for ban, pattern in PATTERNS:
        for match in pattern.finditer(prose.text):
            line = prose.line + prose.text[: match.start()].count("\n")
            found.append(f"{line}: {' '.join(match[0].split())!r} (better: {ban.better})")
    return found


def checked() -> list[Path]:
    return [p for p in tracked() if name(p) not in EXCEPT and p.suffix not in DATA]


@pytest.mark.parametrize("path", checked(), ids=name)
def test_prose_is_plain(path: Path) -> None:
    found = [f"{name(path)}:{hit}" for prose in prose_of(path) for hit in hits(prose)]
    assert not found, "write these plainly:\n" + "\n".join(found)


def test_exceptions_are_needed() -> None:
    """An excepted file that exists has a banned phrase; else its exception must be removed."""
    paths = {name(path): path for path in tracked()}
    idle = [n for n in EXCEPT if n not in paths or not any(map(hits, prose_of(paths[n])))]
    assert not idle, f"remove these from EXCEPT: {idle}"


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.example)
def test_each_ban_finds_its_phrase(ban: Ban) -> None:
    """Also in a docstring, a comment, an f-string, and over the end of a line."""
    words = ban.example.replace(" ", "\n", 1)
    source = (
        f'"""{ban.example}"""\n# {ban.example}\nx = f"{{y}} {ban.example}"\nz = """{words}"""\n'
    )
    found = [hit for prose in python_prose(source) for hit in hits(prose) if ban.better in hit]
    assert len(found) == 4, found
    document = f"{words}\n\n```\n{ban.example}\n```\n"
    assert [h for p in document_prose(document) for h in hits(p) if ban.better in h]


@pytest.mark.parametrize(
    "text",
    ["It tells the broker nothing.", "The group has no members.", "Pass by reference.", "as such"],
)
def test_plain_text_is_left_alone(text: str) -> None:
    assert not [h for h in hits(Prose(1, text)) if "tells" not in h]
