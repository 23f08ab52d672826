"""Resources and principals on the command line of the commands for access control."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli.session import USAGE, CommandError
from shoal.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, ResourceType

TYPES = {
    kind.name.lower().replace("_", "-"): kind for kind in ResourceType if kind > ResourceType.ANY
}


class AclResource(NamedTuple):
    """A type of resource and a name."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return self.format_words(self.name)

    def format_words(self, name: str) -> str:
        kind = self.type.name.lower().replace("_", " ")
        return "the cluster" if self.type == ResourceType.CLUSTER else f"{kind} {name}"


class OperationName(StrEnum):
    """The operations of access control entries, as the command line spells them."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"
    CREATE_TOKENS = "create-tokens"
    DESCRIBE_TOKENS = "describe-tokens"
    TWO_PHASE_COMMIT = "two-phase-commit"

    @property
    def operation(self) -> Operation:
        return Operation[self.name]


class ResourceOptions(NamedTuple):
    """The options of a command that name resources, or prefixes of their names."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="NAME", help="A topic, or '*' for all."),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="NAME", help="A group of any type, or '*' for all."),
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", metavar="NAME", help="A transactional id."),
    ] = None
    delegation_token: Annotated[
        list[str] | None,
        typer.Option("--delegation-token", metavar="ID", help="A delegation token."),
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user", metavar="USER", help="A user whose tokens others may create or list."
        ),
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster as a resource.")] = False
    prefixed: Annotated[
        bool, typer.Option("--prefixed", help="The names are prefixes of names of resources.")
    ] = False

    def make_resources(self) -> list[AclResource]:
        """Return the resources in the order of their types."""
        names_by_type = {
            ResourceType.TOPIC: self.topic,
            ResourceType.GROUP: self.group,
            ResourceType.TRANSACTIONAL_ID: self.transactional_id,
            ResourceType.DELEGATION_TOKEN: self.delegation_token,
            ResourceType.USER: map(parse_principal, self.user or ()),
            ResourceType.CLUSTER: [CLUSTER_NAME] if self.cluster else None,
        }
        return [
            AclResource(kind, name) for kind, names in names_by_type.items() for name in names or ()
        ]


def parse_resource(text: str) -> AclResource | str:
    """Parse `TYPE:NAME` or `cluster`; return the text itself if it is only a name."""
    if text == "cluster":
        return AclResource(ResourceType.CLUSTER, CLUSTER_NAME)
    kind, sign, name = text.partition(":")
    if not sign or kind not in TYPES:
        return text
    if not name:
        raise CommandError(f"{text} has no name. Write {kind}:NAME.", USAGE)
    return AclResource(
        TYPES[kind], parse_principal(name) if TYPES[kind] is ResourceType.USER else name
    )


def parse_principal(text: str) -> str:
    """Return a principal with its type, which is User if none is given."""
    return text if re.match(r"[A-Za-z]+:", text) else f"User:{text}"


def make_acl_row(acl: Acl) -> dict[str, Any]:
    """Return an entry for tables and JSON."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": format_word(acl.operation),
        "resource_type": format_word(acl.resource_type),
        "resource": acl.resource_name,
        "pattern": format_word(acl.pattern_type),
        "host": acl.host,
    }


def format_acl(acl: Acl) -> str:
    """Return an entry for people, such as `allow read on topic orders-* for User:ann`."""
    prefixed = acl.pattern_type == PatternType.PREFIXED
    resource = AclResource(acl.resource_type, acl.resource_name)
    origin = "" if acl.host == "*" else f" from {acl.host}"
    return (
        f"{acl.permission.name.lower()} {format_word(acl.operation)} on"
        f" {resource.format_words(acl.resource_name + '…' * prefixed)} for {acl.principal}{origin}"
    )


def format_word(member: Operation | ResourceType | PatternType) -> str:
    """Return the command line's spelling of a term."""
    return member.name.lower().replace("_", "-")
