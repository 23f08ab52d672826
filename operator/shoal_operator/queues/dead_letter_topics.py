"""The dead-letter topics of ShareGroups: created if the spec says so, and checked before the first
letter, because a letter that cannot be written holds its record back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic

from shoal_operator.model import external
from shoal_operator.model import groups as model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.brokers.broker_states import TopicState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.model.resources.share_group import ShareGroup

#: Broker configs about the topics, with their defaults.
_PREFIX, _PREFIX_DEFAULT = "errors.deadletterqueue.topic.name.prefix", "dlq."
_AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"


async def prepare(
    brokers: Brokers, cluster: QueueCluster | None, groups: Mapping[str, ShareGroup]
) -> dict[str, tuple[str, str]]:
    """Create the dead-letter topics that specs ask for; return warnings by group id.

    `groups` are ShareGroups by group id. Raises `ClientError`.
    """
    specs = {group: resource["spec"] for group, resource in groups.items()}
    topics = {
        group: dead_letters["topic"]
        for group, spec in specs.items()
        if (dead_letters := spec.get("deadLetters"))
    }
    warnings = {
        group: ("DeadLetterTopicRefused", problem)
        for group, name in topics.items()
        if (problem := find_name_problem(name, cluster, specs[group].get("topics", ())))
    }
    checked = {group: name for group, name in topics.items() if group not in warnings}
    if not checked:
        return warnings
    have = await brokers.describe_topics(sorted(set(checked.values())))
    topics_by_group = {
        group: topic for group in checked if (topic := model.build_dead_letter_topic(specs[group]))
    }
    absent = {topic.name: topic for topic in topics_by_group.values() if topic.name not in have}
    topics_to_create = [
        NewTopic(topic.name, topic.partitions, topic.replicas or -1, topic.configs)
        for topic in absent.values()
    ]
    errors = await brokers.create_topics(topics_to_create) if absent else {}
    for group, name in checked.items():
        if name in errors:
            text = f"The brokers refused the dead-letter topic {name!r}: {errors[name]}."
            warnings[group] = ("DeadLetterTopicRefused", text)
        elif name not in absent and (warning := _find_topic_problem(name, cluster, have.get(name))):
            warnings[group] = warning
    return warnings


def find_name_problem(name: str, cluster: QueueCluster | None, sources: Sequence[str]) -> str:
    """Return why the brokers write no letters to a topic of this name; empty if they do.

    `cluster` is the QueueCluster, and `sources` are the topics of the group.
    """
    if cluster is None or external.is_external(cluster):
        return ""
    prefix = cluster["spec"].get("config", {}).get(_PREFIX, _PREFIX_DEFAULT)
    if name in sources:
        text = f"{name!r} is a topic of the group, so it cannot have the group's dead letters."
        return f"{text} Name another topic."
    if not name.startswith(prefix):
        return (
            f"The brokers write no dead letters to {name!r}: the name has to begin with "
            f"{prefix!r}. Name another topic, or set {_PREFIX} in spec.config of the QueueCluster."
        )
    return ""


def _find_topic_problem(
    name: str, cluster: QueueCluster | None, topic: TopicState | None
) -> tuple[str, str] | None:
    """Return the warning on a topic that takes no dead letters, None if it does. `topic` is None if
    there is none."""
    setting = model.DEAD_LETTERS_ENABLED
    if topic is not None:
        if topic.config.get(setting) == "true":
            return None
        text = f"Topic {name!r} does not allow dead letters. Set {setting}=true on it, or name "
        return ("DeadLetterTopicForbidden", text + "another topic.")
    if cluster is None or external.is_external(cluster):
        return None
    if cluster["spec"].get("config", {}).get(_AUTO_CREATE) == "true":
        return None
    text = (
        f"Topic {name!r} does not exist, so records that fail for good wait. Add create: {{}} to "
        f'spec.deadLetters, or create it as a QueueTopic with the config {setting}: "true".'
    )
    return ("DeadLetterTopicMissing", text)
