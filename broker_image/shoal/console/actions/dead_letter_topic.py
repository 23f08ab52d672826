"""The action that lets a group write its dead letters: create, permit or choose their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.dead_letter_topics import ENABLED, TOPIC
from shoal.client.errors import KafkaError, expect
from shoal.client.topics import NewTopic
from shoal.console.actions import groups
from shoal.console.actions.contract import Field, Given, Mistake, Plan, Result, Scene, hidden
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.runs import Run


class RepairDeadLetterTopic:
    """Set the topic of a group's dead letters, create it, and permit letters in it."""

    name, title = "letter-topic", "Repair the dead-letter topic"

    async def form(self, scene: Scene, given: Given) -> list[Field]:
        group = (await groups.share_group(scene.client, given)).group_id
        entry = await groups.config(scene.client, groups.resource(group), TOPIC)
        return [
            *hidden(given, "group"),
            Field(
                "topic",
                "Topic of the dead letters",
                value=given.one("topic", entry.value or ""),
                help="It is created if it does not exist.",
                is_required=True,
            ),
        ]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        client = scene.client
        group = (await groups.share_group(client, given)).group_id
        topic = given.required("topic", "The topic").strip()
        entry = await groups.config(client, groups.resource(group), TOPIC)
        exists, is_permitted = await _state(client, topic)
        sentences = []
        if entry.value != topic:
            await groups.check_change(client, groups.resource(group), [ConfigChange(TOPIC, topic)])
            was = entry.value or "not set"
            sentences.append(f"{TOPIC} of group {group} changes from {was} to {topic}.")
        if not exists:
            sentences.append(
                f"Topic {topic} is created with the brokers' default partitions and replicas, and"
                f" with {ENABLED}=true."
            )
        elif not is_permitted:
            sentences.append(f"{ENABLED} of topic {topic} changes to true.")
        if not sentences:
            raise Mistake(
                f"Group {group} writes its dead letters to {topic}, which exists and permits them."
                " Choose another topic, or see the broker's log."
            )
        sentences.append("The brokers then write the letters that wait, and archive their records.")

        async def run(client: Client, _run: Run) -> Result:
            await _apply(client, group, topic, exists=exists, is_set=entry.value == topic)
            return Result(f"Group {group} writes its dead letters to {topic}.")

        return Plan(
            self.title,
            tuple(sentences),
            "Repair",
            {"group": group, "topic": topic},
            groups.back_to(group),
            (entry.value, exists, is_permitted),
            run,
        )


async def _state(client: Client, topic: str) -> tuple[bool, bool]:
    """Return whether a topic exists, and whether it may hold dead letters."""
    resource = Resource(ResourceType.TOPIC, topic)
    found = (await client.admin.topics.describe([topic]))[topic]
    if isinstance(found, KafkaError):
        if found.code == ErrorCode.unknown_topic_or_partition:
            return False, False
        raise found
    entry = await groups.config(client, resource, ENABLED)
    return True, entry.value == "true"


async def _apply(client: Client, group: str, topic: str, *, exists: bool, is_set: bool) -> None:
    permit = ConfigChange(ENABLED, "true")
    if exists:
        await groups.change(client, Resource(ResourceType.TOPIC, topic), [permit])
    else:
        new = NewTopic(topic, configs={ENABLED: "true"})
        expect(await client.admin.topics.create([new]))
    if not is_set:
        await groups.change(client, groups.resource(group), [ConfigChange(TOPIC, topic)])
