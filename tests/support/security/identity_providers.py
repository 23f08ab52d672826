"""An identity provider for OAUTHBEARER: it issues signed tokens, and publishes its keys."""

from __future__ import annotations

import base64
import json
import math
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

AUDIENCE, ISSUER, KEY_ID = "kafka", "https://issuer.example", "key-1"


class IdentityProvider:
    """Serves `/token` for the grant type client_credentials, and `/jwks`.

    `fault`, if set, is the next status, answered once by `/token`, with `fault_headers`.
    """

    def __init__(
        self,
        clients: dict[str, str],
        *,
        lifetime_s: float = 3600,
        tls: ssl.SSLContext | None = None,
        key: rsa.RSAPrivateKey | None = None,
    ) -> None:
        """`key` signs the tokens; by default, a new one."""
        self.clients = clients
        self.lifetime_s = lifetime_s
        #: The form and the client id of each request for a token.
        self.requests: list[tuple[dict[str, list[str]], str]] = []
        self.faults: list[int] = []
        self.fault_headers: dict[str, str] = {}
        self.body: bytes | None = None
        self._key = key or rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        scheme = "http"
        if tls is not None:
            scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> IdentityProvider:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self, subject: str, lifetime_s: float | None = None) -> str:
        """Return a signed token.

        It expires at the full second after its lifetime, not before: with less than a second left,
        a session cannot be renewed.
        """
        now = time.time()
        claims = {
            "sub": subject,
            "iss": ISSUER,
            "aud": AUDIENCE,
            "iat": int(now),
            "exp": math.ceil(now + (self.lifetime_s if lifetime_s is None else lifetime_s)),
        }
        return jwt.encode(claims, self._key, "RS256", headers={"kid": KEY_ID})

    def keys(self) -> dict[str, object]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
        return {"keys": [{**public, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]}


def _handler(provider: IdentityProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(200, json.dumps(provider.keys()).encode())

        def do_POST(self) -> None:
            form = urllib.parse.parse_qs(
                self.rfile.read(int(self.headers["Content-Length"])).decode()
            )
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic "))
            name, _, secret = login.decode().partition(":")
            provider.requests.append((form, name))
            if provider.faults:
                self._answer(provider.faults.pop(0), b"{}")
            elif provider.body is not None:
                self._answer(200, provider.body)
            elif provider.clients.get(name) != secret:
                self._answer(401, b'{"error": "invalid_client"}')
            else:
                token = provider.token(name)
                found = {"access_token": token, "expires_in": provider.lifetime_s}
                self._answer(200, json.dumps(found).encode())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            for name, value in provider.fault_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
