"""Removes secrets from texts and objects that leave the user's machine.

It finds values by the names before them (`password=…`, `"client_secret": "…"`), credentials by
their form (bearer tokens, JSON web tokens, private keys, addresses with passwords), and texts that
the caller knows as secrets. It prefers to remove too much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "(hidden)"
_WORDS = r"(?:pass(?:word|phrase|wd)|secret|credential|jaas|api[-_.]?key|private[-_.]?key)"
#: Names of configs whose values are secrets. Names that end with `.key` have inline private keys.
_NAME = re.compile(rf"{_WORDS}|(?:^|[._-])(?:hmac|token)$|\.key$", re.IGNORECASE)
#: Names that match and have no secret, only the place of one, its form, or a limit.
_HARMLESS = re.compile(r"(?:\.|_)(?:class|location|type|ms|iterations|file|url|max|min)$")
_NAMED = rf"[\w.\-]*{_WORDS}[\w.\-]*"
#: A line of a properties file: its value ends with the line.
_LINE = re.compile(rf"^([ \t\ufeff]*{_NAMED}[ \t]*[=:][ \t]*)\S.*$", re.IGNORECASE | re.MULTILINE)
#: A name and a value within a line. A value without quotes ends before the next pair. In JSON that
#: is a text of JSON, quotes have backslashes, and a value ends at a quote with as many.
_PAIR = re.compile(
    rf"({_WORDS}[\w.\-]{{0,200}}\\*[\"']?\s*[=:]\s*)"
    r"((?P<depth>\\+)\"(?:(?!(?<!\\)(?P=depth)\").)*(?:(?P=depth)\"|$)|"
    r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\n,;}\]]+)",
    re.IGNORECASE,
)
_END_OF_KEY = r"-----END [A-Z ]*PRIVATE KEY-----"
_KEYS = (
    re.compile(rf"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:{_END_OF_KEY}|\Z)", re.DOTALL),
    # The end of a key whose beginning was cut off.
    re.compile(rf"\A(?:(?!-----BEGIN).)*?{_END_OF_KEY}", re.DOTALL),
)
_FORMS = (
    re.compile(r"\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=\-]{4,}", re.IGNORECASE),
    re.compile(r"\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"\b(?:salt|stored_?key|server_?key|hmac|token)[\"']?[=:]\s*\S+", re.IGNORECASE),
)
#: A line that `_FORMS`, `_LINE` or `_PAIR` match has one of these, in lower case. Few lines of a
#: log have one; searching all lines takes ten times as long.
_HINTS = (
    *("pass", "secret", "credential", "jaas", "key", "bearer", "basic"),
    *("eyj", "@", "salt", "hmac", "token"),
)


class Redaction:
    """Removes secrets; `known` are texts that are secrets wherever they occur."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        #: The longest first: one may contain another. A very short text would hide half of a log.
        self._secrets = sorted(
            {secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True
        )

    def redact_text(self, text: str) -> str:
        """Return a text of lines without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        if "PRIVATE KEY-----" in text:
            for form in _KEYS:
                text = form.sub(HIDDEN, text)
        return "".join(map(self._redact_line, text.splitlines(keepends=True)))

    @staticmethod
    def _redact_line(line: str) -> str:
        lower = line.lower()
        if not any(hint in lower for hint in _HINTS):
            return line
        for form in _FORMS:
            line = form.sub(HIDDEN, line)
        line = _LINE.sub(lambda match: match[1] + HIDDEN, line)
        return _PAIR.sub(lambda match: match[1] + HIDDEN, line)

    def redact_value(self, value: Any) -> Any:
        """Return an object for JSON without secrets: by the names of its keys, and in its texts."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {
                # Numbers, lists and objects, too; whether there is a secret is none.
                name: HIDDEN
                if is_secret(name) and not isinstance(item, bool | None)
                else self.redact_value(item)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.redact_value(item) for item in value]
        return value


def is_secret(name: str) -> bool:
    """Return whether the config or field with this name has a secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)
