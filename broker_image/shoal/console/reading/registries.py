"""Values and keys in the wire format of a schema registry, as JSON for readers.

The format is a byte 0, the id of a schema in four bytes, and the data. The registry has the API of
Confluent's; Apicurio Registry and Karapace have it, too. Schemas never change, so they are kept. If
the registry does not answer, it is not asked again for `PAUSE_S`: payloads are then shown as bytes.

The console reads the formats itself. The usual packages would be two more in the image, and do not
bound what a few hostile bytes expand to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from shoal.client.security.secret import NO_SECRET, Secret
from shoal.console.login_files import InvalidAccess, parse_login
from shoal.console.reading import avro, protobuf
from shoal.console.reading.payloads import DecodedPayload, UndecodedPayload
from shoal.security import strict_verification

if TYPE_CHECKING:
    from shoal.record.records import Record

log = logging.getLogger("shoal.console")
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
_WORDS = {AVRO: "Avro", JSON: "JSON", PROTOBUF: "Protobuf"}
HEADER_SIZE = 5
#: Schemas that are kept, and the time for which a schema that is missing is not asked for.
SCHEMAS_MAX, MISSING_S = 1_000, 60.0
#: Seconds for one answer, bytes of it, and the pause after a failure.
ANSWER_S_MAX, ANSWER_BYTES_MAX, PAUSE_S = 3.0, 1 << 20, 10.0
#: Schemas that one schema refers to.
REFERENCES_MAX = 100
#: Bytes of a payload that is decoded.
DECODED_BYTES_MAX = 256 << 10


class RegistrySettings(NamedTuple):
    """Where the registry is, and the console's login there."""

    url: str
    user: str = ""
    password: Secret = NO_SECRET
    ca: str = ""


class _RegistryError(Exception):
    """Why there is no schema, as a sentence."""


class _SchemaEntry(NamedTuple):
    """A schema, or why there is none until a time."""

    kind: str = ""
    schema: avro.AvroSchema | protobuf.ProtobufSchema | None = None
    why: str = ""
    until_s: float = float("inf")


def parse_registry(url: str, login: str, ca: str) -> RegistrySettings:
    """Return the settings; `login` is USER:PASSWORD or empty. Raises `InvalidAccess`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise InvalidAccess(
            "--schema-registry must be an address with http:// or https:// and without a user, not"
            f" {url.rpartition('@')[2]!r:.200}"
        )
    return RegistrySettings(url.rstrip("/"), *parse_login(login, "--schema-registry-login"), ca)


class Registry:
    """The schemas of one registry that the console has read."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._http: aiohttp.ClientSession | None = None
        self._schemas: OrderedDict[int, _SchemaEntry] = OrderedDict()
        self._reading: dict[int, asyncio.Task[_SchemaEntry]] = {}
        self._pause_until_s = 0.0

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def decode_record(self, record: Record) -> Record:
        """Return a record whose key and value are decoded as far as they can be."""
        return record._replace(
            key=await self.decode_payload(record.key),
            value=await self.decode_payload(record.value),
        )

    async def decode_payload(self, payload: bytes | None) -> bytes | None:
        """Return a payload as JSON, or the payload if it is not in the wire format."""
        if payload is None or len(payload) <= HEADER_SIZE or payload[0] != 0:
            return payload
        id = int.from_bytes(payload[1:HEADER_SIZE], "big")
        if len(payload) > DECODED_BYTES_MAX:
            size = f"{DECODED_BYTES_MAX >> 10} KiB"
            return UndecodedPayload(payload, f"Payloads of more than {size} are not decoded.")
        entry = await self._get_schema(id)
        if entry.why:
            return UndecodedPayload(payload, entry.why)
        data = payload[HEADER_SIZE:]
        if entry.schema is None:
            return DecodedPayload(data, raw=payload, what=f"JSON with schema {id}")
        try:
            text = entry.schema.to_json(data)
        except (avro.MalformedData, protobuf.MalformedMessage) as error:
            return UndecodedPayload(
                payload, f"It is not {_WORDS[entry.kind]} of schema {id}: {error}."
            )
        description = f"{_WORDS[entry.kind]}, schema {id}"
        return DecodedPayload(text.encode(errors="replace"), raw=payload, what=description)

    async def _get_schema(self, id: int) -> _SchemaEntry:
        """Return a schema, from memory if it was read before. Callers share a request."""
        entry = self._schemas.get(id)
        now_s = time.monotonic()
        if entry is not None and now_s < entry.until_s:
            return entry
        if now_s < self._pause_until_s:
            return _SchemaEntry(why=f"The schema registry at {self._settings.url} does not answer.")
        if id not in self._reading:
            self._reading[id] = asyncio.create_task(self._read_schema(id), name=f"schema {id}")
            self._reading[id].add_done_callback(lambda _: self._reading.pop(id, None))
        return await asyncio.shield(self._reading[id])

    async def _read_schema(self, id: int) -> _SchemaEntry:
        try:
            document = await self._request_json(f"/schemas/ids/{id}")
            entry = await self._compile(id, document)
        except _RegistryError as error:
            entry = _SchemaEntry(why=str(error), until_s=time.monotonic() + MISSING_S)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"{error or 'no answer in time'}{strict_verification.find_remedy(error)}"
            log.warning("schema registry %s: %s", self._settings.url, reason)
            self._pause_until_s = time.monotonic() + PAUSE_S
            return _SchemaEntry(why=f"The schema registry at {self._settings.url} does not answer.")
        self._schemas[id] = entry
        if len(self._schemas) > SCHEMAS_MAX:
            self._schemas.popitem(last=False)
        return entry

    async def _compile(self, id: int, document: dict[str, Any]) -> _SchemaEntry:
        kind = str(document.get("schemaType") or AVRO)
        if kind == JSON:
            return _SchemaEntry(kind)
        if kind not in _WORDS:
            raise _RegistryError(
                f"Schema {id} is {kind[:20]!r}, which the console does not decode."
            )
        references: dict[tuple[str, str], str] = {}
        await self._read_references(document.get("references"), references)
        try:
            read = avro.AvroSchema if kind == AVRO else protobuf.ProtobufSchema
            return _SchemaEntry(kind, read(str(document.get("schema")), references.values()))
        except (avro.InvalidAvroSchema, protobuf.InvalidProtobufSchema) as error:
            raise _RegistryError(f"Schema {id} cannot be used: {error}.") from None

    async def _read_references(self, references: Any, schemas: dict[tuple[str, str], str]) -> None:
        """Read the schemas that a schema refers to; those that others use come first."""
        for reference in references if isinstance(references, list) else []:
            name = (str(reference.get("subject")), str(reference.get("version")))
            if name in schemas:
                continue
            if len(schemas) >= REFERENCES_MAX:
                raise _RegistryError(f"The schema refers to more than {REFERENCES_MAX} others.")
            subject, version = (quote(part, safe="") for part in name)
            answer = await self._request_json(f"/subjects/{subject}/versions/{version}")
            await self._read_references(answer.get("references"), schemas)
            schemas[name] = str(answer.get("schema"))

    async def _request_json(self, path: str) -> dict[str, Any]:
        """Return the JSON object of an answer. Raises `_RegistryError` and aiohttp's errors."""
        if self._http is None:
            self._http = self._open_session()
        body = b""
        url = self._settings.url + path
        async with self._http.get(url, allow_redirects=False) as answer:
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise _RegistryError(f"The answer of {url} is too large.")
        if answer.status >= 500:
            raise aiohttp.ClientError(f"{url} answers {answer.status}")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if answer.status != 200 or not isinstance(document, dict):
            raise _RegistryError(
                f"The schema registry answers {answer.status} to {path}."
                + (" The schema is missing there." if answer.status == 404 else "")
            )
        return document

    def _open_session(self) -> aiohttp.ClientSession:
        settings, headers = self._settings, {"Accept": "application/json"}
        context = ssl.create_default_context()
        if settings.ca:
            context.load_verify_locations(settings.ca)
        if settings.user:
            pair = (settings.user, settings.password.reveal())
            headers["Authorization"] = aiohttp.encode_basic_auth(*pair)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            headers=headers,
        )
