"""`shoal tokens`: delegation tokens, short-lived credentials for jobs of a user (KIP-48)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output, timestamps
from shoal.cli.output import Format, FormatOption
from shoal.cli.resources import parse_principal
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin.security_admin import DelegationToken
from shoal.client.client import Client
from shoal.client.security.scram import DIGESTS

app = make_app("Create, renew, end and list delegation tokens.")

TokenId = Annotated[str, typer.Argument(metavar="ID", help="The id of the token.")]
Owners = Annotated[
    list[str] | None,
    typer.Option("--owner", metavar="USER", help="Only tokens of this user; may be repeated."),
]


@command(app, "create")
async def create(
    client: Client,
    output_file: Annotated[
        Path,
        typer.Option(
            "--output",
            "-O",
            metavar="FILE",
            help="The new properties file with the token, for --command-config and for other"
            " clients.",
        ),
    ],
    owner: Annotated[
        str | None,
        typer.Option(metavar="USER", help="The user that the token is for. Default: you."),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(metavar="USER", help="A user who may renew the token; may be repeated."),
    ] = None,
    max_lifetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="For example 12h or 7d. Default: the broker's."),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Create a token, and write it to a properties file that only you can read."""
    lifetime_ms = -1 if max_lifetime is None else _parse_period_ms("--max-lifetime", max_lifetime)
    descriptor = _create_file(output_file)
    try:
        token = await client.admin.tokens.create(
            owner=parse_principal(owner) if owner else None,
            renewers=[parse_principal(user) for user in renewer or ()],
            max_lifetime_ms=lifetime_ms,
        )
        with os.fdopen(os.dup(descriptor), "w") as file:
            file.write(_format_properties(token, client.cluster.settings.security.mechanism))
    except BaseException:
        output_file.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    output.print_rows(format, [_make_row(token)])


def _create_file(path: Path) -> int:
    """Create a private file before the token, which would be lost if the file failed."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CommandError(f"{path} exists already. Choose another file.", USAGE) from None
    except OSError as error:
        raise CommandError(f"cannot create {path}: {error.strerror}.", USAGE) from None


def _format_properties(token: DelegationToken, mechanism: str) -> str:
    """Return the login by the token, as Java's clients and this one read it."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return (
        f"# A delegation token of {token.owner}. It ends "
        f"{output.format_timestamp(token.expiry_ms)} unless it"
        " is renewed.\n"
        "# Add security.protocol and the settings of TLS.\n"
        f"sasl.mechanism={mechanism if mechanism in DIGESTS else 'SCRAM-SHA-512'}\n"
        f'sasl.jaas.config={module} required username="{token.token_id}"'
        f' password="{token.password.reveal()}" tokenauth="true";\n'
    )


@command(app, "list")
async def list_tokens(
    client: Client, owner: Owners = None, format: FormatOption = Format.TABLE
) -> None:
    """List the tokens that you may see: your own, those that you may renew, and others by grant."""
    owners = [parse_principal(user) for user in owner] if owner else None
    tokens = await client.admin.tokens.describe(owners)
    output.print_rows(
        format, [_make_row(token) for token in tokens], empty="There are no delegation tokens."
    )


@command(app, "renew")
async def renew(
    client: Client,
    token_id: TokenId,
    period: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="For example 12h. Default: the broker's."),
    ] = None,
) -> None:
    """Extend a token by a period from now."""
    period_ms = -1 if period is None else _parse_period_ms("--for", period)
    token = await _find_token(client, token_id)
    end = await client.admin.tokens.renew(token.hmac, period_ms)
    say(f"Token {token_id} is valid until {output.format_timestamp(end)}.")


@command(app, "expire")
async def expire(
    client: Client,
    token_id: TokenId,
    period: Annotated[
        str | None, typer.Option("--in", metavar="TIME", help="For example 1h. Default: now.")
    ] = None,
) -> None:
    """End a token now, or after a period from now."""
    period_ms = -1 if period is None else _parse_period_ms("--in", period)
    token = await _find_token(client, token_id)
    end = await client.admin.tokens.expire(token.hmac, period_ms)
    say(
        f"Token {token_id} ends {output.format_timestamp(end)}."
        if period
        else f"Ended token {token_id}."
    )


async def _find_token(client: Client, token_id: str) -> DelegationToken:
    """Return a token by its id: requests need its HMAC, which must not stand on a command line."""
    for token in await client.admin.tokens.describe():
        if token.token_id == token_id:
            return token
    raise CommandError(
        f"there is no token {token_id!r} that you may see. List them with `shoal tokens list`."
    )


def _parse_period_ms(option: str, text: str) -> int:
    period_ms = timestamps.parse_duration_ms(text)
    if period_ms is None or period_ms <= 0:
        raise CommandError(f"{option} must be a time such as 30m, 12h or 7d, not {text!r}.", USAGE)
    return period_ms


def _make_row(token: DelegationToken) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": output.format_timestamp(token.issue_ms),
        "expires": output.format_timestamp(token.expiry_ms),
        "ends": output.format_timestamp(token.max_ms),
    }
