"""Client settings: addresses, Kafka's properties in both dialects, SCRAM, and the partitioner."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from shoal.client.errors import KafkaError, SecurityError, expect
from shoal.client.produce.partitioner import choose_partition, murmur2
from shoal.client.security.scram import ScramClient
from shoal.client.security.secret import Secret
from shoal.client.security.tls import TlsStore
from shoal.client.settings import Settings, parse_addresses
from shoal.protocol.errors import ErrorCode


def test_addresses() -> None:
    assert parse_addresses("a:1, b,[::1]:3,") == (("a", 1), ("b", 9092), ("::1", 3))


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:70000", "a:1:2", "http://a:1"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers"):
        parse_addresses(text)


def test_java_properties() -> None:
    security = Settings.from_bootstrap(
        "a",
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": 'x.ScramLoginModule required username="ann" password="a\\"b;c=d";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        },
    ).security
    assert (security.protocol, security.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (security.username, security.password) == ("ann", 'a"b;c=d')
    assert security.tls.truststore == TlsStore("ssl.truststore.location", Secret("/ca.pem"), "PEM")
    assert not security.tls.check_hostname


def test_librdkafka_properties() -> None:
    settings = Settings.from_bootstrap(
        "a",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": "pw",
            "client.id": "me",
            "request.timeout.ms": "500",
        },
    )
    assert settings.client_id == "me"
    assert settings.request_timeout_ms == 500
    assert (settings.security.username, settings.security.password) == ("ann", "pw")
    assert settings.security.make_tls_context() is None


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"acks": "1"}, "not support property 'acks'"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms must be a positive number"),
        ({"security.protocol": "TLS"}, "'TLS' is not one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "needs a user"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not one of"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "x.jks"},
            "keytool -importkeystore -srckeystore x.jks -destkeystore x.p12 -deststoretype PKCS12",
        ),
        (
            {
                "sasl.username": "ann",
                "sasl.jaas.config": 'x.PlainLoginModule required username="bob" password="p";',
            },
            "sasl.jaas.config and sasl.username differ. Set one",
        ),
        ({"ssl.ca.pem": "x", "ssl.ca.location": "/y"}, "ssl.ca.location and ssl.ca.pem differ"),
        ({"ssl.truststore.type": "BKS"}, "'BKS' is not one of PEM, PKCS12, JKS"),
        ({"ssl.key.location": "/x"}, "ssl.key.location needs the certificate too"),
    ],
)
def test_properties_that_cannot_be(properties: dict[str, str], said: str) -> None:
    with pytest.raises((ValueError, SecurityError), match=said):
        Settings.from_bootstrap("a", properties)


def test_scram_of_rfc_7677() -> None:
    """The exchange of RFC 7677, section 3."""
    client = ScramClient("SCRAM-SHA-256", "user", Secret("pencil"), "rOprNGfwEbeRWgbNEkqO")
    assert client.make_first_message() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert client.make_final_message(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(SecurityError, match="does not know the password"):
        client.verify(b"v=" + base64.b64encode(b"x" * 32))
    with pytest.raises(SecurityError, match="failed: other-error"):
        client.verify(b"e=other-error")


def test_scram_escapes_names_and_checks_the_challenge() -> None:
    client = ScramClient("SCRAM-SHA-512", "a=b,c", Secret("pw"), "nonce")
    assert client.make_first_message() == b"n,,n=a=3Db=2Cc,r=nonce"
    for challenge, said in (
        (b"r=other,s=AA==,i=4096", "does not continue ours"),
        (b"r=nonce,s=AA==,i=4096", "does not continue ours"),
        (b"r=nonceX,s=AA==,i=16385", "16385 SCRAM iterations; 4096 to 16384 are allowed"),
        (b"r=nonceX,s=AA==,i=99999999", "99999999 SCRAM iterations"),
        (b"r=nonceX,s=AA==,i=4095", "4095 SCRAM iterations"),
        (b"r=nonceX,s=AA==,i=1", "1 SCRAM iterations"),
        (b"r=nonceX,i=4096", "cannot be read"),
    ):
        with pytest.raises(SecurityError, match=said):
            client.make_final_message(challenge)
    proof = client.make_final_message(b"r=nonceX,s=AA==,i=4096").decode().rpartition("p=")[2]
    salted = hashlib.pbkdf2_hmac("sha512", b"pw", b"\0", 4096)
    assert len(base64.b64decode(proof)) == len(hmac.digest(salted, b"", "sha512"))


def test_the_partitioner_agrees_with_java() -> None:
    """The hashes that Kafka's own `UtilsTest.testMurmur2` expects, as signed numbers."""
    for data, signed in (
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ):
        assert murmur2(data) == signed & 0xFFFFFFFF
    assert choose_partition(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_expect_raises_the_first_error() -> None:
    error = KafkaError(ErrorCode.unknown_topic_or_partition, "there is no topic 'a'.")
    assert str(error) == "there is no topic 'a' (UNKNOWN_TOPIC_OR_PARTITION)"
    assert expect({"b": 1}) == {"b": 1}
    with pytest.raises(KafkaError) as caught:
        expect({"b": 1, "a": error})
    assert caught.value is error
    assert str(KafkaError(4711)) == "error 4711"
