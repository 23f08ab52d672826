"""What several actions read about a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.groups import SHARE
from shoal.client.errors import KafkaError, expect
from shoal.client.queues import lag
from shoal.console.actions.contract import ActionError
from shoal.console.render import make_link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.admin.configs import ConfigEntry
    from shoal.client.admin.groups import GroupDescription
    from shoal.client.client import Client
    from shoal.client.queues.lag import Position
    from shoal.console.actions.contract import FormData


async def find_share_group(client: Client, form: FormData) -> GroupDescription:
    """Return the share group of a form. Raises `ActionError` and `KafkaError`."""
    name = form.require("group", "The share group")
    group = expect(await client.admin.groups.describe([name]))[name]
    if group.type != SHARE:
        raise ActionError(f"Group {name!r} is a {group.type.lower()} group, not a share group.")
    return group


async def find_positions(client: Client, group: str) -> list[Position]:
    return (await lag.find_positions(client.admin, {group: SHARE})).get(group, [])


async def find_config(client: Client, resource: ConfigResource, name: str) -> ConfigEntry:
    """Return one config of a resource. Raises `ActionError` if the brokers do not have it."""
    entries = (await client.admin.configs.describe([resource], keys=[name], synonyms=True))[
        resource
    ]
    if isinstance(entries, KafkaError):
        raise entries
    if name not in entries:
        raise ActionError(f"These brokers have no {resource.type.name.lower()} config {name}.")
    return entries[name]


async def check_change(
    client: Client, resource: ConfigResource, changes: Iterable[ConfigChange]
) -> None:
    """Raise `ActionError` with the broker's sentence if it would refuse a change."""
    results = await client.admin.configs.alter({resource: list(changes)}, validate_only=True)
    for error in results.values():
        if error is not None:
            raise ActionError(f"{error}.")


async def change(client: Client, resource: ConfigResource, changes: Iterable[ConfigChange]) -> None:
    expect(await client.admin.configs.alter({resource: list(changes)}))


def make_resource(group: str) -> ConfigResource:
    return ConfigResource(ConfigResourceType.GROUP, group)


def make_back_link(group: str) -> tuple[str, str]:
    """Return the link to a group's page."""
    return make_link("group", id=group), f"Share group {group}"
