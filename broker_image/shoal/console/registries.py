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

from shoal.client.secret import NO_SECRET, Secret
from shoal.console import avro, protobuf
from shoal.console.payloads import Decoded, Undecoded
from shoal.console.security import InvalidAccess, parse_login
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


class _Failure(Exception):
    """Why there is no schema, as a sentence."""


class _Known(NamedTuple):
    """A schema, or why there is none until a time."""

    kind: str = ""
    schema: avro.Schema | protobuf.Schema | None = None
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
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._reading: dict[int, asyncio.Task[_Known]] = {}
        self._pause_until_s = 0.0

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def decoded(self, record: Record) -> Record:
        """Return a record whose key and value are decoded as far as they can be."""
        return record._replace(
            key=await self.decoded_payload(record.key),
            value=await self.decoded_payload(record.value),
        )

    async def decoded_payload(self, payload: bytes | None) -> bytes | None:
        """Return a payload as JSON, or the payload if it is not in the wire format."""
        if payload is None or len(payload) <= HEADER_SIZE or payload[0] != 0:
            return payload
        id = int.from_bytes(payload[1:HEADER_SIZE], "big")
        if len(payload) > DECODED_BYTES_MAX:
            size = f"{DECODED_BYTES_MAX >> 10} KiB"
            return Undecoded(payload, f"Payloads of more than {size} are not decoded.")
        known = await self._schema(id)
        if known.why:
            return Undecoded(payload, known.why)
        data = payload[HEADER_SIZE:]
        if known.schema is None:
            return Decoded(data, raw=payload, what=f"JSON with schema {id}")
        try:
            text = known.schema.json(data)
        except (avro.Malformed, protobuf.Malformed) as error:
            return Undecoded(payload, f"It is not {_WORDS[known.kind]} of schema {id}: {error}.")
        what = f"{_WORDS[known.kind]}, schema {id}"
        return Decoded(text.encode(errors="replace"), raw=payload, what=what)

    async def _schema(self, id: int) -> _Known:
        """Return a schema, from memory if it was read before. Callers share a request."""
        known = self._known.get(id)
        now_s = time.monotonic()
        if known is not None and now_s < known.until_s:
            return known
        if now_s < self._pause_until_s:
            return _Known(why=f"The schema registry at {self._settings.url} does not answer.")
        if id not in self._reading:
            self._reading[id] = asyncio.create_task(self._read(id), name=f"schema {id}")
            self._reading[id].add_done_callback(lambda _: self._reading.pop(id, None))
        return await asyncio.shield(self._reading[id])

    async def _read(self, id: int) -> _Known:
        try:
            found = await self._answer(f"/schemas/ids/{id}")
            known = await self._compiled(id, found)
        except _Failure as error:
            known = _Known(why=str(error), until_s=time.monotonic() + MISSING_S)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"{error or 'no answer in time'}{strict_verification.remedy(error)}"
            log.warning("schema registry %s: %s", self._settings.url, reason)
            self._pause_until_s = time.monotonic() + PAUSE_S
            return _Known(why=f"The schema registry at {self._settings.url} does not answer.")
        self._known[id] = known
        if len(self._known) > SCHEMAS_MAX:
            self._known.popitem(last=False)
        return known

    async def _compiled(self, id: int, found: dict[str, Any]) -> _Known:
        kind = str(found.get("schemaType") or AVRO)
        if kind == JSON:
            return _Known(kind)
        if kind not in _WORDS:
            raise _Failure(f"Schema {id} is {kind[:20]!r}, which the console does not decode.")
        references: dict[tuple[str, str], str] = {}
        await self._refer(found.get("references"), references)
        try:
            read = avro.Schema if kind == AVRO else protobuf.Schema
            return _Known(kind, read(str(found.get("schema")), references.values()))
        except (avro.InvalidSchema, protobuf.InvalidSchema) as error:
            raise _Failure(f"Schema {id} cannot be used: {error}.") from None

    async def _refer(self, given: Any, found: dict[tuple[str, str], str]) -> None:
        """Read the schemas that a schema refers to; those that others use come first."""
        for one in given if isinstance(given, list) else []:
            name = (str(one.get("subject")), str(one.get("version")))
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise _Failure(f"The schema refers to more than {REFERENCES_MAX} others.")
            subject, version = (quote(part, safe="") for part in name)
            answer = await self._answer(f"/subjects/{subject}/versions/{version}")
            await self._refer(answer.get("references"), found)
            found[name] = str(answer.get("schema"))

    async def _answer(self, path: str) -> dict[str, Any]:
        """Return the JSON object of an answer. Raises `_Failure` and aiohttp's errors."""
        if self._http is None:
            self._http = self._session()
        body = b""
        url = self._settings.url + path
        async with self._http.get(url, allow_redirects=False) as answer:
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise _Failure(f"The answer of {url} is too large.")
        if answer.status >= 500:
            raise aiohttp.ClientError(f"{url} answers {answer.status}")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if answer.status != 200 or not isinstance(found, dict):
            raise _Failure(
                f"The schema registry answers {answer.status} to {path}."
                + (" The schema is missing there." if answer.status == 404 else "")
            )
        return found

    def _session(self) -> aiohttp.ClientSession:
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
