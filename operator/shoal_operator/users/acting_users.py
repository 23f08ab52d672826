"""As whom a Redrive or a QueueSchedule produces: the QueueUser that it names, with its rights only.

Dead letters name the topics that they came from, and every producer to their topic can write any
name there. The author of a QueueSchedule chooses its topic. So the operator, which may do
everything, produces no records of them itself, unless the cluster authorizes nobody: there, every
client may do what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.settings import Settings

from shoal_operator.brokers.calls import REQUEST_TIMEOUT_MS
from shoal_operator.kube.conditions import Verdict
from shoal_operator.model import secret, security
from shoal_operator.model import users as model
from shoal_operator.model.resources.queue_user import QueueUser
from shoal_operator.users import consumer_users

if TYPE_CHECKING:
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster


def connect(
    store: Store, cluster: QueueCluster, name: str, permission: str
) -> Client | Verdict | None:
    """Return a client of the QueueUser that a resource names, why there is none, or None for the
    operator's own.

    `permission` is the field of the user's `acls` that permits what the resource does.
    """
    if not name:
        if not security.is_authorized(cluster):
            return None
        text = (
            f"QueueCluster {cluster['metadata']['name']!r} authorizes requests, and spec.user names"
            f" no QueueUser. Name one whose acls have {permission}."
        )
        return Verdict.make_refused("UserRequired", text)
    login = consumer_users.resolve_login(store, cluster, name)
    if login.problem is not None:
        return login.problem
    namespace = cluster["metadata"]["namespace"]
    user = store.get(QueueUser, namespace, name)
    assert user is not None, "its login has no problem"
    if model.get_authentication(user) not in (model.TLS, model.SCRAM):
        text = (
            f"The Secret of QueueUser {name!r} has no credentials, as its authentication is of the"
            f" type {model.get_authentication(user)}. Name a QueueUser of the type tls or"
            " scram-sha-512."
        )
        return Verdict.make_refused("UserWithoutCredentials", text)

    def read_properties() -> dict[str, str]:
        """Return what the Secret has by now; a deleted one has nothing."""
        manifest = store.get("Secret", namespace, login.secret)
        return _build_properties(user, secret.decode_data(manifest) if manifest else {})

    return Client(Settings.from_bootstrap(login.servers, read_properties))


def _build_properties(user: QueueUser, data: dict[str, bytes]) -> dict[str, str]:
    """Return the client properties of a user whose Secret has this data."""
    texts = {key: data.get(key, b"").decode() for key in ("user.crt", "user.key", "password")}
    client_properties = {
        "client.id": "shoal-operator",
        "request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "default.api.timeout.ms": str(REQUEST_TIMEOUT_MS),
    }
    if "ca.crt" in data:
        client_properties["ssl.ca.pem"] = data["ca.crt"].decode()
    if model.get_authentication(user) == model.TLS:
        return client_properties | {
            "security.protocol": "SSL",
            "ssl.certificate.pem": texts["user.crt"],
            "ssl.key.pem": texts["user.key"],
        }
    return client_properties | {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": model.get_username(user),
        "sasl.password": texts["password"],
    }
