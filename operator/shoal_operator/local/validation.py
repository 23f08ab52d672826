"""Whether the API server would take a resource: by the schema and the CEL rules of its definition.

jsonschema-rs checks the schema and `cel` evaluates the rules. The messages are the API server's
(apiextensions-apiserver, kube-openapi and field.ErrorList), so that what you learn here holds for
`kubectl apply`.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import sys
from collections import Counter
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import jsonschema_rs

from shoal_operator.kube.kube import KubeError
from shoal_operator.local.definitions import Definition, fill_defaults, list_unknown
from shoal_operator.model.quantities import parse_size_bytes

# The package also imports its command, a terminal program whose libraries take longer than `cel`.
sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))
import cel  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shoal_operator.model.names import Manifest

RULES = "x-kubernetes-validations"
#: What keeps the API server from evaluating rules (`hasBlockingErr` of apiextensions-apiserver).
_BLOCKING = frozenset(
    {"type", "format", "required", "enum", "maxLength", "maxItems", "maxProperties"}
)
_NOT_CHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was "
    "invalid; correct the existing errors to complete validation"
)
#: Names of resources (RFC 1123), with the API server's words.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_DATE_TIME = "date-time"
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$")
_ANY_OF = "anyOf"
#: What Go's `%q` writes for these characters.
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    **{chr(code): f"\\{letter}" for code, letter in enumerate("abtnvfr", 7)},
}
_INT32_MAX = 2**31 - 1
_GO_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
#: What this machine reads of an object of any kind: metadata, and what a Secret or ConfigMap has.
_COMMON = {
    "properties": {
        "metadata": {
            "properties": {
                "labels": _TEXTS,
                "annotations": _TEXTS,
                "finalizers": {"type": "array", "items": {"type": "string"}},
                "ownerReferences": {
                    "type": "array",
                    "items": {"type": "object", "required": ["uid"]},
                },
            }
        },
        "data": {**_TEXTS, "nullable": True},
        "stringData": {**_TEXTS, "nullable": True},
    }
}
#: Keys of Secrets and ConfigMaps, which become names of files.
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


class Violation(NamedTuple):
    """A field, what is wrong with it, and the keyword of the schema that says so."""

    path: str
    text: str
    keyword: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def prepare(definition: Definition, manifest: Manifest, old: Manifest | None = None) -> Manifest:
    """Return the resource as the API server would store it, with defaults; `old` is what it
    replaces. Raises `KubeError` with the API server's message.

    The status of `old` stays, and that of `manifest` has no effect.
    """
    kind, meta = definition.kind, manifest["metadata"]
    if manifest["apiVersion"] != definition.api_version:
        text = f'no matches for kind "{kind}" in version "{manifest["apiVersion"]}"'
        raise KubeError(404, text)
    body = {name: value for name, value in manifest.items() if name not in ("metadata", "status")}
    unknown = sorted(list_unknown(body, definition.schema))
    if unknown:
        fields = ", ".join(f'unknown field "{path}"' for path in unknown)
        version = definition.api_version.partition("/")[2]
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error'
        raise KubeError(400, f"{text}: {fields}")
    filled: Manifest = fill_defaults(body | {"metadata": meta}, definition.schema)
    if old is not None and "status" in old:
        filled["status"] = old["status"]
    violations = find_common_violations(manifest) + find_violations(definition, filled, old)
    if violations:
        raise KubeError(422, format_refusal(kind, meta["name"], violations))
    return filled


def format_refusal(kind: str, name: str, violations: Sequence[Violation]) -> str:
    """Return the message of the API server about an invalid object."""
    texts = list(dict.fromkeys(map(str, violations)))
    if {violation.keyword for violation in violations} & _BLOCKING:
        texts.append(_NOT_CHECKED)
    listed = texts[0] if len(texts) == 1 else "".join(f"\n* {text}" for text in texts)
    return f'The {kind} "{name}" is invalid: {listed}'


def find_violations(
    definition: Definition, filled: Manifest, old: Manifest | None
) -> list[Violation]:
    """Return what is wrong with a resource that has its defaults."""
    validator = _make_validator(definition.kind, json.dumps(definition.schema))
    errors = [
        (_format_path(error.instance_path), error.kind.name == _ANY_OF, error)
        for error in validator.iter_errors(filled)
    ]
    errors.sort(key=lambda row: row[:2])
    violations = [v for *_, error in errors for v in _describe_error(error)]
    # kube-openapi looks at the pattern of a text only if its length is right.
    lengths = {v.path for v in violations if v.keyword in ("minLength", "maxLength")}
    violations = [v for v in violations if v.keyword != "pattern" or v.path not in lengths]
    if definition.replicas_path:
        violations += _check_replicas(filled, definition.replicas_path)
    violations += _check_lists(filled, definition.schema, "")
    if {violation.keyword for violation in violations} & _BLOCKING:
        return violations
    return violations + list(_check_rules(filled, old, definition.schema, ""))


def _check_replicas(filled: Manifest, path: str) -> Iterator[Violation]:
    """Yield what is wrong with the replicas for the scale subresource (`ValidateScaleSpec`)."""
    value: Any = filled
    go_type = "int64"
    for field in path.strip(".").split("."):
        if not isinstance(value, dict):
            go_type = "map[string]interface{}"
            break
        value = value.get(field)
        if value is None:
            return  # It is not required, or the schema says it.
    if _GO_TYPES[type(value)] != go_type:
        own = f"{_format_go(value)} is of the type {_GO_TYPES[type(value)]}"
        text = f"Invalid value: 0: {path} accessor error: {own}, expected {go_type}"
        yield Violation(path, text, "scale")
    elif value < 0:
        yield Violation(path, f"Invalid value: {value}: should be a non-negative integer", "scale")
    elif value > _INT32_MAX:
        text = f"should be less than or equal to {_INT32_MAX}"
        yield Violation(path, f"Invalid value: {value}: {text}", "scale")


def _check_lists(value: Any, schema: Manifest, path: str) -> Iterator[Violation]:
    """Yield the items of lists that are there twice, or that cannot have the key of their list
    (`ValidateListSetsAndMaps`)."""
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, item in value.items():
            if name in schema.get("properties", {}):
                inner = f"{path}.{name}".lstrip(".")
                yield from _check_lists(item, schema["properties"][name], inner)
            elif isinstance(others, dict):
                yield from _check_lists(item, others, f"{path}[{name}]")
    elif isinstance(value, list):
        yield from _check_items(value, schema, path)
        for number, item in enumerate(value):
            yield from _check_lists(item, schema.get("items", {}), f"{path}[{number}]")


def _check_items(items: list[Any], schema: Manifest, path: str) -> Iterator[Violation]:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys", ())
    if kind == "map":
        # To Go, null is an object without keys.
        bare = [n for n, item in enumerate(items) if not isinstance(item, dict | None)]
        for number in bare:
            text = "must be an object for an array of list-type map"
            text = f"Invalid value: {_quote(items[number])}: {text}"
            yield Violation(f"{path}[{number}]", text, "list")
        if bare:
            return
        items = [{key: item[key] for key in keys if key in item} if item else {} for item in items]
    if kind not in ("set", "map"):
        return
    counts: Counter[str] = Counter()
    for number, shown in enumerate(map(_quote_compactly, items)):
        counts[shown] += 1
        if counts[shown] == 2:  # Go names the first repetition alone.
            yield Violation(f"{path}[{number}]", f"Duplicate value: {shown}", "list")


def _quote_compactly(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _format_go(value: Any) -> str:
    """Return a value of JSON as Go prints it."""
    if isinstance(value, dict):
        return f"map[{' '.join(f'{k}:{_format_go(v)}' for k, v in sorted(value.items()))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(_format_go, value))}]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_common_violations(manifest: Manifest) -> list[Violation]:
    """Return what is wrong with the metadata of an object of any kind, or the data of a Secret."""
    errors = _make_validator("", json.dumps(_COMMON)).iter_errors(manifest)
    violations = [violation for error in errors for violation in _describe_error(error)]
    for field in ("name", "namespace"):
        name = manifest["metadata"].get(field, "default")
        if not _NAME.fullmatch(name) or len(name) > 253:
            text = f"Invalid value: {_quote(name)}: {_NAME_TEXT}"
            violations.append(Violation(f"metadata.{field}", text, "name"))
    if manifest["kind"] in ("Secret", "ConfigMap") and not violations:
        violations = list(_check_data(manifest))
    return violations


def _check_data(manifest: Manifest) -> Iterator[Violation]:
    """Yield what is wrong with the data of a Secret or ConfigMap."""
    for field in ("data", "stringData"):
        for key in manifest.get(field) or ():
            wrong = "must not start with '..'" if key.startswith("..") else _KEY_TEXT
            if key.startswith("..") or not _KEY.fullmatch(key):
                yield Violation(f"{field}[{key}]", f"Invalid value: {_quote(key)}: {wrong}", "key")
    if manifest["kind"] == "Secret":
        for key, value in (manifest.get("data") or {}).items():
            try:
                base64.b64decode("".join(value.split()), validate=True)
            except ValueError:
                yield Violation(f"data.{key}", "Invalid value: illegal base64 data", "")


# The schema.

#: The patterns of the definitions by those of the validator.
_PATTERNS: dict[str, str] = {}


@cache
def _make_validator(_: str, schema: str) -> jsonschema_rs.Draft4Validator:
    return jsonschema_rs.Draft4Validator(
        _convert(json.loads(schema)), validate_formats=True, formats={_DATE_TIME: _is_date_time}
    )


def _is_date_time(text: str) -> bool:
    """Return whether the API server takes a text for a time (`IsDateTime` of go-openapi/strfmt)."""
    date, *rest = text.lower().split("t")
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        # Go has a year 0.
        return date.startswith("0000-") and bool(rest) and _is_date_time(f"0004{text[4:]}")
    match = _TIME.match(rest[0]) if rest and len(date) == len("2026-01-01") else None
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _convert(schema: Any) -> Any:
    """Return an OpenAPI schema as a JSON schema of draft 4, on which OpenAPI is built: `nullable`
    becomes a type, and a bracket that begins a class of Go's expressions gets a backslash."""
    if isinstance(schema, list):
        return [_convert(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {
        name: {key: _convert(item) for key, item in value.items()}
        if name == "properties"
        else value
        if name in ("default", "enum")
        else _convert(value)
        for name, value in schema.items()
        if name not in ("format", "description") and not name.startswith("x-kubernetes")
    }
    if schema.get("format") == _DATE_TIME:
        converted["format"] = _DATE_TIME
    if isinstance(schema.get("pattern"), str):
        pattern = re.sub(r"(?<!\\)(\[\^?)\]", r"\1\\]", schema["pattern"])
        converted["pattern"] = pattern
        _PATTERNS[pattern] = schema["pattern"]
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        converted["type"] = [schema["type"], "null"]
    if schema.get("x-kubernetes-int-or-string"):
        converted["type"] = ["integer", "string"]
    return converted


def _format_path(parts: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".")


def _quote(value: Any) -> str:
    """Return a value as the API server prints it: as JSON, and a text with Go's escapes."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f'"{"".join(map(_escape, value))}"'


def _escape(character: str) -> str:
    if character in _ESCAPES or character.isprintable():
        return _ESCAPES.get(character, character)
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)


def _get_type(value: Any) -> str:
    return next(name for python, name in _TYPES if isinstance(value, python))


#: What kube-openapi says about a value that is out of bounds, by the keyword of the schema.
_LIMITS = {
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "multipleOf": "should be a multiple of {}",
    "exclusiveMinimum": "should be greater than {}",
    "exclusiveMaximum": "should be less than {}",
    "minLength": "should be at least {} chars long",
    "minItems": "should have at least {} items",
    "minProperties": "should have at least {} properties",
    "pattern": "should match '{}'",
}


def _get_limit(kind: Any) -> Any:
    """Return the bound that a value does not keep; empty for other errors."""
    if kind.name == "pattern":
        return _PATTERNS.get(kind.pattern, kind.pattern)
    return getattr(kind, "limit", getattr(kind, "multiple_of", ""))


def _describe_error(error: Any) -> Iterator[Violation]:
    """Yield what the API server says about an error of jsonschema-rs."""
    if error.kind.name != _ANY_OF:
        yield _describe_one(error)
        return
    # An integer or a text, which such a schema says once more by its type.
    path, own = _format_path(error.instance_path), f'"{_get_type(error.instance)}"'
    text = f'Invalid value: "": "{path}" must validate at least one schema (anyOf)'
    yield Violation("<nil>", text, _ANY_OF)
    text = f"Invalid value: {own}: {path} in body must be of type integer: {own}"
    yield Violation(path, text, "type")


def _describe_one(error: Any) -> Violation:
    """Return an error of jsonschema-rs in the API server's words."""
    keyword, path = str(error.kind.name), _format_path(error.instance_path)
    value, limit = error.instance, _get_limit(error.kind)
    if keyword == "required":
        missing = str(error.kind.property)
        return Violation(f"{path}.{missing}".lstrip("."), "Required value", keyword)
    if keyword == "enum":
        options = ", ".join(map(_quote, error.kind.options))
        return Violation(
            path, f"Unsupported value: {_quote(value)}: supported values: {options}", keyword
        )
    if keyword == "type":
        types = ",".join(error.kind.types)
        text = f'Invalid value: "{_get_type(value)}": {path} in body must be of type {types}: '
        return Violation(path, f'{text}"{_get_type(value)}"', keyword)
    if keyword == "format":
        text = f"{path} in body must be of type {error.kind.format}: {_quote(value)}"
        return Violation(path, f"Invalid value: {_quote(value)}: {text}", keyword)
    if keyword == "maxLength":
        return Violation(path, f"Too long: may not be more than {limit} bytes", keyword)
    if keyword in ("maxItems", "maxProperties"):
        items = "1 item" if limit == 1 else f"{limit} items"
        return Violation(path, f"Too many: {len(value)}: must have at most {items}", keyword)
    shown = len(value) if keyword in ("minItems", "minProperties") else value
    if keyword in _LIMITS:
        text = f"{path} in body {_LIMITS[keyword].format(limit)}"
    else:
        text = f"{path} in body {error.message}"
    return Violation(path, f"Invalid value: {_quote(shown)}: {text}", keyword)


# The rules.


def _compare(first: Any, second: Any) -> int:
    return int(first > second) - int(first < second)


@cache
def _compile_rule(rule: str) -> cel.Program:
    return cel.compile(rule)


def _check_rules(value: Any, old: Any, schema: Manifest, path: str) -> Iterator[Violation]:
    """Yield the rules that a value breaks, and those of its fields. `old` is the value that it
    replaces, None for a new one."""
    if value is None:
        return
    for rule in schema.get(RULES, ()):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        holds, problem = _evaluate(rule["rule"], value, old)
        if holds:
            continue
        field = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
        text = rule.get("message") or f"failed rule: {rule['rule']}"
        if problem:
            shown = _quote(_get_type(value))
            text = f"Invalid value: {shown}: {problem} evaluating rule: {text}"
            yield Violation(path, text, "rule")
        else:
            # The API server leaves out values that have fields or items.
            shown = "" if isinstance(value, dict | list) else f" {_quote(value)}:"
            yield Violation(field, f"Invalid value:{shown} {text}", "rule")
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for name, item in value.items():
            item_schema = schema.get("properties", {}).get(
                name, others if isinstance(others, dict) else {}
            )
            before = old.get(name) if isinstance(old, dict) else None
            inner = f"{path}[{name}]" if item_schema is others else f"{path}.{name}".lstrip(".")
            yield from _check_rules(item, before, item_schema, inner)
    elif isinstance(value, list):
        item_schema, keys = schema.get("items", {}), schema.get("x-kubernetes-list-map-keys")
        for number, item in enumerate(value):
            before = _find_item(old, item, keys) if keys and isinstance(old, list) else None
            yield from _check_rules(item, before, item_schema, f"{path}[{number}]")


def _find_item(old: list[Any], item: Manifest, keys: Sequence[str]) -> Manifest | None:
    """Return the item of a list that has the same keys: the one that a rule compares with."""
    key_values = [item.get(key) for key in keys]
    return next(
        (old_item for old_item in old if [old_item.get(key) for key in keys] == key_values), None
    )


def _evaluate(rule: str, value: Any, old: Any) -> tuple[bool, str]:
    """Return whether a value keeps a rule, and why that cannot be evaluated, in cel-go's words: the
    API server refuses the value then, too."""
    context = cel.Context({"self": value, "oldSelf": old})
    context.add_function("quantity", parse_size_bytes)
    context.add_function("compareTo", _compare)
    try:
        return bool(_compile_rule(rule).execute(context)), ""
    except KeyError as error:
        return False, f"no such key: {error.args[0]}"
    except Exception as error:
        # The library raises the error of the operation. Most rules that fail convert a duration.
        if "duration" in f"{error}".lower():
            return False, "type conversion error from 'string' to 'google.protobuf.Duration'"
        return False, str(error)
