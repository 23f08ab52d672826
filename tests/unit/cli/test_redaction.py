"""Secrets that must not leave the machine in a support bundle."""

from __future__ import annotations

import json

import pytest
from shoal.cli.redaction import HIDDEN, Redaction, is_secret

SECRET = "pl4nted,s3cret; x"


@pytest.mark.parametrize(
    "text",
    [
        f"sasl.password={SECRET}",
        f"  ssl.keystore.password : {SECRET}",
        f'{{"client_secret": "{SECRET}", "id": 1}}',
        f'login failed: PlainLoginModule required username="ann" password="{SECRET}";',
        f"config {{'ssl.key.password': '{SECRET}'}} is bad",
        f"SHOAL_CLIENT_SASL_PASSWORD={SECRET}",
        "Authorization: Bearer pl4nted.s3cret",
        "got token eyJhbGciOiJIUzI1NiJ9.pl4ntedeyJzdWI.s3cret",
        "connecting to https://ann:pl4nted-s3cret@registry.example/x",
        "SCRAM-SHA-256=[salt=pl4nted,stored_key=s3cret]",
        "-----BEGIN PRIVATE KEY-----\npl4nted\ns3cret\n-----END PRIVATE KEY-----",
        "pl4nted\ns3cret\n-----END RSA PRIVATE KEY-----\nrest",
        "-----BEGIN EC PRIVATE KEY-----\npl4nted\ns3cret",
        "the broker received known-pl4nted-s3cret from a client",
    ],
)
def test_a_secret_is_removed(text: str) -> None:
    found = Redaction(["known-pl4nted-s3cret"]).redact_text(text)
    assert "pl4nted" not in found
    assert "s3cret" not in found
    assert HIDDEN in found


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("secret", ["s3cret", 's3"cret, s3cret', "s3\\cret} s3cret"])
def test_a_secret_in_json_in_json_is_removed(levels: int, secret: str) -> None:
    text = json.dumps({"password": secret, "n": 7})
    for _ in range(levels):
        text = json.dumps({"body": text, "m": 8})
    found = Redaction().redact_text(f"sent {text}")
    assert "cret" not in found
    assert found.startswith('sent {"body": "{\\"')


def test_a_byte_order_mark_hides_no_line() -> None:
    assert Redaction().redact_text("\ufeffpassword=one,s3cret") == f"\ufeffpassword={HIDDEN}"


def test_what_is_no_secret_stays() -> None:
    text = (
        "2026-11-25 12:00:00 INFO partition jobs-0 leads at epoch 3\n"
        "https://host:9093/metrics replied 200\n"
        "connections.max.reauth.ms=3600000, log.dirs=/var/lib/shoal\n"
    )
    assert Redaction().redact_text(text) == text


def test_a_text_after_a_secret_stays() -> None:
    found = Redaction().redact_text("config: password='x y', partition=7")
    assert found == f"config: password={HIDDEN}, partition=7"


def test_objects() -> None:
    given = {
        "configs": {"ssl.key.password": "x", "log.dirs": "/data", "n": 1},
        "errors": ["Bearer abcdef failed"],
        "sasl.jaas.config": None,
        "password": {"value": "x"},
        "secrets": ["x"],
        "api_key": 12,
        "has_password": True,
    }
    assert Redaction().redact_value(given) == {
        "configs": {"ssl.key.password": HIDDEN, "log.dirs": "/data", "n": 1},
        "errors": [f"{HIDDEN} failed"],
        "sasl.jaas.config": None,
        "password": HIDDEN,
        "secrets": HIDDEN,
        "api_key": HIDDEN,
        "has_password": True,
    }


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl.keystore.key", True),
        ("delegation.token.secret.key", True),
        ("sasl.jaas.config", True),
        ("listener.name.sasl.plain.sasl.jaas.config", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("ssl.keystore.location", False),
        ("delegation.token.max.lifetime.ms", False),
        ("password.encoder.iterations", False),
        ("share.ordering", False),
    ],
)
def test_names(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
