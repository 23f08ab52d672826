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

from shoal.console.reading.payloads import TOKEN, MaskedPayload
from shoal.dead_letters.records import ERRORS
from shoal.protocol.reasons import REASON_HEADERS

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
class MaskRule:
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

    rules: tuple[MaskRule, ...] = ()

    def find_rule(self, topics: Iterable[str]) -> MaskRule | None:
        """Return the rules of topics as one, or None if nothing is masked."""
        return _merge_rules(self.rules, frozenset(topics)) if self.rules else None

    def mask_record(self, topic: str, record: Record) -> Record:
        """Return a record with what may be shown of it."""
        if not self.rules:
            return record
        source = [v.decode(errors="replace") for n, v in record.headers if n == SOURCE_TOPIC and v]
        rule = self.find_rule([topic, *source])
        if rule is None:
            return record
        return record._replace(
            key=_mask_key(record.key, rule),
            value=_mask_value(record.value, rule),
            headers=tuple(
                (name, _mask_header(name, value, rule)) for name, value in record.headers
            ),
        )

    def may_show_reason(self, topics: Iterable[str], record: Record) -> bool:
        """Return whether to show in a line why a masked record failed. `topics` are its own, and
        those of its dead letters: what a letter would not show of the reason, the line does not."""
        if any(isinstance(part, MaskedPayload) for part in (record.key, record.value)):
            return False
        rule = self.find_rule(topics)
        return rule is None or not any(
            isinstance(_mask_header(ERRORS + name, b"text", rule), MaskedPayload)
            for name in REASON_HEADERS
        )

    def mask_key(self, topic: str, key: bytes | None) -> bytes | None:
        """Return what may be shown of a key in a topic."""
        rule = self.find_rule([topic])
        return key if rule is None else _mask_key(key, rule)


NO_MASKS = Masks()
#: Headers of dead letters that may quote the record: an exception's message often does.
_QUOTING = ("__dlq.errors.exception.message", "__dlq.errors.exception.stacktrace")
#: No payload is shown at all.
OFF = Masks((MaskRule(("*",), headers=("*",), key=True, value=True, why=_OFF),))


@lru_cache(maxsize=1024)
def _merge_rules(rules: tuple[MaskRule, ...], topics: frozenset[str]) -> MaskRule | None:
    matching = [
        rule
        for rule in rules
        if any(fnmatchcase(topic, pattern) for topic in topics for pattern in rule.topics)
    ]
    if not matching:
        return None
    return MaskRule(
        tuple(sorted(topics)),
        tuple(pattern for rule in matching for pattern in rule.fields),
        tuple(pattern.lower() for rule in matching for pattern in rule.headers),
        any(rule.key for rule in matching),
        any(rule.value for rule in matching),
        matching[0].why,
    )


def parse_masks(text: str, name: str) -> Masks:
    """Parse rules: JSON, an object with a list `rules`. Raises `InvalidMasks`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMasks(f"{name} is not JSON: {error}") from None
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("rules"), list)
        or len(document) > 1
    ):
        raise InvalidMasks(f'{name} must be a JSON object {{"rules": […]}} and nothing else')
    rules = enumerate(document["rules"], 1)
    return Masks(tuple(_parse_rule(entry, f"rule {number} of {name}") for number, entry in rules))


def _parse_rule(entry: Any, location: str) -> MaskRule:
    if not isinstance(entry, dict):
        raise InvalidMasks(f"{location} must be a JSON object")
    allowed = [field.name for field in fields(MaskRule) if field.name != "why"]
    for name in entry:
        if name not in allowed:
            raise InvalidMasks(f"{location} has {name!r:.60}. Use {', '.join(allowed)}")
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("topics", "fields", "headers"):
        value = entry.get(name, [])
        patterns = [value] if isinstance(value, str) else value
        if not isinstance(patterns, list) or not all(
            isinstance(pattern, str) and pattern for pattern in patterns
        ):
            raise InvalidMasks(f"{name} of {location} must be a text or a list of texts")
        lists[name] = tuple(patterns)
    flags = {name: entry.get(name, False) for name in ("key", "value")}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidMasks(f"{name} of {location} must be true or false")
    rule = MaskRule(
        lists["topics"], lists["fields"], lists["headers"], flags["key"], flags["value"]
    )
    if not rule.topics:
        raise InvalidMasks(
            f'{location} has no topics. Name patterns, for example "topics": "orders*"'
        )
    if not (rule.fields or rule.headers or rule.key or rule.value):
        raise InvalidMasks(f"{location} masks nothing. Add fields, headers, key or value")
    return rule


def _mask_key(key: bytes | None, rule: MaskRule) -> bytes | None:
    if not key:
        return key
    if rule.key:
        return _mask_whole(key, rule.why)
    # Most keys are plain text, which has no fields. A byte of these is in UTF-16, too.
    if rule.fields and all(mark in key for mark in (b"{", b'"', b":")):
        return _mask_fields(key, rule)
    return key


def _mask_value(value: bytes | None, rule: MaskRule) -> bytes | None:
    if not value:
        return value
    if rule.value:
        return _mask_whole(value, rule.why)
    return _mask_fields(value, rule) if rule.fields else value


def _mask_header(name: str, value: bytes | None, rule: MaskRule) -> bytes | None:
    if value and any(fnmatchcase(name.lower(), pattern) for pattern in rule.headers):
        return _mask_whole(value, rule.why)
    if value and name in _QUOTING and (rule.value or rule.key or rule.fields):
        return _mask_whole(value, rule.why)
    return value


def _mask_whole(payload: bytes, why: str) -> MaskedPayload:
    return MaskedPayload(b"[masked]", payload, why)


def _mask_fields(payload: bytes, rule: MaskRule) -> bytes:
    """Return JSON with masked fields, or the whole payload masked."""
    if len(payload) > MASKED_BYTES_MAX:
        return _mask_whole(
            payload,
            "A rule of this console masks fields, and payloads of more than"
            f" {MASKED_BYTES_MAX >> 10} KiB are masked as a whole.",
        )
    try:
        text, count = _mask_json(payload.decode("utf-8-sig"), (), rule.fields)
    except (ValueError, RecursionError):
        return _mask_whole(
            payload,
            "A rule of this console masks fields of JSON, and this is not a JSON object or array.",
        )
    if not count:
        return payload
    return MaskedPayload(text.encode(), payload, rule.why, fields=count)


def _mask_json(
    text: str, above: tuple[str, ...], field_patterns: tuple[str, ...]
) -> tuple[str, int]:
    """Return JSON with masked fields, and their number. `above` is the path of JSON in JSON.

    Raises `ValueError` if the text is not an object or array, and `RecursionError`.
    """
    if text.lstrip()[:1] not in ("{", "["):
        raise ValueError("neither an object nor an array")
    json.loads(text, parse_int=len, parse_float=len)
    masking = _JsonMasker(text, field_patterns)
    masking.mask_value(above)
    return masking.text, masking.count


class _JsonMasker:
    """Walks through the tokens of valid JSON. Only the tokens of masked fields change: numbers keep
    their digits, and of a name that occurs twice each field is masked."""

    def __init__(self, text: str, field_patterns: tuple[str, ...]) -> None:
        self.count = 0
        self._source, self._field_patterns = text, field_patterns
        self._tokens = list(TOKEN.finditer(text))
        self._at = self._copied = 0
        self._out: list[str] = []

    @property
    def text(self) -> str:
        return "".join((*self._out, self._source[self._copied :]))

    def mask_value(self, path: tuple[str, ...]) -> None:
        """Mask inside the value at the current token."""
        token = self._token
        if token == "{":
            self._mask_object(path)
        elif token == "[":
            self._at += 1
            while self._token != "]":
                self.mask_value(path)
                self._at += self._token == ","
            self._at += 1
        else:
            if token.startswith('"'):
                self._mask_string(token, path)
            self._at += 1

    @property
    def _token(self) -> str:
        return self._tokens[self._at][0]

    def _mask_object(self, path: tuple[str, ...]) -> None:
        self._at += 1
        while self._token != "}":
            inner = (*path, json.loads(self._token))
            self._at += 2  # The name and its colon.
            if _is_masked(inner, self._field_patterns):
                first = self._at
                self._skip()
                self._replace(first, _MASK)
            else:
                self.mask_value(inner)
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

    def _mask_string(self, token: str, path: tuple[str, ...]) -> None:
        """Mask inside a text that is JSON, or a text of such a text. One that only has characters
        of JSON is masked as a whole: it may have JSON behind other words."""
        inner = json.loads(token).lstrip(_BLANKS)
        is_text = inner.startswith('"')
        has_fields = all(mark in inner for mark in '{":')
        if not (is_text or has_fields or inner.startswith(("{", "["))):
            return
        try:
            text, count = _mask_json(f"[{inner}]" if is_text else inner, path, self._field_patterns)
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
def _is_masked(path: tuple[str, ...], field_patterns: tuple[str, ...]) -> bool:
    """Whether a rule names the field at a path. A dot in a name separates names, too."""
    names = ".".join(path).split(".")
    for field in field_patterns:
        patterns = field.split(".")
        if len(patterns) == 1:
            if fnmatchcase(names[-1], field):
                return True
        elif len(patterns) == len(names) and all(map(fnmatchcase, names, patterns)):
            return True
    return False
