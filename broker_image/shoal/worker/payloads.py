"""Payloads: bytes of records as the types that handlers ask for, and back.

`bytes` and `str` stay what they are. All other types are JSON: dataclasses, TypedDicts, pydantic
models, lists, dicts, and simple values. Pydantic is used where a model brings it; it is no
dependency. Fields that a type does not define are ignored, so that a producer may add some first.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import types
import typing
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from shoal.worker.outcomes import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable


class Codec(Protocol):
    """Your own format. `decode` may raise any exception; the record is rejected with it."""

    def encode(self, value: Any, /) -> bytes:
        """Return the bytes of a value."""
        ...

    def decode(self, payload: bytes, /) -> Any:
        """Return the value of a payload."""
        ...


def make_decoder(kind: Any, codec: Codec | None = None) -> Callable[[bytes | None], Any]:
    """Return the function that decodes payloads to `kind`. It raises `PayloadError`."""
    if codec is not None:
        return lambda payload: _decode_by(codec, payload)
    if kind in (bytes, Any, None):
        return keep_bytes
    if kind is str:
        return _decode_text
    if hasattr(kind, "model_validate_json"):
        return lambda payload: _decode_model(kind, payload)
    return lambda payload: convert(kind, _parse(payload))


def keep_bytes(payload: bytes | None) -> bytes | None:
    """Return a payload as it is."""
    return payload


def encode(value: Any, codec: Codec | None = None) -> bytes:
    """Return the payload of a value. Raises `PayloadError`."""
    if codec is not None:
        return codec.encode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if hasattr(value, "model_dump_json"):
        return value.model_dump_json().encode()
    try:
        return json.dumps(value, default=_to_json, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise PayloadError(f"a {type(value).__name__} cannot be sent: {error}") from None


def convert(kind: Any, value: Any, place: str = "payload") -> Any:
    """Return a value of JSON as `kind`. Raises `PayloadError`, which names the `place`."""
    origin, type_arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return convert(type_arguments[0], value, place)
    if origin in (typing.Union, types.UnionType):
        return _convert_to_one_of(type_arguments, value, place)
    if kind in (Any, object):
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**_convert_fields(kind, _data_fields(kind), value, place))
    if typing.is_typeddict(kind):
        return _convert_fields(kind, _dict_fields(kind), value, place)
    if hasattr(kind, "model_validate"):
        return _validate(kind.model_validate, value)
    if (origin or kind) in _CONTAINERS:
        return _convert_container(origin or kind, type_arguments, value, place)
    return _convert_scalar(kind, value, place)


_CONTAINERS = (list, tuple, set, frozenset, dict)
#: Types that JSON writes as text, and the function that reads them.
_OF_TEXT: dict[Any, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    bytes: lambda text: base64.b64decode(text, validate=True),
}


def _convert_scalar(kind: Any, value: Any, place: str) -> Any:
    if kind in (None, type(None)) or typing.get_origin(kind) is typing.Literal:
        if value in (typing.get_args(kind) or (None,)):
            return value
        raise _refuse(place, _name(kind), value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str, bool):
        # In Python, but not in JSON, true is an int.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise _refuse(place, _name(kind), value)
    try:
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return kind(value)
        if kind in _OF_TEXT and isinstance(value, str | int | float):
            return _OF_TEXT[kind](value if isinstance(value, str) else str(value))
    except (ValueError, ArithmeticError):
        raise _refuse(place, _name(kind), value) from None
    raise _refuse(place, _name(kind), value)


def _convert_container(kind: Any, type_arguments: tuple[Any, ...], value: Any, place: str) -> Any:
    if kind is dict:
        if not isinstance(value, dict):
            raise _refuse(place, "an object", value)
        inner = type_arguments[1] if len(type_arguments) == 2 else Any
        return {name: convert(inner, v, f"{place}.{name}") for name, v in value.items()}
    if not isinstance(value, list):
        raise _refuse(place, "an array", value)
    if kind is tuple and type_arguments and type_arguments[-1] is not Ellipsis:
        if len(type_arguments) != len(value):
            raise _refuse(place, f"an array of {len(type_arguments)}", value)
        pairs = enumerate(zip(type_arguments, value, strict=True))
        return tuple(convert(inner, v, f"{place}[{n}]") for n, (inner, v) in pairs)
    inner = type_arguments[0] if type_arguments else Any
    return kind(convert(inner, v, f"{place}[{n}]") for n, v in enumerate(value))


def _convert_to_one_of(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    errors = []
    for kind in kinds:
        try:
            return convert(kind, value, place)
        except PayloadError as error:
            errors.append(error)
    if value is not None and len(errors) == 2 and type(None) in kinds:
        raise errors[kinds.index(type(None)) == 0]  # That of the type which may be missing.
    raise _refuse(place, " or ".join(map(_name, kinds)), value)


def _data_fields(kind: Any) -> dict[str, bool]:
    """Return the fields of a dataclass, and whether a payload must have them."""
    missing = dataclasses.MISSING
    return {
        field.name: field.default is missing and field.default_factory is missing
        for field in dataclasses.fields(kind)
        if field.init
    }


def _dict_fields(kind: Any) -> dict[str, bool]:
    """Return the same of a TypedDict. Where annotations are text, as with `from __future__ import
    annotations`, Python itself does not see that a key is not required."""
    return {
        name: name in kind.__required_keys__ and typing.get_origin(hint) is not typing.NotRequired
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    }


def _convert_fields(kind: Any, required: dict[str, bool], value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(place, f"an object for {_name(kind)}", value)
    if lacking := [name for name, must in required.items() if must and name not in value]:
        raise PayloadError(f"{place} lacks {', '.join(lacking)} of {_name(kind)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: convert(hints[name], value[name], f"{place}.{name}")
        for name in required
        if name in value
    }


def _decode_text(payload: bytes | None) -> str:
    if payload is None:
        raise PayloadError("the record has no value")
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"the payload is not UTF-8: {error}") from None


def _decode_by(codec: Codec, payload: bytes | None) -> Any:
    if payload is None:
        raise PayloadError("the record has no value")
    return _validate(codec.decode, payload)


def _decode_model(kind: Any, payload: bytes | None) -> Any:
    if payload is None:
        raise PayloadError("the record has no value")
    return _validate(kind.model_validate_json, payload)


def _validate(call: Callable[[Any], Any], value: Any) -> Any:
    try:
        return call(value)
    except Exception as error:  # Models and codecs have exceptions of their own.
        raise PayloadError(f"{type(error).__name__}: {error}") from error


def _parse(payload: bytes | None) -> Any:
    if payload is None:
        return None
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is not JSON: {error}") from None


def _refuse(place: str, expected: str, value: Any) -> PayloadError:
    text = json.dumps(value, default=repr)
    return PayloadError(f"{place} is {text[:60]}{'…' * (len(text) > 60)}, but not {expected}")


def _name(kind: Any) -> str:
    return "null" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a type of JSON")
