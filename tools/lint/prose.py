"""Prose is plain English: phrases that a reader has to decode are banned, each with better words.

The rest of the style needs a reader. All texts are checked: documents, the docstrings, comments and
string literals of Python files, and other source files as plain text.
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
    "LICENSE": "the text of the Apache License",
    "tests/kube/driver_ends/undecodable.txt": "the recorded output of a driver",
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
    found: list[str] = []
    if not ANY.search(prose.text):
        return found
    for ban, pattern in PATTERNS:
        for match in pattern.finditer(prose.text):
            line = prose.line + prose.text[: match.start()].count("\n")
            found.append(f"{line}: {' '.join(match[0].split())!r} (better: {ban.better})")
    return found


def check_text(file: File) -> Iterator[str]:
    """Yield the banned phrases of a file, whether it is excepted or not."""
    # Most files have none, and their pieces need a parser.
    if not ANY.search(_SEAM.sub(" ", file.text)):
        return
    split = split_python if file.is_python else split_document
    for prose in split(file.text):
        yield from (f"{file.name}:{found}" for found in find_bans(prose))


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
