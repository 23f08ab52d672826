"""`shoal configs`: show and change configs of topics, groups, brokers and client metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.client_properties import pairs
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, new_app
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.configs import (
    AlterOperation,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    Resource,
    ResourceType,
)
from shoal.client.errors import expect

app = new_app("Show and change configs of topics, groups and brokers.")


class Kind(StrEnum):
    """The types of resource that have configs."""

    TOPIC = "topic"
    GROUP = "group"
    BROKER = "broker"
    CLIENT_METRICS = "client-metrics"

    @property
    def type(self) -> ResourceType:
        return ResourceType[self.name]


KindArgument = Annotated[Kind, typer.Argument(help="The type of resource.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the topic, group or subscription, or a broker's node id. 'default' is all"
        " brokers.",
    ),
]


def _resource(kind: Kind, name: str) -> Resource:
    if kind is Kind.BROKER and name == "default":
        return Resource(kind.type, "")
    if kind is Kind.BROKER and not name.isdigit():
        raise Failed(f"a broker's name is its node id or 'default', not {name!r}.", USAGE)
    return Resource(kind.type, name)


@command(app, "list")
async def list_resources(
    client: Client,
    kind: Annotated[Kind | None, typer.Argument(help="Only this type.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List all resources that have configs."""
    found = await client.admin.configs.resources([kind.type] if kind else ())
    rows = [{"type": r.type.name.lower().replace("_", "-"), "name": r.name} for r in found]
    output.rows(format, rows, empty="No resource has configs.")


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
    resource = _resource(kind, name)
    if kind is Kind.TOPIC:
        await client.cluster.topic(name)
    found = expect(
        await client.admin.configs.describe([resource], keys=keys, documentation=documentation)
    )[resource]
    unknown = [key for key in keys or () if key not in found]
    if unknown:
        raise Failed(f"{resource} has no config {unknown[0]!r}. Omit the name to see all configs.")
    rows = [
        _row(entry, documentation)
        for _, entry in sorted(found.items())
        if not (changed and entry.is_default)
    ]
    output.rows(
        format,
        rows,
        empty="All configs have their default values.",
        expendable=["read_only", "source"],
    )


def _row(entry: ConfigEntry, documentation: bool) -> dict[str, str | bool | None]:
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
        wanted = pairs(values, "set")
    except ValueError as error:
        raise Failed(f"{error}.", USAGE) from None
    operation = AlterOperation.APPEND if append else AlterOperation.SET
    changes = [ConfigChange(key, value, operation) for key, value in wanted.items()]
    await _alter(client, _resource(kind, name), changes)
    say(f"Set {', '.join(wanted)} of {kind} {name}.")


@command(app, "unset")
async def unset_configs(
    client: Client,
    kind: KindArgument,
    name: Name,
    keys: Annotated[list[str], typer.Argument(metavar="CONFIG", help="The configs to reset.")],
) -> None:
    """Restore the defaults of configs."""
    changes = [ConfigChange(key, None, AlterOperation.DELETE) for key in keys]
    await _alter(client, _resource(kind, name), changes)
    say(f"Reset {', '.join(keys)} of {kind} {name}.")


async def _alter(client: Client, resource: Resource, changes: list[ConfigChange]) -> None:
    if resource.type == ResourceType.TOPIC:
        await client.cluster.topic(resource.name)
    expect(await client.admin.configs.alter({resource: changes}))
