"""A ShareConsumer's Deployment."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names, users

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest


def manifest(
    consumer: Mapping[str, Any],
    *,
    cluster: str,
    replicas: int,
    bootstrap_servers: str,
    group_id: str,
    topics: Sequence[str],
    default_image: str,
    pull_policy: str,
    user_secret: str = "",
) -> Manifest:
    """Return a Deployment of `replicas` consumers, with the group in their environment.

    Containers without an image get `default_image`, with `pull_policy` unless they have their own.
    `user_secret` is the Secret of the user that they log in as, empty without one.
    """
    meta = consumer["metadata"]
    labels = names.consumer_labels(meta["name"], cluster)
    template = copy.deepcopy(dict(consumer["spec"]["deployment"]["template"]))
    pod_meta = template.setdefault("metadata", {})
    pod_meta["labels"] = {**pod_meta.get("labels", {}), **labels}
    given = [
        {"name": "SHOAL_BOOTSTRAP_SERVERS", "value": bootstrap_servers},
        {"name": "SHOAL_GROUP_ID", "value": group_id},
        {"name": "SHOAL_TOPICS", "value": ",".join(topics)},
    ]
    for container in template["spec"]["containers"]:
        container["env"] = names.environment(given, container.get("env", []))
        if not container.get("image"):
            container["image"] = default_image
            container.setdefault("imagePullPolicy", pull_policy)
    if user_secret:
        _mount(template["spec"], users.mounted(user_secret))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [names.owner(consumer)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": consumer_selector(meta["name"])},
            "template": template,
        },
    }


def _mount(pod: Manifest, user: users.Mounted) -> None:
    """Mount a user's Secret in all containers of a pod."""
    pod.setdefault("volumes", []).append(user.volume)
    for container in pod["containers"]:
        container["volumeMounts"] = users.with_mount(container.get("volumeMounts", []), user)
        container["env"] = names.environment([user.variable], container["env"])


def consumer_selector(consumer: str) -> dict[str, str]:
    """Return the labels that select a ShareConsumer's pods."""
    return {names.CONSUMER_LABEL: consumer}
