"""The secured listener of both compared brokers, and what clients need for it.

Both have the same protocol, TLS versions, certificates (ECDSA P-256) and configs, whose names are
the same in Shoal and in Kafka. OpenSSL's clients choose the cipher TLS_AES_256_GCM_SHA384 with
both. The brokers keep a listener without TLS, for themselves and for the check that they answer.

`DEPLOYED` is for clusters: clients log in with SCRAM over TLS and may do what access control
entries say, brokers and controllers have listeners that need certificates.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

if TYPE_CHECKING:
    from pathlib import Path

SSL, MUTUAL, SASL_SSL = "SSL", "SSL with client certificates", "SASL_SSL"
DEPLOYED = "TLS, SCRAM and ACLs"
LISTENER, CONTROLLER, BROKERS = "SECURED", "CONTROLLER", "BROKERS"
USER, PASSWORD = "bench", "bench-password"
#: The principals of the brokers' and the clients' certificates.
PRINCIPALS = ("User:broker", "User:bench")
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Security:
    """Certificates of a run in a folder, and the configs of one kind of listener."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, self.server, self.client = (
            folder / name for name in ("ca.pem", "server.pem", "client.pem")
        )
        if not self.ca.exists():
            authority = trustme.CA()
            authority.cert_pem.write_to_path(str(self.ca))
            server = authority.issue_cert("127.0.0.1", "localhost", common_name="broker")
            self.server.write_text(_pem(server))
            self.client.write_text(_pem(authority.issue_cert("bench", common_name="bench")))

    @property
    def protocol(self) -> str:
        """The protocol by Kafka's name."""
        return SASL_SSL if self.has_logins else SSL

    @property
    def has_logins(self) -> bool:
        """Whether clients log in."""
        return self.kind in (SASL_SSL, DEPLOYED)

    @property
    def scram(self) -> tuple[str, ...]:
        """The flags of Kafka's StorageTool and of `shoal server` that create the user."""
        if not self.has_logins:
            return ()
        return ("--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]")

    def configs(self) -> dict[str, str]:
        """Return the brokers' configs for the listener, besides its address."""
        found = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/",
        }
        mutual = found | {"ssl.client.auth": "required"}
        if self.kind == MUTUAL:
            found = mutual
        if self.has_logins:
            module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            found["sasl.enabled.mechanisms"] = "SCRAM-SHA-512"
            found["scram-sha-512.sasl.jaas.config"] = module
        by_name = {LISTENER: found}
        if self.kind in (MUTUAL, DEPLOYED):
            # With an authorizer, Kafka's broker has to log in to its own controller.
            by_name[CONTROLLER] = mutual
        more = {}
        if self.kind == DEPLOYED:
            by_name[BROKERS] = mutual
            more = {"authorizer.class.name": AUTHORIZER, "super.users": PRINCIPALS[0]}
        return more | {
            f"listener.name.{name.lower()}.{config}": value
            for name, configs in by_name.items()
            for config, value in configs.items()
        }

    def client_properties(self) -> dict[str, str]:
        """Return librdkafka's properties."""
        found = {"security.protocol": self.protocol, "ssl.ca.location": str(self.ca)}
        if self.kind == MUTUAL:
            found |= {
                "ssl.certificate.location": str(self.client),
                "ssl.key.location": str(self.client),
            }
        if self.has_logins:
            found |= {
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        return found

    def broker_properties(self) -> dict[str, str]:
        """Return librdkafka's properties for a client with the brokers' certificate."""
        return {
            "security.protocol": SSL,
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.server),
            "ssl.key.location": str(self.server),
        }

    def context(self) -> ssl.SSLContext:
        """Return what a client without librdkafka connects with."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(str(self.client))
        return context


def _pem(issued: trustme.LeafCert) -> str:
    """Return key and certificate. Java reads keys in PKCS #8 only."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode() + "".join(pem.bytes().decode() for pem in issued.cert_chain_pems)
