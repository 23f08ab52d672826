"""Payloads with the schemas of Apicurio Registry, by its API of Confluent's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shoal.console.reading.payloads import DecodedPayload
from shoal.console.reading.registries import Registry, RegistrySettings
from support.brokers.ports import free_ports
from support.kafka.maven import fetched
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.nightly, pytest.mark.java]
VERSION = "3.0.9"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
FOLDER = Path(__file__).parents[3] / "build" / "apicurio"
MONEY = {"type": "record", "name": "m.Money", "fields": [{"name": "cents", "type": "long"}]}
BILL = {
    "type": "record",
    "name": "Bill",
    "fields": [{"name": "card", "type": "string"}, {"name": "total", "type": "m.Money"}],
}
PROTO_MONEY = 'syntax = "proto3"; package m; message Money { int64 cents = 1; }'
PROTO_BILL = (
    'syntax = "proto3"; import "money.proto"; message Bill { string card = 1; m.Money total = 2; }'
)


def jar() -> Path:
    """Return the registry's program, which Maven fetches once into `build`."""
    found = FOLDER / f"apicurio-registry-app-{VERSION}-runner.jar"
    if not found.exists():
        artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
        name = f"apicurio-registry-app-{VERSION}-all.tar.gz"
        packed = fetched(artifact, FOLDER, name, SHA256)
        with tarfile.open(packed) as archive:
            archive.extractall(FOLDER, filter="data")
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    options = ["-Xmx512m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    words = ["java", *options, "-jar", str(jar())]
    log = (tmp_path_factory.mktemp("apicurio") / "log").open("w")
    process = subprocess.Popen(words, stdout=log, stderr=log)
    found = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def answers() -> bool:
        assert process.poll() is None, "the registry has ended"
        try:
            with urllib.request.urlopen(f"{found}/subjects", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        eventually(answers, timeout_s=120, what="the registry")
        yield found
    finally:
        process.kill()
        process.wait()
        log.close()


def register(
    url: str, subject: str, schema: str, kind: str = "AVRO", uses: tuple[str, str] | None = None
) -> int:
    """Register a schema, and return its id. It may use another one: its name and its subject."""
    body: dict[str, Any] = {"schema": schema, "schemaType": kind}
    if uses is not None:
        body["references"] = [{"name": uses[0], "subject": uses[1], "version": 1}]
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: int = json.load(answer)["id"]
        return found


def test_schemas_with_references(url: str) -> None:
    register(url, "money", json.dumps(MONEY))
    avro = register(url, "bill", json.dumps(BILL), uses=("m.Money", "money"))
    register(url, "money.proto", PROTO_MONEY, "PROTOBUF")
    uses = ("money.proto", "money.proto")
    protobuf = register(url, "bill.proto", PROTO_BILL, "PROTOBUF", uses)
    plain = register(url, "plain", '{"type": "object", "properties": {}}', "JSON")
    wanted = {"card": "4111", "total": {"cents": 5}}

    async def call() -> None:
        registry = Registry(RegistrySettings(url))
        for id, data in (
            (avro, b"\x084111\x0a"),
            (protobuf, b"\0\x0a\x044111\x12\x02\x08\x05"),
            (plain, json.dumps(wanted).encode()),
        ):
            found = await registry.decode_payload(b"\0" + id.to_bytes(4, "big") + data)
            assert isinstance(found, DecodedPayload), found
            assert json.loads(found) == wanted
        await registry.close()

    asyncio.run(call())
