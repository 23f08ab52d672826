"""Security properties of the client: their dialects, values in files, and what `repr` shows."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from shoal.client.errors import SecurityError
from shoal.client.security import security
from shoal.client.security.scram import ScramClient
from shoal.client.security.secret import Secret, SecretBytes
from shoal.client.settings import Settings
from support.attacks.tracebacks import shown

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.client.security.security import Security

PLANTED = "pl4nted-s3cret"
SASL = {"security.protocol": "SASL_SSL"}
OAUTH = {**SASL, "sasl.mechanism": "OAUTHBEARER"}
URL = "https://issuer.example/token"


def parsed(properties: dict[str, str]) -> Security:
    return Settings.from_bootstrap("a", properties).security


def test_a_delegation_token_of_jaas() -> None:
    """The spelling of Kafka's documentation."""
    found = parsed(
        {
            **SASL,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="tokenID123" password="lAYYSFmLs4bTjf+lTZ1LCHR/ZZFNA=="'
            ' tokenauth="true";',
        }
    )
    assert (found.username, found.is_token) == ("tokenID123", True)
    scram = ScramClient("SCRAM-SHA-256", "tokenID123", found.password, "nonce", found.is_token)
    assert scram.make_first_message() == b"n,,n=tokenID123,r=nonce,tokenauth=true"


def test_a_delegation_token_of_our_own_properties() -> None:
    token = {"shoal.delegation.token.id": "abc", "shoal.delegation.token.hmac": "aG1hYw=="}
    found = parsed(SASL | token)
    assert (found.mechanism, found.username, found.is_token) == ("SCRAM-SHA-512", "abc", True)
    assert found.password == "aG1hYw=="
    assert parsed(SASL | token | {"sasl.mechanism": "SCRAM-SHA-256"}).mechanism == "SCRAM-SHA-256"
    with pytest.raises(
        SecurityError, match=r"needs sasl\.mechanism SCRAM-SHA-256 or SCRAM-SHA-512"
    ):
        parsed(SASL | token | {"sasl.mechanism": "PLAIN"})


def test_oauth_of_java() -> None:
    found = parsed(
        {
            **OAUTH,
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.scope": "a b",
            "sasl.jaas.config": "x.OAuthBearerLoginModule required"
            ' clientId="other" clientSecret="pw\\"q" scope="c"'
            " extension_traceId='1 2';",
            "https.ca.location": "/ca.pem",
        }
    ).oauth
    assert found is not None
    assert (found.token_url, found.client_id, found.scope) == (URL, "me", "a b"), "KIP-1139"
    assert found.client_secret == 'pw"q'
    assert found.extensions == (("traceId", "1 2"),)
    assert found.truststore is not None


def test_oauth_of_librdkafka() -> None:
    found = parsed(
        {
            **OAUTH,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": URL,
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "pw",
            "sasl.oauthbearer.extensions": "traceId=1,b=2",
        }
    ).oauth
    assert found is not None
    assert (found.client_id, found.client_secret) == ("me", "pw")
    assert found.extensions == (("b", "2"), ("traceId", "1"))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({}, "OAUTHBEARER needs a token: set sasl.oauthbearer.token.endpoint.url"),
        ({"url": "ftp://x/y"}, "is not a URL of http, https or file"),
        ({"url": "https:///token"}, "is not a URL of http, https or file"),
        ({"url": "https://me:pl4nted-s3cret@x/token"}, "contains a user. Set"),
        ({"url": URL}, "needs sasl.oauthbearer.client.credentials.client.id"),
        ({"sasl.oauthbearer.method": "default"}, "'default' is not one of oidc"),
        (
            {
                "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security"
                ".oauthbearer.JwtBearerJwtRetriever"
            },
            "JwtBearerJwtRetriever' is not one of",
        ),
        ({"sasl.oauthbearer.extensions": "auth=x", "url": "file:///t"}, "'auth' is not a name"),
        ({"sasl.oauthbearer.extensions": "a=\x01", "url": "file:///t"}, "not printable ASCII"),
        ({"sasl.login.read.timeout.ms": "soon", "url": "file:///t"}, "must be a positive number"),
    ],
)
def test_oauth_that_cannot_be(properties: dict[str, str], said: str) -> None:
    names = {"url": "sasl.oauthbearer.token.endpoint.url"}
    given = {names.get(name, name): value for name, value in properties.items()}
    with pytest.raises(SecurityError, match=said) as caught:
        parsed(OAUTH | given)
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize("text", ['x required password="{}"', "x {}", "x required a={}b=c;"])
def test_jaas_that_cannot_be(text: str) -> None:
    with pytest.raises(SecurityError, match=r"sasl\.jaas\.config: ") as caught:
        parsed(SASL | {"sasl.jaas.config": text.replace("{}", PLANTED)})
    if "password" in text:
        assert PLANTED not in shown(caught.value)


SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('com.sun.security.auth.module.Krb5LoginModule required x="y";', "Krb5LoginModule is none"),
        (f'{SCRAM} required username="ann";', "has the option username and no option password"),
        (f'{SCRAM} maybe username="ann";', "Invalid login module control flag 'maybe'"),
        (f'{SCRAM} required username="ann"', "not terminated by semi-colon"),
        (f"{SCRAM} required username=ann password;", "Value not specified for key 'password'"),
        (f"{SCRAM} required;{SCRAM} required;", "2 login modules, should be 1"),
        ("", "needs a user: set sasl.username and sasl.password, or sasl.jaas.config"),
    ],
)
def test_malformed_jaas_is_named(text: str, said: str) -> None:
    with pytest.raises(SecurityError, match=said) as caught:
        parsed(SASL | {"sasl.jaas.config": text})
    assert "sasl.jaas.config" in str(caught.value)


def test_gssapi_names_its_alternatives() -> None:
    with pytest.raises(
        SecurityError, match="'GSSAPI' is not one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHB"
    ):
        parsed(SASL | {"sasl.mechanism": "GSSAPI"})


def test_values_in_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("pw \n")
    (tmp_path / "client.properties").write_text("user=ann\nsasl.x=y\n")
    monkeypatch.setenv("MECHANISM", "PLAIN")
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "${env:MECHANISM}",
        "sasl.jaas.config": "x.PlainLoginModule required"
        f' username="${{file:{tmp_path}/client.properties:user}}"'
        f' password="${{directory:{tmp_path}:password}}";',
        "client.id": "${unknown:x}${",
    }
    settings = Settings.from_bootstrap("a", properties)
    assert (settings.security.username, settings.security.password) == ("ann", "pw ")
    assert settings.client_id == "${unknown:x}${", "as in Java's clients"
    (tmp_path / "password").write_text("new")
    assert settings.security.reload().password == "new"
    (tmp_path / "password").unlink()
    assert settings.security.reload().password == "new", "the previous one stays in use"


def test_providers_of_java(tmp_path: Path) -> None:
    """The same properties file serves Java's clients."""
    (tmp_path / "password").write_text("pw")
    provider = "org.apache.kafka.common.config.provider."
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "config.providers": "mounted",
        "config.providers.mounted.class": provider + "DirectoryConfigProvider",
        "sasl.username": "${env:HOME}",
        "sasl.password": f"${{mounted:{tmp_path}:password}}",
    }
    found = parsed(properties)
    assert found.password == "pw"
    assert found.username == "${env:HOME}", "only the named providers apply"
    with pytest.raises(SecurityError, match=r"is not one of .*FileConfigProvider"):
        parsed(properties | {"config.providers.mounted.class": "x.Y"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${directory:/mnt/none:x}", "needs /mnt/none/x, which cannot be read: No such file"),
        ("${file:/none:x}", "sasl.password needs /none, which cannot be read: No such file"),
        ("${env:NOT_SET}", "needs the environment variable NOT_SET, which is not set"),
        ("${file:%s:b}", "sasl.password needs b of .*, which does not have it"),
    ],
)
def test_references_to_nothing(tmp_path: Path, value: str, said: str) -> None:
    (tmp_path / "x").write_text(f"a={PLANTED}")
    value = value.replace("%s", str(tmp_path / "x"))
    with pytest.raises(SecurityError, match=said) as caught:
        parsed(SASL | {"sasl.username": "ann", "sasl.password": value})
    assert PLANTED not in shown(caught.value)


def test_properties_that_a_call_reads_again() -> None:
    given = SASL | {"sasl.username": "ann", "sasl.password": "old"}
    found = Settings.from_bootstrap("a", lambda: given).security
    given["sasl.password"] = "new"
    assert found.reload().password == "new"
    given["sasl.mechanism"] = "NONE"
    assert found.reload().password == "new"


KEY = f"-----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----"
CLIENT = {
    **OAUTH,
    "sasl.oauthbearer.token.endpoint.url": URL,
    "sasl.oauthbearer.client.id": "me",
}
#: Properties with each of the secrets.
PLANTS = {
    "sasl.password": {**SASL, "sasl.username": "ann"},
    "shoal.delegation.token.hmac": {**SASL, "shoal.delegation.token.id": "id"},
    "sasl.jaas.config": SASL,
    "sasl.oauthbearer.client.secret": CLIENT,
    "sasl.oauthbearer.client.credentials.client.secret": CLIENT,
    "ssl.key.password": {"security.protocol": "SSL"},
    "ssl.keystore.password": {"security.protocol": "SSL", "ssl.keystore.location": "/none"},
    "ssl.truststore.password": {"security.protocol": "SSL", "ssl.truststore.location": "/none"},
    "ssl.key.pem": {"security.protocol": "SSL", "ssl.certificate.location": "/none"},
    "ssl.keystore.key": {"security.protocol": "SSL", "ssl.certificate.location": "/none"},
}
VALUES = {
    "sasl.jaas.config": f'x.ScramLoginModule required username="ann" password="{PLANTED}";',
    "ssl.key.pem": KEY,
    "ssl.keystore.key": KEY,
}


def test_each_secret_is_planted() -> None:
    assert PLANTS.keys() == security.SECRETS


@pytest.mark.parametrize("name", PLANTS)
def test_secrets_are_hidden(name: str) -> None:
    """In objects, and in tracebacks that show all local variables of our code."""
    given = PLANTS[name] | {name: VALUES.get(name, PLANTED)}
    settings = Settings.from_bootstrap("a", given)
    found = settings.security
    assert PLANTED not in f"{settings!r} {settings} {vars(settings)} {vars(found)}"
    assert PLANTED not in f"{found.tls} {found.oauth}"
    used = [found.password, found.tls.key_password]
    used += [secret for s in found.tls[:3] if s for secret in (s.value, s.password)]
    used += [found.oauth.client_secret] if found.oauth else []
    assert any(PLANTED in secret.reveal() for secret in used)
    assert security.has_secret(name, given[name])
    for wrong in ({"no.such": PLANTED}, {"security.protocol": "x"}, {"ssl.keystore.type": "x"}):
        with pytest.raises((ValueError, SecurityError)) as caught:
            Settings.from_bootstrap("a", given | wrong)
        text = shown(caught.value)
        assert "'source':" in text, "local variables are shown"
        assert PLANTED not in text


def test_what_is_no_secret() -> None:
    assert not security.has_secret("sasl.username", "ann")
    assert not security.has_secret("sasl.jaas.config", 'x required username="ann";')
    assert not security.has_secret("sasl.password", "")


def test_secret() -> None:
    found = Secret("s3cret")
    assert f"{found} {found!s} {found!r} {found:>9} %s {[found]}" % found == (
        "(hidden) (hidden) (hidden) (hidden) (hidden) [(hidden)]"
    )
    assert found == "s3cret"
    assert found.reveal() == "s3cret"
    assert type(found.reveal()) is str
    assert pickle.loads(pickle.dumps(found)).reveal() == "s3cret"
    assert f"{SecretBytes(b'x')!r} {SecretBytes(b'x')!s}" == "(hidden) (hidden)"
