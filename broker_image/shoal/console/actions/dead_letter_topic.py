"""The action that lets a group write its dead letters: create, permit or choose their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.errors import KafkaError, expect
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    ActionContext,
    ActionError,
    ActionPlan,
    ActionResult,
    FormData,
    FormField,
    make_hidden_fields,
)
from shoal.dead_letters.dead_letter_topics import ENABLED, TOPIC
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun


class RepairDeadLetterTopic:
    """Set the topic of a group's dead letters, create it, and permit letters in it."""

    name, title = "letter-topic", "Repair the dead-letter topic"

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        group = (await groups.find_share_group(context.client, form)).group_id
        entry = await groups.find_config(context.client, groups.make_resource(group), TOPIC)
        return [
            *make_hidden_fields(form, "group"),
            FormField(
                "topic",
                "Topic of the dead letters",
                value=form.get("topic", entry.value or ""),
                help="It is created if it does not exist.",
                is_required=True,
            ),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        client = context.client
        group = (await groups.find_share_group(client, form)).group_id
        topic = form.require("topic", "The topic").strip()
        entry = await groups.find_config(client, groups.make_resource(group), TOPIC)
        exists, is_permitted = await _read_state(client, topic)
        sentences = []
        if entry.value != topic:
            await groups.check_change(
                client, groups.make_resource(group), [ConfigChange(TOPIC, topic)]
            )
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
            raise ActionError(
                f"Group {group} writes its dead letters to {topic}, which exists and permits them."
                " Choose another topic, or see the broker's log."
            )
        sentences.append("The brokers then write the letters that wait, and archive their records.")

        async def run(client: Client, _run: ActionRun) -> ActionResult:
            await _apply(client, group, topic, exists=exists, is_set=entry.value == topic)
            return ActionResult(f"Group {group} writes its dead letters to {topic}.")

        return ActionPlan(
            self.title,
            tuple(sentences),
            "Repair",
            {"group": group, "topic": topic},
            groups.make_back_link(group),
            (entry.value, exists, is_permitted),
            run,
        )


async def _read_state(client: Client, topic: str) -> tuple[bool, bool]:
    """Return whether a topic exists, and whether it may hold dead letters."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    description = (await client.admin.topics.describe([topic]))[topic]
    if isinstance(description, KafkaError):
        if description.code == ErrorCode.unknown_topic_or_partition:
            return False, False
        raise description
    entry = await groups.find_config(client, resource, ENABLED)
    return True, entry.value == "true"


async def _apply(client: Client, group: str, topic: str, *, exists: bool, is_set: bool) -> None:
    permit = ConfigChange(ENABLED, "true")
    if exists:
        await groups.change(client, ConfigResource(ConfigResourceType.TOPIC, topic), [permit])
    else:
        new = NewTopic(topic, configs={ENABLED: "true"})
        expect(await client.admin.topics.create([new]))
    if not is_set:
        await groups.change(client, groups.make_resource(group), [ConfigChange(TOPIC, topic)])
