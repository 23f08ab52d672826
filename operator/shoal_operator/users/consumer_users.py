"""As whom a ShareConsumer's pods log in: the Secret that they mount, and the brokers' address."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.kube.conditions import Verdict, get_ready_condition
from shoal_operator.model import cluster as cluster_model
from shoal_operator.model import external, listeners, security
from shoal_operator.model import users as model
from shoal_operator.model.resources.queue_user import QueueUser

if TYPE_CHECKING:
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster


class PodLogin(NamedTuple):
    """How the pods of a ShareConsumer reach the brokers.

    `secret` is the Secret of their user, empty without one. `problem` is what keeps the pods from
    using it, and `warning` what probably does.
    """

    servers: str
    secret: str = ""
    problem: Verdict | None = None
    warning: tuple[str, str] | None = None


def resolve_login(
    store: Store, cluster: QueueCluster, name: str, user_secret: str = ""
) -> PodLogin:
    """Return how the pods of a ShareConsumer reach the brokers of its cluster, with the QueueUser
    of this name or a Secret of their own, each empty without one.

    If `problem` is set and `secret` is empty, the pods could not start.
    """
    servers = cluster_model.get_bootstrap_servers(cluster)
    if user_secret:
        return PodLogin(servers, user_secret)
    if external.is_external(cluster):
        return _resolve_external(cluster, name)
    if not name:
        return _resolve_without_user(cluster)
    user = store.get(QueueUser, cluster["metadata"]["namespace"], name)
    if user is None:
        text = f"QueueUser {name!r} does not exist in this namespace."
        return PodLogin(servers, problem=Verdict.make_waiting("UserNotFound", text))
    cluster_name, own = cluster["metadata"]["name"], user["spec"]["cluster"]
    if own != cluster_name:
        text = (
            f"QueueUser {name!r} belongs to QueueCluster {own!r}, and this resource to "
            f"{cluster_name!r}."
            " Name a QueueUser of the same cluster in spec.user."
        )
        return PodLogin(servers, problem=Verdict.make_refused("UserOfOtherCluster", text))
    ready = get_ready_condition(user)
    problem = None
    if ready.get("status") != "True":
        cause = ready.get("message") or "The operator has not made its Secret yet."
        problem = Verdict.make_waiting("UserNotReady", f"QueueUser {name!r}: {cause}")
    listener = model.find_listener(cluster, user)
    if listener is not None:
        servers = listeners.get_bootstrap_servers(cluster, listener)
    return PodLogin(servers, user.get("status", {}).get("secret", ""), problem)


def _resolve_external(cluster: QueueCluster, user: str) -> PodLogin:
    """An external cluster has no QueueUsers."""
    servers, name = cluster_model.get_bootstrap_servers(cluster), cluster["metadata"]["name"]
    if user:
        text = (
            f"QueueCluster {name!r} is external and has no QueueUsers. Remove spec.user, and name "
            "a Secret in spec.userSecret."
        )
        return PodLogin(servers, problem=Verdict.make_refused("NotForExternalCluster", text))
    if not external.needs_secrets(cluster):
        return PodLogin(servers)
    text = (
        f"The operator connects to QueueCluster {name!r} with Secrets, and spec.userSecret names "
        "none. Set spec.userSecret, unless the pods have credentials of their own."
    )
    return PodLogin(servers, warning=("NoUser", text))


def _resolve_without_user(cluster: QueueCluster) -> PodLogin:
    """Prefer a listener that needs no login."""
    inside = [n for n in cluster["spec"]["listeners"] if listeners.is_internal(n)]
    anyone = [n for n in inside if not security.get_authentication(n)]
    if anyone:
        return PodLogin(
            listeners.get_bootstrap_servers(cluster, anyone[0]),
            warning=_find_anonymous_warning(cluster),
        )
    text = (
        f"Clients of QueueCluster {cluster['metadata']['name']!r} log in, and spec.user names no "
        "QueueUser. Set spec.user, unless the pods have credentials of their own."
    )
    return PodLogin(cluster_model.get_bootstrap_servers(cluster), warning=("NoUser", text))


def _find_anonymous_warning(cluster: QueueCluster) -> tuple[str, str] | None:
    if not security.is_authorized(cluster):
        return None
    text = (
        f"Requests to QueueCluster {cluster['metadata']['name']!r} need permissions, and spec.user "
        "names no QueueUser: the pods are User:ANONYMOUS. Set spec.user, or give that principal "
        "the permissions."
    )
    return "NoUser", text
