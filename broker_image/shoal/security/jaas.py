"""JAAS configs: the login module of `sasl.jaas.config` and its options.

The syntax is that of Kafka's JaasConfig, which reads it by Java's StreamTokenizer:
`module.Class required name="value" other=value;`, with comments as in Java. A value that begins
with a digit, a dot or a dash has to stand in quotes. Messages never have values, which are secrets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FLAGS = ("required", "requisite", "sufficient", "optional")
_WORD = r"A-Za-z_$\xa0-\U0010ffff"
#: A single slash begins a comment too. It has at least one character, be it the end of the line.
_TOKEN = re.compile(
    rf"""(?P<blank>[\x00-\x20]+|//[^\r\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)|/(?:[\s\S][^\r\n]*)?)
    |"(?P<double>(?:\\[\s\S]|[^"\\\r\n])*)"?
    |'(?P<single>(?:\\[\s\S]|[^'\\\r\n])*)'?
    |(?P<word>[{_WORD}][{_WORD}0-9.\-]*)
    |(?P<number>[0-9.\-]+)
    |(?P<other>.)""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(Exception):
    """A JAAS config is invalid. The message names the problem, and no option's value."""


class LoginModule(NamedTuple):
    """The class, the control flag in lower case, and the options of a login module."""

    name: str
    flag: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, {len(self.options)} options)"


class _Token(NamedTuple):
    """A word or a quoted text, or another character. `text` is None for a number."""

    kind: str
    text: str | None


_END = _Token("end", None)


def parse(text: str) -> LoginModule:
    """Return the only login module of a JAAS config. Raises `JaasError`."""
    tokens = _tokenize(text)
    modules = []
    while (token := next(tokens, _END)) is not _END:
        modules.append(_parse_module(token, tokens))
    if not modules:
        raise JaasError("Login module not specified in JAAS config")
    if len(modules) > 1:
        raise JaasError(
            f"JAAS config property contains {len(modules)} login modules, should be 1 module"
        )
    return modules[0]


def _parse_module(first: _Token, tokens: Iterator[_Token]) -> LoginModule:
    if first.text is None or first.kind == "other":
        raise JaasError("JAAS config does not begin with the class of a login module")
    flag = next(tokens, _END)
    if flag is _END:
        raise JaasError("Login module control flag not specified in JAAS config")
    if flag.text is None or flag.kind == "other":
        raise JaasError("Login module control flag is not available in the JAAS config")
    if flag.text.lower() not in _FLAGS:
        raise JaasError(f"Invalid login module control flag '{flag.text}' in JAAS config")
    options: dict[str, str] = {}
    while (token := next(tokens, _END)) not in (_END, _Token("other", ";")):
        if token.text is None or token.kind == "other":
            raise JaasError(
                f"the name of an option is expected in JAAS config after"
                f" {f'option {list(options)[-1]!r}' if options else 'the control flag'}; quote"
                " values with other characters than letters, digits, '.', '-', '_' and '$'"
            )
        equals, value = next(tokens, _END), next(tokens, _END)
        if equals != _Token("other", "=") or value.text is None or value.kind == "other":
            raise JaasError(
                f"Value not specified for key '{token.text}' in JAAS config (a value that begins"
                " with a digit stands in quotes)"
            )
        options[token.text] = value.text
    if token is _END:
        raise JaasError("JAAS config entry not terminated by semi-colon")
    return LoginModule(first.text, flag.text.lower(), options)


def _tokenize(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind in ("double", "single"):
            yield _Token("quoted", _ESCAPE.sub(_unescape, match[kind]))
        elif kind != "blank":
            yield _Token(kind, None if kind == "number" else match[0])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPES.get(code, code)
