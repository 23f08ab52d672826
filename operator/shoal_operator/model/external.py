"""QueueClusters of type `external`: brokers that the operator does not run. Pure.

The operator reads the credentials of such a cluster from a Secret of a user's namespace. So it
takes values from the Secret only, and never a file or a variable of its own pod that a property
names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.config_providers import has_references
from shoal.client.properties import parse_properties
from shoal.security import jaas

from shoal_operator.model.users import MOUNT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.queue_cluster import QueueCluster

TYPE = "external"
#: The file of client properties in a Secret.
PROPERTIES = "client.properties"
#: Properties of TLS that name a file, and those that have its content.
_FILES = {
    "ssl.truststore.location": ("ssl.truststore.certificates",),
    "ssl.keystore.location": ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
}
_STORE_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
_KEPT = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.jaas.config",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.truststore.certificates",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
)
#: Of the properties in a Secret; `spec.external` has the brokers' addresses.
_IGNORED = ("bootstrap.servers", "client.id")
_MECHANISMS = {"ScramLoginModule": "SCRAM-SHA-512", "PlainLoginModule": "PLAIN"}


class BadCredentials(Exception):
    """A Secret has no credentials that the operator can use; the message names the remedy."""


def is_external(cluster: QueueCluster) -> bool:
    """Return whether the operator does not run the brokers of a QueueCluster."""
    return bool(cluster["spec"].get("type") == TYPE)


def get_bootstrap_servers(cluster: QueueCluster) -> str:
    """Return the bootstrap servers of an external cluster."""
    return str(cluster["spec"]["external"]["bootstrapServers"])


def get_credentials_secret(cluster: QueueCluster) -> str:
    """Return the name of the Secret with the operator's credentials, empty without one."""
    return str(cluster["spec"]["external"].get("credentials", {}).get("secretName", ""))


def get_trust_secret(cluster: QueueCluster) -> tuple[str, str]:
    """Return the name and the key of the Secret with the brokers' CAs, empty without one."""
    trust = cluster["spec"]["external"].get("trust", {})
    return str(trust.get("secretName", "")), str(trust.get("key", "ca.crt"))


def needs_secrets(cluster: QueueCluster) -> bool:
    """Return whether the operator reads Secrets before it connects."""
    return bool(get_credentials_secret(cluster) or get_trust_secret(cluster)[0])


def build_client_properties(
    credentials: Mapping[str, bytes] | None, authorities: bytes | None
) -> dict[str, str]:
    """Return the client properties of the operator. Raises `BadCredentials`.

    `credentials` are the values of the Secret that `spec.list_external.credentials` names, as a
    QueueUser's Secret has them: `client.properties`, or the files that it would name.
    `authorities` are PEM certificates, which replace those of the credentials.
    """
    data = credentials or {}
    if PROPERTIES in data:
        client_properties = _read_properties(data)
    elif credentials is None:
        client_properties = {"security.protocol": "SSL"} if authorities else {}
    else:
        client_properties = _read_files(data)
    if authorities is not None:
        client_properties["ssl.truststore.certificates"] = _decode_text("the CA", authorities)
    return client_properties


def _read_properties(data: Mapping[str, bytes]) -> dict[str, str]:
    declared = dict(parse_properties(_decode_text(PROPERTIES, data[PROPERTIES])))
    # The operator would replace a reference by a file or a variable of its own pod.
    if has_references(declared):
        raise BadCredentials(f"{PROPERTIES} refers to a file or a variable; write the value itself")
    client_properties: dict[str, str] = {}
    for name, value in declared.items():
        if name in _FILES:
            key = value.removeprefix(f"{MOUNT}/")
            if key not in data:
                raise BadCredentials(
                    f"{name} in {PROPERTIES} is {value!r}; name a file of this Secret, such as "
                    f"{MOUNT}/ca.crt"
                )
            client_properties |= dict.fromkeys(_FILES[name], _decode_pem(key, data[key]))
        elif name in _STORE_TYPES:
            if value.upper() != "PEM":
                raise BadCredentials(f"{name} in {PROPERTIES} is {value}; the operator reads PEM")
        elif name in _KEPT:
            client_properties[name] = value
        elif name not in _IGNORED:
            raise BadCredentials(
                f"{PROPERTIES} has {name}, which the operator does not use. Remove it; the "
                f"operator uses {', '.join((*_KEPT[:5], *_FILES))}"
            )
    if client_properties.get("sasl.mechanism", "").upper() == "OAUTHBEARER":
        raise BadCredentials("sasl.mechanism is OAUTHBEARER; use SCRAM, PLAIN or a certificate")
    return client_properties


def _read_files(data: Mapping[str, bytes]) -> dict[str, str]:
    """Return the properties of a Secret without `client.properties`, such as Strimzi makes."""
    client_properties: dict[str, str] = {}
    if "ca.crt" in data:
        client_properties["ssl.truststore.certificates"] = _decode_pem("ca.crt", data["ca.crt"])
    if "user.crt" in data and "user.key" in data:
        client_properties["ssl.keystore.certificate.chain"] = _decode_pem(
            "user.crt", data["user.crt"]
        )
        client_properties["ssl.keystore.key"] = _decode_pem("user.key", data["user.key"])
    elif "sasl.jaas.config" in data:
        login = _decode_text("sasl.jaas.config", data["sasl.jaas.config"])
        client_properties |= {"sasl.mechanism": _find_mechanism(login), "sasl.jaas.config": login}
        return client_properties | {"security.protocol": "SASL_SSL"}
    if not client_properties:
        raise BadCredentials(
            f"it has none of {PROPERTIES}, sasl.jaas.config, user.crt with user.key, and ca.crt"
        )
    return client_properties | {"security.protocol": "SSL"}


def _find_mechanism(login: str) -> str:
    try:
        module = jaas.parse(login).name.rpartition(".")[2]
    except jaas.JaasError as error:
        raise BadCredentials(f"sasl.jaas.config: {error}") from None
    if module not in _MECHANISMS:
        raise BadCredentials(
            f"sasl.jaas.config has {module}; use {' or '.join(_MECHANISMS)}, or set sasl.mechanism "
            f"in {PROPERTIES}"
        )
    return _MECHANISMS[module]


def _decode_pem(key: str, value: bytes) -> str:
    text = _decode_text(key, value)
    if "-----BEGIN" not in text:
        raise BadCredentials(f"{key} is not PEM text, which begins with -----BEGIN")
    return text


def _decode_text(key: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadCredentials(f"{key} is not text") from None
