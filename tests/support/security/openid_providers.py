"""A small OpenID provider: real HTTP and real RS256 keys. It logs `user` in without asking."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus, urlencode

import jwt
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

CLIENT_ID, CLIENT_SECRET = "shoal:console", "s3cret +%"


@functools.cache
def _make_key(_rotation: int) -> rsa.RSAPrivateKey:
    """Return the key of a rotation, which all providers share: to make one takes 70 ms."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class OpenIdProvider:
    """One provider. A test changes its attributes to make it answer in another way."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.issuer = ""
        self.user = "ann"
        #: Changes the claims of the next ID token.
        self.change: Callable[[dict[str, Any]], None] = lambda _claims: None
        #: Signs an ID token.
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        self.access_token: Callable[[str], str] = lambda user: f"access.{user}.{self.renewals}"
        self.lifetime_s = 300
        self.has_refresh = False
        self.metadata: dict[str, Any] = {}
        #: Parameters of the next answer to the browser.
        self.answer: dict[str, str] = {}
        self.refuses = False
        #: The answer to a revocation, and those that were asked for.
        self.revoke: Callable[[], Awaitable[web.Response]] = _done
        self.revoked: list[dict[str, str]] = []
        self.renewals = 0
        #: The queries of /authorize, and the forms of /token.
        self.asked: list[dict[str, str]] = []
        self.forms: list[dict[str, str]] = []
        self._rotations = 0
        self.rotate()
        self._codes: dict[str, dict[str, str]] = {}

    def rotate(self) -> None:
        """Use a new key."""
        self._rotations += 1
        self.key = _make_key(self._rotations)
        self.key_id = secrets.token_hex(4)

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, "RS256", headers={"kid": self.key_id})

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._metadata)
        app.router.add_get("/jwks", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        app.router.add_post("/revoke", self._revoke)
        return app

    async def _metadata(self, _request: web.Request) -> web.Response:
        found = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/end",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "authorization_response_iss_parameter_supported": True,
        }
        return web.json_response({**found, **self.metadata})

    async def _keys(self, _request: web.Request) -> web.Response:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return web.json_response({"keys": [{**public, "kid": self.key_id, "use": "sig"}]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        self.asked.append(asked)
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.issuer, **self.answer}
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        login = encode_basic_auth(quote_plus(CLIENT_ID), quote_plus(CLIENT_SECRET))
        if request.headers.get("Authorization") != login:
            return web.json_response({"error": "invalid_client"}, status=401)
        if self.refuses:
            refusal = {"error": "invalid_grant", "error_description": "Session not <active>"}
            return web.json_response(refusal, status=400)
        if form["grant_type"] == "refresh_token":
            self.renewals += 1
            return web.json_response(self._tokens())
        asked = self._codes.pop(form["code"], None)
        verifier = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != challenge
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(self.clock())
        claims = {
            "iss": self.issuer,
            "sub": self.user,
            "aud": CLIENT_ID,
            "nonce": asked["nonce"],
            "iat": now,
            "exp": now + 300,
        }
        self.change(claims)
        return web.json_response({**self._tokens(), "id_token": self.sign(claims)})

    async def _revoke(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        login = encode_basic_auth(quote_plus(CLIENT_ID), quote_plus(CLIENT_SECRET))
        assert request.headers.get("Authorization") == login
        self.revoked.append(form)
        return await self.revoke()

    def _tokens(self) -> dict[str, Any]:
        found = {
            "access_token": self.access_token(self.user),
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
        }
        if self.has_refresh:
            found["refresh_token"] = f"refresh {self.renewals}"
        return found


async def _done() -> web.Response:
    """Answer without a body, as RFC 7009 wants it."""
    return web.Response()


@asynccontextmanager
async def openid_provider(
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[OpenIdProvider]:
    """Serve a provider on a free port."""
    provider = OpenIdProvider(clock)
    async with TestServer(provider.application()) as server:
        provider.issuer = f"http://127.0.0.1:{server.port}"
        yield provider
