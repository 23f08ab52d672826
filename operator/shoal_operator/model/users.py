"""QueueUsers: principals, permissions, and the content of their Secrets. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client import redrive, redrive_ledger
from shoal.security import short_forms
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

from shoal_operator.model import assumed, listeners, security

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal_operator.certificates import KeyPair
    from shoal_operator.model.names import Manifest

TLS, TLS_EXTERNAL, SCRAM, OAUTH = "tls", "tls-external", "scram-sha-512", "oauth"
#: The type of listener that each type of user logs in to.
LISTENER_OF = {TLS: "tls", TLS_EXTERNAL: "tls", SCRAM: SCRAM, OAUTH: "oauthbearer"}
#: Where the properties in a Secret expect it to be mounted.
MOUNT = "/etc/shoal/user"
#: The file for Java and `shoal` there.
PROPERTIES = f"{MOUNT}/client.properties"
_ANY = "*"
_QUOTAS = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
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
#: The short forms, and their fields with the names of resources.
_FORMS = {
    "producer": short_forms.PRODUCER,
    "consumer": short_forms.CONSUMER,
    "shareConsumer": short_forms.CONSUMER,
    "sparkJob": short_forms.SPARK_JOB,
    "redrive": short_forms.REDRIVE,
}
#: The field of `redrive` with the dead-letter topics.
_DEAD_LETTERS = "deadLetterTopics"
_FIELDS = {
    "topics": ResourceType.TOPIC,
    "groups": ResourceType.GROUP,
    "transactionalIds": ResourceType.TRANSACTIONAL_ID,
}


def username(user: Mapping[str, Any]) -> str:
    """Return the user's name in the brokers."""
    return str(user["spec"].get("username") or user["metadata"]["name"])


def authentication(user: Mapping[str, Any]) -> str:
    """Return the type of authentication of a user."""
    return str(user["spec"]["authentication"]["type"])


def principal(user: Mapping[str, Any]) -> str:
    """Return the principal of a user, as access control entries name it."""
    name = username(user)
    return f"User:{name}" if authentication(user) in (SCRAM, OAUTH) else f"User:CN={name}"


def quotas(user: Mapping[str, Any]) -> dict[str, float]:
    """Return the quotas of a user by Kafka's names."""
    given = user["spec"].get("quotas", {})
    return {name: float(given[field]) for field, name in _QUOTAS.items() if field in given}


def acls(user: Mapping[str, Any]) -> set[Acl]:
    """Return the access control entries of a user."""
    who = principal(user)
    return {acl for entry in user["spec"].get("acls", ()) for acl in _expanded(who, entry)}


def _expanded(who: str, entry: Mapping[str, Any]) -> Iterator[Acl]:
    whole = assumed.fill(entry, assumed.ACL)
    host, denies = whole["host"], whole["permission"] == "deny"
    permission = Permission.DENY if denies else Permission.ALLOW

    def rights(form: short_forms.Form, kind: ResourceType, names: Iterable[str]) -> Iterator[Acl]:
        for name in names:
            # `jobs-*` is a prefix, and `*` alone is every name.
            is_prefix = name != _ANY and name.endswith(_ANY)
            pattern = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            text = name[:-1] if is_prefix else name
            for operation in form[kind]:
                yield Acl(kind, text, pattern, who, host, operation, permission)

    if given := entry.get("resource"):
        kind = _TYPES[given["type"]]
        name = _CLUSTER_NAME if kind is ResourceType.CLUSTER else given.get("name", _ANY)
        pattern = _PATTERNS[assumed.fill(given, assumed.ACL_RESOURCE)["patternType"]]
        for operation in entry.get("operations", ()):
            one = Operation[operation.replace("-", "_").upper()]
            yield Acl(kind, name, pattern, who, host, one, permission)
    for form, operations in _FORMS.items():
        for field, names in (entry.get(form) or {}).items():
            if field == _DEAD_LETTERS:
                yield from rights(short_forms.CONSUMER, ResourceType.TOPIC, names)
                groups = map(redrive.group_of, names)
                yield from rights(short_forms.CONSUMER, ResourceType.GROUP, groups)
                yield from rights(short_forms.LEDGER, ResourceType.TOPIC, [redrive_ledger.LEDGER])
            else:
                yield from rights(operations, _FIELDS[field], names)


def listener(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the listener of a QueueCluster that a user can log in to; None without one.

    If possible, it shows a certificate of the cluster CA, which the user's Secret has, and is an
    internal one.
    """
    wanted = LISTENER_OF[authentication(user)]
    every = [n for n in cluster["spec"]["listeners"] if security.authentication(n) == wanted]

    def rank(one: Mapping[str, Any]) -> tuple[bool, bool]:
        return bool(security.secret_name(one)), not listeners.is_internal(one)

    return min(every, key=rank, default=None)


class Mounted(NamedTuple):
    """A user's Secret in a pod: the volume, its mount, and the variable that names its file."""

    volume: Manifest
    mount: Manifest
    variable: Manifest


def mounted(secret: str) -> Mounted:
    """Return how a pod gets a user's Secret."""
    return Mounted(
        {"name": "shoal-user", "secret": {"secretName": secret}},
        {"name": "shoal-user", "mountPath": MOUNT, "readOnly": True},
        {"name": "SHOAL_COMMAND_CONFIG", "value": PROPERTIES},
    )


def with_mount(mounts: Sequence[Manifest], user: Mounted) -> list[Manifest]:
    """Return the mounts of a container with the user's Secret, unless its path is taken."""
    is_taken = any(one.get("mountPath") == MOUNT for one in mounts)
    return [*mounts, *([] if is_taken else [user.mount])]


class Credentials(NamedTuple):
    """What a user logs in with: a certificate, or a password. Neither of a user whose certificate
    or token others make."""

    pair: KeyPair | None = None
    store: bytes = b""
    password: str = ""


def secret_data(
    user: Mapping[str, Any], servers: str, authority: bytes, own: Credentials
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
    if authentication(user) == SCRAM:
        jaas = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{username(user)}" password="{_quoted(own.password)}";'
        )
        data |= {"password": own.password.encode(), "sasl.jaas.config": jaas.encode()}
        login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
        java |= login | {"sasl.jaas.config": jaas}
        librdkafka |= login | {"sasl.username": username(user), "sasl.password": own.password}
    elif authentication(user) == OAUTH:
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
    data["client.properties"] = _file(java)
    data["librdkafka.properties"] = _file(librdkafka)
    return data


def _file(properties: Mapping[str, str]) -> bytes:
    escaped = {k: v.replace("\\", "\\\\") for k, v in sorted(properties.items())}
    return "".join(f"{k}={v}\n" for k, v in escaped.items()).encode()


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
