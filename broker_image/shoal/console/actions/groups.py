"""What several actions read about a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client import lag
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import KafkaError, expect
from shoal.client.groups import SHARE
from shoal.console.actions.contract import Mistake
from shoal.console.render import link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.configs import ConfigEntry
    from shoal.client.groups import Group
    from shoal.client.lag import Position
    from shoal.console.actions.contract import Given


async def share_group(client: Client, given: Given) -> Group:
    """Return the share group of a form. Raises `Mistake` and `KafkaError`."""
    name = given.required("group", "The share group")
    found = expect(await client.admin.groups.describe([name]))[name]
    if found.type != SHARE:
        raise Mistake(f"Group {name!r} is a {found.type.lower()} group, not a share group.")
    return found


async def positions(client: Client, group: str) -> list[Position]:
    return (await lag.positions(client.admin, {group: SHARE})).get(group, [])


async def config(client: Client, resource: Resource, name: str) -> ConfigEntry:
    """Return one config of a resource. Raises `Mistake` if the brokers do not have it."""
    found = (await client.admin.configs.describe([resource], keys=[name], synonyms=True))[resource]
    if isinstance(found, KafkaError):
        raise found
    if name not in found:
        raise Mistake(f"These brokers have no {resource.type.name.lower()} config {name}.")
    return found[name]


async def check_change(client: Client, resource: Resource, changes: Iterable[ConfigChange]) -> None:
    """Raise `Mistake` with the broker's sentence if it would refuse a change."""
    found = await client.admin.configs.alter({resource: list(changes)}, validate_only=True)
    for error in found.values():
        if error is not None:
            raise Mistake(f"{error}.")


async def change(client: Client, resource: Resource, changes: Iterable[ConfigChange]) -> None:
    expect(await client.admin.configs.alter({resource: list(changes)}))


def resource(group: str) -> Resource:
    return Resource(ResourceType.GROUP, group)


def back_to(group: str) -> tuple[str, str]:
    """Return the link to a group's page."""
    return link("group", id=group), f"Share group {group}"
