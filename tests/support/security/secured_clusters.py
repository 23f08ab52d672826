"""Clusters with TLS, SASL, access control and delegation tokens, for tests of our client: Apache
Kafka, and Shoal with the same configs.

Users are `admin`, a super user, and `ann`, who may do nothing. They have the same password for each
mechanism. Listener `PLAINTEXT` serves anonymous clients as super users.

`SharedClusters` has those that all files of a run use. Their tests give names of their own to
topics, groups and users, and leave `ann` without permissions that another test would notice.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, NamedTuple

import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.shared_servers import lock, start_once
from support.kafka.kafkas import KafkaProcess
from support.runs import leaks
from support.security.identity_providers import AUDIENCE, ISSUER, IdentityProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PASSWORDS = {"admin": "adm1n-s3cret", "ann": "ann-s3cret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
#: Sessions have no end, but on listeners BRIEF and LOADED. On LOADED, a busy machine leaves clients
#: time to renew them.
LISTENERS = {
    "SASL": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "MUTUAL": "SSL",
    "BRIEF": "SASL_SSL",
    "LOADED": "SASL_SSL",
}
SESSION_MS = 2_000
LOADED_SESSION_MS = 6_000
#: The address of the keys that sign tokens.
JWKS = "sasl.oauthbearer.jwks.endpoint.url"
_users_so_far = itertools.count()


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
                "sasl.oauthbearer.client.credentials.client.secret": self.provider.clients[user],
            }
        return found | {"sasl.username": user, "sasl.password": PASSWORDS[user]}

    def new_user(self) -> str:
        """Return a user of OAUTHBEARER without permissions, whom no other test knows."""
        name = f"user-{os.getpid()}-{next(_users_so_far)}"
        self.provider.clients[name] = f"{name}-s3cret"
        return name


class SharedClusters:
    """The secured Kafka of the run and the secured Shoal of this test process, each started when
    first asked for. `stop` ends Shoal and the identity provider."""

    def __init__(self, run_directory: Path, controller_pid: int, own_directory: Path) -> None:
        """`own_directory` is the test process's, the others are as for `shared_kafka`."""
        self._folder, self._own_folder = run_directory / "secured", own_directory
        self._controller_pid = controller_pid
        self._folder.mkdir(exist_ok=True)
        with lock(self._folder / "key.lock"):
            self._key = _provider_key(self._folder / "provider.pem")
            _authority(self._folder)
        self._provider = IdentityProvider(dict(PASSWORDS), key=self._key).__enter__()
        self._shoal: Secured | None = None

    def kafka(self) -> Secured:
        """Return the run's Kafka. It reads the keys of all processes' providers from a file."""
        keys = self._folder / "keys.json"
        more = {JWKS: keys.as_uri()}

        def make() -> KafkaProcess:
            keys.write_text(json.dumps(self._provider.keys()))
            return _kafka(self._folder, self._provider, more)

        started = start_once(self._folder, self._controller_pid, make)
        authority = _authority(self._folder)
        ca = self._folder / "ca.pem"
        return Secured(started.addresses, lambda: None, ca, self._provider, authority, True)

    def shoal(self) -> Secured:
        """Return this test process's Shoal."""
        if self._shoal is None:
            with leaks.unmarked():
                self._shoal = start_shoal(self._own_folder, self._provider)
        return self._shoal

    def stop(self) -> None:
        if self._shoal is not None:
            self._shoal.kill()
        self._provider.__exit__(None, None, None)


def _provider_key(file: Path) -> rsa.RSAPrivateKey:
    """Return the key in a file, which is created if it does not exist."""
    if not file.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    found = load_pem_private_key(file.read_bytes(), None)
    assert isinstance(found, rsa.RSAPrivateKey)
    return found


def start_kafka(
    folder: Path, provider: IdentityProvider, more: Mapping[str, str] | None = None
) -> Secured:
    """Start a Kafka whose tokens come from `provider`. The caller kills it.

    `more` are other configs, which may name another provider.
    """
    process = _kafka(folder, provider, more or {}).start()
    ca = _authority(folder)
    return Secured(process.addresses, process.kill9, folder / "ca.pem", provider, ca, True)


def _kafka(folder: Path, provider: IdentityProvider, more: Mapping[str, str]) -> KafkaProcess:
    configs = {**_configs(folder, provider), **more}
    return KafkaProcess(
        folder / "node",
        listeners=LISTENERS,
        configs=configs,
        format_flags=_users(),
        jvm_flags=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={configs[JWKS]}",),
    )


def start_shoal(
    folder: Path, provider: IdentityProvider, more: Mapping[str, str] | None = None
) -> Secured:
    """Start a broker of ours with the same listeners, users and configs. The caller kills it."""
    configs = {**_configs(folder, provider), **(more or {})}
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
    ca = _authority(folder)
    return Secured(addresses, process.kill9, folder / "ca.pem", provider, ca, False)


def _users() -> tuple[str, ...]:
    """Return the flags that create the users of SCRAM in an empty cluster."""
    return tuple(
        word
        for user, password in PASSWORDS.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for word in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
    )


def _authority(folder: Path) -> trustme.CA:
    """Return the CA in a folder, which is created if it does not exist: the brokers' and their
    clients'."""
    certificate, key = folder / "ca.pem", folder / "ca.key"
    if not key.exists():
        created = trustme.CA()
        created.cert_pem.write_to_path(str(certificate))
        created.private_key_pem.write_to_path(str(key))
    return trustme.CA.from_pem(certificate.read_bytes(), key.read_bytes())


def pem_pair(issued: trustme.LeafCert) -> str:
    """Return key and certificate for Java, which reads keys in PKCS #8 only."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode() + "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)


def _configs(folder: Path, provider: IdentityProvider) -> dict[str, str]:
    """Write the broker's certificate into the folder, and return the configs of brokers."""
    store, ca = folder / "broker.pem", folder / "ca.pem"
    store.write_text(pem_pair(_authority(folder).issue_cert("127.0.0.1", "localhost")))
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
            if listener in ("BRIEF", "LOADED"):
                session_ms = SESSION_MS if listener == "BRIEF" else LOADED_SESSION_MS
                found[f"{prefix}.{mechanism}.connections.max.reauth.ms"] = str(session_ms)
        if protocol.startswith("SASL"):
            found[f"{prefix}.oauthbearer.sasl.server.callback.handler.class"] = (
                f"{security}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            )
    found["listener.name.mutual.ssl.client.auth"] = "required"
    return found
