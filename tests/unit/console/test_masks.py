"""What rules mask of a record, and which rules are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.console.reading.masks import (
    MASKED_BYTES_MAX,
    OFF,
    InvalidMasks,
    MaskRule,
    Masks,
    parse_masks,
)
from shoal.console.reading.payloads import MaskedPayload, preview, render_payload
from shoal.record.records import Record

CARD = Masks((MaskRule(("orders*",), fields=("card",)),))
MASK = "[masked]"


def record(value: bytes | None, key: bytes | None = b"k", **headers: bytes) -> Record:
    return Record(7, 0, key, value, tuple((n.replace("_", "."), v) for n, v in headers.items()))


def masked(value: str, *fields: str) -> str:
    """Return what is shown of a value if these fields are masked."""
    masks = Masks((MaskRule(("t",), fields=fields),))
    return (masks.mask_record("t", record(value.encode())).value or b"").decode()


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("card", '{"card": 4111, "n": 1}', '{"card": "[masked]", "n": 1}'),
        ("card", '{"a": [{"card": {"x": [1, {}]}}]}', '{"a": [{"card": "[masked]"}]}'),
        ("a.card", '{"a": [[{"card": 1}], {"card": null}]}', None),
        ("a.card", '{"card": 1, "b": {"a": {"card": 2}}}', '{"card": 1, "b": {"a": {"card": 2}}}'),
        ("*.card", '{"card": 1, "b": {"card": 2}}', '{"card": 1, "b": {"card": "[masked]"}}'),
        ("card*", '{"cards": [], "card_no": "", "discard": 1}', None),
        ("a.card", '{"a.card": 1}', '{"a.card": "[masked]"}'),
        ("card", '{"card": 1, "card": 2}', '{"card": "[masked]", "card": "[masked]"}'),
        ("card", r'{"c\u0061rd": 1}', r'{"c\u0061rd": "[masked]"}'),
        ("", '{"": 1, "n": 1.50}', '{"": "[masked]", "n": 1.50}'),
        ("card", '[{"card": 1}]', '[{"card": "[masked]"}]'),
        ("card", '{"n": 1.000, "e": {}, "f": []}', '{"n": 1.000, "e": {}, "f": []}'),
        ("x", '{"x": "a\\"}, \\\\", "y": "}"}', '{"x": "[masked]", "y": "}"}'),
    ],
)
def test_fields(field: str, value: str, wanted: str | None) -> None:
    found = masked(value, field)
    if wanted is None:
        assert MASK in found
        assert "4" not in found
        wanted = {
            "a.card": '{"a": [[{"card": "[masked]"}], {"card": "[masked]"}]}',
            "card*": '{"cards": "[masked]", "card_no": "[masked]", "discard": 1}',
        }[field]
    assert found == wanted


INNER = '{"card": 4111}'


def test_json_in_json() -> None:
    inner = json.dumps({"card": 4111, "n": [1]})
    found = json.loads(masked(json.dumps({"body": inner, "n": 2}), "body.card"))
    assert json.loads(found["body"]) == {"card": MASK, "n": [1]}
    cut = masked(json.dumps({"body": inner[:-3]}), "card")
    assert json.loads(cut) == {"body": MASK}, "what only begins like JSON is masked"
    assert masked('{"body": "plain"}', "card") == '{"body": "plain"}'


@pytest.mark.parametrize(
    "body",
    [
        "\ufeff" + INNER,
        " \ufeff\xa0" + INNER,
        json.dumps(INNER),
        json.dumps(json.dumps("\ufeff" + INNER)),
        json.dumps(["a", json.dumps(INNER)]),
        f"body={INNER}",
        f'"a" {INNER}',
        f'"{INNER}',
    ],
)
def test_json_in_text_has_no_place_to_hide(body: str) -> None:
    found = masked(json.dumps({"body": body, "n": 2}), "card")
    assert "4111" not in found
    assert json.loads(found)["n"] == 2


@pytest.mark.parametrize("body", ["plain", '"quoted" words', '"', "a: b", "[1]", '"[1]"'])
def test_text_without_fields_is_shown(body: str) -> None:
    value = json.dumps({"body": body})
    assert masked(value, "card") == value


def test_json_with_a_byte_order_mark() -> None:
    value = b'\xef\xbb\xbf{"card": 4111, "n": 1}'
    assert CARD.mask_record("orders", record(value)).value == b'{"card": "[masked]", "n": 1}'
    assert CARD.mask_key("orders", value) == b'{"card": "[masked]", "n": 1}'
    for encoding in ("utf-16", "utf-16-be", "utf-16-le"):
        assert CARD.mask_key("orders", '{"card": 4111}'.encode(encoding)) == b"[masked]"


@pytest.mark.parametrize(
    "value",
    [
        b"card=4111",
        b'"4111"',
        b'{"card": 4111',
        b'{"card": 4111}{"card": 4111}',
        b"\xff\xfe{\x00",
        '{"card": 4111}'.encode("utf-16"),
        b'{"card": 4111, "x": "' + b"x" * MASKED_BYTES_MAX + b'"}',
        b"[" * 30_000 + b'{"card": 4111}' + b"]" * 30_000,
        b'{"a":' * 3_000 + b'{"card": 4111}' + b"}" * 3_000,
    ],
)
def test_what_cannot_be_read_is_masked_as_a_whole(value: bytes) -> None:
    shown = CARD.mask_record("orders-eu", record(value)).value
    assert isinstance(shown, MaskedPayload)
    assert shown.is_whole
    assert b"4111" not in shown
    assert shown.size_bytes == len(value)
    assert preview(shown) == MASK
    for wanted in ("auto", "json", "text", "hex"):
        found = render_payload(shown, wanted)
        assert (found.format, found.size_bytes) == ("masked", len(value))
        assert "A rule of this console masks fields" in found.text


def test_each_format_shows_the_mask() -> None:
    value = b'{"card": 4111, "n": 1}'
    shown = CARD.mask_record("orders", record(value)).value
    for wanted in ("auto", "json", "text", "hex"):
        found = render_payload(shown, wanted)
        assert (found.size_bytes, found.masked_fields) == (len(value), 1)
        assert "4111" not in found.text
        assert b"4111".hex(" ") not in found.text
    assert CARD.mask_record("others", record(value)).value is value


def test_a_key_has_fields_only_if_it_is_json() -> None:
    assert CARD.mask_key("orders", b"k1") == b"k1"
    assert CARD.mask_key("orders", b'{"card": 4111}') == b'{"card": "[masked]"}'
    assert CARD.mask_key("orders", b'{"card": 4111') == b"[masked]"
    assert CARD.mask_key("other", b'{"card": 4111}') == b'{"card": 4111}'
    assert CARD.mask_key("orders", None) is None


def test_keys_values_and_headers() -> None:
    masks = Masks(
        (
            MaskRule(("orders",), key=True),
            MaskRule(("order?",), headers=("X-*", "authorization")),
            MaskRule(("payments",), value=True),
        )
    )
    one = Record(0, 0, b"k", b"v", (("x-a", b"1"), ("Authorization", b"2"), ("n", b"3")))
    shown = masks.mask_record("orders", one)
    assert (shown.key, shown.value) == (b"[masked]", b"v")
    assert [(n, v) for n, v in shown.headers] == [
        ("x-a", b"[masked]"),
        ("Authorization", b"[masked]"),
        ("n", b"3"),
    ]
    shown = masks.mask_record("payments", one)
    assert (shown.key, shown.value, shown.headers) == (b"k", b"[masked]", one.headers)
    assert masks.mask_record("x", one) is one
    empty = Record(0, 0, None, b"", (("x-a", None),))
    assert masks.mask_record("orders", empty) == empty, "nothing is not masked"


def test_a_dead_letter_has_the_rules_of_its_source() -> None:
    value = b'{"card": 4111}'
    letter = record(value, __dlq_errors_topic=b"orders")
    letter = letter._replace(headers=(("__dlq.errors.topic", b"orders"),))
    assert b"4111" not in (CARD.mask_record("dlq", letter).value or b"")
    assert CARD.mask_record("dlq", record(value)).value is value
    own = Masks((MaskRule(("dlq",), key=True),))
    assert own.mask_record("dlq", letter).key == b"[masked]"


def test_no_payloads() -> None:
    shown = OFF.mask_record("t", record(b"v", n=b"h"))
    assert (shown.key, shown.value, shown.headers) == (
        b"[masked]",
        b"[masked]",
        (("n", b"[masked]"),),
    )
    assert render_payload(shown.value).text == "This console shows no payloads."


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("card"), inner),
    max_leaves=20,
)


def _twin(value: Any) -> Any:
    """Mask the fields named card, the simple way."""
    if isinstance(value, dict):
        return {
            name: MASK if name.split(".")[-1] == "card" else _twin(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_twin(one) for one in value]
    return _twin_of_text(value) if isinstance(value, str) else value


def _twin_of_text(text: str) -> str:
    """Mask inside a text that is JSON, or a text of such a text; what looks like JSON and is none
    is masked as a whole."""
    inner = text.lstrip(" \t\r\n")
    is_text, has_fields = inner.startswith('"'), all(mark in inner for mark in '{":')
    if not (is_text or has_fields or inner[:1] in ("{", "[")):
        return text
    try:
        if not is_text and inner[:1] not in ("{", "["):
            raise ValueError
        values = json.loads(f"[{inner}]") if is_text else [json.loads(inner)]
    except ValueError:
        return MASK if has_fields or not is_text else text
    hidden = _twin(values)
    return text if hidden == values else json.dumps(hidden)[1:-1]


def _open_texts(value: Any) -> Any:
    """Replace each text that is JSON by its value: spaces in it may differ."""
    if isinstance(value, dict):
        return {name: _open_texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_open_texts(one) for one in value]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
        with contextlib.suppress(ValueError):
            return ["JSON", _open_texts(json.loads(value))]
    return value


#: Texts that are JSON, or nearly.
NEARLY = st.sampled_from(('{"card":1}', '[{"card": 1}]', ':"{', '"{', '"{"', ' "[1]"', "{", "[}"))


@given(st.dictionaries(st.text() | st.just("card"), JSON | NEARLY) | st.lists(JSON | NEARLY))
def test_any_json_is_masked_as_by_a_simple_twin(value: Any) -> None:
    assert _open_texts(json.loads(masked(json.dumps(value), "card"))) == _open_texts(_twin(value))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "rules.json is not JSON"),
        ("[]", 'rules.json must be a JSON object {"rules": [...]} and nothing else'),
        ('{"rules": {}}', "rules.json must be a JSON object"),
        ('{"rules": [], "rule": []}', "rules.json must be a JSON object"),
        ('{"rules": [1]}', "rule 1 of rules.json must be a JSON object"),
        ('{"rules": [{"topic": "a"}]}', "rule 1 of rules.json has 'topic'. Use topics, fields,"),
        ('{"rules": [{"topics": "a", "why": ""}]}', "has 'why'"),
        ('{"rules": [{"topics": "a"}]}', "rule 1 of rules.json masks nothing. Add fields"),
        ('{"rules": [{"key": true}]}', "rule 1 of rules.json has no topics"),
        ('{"rules": [{"topics": "a", "key": 1}]}', "key of rule 1 of rules.json must be true"),
        ('{"rules": [{"topics": [1], "key": true}]}', "topics of rule 1 of rules.json must be"),
        ('{"rules": [{"topics": "", "key": true}]}', "topics of rule 1 of rules.json must be"),
        ('{"rules": [{"topics": "a", "fields": {}}]}', "fields of rule 1 of rules.json must be"),
    ],
)
def test_rules_that_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidMasks) as raised:
        parse_masks(text, "rules.json")
    assert sentence in str(raised.value).replace("…", "...")


def test_rules_of_a_file() -> None:
    text = '{"rules": [{"topics": "a*", "fields": ["x.y", "z"]}, {"topics": ["b"], "key": true}]}'
    assert parse_masks(text, "f").rules == (
        MaskRule(("a*",), fields=("x.y", "z")),
        MaskRule(("b",), key=True),
    )


@pytest.mark.parametrize(
    ("rule", "may_show"),
    [
        (MaskRule(("orders",), key=True), False),
        (MaskRule(("orders",), fields=("card",)), False),
        (MaskRule(("orders",), fields=("name",)), True),
        (MaskRule(("dlq",), fields=("name",)), False),
        (MaskRule(("dlq",), headers=("*.code",)), False),
        (MaskRule(("dlq",), headers=("auth",)), True),
    ],
)
def test_the_reason_of_a_letter_that_is_in_flight_itself(rule: MaskRule, may_show: bool) -> None:
    """A group reads the topic of letters of `orders`. Its reason quotes the record from there."""
    letter = record(b'{"card": 4111}')
    letter = letter._replace(headers=(("__dlq.errors.topic", b"orders"),))
    masks = Masks((rule,))
    assert masks.may_show_reason(["dlq"], masks.mask_record("dlq", letter)) is may_show
