"""Functions begin with a verb, not with a past participle, and variables say what they hold.

`settled` may be a predicate (`is_settled`), an event (`on_settled`), a constructor (`from_settled`)
or a query (`find_settled`); the participle hides which. Properties are nouns or adjectives, and
are not counted. `tools/name_counts.py` prints the other measures of names.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lint.tree import File

#: The packages of the product, each a folder.
PACKAGES = (
    "broker_image/shoal",
    "operator/shoal_operator",
    "spark_operator_jobs",
)
#: The folders whose functions begin with a verb.
CHECKED = (*PACKAGES, "tools")
#: Variables that say how a value came, or nothing, and the folders that have none of them.
VAGUE = frozenset({"found", "given", "known", "one", "wanted", "where"})
NAMED = (
    *(
        f"broker_image/shoal/{room}/"
        for room in (
            "cli",
            "client",
            "console",
            "dead_letters",
            "django",
            "kombu",
            "metadata",
            "monitoring",
            "schedules",
            "tiered",
            "worker",
        )
    ),
    "operator/",
    "spark_operator_jobs/",
    "tools/",
)
#: The share of a package's functions that may begin with a participle.
PARTICIPLES_MAX = 0.005
#: Names that may, each with the reason: the word of an interface that is not ours.
EXCEPT: dict[str, str] = {}

#: Participles without "-ed" that differ from their verb: `read`, `put` and `set` are verbs, too.
_IRREGULAR = frozenset(
    "beaten begun bent bitten blown born borne bought bound bred broken brought built burnt caught"
    " chosen dealt done drawn driven eaten fallen fed felt forbidden forgotten fought found frozen"
    " given gone got gotten grown heard held hidden hung kept known laid learnt led left lent lit"
    " lost made meant met overtaken paid proven rebuilt rewritten ridden risen said seen sent sewn"
    " shaken shown shrunk slept sold sought spent spoken spun stolen stood stuck sunk sworn swept"
    " taken taught thought thrown told torn undone understood upheld withdrawn withheld woken won"
    " worn woven wound written".split()
)
#: Verbs, nouns and adjectives that end in "-ed".
_NO_PARTICIPLES = frozenset(
    "bed bleed breed embed exceed feed heed hundred need proceed red seed shed sacred speed"
    " succeed weed".split()
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Function(NamedTuple):
    """A function or method, with the line of its definition."""

    name: str
    line: int
    is_property: bool


def split_words(name: str) -> list[str]:
    """Return the words of a name in `snake_case` or `camelCase`, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def is_participle(word: str) -> bool:
    """Return whether a word in lower case is a past participle and not also a verb's base form."""
    return (word.endswith("ed") and word not in _NO_PARTICIPLES) or word in _IRREGULAR


def find_functions(module: ast.AST) -> Iterator[Function]:
    """Yield all functions of a module, methods and nested ones included, dunder names excluded."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            if not node.name.startswith("__"):
                yield Function(node.name, node.lineno, "property" in decorators)


def begins_with_participle(function: Function) -> bool:
    """Return whether a function that is no property begins with a participle."""
    words = split_words(function.name)
    return not function.is_property and bool(words) and is_participle(words[0])


def find_vague_variables(module: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the parameters and local variables of `VAGUE`, each with its line. Fields of classes
    may have such names, because a reader sees the class."""
    fields = {
        id(entry.target)
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        for entry in node.body
        if isinstance(entry, ast.AnnAssign)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.arg) and node.arg in VAGUE:
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and node.id in VAGUE and id(node) not in fields:
            if isinstance(node.ctx, ast.Store):
                yield node.id, node.lineno


def check_file(file: File) -> Iterator[str]:
    """Yield the variables of a file that say nothing."""
    if file.is_python and file.name.startswith(NAMED):
        for name, line in find_vague_variables(ast.parse(file.text)):
            yield f"{file.name}:{line}: {name} says nothing: name what it holds"


def check_tree(files: list[File]) -> Iterator[str]:
    """Yield the packages with too many participles, and the exceptions that nothing needs."""
    unused = set(EXCEPT)
    for package in CHECKED:
        participles, total = find_participles(f for f in files if f.name.startswith(f"{package}/"))
        unused -= {function.name for _, function in participles}
        participles = [
            (place, function) for place, function in participles if function.name not in EXCEPT
        ]
        if len(participles) > PARTICIPLES_MAX * total:
            share = f"{len(participles)} of {total} functions begin with a participle"
            yield f"{package}: {share}, at most {PARTICIPLES_MAX:.1%}: begin each with a verb"
            for place, function in participles:
                yield f"{place}: {function.name} begins with a participle"
    for name in sorted(unused):
        yield f"tools/lint/names.py: remove {name} from EXCEPT"


def find_participles(files: Iterable[File]) -> tuple[list[tuple[str, Function]], int]:
    """Return the functions that begin with a participle, each with its place, and the number of
    all functions in these files."""
    participles, total = [], 0
    for file in files:
        if file.is_python:
            for function in find_functions(ast.parse(file.text)):
                total += 1
                if begins_with_participle(function):
                    participles.append((f"{file.name}:{function.line}", function))
    return participles, total
