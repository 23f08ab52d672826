"""The content of `shoal debug bundle`: what is known about a cluster, section by section.

A section that fails does not stop the others: its error goes into the bundle.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.cli import output, redaction
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.groups import SHARE, STREAMS, GroupDescription
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import lag
from shoal.monitoring import cluster_health, scrape
from shoal.protocol.share import InFlightState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from shoal.client.client import Client

#: Resources whose configs one request describes.
_BATCH = 500
#: A section that takes longer is given up: a broker may hang.
SECTION_TIMEOUT_S = 120


async def collect(client: Client) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the sections by the names of their files, and the errors of those that failed.

    A section is a text, or an object for JSON. Secrets that a broker may have sent are not
    removed yet.
    """
    sections: dict[str, Any] = {"versions.json": _get_versions()}
    errors: dict[str, str] = {}
    for name, section in _SECTIONS.items():
        try:
            async with asyncio.timeout(SECTION_TIMEOUT_S):
                sections[name] = await section(client)
        except (ClientError, OSError, ValueError, TimeoutError) as error:
            errors[name] = str(error) or f"no answer within {SECTION_TIMEOUT_S} s"
    try:
        pages = await scrape.read_pages(client.admin)
    except ClientError as error:
        errors["metrics"] = str(error)
    else:
        for address, page in sorted(pages.items()):
            file = f"metrics/{address.rpartition('//')[2].replace(':', '-')}.txt"
            if isinstance(page, str):
                sections[file] = page
            else:
                errors[file] = str(page) or type(page).__name__
    return sections, errors


def _get_versions() -> dict[str, str]:
    return {
        "shoal": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


async def _describe_cluster(client: Client) -> dict[str, Any]:
    cluster = await client.admin.describe_cluster(fenced=True)
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": [
            asdict(broker) | {"fenced": broker.node_id in cluster.fenced}
            for broker in cluster.brokers
        ],
        "features": await client.admin.features(),
    }


async def _examine_health(client: Client) -> dict[str, Any]:
    health = await cluster_health.examine(client)
    return {"problems": health.problems, **health._asdict()}


async def _describe_quorum(client: Client) -> dict[str, Any]:
    return asdict(await client.admin.describe_quorum())


async def _describe_topics(client: Client) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic.name,
            "topic_id": output.format_topic_id(topic.topic_id),
            "internal": topic.internal,
            "partitions": [asdict(partition) for partition in topic.partitions],
        }
        for topic in (await client.admin.topics.list(internal=True)).values()
    ]


async def _read_topic_configs(client: Client) -> dict[str, Any]:
    names = await client.admin.topics.list(internal=True)
    return await _read_configs(
        client, [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    )


async def _read_group_configs(client: Client) -> dict[str, Any]:
    names = await client.admin.groups.list()
    return await _read_configs(
        client, [ConfigResource(ConfigResourceType.GROUP, name) for name in names]
    )


async def _read_broker_configs(client: Client) -> dict[str, Any]:
    cluster = await client.admin.describe_cluster()
    names = [str(broker.node_id) for broker in cluster.brokers]
    return await _read_configs(
        client, [ConfigResource(ConfigResourceType.BROKER, name) for name in names]
    )


async def _read_configs(client: Client, resources: list[ConfigResource]) -> dict[str, Any]:
    """Return the configs that differ from their defaults, without the values of secrets."""
    configs_by_name: dict[str, Any] = {}
    for start in range(0, len(resources), _BATCH):
        described = await client.admin.configs.describe(resources[start : start + _BATCH])
        for resource, entries in described.items():
            configs_by_name[resource.name] = (
                {"error": str(entries)}
                if isinstance(entries, KafkaError)
                else {
                    entry.name: redaction.HIDDEN
                    if entry.sensitive or redaction.is_secret(entry.name)
                    else entry.value
                    for entry in entries.values()
                    if not entry.is_default
                }
            )
    return configs_by_name


async def _describe_groups(client: Client) -> list[dict[str, Any]]:
    listed = await client.admin.groups.list()
    names = [name for name, group in listed.items() if group.type != STREAMS]
    described = await client.admin.groups.describe(names)
    types = {name: listed[name].type for name in names}
    positions = await lag.find_positions(client.admin, types)
    return [
        {
            "group": name,
            "type": listed[name].type,
            "state": listed[name].state,
            "error": str(group) if isinstance(group, KafkaError) else None,
            "members": [] if isinstance(group, KafkaError) else _format_members(group),
            "positions": [_format_position(p) for p in positions.get(name, ())],
        }
        for name, group in described.items()
    ]


def _format_members(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "member": m.member_id,
            "client_id": m.client_id,
            "host": m.client_host,
            "assignment": [str(partition) for partition in m.assignment],
        }
        for m in group.members
    ]


def _format_position(position: lag.Position) -> dict[str, Any]:
    return {
        "partition": str(position.partition),
        "offset": position.offset,
        "log_end_offset": position.log_end_offset,
        "lag": position.lag,
        "key_holder_offsets": position.key_holder_offsets,
    }


async def _read_share_state(client: Client) -> dict[str, Any]:
    """Return the records in flight of share groups: how many in each state, and the longest wait
    for an end of a lock. No offsets: there may be very many.
    """
    states: dict[str, Any] = {}
    for group in sorted(await client.admin.groups.list(types=[SHARE.lower()])):
        positions = (await lag.find_positions(client.admin, {group: SHARE}))[group]
        partitions = [position.partition for position in positions if position.offset is not None]
        states[group] = {
            str(partition): await _count_in_flight(client, group, partition)
            for partition in partitions
        }
    return states


async def _count_in_flight(client: Client, group: str, partition: TopicPartition) -> dict[str, Any]:
    counts: Counter[InFlightState] = Counter()
    deliveries: Counter[int] = Counter()
    members: Counter[str] = Counter()
    start: int | None = 0
    while start is not None:
        page = (await client.admin.share_groups.in_flight(group, {partition: start}))[partition]
        if isinstance(page, KafkaError):
            return {"error": str(page)}
        for entry in page.entries:
            records = entry.last_offset - entry.first_offset + 1
            counts[entry.state] += records
            deliveries[entry.delivery_count] += records
            if entry.member_id:
                members[entry.member_id] += records
        start = page.next_offset
    return {
        "records_by_state": {state.name.lower(): n for state, n in sorted(counts.items())},
        "records_by_delivery_count": {str(count): n for count, n in sorted(deliveries.items())},
        "records_by_member": dict(sorted(members.items())),
    }


async def _read_log_dirs(client: Client) -> dict[str, Any]:
    cluster = await client.admin.describe_cluster()
    dirs_by_node = await client.admin.log_dirs(broker.node_id for broker in cluster.brokers)
    return {
        str(node): [
            {
                "path": log_dir.path,
                "total_bytes": log_dir.total_bytes,
                "usable_bytes": log_dir.usable_bytes,
                "partitions": _format_sizes(log_dir.partitions.items()),
                "error": str(log_dir.error) if log_dir.error else None,
            }
            for log_dir in dirs
        ]
        for node, dirs in dirs_by_node.items()
    }


def _format_sizes(sizes: Iterable[tuple[TopicPartition, int]]) -> dict[str, int]:
    return {str(partition): size for partition, size in sorted(sizes)}


async def _list_reassignments(client: Client) -> dict[str, Any]:
    reassignments = await client.admin.reassignments()
    return {
        str(partition): asdict(reassignment)
        for partition, reassignment in sorted(reassignments.items())
    }


async def _list_transactions(client: Client) -> list[dict[str, Any]]:
    return [
        asdict(transaction) for transaction in (await client.admin.transactions.list()).values()
    ]


_SECTIONS: Mapping[str, Callable[[Client], Awaitable[Any]]] = {
    "cluster.json": _describe_cluster,
    "health.json": _examine_health,
    "quorum.json": _describe_quorum,
    "configs/brokers.json": _read_broker_configs,
    "configs/topics.json": _read_topic_configs,
    "configs/groups.json": _read_group_configs,
    "topics.json": _describe_topics,
    "reassignments.json": _list_reassignments,
    "log_dirs.json": _read_log_dirs,
    "groups.json": _describe_groups,
    "share_state.json": _read_share_state,
    "transactions.json": _list_transactions,
}
