"""`shoal acls`: access control entries, which decide what users may do."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from shoal.cli import output, prompts
from shoal.cli.output import Format, FormatOption
from shoal.cli.resources import (
    OperationName,
    Resource,
    ResourceOptions,
    principal,
    row,
    sentence,
    word,
)
from shoal.cli.session import USAGE, Failed, command, new_app
from shoal.cli.terminal import say
from shoal.client import remedies
from shoal.client.client import Client
from shoal.client.errors import KafkaError
from shoal.client.security_admin import AclFilter
from shoal.security.acls import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.requirements import OPERATIONS
from shoal.security.short_forms import CONSUMER, PRODUCER

if TYPE_CHECKING:
    from shoal.security.short_forms import Form

T = TypeVar("T")
app = new_app("List, add and remove access control entries.")

Principals = Annotated[
    list[str] | None,
    typer.Option(
        "--principal",
        "-p",
        metavar="USER",
        help="A user, such as ann, User:CN=ann, or '*' for all. May be repeated.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="An IP address, or '*' for all."),
]


class OperationOptions(NamedTuple):
    """The options that name operations, singly or by what a kind of client needs."""

    operation: Annotated[
        list[OperationName] | None,
        typer.Option(
            "--operation",
            metavar="OPERATION",
            case_sensitive=False,
            help=f"{', '.join(OperationName)}. May be repeated.",
        ),
    ] = None
    producer: Annotated[
        bool,
        typer.Option(
            "--producer",
            help="What a producer needs: write, describe and create on topics; write and describe"
            " on transactional ids.",
        ),
    ] = False
    consumer: Annotated[
        bool,
        typer.Option(
            "--consumer",
            help="What a consumer needs: read and describe on topics, read on groups.",
        ),
    ] = False
    share_consumer: Annotated[
        bool,
        typer.Option(
            "--share-consumer",
            help="What a share consumer needs: read and describe on topics, read on groups.",
        ),
    ] = False

    def forms(self) -> list[Form]:
        """Return what the named kinds of clients need."""
        is_consumer = self.consumer or self.share_consumer
        return [PRODUCER] * self.producer + [CONSUMER] * is_consumer

    def on(self, resource: Resource | None) -> list[Operation]:
        """Return the operations of an entry for a resource. Raises `Failed` for one that it
        lacks."""
        found = [name.operation for name in self.operation or ()]
        if resource is not None:
            for form in self.forms():
                found += form.get(resource.type, ())
            _check_operations(resource, found)
            if self.forms() and not found:
                raise Failed(
                    f"neither producers nor consumers need an entry for {resource}."
                    " Name an --operation.",
                    USAGE,
                )
        return list(dict.fromkeys(found))


def _check_operations(resource: Resource, operations: list[Operation]) -> None:
    known = (Operation.ALL, *OPERATIONS[resource.type])
    for one in operations:
        if one not in known:
            raise Failed(
                f"{word(one)} is not an operation on {resource}. Use one of"
                f" {', '.join(map(word, known))}.",
                USAGE,
            )


@command(app, "list")
async def list_acls(
    client: Client,
    named: ResourceOptions,
    principals: Principals = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List entries: all, those of users, or those that apply to resources.

    Entries apply to a resource by its name, by a prefix, or by '*'. --prefixed lists only those
    with the given prefix.
    """
    wanted = named.resources()
    pattern = PatternType.PREFIXED if named.prefixed else PatternType.MATCH
    filters = [
        AclFilter(
            resource.type if resource else ResourceType.ANY,
            resource.name if resource else None,
            pattern if resource or named.prefixed else PatternType.ANY,
            who,
        )
        for resource in _or_any(wanted)
        for who in _or_any(map(principal, principals or ()))
    ]
    found = {acl: None for one in filters for acl in await client.admin.acls.describe(one)}
    rows = [row(acl) for acl in sorted(found, key=_order)]
    output.rows(format, rows, empty="No access control entry matches.")


@command(app, "add")
async def add(
    client: Client,
    named: ResourceOptions,
    operations: OperationOptions,
    principals: Principals = None,
    deny: Annotated[bool | None, typer.Option("--deny/--allow", help="Default: --allow.")] = None,
    host: Hosts = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add entries, such as: shoal acls add -p ann --share-consumer -t orders -g packers."""
    wanted = named.resources()
    if not principals:
        raise Failed("name a user with --principal.", USAGE)
    if not wanted:
        raise Failed("name a resource, for example with --topic, --group or --cluster.", USAGE)
    if not operations.operation and not operations.forms():
        raise Failed(
            "name an --operation, or use --producer, --consumer or --share-consumer.", USAGE
        )
    acls = [
        Acl(
            resource.type,
            resource.name,
            PatternType.PREFIXED if named.prefixed else PatternType.LITERAL,
            principal(who),
            where,
            one,
            Permission.DENY if deny else Permission.ALLOW,
        )
        for resource, who, where in itertools.product(wanted, principals, host or [WILDCARD])
        for one in operations.on(resource)
    ]
    results = await client.admin.acls.create(acls)
    added = [acl for acl, error in results.items() if error is None]
    if format is Format.JSON:
        output.rows(format, [row(acl) for acl in added])
    else:
        for acl in added:
            say(f"Added: {sentence(acl)}.")
    _fail_for(error for error in results.values() if error is not None)


@command(app, "remove")
async def remove(
    client: Client,
    named: ResourceOptions,
    operations: OperationOptions,
    principals: Principals = None,
    deny: Annotated[
        bool | None, typer.Option("--deny/--allow", help="Default: entries of both kinds.")
    ] = None,
    host: Hosts = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Remove the entries that match all given options, such as: shoal acls remove -p ann.

    Names are those of entries: `-t orders` does not remove an entry for the prefix `ord`.
    """
    wanted = named.resources()
    if not principals and not wanted:
        raise Failed("name a user with --principal, or a resource such as --topic.", USAGE)
    if operations.forms() and not wanted:
        raise Failed("--producer and --consumer need --topic, --group or the like.", USAGE)
    permission = Permission.ANY
    if deny is not None:
        permission = Permission.DENY if deny else Permission.ALLOW
    pattern = PatternType.PREFIXED if named.prefixed else PatternType.LITERAL
    filters = [
        AclFilter(
            resource.type if resource else ResourceType.ANY,
            resource.name if resource else None,
            pattern if resource or named.prefixed else PatternType.ANY,
            who,
            where,
            one,
            permission,
        )
        for resource, who, where in itertools.product(
            _or_any(wanted), _or_any(map(principal, principals or ())), _or_any(host or ())
        )
        for one in operations.on(resource) or [Operation.ANY]
    ]
    await _confirm(client, filters, yes)
    results = await client.admin.acls.delete(filters)
    removed = {a: None for found in results.values() if isinstance(found, list) for a in found}
    _print_removed(sorted(removed, key=_order), format)
    _fail_for(error for error in results.values() if isinstance(error, KafkaError))


async def _confirm(client: Client, filters: list[AclFilter], yes: bool) -> None:
    """Show the entries to remove at a terminal, and ask."""
    if yes or not sys.stdin.isatty():
        return
    found = {acl: None for one in filters for acl in await client.admin.acls.describe(one)}
    for acl in sorted(found, key=_order):
        say(f"  {sentence(acl)}", file=sys.stderr)
    if found:
        number = f"{len(found)} entries" if len(found) > 1 else "this entry"
        prompts.confirm(f"Remove {number}?")


def _print_removed(removed: list[Acl], format: Format) -> None:
    if format is Format.JSON:
        output.rows(format, [row(acl) for acl in removed])
        return
    for acl in removed:
        say(f"Removed: {sentence(acl)}.")
    if not removed:
        say("No access control entry matches.")


def _order(acl: Acl) -> tuple[object, ...]:
    return acl.principal, acl.resource_type, acl.resource_name, acl[2:]


def _or_any(values: Iterable[T]) -> list[T | None]:
    """Return the values of a filter; None, which matches everything, without any."""
    return [*values] or [None]


def _fail_for(errors: Iterable[KafkaError]) -> None:
    said = dict.fromkeys(remedies.remedy(error) for error in errors)
    if said:
        raise Failed(" ".join(said))
