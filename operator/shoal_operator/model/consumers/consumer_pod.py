"""The pods of a ShareConsumer's Deployment or Jobs, from the user's template."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.model import broker_pod, names, rack, users

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer


#: The resources of a container for which the template has none: enough to be scheduled beside pods
#: that have requests, and less than the default limits of most LimitRanges.
RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}}
#: The variable of the client property `client.rack` (`shoal.client.settings`).
CLIENT_RACK = "SHOAL_CLIENT_CLIENT_RACK"


class PodContext(NamedTuple):
    """The cluster, group and user of the pods.

    Containers without an image get `default_image`, with `pull_policy` unless they have their own.
    `user_secret` is the Secret of the user that they log in as, empty without one. `rack_key` is
    the node label that has the racks of the cluster, empty without racks.
    """

    cluster: str
    bootstrap_servers: str
    group_id: str
    topics: Sequence[str]
    default_image: str
    pull_policy: str
    user_secret: str = ""
    rack_key: str = ""


def build_template(
    consumer: ShareConsumer, user_template: Mapping[str, Any], context: PodContext
) -> Manifest:
    """Return the pod template `user_template`, with the group in the environment of its
    containers."""
    labels = names.build_consumer_labels(consumer["metadata"]["name"], context.cluster)
    pod_template: Manifest = copy.deepcopy(dict(user_template))
    pod_meta = pod_template.setdefault("metadata", {})
    pod_meta["labels"] = {**pod_meta.get("labels", {}), **labels}
    variables = [
        {"name": "SHOAL_BOOTSTRAP_SERVERS", "value": context.bootstrap_servers},
        {"name": "SHOAL_GROUP_ID", "value": context.group_id},
        {"name": "SHOAL_TOPICS", "value": ",".join(context.topics)},
    ]
    _restrict(pod_template["spec"])
    for container in pod_template["spec"]["containers"]:
        container.setdefault("resources", copy.deepcopy(RESOURCES))
        container["env"] = names.merge_environment(variables, container.get("env", []))
        if not container.get("image"):
            container["image"] = context.default_image
            container.setdefault("imagePullPolicy", context.pull_policy)
    if context.user_secret:
        _mount(pod_template["spec"], users.make_mounted_secret(context.user_secret))
    if context.rack_key:
        notes = {**pod_meta.get("annotations", {}), names.RACK_KEY: context.rack_key}
        pod_meta["annotations"] = notes
        _add_rack(pod_template["spec"], context.default_image, context.pull_policy)
    return pod_template


def _restrict(pod: Manifest) -> None:
    """Let a pod meet the pod security standard `restricted`, where its template says nothing else.

    A pod without a ServiceAccount of its own needs no token.
    """
    if "serviceAccountName" not in pod:
        pod.setdefault("automountServiceAccountToken", False)
    if pod.get("os", {}).get("name") == "windows":
        return
    parts = [pod, *pod.get("initContainers", []), *pod["containers"]]
    for part in parts:
        part["securityContext"] = dict(part.get("securityContext") or {})
    own, *container_contexts = (part["securityContext"] for part in parts)
    own.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    # The kubelet starts no container as user 0 that may not be root.
    if all(context.get("runAsUser") != 0 for context in (own, *container_contexts)):
        own.setdefault("runAsNonRoot", True)
    for context in container_contexts:
        capabilities = context.setdefault("capabilities", {"drop": ["ALL"]}) or {}
        # The API server refuses it for a container that is privileged in one of these ways.
        if not context.get("privileged") and "SYS_ADMIN" not in capabilities.get("add", []):
            context.setdefault("allowPrivilegeEscalation", False)


def build_selector(consumer: str) -> dict[str, str]:
    """Return the labels that select a ShareConsumer's pods."""
    return {names.CONSUMER_LABEL: consumer}


def _mount(pod: Manifest, user: users.MountedSecret) -> None:
    """Mount a user's Secret in all containers of a pod."""
    pod.setdefault("volumes", []).append(user.volume)
    for container in pod["containers"]:
        container["volumeMounts"] = users.with_mount(container.get("volumeMounts", []), user)
        container["env"] = names.merge_environment([user.variable], container["env"])


def _add_rack(pod: Manifest, image: str, pull_policy: str) -> None:
    """Give all containers of a pod its rack; the container that waits for it has `image`."""
    context = broker_pod.CONTAINER_SECURITY_CONTEXT
    waiting = {"image": image, "imagePullPolicy": pull_policy, "securityContext": context}
    pod["initContainers"] = [rack.build_container(waiting), *pod.get("initContainers", [])]
    pod.setdefault("volumes", []).append(rack.build_volume())
    for container in pod["containers"]:
        container["env"] = names.merge_environment(
            [rack.build_variable(CLIENT_RACK)], container["env"]
        )
