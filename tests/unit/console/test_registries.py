"""Payloads in the wire format of a schema registry, with a small registry over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest
from shoal.client.security.secret import Secret
from shoal.console.login_files import InvalidAccess
from shoal.console.reading import registries
from shoal.console.reading.masks import MaskRule, Masks
from shoal.console.reading.payloads import (
    DecodedPayload,
    MaskedPayload,
    UndecodedPayload,
    preview,
    render_payload,
)
from shoal.console.reading.registries import (
    DECODED_BYTES_MAX,
    Registry,
    RegistrySettings,
    parse_registry,
)
from shoal.console.reading.views import RecordView
from shoal.record.records import Record
from support.brokers.ports import free_ports
from support.console.schema_registries import SchemaRegistry, schema_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "card", "type": "string"}, {"name": "n", "type": "int"}],
}
DATA = b"\x084111\x02"


def wire(id: int, data: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + data


def run(call: Callable[[SchemaRegistry, Registry], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with schema_registry() as served:
            served.add(7, ORDER)
            registry = Registry(RegistrySettings(served.url))
            try:
                await call(served, registry)
            finally:
                await registry.close()

    asyncio.run(whole())


def test_avro_is_json() -> None:
    async def call(served: SchemaRegistry, registry: Registry) -> None:
        payload = wire(7, DATA)
        found = await registry.decode_payload(payload)
        assert isinstance(found, DecodedPayload)
        assert json.loads(found) == {"card": "4111", "n": 1}
        assert (found.raw, found.what) == (payload, "Avro, schema 7")
        shown = render_payload(found)
        assert (shown.format, shown.what, shown.size_bytes) == ("json", "Avro, schema 7", 11)
        assert render_payload(found, "hex").text.startswith("00000000  00 00 00 00 07 08")
        assert preview(found) == '{"card": "4111", "n": 1}'
        for one in (None, b"", b"\0\0\0\0\7", b"plain", b"\1\0\0\0\7x"):
            assert await registry.decode_payload(one) == one
            assert not isinstance(
                await registry.decode_payload(one), DecodedPayload | UndecodedPayload
            )
        await asyncio.gather(*(registry.decode_payload(payload) for _ in range(20)))
        assert served.asked == ["/schemas/ids/7"], "a schema is read once"

    run(call)


def test_callers_share_a_request() -> None:
    async def call(served: SchemaRegistry, registry: Registry) -> None:
        found = await asyncio.gather(*(registry.decode_payload(wire(7, DATA)) for _ in range(20)))
        assert all(isinstance(one, DecodedPayload) for one in found)
        assert len(served.asked) == 1

    run(call)


def test_json_schema_and_references() -> None:
    async def call(served: SchemaRegistry, registry: Registry) -> None:
        served.add(8, "{}", "JSON")
        found = await registry.decode_payload(wire(8, b'{"a": 1}'))
        assert found == b'{"a": 1}'
        assert render_payload(found).what == "JSON with schema 8"
        order = {"type": "record", "name": "Pair", "fields": [{"name": "o", "type": "Order"}]}
        served.versions["orders/value", "3"] = {"schema": json.dumps(ORDER)}
        reference = {"name": "Order", "subject": "orders/value", "version": 3}
        served.add(9, order, references=[reference, reference])
        found = await registry.decode_payload(wire(9, DATA))
        assert json.loads(found or b"") == {"o": {"card": "4111", "n": 1}}

    run(call)


def test_protobuf_is_json() -> None:
    async def call(served: SchemaRegistry, registry: Registry) -> None:
        served.versions["money", "1"] = {"schema": "package m; message Money { int64 cents = 1; }"}
        reference = {"name": "money.proto", "subject": "money", "version": 1}
        bill = 'import "money.proto"; message Bill { m.Money total = 1; string card = 2; }'
        served.add(20, bill, "PROTOBUF", [reference])
        found = await registry.decode_payload(wire(20, b"\0\x0a\x02\x08\x05\x12\x044111"))
        assert json.loads(found or b"") == {"total": {"cents": 5}, "card": "4111"}
        assert render_payload(found).what == "Protobuf, schema 20"

    run(call)


def test_what_cannot_be_decoded_says_why() -> None:
    async def call(served: SchemaRegistry, registry: Registry) -> None:
        served.add(8, "<x/>", "XML")
        served.add(12, "message M {", "PROTOBUF")
        served.add(13, "message M { int32 n = 1; }", "PROTOBUF")
        served.add(9, {"type": "record", "name": "R"})
        served.add(10, {"type": "array", "items": "Gone"}, references=[{"subject": "x"}])
        for payload, why in (
            (wire(7, DATA[:-1]), "It is not Avro of schema 7: 1 bytes are expected at 5"),
            (wire(7, DATA + b"x"), "It is not Avro of schema 7: 1 bytes are left."),
            (wire(8, DATA), "Schema 8 is 'XML', which the console does not decode."),
            (wire(12, DATA), "Schema 12 cannot be used: it ends too early."),
            (wire(13, b"\0\x10\1"), "It is not Protobuf of schema 13: message M has no field 2."),
            (wire(9, DATA), "Schema 9 cannot be used: the schema is not one of Avro"),
            (wire(10, DATA), "answers 404 to /subjects/x/versions/None"),
            (wire(11, DATA), "The schema registry answers 404 to /schemas/ids/11."),
            (wire(7, b"x" * DECODED_BYTES_MAX), "of more than 256 KiB are not decoded."),
        ):
            found = await registry.decode_payload(payload)
            assert isinstance(found, UndecodedPayload)
            assert found == payload
            assert why in found.why
            assert render_payload(found).note == found.why
            assert render_payload(found).format == "hex"
        before = len(served.asked)
        await registry.decode_payload(wire(11, DATA))
        assert len(served.asked) == before, "what is missing is not asked for again at once"

    run(call)


def test_a_registry_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "shoal.console")

    async def call(served: SchemaRegistry, registry: Registry) -> None:
        served.status = 503
        found = await registry.decode_payload(wire(7, DATA))
        assert isinstance(found, UndecodedPayload)
        assert found.why == f"The schema registry at {served.url} does not answer."
        await registry.decode_payload(wire(8, DATA))
        assert len(served.asked) == 1, "there is a pause"
        served.status = 200
        monkeypatch.setattr(registries, "PAUSE_S", 0.0)
        monkeypatch.setattr(registry, "_pause_until_s", 0.0)
        assert isinstance(await registry.decode_payload(wire(7, DATA)), DecodedPayload)
        served.body = b"{}" + b" " * registries.ANSWER_BYTES_MAX
        found = await registry.decode_payload(wire(20, DATA))
        assert "is too large" in render_payload(found).note
        served.body = b"[]"
        assert "answers 200" in render_payload(await registry.decode_payload(wire(21, DATA))).note

    run(call)
    assert "schema registry http://127.0.0.1" in caplog.text

    async def nobody() -> None:
        (port,) = free_ports(1)
        registry = Registry(RegistrySettings(f"http://127.0.0.1:{port}"))
        found = await registry.decode_payload(wire(7, DATA))
        assert "does not answer" in render_payload(found).note
        await registry.close()

    asyncio.run(nobody())


def test_a_login_at_the_registry(caplog: pytest.LogCaptureFixture) -> None:
    async def call(served: SchemaRegistry, anonymous: Registry) -> None:
        served.require("console", "s3cret")
        found = await anonymous.decode_payload(wire(7, DATA))
        assert "answers 401" in render_payload(found).note
        registry = Registry(RegistrySettings(served.url, "console", Secret("s3cret")))
        assert isinstance(await registry.decode_payload(wire(7, DATA)), DecodedPayload)
        await registry.close()

    run(call)
    assert "s3cret" not in caplog.text


def test_masks_apply_to_what_is_decoded() -> None:
    async def call(_served: SchemaRegistry, registry: Registry) -> None:
        view = RecordView(Masks((MaskRule(("orders",), fields=("card",)),)), registry)
        record = Record(0, 0, wire(7, DATA), wire(7, DATA), ())
        shown = await view.prepare_record("orders", record)
        for payload in (shown.key, shown.value, await view.prepare_key("orders", record.key)):
            assert isinstance(payload, MaskedPayload)
            assert payload == b'{"card": "[masked]", "n": 1}'
            assert (payload.size_bytes, payload.what) == (11, "Avro, schema 7")
            for wanted in ("auto", "json", "text", "hex"):
                found = render_payload(payload, wanted)
                assert "4111" not in found.text
                assert b"4111".hex(" ") not in found.text
                assert (found.masked_fields, found.what) == (1, "Avro, schema 7")
        broken = await view.prepare_record("orders", record._replace(value=wire(7, DATA + b"x")))
        assert isinstance(broken.value, MaskedPayload)
        assert broken.value.is_whole

    run(call)


def test_settings() -> None:
    found = parse_registry("https://r.example/apis/ccompat/v7/", "ann:a:b\n", "ca.pem")
    assert (found.url, found.user) == ("https://r.example/apis/ccompat/v7", "ann")
    assert found.password.reveal() == "a:b"
    for url in ("r.example", "ftp://r.example", "https://ann:s3cret@r.example"):
        with pytest.raises(InvalidAccess, match="--schema-registry must be") as raised:
            parse_registry(url, "", "")
        assert "s3cret" not in str(raised.value)
    with pytest.raises(InvalidAccess, match="must have a line USER:PASSWORD"):
        parse_registry("https://r.example", "ann", "")
