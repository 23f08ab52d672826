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
    AclResource,
    OperationName,
    ResourceOptions,
    format_acl,
    format_word,
    make_acl_row,
    parse_principal,
)
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.admin.security_admin import AclFilter
from shoal.client.client import Client
from shoal.client.errors import KafkaError
from shoal.monitoring import remedies
from shoal.security.acl_presets import CONSUMER, PRODUCER
from shoal.security.acls import WILDCARD, Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.requirements import OPERATIONS

if TYPE_CHECKING:
    from shoal.security.acl_presets import Form

T = TypeVar("T")
app = make_app("List, add and remove access control entries.")

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
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="An IP address, a network such as 10.0.0.0/8, or '*' for all.",
    ),
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

    def get_presets(self) -> list[Form]:
        """Return what the named kinds of clients need."""
        is_consumer = self.consumer or self.share_consumer
        return [PRODUCER] * self.producer + [CONSUMER] * is_consumer

    def get_operations(self, resource: AclResource | None) -> list[Operation]:
        """Return the operations of an entry for a resource. Raises `CommandError` for one that it
        lacks."""
        operations = [name.operation for name in self.operation or ()]
        if resource is not None:
            for form in self.get_presets():
                operations += form.get(resource.type, ())
            _check_operations(resource, operations)
            if self.get_presets() and not operations:
                raise CommandError(
                    f"neither producers nor consumers need an entry for {resource}."
                    " Name an --operation.",
                    USAGE,
                )
        return list(dict.fromkeys(operations))


def _check_operations(resource: AclResource, operations: list[Operation]) -> None:
    allowed = (Operation.ALL, *OPERATIONS[resource.type])
    for operation in operations:
        if operation not in allowed:
            raise CommandError(
                f"{format_word(operation)} is not an operation on {resource}. Use one of"
                f" {', '.join(map(format_word, allowed))}.",
                USAGE,
            )


@command(app, "list")
async def list_acls(
    client: Client,
    resource_options: ResourceOptions,
    principals: Principals = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List entries: all, those of users, or those that apply to resources.

    Entries apply to a resource by its name, by a prefix, or by '*'. --prefixed lists only those
    with the given prefix.
    """
    resources = resource_options.make_resources()
    pattern = PatternType.PREFIXED if resource_options.prefixed else PatternType.MATCH
    filters = [
        AclFilter(
            resource.type if resource else ResourceType.ANY,
            resource.name if resource else None,
            pattern if resource or resource_options.prefixed else PatternType.ANY,
            user,
        )
        for resource in _default_to_any(resources)
        for user in _default_to_any(map(parse_principal, principals or ()))
    ]
    acls = {
        acl: None for acl_filter in filters for acl in await client.admin.acls.describe(acl_filter)
    }
    rows = [make_acl_row(acl) for acl in sorted(acls, key=_get_sort_key)]
    output.print_rows(format, rows, empty="No access control entry matches.")


@command(app, "add")
async def add(
    client: Client,
    resource_options: ResourceOptions,
    operations: OperationOptions,
    principals: Principals = None,
    deny: Annotated[bool | None, typer.Option("--deny/--allow", help="Default: --allow.")] = None,
    host: Hosts = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add entries, such as: shoal acls add -p ann --share-consumer -t orders -g packers."""
    resources = resource_options.make_resources()
    if not principals:
        raise CommandError("name a user with --principal.", USAGE)
    if not resources:
        raise CommandError(
            "name a resource, for example with --topic, --group or --cluster.", USAGE
        )
    if not operations.operation and not operations.get_presets():
        raise CommandError(
            "name an --operation, or use --producer, --consumer or --share-consumer.", USAGE
        )
    acls = [
        Acl(
            resource.type,
            resource.name,
            PatternType.PREFIXED if resource_options.prefixed else PatternType.LITERAL,
            parse_principal(user),
            address,
            operation,
            Permission.DENY if deny else Permission.ALLOW,
        )
        for resource, user, address in itertools.product(resources, principals, host or [WILDCARD])
        for operation in operations.get_operations(resource)
    ]
    results = await client.admin.acls.create(acls)
    added = [acl for acl, error in results.items() if error is None]
    if format is not Format.TABLE:
        output.print_rows(format, [make_acl_row(acl) for acl in added])
    else:
        for acl in added:
            say(f"Added: {format_acl(acl)}.")
    _fail_for(error for error in results.values() if error is not None)


@command(app, "remove")
async def remove(
    client: Client,
    resource_options: ResourceOptions,
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
    resources = resource_options.make_resources()
    if not principals and not resources:
        raise CommandError("name a user with --principal, or a resource such as --topic.", USAGE)
    if operations.get_presets() and not resources:
        raise CommandError("--producer and --consumer need --topic, --group or the like.", USAGE)
    permission = Permission.ANY
    if deny is not None:
        permission = Permission.DENY if deny else Permission.ALLOW
    pattern = PatternType.PREFIXED if resource_options.prefixed else PatternType.LITERAL
    filters = [
        AclFilter(
            resource.type if resource else ResourceType.ANY,
            resource.name if resource else None,
            pattern if resource or resource_options.prefixed else PatternType.ANY,
            user,
            address,
            operation,
            permission,
        )
        for resource, user, address in itertools.product(
            _default_to_any(resources),
            _default_to_any(map(parse_principal, principals or ())),
            _default_to_any(host or ()),
        )
        for operation in operations.get_operations(resource) or [Operation.ANY]
    ]
    await _confirm(client, filters, yes)
    results = await client.admin.acls.delete(filters)
    removed = {
        a: None for entries in results.values() if isinstance(entries, list) for a in entries
    }
    _print_removed(sorted(removed, key=_get_sort_key), format)
    _fail_for(error for error in results.values() if isinstance(error, KafkaError))


async def _confirm(client: Client, filters: list[AclFilter], yes: bool) -> None:
    """Show the entries to remove at a terminal, and ask."""
    if yes or not sys.stdin.isatty():
        return
    acls = {
        acl: None for acl_filter in filters for acl in await client.admin.acls.describe(acl_filter)
    }
    for acl in sorted(acls, key=_get_sort_key):
        say(f"  {format_acl(acl)}", file=sys.stderr)
    if acls:
        number = f"{len(acls)} entries" if len(acls) > 1 else "this entry"
        prompts.confirm(f"Remove {number}?")


def _print_removed(removed: list[Acl], format: Format) -> None:
    if format is not Format.TABLE:
        output.print_rows(format, [make_acl_row(acl) for acl in removed])
        return
    for acl in removed:
        say(f"Removed: {format_acl(acl)}.")
    if not removed:
        say("No access control entry matches.")


def _get_sort_key(acl: Acl) -> tuple[object, ...]:
    return acl.principal, acl.resource_type, acl.resource_name, acl[2:]


def _default_to_any(values: Iterable[T]) -> list[T | None]:
    """Return the values of a filter; None, which matches everything, without any."""
    return [*values] or [None]


def _fail_for(errors: Iterable[KafkaError]) -> None:
    sentences = dict.fromkeys(remedies.format_remedy(error) for error in errors)
    if sentences:
        raise CommandError(" ".join(sentences))
