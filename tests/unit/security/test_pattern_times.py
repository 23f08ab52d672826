"""No regular expression of Shoal takes long for any text that a client sends.

Python's engine backtracks: two adjacent repetitions that match the same characters take a time that
grows with the square of the text, and three with its cube. The test finds the patterns in the
sources of the broker, the operator and the Spark source, derives texts that repeat each of their
parts, and lengthens them. Patterns that users write run in RE2 (`metadata/patterns.py`).

Each pattern meets some hundreds of texts of up to 8 KB, and two slow ones must be seen to be slow:
that takes two seconds.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple

import shoal
import shoal_operator
import shoal_spark
from shoal.monitoring import exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The sizes of texts, in characters. Each is long enough to tell a faster growth, and short enough
#: that the test ends: 32 for an exponential one, 512 for a cubic one.
SIZES = (16, 32, 256, 512, 1_024, 8_192)
#: The CPU time that a text may take, in seconds. The pattern of bearer tokens that this test was
#: written for took four minutes.
SEARCH_S_MAX = 0.1
#: Eight times as long a text takes 64 times as long if the time grows with the square. So one that
#: takes less than this is not lengthened to the last size.
QUICK_S = SEARCH_S_MAX / 64 / 3
#: Characters that the parts of patterns may match.
FILLERS = " a0A\t=,:;.-_/\\\"'(){}[]@+~!\n\r\x7f"
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}
#: Functions of `re` that try each position of a text, and the others.
SEARCHES = {"search", "sub", "subn", "split", "findall", "finditer"}
MATCHES = {"compile", "match", "fullmatch"}
PACKAGES = (shoal, shoal_operator, shoal_spark)
#: Where an administrator's own pattern is compiled; `test_principal_mapping` times it.
THEIR_OWN = {"shoal.security.principal_mapping"}
#: Patterns that are made of names, with some names.
OF_NAMES = {
    "shoal.monitoring.exposition": lambda: exposition.make_pattern(
        frozenset({"shoal_a", "shoal_ab", "shoal_b_total"})
    )
}
#: Modules whose texts come from the administrator alone.
TRUSTED = {"shoal.client.config_providers"}


class Named(NamedTuple):
    """A pattern, where it is, and whether it searches or matches from the begin of a text."""

    name: str
    pattern: re.Pattern[Any]
    is_searched: bool


def find_patterns() -> Iterator[Named]:
    """Yield each pattern that a module compiles or uses at once."""
    for package in PACKAGES:
        (folder,) = package.__path__
        for path in sorted(Path(folder).rglob("*.py")):
            place = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package.__name__, *place)).removesuffix(".__init__")
            source = path.read_text()
            # To parse all modules takes longer than all else here.
            if name not in TRUSTED and re.search(r"\bre\.", source):
                yield from read_module(name, source)


def read_module(name: str, source: str) -> Iterator[Named]:
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and is_of_re(node.func)]
    if not calls:
        return
    known = vars(importlib.import_module(name))
    names = {id(node.value): node.targets[0] for node in nodes if isinstance(node, ast.Assign)}
    for call in calls:
        function = call.func.attr  # type: ignore[attr-defined]
        try:
            pattern = re.compile(*(read_argument(part, known) for part in arguments_of(call)))
        except NameError:
            if name in OF_NAMES:
                yield Named(name, OF_NAMES[name](), is_searched=True)
                continue
            assert name in THEIR_OWN, f"{name}, line {call.lineno}: the test cannot see the pattern"
            continue
        # A pattern without a name, as in a list, counts as searched.
        assigned = names.get(id(call))
        searches = rf"\b{assigned.id}\." if isinstance(assigned, ast.Name) else ""
        searches += "(search|find|sub|split)" if searches else ""
        is_searched = function in SEARCHES or (
            function == "compile" and re.search(searches, source) is not None
        )
        yield Named(f"{name}, line {call.lineno}", pattern, is_searched)


def is_of_re(node: ast.AST) -> bool:
    """Whether a node is a name in `re`: a function that takes a pattern, or a flag."""
    match node:
        case ast.Attribute(value=ast.Name(id="re"), attr=name):
            return name in SEARCHES | MATCHES or name.isupper()
    return False


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the pattern of a call, and its flags if it has some."""
    others = [*call.args[1:], *(word.value for word in call.keywords)]
    flags = [part for part in others if any(is_of_re(node) for node in ast.walk(part))]
    return [call.args[0], *flags[:1]]


def read_argument(part: ast.expr, known: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(part), "", "eval"), known)


def make_sample(items: Any, filler: str) -> str:
    """Return a text that the parts of a pattern match, of `filler` where they have a choice."""
    return "".join(_sample(code, argument, filler) for code, argument in items)


def _sample(code: Any, argument: Any, filler: str) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code in (codes.NOT_LITERAL, codes.ANY, codes.CATEGORY):
        return filler
    if code is codes.IN:
        return _choose(argument, filler)
    if code in REPEATS:
        least, _, inner = argument
        return make_sample(inner, filler) * max(least, 1)
    if code is codes.SUBPATTERN:
        return make_sample(argument[-1], filler)
    if code is codes.BRANCH:
        return make_sample(argument[1][0], filler)
    return ""


def _choose(choices: Any, filler: str) -> str:
    """Return the filler if a set of characters has it, otherwise one of the set."""
    text = "".join(map(chr, range(32, 127)))
    # The parser's own form of the set decides, not a second copy of its rules.
    compiled = re.compile(_unparse(choices))
    if compiled.fullmatch(filler):
        return filler
    return next((char for char in text if compiled.fullmatch(char)), filler)


def _unparse(choices: Any) -> str:
    categories = {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }
    parts: list[str] = []
    for code, argument in choices:
        if code is codes.NEGATE:
            parts.insert(0, "^")
        elif code is codes.LITERAL:
            parts.append(re.escape(chr(argument)))
        elif code is codes.RANGE:
            parts.append("-".join(re.escape(chr(end)) for end in argument))
        elif code is codes.CATEGORY:
            parts.append(categories[argument])
    return f"[{''.join(parts)}]"


def find_repeats(items: Any, before: str, filler: str) -> Iterator[tuple[str, str]]:
    """Yield a text that leads to each repetition of a pattern, and one that it repeats."""
    for code, argument in items:
        if code in REPEATS:
            inner = argument[2]
            yield before, make_sample(inner, filler)
            yield from find_repeats(inner, before, filler)
        elif code is codes.SUBPATTERN:
            yield from find_repeats(argument[-1], before, filler)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from find_repeats(branch, before, filler)
        before += _sample(code, argument, filler)


def find_slow_text(pattern: re.Pattern[Any], *, is_searched: bool = True) -> str | None:
    """Return the begin of a text for which the pattern takes too long, or None."""
    run = pattern.search if is_searched else pattern.fullmatch
    source = pattern.pattern
    text = source if isinstance(source, str) else source.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.UNICODE)
    attacks = {
        (before, pump)
        for filler in FILLERS
        for before, pump in find_repeats(tree, "", filler)
        if pump
    }
    # What repeats the begin of a pattern makes each position a start.
    attacks |= {("", before + pump) for before, pump in attacks}
    for before, pump in sorted(attacks):
        for size in SIZES:
            attack = (before + pump * (size // len(pump) + 1))[:size] + "\0"
            subject: Any = attack if isinstance(source, str) else attack.encode("latin-1")
            took_s = measure_s(run, subject)
            # On a busy machine the same work takes up to twice as much CPU time.
            if took_s > SEARCH_S_MAX and measure_s(run, subject) > SEARCH_S_MAX:
                return attack[:40]
            if size == SIZES[-2] and took_s < QUICK_S:
                break
    return None


def measure_s(run: Callable[[Any], object], subject: Any) -> float:
    """Return the CPU time of a search, in seconds."""
    began = time.thread_time()
    run(subject)
    return time.thread_time() - began


def test_no_pattern_is_slow() -> None:
    patterns = list(find_patterns())
    assert len(patterns) > 80
    slow = {
        named.name: text
        for named in patterns
        if (text := find_slow_text(named.pattern, is_searched=named.is_searched))
    }
    assert not slow, f"these patterns take over {SEARCH_S_MAX} s of CPU: {slow}"


def test_a_slow_pattern_is_found() -> None:
    """The former pattern of bearer tokens, and one that takes an exponential time."""
    tokens = rb"\r\nauthorization:[ \t]*bearer[ \t]+([^\r\n]*?)[ \t]*\r\n"
    assert find_slow_text(re.compile(tokens, re.IGNORECASE))
    assert find_slow_text(re.compile(r"(a|aa)+$"))
