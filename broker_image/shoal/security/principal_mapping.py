"""`ssl.principal.mapping.rules`: from the subject of a client's certificate to a user's name.

Rules are separated by commas: DEFAULT for the whole subject, or RULE:pattern/replacement/[LU]. The
first rule whose pattern matches the whole subject applies (KIP-371). Patterns are Java's regular
expressions, of which this module refuses what Python's have not. The code follows Kafka's
`SslPrincipalMapper` step by step, with its oddities.

A user who orders a certificate may choose its subject, so patterns run in RE2, in a time that is
linear in the subject. What RE2 has not, as look-arounds, runs in Python's engine on short subjects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

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
#: The longest subject, in characters, for a pattern that RE2 has not: Python's engine takes a time
#: that may grow with its cube.
SUBJECT_SIZE_MAX = 256


class NoMatchingRule(Exception):
    """No rule applies to a subject."""


class PrincipalMappingRule(NamedTuple):
    """`pattern` is RE2's or Python's, and None for DEFAULT. `case` is L for lower case, U for upper
    case, or empty."""

    pattern: Any
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        """Return the name of a subject, or None if the rule does not apply.

        Raises `ValueError` if the replacement has a group that the pattern has not, or if the
        subject is too long for the pattern.
        """
        if self.pattern is None:
            return subject
        if isinstance(self.pattern, re.Pattern) and len(subject) > SUBJECT_SIZE_MAX:
            raise ValueError(
                f"A subject of {len(subject)} characters is too long for the pattern"
                f" {self.pattern.pattern}, which RE2 has not. Leave out its look-arounds and"
                " references to groups."
            )
        if self.pattern.fullmatch(subject) is None:
            return None
        # As in Java, the replacement applies to each match within the subject.
        parts = list(_split_replacement(self.replacement, self.pattern))
        name = self.pattern.sub(lambda match: _fill(match, parts), subject)
        return {"L": name.lower, "U": name.upper}.get(self.case, lambda: name)()


class PrincipalMapper:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises `ValueError`, with a sentence, for rules that cannot be used."""
        self._text = rules
        self._rules = [rule for text in _split(rules) if (rule := _parse(text)) is not None]

    def map_subject(self, subject: str) -> str:
        """Return the user's name for a subject. Raises `NoMatchingRule`, and `ValueError`."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoMatchingRule(f"No rules apply to {subject}, rules {self._text}")


def _split(rules: str) -> list[str]:
    return [match[1].rstrip() for match in _SPLITTER.finditer(rules.strip())]


def _parse(text: str) -> PrincipalMappingRule | None:
    """Return a rule, or None for an empty one, which Kafka ignores."""
    match = _PARSER.match(text)
    assert match is not None
    if match.end() != len(text):
        raise ValueError(f"Invalid rule: `{text}`, unmatched substring: `{text[match.end() :]}`")
    if match[1] is not None:
        return PrincipalMappingRule(None, "", "")
    if match[2] is None:
        return None
    return PrincipalMappingRule(
        _compile(match[2]), _escape_references(match[3], match[2]), match[4]
    )


def _compile(pattern: str) -> Any:
    """Compile a pattern of Java, in RE2 if that has it. Raises `ValueError`."""
    foreign = _JAVA_ONLY.search(pattern)
    if foreign is not None:
        raise ValueError(
            f"The pattern {pattern} has {foreign[0]}, which this broker does not support"
        )
    try:
        compiled = re.compile(_JAVA_GROUP.sub(lambda m: m[1] or f"(?P<{m[2]}>", pattern))
    except re.error as error:
        raise ValueError(f"The pattern {pattern} is no regular expression: {error}") from None
    import re2  # It takes memory, and few brokers have rules.

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(compiled.pattern, options)
    except re2.error:
        return compiled


def _escape_references(replacement: str, pattern: str) -> str:
    """Escape references to groups that the pattern has not, so that they stand for themselves."""
    groups = _compile(pattern).groups
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


def _split_replacement(text: str, pattern: Any) -> Iterator[str | int]:
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
        elif group_match := re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(text, at):
            if group_match[1] not in pattern.groupindex:
                raise ValueError(f"No group with name {{{group_match[1]}}}")
            yield pattern.groupindex[group_match[1]]
            at = group_match.end()
        else:
            group, at = _read_group(text, at, pattern.groups)
            yield group


def _read_group(text: str, at: int, groups: int) -> tuple[int, int]:
    """Return the number of a group, and where it ends. Java takes as many digits as give a group
    of the pattern, and at least one."""
    if at == len(text) or not "0" <= text[at] <= "9":
        raise ValueError("Illegal group reference")
    number, at = int(text[at]), at + 1
    if number > groups:
        raise ValueError(f"No group {number}")
    while at < len(text) and "0" <= text[at] <= "9" and number * 10 + int(text[at]) <= groups:
        number, at = number * 10 + int(text[at]), at + 1
    return number, at


def _fill(match: re.Match[str], parts: list[str | int]) -> str:
    return "".join(part if isinstance(part, str) else match[part] or "" for part in parts)
