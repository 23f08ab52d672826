"""Masking by rule: what the console shows of a record's key, value and headers.

The functions that read records for pages mask them, so a page never has what it must not show. A
filter is compared with the masked record: it cannot find out what is masked.

A rule that masks fields masks the whole value if it is not a JSON object or array, or if it is
large. Nothing is shown because it could not be read. A dead letter is masked by the rules of its
own topic and of the topic that its record came from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.client.dead_letters import ERRORS
from shoal.console.payloads import TOKEN, Masked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.record.records import Record

#: Bytes of a value whose fields are masked. A longer one is masked as a whole.
MASKED_BYTES_MAX = 64 << 10
SOURCE_TOPIC = ERRORS + "topic"
#: What stands for a masked field of JSON.
_MASK = '"[masked]"'
#: Before JSON: a byte order mark and what Python takes for blanks.
_BLANKS = "\ufeff \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0"
_OFF = "This console shows no payloads."


class InvalidMasks(ValueError):
    """Rules that cannot be used: a sentence with the rule and the remedy."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is masked in topics. All texts are patterns with `*`, `?` and `[…]`.

    A field is a path of names with dots, from the root, or one name at any depth. Arrays have no
    name in a path.
    """

    topics: tuple[str, ...]
    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    key: bool = False
    value: bool = False
    why: str = "A rule of this console masks it."


@dataclass(frozen=True, slots=True)
class Masks:
    """The rules of one console. Without rules, everything is shown."""

    rules: tuple[Rule, ...] = ()

    def of(self, topics: Iterable[str]) -> Rule | None:
        """Return the rules of topics as one, or None if nothing is masked."""
        return _merged(self.rules, frozenset(topics)) if self.rules else None

    def shown(self, topic: str, record: Record) -> Record:
        """Return a record with what may be shown of it."""
        if not self.rules:
            return record
        source = [v.decode(errors="replace") for n, v in record.headers if n == SOURCE_TOPIC and v]
        rule = self.of([topic, *source])
        if rule is None:
            return record
        return record._replace(
            key=_key(record.key, rule),
            value=_value(record.value, rule),
            headers=tuple((name, _header(name, value, rule)) for name, value in record.headers),
        )

    def key(self, topic: str, key: bytes | None) -> bytes | None:
        """Return what may be shown of a key in a topic."""
        rule = self.of([topic])
        return key if rule is None else _key(key, rule)


NO_MASKS = Masks()
#: No payload is shown at all.
OFF = Masks((Rule(("*",), headers=("*",), key=True, value=True, why=_OFF),))


@lru_cache(maxsize=1024)
def _merged(rules: tuple[Rule, ...], topics: frozenset[str]) -> Rule | None:
    found = [
        rule
        for rule in rules
        if any(fnmatchcase(topic, one) for topic in topics for one in rule.topics)
    ]
    if not found:
        return None
    return Rule(
        tuple(sorted(topics)),
        tuple(one for rule in found for one in rule.fields),
        tuple(one.lower() for rule in found for one in rule.headers),
        any(rule.key for rule in found),
        any(rule.value for rule in found),
        found[0].why,
    )


def parse_masks(text: str, name: str) -> Masks:
    """Parse rules: JSON, an object with a list `rules`. Raises `InvalidMasks`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMasks(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("rules"), list) or len(found) > 1:
        raise InvalidMasks(f'{name} must be a JSON object {{"rules": […]}} and nothing else')
    rules = enumerate(found["rules"], 1)
    return Masks(tuple(_rule(one, f"rule {number} of {name}") for number, one in rules))


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, dict):
        raise InvalidMasks(f"{where} must be a JSON object")
    known = [one.name for one in fields(Rule) if one.name != "why"]
    for name in given:
        if name not in known:
            raise InvalidMasks(f"{where} has {name!r:.60}. Use {', '.join(known)}")
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("topics", "fields", "headers"):
        value = given.get(name, [])
        some = [value] if isinstance(value, str) else value
        if not isinstance(some, list) or not all(isinstance(one, str) and one for one in some):
            raise InvalidMasks(f"{name} of {where} must be a text or a list of texts")
        lists[name] = tuple(some)
    flags = {name: given.get(name, False) for name in ("key", "value")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidMasks(f"{name} of {where} must be true or false")
    rule = Rule(lists["topics"], lists["fields"], lists["headers"], flags["key"], flags["value"])
    if not rule.topics:
        raise InvalidMasks(f'{where} has no topics. Name patterns, for example "topics": "orders*"')
    if not (rule.fields or rule.headers or rule.key or rule.value):
        raise InvalidMasks(f"{where} masks nothing. Add fields, headers, key or value")
    return rule


def _key(key: bytes | None, rule: Rule) -> bytes | None:
    if not key:
        return key
    if rule.key:
        return _whole(key, rule.why)
    # Most keys are plain text, which has no fields. A byte of these is in UTF-16, too.
    if rule.fields and all(one in key for one in (b"{", b'"', b":")):
        return _without_fields(key, rule)
    return key


def _value(value: bytes | None, rule: Rule) -> bytes | None:
    if not value:
        return value
    if rule.value:
        return _whole(value, rule.why)
    return _without_fields(value, rule) if rule.fields else value


def _header(name: str, value: bytes | None, rule: Rule) -> bytes | None:
    if value and any(fnmatchcase(name.lower(), one) for one in rule.headers):
        return _whole(value, rule.why)
    return value


def _whole(payload: bytes, why: str) -> Masked:
    return Masked(b"[masked]", payload, why)


def _without_fields(payload: bytes, rule: Rule) -> bytes:
    """Return JSON with masked fields, or the whole payload masked."""
    if len(payload) > MASKED_BYTES_MAX:
        return _whole(
            payload,
            "A rule of this console masks fields, and payloads of more than"
            f" {MASKED_BYTES_MAX >> 10} KiB are masked as a whole.",
        )
    try:
        text, count = _masked(payload.decode("utf-8-sig"), (), rule.fields)
    except (ValueError, RecursionError):
        return _whole(
            payload,
            "A rule of this console masks fields of JSON, and this is not a JSON object or array.",
        )
    if not count:
        return payload
    return Masked(text.encode(), payload, rule.why, fields=count)


def _masked(text: str, above: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, int]:
    """Return JSON with masked fields, and their number. `above` is the path of JSON in JSON.

    Raises `ValueError` if the text is not an object or array, and `RecursionError`.
    """
    if text.lstrip()[:1] not in ("{", "["):
        raise ValueError("neither an object nor an array")
    json.loads(text, parse_int=len, parse_float=len)
    masking = _Masking(text, wanted)
    masking.value(above)
    return masking.text, masking.count


class _Masking:
    """Walks through the tokens of valid JSON. Only the tokens of masked fields change: numbers keep
    their digits, and of a name that occurs twice each field is masked."""

    def __init__(self, text: str, wanted: tuple[str, ...]) -> None:
        self.count = 0
        self._source, self._wanted = text, wanted
        self._tokens = list(TOKEN.finditer(text))
        self._at = self._copied = 0
        self._out: list[str] = []

    @property
    def text(self) -> str:
        return "".join((*self._out, self._source[self._copied :]))

    def value(self, path: tuple[str, ...]) -> None:
        """Mask inside the value at the current token."""
        token = self._token
        if token == "{":
            self._object(path)
        elif token == "[":
            self._at += 1
            while self._token != "]":
                self.value(path)
                self._at += self._token == ","
            self._at += 1
        else:
            if token.startswith('"'):
                self._string(token, path)
            self._at += 1

    @property
    def _token(self) -> str:
        return self._tokens[self._at][0]

    def _object(self, path: tuple[str, ...]) -> None:
        self._at += 1
        while self._token != "}":
            inner = (*path, json.loads(self._token))
            self._at += 2  # The name and its colon.
            if _is_wanted(inner, self._wanted):
                first = self._at
                self._skip()
                self._replace(first, _MASK)
            else:
                self.value(inner)
            self._at += self._token == ","
        self._at += 1

    def _skip(self) -> None:
        """Move behind the value at the current token."""
        depth = 0
        while True:
            depth += (self._token in ("{", "[")) - (self._token in ("}", "]"))
            self._at += 1
            if depth == 0:
                return

    def _string(self, token: str, path: tuple[str, ...]) -> None:
        """Mask inside a text that is JSON, or a text of such a text. One that only has characters
        of JSON is masked as a whole: it may have JSON behind other words."""
        inner = json.loads(token).lstrip(_BLANKS)
        is_text = inner.startswith('"')
        has_fields = all(one in inner for one in '{":')
        if not (is_text or has_fields or inner.startswith(("{", "["))):
            return
        try:
            text, count = _masked(f"[{inner}]" if is_text else inner, path, self._wanted)
            text = text[1:-1] if is_text else text
        except ValueError:
            text, count = "[masked]", int(has_fields or not is_text)
        if count:
            self.count += count - 1
            self._replace(self._at, json.dumps(text), self._at + 1)

    def _replace(self, first: int, instead: str, end: int | None = None) -> None:
        """Replace the tokens from `first` to `end`; the default is the current one."""
        last = (self._at if end is None else end) - 1
        self._out += self._source[self._copied : self._tokens[first].start()], instead
        self._copied = self._tokens[last].end()
        self.count += 1


@lru_cache(maxsize=4096)
def _is_wanted(path: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a rule names the field at a path. A dot in a name separates names, too."""
    names = ".".join(path).split(".")
    for field in wanted:
        patterns = field.split(".")
        if len(patterns) == 1:
            if fnmatchcase(names[-1], field):
                return True
        elif len(patterns) == len(names) and all(map(fnmatchcase, names, patterns)):
            return True
    return False
