"""As whom a ShareConsumer's pods log in: the Secret that they mount, and the brokers' address."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.conditions import Verdict, ready_condition
from shoal_operator.model import cluster as cluster_model
from shoal_operator.model import external, listeners, security
from shoal_operator.model import users as model

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store


class Login(NamedTuple):
    """How the pods of a ShareConsumer reach the brokers.

    `secret` is the Secret of their user, empty without one. `problem` is what keeps the pods from
    using it, and `warning` what probably does.
    """

    servers: str
    secret: str = ""
    problem: Verdict | None = None
    warning: tuple[str, str] | None = None


def login(store: Store, cluster: Manifest, consumer: Manifest) -> Login:
    """Return how the pods of a ShareConsumer reach the brokers of its cluster.

    If `problem` is set and `secret` is empty, the pods could not start.
    """
    name = consumer["spec"].get("user", "")
    servers = cluster_model.bootstrap_servers(cluster)
    if own := consumer["spec"].get("userSecret", ""):
        return Login(servers, own)
    if external.is_external(cluster):
        return _external(cluster, name)
    if not name:
        return _without_user(cluster)
    user = store.get("QueueUser", cluster["metadata"]["namespace"], name)
    if user is None:
        text = f"QueueUser {name!r} does not exist in this namespace."
        return Login(servers, problem=Verdict.waiting("UserNotFound", text))
    wanted, own = cluster["metadata"]["name"], user["spec"]["cluster"]
    if own != wanted:
        text = (
            f"QueueUser {name!r} belongs to QueueCluster {own!r}, and this resource to {wanted!r}."
            " Name a QueueUser of the same cluster in spec.user."
        )
        return Login(servers, problem=Verdict.refused("UserOfOtherCluster", text))
    ready = ready_condition(user)
    problem = None
    if ready.get("status") != "True":
        cause = ready.get("message") or "The operator has not made its Secret yet."
        problem = Verdict.waiting("UserNotReady", f"QueueUser {name!r}: {cause}")
    listener = model.listener(cluster, user)
    if listener is not None:
        servers = listeners.bootstrap_servers(cluster, listener)
    return Login(servers, user.get("status", {}).get("secret", ""), problem)


def _external(cluster: Manifest, user: str) -> Login:
    """An external cluster has no QueueUsers."""
    servers, name = cluster_model.bootstrap_servers(cluster), cluster["metadata"]["name"]
    if user:
        text = (
            f"QueueCluster {name!r} is external and has no QueueUsers. Remove spec.user, and name "
            "a Secret in spec.userSecret."
        )
        return Login(servers, problem=Verdict.refused("NotForExternalCluster", text))
    if not external.needs_secrets(cluster):
        return Login(servers)
    text = (
        f"The operator connects to QueueCluster {name!r} with Secrets, and spec.userSecret names "
        "none. Set spec.userSecret, unless the pods have credentials of their own."
    )
    return Login(servers, warning=("NoUser", text))


def _without_user(cluster: Manifest) -> Login:
    """Prefer a listener that needs no login."""
    inside = [n for n in cluster["spec"]["listeners"] if listeners.is_internal(n)]
    anyone = [n for n in inside if not security.authentication(n)]
    if anyone:
        return Login(listeners.bootstrap_servers(cluster, anyone[0]), warning=_anonymous(cluster))
    text = (
        f"Clients of QueueCluster {cluster['metadata']['name']!r} log in, and spec.user names no "
        "QueueUser. Set spec.user, unless the pods have credentials of their own."
    )
    return Login(cluster_model.bootstrap_servers(cluster), warning=("NoUser", text))


def _anonymous(cluster: Manifest) -> tuple[str, str] | None:
    if not security.is_authorized(cluster):
        return None
    text = (
        f"Requests to QueueCluster {cluster['metadata']['name']!r} need permissions, and spec.user "
        "names no QueueUser: the pods are User:ANONYMOUS. Set spec.user, or give that principal "
        "the permissions."
    )
    return "NoUser", text
