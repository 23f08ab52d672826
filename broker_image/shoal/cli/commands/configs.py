"""`shoal configs`: show and change configs of topics, groups, brokers and client metrics."""

from __future__ import annotations

import difflib
from enum import StrEnum
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.client_properties import parse_pairs
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.queues import queue_settings

app = make_app("Show and change configs of topics, groups and brokers.")


class ResourceKind(StrEnum):
    """The types of resource that have configs."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    CLIENT_METRICS = "client-metrics"

    @property
    def type(self) -> ConfigResourceType:
        return ConfigResourceType[self.name]


KindArgument = Annotated[ResourceKind, typer.Argument(help="The type of resource.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the topic, group or subscription, or a broker's node id. 'default' is all"
        " brokers.",
    ),
]


def _make_resource(kind: ResourceKind, name: str) -> ConfigResource:
    if kind is ResourceKind.BROKER and name == "default":
        return ConfigResource(kind.type, "")
    if kind is ResourceKind.BROKER and not name.isdigit():
        raise CommandError(f"a broker's name is its node id or 'default', not {name!r}.", USAGE)
    return ConfigResource(kind.type, name)


@command(app, "list")
async def list_resources(
    client: Client,
    kind: Annotated[ResourceKind | None, typer.Argument(help="Only this type.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List all resources that have configs."""
    resources = await client.admin.configs.resources([kind.type] if kind else ())
    rows = [{"type": r.type.name.lower().replace("_", "-"), "name": r.name} for r in resources]
    output.print_rows(format, rows, empty="No resource has configs.")


@command(app, "describe")
async def describe(
    client: Client,
    kind: KindArgument,
    name: Name,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="CONFIG", help="Names of configs. Default: all.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only configs that differ from the default.")
    ] = False,
    documentation: Annotated[
        bool, typer.Option("--documentation", help="Include each config's description.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show effective configs and where each value comes from."""
    resource = _make_resource(kind, name)
    if kind is ResourceKind.TOPIC:
        await client.cluster.get_topic(name)
    entries = expect(
        await client.admin.configs.describe([resource], keys=keys, documentation=documentation)
    )[resource]
    unknown = [key for key in keys or () if key not in entries]
    if unknown:
        raise CommandError(
            f"{resource} has no config {unknown[0]!r}. Omit the name to see all configs."
        )
    rows = [
        _make_row(entry, documentation)
        for _, entry in sorted(entries.items())
        if not (changed and entry.is_default)
    ]
    output.print_rows(
        format,
        rows,
        empty="All configs have their default values.",
        expendable=["read_only", "source"],
    )


def _make_row(entry: ConfigEntry, documentation: bool) -> dict[str, str | bool | None]:
    try:
        source = ConfigSource(entry.source).name.removesuffix("_CONFIG").lower().replace("_", " ")
    except ValueError:
        source = str(entry.source)
    row: dict[str, str | bool | None] = {
        "config": entry.name,
        "value": "(sensitive)" if entry.sensitive else entry.value,
        "source": source,
        "read_only": entry.read_only,
    }
    if documentation:
        row["documentation"] = entry.documentation
    return row


@command(app, "set")
async def set_configs(
    client: Client,
    kind: KindArgument,
    name: Name,
    values: Annotated[
        list[str], typer.Argument(metavar="CONFIG=VALUE", help="The configs to set.")
    ],
    append: Annotated[
        bool, typer.Option("--append", help="Add to lists instead of replacing them.")
    ] = False,
) -> None:
    """Set configs, such as: shoal configs set group tasks share.delivery.count.limit=10."""
    try:
        new_values = parse_pairs(values, "set")
    except ValueError as error:
        raise CommandError(f"{error}.", USAGE) from None
    operation = AlterOperation.APPEND if append else AlterOperation.SET
    changes = [ConfigChange(key, value, operation) for key, value in new_values.items()]
    resource = _make_resource(kind, name)
    is_unseen = kind is ResourceKind.GROUP and await _is_unseen(client, name)
    await _alter(client, resource, changes)
    say(f"Set {', '.join(new_values)} of {kind} {name}.")
    if is_unseen:
        warn(await _format_unseen(client, name))


async def _is_unseen(client: Client, group: str) -> bool:
    try:
        return await queue_settings.is_unseen(client.admin, group)
    except KafkaError:
        return False  # A user who may not see groups may still set configs.


async def _format_unseen(client: Client, group: str) -> str:
    """Return the warning about a group that has only settings, with groups of a similar name."""
    names = [*await client.admin.groups.list()]
    similar = difflib.get_close_matches(group, names, n=3)
    hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
    return (
        f"nobody has used group {group} yet. The settings apply once its first member joins.{hint}"
    )


@command(app, "unset")
async def unset_configs(
    client: Client,
    kind: KindArgument,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="CONFIG", help="The configs to reset.")],
) -> None:
    """Restore the defaults of configs."""
    changes = [ConfigChange(key, None, AlterOperation.DELETE) for key in keys]
    await _alter(client, _make_resource(kind, name), changes)
    say(f"Reset {', '.join(keys)} of {kind} {name}.")


async def _alter(client: Client, resource: ConfigResource, changes: list[ConfigChange]) -> None:
    if resource.type == ConfigResourceType.TOPIC:
        await client.cluster.get_topic(resource.name)
    expect(await client.admin.configs.alter({resource: changes}))
