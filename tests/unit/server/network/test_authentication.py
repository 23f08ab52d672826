"""The authenticator of a connection, without sockets.

`compat/oracles/test_sasl_states.py` compares the sequences of requests with Kafka's.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from shoal.metadata.config_keys import ConfigError
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security import scram
from shoal.security.audit import LOGGED_IN, LOGIN_FAILED, AuditEntry
from shoal.security.requirements import PUBLIC
from shoal.security.sasl import Exchange, LoginRefused, SaslLogin
from shoal.security.scram import SCRAM_MECHANISMS
from shoal.server import logs
from shoal.server.cluster_config import MECHANISMS
from shoal.server.config import InvalidConfig, resolve
from shoal.server.listener_security import ListenerSecurity, SecurityProtocol
from shoal.server.network.api import Answer, Api, Body, Request
from shoal.server.network.authentication import DispatchPort, ListenerAuthentication
from shoal.server.network.sasl import ListenerSasl, SaslMechanism, SaslMechanisms
from shoal.server.network.scram_sessions import ScramSessions
from shoal.server.node import Node
from support.brokers.connections import LISTENER, Server, Wire, request_frame
from support.runs.conditions import eventually_async
from unit.security.test_scram_server import Client as ScramClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PREFIX = f"listener.name.{LISTENER.lower()}."
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    ".OAuthBearerUnsecuredValidatorCallbackHandler"
)
CONFIGS = {
    "listener.security.protocol.map": f"{LISTENER}:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{PREFIX}plain.sasl.jaas.config": f'{PLAIN_MODULE} user_alice="secret" user_bob="b";',
    "connection.failed.authentication.delay.ms": "0",
}


class FakeExchange:
    """Logs in with the token "good", as `login`, and refuses others."""

    def __init__(self, login: SaslLogin) -> None:
        self.user = "claimed"
        self.login: SaslLogin | None = None
        self._login = login

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        if token != b"good":
            raise LoginRefused(token.decode())
        self.login = self._login
        return b"welcome"


class FakeAudit:
    logs_successes = True

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


def count(_server: Server, _request: Request) -> Answer:
    return {"producer_id": 1}


def api_versions(_server: Server, request: Request) -> Answer:
    code = (
        ErrorCode.none if request.body.client_software_name == "ok" else ErrorCode.invalid_request
    )
    return {"error_code": code}


ROWS = (
    Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, count),
    Api(ApiKey.API_VERSIONS, range(3, 5), PUBLIC, api_versions),
)
PRODUCER_ID = request_frame(ApiKey.INIT_PRODUCER_ID, 4, {})


class Sasl:
    """A server whose connections log in. `login` is what the mechanism FAKE logs in as."""

    def __init__(
        self,
        *rows: Api,
        login: SaslLogin | None = None,
        max_reauth_ms: int = 0,
        delay_ms: int = 0,
    ) -> None:
        self.server = Server(*(rows or ROWS))
        self.audit = FakeAudit()
        given = login or SaslLogin("User:alice")
        self.login = given
        mechanisms = {
            name: SaslMechanism(name, max_reauth_ms, lambda: FakeExchange(self.login))
            for name in ("FAKE", "OTHER")
        }
        self.authentication = ListenerAuthentication(
            self.server.node,
            ListenerSasl(LISTENER, mechanisms, 5000, delay_ms),
            dispatch=self.server.dispatcher,
            before_login=self.server.dispatcher,
            audit_log=self.audit,  # type: ignore[arg-type]
            scram_sessions=ScramSessions(self.server.node, self.server.cache, self.audit),  # type: ignore[arg-type]
        )

    def connect(self) -> Wire:
        wire = self.server.connect()
        self.authentication.guard(wire.connection)
        return wire


def token(data: bytes = b"good", version: int = 2) -> bytes:
    return request_frame(ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": data})


def handshake(mechanism: str = "FAKE", version: int = 1) -> bytes:
    return request_frame(ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism})


def answers(wire: Wire, *apis: tuple[ApiKey, int]) -> list[Any]:
    """Return all responses that the connection has written, and forget them."""
    data = b"".join(wire.written)
    wire.written.clear()
    found = []
    for api, version in apis:
        size = struct.unpack_from(">i", data)[0]
        frame, data = data[4 : 4 + size], data[4 + size :]
        at = len(frames.build_response_head(api, version, 0))
        found.append(codec.read_response(api, version, frame, at))
    assert not data
    return found


def log_in(wire: Wire, version: int = 2) -> Any:
    wire.receive(handshake() + token(version=version))
    _, found = answers(wire, (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, version))
    assert found.error_code == 0
    return found


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    logs.configure(json=True, level="critical")
    uvloop.run(test())


def test_a_login_hands_the_connection_over() -> None:
    async def main() -> None:
        sasl = Sasl(login=SaslLogin("User:bob", by_token=True))
        wire = sasl.connect()
        peer = wire.connection.peer
        assert peer is not None
        assert (peer.principal, peer.token_authenticated) == ("User:ANONYMOUS", False)
        assert bytes(log_in(wire).auth_bytes) == b"welcome"
        assert (peer.principal, peer.token_authenticated) == ("User:bob", True)
        wire.receive(PRODUCER_ID)
        (found,) = answers(wire, (ApiKey.INIT_PRODUCER_ID, 4))
        assert found.producer_id == 1
        (entry,) = sasl.audit.entries
        assert entry.event == LOGGED_IN
        assert entry.values["principal"] == "User:bob"
        counts = sasl.authentication.counts
        assert (counts.succeeded, counts.failed) == (1, 0)

    in_loop(main)


class FakeConnection:
    """Notes what its requests are passed to, and their maximum size."""

    def __init__(self) -> None:
        self.served_with: list[tuple[DispatchPort, int]] = []

    def serve_with(self, dispatch: DispatchPort, frame_size_max: int) -> None:
        self.served_with.append((dispatch, frame_size_max))

    def mute(self, pause_ms: int) -> None: ...
    def end(self, buffers: list[Any]) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("max_reauth_ms", [0, 1000])
def test_only_a_session_that_ends_costs_its_requests_something(max_reauth_ms: int) -> None:
    async def main() -> None:
        sasl, connection = Sasl(max_reauth_ms=max_reauth_ms), FakeConnection()
        peer = sasl.server.connect().connection.peer
        assert peer is not None
        sasl.authentication.guard(connection)
        ((authenticator, size_max),) = connection.served_with
        assert size_max == 5000
        for frame in (handshake(), token()):
            authenticator.handle(bytearray(frame[4:]), peer)
        last, size_max = connection.served_with[-1]
        assert size_max == 104_857_600
        assert last is (authenticator if max_reauth_ms else sasl.server.dispatcher)

    in_loop(main)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_frames_arrive_in_parts_of_any_size(size: int) -> None:
    async def main() -> None:
        wire = Sasl().connect()
        hello = {"client_software_name": "ok", "client_software_version": "1"}
        data = request_frame(ApiKey.API_VERSIONS, 3, hello) + handshake() + token() + PRODUCER_ID
        for at in range(0, len(data), size):
            wire.receive(data[at : at + size])
        *_, last = answers(
            wire,
            (ApiKey.API_VERSIONS, 3),
            (ApiKey.SASL_HANDSHAKE, 1),
            (ApiKey.SASL_AUTHENTICATE, 2),
            (ApiKey.INIT_PRODUCER_ID, 4),
        )
        assert last.producer_id == 1

    in_loop(main)


def test_a_failed_login_ends_after_the_delay() -> None:
    """Until then nothing is read. The error is the last response."""

    async def main() -> None:
        sasl = Sasl(delay_ms=30)
        wire = sasl.connect()
        wire.receive(handshake() + token(b"secret of the client") + token() + PRODUCER_ID)
        answers(wire, (ApiKey.SASL_HANDSHAKE, 1))
        assert wire.reading_paused
        begun = sasl.server.node.loop.time()
        await eventually_async(lambda: wire.closed)
        assert sasl.server.node.loop.time() - begun >= 0.025
        (found,) = answers(wire, (ApiKey.SASL_AUTHENTICATE, 2))
        assert found.error_code == ErrorCode.sasl_authentication_failed
        assert found.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL"
            " mechanism FAKE"
        )
        assert found.auth_bytes == b""
        (entry,) = sasl.audit.entries
        assert entry.event == LOGIN_FAILED
        assert entry.values == {
            "listener": LISTENER,
            "mechanism": "FAKE",
            "user": "claimed",
            "host": "127.0.0.1",
            "reason": "secret of the client",
            "reauthentication": "false",
        }
        counts = sasl.authentication.counts
        assert (counts.succeeded, counts.failed) == (0, 1)
        assert not sasl.server.listener.failures

    in_loop(main)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (PRODUCER_ID, "a request with API key 22 in place of SASL_HANDSHAKE"),
        (token(), "a request with API key 36 in place of SASL_HANDSHAKE"),
        (handshake("x\n"), "the mechanism is not enabled"),
        (struct.pack(">i", 5001), "a request of 5001 bytes, where sasl.server.max.receive.size"),
        (struct.pack(">i", -1), "a request of -1 bytes"),
        (struct.pack(">i", 0), "a request of 0 bytes has no header"),
        (struct.pack(">i", 10) + b"\x00\x11\x00\x01\0\0\0\1\xff\xff", ""),
        (handshake() + PRODUCER_ID, "a request with API key 22 in place of SASL_AUTHENTICATE"),
        (handshake() + struct.pack(">i", 1 << 30), "sasl.server.max.receive.size is 5000"),
        (handshake(version=0) + struct.pack(">i", 3) + b"bad", "bad"),
    ],
)
def test_other_bytes_are_failed_logins(data: bytes, reason: str) -> None:
    async def main() -> None:
        sasl = Sasl()
        wire = sasl.connect()
        wire.receive(data)
        await eventually_async(lambda: wire.closed)
        (entry,) = sasl.audit.entries
        assert reason in str(entry.values["reason"])
        assert "\n" not in str(entry.values["mechanism"])
        assert sasl.authentication.counts.failed == 1

    in_loop(main)


def test_the_size_of_requests_after_the_login() -> None:
    async def main() -> None:
        sasl = Sasl()
        wire = sasl.connect()
        log_in(wire)
        wire.receive(request_frame(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": "x" * 9000}))
        (found,) = answers(wire, (ApiKey.INIT_PRODUCER_ID, 4))
        assert found.producer_id == 1
        wire.receive(b"\x7f\xff\xff\xff")
        assert wire.closed
        (failure,) = sasl.server.listener.failures
        assert "socket.request.max.bytes is 104857600" in failure

    in_loop(main)


def test_api_versions_comes_once() -> None:
    async def main() -> None:
        wire = Sasl().connect()
        frames_sent = [
            request_frame(
                ApiKey.API_VERSIONS,
                3,
                {"client_software_name": name, "client_software_version": "1"},
            )
            for name in ("bad", "ok", "ok")
        ]
        wire.receive(b"".join(frames_sent))
        first, second = answers(wire, (ApiKey.API_VERSIONS, 3), (ApiKey.API_VERSIONS, 3))
        assert (first.error_code, second.error_code) == (ErrorCode.invalid_request, ErrorCode.none)
        await eventually_async(lambda: wire.closed)

    in_loop(main)


@pytest.mark.parametrize(
    ("max_reauth_ms", "expires_in_ms", "expected"),
    [
        (0, None, 0),
        (5000, None, 5000),
        (0, 60_000, 60_000),
        (5000, 60_000, 5000),
        (90_000, 60_000, 60_000),
        (5000, -1, 0),
    ],
)
def test_lifetimes(max_reauth_ms: int, expires_in_ms: int | None, expected: int) -> None:
    async def main() -> None:
        sasl = Sasl(max_reauth_ms=max_reauth_ms)
        if expires_in_ms is not None:
            now_ms = sasl.server.node.clock.now_ms()
            sasl.login = SaslLogin("User:alice", now_ms + expires_in_ms)
        wire = sasl.connect()
        found = round(log_in(wire).session_lifetime.total_seconds() * 1000)
        assert expected - 2000 < found <= expected
        if expires_in_ms == -1:
            await eventually_async(lambda: _ended(wire))
            assert sasl.authentication.counts.expired == 1
        else:
            assert not _ended(wire)

    in_loop(main)


def test_a_new_login_before_and_after_the_end_of_a_session() -> None:
    async def main() -> None:
        sasl = Sasl(max_reauth_ms=300)
        late, idle = sasl.connect(), sasl.connect()
        for wire in (late, idle):
            log_in(wire)
        await eventually_async(lambda: _ended(idle))
        assert sasl.authentication.counts.expired == 1
        # The session of the other connection has ended too, but it begins with a handshake.
        sasl.login = SaslLogin("User:alice", sasl.server.node.clock.now_ms() + 60_000)
        log_in(late)
        late.receive(PRODUCER_ID)
        answers(late, (ApiKey.INIT_PRODUCER_ID, 4))
        counts = sasl.authentication.counts
        assert (counts.succeeded, counts.reauth_succeeded) == (2, 1)

    in_loop(main)


def _ended(wire: Wire) -> bool:
    wire.receive(PRODUCER_ID)
    return wire.closed


def test_a_new_login_within_a_second_is_an_ordinary_request() -> None:
    """The dispatcher answers it, with ILLEGAL_SASL_STATE in a broker. Here it is not served."""

    async def main() -> None:
        sasl = Sasl(max_reauth_ms=60_000)
        wire = sasl.connect()
        log_in(wire)
        log_in(wire)
        wire.receive(handshake())
        assert wire.closed
        (failure,) = sasl.server.listener.failures
        assert "API key 17 is not served" in failure
        assert sasl.authentication.counts.reauth_failed == 0

    in_loop(main)


def test_requests_of_a_new_login_are_small() -> None:
    async def main() -> None:
        sasl = Sasl(max_reauth_ms=60_000)
        wire = sasl.connect()
        log_in(wire)
        wire.receive(handshake() + struct.pack(">i", 5001))
        await eventually_async(lambda: wire.closed)
        assert sasl.authentication.counts.reauth_failed == 1
        assert not sasl.server.listener.failures

    in_loop(main)


def test_a_new_login_as_another_user() -> None:
    async def main() -> None:
        sasl = Sasl(max_reauth_ms=60_000)
        wire = sasl.connect()
        log_in(wire)
        sasl.login = SaslLogin("User:bob")
        wire.receive(handshake() + token())
        await eventually_async(lambda: wire.closed)
        _, found = answers(wire, (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2))
        assert found.error_message == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert wire.connection.peer is not None
        assert wire.connection.peer.principal == "User:alice"
        counts = sasl.authentication.counts
        assert (counts.reauth_succeeded, counts.reauth_failed, counts.failed) == (0, 1, 0)
        assert sasl.audit.entries[-1].values["reauthentication"] == "true"

    in_loop(main)


def test_a_new_login_with_a_wrong_password_names_itself() -> None:
    async def main() -> None:
        wire = Sasl(max_reauth_ms=60_000).connect()
        log_in(wire)
        wire.receive(handshake() + token(b"no"))
        await eventually_async(lambda: wire.closed)
        _, found = answers(wire, (ApiKey.SASL_HANDSHAKE, 1), (ApiKey.SASL_AUTHENTICATE, 2))
        assert "during re-authentication due to" in found.error_message

    in_loop(main)


class Waiting:
    """Answers InitProducerId when the test decides."""

    def __init__(self) -> None:
        self.due: list[asyncio.Future[Body]] = []

    def handle(self, server: Server, _request: Request) -> Answer:
        self.due.append(server.node.loop.create_future())
        return self.due[-1]


def test_requests_of_the_session_wait_while_the_client_logs_in_again() -> None:
    async def main() -> None:
        handler = Waiting()
        sasl = Sasl(
            Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, handler.handle), max_reauth_ms=60_000
        )
        wire = sasl.connect()
        log_in(wire)
        wire.receive(PRODUCER_ID + handshake() + token())
        assert not wire.written
        handler.due[0].set_result({"producer_id": 7})
        await eventually_async(lambda: wire.written)
        first, _, third = answers(
            wire,
            (ApiKey.INIT_PRODUCER_ID, 4),
            (ApiKey.SASL_HANDSHAKE, 1),
            (ApiKey.SASL_AUTHENTICATE, 2),
        )
        assert first.producer_id == 7
        assert third.error_code == 0

    in_loop(main)


def test_a_failed_new_login_does_not_answer_in_the_place_of_an_earlier_request() -> None:
    async def main() -> None:
        handler = Waiting()
        sasl = Sasl(
            Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, handler.handle), max_reauth_ms=60_000
        )
        wire = sasl.connect()
        log_in(wire)
        wire.receive(PRODUCER_ID + handshake() + token(b"no"))
        await eventually_async(lambda: wire.closed)
        assert not wire.written
        assert handler.due[0].cancelled()

    in_loop(main)


# The mechanisms of a listener.


def mechanisms(**configs: str) -> tuple[SaslMechanisms, ListenerSecurity, Server]:
    server = Server()
    given = CONFIGS | {name.replace("_", "."): text for name, text in configs.items()}
    config = resolve(given, {})
    security = ListenerSecurity(
        LISTENER, SecurityProtocol.SASL_PLAINTEXT, config.values, config.explicit
    )
    node = Node(config, asyncio.get_running_loop())
    return SaslMechanisms(node, server.cache), security, server


def exchange(name: str, server_configs: dict[str, str] | None = None) -> tuple[Exchange, Server]:
    made, security, server = mechanisms(**(server_configs or {}))
    return made.make_listener_sasl(security).mechanisms[name].exchange(), server


def test_configs_of_a_listener() -> None:
    async def main() -> None:
        configs = {
            "connections.max.reauth.ms": "7",
            f"{PREFIX}scram-sha-256.connections.max.reauth.ms": "9",
            f"{PREFIX}sasl.server.max.receive.size": "1234",
            f"{PREFIX}sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            "connection.failed.authentication.delay.ms": "55",
        }
        made, security, _ = mechanisms(**configs)
        sasl = made.make_listener_sasl(security)
        assert list(sasl.mechanisms) == ["SCRAM-SHA-256", "PLAIN"]
        assert {m.name: m.max_reauth_ms for m in sasl.mechanisms.values()} == {
            "SCRAM-SHA-256": 9,
            "PLAIN": 7,
        }
        assert (sasl.receive_size_max, sasl.failure_delay_ms) == (1234, 55)

    in_loop(main)


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        (
            {f"{PREFIX}plain.sasl.jaas.config": f"{PLAIN_MODULE} username=x;"},
            f"no user is: set {PREFIX}plain.sasl.jaas.config to {PLAIN_MODULE} user_NAME=",
        ),
        (
            {f"{PREFIX}plain.sasl.jaas.config": "x.ScramLoginModule required user_a=hush;"},
            f"for PLAIN it is {PLAIN_MODULE.split()[0]}",
        ),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url is not set"),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "file:///keys",
            },
            "add the URL to shoal.oauthbearer.allowed.urls",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "http://idp/keys",
                "shoal.oauthbearer.allowed.urls": "http://idp/,file:///keys",
            },
            "add the URL to shoal.oauthbearer.allowed.urls",
        ),
        *(
            (
                {
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": url,
                    "shoal.oauthbearer.allowed.urls": url,
                },
                "is no URL",
            )
            for url in ("ftp://h/x", "keys.json", "https://", "file://h/x", "https://h:x/")
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.server.callback.handler.class": UNSECURED,
                f"{PREFIX}oauthbearer.sasl.jaas.config": (
                    f"{OAUTH_MODULE} unsecuredValidatorAllowableClockSkewMs=x;"
                ),
            },
            "not a number of milliseconds",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
                f"{PREFIX}oauthbearer.sasl.jaas.config": (
                    f'{OAUTH_MODULE} ssl.truststore.type="PEM" ssl.truststore.location="/none";'
                ),
            },
            "truststore cannot be read",
        ),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
                f"{PREFIX}oauthbearer.sasl.jaas.config": (
                    f'{OAUTH_MODULE} ssl.truststore.location="/x.jks";'
                ),
            },
            "ssl.truststore.type=PEM",
        ),
    ],
)
def test_configs_that_cannot_work(configs: dict[str, str], problem: str) -> None:
    async def main() -> None:
        made, security, _ = mechanisms(**configs)
        with pytest.raises(InvalidConfig) as refused:
            made.make_listener_sasl(security)
        assert problem in str(refused.value)
        assert "hush" not in str(refused.value)

    in_loop(main)


@pytest.mark.parametrize(
    "name",
    ["sasl.jaas.config", f"{PREFIX}sasl.jaas.config", f"{PREFIX}plain.sasl.jaas.config"],
)
def test_malformed_jaas_is_named(name: str) -> None:
    """Wherever it is set, also where no login uses it."""
    for text, said in (
        (f"{PLAIN_MODULE} user_a=hush", "not terminated by semi-colon"),
        (f'{PLAIN_MODULE} user_a="hush" junk;', "Value not specified for key 'junk'"),
        ("hush", "control flag not specified"),
    ):
        with pytest.raises((InvalidConfig, ConfigError)) as refused:
            resolve(
                {"listener.security.protocol.map": f"{LISTENER}:SASL_PLAINTEXT", name: text}, {}
            )
        assert name in str(refused.value)
        assert said in str(refused.value)
        assert "hush" not in str(refused.value)


def test_every_mechanism_has_an_exchange() -> None:
    async def main() -> None:
        configs = {
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": "https://idp/keys",
        }
        made, security, _ = mechanisms(**configs)
        assert list(made.make_listener_sasl(security).mechanisms) == list(MECHANISMS)
        assert len(list(made.key_sets)) == 1

    in_loop(main)


def test_plain_users_come_from_the_config() -> None:
    async def main() -> None:
        found, _ = exchange("PLAIN")
        found.evaluate(b"\0bob\0b", 0)
        assert found.login == SaslLogin("User:bob")

    in_loop(main)


def test_scram_users_and_tokens_come_from_the_metadata() -> None:
    """A change is in force for the next login, and each exchange has its own nonce."""

    async def main() -> None:
        made, security, server = mechanisms()
        mechanism = made.make_listener_sasl(security).mechanisms["SCRAM-SHA-256"]
        sha_256 = SCRAM_MECHANISMS["SCRAM-SHA-256"]
        client = ScramClient("secret", "carol")

        def attempt() -> SaslLogin | None:
            found = mechanism.exchange()
            first = found.evaluate(client.first(), 0)
            nonces.add(first.split(b",")[0])
            try:
                found.evaluate(client.final(first), 0)
            except LoginRefused:
                return None
            return found.login

        nonces: set[bytes] = set()
        assert attempt() is None
        credential = scram.build_credential(sha_256, "secret", b"salt")
        server.cache.image = replace(
            server.cache.image, scram_credentials={("carol", 1): credential}
        )
        assert attempt() == SaslLogin("User:carol")
        assert len(nonces) == 2

    in_loop(main)


def test_unsecured_tokens_need_kafkas_class() -> None:
    async def main() -> None:
        found, _ = exchange(
            "OAUTHBEARER",
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{PREFIX}oauthbearer.sasl.server.callback.handler.class": UNSECURED,
            },
        )
        claims = "eyJzdWIiOiJhbGljZSIsImV4cCI6OTk5OTk5OTk5OX0"
        message = f"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.{claims}.\x01\x01"
        assert found.evaluate(message.encode(), 0) == b""
        assert found.login == SaslLogin("User:alice", 9_999_999_999_000, extensions={})

    in_loop(main)
