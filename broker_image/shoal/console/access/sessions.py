"""Form tokens: a form is accepted only from the browser session that opened it (CSRF).

A session is a random cookie (HttpOnly, SameSite=Strict). A form's token is an HMAC of session and
user, so a site that can set cookies cannot make a token. Secrets end with the process.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.console.access.security import USER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aiohttp.typedefs import Handler

COOKIE = "shoal-console"
TOKEN_FIELD = "token"
_SESSION, _IS_NEW = web.RequestKey("session", str), web.RequestKey("is_new", bool)
_SESSION_CHARS = 43


class Sessions:
    """The sessions of one console. `is_encrypted` limits the cookie to HTTPS.

    `hosts` are the names of the console at a proxy, which may send another one in `Host`.
    """

    def __init__(self, *, is_encrypted: bool, hosts: Collection[str] = ()) -> None:
        self._secret = secrets.token_bytes(32)
        self._is_encrypted = is_encrypted
        self._hosts = hosts

    def make_token(self, request: web.Request) -> str:
        """Return the token for a form in the answer to this request."""
        return self._sign(self.get_session(request), request.get(USER, ""))

    def get_session(self, request: web.Request) -> str:
        """Return the request's session. The answer to a request without one sets its cookie."""
        if _SESSION not in request:
            cookie = request.cookies.get(COOKIE, "")
            request[_IS_NEW] = len(cookie) != _SESSION_CHARS or not cookie.isascii()
            request[_SESSION] = secrets.token_urlsafe(32) if request[_IS_NEW] else cookie
        return request[_SESSION]

    def check(self, request: web.Request, form: Mapping[str, object]) -> None:
        """Raise HTTP 403 unless a form of this console, in this session, sent the request."""
        self.check_origin(request)
        form_token = form.get(TOKEN_FIELD)
        expected = self.make_token(request)
        if not isinstance(form_token, str) or not hmac.compare_digest(
            form_token.encode(), expected.encode()
        ):
            raise web.HTTPForbidden(
                text="The form is out of date: the console has started again, or the browser has"
                " a new session. Nothing was changed. Open the form again."
            )

    def check_origin(self, request: web.Request) -> None:
        """Raise HTTP 403 if a page of another site sent the request."""
        origin = request.headers.get("Origin")
        site = request.headers.get("Sec-Fetch-Site", "same-origin")
        is_other = origin is not None and origin.partition("://")[2] not in (
            request.host,
            *self._hosts,
        )
        if is_other or site != "same-origin":
            raise web.HTTPForbidden(
                text=f"The form came from another address than {request.host[:100]}. Open this"
                " page and send the form from there. A proxy must pass on the Host header, or"
                " --url must name the address that browsers use."
            )

    def _sign(self, session: str, user: str) -> str:
        text = f"{session}\n{user}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Set the cookie of a new session."""
        response = await handler(request)
        if request.get(_IS_NEW) and not response.prepared:
            response.set_cookie(
                COOKIE,
                request[_SESSION],
                httponly=True,
                samesite="Strict",
                secure=self._is_encrypted,
                path="/",
            )
        return response
