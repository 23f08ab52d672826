"""Logins step by step: the same frames to Kafka and to Shoal get the same answers.

Shoal differs on purpose where a list below says so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.client import SyncClient
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.shared_servers import controller_pid
from support.runs.conditions import eventually
from support.security import sasl_listeners
from support.security.sasl_dialogue import CLOSED, Dialogue
from support.security.sasl_listeners import DELAY_MS, LISTENERS, configs
from support.security.scram_users import add_scram_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Script = Callable[[Dialogue], object]

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def kafka(run_directory: Path) -> dict[str, str]:
    found = sasl_listeners.shared_kafka(run_directory, controller_pid())
    for user in ("alice", "bob"):
        add_scram_user(found.bootstrap, user, "secret")
    return found.addresses


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    names = ("PLAINTEXT", *LISTENERS)
    addresses = {
        name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)
    }
    protocols = [*(f"{name}:SASL_PLAINTEXT" for name in LISTENERS), "PLAINTEXT:PLAINTEXT"]
    process = ShoalProcess(
        tmp_path_factory.mktemp("shoal") / "data",
        configs=configs() | {"listener.security.protocol.map": ",".join(protocols)},
        flags=[f"--listener={name}://{addresses[name]}" for name in LISTENERS],
    )
    process.bootstrap = addresses["PLAINTEXT"]
    process.start()
    for user in ("alice", "bob"):
        add_scram_user(addresses["PLAINTEXT"], user, "secret")
    yield addresses
    assert process.stop() == 0, "\n".join(process.log[-40:])


def notes(address: str, script: Script) -> list[Any]:
    with Dialogue(address) as dialogue:
        script(dialogue)
        return dialogue.notes


def steps(*calls: Script) -> Script:
    def script(dialogue: Dialogue) -> None:
        for call in calls:
            call(dialogue)

    return script


def versions(version: int = 3, name: str = "test") -> Script:
    return lambda d: d.versions(version, name)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> Script:
    return lambda d: d.handshake(mechanism, version)


def plain(user: str = "alice", password: str = "secret", version: int = 2) -> Script:
    return lambda d: d.plain(user, password, version)


def raw(data: bytes) -> Script:
    return lambda d: d.raw(data)


def token(data: bytes, version: int = 2) -> Script:
    return lambda d: d.token(data, version)


def request(api: ApiKey = ApiKey.METADATA, version: int = 12) -> Script:
    return lambda d: d.request(api, version)


def sent(data: bytes) -> Script:
    return lambda d: d.junk(data)


GOOD = b"\0alice\0secret"
SEQUENCES = {
    # The order of requests.
    "all versions of ApiVersions": steps(versions(3), handshake(), plain(), request()),
    "ApiVersions 0": steps(versions(0), handshake(), plain(), request()),
    "ApiVersions 4": steps(versions(4), handshake(), plain(), request()),
    "ApiVersions after the login": steps(handshake(), plain(), versions(), request()),
    "ApiVersions too new, then again": steps(versions(99), versions(3), handshake(), plain()),
    "ApiVersions with a bad name, then again": steps(versions(3, "-"), versions(3), handshake()),
    "ApiVersions twice": steps(versions(), versions()),
    "ApiVersions and a token": steps(versions(), raw(GOOD)),
    "Metadata first": steps(request()),
    "Produce first": steps(request(ApiKey.PRODUCE, 9)),
    "Metadata after ApiVersions": steps(versions(), request()),
    "SaslAuthenticate first": steps(plain()),
    "SaslAuthenticate after ApiVersions": steps(versions(), plain()),
    "a token first": steps(raw(GOOD)),
    "an API that there is not": steps(sent(b"\0\0\0\x0a\x03\xe7\0\0\0\0\0\1\xff\xff")),
    "a short request": steps(sent(b"\0\0\0\x03\0\x12\0")),
    "an empty request": steps(sent(b"\0\0\0\0")),
    # Sizes.
    "a request of 2 GB": steps(sent(b"\x7f\xff\xff\xff")),
    "a request of 100 MB": steps(sent(b"\x06\x40\0\0")),
    "a request one byte above the limit": steps(sent(b"\0\x08\0\x01")),
    "a request of negative size": steps(sent(b"\xff\xff\xff\xff")),
    "TLS": steps(sent(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 600)),
    "HTTP": steps(sent(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")),
    "a token above the limit": steps(handshake(), sent(b"\0\x08\0\x01")),
    "a large token": steps(handshake(), token(b"\0alice\0" + b"x" * 500_000)),
    # Handshakes.
    "handshake 0 and a raw token": steps(handshake(version=0), raw(GOOD), request()),
    "handshake 0 and a wrong password": steps(handshake(version=0), raw(b"\0alice\0no")),
    "handshake 0 and SaslAuthenticate": steps(handshake(version=0), plain()),
    "handshake 0 and an empty token": steps(handshake(version=0), raw(b"")),
    "handshake 0 with an unknown mechanism": steps(handshake("SCRAM-SHA-1", 0), raw(GOOD)),
    "handshake 1 with an unknown mechanism": steps(handshake("SCRAM-SHA-1"), request()),
    "an unknown mechanism, then a known one": steps(handshake("x"), handshake()),
    "GSSAPI": steps(handshake("GSSAPI")),
    "OAUTHBEARER, which is not enabled": steps(handshake("OAUTHBEARER")),
    "a mechanism in lower case": steps(handshake("plain")),
    "an empty mechanism": steps(handshake("")),
    "handshake 2": steps(handshake(version=2)),
    "handshake 1 and a raw token": steps(handshake(), raw(GOOD)),
    # Tokens.
    "SaslAuthenticate 0": steps(handshake(), plain(version=0), request()),
    "SaslAuthenticate 1": steps(handshake(), plain(version=1), request()),
    "SaslAuthenticate 3": steps(handshake(), plain(version=3)),
    "a name and a password that are not ASCII": steps(handshake(), plain("zoë", "pä ss")),
    "a wrong password": steps(handshake(), plain(password="wrong"), request()),
    "a wrong password, then the right one": steps(handshake(), plain(password="x"), plain()),
    "a wrong password in version 0": steps(handshake(), plain(password="x", version=0)),
    "an unknown user": steps(handshake(), plain("nobody"), request()),
    "no token": steps(handshake(), token(b"")),
    "one part": steps(handshake(), token(b"alice")),
    "two parts": steps(handshake(), token(b"alice\0secret")),
    "four parts": steps(handshake(), token(GOOD + b"\0")),
    "no user": steps(handshake(), token(b"\0\0secret")),
    "no password": steps(handshake(), token(b"\0alice\0")),
    "an authorization id": steps(handshake(), token(b"alice\0alice\0secret"), request()),
    "another authorization id": steps(handshake(), token(b"bob\0alice\0secret")),
    "bytes that are not UTF-8": steps(handshake(), token(b"\0\xff\xfe\0secret")),
    # Sessions without an end.
    "a handshake in a session": steps(
        handshake(), plain(), handshake(), request(), handshake(version=0)
    ),
    "SaslAuthenticate in a session": steps(
        handshake(), plain(), plain(), plain(version=0), request()
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(kafka: dict[str, str], shoal: dict[str, str], name: str) -> None:
    expected = notes(kafka["SESSION"], SEQUENCES[name])
    assert notes(shoal["SESSION"], SEQUENCES[name]) == expected


AGAIN = {
    "the same user": steps(handshake(), plain(), request(), handshake(), plain(), request()),
    "in version 1": steps(handshake(), plain(version=1), handshake(), plain(version=1)),
    "in version 0": steps(handshake(), plain(version=0), handshake(), plain(version=0), request()),
    "by a raw token": steps(handshake(), plain(), handshake(version=0), raw(GOOD), request()),
    "twice within a second": steps(
        handshake(), plain(), handshake(), plain(), handshake(), request(), plain()
    ),
    "another user": steps(handshake(), plain(), handshake(), plain("bob", "builder"), request()),
    "another user by a raw token": steps(
        handshake(), plain(), handshake(version=0), raw(b"\0bob\0builder")
    ),
    "a wrong password": steps(handshake(), plain(), handshake(), plain(password="x")),
    "another mechanism": steps(
        handshake(), plain(), handshake("SCRAM-SHA-256"), token(b"n,,n=alice,r=abc")
    ),
    "another mechanism by raw tokens": steps(
        handshake(), plain(), handshake("SCRAM-SHA-256", 0), raw(b"n,,n=alice,r=abc")
    ),
    "an unknown mechanism": steps(handshake(), plain(), handshake("x")),
    "ApiVersions in place of the token": steps(handshake(), plain(), handshake(), raw(GOOD)),
    "SaslAuthenticate without a handshake": steps(handshake(), plain(), plain(), request()),
    "a token above the limit": steps(handshake(), plain(), handshake(), sent(b"\0\x08\0\x01")),
    "handshake 0 first": steps(handshake(version=0), raw(GOOD), request(), handshake(), plain()),
}


@pytest.mark.parametrize("name", AGAIN)
def test_logins_in_a_session_that_ends(
    kafka: dict[str, str], shoal: dict[str, str], name: str
) -> None:
    """KIP-368."""
    expected = notes(kafka["LIMITED"], AGAIN[name])
    assert notes(shoal["LIMITED"], AGAIN[name]) == expected


def scram(user: str = "alice", password: str = "secret", **options: Any) -> Script:
    def script(dialogue: Dialogue) -> None:
        send = dialogue.raw if options.get("raw") else None
        kept = {name: value for name, value in options.items() if name != "raw"}
        dialogue.scram_login(user, password, send=send, **kept)

    return script


SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
SCRAM = {
    "SHA-256": steps(handshake(SHA_256), scram(), request()),
    "SHA-512": steps(handshake(SHA_512), scram(mechanism=SHA_512), request()),
    "by raw tokens": steps(handshake(SHA_256, 0), scram(raw=True), request()),
    "a wrong password": steps(handshake(SHA_256), scram(password="wrong"), request()),
    "a wrong password by raw tokens": steps(
        handshake(SHA_256, 0), scram(password="wrong", raw=True)
    ),
    "an authorization id": steps(handshake(SHA_256), scram(header="n,a=alice,"), request()),
    "another authorization id": steps(handshake(SHA_256), scram(header="n,a=bob,")),
    "another nonce": steps(handshake(SHA_256), scram(nonce_suffix="x")),
    "an extension": steps(handshake(SHA_256), scram(extensions=",x=1"), request()),
    "a token that there is not": steps(
        handshake(SHA_256), token(b"n,,n=none,r=abc,tokenauth=true"), request()
    ),
    "no message": steps(handshake(SHA_256), token(b"")),
    "PLAIN's message": steps(handshake(SHA_256), token(GOOD)),
    "a name with a bad escape": steps(handshake(SHA_256), token(b"n,,n=al=ice,r=abc")),
    "channel binding": steps(handshake(SHA_256), token(b"p=tls-unique,,n=alice,r=abc")),
    "a final message first": steps(handshake(SHA_256), token(b"c=biws,r=abc,p=AAAA")),
    "a first message twice": steps(
        handshake(SHA_256), token(b"n,,n=alice,r=abc"), token(b"n,,n=alice,r=abc")
    ),
    "a new login": steps(
        handshake(SHA_256), scram(), request(), handshake(SHA_256), scram(), request()
    ),
    "a new login with a wrong password": steps(
        handshake(SHA_256), scram(), handshake(SHA_256), scram(password="wrong")
    ),
    "a new login as another user": steps(
        handshake(SHA_256), scram(), handshake(SHA_256), scram("bob")
    ),
    "a new login with the other hash": steps(handshake(SHA_256), scram(), handshake(SHA_512)),
}
#: What Kafka refuses at the first message, and Shoal at the second, so that nobody learns which
#: users there are: the error is the same.
AT_THE_SECOND = {"a token that there is not"}


@pytest.mark.parametrize("name", SCRAM)
def test_scram(kafka: dict[str, str], shoal: dict[str, str], name: str) -> None:
    expected = notes(kafka["LIMITED"], SCRAM[name])
    got = notes(shoal["LIMITED"], SCRAM[name])
    if name in AT_THE_SECOND:
        assert got[1][0] == "none"
        expected = got
    assert got == expected


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_an_unknown_user_is_like_a_wrong_password(
    kafka: dict[str, str], shoal: dict[str, str], mechanism: str
) -> None:
    """Kafka refuses an unknown user one step earlier than a wrong password."""
    unknown = steps(handshake(mechanism), scram("nobody", mechanism=mechanism))
    wrong = steps(handshake(mechanism), scram("alice", "wrong", mechanism=mechanism))
    assert notes(shoal["SESSION"], unknown) == notes(shoal["SESSION"], wrong)
    assert notes(kafka["SESSION"], unknown) != notes(kafka["SESSION"], wrong)
    assert notes(kafka["SESSION"], unknown)[-1] == notes(shoal["SESSION"], unknown)[-1]


#: RFC 5802 permits these, and Kafka does not. Shoal follows the RFC.
LENIENT = {
    "a client that could bind the channel": scram(header="y,,"),
    "an extension of the final message": scram(nonce_suffix=",x=1"),
}


@pytest.mark.parametrize("name", LENIENT)
def test_what_the_rfc_permits(kafka: dict[str, str], shoal: dict[str, str], name: str) -> None:
    script = steps(handshake(SHA_256), LENIENT[name])
    assert notes(kafka["SESSION"], script)[-1][0] == "sasl_authentication_failed"
    assert notes(shoal["SESSION"], script)[-1][0] == "none"


def test_a_proof_of_the_wrong_size(kafka: dict[str, str], shoal: dict[str, str]) -> None:
    """Kafka closes without an answer, after an internal error. Shoal answers as for any proof."""
    script = steps(handshake(SHA_256), scram(mechanism=SHA_512))
    assert notes(kafka["SESSION"], script)[-1] == CLOSED
    assert notes(shoal["SESSION"], script)[-1][0] == "sasl_authentication_failed"


#: Kafka parses these requests and answers with ILLEGAL_SASL_STATE. Shoal parses nothing but SASL
#: before a login, so that no stranger can make it work, and closes without an answer.
UNPARSED = {
    "Metadata in place of the token": steps(handshake(), request()),
    "Produce in place of the token": steps(handshake(), request(ApiKey.PRODUCE, 9)),
    "ApiVersions in place of the token": steps(handshake(), versions()),
    "a handshake in place of the token": steps(handshake(), handshake()),
    "Metadata in place of the token of a new login": steps(
        handshake(), plain(), handshake(), request()
    ),
}


@pytest.mark.parametrize("name", UNPARSED)
def test_other_requests_in_place_of_a_token(
    kafka: dict[str, str], shoal: dict[str, str], name: str
) -> None:
    def ends(dialogue: Dialogue) -> None:
        UNPARSED[name](dialogue)
        if dialogue.notes[-1] != CLOSED:
            dialogue.notes[-1] = CLOSED if dialogue.receive() is None else "another answer"

    expected = notes(kafka["LIMITED"], ends)
    assert expected[-1] == CLOSED
    assert notes(shoal["LIMITED"], UNPARSED[name]) == expected


def test_the_size_of_requests_before_the_login(
    kafka: dict[str, str], shoal: dict[str, str]
) -> None:
    """The largest request has 1000 bytes on this listener. One of 100 MB ends with its size."""
    largest = b"\0\0\x03\xe8" + b"\0\x11\0\x01\0\0\0\1\xff\xff" + b"\x03\xdc" + b"x" * 988
    for data in (b"\0\0\x03\xe9", b"\x06\x40\0\0" + b"x" * 100_000, largest):
        expected = notes(kafka["BRIEF"], sent(data))
        assert notes(shoal["BRIEF"], sent(data)) == expected
    assert expected != [CLOSED]


def test_a_session_ends(kafka: dict[str, str], shoal: dict[str, str]) -> None:
    """The first request after the end closes the connection, unless it begins a new login."""

    def until_closed(address: str) -> list[Any]:
        with Dialogue(address) as dialogue:
            dialogue.handshake()
            dialogue.plain()

            def closed() -> bool:
                dialogue.request()
                return dialogue.notes.pop() == CLOSED

            eventually(closed, what="the end of the session")
            return dialogue.notes

    def late(address: str) -> list[Any]:
        with Dialogue(address) as ended, Dialogue(address) as dialogue:
            for each in (dialogue, ended):
                each.handshake()
                each.plain()
            eventually(lambda: _ended(ended), what="the end of the session")
            dialogue.handshake()
            dialogue.plain()
            dialogue.request()
            return dialogue.notes

    for script in (until_closed, late):
        assert script(shoal["BRIEF"]) == script(kafka["BRIEF"])


def _ended(dialogue: Dialogue) -> bool:
    dialogue.request()
    return dialogue.notes.pop() == CLOSED


@pytest.mark.parametrize("script", [handshake("x"), steps(handshake(), plain(password="x"))])
def test_errors_are_delayed(kafka: dict[str, str], shoal: dict[str, str], script: Script) -> None:
    for addresses in (kafka, shoal):
        with Dialogue(addresses["SESSION"]) as dialogue:
            begun = time.monotonic()
            script(dialogue)
            assert time.monotonic() - begun >= DELAY_MS / 1000
            assert dialogue.receive() is None


def test_frames_that_arrive_together(kafka: dict[str, str], shoal: dict[str, str]) -> None:
    """A client may send everything at once. What follows a failure is dropped."""

    def all_at_once(password: str) -> Script:
        def script(dialogue: Dialogue) -> None:
            parts = [
                dialogue.frame(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
                dialogue.frame(
                    ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": f"\0alice\0{password}".encode()}
                ),
                dialogue.frame(ApiKey.METADATA, 12, {"topics": []}),
            ]
            dialogue.send(b"".join(parts))
            while (found := dialogue.receive()) is not None:
                dialogue.notes.append(found[4:6])
                if len(dialogue.notes) == len(parts):
                    break
            else:
                dialogue.notes.append(CLOSED)

        return script

    for password in ("secret", "wrong"):
        expected = notes(kafka["SESSION"], all_at_once(password))
        assert notes(shoal["SESSION"], all_at_once(password)) == expected


def test_the_limit_of_requests_grows_with_the_login(shoal: dict[str, str]) -> None:
    names = [{"name": f"{n:0200}"} for n in range(4000)]
    with Dialogue(shoal["LIMITED"]) as dialogue:
        dialogue.handshake()
        dialogue.plain()
        frame = dialogue.frame(
            ApiKey.METADATA, 12, {"topics": names, "allow_auto_topic_creation": False}
        )
        assert len(frame) > 524_288
        dialogue.send(frame)
        assert dialogue.receive() is not None


def test_our_client_logs_in(shoal: dict[str, str]) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    with SyncClient(shoal["SESSION"], settings) as client:
        assert client
