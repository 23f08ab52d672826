"""Bearer tokens: the same ones to Kafka and to Shoal get the same answers."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.kafka.kafkas import KafkaProcess
from support.security.sasl_dialogue import CLOSED, Dialogue, log_in_by_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.java, pytest.mark.nightly]

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
#: BOUND wants an issuer and an audience, OPEN neither, UNSIGNED takes tokens without a signature.
BOUND, OPEN, UNSIGNED = "BOUND", "OPEN", "UNSIGNED"
RSA, OTHER_RSA = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())
STRANGER = rsa.generate_private_key(65537, 2048)


def jwk(key: Any, **members: str) -> dict[str, Any]:
    kind = (
        jwt.algorithms.RSAAlgorithm
        if isinstance(key, rsa.RSAPrivateKey)
        else jwt.algorithms.ECAlgorithm
    )
    found = json.loads(kind.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return {**found, **members}


KEYS = {
    "keys": [
        jwk(RSA, kid="rsa", use="sig"),
        jwk(OTHER_RSA, kid="other", alg="RS512"),
        jwk(EC, kid="ec"),
        jwk(STRANGER, kid="encryption", use="enc"),
    ]
}


def configs(keys_url: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (BOUND, OPEN, UNSIGNED):
        prefix = f"listener.name.{name.lower()}."
        found |= {
            f"{prefix}sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{prefix}oauthbearer.sasl.jaas.config": (
                f"{PACKAGE}.OAuthBearerLoginModule required"
                ' unsecuredValidatorAllowableClockSkewMs="5000"'
                ' unsecuredLoginStringClaim_sub="broker";'
            ),
            f"{prefix}oauthbearer.sasl.server.callback.handler.class": (
                f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
                if name == UNSIGNED
                else f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
            ),
        }
        if name != UNSIGNED:
            found[f"{prefix}oauthbearer.sasl.oauthbearer.jwks.endpoint.url"] = keys_url
    of_open = f"listener.name.{OPEN.lower()}.oauthbearer.sasl.oauthbearer.allow.unverified."
    found |= {f"{of_open}audience": "true", f"{of_open}issuer": "true"}
    own = f"listener.name.{BOUND.lower()}.oauthbearer.sasl.oauthbearer."
    return found | {
        f"{own}expected.issuer": "https://idp",
        f"{own}expected.audience": "queue,more",
        f"{own}sub.claim.name": "email",
        f"{own}scope.claim.name": "rights",
        f"{own}clock.skew.seconds": "30",
    }


@pytest.fixture(scope="module")
def keys_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps(KEYS))
    return f"file://{path}"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, keys_url: str) -> Iterator[dict[str, str]]:
    process = KafkaProcess(
        tmp_path_factory.mktemp("kafka"),
        listeners=dict.fromkeys((BOUND, OPEN, UNSIGNED), "SASL_PLAINTEXT"),
        configs=configs(keys_url),
        jvm_flags=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys_url}",),
    ).start()
    yield process.addresses
    process.kill9()


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory, keys_url: str) -> Iterator[dict[str, str]]:
    names = (BOUND, OPEN, UNSIGNED)
    addresses = dict(zip(names, (f"127.0.0.1:{p}" for p in free_ports(3)), strict=True))
    protocols = [*(f"{name}:SASL_PLAINTEXT" for name in names), "PLAINTEXT:PLAINTEXT"]
    process = ShoalProcess(
        tmp_path_factory.mktemp("shoal") / "data",
        configs=configs(keys_url)
        | {
            "listener.security.protocol.map": ",".join(protocols),
            "shoal.oauthbearer.allowed.urls": keys_url,
        },
        flags=[f"--listener={name}://{address}" for name, address in addresses.items()],
    ).start()
    yield addresses
    assert process.stop() == 0, "\n".join(process.log[-40:])


def in_s(seconds: float) -> float:
    """Return the time after that many seconds. A run of all tests takes longer than the clocks'
    permitted skew, so the tokens are made when they are sent."""
    return int(time.time()) + seconds


def good() -> dict[str, Any]:
    """The claims of a valid token."""
    times = {"iat": in_s(-5), "exp": in_s(3600)}
    return {"iss": "https://idp", "aud": "queue", "email": "zoë", **times}


def made(algorithm: str = "RS256", key: Any = RSA, kid: str | None = "rsa", **claims: Any) -> str:
    given = {name: value for name, value in (good() | claims).items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(given, key, algorithm, headers=headers)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def hmac_with_public_key() -> str:
    """PyJWT refuses to make such a token."""
    public = RSA.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(good())}"
    signature = hmac.digest(public, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


TOKENS: dict[str, Callable[[], str]] = {
    "good": made,
    "another audience of the list": lambda: made(aud=["x", "more"]),
    "RS512": lambda: made("RS512", OTHER_RSA, "other"),
    "PS256": lambda: made("PS256"),
    "ES256": lambda: made("ES256", EC, "ec"),
    "no key id": lambda: made(kid=None),
    "no key id, another type": lambda: made("ES256", EC, kid=None),
    "a list of scopes": lambda: made(rights=["a", "b"]),
    "a text of scopes": lambda: made(rights="a b"),
    "a scope twice": lambda: made(rights=["a", "a"]),
    "an empty scope": lambda: made(rights=[""]),
    "an empty value of another claim": lambda: made(scope=[""]),
    "blanks around the subject": lambda: made(email=" zoë "),
    "an unknown key id": lambda: made(kid="unknown"),
    "another key's id": lambda: made(kid="ec"),
    "a key for encryption": lambda: made(key=STRANGER, kid="encryption"),
    "a stranger's key": lambda: made(key=STRANGER),
    "none": lambda: f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{encoded(good())}.",
    "none with a signature": lambda: f"{encoded({'alg': 'none'})}.{encoded(good())}.AAAA",
    "HS256 with the public key": hmac_with_public_key,
    "a changed claim": lambda: ".".join(
        part if n != 1 else encoded(good() | {"email": "admin"})
        for n, part in enumerate(made().split("."))
    ),
    "a critical header": lambda: jwt.encode(
        good(), RSA, "RS256", headers={"kid": "rsa", "crit": ["x"], "x": 1}
    ),
    "another issuer": lambda: made(iss="https://idp/"),
    "no issuer": lambda: made(iss=None),
    "another audience": lambda: made(aud="other"),
    "no audience": lambda: made(aud=None),
    "no subject": lambda: made(email=None),
    "an empty subject": lambda: made(email=""),
    "a subject of blanks": lambda: made(email=" "),
    "a subject that is a number": lambda: made(email=7),
    "no expiry": lambda: made(exp=None),
    "an expiry that is a text": lambda: made(exp="tomorrow"),
    "expired within the skew": lambda: made(exp=in_s(-10), iat=in_s(-50)),
    "expired": lambda: made(exp=in_s(-3600), iat=in_s(-7200)),
    "no date of issue": lambda: made(iat=None),
    "a date of issue that is a text": lambda: made(iat="now"),
    "not valid yet": lambda: made(nbf=in_s(3600)),
    "valid within the skew": lambda: made(nbf=in_s(10)),
    "not three parts": lambda: "a.b",
    "not Base64": lambda: "a.b.c",
    "not JSON": lambda: "YQ.YQ.YQ",
}


@pytest.mark.parametrize("name", TOKENS)
def test_signed_tokens(kafka: dict[str, str], shoal: dict[str, str], name: str) -> None:
    token = TOKENS[name]()
    assert log_in_by_token(shoal[BOUND], token) == log_in_by_token(kafka[BOUND], token)


@pytest.mark.parametrize("subject", ["\u00a0admin", "admin\u3000", "\x01admin\x1f", "\u3000"])
def test_blanks_around_a_subject(
    kafka: dict[str, str], shoal: dict[str, str], subject: str
) -> None:
    """Java's trim removes control characters, and leaves blanks of Unicode: a token for another
    subject was one for `admin`. The authorization id shows which subject it is."""
    for authzid in ("", "a=admin"):
        token = made(email=subject)
        got = log_in_by_token(shoal[BOUND], token, authzid=authzid)
        assert got == log_in_by_token(kafka[BOUND], token, authzid=authzid), authzid


OPEN_TOKENS: dict[str, Callable[[], str]] = {
    "any issuer": lambda: made(sub="bob", aud=None, iss="anybody"),
    "no issuer": lambda: made(sub="bob", aud=None, iss=None),
    "an audience that nobody expects": lambda: made(sub="bob"),
}


@pytest.mark.parametrize("name", OPEN_TOKENS)
def test_without_an_issuer_and_an_audience(
    kafka: dict[str, str], shoal: dict[str, str], name: str
) -> None:
    token = OPEN_TOKENS[name]()
    assert log_in_by_token(shoal[OPEN], token) == log_in_by_token(kafka[OPEN], token)


#: Kafka accepts these. Shoal refuses a token that is issued in the future, and an algorithm other
#: than the one that the key set names for a key (RFC 8725, section 3.1).
STRICTER: dict[str, Callable[[], str]] = {
    "a date of issue in the future": lambda: made(iat=in_s(600)),
    "an algorithm that the key does not serve": lambda: made("RS256", OTHER_RSA, "other"),
}


@pytest.mark.parametrize("name", STRICTER)
def test_what_shoal_checks_in_addition(
    kafka: dict[str, str], shoal: dict[str, str], name: str
) -> None:
    token = STRICTER[name]()
    assert log_in_by_token(kafka[BOUND], token)[1][3] == ""
    assert log_in_by_token(shoal[BOUND], token)[1][3] == '{"status":"invalid_token"}'


def plain(header: Any = None, signature: str = "", **claims: Any) -> str:
    whole = {"sub": "alice", "iat": in_s(-5), "exp": in_s(3600)} | claims
    given = {name: value for name, value in whole.items() if value is not None}
    parts = [
        base64.b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in (header or {"alg": "none"}, given)
    ]
    return f"{'.'.join(parts)}.{signature}"


UNSIGNED_TOKENS: dict[str, Callable[[], str]] = {
    "good": plain,
    "a scope": lambda: plain(scope=["a"]),
    "no subject": lambda: plain(sub=None),
    "an empty subject": lambda: plain(sub=""),
    "a subject that is a number": lambda: plain(sub=7),
    "no expiry": lambda: plain(exp=None),
    "an expiry that is a text": lambda: plain(exp="x"),
    "a fraction of a second": lambda: plain(exp=in_s(100.5)),
    "expired": lambda: plain(exp=in_s(-3600), iat=in_s(-7200)),
    "expired within the skew": lambda: plain(exp=in_s(0), iat=in_s(-7200)),
    "issued in the future": lambda: plain(iat=in_s(3600), exp=in_s(7200)),
    "issued after its expiry": lambda: plain(iat=in_s(-1), exp=in_s(-1)),
    "no date of issue": lambda: plain(iat=None),
    "signed": lambda: plain(signature="AAAA"),
    "another algorithm": lambda: plain({"alg": "HS256"}),
    "really signed": made,
    "two parts": lambda: "a.b",
    "empty parts": lambda: "..",
    "not JSON": lambda: "YQ==.YQ==.",
}


@pytest.mark.parametrize("name", UNSIGNED_TOKENS)
def test_tokens_without_a_signature(
    kafka: dict[str, str], shoal: dict[str, str], name: str
) -> None:
    token = UNSIGNED_TOKENS[name]()
    assert log_in_by_token(shoal[UNSIGNED], token) == log_in_by_token(kafka[UNSIGNED], token)


@pytest.mark.parametrize(
    ("authzid", "extensions"),
    [
        ("a=alice", ""),
        ("a=bob", ""),
        ("a=", ""),
        ("", "traceId=1\x01logicalCluster=lkc 1\x01"),
        ("", "auth=twice\x01"),
        ("", "k1=v\x01"),
        ("", "k=\x01"),
        ("", "k=v=w\x01"),
        ("", "k=\x02\x01"),
    ],
)
def test_messages(
    kafka: dict[str, str], shoal: dict[str, str], authzid: str, extensions: str
) -> None:
    """KIP-342, and the authorization id of RFC 7628."""
    got, expected = (
        log_in_by_token(brokers[UNSIGNED], plain(), authzid=authzid, extensions=extensions)
        for brokers in (shoal, kafka)
    )
    assert got == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"n,,\x01auth=Bearer x\x01", b"y,,\x01auth=Bearer x\x01\x01", b"\0a\0b"],
)
def test_malformed_messages(kafka: dict[str, str], shoal: dict[str, str], data: bytes) -> None:
    notes = []
    for brokers in (kafka, shoal):
        with Dialogue(brokers[UNSIGNED]) as dialogue:
            dialogue.handshake("OAUTHBEARER")
            dialogue.token(data)
            notes.append(dialogue.notes)
    assert notes[0] == notes[1]


def test_another_token_after_an_error(kafka: dict[str, str], shoal: dict[str, str]) -> None:
    notes = []
    for brokers in (kafka, shoal):
        with Dialogue(brokers[UNSIGNED]) as dialogue:
            dialogue.handshake("OAUTHBEARER")
            for token in (plain(exp=1), plain(iat=None)):
                dialogue.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            dialogue.request()
            notes.append([note[:2] if len(note) == 4 else note for note in dialogue.notes])
    assert notes[0] == notes[1]
    assert CLOSED not in notes[0]
