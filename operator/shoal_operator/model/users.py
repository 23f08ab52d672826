"""QueueUsers: principals, permissions, and the content of their Secrets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.dead_letters import redrive, redrive_ledger
from shoal.security import acl_presets
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

from shoal_operator.model import field_defaults, listeners, security

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal_operator.model.certificates import KeyPair
    from shoal_operator.model.kubernetes import EnvVar, Volume, VolumeMount
    from shoal_operator.model.queue_cluster import Listener, QueueCluster
    from shoal_operator.model.resources.queue_user import QueueUser, QueueUserSpecAcls

TLS, TLS_EXTERNAL, SCRAM, OAUTH = "tls", "tls-external", "scram-sha-512", "oauth"
#: The type of listener that each type of user logs in to.
LISTENER_OF = {TLS: "tls", TLS_EXTERNAL: "tls", SCRAM: SCRAM, OAUTH: "oauthbearer"}
#: Where the properties in a Secret expect it to be mounted.
MOUNT = "/etc/shoal/user"
#: The file for Java and `shoal` there.
PROPERTIES = f"{MOUNT}/client.properties"
_ANY = "*"
_TYPES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.CLUSTER,
    "delegationToken": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}
_PATTERNS = {"literal": PatternType.LITERAL, "prefix": PatternType.PREFIXED}
#: The cluster's name in an access control entry.
_CLUSTER_NAME = "kafka-cluster"


def get_username(user: QueueUser) -> str:
    """Return the user's name in the brokers."""
    return user["spec"].get("username") or str(user["metadata"]["name"])


def get_authentication(user: QueueUser) -> str:
    """Return the type of authentication of a user."""
    return user["spec"]["authentication"]["type"]


def format_principal(user: QueueUser) -> str:
    """Return the principal of a user, as access control entries name it."""
    name = get_username(user)
    return f"User:{name}" if get_authentication(user) in (SCRAM, OAUTH) else f"User:CN={name}"


def get_quotas(user: QueueUser) -> dict[str, float]:
    """Return the quotas of a user by Kafka's names."""
    quotas = user["spec"].get("quotas", {})
    by_name = {
        "producer_byte_rate": quotas.get("producerByteRate"),
        "consumer_byte_rate": quotas.get("consumerByteRate"),
        "request_percentage": quotas.get("requestPercentage"),
        "controller_mutation_rate": quotas.get("controllerMutationRate"),
    }
    return {name: float(quota) for name, quota in by_name.items() if quota is not None}


def build_acls(user: QueueUser) -> set[Acl]:
    """Return the access control entries of a user."""
    who = format_principal(user)
    return {acl for entry in user["spec"].get("acls", ()) for acl in _expand(who, entry)}


def _expand(principal: str, entry: QueueUserSpecAcls) -> Iterator[Acl]:
    full_entry = field_defaults.fill(entry, field_defaults.ACL)
    host, denies = full_entry["host"], full_entry["permission"] == "deny"
    permission = Permission.DENY if denies else Permission.ALLOW

    def expand_form(
        form: acl_presets.Form, kind: ResourceType, names: Iterable[str]
    ) -> Iterator[Acl]:
        for name in names:
            # `jobs-*` is a prefix, and `*` alone is every name.
            is_prefix = name != _ANY and name.endswith(_ANY)
            pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            text = name[:-1] if is_prefix else name
            for operation in form[kind]:
                yield Acl(kind, text, pattern, principal, host, operation, permission)

    if resource := entry.get("resource"):
        kind = _TYPES[resource["type"]]
        name = _CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.get("name", _ANY)
        pattern = _PATTERNS[
            field_defaults.fill(resource, field_defaults.ACL_RESOURCE)["patternType"]
        ]
        for operation in entry.get("operations", ()):
            acl_operation = Operation[operation.replace("-", "_").upper()]
            yield Acl(kind, name, pattern, principal, host, acl_operation, permission)
    for form, kind, names in _list_forms(entry):
        yield from expand_form(form, kind, names)


def _list_forms(
    entry: QueueUserSpecAcls,
) -> Iterator[tuple[acl_presets.Form, ResourceType, Iterable[str]]]:
    """Yield the short forms of an entry, each with a kind of resources and their names."""
    if producer := entry.get("producer"):
        yield acl_presets.PRODUCER, ResourceType.TOPIC, producer.get("topics", [])
        ids = producer.get("transactionalIds", [])
        yield acl_presets.PRODUCER, ResourceType.TRANSACTIONAL_ID, ids
    redrives = entry.get("redrive")
    for form, resources in (
        (acl_presets.CONSUMER, entry.get("consumer")),
        (acl_presets.CONSUMER, entry.get("shareConsumer")),
        (acl_presets.SPARK_JOB, entry.get("sparkJob")),
        (acl_presets.REDRIVE, redrives),
    ):
        if resources:
            yield form, ResourceType.TOPIC, resources.get("topics", [])
            yield form, ResourceType.GROUP, resources.get("groups", [])
    if redrives and "deadLetterTopics" in redrives:
        names = redrives["deadLetterTopics"]
        groups = map(redrive.get_redrive_group, names)
        yield acl_presets.CONSUMER, ResourceType.TOPIC, names
        yield acl_presets.CONSUMER, ResourceType.GROUP, groups
        yield acl_presets.LEDGER, ResourceType.TOPIC, [redrive_ledger.LEDGER]


def find_listener(cluster: QueueCluster, user: QueueUser) -> Listener | None:
    """Return the listener of a QueueCluster that a user can log in to; None without one.

    If possible, it shows a certificate of the cluster CA, which the user's Secret has, and is an
    internal one.
    """
    mechanism = LISTENER_OF[get_authentication(user)]
    candidates = [
        n for n in cluster["spec"]["listeners"] if security.get_authentication(n) == mechanism
    ]

    def rank(candidate: Listener) -> tuple[bool, bool]:
        return bool(security.get_secret_name(candidate)), not listeners.is_internal(candidate)

    return min(candidates, key=rank, default=None)


class MountedSecret(NamedTuple):
    """A user's Secret in a pod: the volume, its mount, and the variable that names its file."""

    volume: Volume
    mount: VolumeMount
    variable: EnvVar


def make_mounted_secret(secret: str) -> MountedSecret:
    """Return how a pod gets a user's Secret."""
    return MountedSecret(
        {"name": "shoal-user", "secret": {"secretName": secret}},
        {"name": "shoal-user", "mountPath": MOUNT, "readOnly": True},
        {"name": "SHOAL_COMMAND_CONFIG", "value": PROPERTIES},
    )


def with_mount(mounts: Sequence[Mapping[str, Any]], user: MountedSecret) -> list[Mapping[str, Any]]:
    """Return the mounts of a container with the user's Secret, unless its path is taken."""
    is_taken = any(mount.get("mountPath") == MOUNT for mount in mounts)
    return [*mounts, *([] if is_taken else [user.mount])]


class Credentials(NamedTuple):
    """What a user logs in with: a certificate, or a password. Neither of a user whose certificate
    or token others make."""

    pair: KeyPair | None = None
    store: bytes = b""
    password: str = ""


def build_secret_data(
    user: QueueUser, servers: str, authority: bytes, own: Credentials
) -> dict[str, bytes]:
    """Return the content of a user's Secret. `servers` are the bootstrap servers, and `authority`
    is what clients trust; empty for the authorities of their system."""
    data: dict[str, bytes] = {}
    java = {"bootstrap.servers": servers}
    librdkafka = {"bootstrap.servers": servers}
    if authority:
        data["ca.crt"] = authority
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": f"{MOUNT}/ca.crt"}
        librdkafka["ssl.ca.location"] = f"{MOUNT}/ca.crt"
    if get_authentication(user) == SCRAM:
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{get_username(user)}" password="{_quote(own.password)}";'
        )
        data |= {"password": own.password.encode(), "sasl.jaas.config": jaas.encode()}
        login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
        java |= login | {"sasl.jaas.config": jaas}
        librdkafka |= login | {"sasl.username": get_username(user), "sasl.password": own.password}
    elif get_authentication(user) == OAUTH:
        login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        java |= login
        librdkafka |= login
    else:
        java |= {"security.protocol": "SSL"}
        librdkafka |= {"security.protocol": "SSL"}
    if own.pair is not None:
        data |= {
            "user.crt": own.pair.certificate,
            "user.key": own.pair.key,
            # Java reads the key and the certificate from one file.
            "user.pem": own.pair.key + own.pair.certificate,
            "user.p12": own.store,
            "password": own.password.encode(),
        }
        java |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{MOUNT}/user.pem"}
        librdkafka |= {
            "ssl.certificate.location": f"{MOUNT}/user.crt",
            "ssl.key.location": f"{MOUNT}/user.key",
        }
    data["client.properties"] = _format_file(java)
    data["librdkafka.properties"] = _format_file(librdkafka)
    return data


def _format_file(properties: Mapping[str, str]) -> bytes:
    escaped = {k: v.replace("\\", "\\\\") for k, v in sorted(properties.items())}
    return "".join(f"{k}={v}\n" for k, v in escaped.items()).encode()


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
