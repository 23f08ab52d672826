"""Names and settings of the security of a QueueCluster: Secrets, principals, authorities. Pure."""

from __future__ import annotations

import datetime
import ipaddress
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shoal_operator.model import certificates, field_defaults, listeners, names, pod_layout, secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.model.queue_cluster import Listener, QueueCluster, SecretKey

#: The kinds of certificate authorities, and their fields in the spec. The cluster's authority
#: signs the certificates of brokers and of the operator, the clients' those of clients.
CLUSTER, CLIENTS = "cluster", "clients"
KINDS = (CLUSTER, CLIENTS)
FIELDS: Mapping[str, Literal["clusterCa", "clientsCa"]] = {
    CLUSTER: "clusterCa",
    CLIENTS: "clientsCa",
}
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
_OAUTH: Mapping[Literal["jwksEndpointUrl", "validIssuer", "audience", "userNameClaim"], str] = {
    "jwksEndpointUrl": "jwks.endpoint.url",
    "validIssuer": "expected.issuer",
    "audience": "expected.audience",
    "userNameClaim": "sub.claim.name",
}
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
_OWN: Listener = {
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


def get_settings(cluster: QueueCluster, kind: str) -> CaSettings:
    """Return the settings of an authority."""
    authority = field_defaults.fill(cluster["spec"].get(FIELDS[kind], {}), field_defaults.AUTHORITY)
    parts = re.findall(r"(?<!\d)(\d+)([hms])", authority["overlap"])
    overlap = datetime.timedelta(**{_UNITS[unit]: int(number) for number, unit in parts})
    return CaSettings(
        authority["generate"],
        authority["validityDays"],
        authority["renewalDays"] * certificates.DAY,
        overlap,
    )


def format_ca_secret(cluster: str, kind: str) -> str:
    """Return the name of the Secret with an authority and its key."""
    return f"{cluster}-{kind}-ca"


def format_ca_cert_secret(cluster: str, kind: str) -> str:
    """Return the name of the Secret with the certificates that clients trust."""
    return f"{cluster}-{kind}-ca-cert"


def format_broker_secret(cluster: str) -> str:
    """Return the name of the Secret with the brokers' certificate."""
    return f"{cluster}-broker-tls"


def format_operator_secret(cluster: str) -> str:
    """Return the name of the Secret with the operator's certificate."""
    return f"{cluster}-operator-tls"


def format_listener_secret(cluster: str) -> str:
    """Return the name of the Secret with the users' own certificates of listeners."""
    return f"{cluster}-listener-tls"


def format_token_key_secret(cluster: str) -> str:
    """Return the name of the Secret with the key of delegation tokens."""
    return f"{cluster}-delegation-token-key"


def format_broker_name(cluster: str) -> str:
    """Return the common name of the brokers' certificate."""
    return f"{cluster}-broker"


def get_known_fingerprint(cluster: QueueCluster, kind: str) -> str:
    """Return the fingerprint of an authority as the status has it; empty if it has none."""
    rows = cluster.get("status", {}).get("certificates", [])
    return next((str(c["fingerprint"]) for c in rows if c["name"] == f"{kind}-ca"), "")


# Listeners.


def get_stage(cluster: QueueCluster, stateful_set: Mapping[str, Any] | None) -> InternalTls:
    """Return how far the brokers use TLS: as the annotation of the StatefulSet records it, and a
    new cluster as its listeners need it."""
    if stateful_set is None:
        secured = any(is_encrypted(listener) for listener in cluster["spec"]["listeners"])
        return InternalTls.FULL if secured else InternalTls.NONE
    return InternalTls(stateful_set["metadata"].get("annotations", {}).get(INTERNAL_TLS, ""))


def choose_next_stage(cluster: QueueCluster, have: InternalTls, *, rolled: bool) -> InternalTls:
    """Return the stage to bring the brokers to. `rolled` means that all of them are at `have`.

    A migration begins with the first listener that has `tls`, and needs one without it until its
    end. Once it has begun, it continues to the end.
    """
    if have is not InternalTls.NONE:
        return have.following if rolled else have
    is_secured = any(is_encrypted(listener) for listener in cluster["spec"]["listeners"])
    return have.following if is_secured and find_plain_listener(cluster) is not None else have


def find_plain_listener(cluster: QueueCluster) -> Listener | None:
    """Return the internal listener without TLS that the brokers use; None if there is none."""
    all_listeners = cluster["spec"]["listeners"]
    return next(
        (n for n in all_listeners if listeners.is_internal(n) and not is_encrypted(n)), None
    )


def resolve(cluster: QueueCluster, stage: InternalTls) -> QueueCluster:
    """Return the QueueCluster with what the operator decides about its security.

    The stage and the listener of the brokers are added only in memory. Brokers and the operator use
    the first internal listener.
    """
    spec = cluster["spec"]
    if stage is InternalTls.NONE:
        return cluster
    own, first = _OWN, find_plain_listener(cluster)
    all_listeners = [own, *spec["listeners"]]
    if not stage.is_used and first is not None:
        all_listeners = [first, own, *(n for n in spec["listeners"] if n is not first)]
    return {**cluster, "internalTls": stage, "spec": {**spec, "listeners": all_listeners}}


def with_token_key(cluster: QueueCluster, fingerprint: str) -> QueueCluster:
    """Return a `resolve` cluster whose pods are annotated with this fingerprint, so that another
    key restarts them."""
    return {**cluster, "delegationTokenKey": fingerprint} if fingerprint else cluster


def get_user_listeners(cluster: QueueCluster) -> list[Listener]:
    """Return the listeners of the spec of a `resolve` cluster, without the brokers' own."""
    user_listeners = list(cluster["spec"]["listeners"])
    if _OWN in user_listeners:
        user_listeners.remove(_OWN)
    return user_listeners


def get_internal_tls(cluster: QueueCluster) -> InternalTls:
    """Return the stage of a `resolve` cluster."""
    return InternalTls(cluster.get("internalTls", ""))


def has_internal_tls(cluster: QueueCluster) -> bool:
    """Return whether the brokers of a `resolve` cluster have certificates and listeners with TLS
    for themselves."""
    return get_internal_tls(cluster) is not InternalTls.NONE


class ControllerListener(NamedTuple):
    """A listener of the controllers."""

    name: str
    port: int
    protocol: str


def get_controller_listeners(cluster: QueueCluster) -> list[ControllerListener]:
    """Return the listeners of the controllers; nodes connect to the first one of others."""
    old = ControllerListener(CONTROLLER, CONTROLLER_PORT, "PLAINTEXT")
    new = ControllerListener(CONTROLLER_TLS, CONTROLLER_TLS_PORT, "SSL")
    return {
        InternalTls.NONE: [old],
        InternalTls.FULL: [old._replace(protocol="SSL")],
        InternalTls.OFFERED: [old, new],
        InternalTls.USED: [new, old],
        InternalTls.MIGRATED: [new],
    }[get_internal_tls(cluster)]


def is_encrypted(listener: Listener) -> bool:
    """Return whether a listener uses TLS. Resources of earlier releases may leave `tls` out."""
    tls = listener.get("tls")
    return tls is not None and bool(tls.get("enabled", True))


def get_authentication(listener: Listener) -> str:
    """Return the type of authentication of a listener; empty without one, also of an earlier
    release."""
    authentication = listener.get("authentication")
    kind = authentication.get("type", "") if authentication else ""
    return "" if kind == "none" else kind


def get_authorization(cluster: QueueCluster) -> str | None:
    """Return the type of authorization of the spec; None without one."""
    authorization = cluster["spec"].get("authorization")
    return authorization.get("type") if authorization else None


def is_authorized(cluster: QueueCluster) -> bool:
    """Return whether requests need permissions: as the spec says, or else if any clients log in.

    A listener whose clients do not log in must not open the topics of those that do.
    """
    authorization = get_authorization(cluster)
    if authorization is None:
        return any(map(get_authentication, get_user_listeners(cluster)))
    return authorization == "simple"


def is_opened(cluster: QueueCluster) -> bool:
    """Return whether clients log in, and the spec says that they need no permissions."""
    off = get_authorization(cluster) == "none"
    return off and any(map(get_authentication, get_user_listeners(cluster)))


def list_super_users(cluster: QueueCluster) -> list[str]:
    """Return the principals that may do everything: the brokers, the operator, and the user's."""
    own = [format_broker_name(cluster["metadata"]["name"]), OPERATOR]
    return [*map(certificates.format_principal, own), *cluster["spec"].get("superUsers", ())]


def build_properties(cluster: QueueCluster) -> dict[str, str]:
    """Return the brokers' configs of security in a `resolve` cluster with TLS; else none."""
    if not has_internal_tls(cluster):
        return {}
    configs = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{TLS_DIR}/broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{TLS_DIR}/clients-ca.crt",
    }
    encrypted = [
        controller.name
        for controller in get_controller_listeners(cluster)
        if controller.protocol == "SSL"
    ]
    for name in (REPLICATION, *encrypted):
        configs |= {
            f"listener.name.{name}.ssl.truststore.location": f"{TLS_DIR}/cluster-ca.crt",
            f"listener.name.{name}.ssl.client.auth": "required",
        }
    for listener in cluster["spec"]["listeners"]:
        configs |= _build_listener_configs(listener)
    configs |= _build_metrics_configs(cluster)
    if has_token_key(cluster):
        configs[_TOKEN_KEY] = f"${{directory:{TOKEN_KEY_DIR}:{TOKEN_KEY_FILE}}}"
    # Before, brokers have no login among themselves, and would be refused.
    if is_authorized(cluster) and get_internal_tls(cluster).is_complete:
        configs["authorizer.class.name"] = AUTHORIZER
        configs["super.users"] = ";".join(list_super_users(cluster))
    return configs


def _build_listener_configs(listener: Listener) -> dict[str, str]:
    name, kind = listener["name"], get_authentication(listener)
    configs = {}
    if kind == "tls":
        configs["ssl.client.auth"] = "required"
    if kind in _MECHANISMS:
        configs["sasl.enabled.mechanisms"] = _MECHANISMS[kind]
    if get_secret_name(listener):
        configs["ssl.keystore.location"] = f"{LISTENER_TLS_DIR}/{name}.pem"
    settings = listener.get("authentication")
    for field, config in _OAUTH.items():
        if settings and settings.get(field):
            configs[f"oauthbearer.sasl.oauthbearer.{config}"] = settings[field]
    return {f"listener.name.{name}.{config}": value for config, value in configs.items()}


def has_metrics_tls(cluster: QueueCluster) -> bool:
    """Return whether the brokers of a `resolve` cluster serve metrics over TLS."""
    return has_internal_tls(cluster) and cluster["spec"]["metrics"].get("tls") is not None


def get_metrics_token(cluster: QueueCluster) -> SecretKey | None:
    """Return the name and key of the Secret with the tokens that readers of metrics need; None if
    they need none."""
    token = cluster["spec"]["metrics"].get("token") if has_metrics_tls(cluster) else None
    return token["secretKeyRef"] if token else None


def _build_metrics_configs(cluster: QueueCluster) -> dict[str, str]:
    if not has_metrics_tls(cluster):
        return {}
    configs = {
        "shoal.metrics.security.protocol": "SSL",
        # The operator and the commands in a broker's container show certificates.
        "listener.name.metrics.ssl.truststore.location": f"{TLS_DIR}/cluster-ca.crt",
        "listener.name.metrics.ssl.client.auth": "requested",
    }
    if token := get_metrics_token(cluster):
        configs["shoal.metrics.token.file"] = f"{METRICS_TOKEN_DIR}/{token['key']}"
    return configs


def get_secret_name(listener: Listener) -> str:
    """Return the user's Secret with the certificate of a listener; empty without one."""
    return str(listener["tls"].get("secretName") or "") if is_encrypted(listener) else ""


def has_token_key(cluster: QueueCluster) -> bool:
    """Return whether the operator sets the key of delegation tokens of a `resolve` cluster: with
    TLS, unless the spec sets one."""
    return has_internal_tls(cluster) and _TOKEN_KEY not in cluster["spec"].get("config", {})


def get_user_certificates(cluster: QueueCluster) -> dict[str, str]:
    """Return the users' Secrets with certificates, by the listener that shows them."""
    all_listeners = cluster["spec"]["listeners"]
    return {n["name"]: get_secret_name(n) for n in all_listeners if get_secret_name(n)}


def list_volumes(cluster: QueueCluster) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of each volume with certificates."""
    name, volumes = cluster["metadata"]["name"], []
    if has_internal_tls(cluster):
        volumes.append(("tls", format_broker_secret(name), TLS_DIR))
    if has_token_key(cluster):
        volumes.append(("delegation-token-key", format_token_key_secret(name), TOKEN_KEY_DIR))
    if get_user_certificates(cluster):
        volumes.append(("listener-tls", format_listener_secret(name), LISTENER_TLS_DIR))
    if token := get_metrics_token(cluster):
        volumes.append((METRICS_TOKEN, token["name"], METRICS_TOKEN_DIR))
    return volumes


def build_shoal_environment(cluster: QueueCluster, slot: int) -> dict[str, str]:
    """Return the variables with which `shoal` in a broker's container connects to that broker."""
    if not has_internal_tls(cluster):
        return {}
    return {
        "SHOAL_BOOTSTRAP_SERVERS": f"localhost:{pod_layout.compute_port(REPLICATION_PORT, slot)}",
        "SHOAL_CLIENT_SECURITY_PROTOCOL": "SSL",
        "SHOAL_CLIENT_SSL_CA_LOCATION": f"{TLS_DIR}/cluster-ca.crt",
        "SHOAL_CLIENT_SSL_KEYSTORE_LOCATION": f"{TLS_DIR}/broker.pem",
    }


def build_operator_client(cluster_ca: bytes, own: certificates.KeyPair) -> dict[str, str]:
    """Return the client properties with which the operator connects to the brokers."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.pem": cluster_ca.decode(),
        "ssl.certificate.pem": own.certificate.decode(),
        "ssl.key.pem": own.key.decode(),
    }


def parse_operator_client(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return `build_operator_client` of the operator's Secret; empty if a key is missing."""
    data = secret.decode_data(manifest)
    try:
        own = certificates.KeyPair(data["tls.crt"], data["tls.key"])
        return build_operator_client(data["ca.crt"], own)
    except KeyError:
        return {}


def get_protocol(listener: Listener) -> str:
    """Return the security protocol of a listener."""
    if not is_encrypted(listener):
        return "PLAINTEXT"
    return "SSL" if get_authentication(listener) in ("", "tls") else "SASL_SSL"


def list_addresses(cluster: QueueCluster, hosts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the DNS names and the IP addresses of the brokers' certificate. `hosts` are those of
    external listeners."""
    meta = cluster["metadata"]
    dns = ["localhost"]
    headless = names.format_headless_service(meta["name"])
    for service in (names.format_bootstrap_service(meta["name"]), headless, f"*.{headless}"):
        full = f"{service}.{meta['namespace']}.svc"
        dns += [full, f"{full}.cluster.local"]
    dns.append(names.format_bootstrap_service(meta["name"]))
    ips = ["127.0.0.1"]
    for host in sorted(set(hosts)):
        try:
            ips.append(str(ipaddress.ip_address(host)))
        except ValueError:
            dns.append(host)
    return dns, ips
