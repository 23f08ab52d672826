"""`shoal quotas`: limits on the rates of users, clients and addresses."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli import output
from shoal.cli.client_properties import pairs
from shoal.cli.output import Format, FormatOption
from shoal.cli.session import USAGE, Failed, command, new_app
from shoal.cli.terminal import say
from shoal.client import quotas, remedies
from shoal.client.client import Client
from shoal.client.quotas import CLIENT_ID, IP, IP_KEYS, KEYS, USER, Entity

app = new_app("List, set and remove quotas of users, clients and addresses.")


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

    def named(self) -> dict[str, str | None]:
        """Return the types and names. Raises `Failed` if they cannot be combined."""
        found: dict[str, str | None] = {}
        for kind, name, is_default in (
            (USER, self.user, self.user_defaults),
            (CLIENT_ID, self.client, self.client_defaults),
            (IP, self.ip, self.ip_defaults),
        ):
            if name is not None and is_default:
                raise Failed(f"Name a {kind}, or the default of all, but not both.", USAGE)
            if name is not None or is_default:
                found[kind] = name
        if IP in found and len(found) > 1:
            raise Failed("--ip cannot be combined with a user or a client.", USAGE)
        return found

    def entity(self) -> Entity:
        """Return what the quota is for. Raises `Failed` without an option."""
        found = self.named()
        if not found:
            raise Failed("Name what the quota is for: --user, --client or --ip.", USAGE)
        return tuple(sorted(found.items(), key=lambda pair: pair[0]))


@command(app, "list")
async def list_quotas(
    client: Client, of: EntityOptions = EntityOptions(), format: FormatOption = Format.TABLE
) -> None:
    """List quotas: all, or those of a user, a client or an address."""
    found = await client.admin.quotas.describe(of.named())
    rows = [
        {
            "for": quotas.text(entity),
            "entity": dict(entity),
            "quota": key,
            "value": _number(value),
        }
        for entity, values in found.items()
        for key, value in sorted(values.items())
    ]
    empty = "There are no such quotas. Set one with `shoal quotas set`."
    output.rows(format, rows, ("for", "quota", "value"), empty=empty)


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
    entity = of.entity()
    known = IP_KEYS if entity[0][0] == IP else KEYS
    wanted: dict[str, float | None] = {}
    for key, value in pairs(values, "QUOTA").items():
        if key not in known:
            raise Failed(
                f"{key} is not a quota of {quotas.text(entity)}. Use {' or '.join(known)}.", USAGE
            )
        wanted[key] = _parsed(key, value)
    await _alter(client, entity, wanted)
    say(f"Set {', '.join(wanted)} of {quotas.text(entity)}.")


@command(app, "remove")
async def remove(
    client: Client,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[QUOTA...]", help="Default: all quotas of it.")
    ] = None,
    of: EntityOptions = EntityOptions(),
) -> None:
    """Remove quotas of a user, a client, both, or an address."""
    entity = of.entity()
    have = (await client.admin.quotas.describe(of.named())).get(entity, {})
    missing = [key for key in keys or () if key not in have]
    if missing or not have:
        what = ", ".join(missing) or "quotas"
        raise Failed(f"There are no {what} of {quotas.text(entity)}. See `shoal quotas list`.")
    wanted = keys or sorted(have)
    await _alter(client, entity, dict.fromkeys(wanted))
    say(f"Removed {', '.join(wanted)} of {quotas.text(entity)}.")


async def _alter(client: Client, entity: Entity, values: dict[str, Any]) -> None:
    error = (await client.admin.quotas.alter({entity: values}))[entity]
    if error:
        raise Failed(remedies.remedy(error))


def _parsed(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise Failed(f"{key} must be a number above 0, not {text!r}.", USAGE)
    return value


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value
