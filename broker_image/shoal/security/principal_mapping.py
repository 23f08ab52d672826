"""`ssl.principal.mapping.rules`: from the subject of a client's certificate to a user's name.

Rules are separated by commas: DEFAULT for the whole subject, or RULE:pattern/replacement/[LU]. The
first rule whose pattern matches the whole subject applies (KIP-371). Patterns are Java's regular
expressions, of which this module refuses what Python's have not. The code follows Kafka's
`SslPrincipalMapper` step by step, with its oddities.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
#: The same without groups. It takes all up to a comma at once and gives nothing back, so that its
#: time grows with the text and not with its square. The caller strips the end.
_LISTED = r"DEFAULT|RULE:(?:\\.|[^\\/])*+/(?:\\.|[^\\/])*+/[^,\n]*+|[^,\n]*+"
_SPLITTER = re.compile(rf"\s*+({_LISTED})\s*+(?:,\s*+|$)")
_PARSER = re.compile(_RULE)
_BACK_REFERENCE = re.compile(r"\$([0-9]+)")
#: An escape, or the begin of a named group.
_JAVA_GROUP = re.compile(r"(\\.)|\(\?<([A-Za-z][A-Za-z0-9]*)>", re.DOTALL)
#: Java's classes and quotes that Python's expressions have not, or not in this meaning.
_JAVA_ONLY = re.compile(r"\\[pPQEhHvVRXGzZkKNcex]|\[[^\]]*&&|\[[^\]\\]*\[|\(\?[a-zA-Z-]*[dUx]")


class NoMatchingRule(Exception):
    """No rule applies to a subject."""


class Rule(NamedTuple):
    """`pattern` is None for DEFAULT. `case` is L for lower case, U for upper case, or empty."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        """Return the name of a subject, or None if the rule does not apply.

        Raises `ValueError` if the replacement has a group that the pattern has not.
        """
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        # As in Java, the replacement applies to each match within the subject.
        parts = list(_replacement(self.replacement, self.pattern))
        name = self.pattern.sub(lambda match: _filled(match, parts), subject)
        return {"L": name.lower, "U": name.upper}.get(self.case, lambda: name)()


class PrincipalMapper:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises `ValueError`, with a sentence, for rules that cannot be used."""
        self._text = rules
        self._rules = [rule for text in _split(rules) if (rule := _parse(text)) is not None]

    def name(self, subject: str) -> str:
        """Return the user's name for a subject. Raises `NoMatchingRule`, and `ValueError`."""
        for rule in self._rules:
            found = rule.apply(subject)
            if found is not None:
                return found
        raise NoMatchingRule(f"No rules apply to {subject}, rules {self._text}")


def _split(rules: str) -> list[str]:
    return [match[1].rstrip() for match in _SPLITTER.finditer(rules.strip())]


def _parse(text: str) -> Rule | None:
    """Return a rule, or None for an empty one, which Kafka ignores."""
    match = _PARSER.match(text)
    assert match is not None
    if match.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return Rule(None, "", "")
    if match[2] is None:
        return None
    return Rule(_compiled(match[2]), _escaped(match[3], match[2]), match[4])


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of Java. Raises `ValueError`."""
    foreign = _JAVA_ONLY.search(pattern)
    if foreign is not None:
        raise ValueError(
            f"The pattern {pattern} has {foreign[0]}, which this broker does not support"
        )
    try:
        return re.compile(_JAVA_GROUP.sub(lambda m: m[1] or f"(?P<{m[2]}>", pattern))
    except re.error as error:
        raise ValueError(f"The pattern {pattern} is no regular expression: {error}") from None


def _escaped(replacement: str, pattern: str) -> str:
    """Escape references to groups that the pattern has not, so that they stand for themselves."""
    groups = _compiled(pattern).groups
    if not groups:
        return replacement
    text = replacement
    for match in _BACK_REFERENCE.finditer(replacement):
        digits = match[1]
        if digits.startswith("0"):
            continue
        index = int(digits)
        while index > groups and index >= 10:
            index //= 10
        if index > groups:
            # As in Kafka, positions are those of the text before the first escape.
            begin = match.start(1)
            text = f"{text[: begin - 1]}\\{text[begin - 1 :]}"
    return text


def _replacement(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Yield the parts of a replacement of Java: texts, and numbers of groups.

    Raises `ValueError` for a reference to a group that the pattern has not.
    """
    at, size = 0, len(text)
    while at < size:
        char = text[at]
        at += 1
        if char == "\\":
            if at == size:
                raise ValueError("character to be escaped is missing")
            yield text[at]
            at += 1
        elif char != "$":
            yield char
        elif named := re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(text, at):
            if named[1] not in pattern.groupindex:
                raise ValueError(f"No group with name {{{named[1]}}}")
            yield pattern.groupindex[named[1]]
            at = named.end()
        else:
            group, at = _group(text, at, pattern.groups)
            yield group


def _group(text: str, at: int, groups: int) -> tuple[int, int]:
    """Return the number of a group, and where it ends. Java takes as many digits as give a group
    of the pattern, and at least one."""
    if at == len(text) or not "0" <= text[at] <= "9":
        raise ValueError("Illegal group reference")
    found, at = int(text[at]), at + 1
    if found > groups:
        raise ValueError(f"No group {found}")
    while at < len(text) and "0" <= text[at] <= "9" and found * 10 + int(text[at]) <= groups:
        found, at = found * 10 + int(text[at]), at + 1
    return found, at


def _filled(match: re.Match[str], parts: list[str | int]) -> str:
    return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)
