"""Logins by SASL: what a connection of a listener with SASL is, before it serves requests.

The state machine is that of Kafka's SaslServerAuthenticator (KIP-43, KIP-152, KIP-368, KIP-511):

* ApiVersions may come first, once. SaslHandshake names the mechanism. Its version 0 is followed by
  raw tokens with a size prefix, version 1 by SaslAuthenticate requests.
* Any other request ends the connection. A token that is refused ends it too. The error and the end
  are delayed, against guessing; until then the connection reads nothing.
* A session ends with the credential (a bearer token, a delegation token) and after
  `connections.max.reauth.ms`, whichever is first. The client may log in again before that, with the
  same mechanism and as the same user, at most once a second. A request after the end of the session
  closes the connection. A session by SCRAM also ends with its credential (`scram_sessions`).

The authenticator takes the place of the dispatcher of its connection. After a login without an end,
it hands the connection over to the dispatcher and is gone, so it costs requests nothing.

Difference from Kafka: a request other than SaslAuthenticate between handshake and login is not
parsed, so it gets no response before the connection ends.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol

from kio.static.constants import EntityType

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.compiler import ScatterBuffer
from shoal.protocol.errors import ErrorCode
from shoal.security import audit
from shoal.security.sasl import LoginRefused, SaslLogin
from shoal.security.scram import SCRAM_MECHANISMS
from shoal.server.network.sasl import SaslMechanisms
from shoal.server.network.scram_sessions import ScramSessions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.protocol.frames import RequestHeader
    from shoal.security.sasl import Exchange
    from shoal.server.audit import AuditLogger
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.api import Peer
    from shoal.server.network.dispatch import PendingResponse
    from shoal.server.network.encoding import Buffers
    from shoal.server.network.sasl import ListenerSasl, SaslMechanism
    from shoal.server.node import Node

#: Seconds between two logins on one connection, as in Kafka.
REAUTH_INTERVAL_S = 1.0
#: Seconds that the start of a broker waits for the key sets of token providers.
KEY_SETS_WAIT_S = 2.0
#: How long a connection that ends reads nothing, beyond the delay: its end comes first.
_MUTED_MS = 60_000
_HANDSHAKE_KEY = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")
_HANDSHAKE_VERSIONS, _AUTHENTICATE_VERSIONS = range(2), range(3)


class DispatchPort(Protocol):
    """What a connection passes its requests to: an authenticator or the dispatcher."""

    def handle(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None: ...
    def handle_login_failure(self, peer: Peer, reason: str) -> bool: ...
    def on_requests_handled(self, now_s: float) -> None: ...
    def make_pending(self, buffers: Buffers) -> PendingResponse: ...


class ConnectionPort(Protocol):
    """What an authenticator needs of its connection."""

    def serve_with(self, dispatch: DispatchPort, frame_size_max: int) -> None: ...
    def mute(self, pause_ms: int) -> None: ...
    def end(self, buffers: Buffers) -> None: ...
    def close(self) -> None: ...


class LoginState(Enum):
    """What the next request may be."""

    #: ApiVersions or SaslHandshake.
    BEGUN = auto()
    #: SaslHandshake: after ApiVersions, and to log in again.
    HANDSHAKE = auto()
    #: A token.
    TOKEN = auto()
    #: Anything: it ends the connection, since the client has named another mechanism than before.
    BAD_MECHANISM = auto()
    #: Any request, until the session ends.
    LOGGED_IN = auto()
    #: None: the connection ends after a delay.
    FAILED = auto()


class LoginCounts:
    """How often clients of one listener have logged in."""

    __slots__ = ("expired", "failed", "reauth_failed", "reauth_succeeded", "succeeded")

    def __init__(self) -> None:
        self.succeeded = self.failed = self.reauth_succeeded = self.reauth_failed = 0
        #: Connections closed because their session had ended.
        self.expired = 0


class ListenerAuthentication:
    """How clients of one listener log in, and how often they have."""

    def __init__(
        self,
        node: Node,
        sasl: ListenerSasl,
        *,
        dispatch: DispatchPort,
        before_login: DispatchPort,
        audit_log: AuditLogger,
        scram_sessions: ScramSessions,
    ) -> None:
        """`before_login` is a dispatcher without quotas, since a client that has not logged in is
        no user."""
        self.sasl = sasl
        self.loop = node.loop
        self.clock = node.clock
        self.dispatch = dispatch
        self.before_login = before_login
        self.audit = audit_log
        self.scram_sessions = scram_sessions
        self.counts = LoginCounts()
        self.request_size_max: int = node.config["socket.request.max.bytes"]

    def guard(self, connection: ConnectionPort) -> None:
        """Have the client of a new connection log in before it is served."""
        authenticator = SaslAuthenticator(self, connection)
        connection.serve_with(authenticator, self.sasl.receive_size_max)


class Authentications:
    """The authentication of each listener with SASL, by name, and the key sets of all."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        *,
        dispatch: DispatchPort,
        before_login: DispatchPort,
        audit_log: AuditLogger,
    ) -> None:
        """Raises `InvalidConfig`."""
        self._key_sets: list[Any] = []
        self._by_listener: dict[str, ListenerAuthentication] = {}
        guarded = [
            node.cluster.security[name]
            for name in node.cluster.kinds
            if node.cluster.security[name].protocol.is_sasl
        ]
        if guarded:
            mechanisms = SaslMechanisms(node, cache)
            scram_sessions = ScramSessions(node, cache, audit_log)
            for security in guarded:
                self._by_listener[security.name] = ListenerAuthentication(
                    node,
                    mechanisms.make_listener_sasl(security),
                    dispatch=dispatch,
                    before_login=before_login,
                    audit_log=audit_log,
                    scram_sessions=scram_sessions,
                )
            self._key_sets = list(mechanisms.key_sets)

    def get(self, listener: str) -> ListenerAuthentication | None:
        """Return the authentication of a listener, or None if it has no SASL."""
        return self._by_listener.get(listener)

    async def start(self) -> None:
        """Start to read the key sets. Wait a short time for them, so that the first clients need
        not try twice."""
        for key_set in self._key_sets:
            key_set.start()
        if self._key_sets:
            tried = [
                asyncio.ensure_future(key_set.wait_until_tried()) for key_set in self._key_sets
            ]
            _, pending = await asyncio.wait(tried, timeout=KEY_SETS_WAIT_S)
            for waiter in pending:
                waiter.cancel()

    def stop(self) -> None:
        for key_set in self._key_sets:
            key_set.stop()


class _LoginError(Exception):
    """The login has failed. `response` is sent before the connection ends."""

    def __init__(self, reason: str, response: Buffers | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.response = response or []


class SaslAuthenticator:
    """Owns the state of one connection until its client has logged in, and after that if its
    session ends."""

    __slots__ = (
        "_begun_at",
        "_connection",
        "_exchange",
        "_expires_at",
        "_has_headers",
        "_is_reauth",
        "_listener",
        "_mechanism",
        "_mechanism_name",
        "_state",
    )

    def __init__(self, listener: ListenerAuthentication, connection: ConnectionPort) -> None:
        self._listener = listener
        self._connection = connection
        self._state = LoginState.BEGUN
        #: Whether tokens are in SaslAuthenticate requests.
        self._has_headers = False
        self._exchange: Exchange | None = None
        #: The mechanism of the login, and the name that the newest handshake has.
        self._mechanism: SaslMechanism | None = None
        self._mechanism_name = ""
        self._is_reauth = False
        #: By the loop's clock: when the newest login again began, and when the session ends.
        self._begun_at = self._expires_at = -REAUTH_INTERVAL_S

    def handle(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        """Handle one request, as `Dispatcher.handle`."""
        try:
            return self._step(frame, peer)
        except _LoginError as failed:
            self._fail(peer, failed.reason, failed.response)
        return None

    def _step(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        match self._state:
            case LoginState.LOGGED_IN:
                return self._serve(frame, peer)
            case LoginState.BEGUN:
                return self._begin(frame, peer)
            case LoginState.HANDSHAKE:
                return self._answer_handshake(frame)
            case LoginState.TOKEN:
                return self._answer_token(frame, peer)
            case LoginState.BAD_MECHANISM:
                raise _LoginError(self._describe_bad_mechanism())
        return None  # What the client has sent before it learns that its login has failed.

    def handle_login_failure(self, peer: Peer, reason: str) -> bool:
        """Whether bytes that are no request are a failed login. If so, end the connection."""
        if self._state is LoginState.LOGGED_IN:
            return False
        if self._state is not LoginState.FAILED:
            self._fail(peer, reason, [])
        return True

    def on_requests_handled(self, now_s: float) -> None:
        self._listener.dispatch.on_requests_handled(now_s)

    def make_pending(self, buffers: Buffers) -> PendingResponse:
        return self._listener.dispatch.make_pending(buffers)

    def _begin(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        """Answer ApiVersions or SaslHandshake."""
        if len(frame) < 2 or frame[0] << 8 | frame[1] != ApiKey.API_VERSIONS:
            return self._answer_handshake(frame)
        answer = self._listener.before_login.handle(frame, peer)
        assert isinstance(answer, list)
        # Behind the size and the correlation id. After an error, the client tries again.
        if b"".join(answer)[8:10] == b"\0\0":
            self._state = LoginState.HANDSHAKE
        return answer

    def _answer_handshake(self, frame: bytearray) -> Buffers:
        """Answer SaslHandshake."""
        header = _read_header(frame, ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSIONS)
        body = codec.read_request(
            header.api_key, header.api_version, memoryview(frame).toreadonly(), header.body_at
        )
        mechanisms = self._listener.sasl.mechanisms
        self._mechanism_name = body.mechanism
        self._has_headers = header.api_version >= 1
        mechanism = mechanisms.get(self._mechanism_name)
        code = ErrorCode.unsupported_sasl_mechanism if mechanism is None else ErrorCode.none
        response = _build_response(header, {"error_code": code, "mechanisms": list(mechanisms)})
        if mechanism is None:
            # As in Kafka, a client that logs in again gets no answer here.
            raise _LoginError("the mechanism is not enabled", None if self._is_reauth else response)
        if self._mechanism is not None and mechanism is not self._mechanism:
            self._state = LoginState.BAD_MECHANISM
            return response
        self._mechanism, self._exchange = mechanism, mechanism.exchange()
        self._state = LoginState.TOKEN
        return response

    def _answer_token(self, frame: bytearray, peer: Peer) -> Buffers:
        """Answer a token of the client."""
        if self._has_headers:
            return self._authenticate(frame, peer)
        try:
            answer, _ = self._evaluate(bytes(frame), peer)
        except LoginRefused as refused:
            raise _LoginError(refused.reason) from None
        return [len(answer).to_bytes(4, "big") + answer]

    def _authenticate(self, frame: bytearray, peer: Peer) -> Buffers:
        """Answer SaslAuthenticate."""
        header = _read_header(frame, ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSIONS)
        body = codec.read_request(
            header.api_key, header.api_version, memoryview(frame).toreadonly(), header.body_at
        )
        try:
            answer, lifetime_ms = self._evaluate(bytes(body.auth_bytes), peer)
        except LoginRefused as refused:
            text = refused.client_message or (
                f"Authentication failed during {'re-' * self._is_reauth}authentication due to"
                f" invalid credentials with SASL mechanism {self._mechanism_name}"
            )
            refusal = {
                "error_code": ErrorCode.sasl_authentication_failed,
                "error_message": text,
                "auth_bytes": b"",
            }
            raise _LoginError(refused.reason, _build_response(header, refusal)) from None
        return _build_response(
            header,
            {"error_message": "", "auth_bytes": answer, "session_lifetime_ms": lifetime_ms},
        )

    def _evaluate(self, token: bytes, peer: Peer) -> tuple[bytes, int]:
        """Return the answer to a token, and the lifetime of the session: 0 if it has no end, or if
        the exchange continues. Raises `LoginRefused`."""
        assert self._exchange is not None
        now_ms = self._listener.clock.now_ms()
        answer = self._exchange.evaluate(token, now_ms)
        login = self._exchange.login
        return answer, 0 if login is None else self._log_in(login, peer, now_ms)

    def _log_in(self, login: SaslLogin, peer: Peer, now_ms: int) -> int:
        """Serve the client as this user from now on. Return the lifetime of the session."""
        mechanism, counts = self._mechanism, self._listener.counts
        assert mechanism is not None
        if self._is_reauth:
            if login.principal != peer.principal:
                text = (
                    "Cannot change principals during re-authentication from"
                    f" {_format_dotted(peer.principal)}: {_format_dotted(login.principal)}"
                )
                raise LoginRefused(text, text)
        if mechanism.name in SCRAM_MECHANISMS and not login.by_token:
            user = login.principal.removeprefix("User:")
            self._listener.scram_sessions.begin(mechanism.name, user, self._connection, peer)
        if self._is_reauth:
            counts.reauth_succeeded += 1
        else:
            counts.succeeded += 1
        self._exchange = None
        peer.principal, peer.token_authenticated = login.principal, login.by_token
        if self._listener.audit.logs_successes:
            entry = audit.build_login(
                listener=peer.listener,
                mechanism=mechanism.name,
                principal=login.principal,
                host=peer.host,
            )
            self._listener.audit.note(entry)
        lifetime_ms = _compute_lifetime_ms(login, mechanism, now_ms)
        self._state = LoginState.LOGGED_IN
        if lifetime_ms is None:
            # The session has no end: the client cannot log in again.
            self._connection.serve_with(self._listener.dispatch, self._listener.request_size_max)
            return 0
        self._expires_at = self._listener.loop.time() + lifetime_ms / 1000
        self._connection.serve_with(self, self._listener.request_size_max)
        return lifetime_ms

    def _serve(self, frame: bytearray, peer: Peer) -> Buffers | PendingResponse | None:
        """Handle a request in a session that ends."""
        now = self._listener.loop.time()
        if frame[:2] == _HANDSHAKE_KEY and now >= self._begun_at + REAUTH_INTERVAL_S:
            self._begun_at = now
            self._is_reauth = True
            self._state = LoginState.HANDSHAKE
            self._connection.serve_with(self, self._listener.sasl.receive_size_max)
            return self._answer_handshake(frame)
        if now >= self._expires_at:
            self._listener.counts.expired += 1
            self._state = LoginState.FAILED
            self._connection.close()
            return None
        return self._listener.dispatch.handle(frame, peer)

    def _describe_bad_mechanism(self) -> str:
        assert self._mechanism is not None
        return (
            f"SASL mechanism '{self._mechanism_name}' requested by client is not supported for"
            f" re-authentication of mechanism '{self._mechanism.name}'"
        )

    def _fail(self, peer: Peer, reason: str, response: Buffers) -> None:
        """End the connection after the delay."""
        counts = self._listener.counts
        if self._is_reauth:
            counts.reauth_failed += 1
        else:
            counts.failed += 1
        entry = audit.build_login_failure(
            listener=peer.listener,
            mechanism=self._mechanism_name,
            user="" if self._exchange is None else self._exchange.user,
            host=peer.host,
            reason=reason,
            again=self._is_reauth,
        )
        self._listener.audit.note(entry)
        self._state, self._exchange = LoginState.FAILED, None
        delay_ms = self._listener.sasl.failure_delay_ms
        self._connection.mute(delay_ms + _MUTED_MS)
        self._listener.loop.call_later(delay_ms / 1000, self._connection.end, response)


def _read_header(frame: bytearray, key: ApiKey, versions: range) -> RequestHeader:
    """Return the header of a request for this API. Raises `_LoginError`, `WireError`."""
    header = frames.read_request_header(frame)
    if header.api_key != key:
        raise _LoginError(f"a request with API key {header.api_key} in place of {key.name}")
    if header.api_version not in versions:
        raise _LoginError(f"{key.name} v{header.api_version} is not served")
    return header


def _build_response(header: RequestHeader, body: Mapping[str, Any]) -> Buffers:
    out = ScatterBuffer()
    codec.get_writer(header.api_key, header.api_version, EntityType.response)(out, body)
    parts = out.get_parts()
    return [frames.build_sized_response_head(header, sum(map(len, parts))), *parts]


def _compute_lifetime_ms(login: SaslLogin, mechanism: SaslMechanism, now_ms: int) -> int | None:
    """Return the milliseconds until the client has to log in again, or None for never."""
    ends = [] if login.expires_ms is None else [login.expires_ms - now_ms]
    if mechanism.max_reauth_ms > 0:
        ends.append(mechanism.max_reauth_ms)
    return max(0, min(ends)) if ends else None


def _format_dotted(principal: str) -> str:
    """Return a principal as Kafka writes it in this message: `User.alice`."""
    return principal.replace(":", ".", 1)
