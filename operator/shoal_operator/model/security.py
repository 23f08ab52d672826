"""Names and settings of the security of a QueueCluster: Secrets, principals, authorities. Pure."""

from __future__ import annotations

import datetime
import ipaddress
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import certificates
from shoal_operator.model import listeners, names, pod_layout, secret

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
#: The listeners of the controllers: that of a new cluster, and the one with TLS of a cluster that
#: began without.
CONTROLLER, CONTROLLER_PORT = "controller", 9093
CONTROLLER_TLS, CONTROLLER_TLS_PORT = "controllertls", 9090
#: The name of the brokers' HTTP port among listeners with certificates.
METRICS = "metrics"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: Annotation of a StatefulSet with the `InternalTls` of its brokers.
INTERNAL_TLS = "shoal.dev/internal-tls"
#: Where the Secret with the brokers' certificate is mounted.
TLS_DIR = "/etc/shoal-tls"
#: Where the Secret with the users' certificates of listeners is mounted.
LISTENER_TLS_DIR = "/etc/shoal-listeners"
#: The volume with the user's Secret of tokens for the metrics, and where it is mounted.
METRICS_TOKEN, METRICS_TOKEN_DIR = "metrics-token", "/etc/shoal-metrics"
#: Where the Secret with the key of delegation tokens is mounted, the key's file in it, and the
#: annotation of pods with its fingerprint.
TOKEN_KEY_DIR, TOKEN_KEY_FILE = "/etc/shoal-delegation-token", "secret.key"
TOKEN_KEY_NOTE = f"{names.GROUP}/delegation-token-key"
_TOKEN_KEY = "delegation.token.secret.key"
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


class InternalTls(StrEnum):
    """How far brokers and controllers use TLS among themselves.

    A cluster that began without gets there by three rolling restarts, one for each of the last
    three values.
    """

    #: They do not.
    NONE = ""
    #: They have since the cluster was created.
    FULL = "true"
    #: They have listeners with TLS beside the others, and do not use them yet.
    OFFERED = "offered"
    #: They use them, and the controllers still have the other one.
    USED = "used"
    #: They use them only.
    MIGRATED = "migrated"

    @property
    def following(self) -> InternalTls:
        """The next value of a migration whose brokers all have this one."""
        steps = {self.NONE: self.OFFERED, self.OFFERED: self.USED, self.USED: self.MIGRATED}
        return InternalTls(steps.get(self, self))

    @property
    def is_used(self) -> bool:
        """Whether brokers connect to each other over TLS, or do so after the current roll."""
        return self in (self.FULL, self.USED, self.MIGRATED)

    @property
    def is_complete(self) -> bool:
        """Whether nothing among the brokers is without TLS after the current roll."""
        return self in (self.FULL, self.MIGRATED)


#: The listener of the brokers and of the operator.
_OWN: Manifest = {
    "name": REPLICATION,
    "port": REPLICATION_PORT,
    "type": "Internal",
    "tls": {},
    "authentication": {"type": "tls"},
}


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
        given.get("renewalDays", RENEWAL_DAYS) * certificates.DAY,
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


def token_key(cluster: str) -> str:
    """Return the name of the Secret with the key of delegation tokens."""
    return f"{cluster}-delegation-token-key"


def broker_name(cluster: str) -> str:
    """Return the common name of the brokers' certificate."""
    return f"{cluster}-broker"


def known_fingerprint(cluster: Mapping[str, Any], kind: str) -> str:
    """Return the fingerprint of an authority as the status has it; empty if it has none."""
    known = cluster.get("status", {}).get("certificates", [])
    return next((str(c["fingerprint"]) for c in known if c["name"] == f"{kind}-ca"), "")


# Listeners.


def stage(cluster: Manifest, stateful_set: Mapping[str, Any] | None) -> InternalTls:
    """Return how far the brokers use TLS: as the annotation of the StatefulSet records it, and a
    new cluster as its listeners need it."""
    if stateful_set is None:
        secured = any(is_encrypted(listener) for listener in cluster["spec"]["listeners"])
        return InternalTls.FULL if secured else InternalTls.NONE
    return InternalTls(stateful_set["metadata"].get("annotations", {}).get(INTERNAL_TLS, ""))


def next_stage(cluster: Manifest, have: InternalTls, *, rolled: bool) -> InternalTls:
    """Return the stage to bring the brokers to. `rolled` means that all of them are at `have`.

    A migration begins with the first listener that has `tls`, and needs one without it until its
    end. Once it has begun, it continues to the end.
    """
    if have is not InternalTls.NONE:
        return have.following if rolled else have
    wanted = any(is_encrypted(listener) for listener in cluster["spec"]["listeners"])
    return have.following if wanted and plain(cluster) is not None else have


def plain(cluster: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the internal listener without TLS that the brokers use; None if there is none."""
    every = cluster["spec"]["listeners"]
    return next((n for n in every if listeners.is_internal(n) and not is_encrypted(n)), None)


def resolved(cluster: Manifest, stage: InternalTls) -> Manifest:
    """Return the QueueCluster with what the operator decides about its security.

    `spec.internalTls` and the listener of the brokers are added only in memory. Brokers and the
    operator use the first internal listener.
    """
    spec = cluster["spec"]
    if stage is InternalTls.NONE:
        return cluster
    own, first = _OWN, plain(cluster)
    every = [own, *spec["listeners"]]
    if not stage.is_used and first is not None:
        every = [first, own, *(n for n in spec["listeners"] if n is not first)]
    return {**cluster, "spec": {**spec, "internalTls": stage, "listeners": every}}


def with_token_key(cluster: Manifest, fingerprint: str) -> Manifest:
    """Return a `resolved` cluster whose pods are annotated with this fingerprint, so that another
    key restarts them."""
    spec = {**cluster["spec"], "delegationTokenKey": fingerprint}
    return {**cluster, "spec": spec} if fingerprint else cluster


def given_listeners(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the listeners of the spec of a `resolved` cluster, without the brokers' own."""
    every = list(cluster["spec"]["listeners"])
    if _OWN in every:
        every.remove(_OWN)
    return every


def internal_tls(cluster: Mapping[str, Any]) -> InternalTls:
    """Return the stage of a `resolved` cluster."""
    return InternalTls(cluster["spec"].get("internalTls", ""))


def has_internal_tls(cluster: Mapping[str, Any]) -> bool:
    """Return whether the brokers of a `resolved` cluster have certificates and listeners with TLS
    for themselves."""
    return internal_tls(cluster) is not InternalTls.NONE


class Controller(NamedTuple):
    """A listener of the controllers."""

    name: str
    port: int
    protocol: str


def controllers(cluster: Mapping[str, Any]) -> list[Controller]:
    """Return the listeners of the controllers; nodes connect to the first one of others."""
    old = Controller(CONTROLLER, CONTROLLER_PORT, "PLAINTEXT")
    new = Controller(CONTROLLER_TLS, CONTROLLER_TLS_PORT, "SSL")
    return {
        InternalTls.NONE: [old],
        InternalTls.FULL: [old._replace(protocol="SSL")],
        InternalTls.OFFERED: [old, new],
        InternalTls.USED: [new, old],
        InternalTls.MIGRATED: [new],
    }[internal_tls(cluster)]


def is_encrypted(listener: Mapping[str, Any]) -> bool:
    """Return whether a listener uses TLS. Resources of earlier releases may leave `tls` out."""
    given = listener.get("tls")
    return given is not None and bool(given.get("enabled", True))


def authentication(listener: Mapping[str, Any]) -> str:
    """Return the type of authentication of a listener; empty without one, also of an earlier
    release."""
    kind = str((listener.get("authentication") or {}).get("type", ""))
    return "" if kind == "none" else kind


def is_authorized(cluster: Mapping[str, Any]) -> bool:
    """Return whether requests need permissions: as the spec says, or else if any clients log in.

    A listener whose clients do not log in must not open the topics of those that do.
    """
    given = (cluster["spec"].get("authorization") or {}).get("type")
    if given is None:
        return any(map(authentication, given_listeners(cluster)))
    return bool(given == "simple")


def is_opened(cluster: Mapping[str, Any]) -> bool:
    """Return whether clients log in, and the spec says that they need no permissions."""
    off = (cluster["spec"].get("authorization") or {}).get("type") == "none"
    return off and any(map(authentication, given_listeners(cluster)))


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
    encrypted = [one.name for one in controllers(cluster) if one.protocol == "SSL"]
    for name in (REPLICATION, *encrypted):
        found |= {
            f"listener.name.{name}.ssl.truststore.location": f"{TLS_DIR}/cluster-ca.crt",
            f"listener.name.{name}.ssl.client.auth": "required",
        }
    for listener in cluster["spec"]["listeners"]:
        found |= _of_listener(listener)
    found |= _of_metrics(cluster)
    if has_token_key(cluster):
        found[_TOKEN_KEY] = f"${{directory:{TOKEN_KEY_DIR}:{TOKEN_KEY_FILE}}}"
    # Before, brokers have no login among themselves, and would be refused.
    if is_authorized(cluster) and internal_tls(cluster).is_complete:
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


def has_metrics_tls(cluster: Mapping[str, Any]) -> bool:
    """Return whether the brokers of a `resolved` cluster serve metrics over TLS."""
    return has_internal_tls(cluster) and cluster["spec"]["metrics"].get("tls") is not None


def metrics_token(cluster: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the name and key of the Secret with the tokens that readers of metrics need; None if
    they need none."""
    token = cluster["spec"]["metrics"].get("token") if has_metrics_tls(cluster) else None
    return token["secretKeyRef"] if token else None


def _of_metrics(cluster: Mapping[str, Any]) -> dict[str, str]:
    if not has_metrics_tls(cluster):
        return {}
    found = {
        "shoal.metrics.security.protocol": "SSL",
        # The operator and the commands in a broker's container show certificates.
        "listener.name.metrics.ssl.truststore.location": f"{TLS_DIR}/cluster-ca.crt",
        "listener.name.metrics.ssl.client.auth": "requested",
    }
    if token := metrics_token(cluster):
        found["shoal.metrics.token.file"] = f"{METRICS_TOKEN_DIR}/{token['key']}"
    return found


def secret_name(listener: Mapping[str, Any]) -> str:
    """Return the user's Secret with the certificate of a listener; empty without one."""
    return str(listener["tls"].get("secretName") or "") if is_encrypted(listener) else ""


def has_token_key(cluster: Mapping[str, Any]) -> bool:
    """Return whether the operator sets the key of delegation tokens of a `resolved` cluster: with
    TLS, unless the spec sets one."""
    return has_internal_tls(cluster) and _TOKEN_KEY not in cluster["spec"].get("config", {})


def own_certificates(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the users' Secrets with certificates, by the listener that shows them."""
    every = cluster["spec"]["listeners"]
    return {n["name"]: secret_name(n) for n in every if secret_name(n)}


def volumes(cluster: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of each volume with certificates."""
    name, found = cluster["metadata"]["name"], []
    if has_internal_tls(cluster):
        found.append(("tls", broker_tls(name), TLS_DIR))
    if has_token_key(cluster):
        found.append(("delegation-token-key", token_key(name), TOKEN_KEY_DIR))
    if own_certificates(cluster):
        found.append(("listener-tls", listener_tls(name), LISTENER_TLS_DIR))
    if token := metrics_token(cluster):
        found.append((METRICS_TOKEN, token["name"], METRICS_TOKEN_DIR))
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
