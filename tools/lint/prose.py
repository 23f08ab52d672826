"""Phrases that hide a fact, or that a reader misunderstands, are banned, each with better words.

Only a reader can judge the rest of the style, and a list of words drives writers around it, so a
phrase needs a fault of its own to be listed. All texts are checked: documents, the docstrings,
comments and string literals of Python files, and other source files as plain text.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lint.tree import File

#: Files that are not checked, each with the reason.
EXCEPT = {
    "tools/lint/prose.py": "lists the banned phrases",
}
#: Generated files, recorded data and images.
DATA = (".json", ".lock", ".mod", ".png", ".sum")


class Ban(NamedTuple):
    """A banned phrase: a pattern, the better wording, and an example."""

    pattern: str
    better: str
    example: str


BANS = (
    # Hides a number that the reader needs.
    Ban(r"\b(after|of|first|next|last) so many\b", "name the number", "after so many records"),
    # Hides which component acts, so nobody can look there.
    Ban(r"\bwhoever\b|\bwhomever\b", "the component's name", "whoever takes over"),
    # German, which English readers take for a denial: "'soon' is no time".
    Ban(
        r"(?<!there) is no (topic|time|group|number|file|record|JSON|frame|batch|range)\b",
        "is not a ...",
        "'soon' is no time",
    ),
    # Reads as a question that has no answer.
    Ban(r"\bbe there\b.{0,30}\bor not\b", "whether it exists", "be there whole or not"),
    # Both pronouns are left without a noun.
    Ban(r"\bof (it|them) that\b", "name the part", "of it that is left"),
    # Reads as a journey of the subject.
    Ban(r"\bgoes? without\b(?! saying)", "needs no, omits", "a group goes without"),
    # Reads as a duty to own something.
    Ban(r"\b(has|have|had) to be had\b", "is needed", "what has to be had"),
    # Reads as two acts, not as a repeated entry.
    Ban(r"\bstands? twice\b", "is listed twice", "a name stands twice"),
)


def compile_ban(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose blanks match any white space."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


#: Finds whether a text has any banned phrase.
ANY = compile_ban("|".join(f"(?:{ban.pattern})" for ban in BANS))
#: Where a comment or a literal continues on the next line.
_SEAM = re.compile(r"""["']?[ \t]*\n\s*(?:#:? ?|[rbf]*["'])?""")
PATTERNS = [(ban, compile_ban(ban.pattern)) for ban in BANS]


class Prose(NamedTuple):
    """A piece of text and the line where it starts."""

    line: int
    text: str


def split_python(source: str) -> Iterator[Prose]:
    """Yield the comments and string literals of a module; adjacent comment lines are one text."""
    comment: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != comment[-1][0] + 1:
                yield join_comment(comment)
                comment = []
            comment.append((token.start[0], token.string.lstrip("#: ")))
    if comment:
        yield join_comment(comment)
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


def join_comment(comment: list[tuple[int, str]]) -> Prose:
    return Prose(comment[0][0], "\n".join(text for _, text in comment))


def split_document(source: str) -> Iterator[Prose]:
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


def find_bans(prose: Prose) -> list[str]:
    """Return the banned phrases in a text, each with its line and the better wording."""
    problems: list[str] = []
    if not ANY.search(prose.text):
        return problems
    for ban, pattern in PATTERNS:
        for match in pattern.finditer(prose.text):
            line = prose.line + prose.text[: match.start()].count("\n")
            problems.append(f"{line}: {' '.join(match[0].split())!r} (better: {ban.better})")
    return problems


def check_text(file: File) -> Iterator[str]:
    """Yield the banned phrases of a file, whether it is excepted or not."""
    # Most files have none, and their pieces need a parser.
    if not ANY.search(_SEAM.sub(" ", file.text)):
        return
    split = split_python if file.is_python else split_document
    for prose in split(file.text):
        yield from (f"{file.name}:{problem}" for problem in find_bans(prose))


def check_file(file: File) -> Iterator[str]:
    """Yield the banned phrases of a file."""
    if file.name not in EXCEPT and file.path.suffix not in DATA:
        yield from check_text(file)


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield the exceptions that nothing needs."""
    by_name = {file.name: file for file in files}
    for name in EXCEPT:
        if name not in by_name or not any(check_text(by_name[name])):
            yield f"tools/lint/prose.py: remove {name} from EXCEPT"
