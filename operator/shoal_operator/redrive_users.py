"""As whom a Redrive connects to the brokers: as the QueueUser that it names, with its rights only.

Dead letters name the topics that they came from, and every producer to their topic can write any
name there. So the operator, which may do everything, sends no letters itself, unless the cluster
authorizes nobody: there, every client may do what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.settings import Settings

from shoal_operator import consumer_users
from shoal_operator.brokers import REQUEST_TIMEOUT_MS
from shoal_operator.conditions import Verdict
from shoal_operator.model import secret, security
from shoal_operator.model import users as model

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store


def connect(store: Store, cluster: Manifest, redrive: Manifest) -> Client | Verdict | None:
    """Return a client of the Redrive's user, why there is none, or None for the operator's own."""
    name = redrive["spec"].get("user", "")
    if not name:
        if not security.is_authorized(cluster):
            return None
        text = (
            f"QueueCluster {cluster['metadata']['name']!r} authorizes requests, and spec.user names"
            " no QueueUser. Name one whose acls have redrive."
        )
        return Verdict.refused("UserRequired", text)
    login = consumer_users.login(store, cluster, redrive)
    if login.problem is not None:
        return login.problem
    namespace = cluster["metadata"]["namespace"]
    user = store.get("QueueUser", namespace, name)
    assert user is not None, "its login has no problem"
    if model.authentication(user) not in (model.TLS, model.SCRAM):
        text = (
            f"The Secret of QueueUser {name!r} has no credentials, as its authentication is of the"
            f" type {model.authentication(user)}. Name a QueueUser of the type tls or"
            " scram-sha-512."
        )
        return Verdict.refused("UserWithoutCredentials", text)

    def properties() -> dict[str, str]:
        """Return what the Secret has by now; a deleted one has nothing."""
        found = store.get("Secret", namespace, login.secret)
        return _properties(user, secret.data_of(found) if found else {})

    return Client(Settings.of(login.servers, properties))


def _properties(user: Manifest, data: dict[str, bytes]) -> dict[str, str]:
    """Return the client properties of a user whose Secret has this data."""
    texts = {key: data.get(key, b"").decode() for key in ("user.crt", "user.key", "password")}
    found = {
        "client.id": "shoal-operator",
        "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
    }
    if "ca.crt" in data:
        found["ssl.ca.pem"] = data["ca.crt"].decode()
    if model.authentication(user) == model.TLS:
        return found | {
            "security.protocol": "SSL",
            "ssl.certificate.pem": texts["user.crt"],
            "ssl.key.pem": texts["user.key"],
        }
    return found | {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": model.username(user),
        "sasl.password": texts["password"],
    }
