"""`shoal quotas`: limits on the rates of users, clients and addresses."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli import output
from shoal.cli.client_properties import parse_pairs
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin import quotas
from shoal.client.admin.quotas import CLIENT_ID, IP, IP_KEYS, KEYS, USER, Entity
from shoal.client.client import Client
from shoal.monitoring import remedies

app = make_app("List, set and remove quotas of users, clients and addresses.")


class EntityOptions(NamedTuple):
    """The options that name what a quota is for, as in Kafka's `kafka-configs`."""

    user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A user's name, without User: (CN=ann, or ann)."),
    ] = None
    client: Annotated[str | None, typer.Option(metavar="ID", help="A client id.")] = None
    ip: Annotated[str | None, typer.Option(metavar="ADDRESS", help="An IP address.")] = None
    user_defaults: Annotated[
        bool, typer.Option("--user-defaults", help="All users without a quota of their own.")
    ] = False
    client_defaults: Annotated[
        bool, typer.Option("--client-defaults", help="All client ids without their own.")
    ] = False
    ip_defaults: Annotated[
        bool, typer.Option("--ip-defaults", help="All addresses without their own.")
    ] = False

    def collect_names(self) -> dict[str, str | None]:
        """Return the types and names. Raises `CommandError` if they cannot be combined."""
        names: dict[str, str | None] = {}
        for kind, name, is_default in (
            (USER, self.user, self.user_defaults),
            (CLIENT_ID, self.client, self.client_defaults),
            (IP, self.ip, self.ip_defaults),
        ):
            if name is not None and is_default:
                raise CommandError(f"Name a {kind}, or the default of all, but not both.", USAGE)
            if name is not None or is_default:
                names[kind] = name
        if IP in names and len(names) > 1:
            raise CommandError("--ip cannot be combined with a user or a client.", USAGE)
        return names

    def make_entity(self) -> Entity:
        """Return what the quota is for. Raises `CommandError` without an option."""
        names = self.collect_names()
        if not names:
            raise CommandError("Name what the quota is for: --user, --client or --ip.", USAGE)
        return tuple(sorted(names.items(), key=lambda pair: pair[0]))


@command(app, "list")
async def list_quotas(
    client: Client, of: EntityOptions = EntityOptions(), format: FormatOption = Format.TABLE
) -> None:
    """List quotas: all, or those of a user, a client or an address."""
    quotas_by_entity = await client.admin.quotas.describe(of.collect_names())
    rows = [
        {
            "for": quotas.format_entity(entity),
            "entity": dict(entity),
            "quota": key,
            "value": _to_number(value),
        }
        for entity, values in quotas_by_entity.items()
        for key, value in sorted(values.items())
    ]
    empty = "There are no such quotas. Set one with `shoal quotas set`."
    output.print_rows(format, rows, ("for", "quota", "value"), empty=empty)


@command(app, "set")
async def set_quotas(
    client: Client,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=VALUE...",
            help=f"{', '.join((*KEYS, *IP_KEYS))}. Rates are bytes, mutations or connections a"
            " second for each broker; request_percentage is of one thread.",
        ),
    ],
    of: EntityOptions = EntityOptions(),
) -> None:
    """Set quotas of a user, a client, both, or an address."""
    entity = of.make_entity()
    allowed_keys = IP_KEYS if entity[0][0] == IP else KEYS
    new_values: dict[str, float | None] = {}
    for key, value in parse_pairs(values, "QUOTA").items():
        if key not in allowed_keys:
            raise CommandError(
                f"{key} is not a quota of {quotas.format_entity(entity)}. Use "
                f"{' or '.join(allowed_keys)}.",
                USAGE,
            )
        new_values[key] = _parse_value(key, value)
    await _alter(client, entity, new_values)
    say(f"Set {', '.join(new_values)} of {quotas.format_entity(entity)}.")


@command(app, "remove")
async def remove(
    client: Client,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA...]", help="Default: all quotas of it.")
    ] = None,
    of: EntityOptions = EntityOptions(),
) -> None:
    """Remove quotas of a user, a client, both, or an address."""
    entity = of.make_entity()
    have = (await client.admin.quotas.describe(of.collect_names())).get(entity, {})
    missing = [key for key in keys or () if key not in have]
    if missing or not have:
        lacking = ", ".join(missing) or "quotas"
        raise CommandError(
            f"There are no {lacking} of {quotas.format_entity(entity)}. See `shoal quotas list`."
        )
    selected_keys = keys or sorted(have)
    await _alter(client, entity, dict.fromkeys(selected_keys))
    say(f"Removed {', '.join(selected_keys)} of {quotas.format_entity(entity)}.")


async def _alter(client: Client, entity: Entity, values: dict[str, Any]) -> None:
    error = (await client.admin.quotas.alter({entity: values}))[entity]
    if error:
        raise CommandError(remedies.format_remedy(error))


def _parse_value(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise CommandError(f"{key} must be a number above 0, not {text!r}.", USAGE)
    return value


def _to_number(value: float) -> float | int:
    return int(value) if value.is_integer() else value
