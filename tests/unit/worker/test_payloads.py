"""Payloads of jobs: what handlers ask for by their annotations, and what producers send."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - annotations of payloads are read when they run
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID  # noqa: TC003

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.worker import PayloadError
from shoal.worker.payloads import encode, make_decoder


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Size:
    width: int
    height: int = 10


@dataclass
class Image:
    name: str
    sizes: list[Size] = field(default_factory=list)
    scale: float | None = None
    colour: Colour = Colour.RED
    taken: datetime | None = None
    id: UUID | None = None
    raw: bytes = b""
    tags: dict[str, int] = field(default_factory=dict)
    corner: tuple[int, int] = (0, 0)
    mode: Literal["fast", "good"] = "fast"


class Order(TypedDict):
    total: int
    note: NotRequired[str]


class Model(pydantic.BaseModel):
    total: int


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "grün".encode(), "grün"),
        (Image, b'{"name": "a", "more": 1}', Image("a")),
        (
            Image,
            b'{"name":"a","sizes":[{"width":1}],"scale":2,"colour":"red","corner":[1,2]}',
            Image("a", [Size(1)], 2.0, corner=(1, 2)),
        ),
        (Order, b'{"total": 1, "more": 2}', {"total": 1}),
        (Order | None, b"null", None),
        (list[Size], b'[{"width": 1, "height": 2}]', [Size(1, 2)]),
        (Model, b'{"total": "7"}', Model(total=7)),
        (list[Model], b'[{"total": 7}]', [Model(total=7)]),
        (dict[str, Any], b'{"a": [1]}', {"a": [1]}),
    ],
)
def test_a_payload_becomes_the_annotated_type(kind: Any, payload: bytes, value: Any) -> None:
    assert make_decoder(kind)(payload) == value


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (str, b"\xff", "not UTF-8"),
        (str, None, "no value"),
        (Image, b"{", "not JSON"),
        (Image, b"[" * 100_000, "not JSON"),
        (Image, b"[1]", "payload is [1], but not an object for Image"),
        (Image, b"{}", "payload lacks name of Image"),
        (Image, b'{"name": 7}', "payload.name is 7, but not str"),
        (Image, b'{"name":"a","sizes":[{"width":true}]}', "payload.sizes[0].width is true"),
        (Image, b'{"name":"a","scale":"x"}', 'payload.scale is "x", but not float'),
        (Image, b'{"name":"a","colour":"blue"}', 'payload.colour is "blue", but not Colour'),
        (Image, b'{"name":"a","corner":[1]}', "payload.corner is [1], but not an array of 2"),
        (Image, b'{"name":"a","mode":"slow"}', 'payload.mode is "slow"'),
        (Image, b'{"name":"a","taken":"soon"}', 'payload.taken is "soon", but not datetime'),
        (Order, b'{"note": "x"}', "payload lacks total of Order"),
        (Model, b"{}", "ValidationError"),
        (int, b"1.5", "payload is 1.5, but not int"),
    ],
)
def test_a_payload_of_another_type_is_refused_with_its_place(
    kind: Any, payload: bytes | None, message: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        make_decoder(kind)(payload)
    assert message in str(refused.value)


_IMAGES = st.builds(
    Image,
    name=st.text(),
    sizes=st.lists(st.builds(Size, width=st.integers(), height=st.integers())),
    scale=st.none() | st.floats(allow_nan=False),
    taken=st.none() | st.datetimes(),
    id=st.none() | st.uuids(),
    raw=st.binary(),
    tags=st.dictionaries(st.text(), st.integers()),
    corner=st.tuples(st.integers(), st.integers()),
)


@given(_IMAGES)
def test_what_a_producer_encodes_a_handler_decodes(image: Image) -> None:
    assert make_decoder(Image)(encode(image)) == image


def test_a_value_that_json_lacks_is_refused() -> None:
    with pytest.raises(PayloadError, match="a dict cannot be sent: object is not a type of JSON"):
        encode({"a": object()})


class Reversed:
    """A codec of an application."""

    def encode(self, value: str) -> bytes:
        return value[::-1].encode()

    def decode(self, payload: bytes) -> str:
        return payload.decode("ascii")[::-1]


def test_a_codec_of_the_application_has_the_last_word() -> None:
    decode = make_decoder(int, Reversed())
    assert decode(encode("abc", Reversed())) == "abc"
    with pytest.raises(PayloadError, match="UnicodeDecodeError"):
        decode(b"\xff")
