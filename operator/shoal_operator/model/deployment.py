"""A ShareConsumer's Deployment."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from shoal_operator.model import broker_pod, names, rack, users

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest


#: The variable of the client property `client.rack` (`shoal.client.settings`).
CLIENT_RACK = "SHOAL_CLIENT_CLIENT_RACK"


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
    rack_key: str = "",
) -> Manifest:
    """Return a Deployment of `replicas` consumers, with the group in their environment.

    Containers without an image get `default_image`, with `pull_policy` unless they have their own.
    `user_secret` is the Secret of the user that they log in as, empty without one. `rack_key` is
    the node label that has the racks of the cluster, empty without racks.
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
    if rack_key:
        pod_meta["annotations"] = {**pod_meta.get("annotations", {}), names.RACK_KEY: rack_key}
        _add_rack(template["spec"], default_image, pull_policy)
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


def _add_rack(pod: Manifest, image: str, pull_policy: str) -> None:
    """Give all containers of a pod its rack; the container that waits for it has `image`."""
    context = broker_pod.CONTAINER_SECURITY_CONTEXT
    waiting = {"image": image, "imagePullPolicy": pull_policy, "securityContext": context}
    pod["initContainers"] = [rack.container(waiting), *pod.get("initContainers", [])]
    pod.setdefault("volumes", []).append(rack.volume())
    for container in pod["containers"]:
        container["env"] = names.environment([rack.variable(CLIENT_RACK)], container["env"])


def consumer_selector(consumer: str) -> dict[str, str]:
    """Return the labels that select a ShareConsumer's pods."""
    return {names.CONSUMER_LABEL: consumer}
