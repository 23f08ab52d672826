"""The server's side of SCRAM: good and bad messages, unknown names, delegation tokens.

scramp, a client that this project did not write, runs whole exchanges.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import scramp
from shoal.security import scram
from shoal.security.credentials import StoredCredentials, compute_token_password
from shoal.security.delegation_tokens import DelegationToken
from shoal.security.sasl import LoginRefused, SaslLogin
from shoal.security.scram import (
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramExchange,
    UserCredential,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SHA_256, SHA_512 = SCRAM_MECHANISMS["SCRAM-SHA-256"], SCRAM_MECHANISMS["SCRAM-SHA-512"]
MECHANISMS = [pytest.param(m, id=m.name) for m in (SHA_256, SHA_512)]
SALT = b"1x4saltoftoolsofkafka00000"
NOW_MS = 1_700_000_000_000
NONCE = "3rfcNHYJY1ZVvWVs7j"
TOKEN_SECRET = b"secret of the tokens"
TOKEN = DelegationToken("tok-1", "User:bob", "User:bob", (), NOW_MS, NOW_MS + 9000, NOW_MS + 5000)


def stored(
    users: Mapping[tuple[str, int], ScramCredential] | None = None, secret: bytes = TOKEN_SECRET
) -> StoredCredentials:
    passwords = {"alice": "secret", "a,b=c": "x", "zoë": "pässword", "x=2Cy": "z"}
    given = {
        (name, mechanism.number): scram.build_credential(mechanism, password, SALT)
        for name, password in passwords.items()
        for mechanism in (SHA_256, SHA_512)
    }
    return StoredCredentials(
        lambda: given if users is None else users,
        lambda: {TOKEN.token_id: TOKEN},
        token_secret=secret,
        process_secret=b"of this process",
    )


@functools.lru_cache(maxsize=4096)
def _salted(digest: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)


class Client:
    """A client that can deviate from the protocol at each step."""

    def __init__(
        self, password: str, name: str = "alice", mechanism: scram.ScramMechanism = SHA_256
    ) -> None:
        self.password, self.name, self.mechanism = password, name, mechanism
        self.header, self.extensions, self.nonce = "n,,", "", "clientnonce"
        self.binding: str | None = None
        self.server_signature = b""

    @property
    def bare(self) -> str:
        name = self.name.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self.nonce}{self.extensions}"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes, *, nonce: str | None = None, extra: str = "") -> bytes:
        text = server_first.decode()
        found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", text)
        assert found is not None, text
        digest = self.mechanism.digest
        salted = _salted(digest, self.password, b64decode(found[2]), int(found[3]))
        client_key = hmac.digest(salted, b"Client Key", digest)
        binding = self.binding or b64encode(self.header.encode()).decode()
        unsigned = f"c={binding},r={nonce or found[1]}{extra}"
        signed = f"{self.bare},{text},{unsigned}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = hmac.digest(
            hmac.digest(salted, b"Server Key", digest), signed, digest
        )
        return f"{unsigned},p={b64encode(proof).decode()}".encode()

    def log_in(self, credentials: StoredCredentials | None = None) -> SaslLogin | None:
        exchange = ScramExchange(self.mechanism, NONCE, credentials or stored())
        answer = exchange.evaluate(self.first(), NOW_MS)
        last = exchange.evaluate(self.final(answer), NOW_MS)
        assert last == b"v=" + b64encode(self.server_signature)
        return exchange.login


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("name", "password"), [("alice", "secret"), ("a,b=c", "x"), ("zoë", "pässword"), ("x=2Cy", "z")]
)
def test_a_client_of_another_project_logs_in(
    mechanism: scram.ScramMechanism, name: str, password: str
) -> None:
    client = scramp.ScramClient([mechanism.name], name, password)
    exchange = ScramExchange(mechanism, NONCE, stored())
    client.set_server_first(exchange.evaluate(client.get_client_first().encode(), NOW_MS).decode())
    client.set_server_final(exchange.evaluate(client.get_client_final().encode(), NOW_MS).decode())
    assert exchange.login == SaslLogin(f"User:{name}")
    assert exchange.user == name


def test_the_example_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = {("user", 1): scram.build_credential(SHA_256, "pencil", salt, 4096)}
    exchange = ScramExchange(SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", stored(users))
    first = exchange.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", NOW_MS)
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = exchange.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        NOW_MS,
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=alice,", "y,a=alice,"])
def test_clients_without_channel_binding(header: str) -> None:
    client = Client("secret")
    client.header = header
    assert client.log_in() == SaslLogin("User:alice")


def test_extensions_are_signed_and_ignored() -> None:
    client = Client("secret")
    client.extensions = ",x=1,custom=a=b"
    exchange = ScramExchange(SHA_256, NONCE, stored())
    answer = exchange.evaluate(client.first(), NOW_MS)
    exchange.evaluate(client.final(answer, extra=",y=2"), NOW_MS)
    assert exchange.login == SaslLogin("User:alice")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=al,ice,r=abc",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=\xc3\xa9",
        b"n,,n=\xff,r=abc",
        b"n,,n=a\0b,r=abc",
        b"n,,m=mandatory,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"p=tls-server-end-point,,n=alice,r=abc",
        b"x,,n=alice,r=abc",
        b"n,,n=alice,r=abc,1=2",
        b"n,,n=alice,r=abc,x",
        b"n,,n=alice,r=abc\n",
        b"\0alice\0secret",
        b"n,\x01auth=Bearer x\x01\x01",
        b"n,," + 500_000 * b"=2C",
    ],
)
def test_malformed_first_messages(message: bytes) -> None:
    exchange = ScramExchange(SHA_256, NONCE, stored())
    with pytest.raises(LoginRefused, match="malformed") as refused:
        exchange.evaluate(message, NOW_MS)
    assert refused.value.client_message is None
    with pytest.raises(LoginRefused, match="after the end"):
        exchange.evaluate(Client("secret").first(), NOW_MS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.replace(b"c=biws", b"c=eSws"), "channel binding"),
        (lambda m: m.replace(b"c=biws", b"c="), "channel binding"),
        (lambda m: m.replace(b"c=biws", b"c=biw"), "malformed"),
        (lambda m: m.replace(b"c=biws,", b""), "malformed"),
        (lambda m: m.replace(b",p=", b",p=AAAA"), "proof of 35 bytes"),
        (lambda m: m[: m.index(b",p=") + 3], "proof of 0 bytes"),
        (lambda m: m[: m.index(b",p=")], "malformed"),
        (lambda m: m + b",x=1", "malformed"),
        (lambda m: m + b"\xff", "malformed"),
        (lambda m: b"", "malformed"),
        (lambda m: b"\x01", "malformed"),
    ],
)
def test_malformed_final_messages(change, reason: str) -> None:
    client, exchange = Client("secret"), ScramExchange(SHA_256, NONCE, stored())
    final = client.final(exchange.evaluate(client.first(), NOW_MS))
    with pytest.raises(LoginRefused, match=reason):
        exchange.evaluate(change(final), NOW_MS)
    assert exchange.login is None
    with pytest.raises(LoginRefused, match="after the end"):
        exchange.evaluate(final, NOW_MS)


@pytest.mark.parametrize(
    "nonce",
    [
        "clientnonce",
        NONCE,
        f"clientnonce{NONCE}x",
        f"xclientnonce{NONCE}",
        f"clientnonce{NONCE[:-1]}",
        f"clientnonce{NONCE.lower()}",
        f"othernonce{NONCE}",
        f"otherclientnonce{NONCE}",
        f"clientnonceclientnonceclientnonce{NONCE}",
        f"clientnonce{NONCE}{NONCE}",
    ],
)
def test_the_final_nonce_is_that_of_this_exchange(nonce: str) -> None:
    """CVE-2024-56128. The proof is right for the nonce that the client claims."""
    client, exchange = Client("secret"), ScramExchange(SHA_256, NONCE, stored())
    answer = exchange.evaluate(client.first(), NOW_MS)
    with pytest.raises(LoginRefused, match="nonce"):
        exchange.evaluate(client.final(answer, nonce=nonce), NOW_MS)


def test_older_versions_of_librdkafka_repeat_their_part_of_the_nonce() -> None:
    client, exchange = Client("secret"), ScramExchange(SHA_256, NONCE, stored())
    answer = exchange.evaluate(client.first(), NOW_MS)
    repeated = f"clientnonceclientnonce{NONCE}"
    assert exchange.evaluate(client.final(answer, nonce=repeated), NOW_MS)
    assert exchange.login == SaslLogin("User:alice")


def test_messages_of_another_exchange_are_refused() -> None:
    client, recorded = Client("secret"), ScramExchange(SHA_256, NONCE, stored())
    final = client.final(recorded.evaluate(client.first(), NOW_MS))
    recorded.evaluate(final, NOW_MS)
    assert recorded.login
    replayed = ScramExchange(SHA_256, "another nonce".replace(" ", ""), stored())
    replayed.evaluate(client.first(), NOW_MS)
    with pytest.raises(LoginRefused, match="nonce"):
        replayed.evaluate(final, NOW_MS)


def test_a_mechanism_does_not_accept_the_others_proof() -> None:
    client, exchange = Client("secret", mechanism=SHA_512), ScramExchange(SHA_256, NONCE, stored())
    answer = exchange.evaluate(client.first(), NOW_MS)
    with pytest.raises(LoginRefused, match="proof of 64 bytes"):
        exchange.evaluate(client.final(answer), NOW_MS)


def test_another_authorization_id_is_refused_whether_or_not_there_is_the_user() -> None:
    messages = []
    for name in ("alice", "nobody"):
        client = Client("secret", name)
        client.header = "n,a=carol,"
        with pytest.raises(LoginRefused) as refused:
            ScramExchange(SHA_256, NONCE, stored()).evaluate(client.first(), NOW_MS)
        messages.append(refused.value.client_message)
    assert (
        messages[0]
        == messages[1]
        == (
            "Authentication failed: Client requested an authorization id that is different from"
            " username"
        )
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_unknown_users_and_wrong_passwords(
    mechanism: scram.ScramMechanism, name: str, password: str
) -> None:
    """Both take two steps, with the same forms of messages, and end with the same error."""
    client = Client(password, name, mechanism)
    exchange = ScramExchange(mechanism, NONCE, stored())
    answer = exchange.evaluate(client.first(), NOW_MS)
    assert re.fullmatch(rb"r=clientnonce3rfcNHYJY1ZVvWVs7j,s=[A-Za-z0-9+/]+=*,i=4096", answer)
    with pytest.raises(LoginRefused) as refused:
        exchange.evaluate(client.final(answer), NOW_MS)
    assert refused.value.reason == "unknown user or wrong password"
    assert refused.value.client_message is None
    assert exchange.user == name
    assert exchange.login is None


def test_false_credentials_stay_the_same_and_look_like_those_of_kafkas_tools() -> None:
    credentials = stored({})
    first = {n: credentials.find_user(f"user{n}", SHA_512, NOW_MS).credential for n in range(400)}
    again = stored({})
    for n, found in first.items():
        assert again.find_user(f"user{n}", SHA_512, NOW_MS) == (found, False, found)
        assert credentials.find_user(f"user{n}", SHA_256, NOW_MS).credential.salt != found.salt
        assert re.fullmatch(rb"[1-9a-z][0-9a-z]{22,25}", found.salt)
        assert found.salt[:1] == b"1" or len(found.salt) < 26
        assert found.iterations == 4096
    assert len({found.salt for found in first.values()}) == 400
    # Of 130 bits, 40 % begin with the 26th digit.
    assert 100 < sum(len(found.salt) == 26 for found in first.values()) < 220


def test_false_credentials_have_the_shapes_of_the_stored_ones() -> None:
    def made(name: str, salt: bytes, iterations: int) -> tuple[tuple[str, int], ScramCredential]:
        return (name, 2), ScramCredential(salt, b"k" * 64, b"k" * 64, iterations)

    users = dict(
        [made(f"a{n}", bytes([200 + n % 50]) * 16, 8192) for n in range(30)]
        + [made(f"b{n}", SALT, 4096) for n in range(10)]
    )
    credentials = stored(users)
    shapes: Counter[tuple[bool, int]] = Counter()
    for n in range(400):
        found, is_known, _ = credentials.find_user(f"unknown{n}", SHA_512, NOW_MS)
        assert not is_known
        shapes[len(found.salt) == 16, found.iterations] += 1
    assert set(shapes) == {(True, 8192), (False, 4096)}
    assert 240 < shapes[True, 8192] < 360
    # They are counted again only after a minute, so that one more user changes no answer at once.
    before = credentials.find_user("unknown1", SHA_512, NOW_MS)
    users.update(dict([made(f"c{n}", b"\xff" * 9, 5000) for n in range(20_000)]))
    assert credentials.find_user("unknown1", SHA_512, NOW_MS + 59_000) == before
    sizes = {
        len(credentials.find_user(f"u{n}", SHA_512, NOW_MS + 60_000).false.salt) for n in range(20)
    }
    assert sizes == {9}


def test_nobody_logs_in_with_a_false_credential() -> None:
    """Not even a client that has found out the key which the false credential stores."""
    credentials = stored({})
    client, exchange = Client("secret", "nobody"), ScramExchange(SHA_256, NONCE, credentials)
    found = credentials.find_user("nobody", SHA_256, NOW_MS).false
    client_key = b"c" * 32
    forged = found._replace(stored_key=hashlib.sha256(client_key).digest())
    credentials.find_user = lambda *_: UserCredential(forged, False, forged)  # type: ignore[method-assign]
    answer = exchange.evaluate(client.first(), NOW_MS).decode()
    unsigned = f"c=biws,r=clientnonce{NONCE}"
    signed = f"{client.bare},{answer},{unsigned}".encode()
    signature = hmac.digest(forged.stored_key, signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    with pytest.raises(LoginRefused, match="unknown user"):
        exchange.evaluate(f"{unsigned},p={b64encode(proof).decode()}".encode(), NOW_MS)


@pytest.mark.parametrize("iterations", [1, 4095, 4096, 16_384, 10**9])
def test_iterations(iterations: int) -> None:
    """The server computes none, so their number costs it nothing. RFC 7677 requires 4096."""
    few = scram.build_credential(SHA_256, "secret", SALT, min(iterations, 4096))
    users = {("alice", 1): few._replace(iterations=iterations)}
    client, exchange = Client("secret"), ScramExchange(SHA_256, NONCE, stored(users))
    answer = exchange.evaluate(client.first(), NOW_MS)
    if iterations < 4096:
        assert b64encode(SALT) not in answer
        with pytest.raises(LoginRefused, match="unknown user"):
            exchange.evaluate(client.final(answer), NOW_MS)
    else:
        assert answer.endswith(f",i={iterations}".encode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_delegation_token_logs_its_owner_in(mechanism: scram.ScramMechanism) -> None:
    client = Client(compute_token_password(TOKEN_SECRET, "tok-1"), "tok-1", mechanism)
    client.extensions = ",tokenauth=true"
    assert client.log_in() == SaslLogin("User:bob", NOW_MS + 5000, by_token=True)


@pytest.mark.parametrize(
    ("name", "extension", "now_ms", "secret"),
    [
        ("tok-1", "", NOW_MS, TOKEN_SECRET),
        ("tok-1", ",tokenauth=false", NOW_MS, TOKEN_SECRET),
        ("tok-1", ",tokenauth=true", NOW_MS + 5001, TOKEN_SECRET),
        ("tok-2", ",tokenauth=true", NOW_MS, TOKEN_SECRET),
        ("tok-1", ",tokenauth=true", NOW_MS, b""),
        ("alice", ",tokenauth=true", NOW_MS, TOKEN_SECRET),
    ],
)
def test_tokens_that_are_not_valid(name: str, extension: str, now_ms: int, secret: bytes) -> None:
    client = Client(compute_token_password(TOKEN_SECRET, name), name)
    client.extensions = extension
    exchange = ScramExchange(SHA_256, NONCE, stored(secret=secret))
    answer = exchange.evaluate(client.first(), now_ms)
    with pytest.raises(LoginRefused, match="unknown user or wrong password"):
        exchange.evaluate(client.final(answer), now_ms)


@pytest.mark.parametrize(("token_id", "now_ms"), [("tok-2", NOW_MS), ("tok-1", NOW_MS + 5001)])
def test_a_token_that_is_not_valid_costs_no_iterations(
    token_id: str, now_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that makes up ids would occupy the broker with 4096 iterations for each. The answer
    still has the salt that the token would have."""
    credentials, client = stored(), Client("", token_id)
    client.extensions = ",tokenauth=true"
    counted: list[int] = []
    derive = hashlib.pbkdf2_hmac

    def count(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        counted.append(iterations)
        return derive(digest, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", count)
    answer = ScramExchange(SHA_256, NONCE, credentials).evaluate(client.first(), now_ms)
    assert counted == []
    if token_id == TOKEN.token_id:
        valid = ScramExchange(SHA_256, NONCE, credentials).evaluate(client.first(), NOW_MS)
        assert counted == [4096]
        assert answer == valid


def test_without_a_secret_no_token_is_valid() -> None:
    """Not even one whose password is made from the secret of the process."""
    client = Client(compute_token_password(b"of this process", "tok-1"), "tok-1")
    client.extensions = ",tokenauth=true"
    with pytest.raises(LoginRefused, match="unknown user or wrong password"):
        client.log_in(stored(secret=b""))


def test_no_repr_shows_a_key() -> None:
    found = scram.build_credential(SHA_256, "secret", SALT)
    assert "salt" not in repr(found)
    assert str(found.stored_key) not in repr(found)
