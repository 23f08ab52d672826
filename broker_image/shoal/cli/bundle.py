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
from shoal.client import cluster_health, lag, scrape
from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError
from shoal.client.groups import SHARE, STREAMS, Group
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
    found: dict[str, Any] = {"versions.json": _versions()}
    errors: dict[str, str] = {}
    for name, section in _SECTIONS.items():
        try:
            async with asyncio.timeout(SECTION_TIMEOUT_S):
                found[name] = await section(client)
        except (ClientError, OSError, ValueError, TimeoutError) as error:
            errors[name] = str(error) or f"no answer within {SECTION_TIMEOUT_S} s"
    try:
        pages = await scrape.pages(client.admin)
    except ClientError as error:
        errors["metrics"] = str(error)
    else:
        for address, page in sorted(pages.items()):
            file = f"metrics/{address.rpartition('//')[2].replace(':', '-')}.txt"
            if isinstance(page, str):
                found[file] = page
            else:
                errors[file] = str(page) or type(page).__name__
    return found, errors


def _versions() -> dict[str, str]:
    return {
        "shoal": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


async def _cluster(client: Client) -> dict[str, Any]:
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


async def _health(client: Client) -> dict[str, Any]:
    found = await cluster_health.examine(client)
    return {"problems": found.problems, **found._asdict()}


async def _quorum(client: Client) -> dict[str, Any]:
    return asdict(await client.admin.describe_quorum())


async def _topics(client: Client) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic.name,
            "topic_id": output.topic_id(topic.topic_id),
            "internal": topic.internal,
            "partitions": [asdict(partition) for partition in topic.partitions],
        }
        for topic in (await client.admin.topics.list(internal=True)).values()
    ]


async def _topic_configs(client: Client) -> dict[str, Any]:
    names = await client.admin.topics.list(internal=True)
    return await _configs(client, [Resource(ResourceType.TOPIC, name) for name in names])


async def _group_configs(client: Client) -> dict[str, Any]:
    names = await client.admin.groups.list()
    return await _configs(client, [Resource(ResourceType.GROUP, name) for name in names])


async def _broker_configs(client: Client) -> dict[str, Any]:
    cluster = await client.admin.describe_cluster()
    names = [str(broker.node_id) for broker in cluster.brokers]
    return await _configs(client, [Resource(ResourceType.BROKER, name) for name in names])


async def _configs(client: Client, resources: list[Resource]) -> dict[str, Any]:
    """Return the configs that differ from their defaults, without the values of secrets."""
    found: dict[str, Any] = {}
    for at in range(0, len(resources), _BATCH):
        some = await client.admin.configs.describe(resources[at : at + _BATCH])
        for resource, entries in some.items():
            found[resource.name] = (
                {"error": str(entries)}
                if isinstance(entries, KafkaError)
                else {
                    one.name: redaction.HIDDEN
                    if one.sensitive or redaction.is_secret(one.name)
                    else one.value
                    for one in entries.values()
                    if not one.is_default
                }
            )
    return found


async def _groups(client: Client) -> list[dict[str, Any]]:
    listed = await client.admin.groups.list()
    wanted = [name for name, one in listed.items() if one.type != STREAMS]
    described = await client.admin.groups.describe(wanted)
    types = {name: listed[name].type for name in wanted}
    positions = await lag.positions(client.admin, types)
    return [
        {
            "group": name,
            "type": listed[name].type,
            "state": listed[name].state,
            "error": str(one) if isinstance(one, KafkaError) else None,
            "members": [] if isinstance(one, KafkaError) else _members(one),
            "positions": [_position(p) for p in positions.get(name, ())],
        }
        for name, one in described.items()
    ]


def _members(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "member": m.member_id,
            "client_id": m.client_id,
            "host": m.client_host,
            "assignment": [str(where) for where in m.assignment],
        }
        for m in group.members
    ]


def _position(position: lag.Position) -> dict[str, Any]:
    return {
        "partition": str(position.where),
        "offset": position.offset,
        "log_end_offset": position.log_end_offset,
        "lag": position.lag,
        "key_holder_offsets": position.key_holder_offsets,
    }


async def _share_state(client: Client) -> dict[str, Any]:
    """Return the records in flight of share groups: how many in each state, and the longest wait
    for an end of a lock. No offsets: there may be very many.
    """
    found: dict[str, Any] = {}
    for group in sorted(await client.admin.groups.list(types=[SHARE.lower()])):
        positions = (await lag.positions(client.admin, {group: SHARE}))[group]
        partitions = [one.where for one in positions if one.offset is not None]
        found[group] = {str(where): await _in_flight(client, group, where) for where in partitions}
    return found


async def _in_flight(client: Client, group: str, where: TopicPartition) -> dict[str, Any]:
    counts: Counter[InFlightState] = Counter()
    deliveries: Counter[int] = Counter()
    members: Counter[str] = Counter()
    start: int | None = 0
    while start is not None:
        page = (await client.admin.share_groups.in_flight(group, {where: start}))[where]
        if isinstance(page, KafkaError):
            return {"error": str(page)}
        for one in page.entries:
            records = one.last_offset - one.first_offset + 1
            counts[one.state] += records
            deliveries[one.delivery_count] += records
            if one.member_id:
                members[one.member_id] += records
        start = page.next_offset
    return {
        "records_by_state": {state.name.lower(): n for state, n in sorted(counts.items())},
        "records_by_delivery_count": {str(count): n for count, n in sorted(deliveries.items())},
        "records_by_member": dict(sorted(members.items())),
    }


async def _log_dirs(client: Client) -> dict[str, Any]:
    cluster = await client.admin.describe_cluster()
    found = await client.admin.log_dirs(broker.node_id for broker in cluster.brokers)
    return {
        str(node): [
            {
                "path": one.path,
                "total_bytes": one.total_bytes,
                "usable_bytes": one.usable_bytes,
                "partitions": _bytes(one.partitions.items()),
                "error": str(one.error) if one.error else None,
            }
            for one in dirs
        ]
        for node, dirs in found.items()
    }


def _bytes(sizes: Iterable[tuple[TopicPartition, int]]) -> dict[str, int]:
    return {str(where): size for where, size in sorted(sizes)}


async def _reassignments(client: Client) -> dict[str, Any]:
    found = await client.admin.reassignments()
    return {str(where): asdict(one) for where, one in sorted(found.items())}


async def _transactions(client: Client) -> list[dict[str, Any]]:
    return [asdict(one) for one in (await client.admin.transactions.list()).values()]


_SECTIONS: Mapping[str, Callable[[Client], Awaitable[Any]]] = {
    "cluster.json": _cluster,
    "health.json": _health,
    "quorum.json": _quorum,
    "configs/brokers.json": _broker_configs,
    "configs/topics.json": _topic_configs,
    "configs/groups.json": _group_configs,
    "topics.json": _topics,
    "reassignments.json": _reassignments,
    "log_dirs.json": _log_dirs,
    "groups.json": _groups,
    "share_state.json": _share_state,
    "transactions.json": _transactions,
}
