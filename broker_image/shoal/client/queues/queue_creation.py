"""The creation of a work queue: its topic, the topic of its dead letters, and its share group with
settings and first positions.

`make_plan` looks at what exists and changes nothing. A queue that exists already is completed, but
a value that somebody has set otherwise is a difference, which stays: creating a queue never alters
one that is at work. `check` asks the brokers whether they accept the plan before `apply` begins, so
that a refusal leaves nothing half-made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.groups import SHARE
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import queue_settings, resets
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from shoal.client.admin.admin import Admin
    from shoal.client.admin.configs import ConfigEntry
    from shoal.client.queues.queue_settings import QueueSettings

_PREFIX = "errors.deadletterqueue.topic.name.prefix"
_DEFAULT_PREFIX = "dlq."


@dataclass(frozen=True, slots=True)
class NewQueue:
    """A queue to create. -1 uses the broker's default partition count or replication factor."""

    topic: str
    group: str
    settings: QueueSettings
    partitions: int = -1
    replication_factor: int = -1


@dataclass(slots=True)
class QueuePlan:
    """What a queue lacks, and what it has otherwise than asked for.

    `differences` are sentences with the command that makes the change. `kept` are sentences about
    what exists already.
    """

    queue: NewQueue
    topics: list[NewTopic] = field(default_factory=list)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    #: Whether the group has no members, so that its first positions can be set.
    sets_positions: bool = True
    differences: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


async def find_dead_letter_topic(admin: Admin, topic: str) -> str:
    """Return the name for the dead letters of a topic, with the prefix that the brokers ask for."""
    node = min(admin.cluster.brokers, default=-1)
    resource = ConfigResource(ConfigResourceType.BROKER, str(node))
    try:
        entries = (await admin.configs.describe([resource], keys=[_PREFIX]))[resource]
    except ClientError:
        return _DEFAULT_PREFIX + topic
    if isinstance(entries, KafkaError) or _PREFIX not in entries:
        return _DEFAULT_PREFIX + topic
    return (entries[_PREFIX].value or "") + topic


async def make_plan(admin: Admin, queue: NewQueue) -> QueuePlan:
    """Return what is missing. Raises `KafkaError` if this may not be seen."""
    plan = QueuePlan(queue)
    await _plan_topic(admin, plan, queue.topic, {}, queue.partitions)
    letters = queue.settings.dead_letter_topic
    if letters is not None:
        enabled = {queue_settings.DEAD_LETTERS_ENABLED: "true"}
        await _plan_topic(admin, plan, letters, enabled, -1)
    await _plan_group(admin, plan)
    return plan


async def _plan_topic(
    admin: Admin, plan: QueuePlan, name: str, configs: Mapping[str, str], partitions: int
) -> None:
    topic = (await admin.topics.describe([name]))[name]
    if isinstance(topic, KafkaError):
        if topic.code is not ErrorCode.unknown_topic_or_partition:
            raise topic
        plan.topics.append(NewTopic(name, partitions, plan.queue.replication_factor, configs))
        return
    count = len(topic.partitions)
    if partitions not in (-1, count):
        remedy = (
            f"To add some: shoal topics alter {name} --partitions {partitions}"
            if partitions > count
            else "A topic keeps its partitions: leave out --partitions, or use another topic"
        )
        plan.differences.append(
            f"Topic {name} has {_format_partitions(count)}, not {partitions}. {remedy}."
        )
    _plan_configs(
        plan,
        queue_settings.make_topic(name),
        await queue_settings.read_configs(admin, queue_settings.make_topic(name))
        if configs
        else {},
        configs,
    )
    plan.kept.append(f"Topic {name} exists already, with {_format_partitions(count)}.")


async def _plan_group(admin: Admin, plan: QueuePlan) -> None:
    name = plan.queue.group
    listing = (await admin.groups.list()).get(name)
    if listing is not None and listing.type != SHARE:
        plan.differences.append(
            f"Group {name} is a {listing.type.lower()} group, and a queue needs a share group."
            " Choose another --group."
        )
        return
    plan.sets_positions = listing is None or listing.state == "Empty"
    resource = queue_settings.make_group(name)
    configs = await queue_settings.read_configs(admin, resource)
    desired = plan.queue.settings.build_group_configs()
    for config in queue_settings.find_unknown(configs, desired):
        plan.differences.append(f"The brokers have no group config {config}.")
    _plan_configs(plan, resource, configs, desired)
    start = {queue_settings.RESET: queue_settings.FIRST_POSITION}
    if missing := queue_settings.find_unset(configs, start):
        plan.configs.setdefault(resource, {}).update(missing)
    elif resource not in plan.configs:
        plan.kept.append(f"Group {name} has these settings already.")


def _plan_configs(
    plan: QueuePlan,
    resource: ConfigResource,
    configs: Mapping[str, ConfigEntry],
    desired: Mapping[str, str],
) -> None:
    kind = resource.type.name.lower()
    for name, (current, value) in queue_settings.find_different(configs, desired).items():
        plan.differences.append(
            f"{kind.capitalize()} {resource.name} has {name}={current}, not {value}. To change it:"
            f" shoal configs set {kind} {resource.name} {name}={value}."
        )
    if missing := queue_settings.find_unset(configs, desired):
        plan.configs[resource] = missing


async def check(admin: Admin, plan: QueuePlan) -> None:
    """Ask the brokers whether they accept the plan. Raises their `KafkaError`."""
    if plan.topics:
        expect(await admin.topics.create(plan.topics, validate_only=True))
    for resource, values in plan.configs.items():
        await queue_settings.set_configs(admin, resource, values, validate_only=True)


async def apply(admin: Admin, plan: QueuePlan) -> AsyncIterator[str]:
    """Make what is missing, and yield a sentence after each step. Raises `KafkaError`; what was
    yielded before is made."""
    for name, created in (await admin.topics.create(plan.topics) if plan.topics else {}).items():
        if isinstance(created, KafkaError):
            raise created
        yield f"Created topic {name} with {_format_partitions(created.partitions)}."
    for resource, values in plan.configs.items():
        await queue_settings.set_configs(admin, resource, values)
        pairs = ", ".join(f"{name}={value}" for name, value in values.items())
        yield f"Set {pairs} of {resource.type.name.lower()} {resource.name}."
    if plan.sets_positions and await _set_first_positions(admin, plan.queue):
        yield f"Group {plan.queue.group} starts at the earliest record of {plan.queue.topic}."


async def _set_first_positions(admin: Admin, queue: NewQueue) -> bool:
    """Set the positions that the group lacks, as the operator does, so that the group exists and
    has a lag before its first member joins. Return whether any was missing."""
    topic = expect(await admin.topics.describe([queue.topic]))[queue.topic]
    partitions = [TopicPartition(queue.topic, p.index) for p in topic.partitions]
    group_offsets = (await admin.share_groups.offsets([queue.group]))[queue.group]
    if isinstance(group_offsets, KafkaError):
        if group_offsets.code is not ErrorCode.group_id_not_found:
            raise group_offsets
        group_offsets = {}
    missing = [
        partition
        for partition in partitions
        if isinstance(have := group_offsets.get(partition), KafkaError | None)
        or have.start_offset < 0
    ]
    if not missing:
        return False
    target = resets.ResetTarget(spec=OffsetSpec.EARLIEST)
    offsets = await resets.plan(admin, missing, {}, target)
    expect(await admin.share_groups.alter_offsets(queue.group, offsets))
    return True


def _format_partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
