"""No regular expression of the broker takes long for any text that a client sends.

Python's engine backtracks: two adjacent repetitions that match the same characters take a time that
grows with the square of the text, and three with its cube. The test finds the patterns at the top
of all modules that a broker imports to serve requests, derives texts that repeat each of their
parts, and lengthens them. Patterns that users write run in RE2 (`metadata/patterns.py`).

Each pattern meets some hundreds of texts of up to 8 KB, and two slow ones must be seen to be slow:
that takes four seconds.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import time
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The sizes of texts, in characters. Each is long enough to tell a faster growth, and short enough
#: that the test ends: 32 for an exponential one, 256 for a cubic one.
SIZES = (16, 32, 256, 2_048, 8_192)
#: The CPU time that a text may take, in seconds. The pattern of bearer tokens that this test was
#: written for took four minutes.
SEARCH_S_MAX = 0.1
#: Characters that the parts of patterns may match.
FILLERS = " a0A\t=,:;.-_/\\\"'(){}[]@+~!\n\r\x7f"
REPEATS = {codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT}
#: Packages whose texts come from the administrator, or from a broker.
TRUSTED = ("shoal.cli", "shoal.client", "shoal.console", "shoal.server.config")


class Named(NamedTuple):
    """A pattern, and whether the module searches with it or matches from the begin of a text."""

    name: str
    pattern: re.Pattern[Any]
    is_searched: bool


def find_patterns() -> list[Named]:
    """Return the compiled patterns in the modules of the engine."""
    found: dict[int, Named] = {}
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if module.name.startswith(TRUSTED):
            continue
        loaded = importlib.import_module(module.name)
        path = Path(loaded.__file__ or "")
        if path.suffix != ".py":
            continue
        source = path.read_text()
        for name, value in vars(loaded).items():
            if isinstance(value, re.Pattern):
                searched = re.search(rf"\b{name}\.(search|find|sub|split)", source) is not None
                found.setdefault(id(value), Named(f"{module.name}.{name}", value, searched))
    return list(found.values())


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
            began = time.thread_time()
            run(subject)
            if time.thread_time() - began > SEARCH_S_MAX:
                return attack[:40]
    return None


def test_no_pattern_is_slow() -> None:
    patterns = find_patterns()
    assert len(patterns) > 20
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
