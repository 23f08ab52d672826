"""The topics of queues and the settings of their share group, made where they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.client.queues import queue_settings
from shoal.client.queues.queue_settings import PRIORITY
from shoal.django.options import DELAY_MAX_S
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.client.client import Client
    from shoal.django.options import Options


def prepare(options: Options, queues: Iterable[str], say: Callable[[str], None]) -> None:
    """Create missing topics, and set what the group needs for delays, priorities and dead letters,
    but no setting that somebody has made. `say` gets a sentence for each change, and for what the
    login may not do. Raises `Unreachable`."""
    topics = [NewTopic(options.get_topic(queue)) for queue in queues]
    desired = {
        "share.auto.offset.reset": "earliest",
        "share.delay.max.ms": str(DELAY_MAX_S * 1000),
        "share.priority.header": PRIORITY,
    }
    if options.dead_letters:
        allowed = {"errors.deadletterqueue.group.enable": "true"}
        topics.append(NewTopic(options.dead_letters, configs=allowed))
        desired["errors.deadletterqueue.topic.name"] = options.dead_letters
        desired["errors.deadletterqueue.copy.record.enable"] = "true"

    with SyncClient(options.read_client()) as client:
        client.run(_create(client.client, topics, say))
        try:
            client.run(_configure(client.client, options.group, desired, say))
        except KafkaError as error:
            say(f"Group {options.group} cannot be configured: {error}.")


async def _create(client: Client, topics: list[NewTopic], say: Callable[[str], None]) -> None:
    for name, created in (await client.admin.topics.create(topics)).items():
        if not isinstance(created, KafkaError):
            say(f"Created topic {name}.")
        elif created.code is not ErrorCode.topic_already_exists:
            say(f"Topic {name} cannot be created: {created}.")


async def _configure(
    client: Client, group: str, desired: dict[str, str], say: Callable[[str], None]
) -> None:
    """Raises `KafkaError`."""
    resource = queue_settings.make_group(group)
    configs = await queue_settings.read_configs(client.admin, resource)
    for name, value in queue_settings.find_unset(configs, desired).items():
        await queue_settings.set_configs(client.admin, resource, {name: value})
        say(f"Set {name}={value} of group {group}.")
