"""Clusters with TLS, SASL, access control and delegation tokens, for tests of our client: Apache
Kafka, and Shoal with the same configs.

Users are `admin`, a super user, and `ann`, who may do nothing. They have the same password for each
mechanism. Listener `PLAINTEXT` serves anonymous clients as super users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from identity_providers import AUDIENCE, ISSUER, IdentityProvider
from kafkas import KafkaProcess
from ports import free_ports
from servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PASSWORDS = {"admin": "adm1n-s3cret", "ann": "ann-s3cret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {"SASL": "SASL_PLAINTEXT", "BOTH": "SASL_SSL", "MUTUAL": "SSL", "BRIEF": "SASL_SSL"}
#: The length of sessions on listener BRIEF.
SESSION_MS = 2_000
#: The address of the keys that sign tokens.
JWKS = "sasl.oauthbearer.jwks.endpoint.url"


class Secured(NamedTuple):
    """A broker, its CA's certificate, and its identity provider. `addresses` are by listener."""

    addresses: Mapping[str, str]
    kill: Callable[[], None]
    ca: Path
    provider: IdentityProvider
    client_ca: trustme.CA
    is_kafka: bool

    def properties(self, listener: str, mechanism: str = "", user: str = "admin") -> dict[str, str]:
        """Return the client properties for a listener."""
        protocol = LISTENERS[listener]
        found = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(self.ca)
        if not protocol.startswith("SASL"):
            return found
        found["sasl.mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            return found | {
                "sasl.oauthbearer.token.endpoint.url": f"{self.provider.url}/token",
                "sasl.oauthbearer.client.credentials.client.id": user,
                "sasl.oauthbearer.client.credentials.client.secret": PASSWORDS[user],
            }
        return found | {"sasl.username": user, "sasl.password": PASSWORDS[user]}


def start_kafka(
    folder: Path, provider: IdentityProvider, more: Mapping[str, str] | None = None
) -> Secured:
    """Start a Kafka whose tokens come from `provider`. The caller kills it.

    `more` are other configs, which may name another provider.
    """
    ca, configs = _prepare(folder, provider)
    configs |= more or {}
    process = KafkaProcess(
        folder / "node",
        listeners=LISTENERS,
        configs=configs,
        format_flags=_users(),
        jvm_flags=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={configs[JWKS]}",),
    ).start()
    return Secured(process.addresses, process.kill9, folder / "ca.pem", provider, ca, True)


def start_shoal(
    folder: Path, provider: IdentityProvider, more: Mapping[str, str] | None = None
) -> Secured:
    """Start a broker of ours with the same listeners, users and configs. The caller kills it."""
    ca, configs = _prepare(folder, provider)
    configs |= more or {}
    protocols = {"PLAINTEXT": "PLAINTEXT", **LISTENERS}
    ports = free_ports(len(protocols))
    addresses = {n: f"127.0.0.1:{port}" for n, port in zip(protocols, ports, strict=True)}
    configs["listener.security.protocol.map"] = ",".join(f"{n}:{p}" for n, p in protocols.items())
    configs["shoal.oauthbearer.allowed.urls"] = configs[JWKS]
    process = ShoalProcess(
        folder / "data",
        configs=configs,
        flags=(*_users(), *(f"--listener={name}://{addresses[name]}" for name in LISTENERS)),
    )
    process.bootstrap = addresses["PLAINTEXT"]
    process.start()
    return Secured(addresses, process.kill9, folder / "ca.pem", provider, ca, False)


def _users() -> tuple[str, ...]:
    """Return the flags that create the users of SCRAM in an empty cluster."""
    return tuple(
        word
        for user, password in PASSWORDS.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for word in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
    )


def _prepare(folder: Path, provider: IdentityProvider) -> tuple[trustme.CA, dict[str, str]]:
    """Create a CA and the broker's certificate. Return the CA and the configs of brokers."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    store = folder / "broker.pem"
    store.write_text(pem_pair(ca.issue_cert("127.0.0.1", "localhost")))
    return ca, _configs(store, folder / "ca.pem", provider)


def pem_pair(issued: trustme.LeafCert) -> str:
    """Return key and certificate for Java, which reads keys in PKCS #8 only."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode() + "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)


def _configs(store: Path, ca: Path, provider: IdentityProvider) -> dict[str, str]:
    found = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "delegation.token.secret.key": "key of the tokens",
        JWKS: f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    security = "org.apache.kafka.common.security"
    modules = {
        "plain": f"{security}.plain.PlainLoginModule required "
        + " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items()),
        "scram-sha-256": f"{security}.scram.ScramLoginModule required",
        "scram-sha-512": f"{security}.scram.ScramLoginModule required",
        "oauthbearer": f"{security}.oauthbearer.OAuthBearerLoginModule required",
    }
    for listener, protocol in LISTENERS.items():
        prefix = f"listener.name.{listener.lower()}"
        if protocol.endswith("SSL"):
            found[f"{prefix}.ssl.keystore.type"] = "PEM"
            found[f"{prefix}.ssl.keystore.location"] = str(store)
            found[f"{prefix}.ssl.truststore.type"] = "PEM"
            found[f"{prefix}.ssl.truststore.location"] = str(ca)
        for mechanism, module in modules.items() if protocol.startswith("SASL") else ():
            found[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{module};"
            if listener == "BRIEF":
                found[f"{prefix}.{mechanism}.connections.max.reauth.ms"] = str(SESSION_MS)
        if protocol.startswith("SASL"):
            found[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = (
                f"{security}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            )
    found["listener.name.mutual.ssl.client.auth"] = "required"
    return found
