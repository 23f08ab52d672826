"""Names and settings of the security of a QueueCluster: Secrets, principals, authorities. Pure."""

from __future__ import annotations

import datetime
import ipaddress
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import certificates
from shoal_operator.model import names, pod_layout, secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.model.names import Manifest

#: The kinds of certificate authorities, and their fields in the spec. The cluster's authority
#: signs the certificates of brokers and of the operator, the clients' those of clients.
CLUSTER, CLIENTS = "cluster", "clients"
KINDS = (CLUSTER, CLIENTS)
FIELDS = {CLUSTER: "clusterCa", CLIENTS: "clientsCa"}
#: The common name of the operator's certificate.
OPERATOR = "shoal-operator"
#: The listener of brokers and of the operator, in a cluster with internal TLS.
REPLICATION, REPLICATION_PORT = "replication", 9091
#: The listener of the controllers.
CONTROLLER = "controller"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Annotation of a StatefulSet whose brokers have internal TLS.
INTERNAL_TLS = "shoal.dev/internal-tls"
#: Where the Secret with the brokers' certificate is mounted.
TLS_DIR = "/etc/shoal-tls"
#: Where the Secret with the users' certificates of listeners is mounted.
LISTENER_TLS_DIR = "/etc/shoal-listeners"
_MECHANISMS = {"scram-sha-512": "SCRAM-SHA-512", "oauthbearer": "OAUTHBEARER"}
#: The configs of the fields of `authentication` with type `oauthbearer`.
_OAUTH = {
    "jwksEndpointUrl": "jwks.endpoint.url",
    "validIssuer": "expected.issuer",
    "audience": "expected.audience",
    "userNameClaim": "sub.claim.name",
}
VALIDITY_DAYS, RENEWAL_DAYS, OVERLAP = 365, 30, "10m"
_UNITS = {"h": "hours", "m": "minutes", "s": "seconds"}


class CaSettings(NamedTuple):
    """The settings of an authority. `renewal` is how long before its end it is renewed."""

    generate: bool
    validity_days: int
    renewal: datetime.timedelta
    overlap: datetime.timedelta


def settings(cluster: Mapping[str, Any], kind: str) -> CaSettings:
    """Return the settings of an authority."""
    given = cluster["spec"].get(FIELDS[kind], {})
    parts = re.findall(r"(\d+)([hms])", given.get("overlap", OVERLAP))
    overlap = datetime.timedelta(**{_UNITS[unit]: int(number) for number, unit in parts})
    return CaSettings(
        given.get("generate", True),
        given.get("validityDays", VALIDITY_DAYS),
        datetime.timedelta(days=given.get("renewalDays", RENEWAL_DAYS)),
        overlap,
    )


def ca(cluster: str, kind: str) -> str:
    """Return the name of the Secret with an authority and its key."""
    return f"{cluster}-{kind}-ca"


def ca_cert(cluster: str, kind: str) -> str:
    """Return the name of the Secret with the certificates that clients trust."""
    return f"{cluster}-{kind}-ca-cert"


def broker_tls(cluster: str) -> str:
    """Return the name of the Secret with the brokers' certificate."""
    return f"{cluster}-broker-tls"


def operator_tls(cluster: str) -> str:
    """Return the name of the Secret with the operator's certificate."""
    return f"{cluster}-operator-tls"


def listener_tls(cluster: str) -> str:
    """Return the name of the Secret with the users' own certificates of listeners."""
    return f"{cluster}-listener-tls"


def broker_name(cluster: str) -> str:
    """Return the common name of the brokers' certificate."""
    return f"{cluster}-broker"


def known_fingerprint(cluster: Mapping[str, Any], kind: str) -> str:
    """Return the fingerprint of an authority as the status has it; empty if it has none."""
    known = cluster.get("status", {}).get("certificates", [])
    return next((str(c["fingerprint"]) for c in known if c["name"] == f"{kind}-ca"), "")


# Listeners.


def resolved(cluster: Manifest, stateful_set: Mapping[str, Any] | None) -> Manifest:
    """Return the QueueCluster with what the operator decides about its security.

    Whether brokers have internal TLS is decided once, when the cluster is created: the annotation
    of the StatefulSet records it. `spec.internalTls` and the listener of the brokers are added only
    in memory.
    """
    spec = cluster["spec"]
    if stateful_set is None:
        is_internal = any(is_encrypted(listener) for listener in spec["listeners"])
    else:
        notes = stateful_set["metadata"].get("annotations", {})
        is_internal = notes.get(INTERNAL_TLS) == "true"
    if not is_internal:
        return cluster
    own = {
        "name": REPLICATION,
        "port": REPLICATION_PORT,
        "type": "Internal",
        "tls": {},
        "authentication": {"type": "tls"},
    }
    added = {"internalTls": True, "listeners": [own, *spec["listeners"]]}
    return {**cluster, "spec": {**spec, **added}}


def has_internal_tls(cluster: Mapping[str, Any]) -> bool:
    """Return whether brokers and controllers of a `resolved` cluster use TLS among themselves."""
    return bool(cluster["spec"].get("internalTls"))


def is_encrypted(listener: Mapping[str, Any]) -> bool:
    """Return whether a listener uses TLS."""
    return listener.get("tls") is not None


def authentication(listener: Mapping[str, Any]) -> str:
    """Return the type of authentication of a listener; empty without one."""
    return str((listener.get("authentication") or {}).get("type", ""))


def is_authorized(cluster: Mapping[str, Any]) -> bool:
    """Return whether requests need permissions: as the spec says, or else if all clients log in."""
    spec = cluster["spec"]
    given = (spec.get("authorization") or {}).get("type")
    if given is None:
        return all(authentication(listener) for listener in spec["listeners"])
    return bool(given == "simple")


def super_users(cluster: Mapping[str, Any]) -> list[str]:
    """Return the principals that may do everything: the brokers, the operator, and the user's."""
    own = [broker_name(cluster["metadata"]["name"]), OPERATOR]
    return [*map(certificates.principal, own), *cluster["spec"].get("superUsers", ())]


def properties(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the brokers' configs of security in a `resolved` cluster with TLS; else none."""
    if not has_internal_tls(cluster):
        return {}
    found = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{TLS_DIR}/broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{TLS_DIR}/clients-ca.crt",
    }
    for name in (REPLICATION, CONTROLLER):
        found |= {
            f"listener.name.{name}.ssl.truststore.location": f"{TLS_DIR}/cluster-ca.crt",
            f"listener.name.{name}.ssl.client.auth": "required",
        }
    for listener in cluster["spec"]["listeners"]:
        found |= _of_listener(listener)
    if is_authorized(cluster):
        found["authorizer.class.name"] = AUTHORIZER
        found["super.users"] = ";".join(super_users(cluster))
    return found


def _of_listener(listener: Mapping[str, Any]) -> dict[str, str]:
    name, kind = listener["name"], authentication(listener)
    found = {}
    if kind == "tls":
        found["ssl.client.auth"] = "required"
    if kind in _MECHANISMS:
        found["sasl.enabled.mechanisms"] = _MECHANISMS[kind]
    if secret_name(listener):
        found["ssl.keystore.location"] = f"{LISTENER_TLS_DIR}/{name}.pem"
    given = listener.get("authentication") or {}
    for field, config in _OAUTH.items():
        if given.get(field):
            found[f"oauthbearer.sasl.oauthbearer.{config}"] = given[field]
    return {f"listener.name.{name}.{config}": value for config, value in found.items()}


def secret_name(listener: Mapping[str, Any]) -> str:
    """Return the user's Secret with the certificate of a listener; empty without one."""
    return str((listener.get("tls") or {}).get("secretName") or "")


def own_certificates(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the users' Secrets with certificates, by the listener that shows them."""
    every = cluster["spec"]["listeners"]
    return {n["name"]: secret_name(n) for n in every if secret_name(n)}


def volumes(cluster: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of each volume with certificates."""
    name, found = cluster["metadata"]["name"], []
    if has_internal_tls(cluster):
        found.append(("tls", broker_tls(name), TLS_DIR))
    if own_certificates(cluster):
        found.append(("listener-tls", listener_tls(name), LISTENER_TLS_DIR))
    return found


def shoal_environment(cluster: Mapping[str, Any], slot: int) -> dict[str, str]:
    """Return the variables with which `shoal` in a broker's container connects to that broker."""
    if not has_internal_tls(cluster):
        return {}
    return {
        "SHOAL_BOOTSTRAP_SERVERS": f"localhost:{pod_layout.port(REPLICATION_PORT, slot)}",
        "SHOAL_CLIENT_SECURITY_PROTOCOL": "SSL",
        "SHOAL_CLIENT_SSL_CA_LOCATION": f"{TLS_DIR}/cluster-ca.crt",
        "SHOAL_CLIENT_SSL_KEYSTORE_LOCATION": f"{TLS_DIR}/broker.pem",
    }


def operator_client(cluster_ca: bytes, own: certificates.KeyPair) -> dict[str, str]:
    """Return the client properties with which the operator connects to the brokers."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.pem": cluster_ca.decode(),
        "ssl.certificate.pem": own.certificate.decode(),
        "ssl.key.pem": own.key.decode(),
    }


def client_of_secret(found: Mapping[str, Any]) -> dict[str, str]:
    """Return `operator_client` of the operator's Secret; empty if a key is missing."""
    data = secret.data_of(found)
    try:
        own = certificates.KeyPair(data["tls.crt"], data["tls.key"])
        return operator_client(data["ca.crt"], own)
    except KeyError:
        return {}


def protocol(listener: Mapping[str, Any]) -> str:
    """Return the security protocol of a listener."""
    if not is_encrypted(listener):
        return "PLAINTEXT"
    return "SSL" if authentication(listener) in ("", "tls") else "SASL_SSL"


def addresses(cluster: Mapping[str, Any], hosts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the DNS names and the IP addresses of the brokers' certificate. `hosts` are those of
    external listeners."""
    meta = cluster["metadata"]
    dns = ["localhost"]
    headless = names.headless(meta["name"])
    for service in (names.bootstrap(meta["name"]), headless, f"*.{headless}"):
        full = f"{service}.{meta['namespace']}.svc"
        dns += [full, f"{full}.cluster.local"]
    dns.append(names.bootstrap(meta["name"]))
    ips = ["127.0.0.1"]
    for host in sorted(set(hosts)):
        try:
            ips.append(str(ipaddress.ip_address(host)))
        except ValueError:
            dns.append(host)
    return dns, ips
