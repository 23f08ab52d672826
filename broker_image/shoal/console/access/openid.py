"""Login by OpenID Connect: the authorization code flow with PKCE.

The browser gets a random state, a nonce and a challenge on its way to the provider. It returns
with a code, which the console exchanges for tokens. The state is valid once, in the browser that
began the login: all that the console needs to complete it is sealed in a cookie of that browser.
So requests without a login take no memory here, and cannot push out the logins of others. The ID
token must be signed by a key of the provider, for this console, with the nonce. Sources: OpenID
Connect Core 1.0 sections 3.1 and 12, RFC 7636, RFC 9207, RFC 9700.

A login is a signed cookie with a random name; tokens stay in this process. It ends at a log-out,
after `LOGIN_S_MAX`, or when the provider refuses to renew its access token. A log-out revokes the
refresh token (RFC 7009).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from aiohttp import web
from cryptography.fernet import Fernet, InvalidToken

from shoal.client.security.secret import NO_SECRET, Secret
from shoal.console.access.attempts import Attempts
from shoal.console.access.providers import (
    Provider,
    ProviderError,
    ProviderRefusal,
    format_reported_error,
)
from shoal.console.access.security import BEARER, LOGIN, TOKEN, USER, Bearer, ExpiringLogin
from shoal.security.jwt_tokens import JwtRules, check_claims
from shoal.security.oauthbearer import TokenRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.console.access.providers import OpenIdSettings, TokenResponse

log = logging.getLogger("shoal.console")
RETURN, LOG_OUT, LOGGED_OUT = "/logged-in", "/logout", "/logged-out"
#: Seconds of a login, and those in which a login at the provider must be complete.
LOGIN_S_MAX, PENDING_S_MAX = 8 * 3600.0, 600.0
#: Logins that are kept, and those of one user, who ends no login of others by new ones.
LOGINS_MAX, LOGINS_OF_USER_MAX = 10_000, 100
#: An access token is renewed this long before it ends, and after a failure not before `RETRY_S`.
RENEW_S, RETRY_S = 30.0, 10.0
#: Seconds for which a log-out waits for the provider.
REVOKE_S_MAX = 3.0
#: Seconds by which clocks may differ.
SKEW_S = 30
#: Characters of the address to which a login returns. Sealed, it must fit into a cookie.
BACK_CHARS_MAX = 2_000
#: Characters of a state that name its cookie: a browser may log in at several pages at a time.
_NAME_CHARS = 16


class _PendingLogin(NamedTuple):
    """A login that waits for the browser to return, as it is sealed in the browser's cookie."""

    state: str
    nonce: str
    verifier: str
    back: str
    begun_at_s: float


@dataclass(slots=True, eq=False)
class _LoginSession(ExpiringLogin):
    login: OpenIdLogin
    id: str
    user: str
    ends_at_s: float
    bearer: Bearer | None = None
    bearer_ends_at_s: float = 0.0
    refresh_token: Secret = NO_SECRET
    retry_at_s: float = 0.0
    is_closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.login.clock() >= self.ends_at_s

    async def renew(self) -> None:
        await self.login.renew(self)

    def keep(self, tokens: TokenResponse) -> None:
        """Keep the newest tokens."""
        lifetime_s = tokens.lifetime_s or LOGIN_S_MAX
        self.bearer_ends_at_s = self.login.clock() + lifetime_s
        self.refresh_token = tokens.refresh_token or self.refresh_token
        if self.bearer is None:
            self.bearer = Bearer(self.id, tokens.access_token)
        self.bearer.value = tokens.access_token


class OpenIdLogin:
    """The logins of one console by a provider."""

    acts_by = TOKEN

    def __init__(self, settings: OpenIdSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._provider = Provider(settings)
        self.clock = clock
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _LoginSession] = OrderedDict()
        self._attempts = Attempts()
        self._seal = Fernet(Fernet.generate_key())
        #: States that were used, until they are too old for another login.
        self._used: OrderedDict[str, float] = OrderedDict()
        self._is_secure = settings.url.startswith("https:")
        prefix = "__Host-" if self._is_secure else ""
        self._login_cookie, self._pending_prefix = f"{prefix}shoal-login", f"{prefix}shoal-begun-"

    async def admit(self, request: web.Request) -> web.StreamResponse | None:
        """Take the user from the cookie, or begin a login. Raises HTTP 401 and 502."""
        if request.path in (RETURN, LOGGED_OUT) or request.path.startswith("/static/"):
            return None
        session = self._find_session(request)
        if session is not None:
            await self.renew(session)
        is_page = (
            request.method == "GET"
            and not request.path.startswith("/live/")
            and request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
        )
        if session is None or session.is_over:
            if is_page:
                return await self._begin(request)
            raise web.HTTPUnauthorized(
                text="You are not logged in, or your login has ended. Nothing was changed. Open"
                " the page again to log in."
            )
        if session.bearer_ends_at_s > self.clock() and session.bearer is not None:
            request[BEARER] = session.bearer
        elif is_page and request.path.startswith("/act-"):
            # Another login gets another access token. Most providers then ask nothing.
            return await self._begin(request)
        request[USER], request[LOGIN] = session.user, session
        return None

    async def complete_login(self, request: web.Request) -> web.Response:
        """Complete a login: the provider has sent the browser back. Raises HTTP 400, 401, 502."""
        self._attempts.check(request.remote)
        pending = self._find_pending(request)
        if pending is None:
            raise web.HTTPBadRequest(
                text="This login was used before, took too long, or began in another browser. Open"
                " the overview to log in."
            )
        self._used[pending.state] = pending.begun_at_s
        try:
            await self._check_issuer(request)
            if "error" in request.query:
                raise ProviderRefusal(format_reported_error(request.query))
            tokens = await self._provider.request_tokens(
                {
                    "grant_type": "authorization_code",
                    "code": request.query.get("code", ""),
                    "redirect_uri": self._settings.url + RETURN,
                    "code_verifier": pending.verifier,
                }
            )
            user = self._verify_user(
                await self._provider.verify_claims(tokens.id_token), pending.nonce
            )
        except (ProviderRefusal, TokenRefused) as error:
            log.warning("login from %s failed: %s", request.remote, error)
            self._attempts.note_failure(request.remote)
            raise web.HTTPUnauthorized(
                text=f"The login at {self._settings.issuer} failed: {error}. Open the overview to"
                " log in again."
            ) from None
        except ProviderError as error:
            self._used.pop(pending.state, None)
            raise _make_unavailable(error) from None
        response = self._start_session(user, tokens, pending.back)
        self._set_cookie(response, self._get_pending_cookie(pending.state), "", 0)
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the login of a request, here and as far as the provider has it for this console."""
        session = self._find_session(request)
        if session is not None:
            self._close(session)
            await self._revoke(session)
        response = web.Response(status=303, headers={"Location": LOGGED_OUT})
        self._set_cookie(response, self._login_cookie, "", 0)
        return response

    @property
    def provider_log_out(self) -> str:
        """The address that ends the login at the provider, too; empty if it is not known."""
        return self._provider.end_session_url

    async def close(self) -> None:
        self._sessions.clear()
        await self._provider.close()

    async def _begin(self, request: web.Request) -> web.Response:
        try:
            metadata = await self._provider.read_metadata()
        except ProviderError as error:
            raise _make_unavailable(error) from None
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        back = request.path_qs
        # Browsers take an address that begins with // for one of another host.
        if len(back) > BACK_CHARS_MAX or back.startswith(("//", "/\\")):
            back = "/"
        pending = _PendingLogin(state, nonce, verifier, back, self.clock())
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._settings.client_id,
                "redirect_uri": self._settings.url + RETURN,
                "scope": " ".join(self._settings.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge.rstrip(b"=").decode(),
                "code_challenge_method": "S256",
            }
        )
        mark = "&" if "?" in metadata.authorization_endpoint else "?"
        location = f"{metadata.authorization_endpoint}{mark}{query}"
        response = web.Response(status=302, headers={"Location": location})
        sealed = self._seal.encrypt(json.dumps(pending).encode()).decode()
        self._set_cookie(response, self._get_pending_cookie(state), sealed, int(PENDING_S_MAX))
        return response

    def _get_pending_cookie(self, state: str) -> str:
        return f"{self._pending_prefix}{state[:_NAME_CHARS]}"

    def _find_pending(self, request: web.Request) -> _PendingLogin | None:
        """Return the login that this browser began with the request's state; None if there is none,
        or if it is complete or too old."""
        state = request.query.get("state", "")
        sealed = request.cookies.get(self._get_pending_cookie(state), "")
        try:
            pending = _PendingLogin(*json.loads(self._seal.decrypt(sealed.encode())))
        except (InvalidToken, ValueError):
            return None
        oldest_s = self.clock() - PENDING_S_MAX
        while self._used and next(iter(self._used.values())) < oldest_s:
            self._used.popitem(last=False)
        is_right = hmac.compare_digest(_encode(pending.state), _encode(state))
        is_open = pending.begun_at_s >= oldest_s and pending.state not in self._used
        return pending if is_right and is_open else None

    def _start_session(self, user: str, tokens: TokenResponse, back: str) -> web.Response:
        id, ends_at_s = secrets.token_urlsafe(32), self.clock() + LOGIN_S_MAX
        session = _LoginSession(self, id, user, ends_at_s)
        session.keep(tokens)
        self._sessions[id] = session
        own = [login for login in self._sessions.values() if login.user == user]
        if len(own) > LOGINS_OF_USER_MAX:
            self._close(own[0])
        elif len(self._sessions) > LOGINS_MAX:
            self._close(next(iter(self._sessions.values())))
        response = web.Response(status=302, headers={"Location": back})
        text = f"{id}.{int(ends_at_s)}"
        cookie = f"{text}.{self._compute_mac(text)}"
        self._set_cookie(response, self._login_cookie, cookie, int(LOGIN_S_MAX))
        return response

    def _close(self, session: _LoginSession) -> None:
        """End a login here."""
        session.is_closed = True
        self._sessions.pop(session.id, None)

    def _find_session(self, request: web.Request) -> _LoginSession | None:
        """Return the login of a request, if its cookie is ours and the login is not over."""
        text, _, mac = request.cookies.get(self._login_cookie, "").rpartition(".")
        if not hmac.compare_digest(_encode(mac), _encode(self._compute_mac(text))):
            return None
        id, _, ends_at = text.partition(".")
        return self._sessions.get(id) if int(ends_at) > self.clock() else None

    def _compute_mac(self, text: str) -> str:
        return hmac.new(self._secret, _encode(text), hashlib.sha256).hexdigest()

    def _set_cookie(self, response: web.Response, name: str, value: str, age_s: int) -> None:
        """Set a cookie. Lax, because the provider sends the browser back from another site."""
        response.set_cookie(
            name,
            value,
            max_age=age_s,
            httponly=True,
            samesite="Lax",
            secure=self._is_secure,
            path="/",
        )

    async def _check_issuer(self, request: web.Request) -> None:
        """Refuse an answer of another provider (RFC 9207). Raises `Refused`."""
        metadata, issuer = await self._provider.read_metadata(), request.query.get("iss")
        if issuer is None and not metadata.names_itself:
            return
        if issuer != self._settings.issuer:
            raise ProviderRefusal("the answer came from another provider")

    def _verify_user(self, claims: dict[str, Any], nonce: str) -> str:
        """Return the user of a verified ID token. Raises `Refused` and `TokenRefused`."""
        settings = self._settings
        if claims.get("iss") != settings.issuer:
            raise ProviderRefusal("the ID token has another issuer")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if settings.client_id not in audiences:
            raise ProviderRefusal("the ID token is for another client")
        party = claims.get("azp")
        if party != settings.client_id and (party is not None or len(audiences) > 1):
            raise ProviderRefusal("the ID token was issued to another client")
        token_nonce = claims.get("nonce")
        if not isinstance(token_nonce, str) or not hmac.compare_digest(
            _encode(token_nonce), _encode(nonce)
        ):
            raise ProviderRefusal("the ID token belongs to another login")
        if settings.user_claim == "email" and claims.get("email_verified") is not True:
            # Some providers let users choose any address, and say nothing about it.
            raise ProviderRefusal(
                "the ID token does not say that the email address is verified (email_verified)"
            )
        rules = JwtRules(
            audiences=(settings.client_id,),
            clock_skew_s=SKEW_S,
            subject_claim=settings.user_claim,
        )
        user = check_claims(claims, rules, self.clock()).subject
        if not user.isprintable():
            raise ProviderRefusal(f"the claim {settings.user_claim!r} is not a printable name")
        return user

    async def renew(self, session: _LoginSession) -> None:
        """Renew an access token that ends soon. Close the session if the provider refuses."""
        async with session.lock:
            now_s = self.clock()
            if (
                not session.refresh_token
                or session.is_over
                or now_s < max(session.bearer_ends_at_s - RENEW_S, session.retry_at_s)
            ):
                return
            form = {
                "grant_type": "refresh_token",
                "refresh_token": session.refresh_token.reveal(),
            }
            try:
                session.keep(await self._provider.request_tokens(form))
            except ProviderRefusal as error:
                log.warning("the login of %s has ended: %s", session.user, error)
                self._close(session)
            except ProviderError as error:
                log.warning("the access token of %s was not renewed: %s", session.user, error)
                session.retry_at_s = now_s + RETRY_S

    async def _revoke(self, session: _LoginSession) -> None:
        """Revoke the newest refresh token of a closed session, which would stay valid."""
        try:
            # A renewal that runs returns another token.
            async with asyncio.timeout(REVOKE_S_MAX), session.lock:
                if session.refresh_token:
                    await self._provider.revoke(session.refresh_token)
        except (ProviderRefusal, ProviderError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            log.warning("the provider may still have the login of %s: %s", session.user, reason)


def _make_unavailable(error: ProviderError) -> web.HTTPException:
    log.warning("%s", error)
    return web.HTTPBadGateway(text=f"Nobody can log in now: {error}. Try again.")


def _encode(text: str) -> bytes:
    """Encode a text that may have broken characters."""
    return text.encode(errors="surrogatepass")
