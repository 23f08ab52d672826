"""`shoal explain`: the rule that decides whether a user may send a request.

It reads the access control entries, and decides as a broker does. Super users and the default for
resources without entries are configs of the brokers, which it reads if it may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from shoal.cli import output
from shoal.cli.output import Format, FormatOption
from shoal.cli.resources import Resource, parse, principal, row, sentence, word
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.configs import Resource as ConfigResource
from shoal.client.configs import ResourceType as ConfigType
from shoal.client.errors import KafkaError
from shoal.client.security_admin import AclFilter
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import (
    ALL_USERS,
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    PatternType,
    ResourceType,
)
from shoal.security.authorizer import Authorizer, Rule, canonical_host
from shoal.security.requirements import REQUIREMENTS, Need, Requirement, api_name, find_api

app = new_app("Show the rule that decides what a user may do.")
SUPER_USERS, ALLOW_IF_NO_ACL = "super.users", "allow.everyone.if.no.acl.found"
_CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)
Decide = Callable[[Need, Resource], Rule]


class Decision(NamedTuple):
    """A requirement on a resource, and the rule that decides; None if the resource is not known."""

    need: Need
    resource: Resource | None
    condition: str
    rule: Rule | None


@command(app)
async def explain(
    client: Client,
    user: Annotated[str, typer.Argument(metavar="USER", help="Such as ann, or User:CN=ann.")],
    api: Annotated[str, typer.Argument(metavar="API", help="Such as Produce or ShareFetch.")],
    resource: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RESOURCE",
            help="Such as topic:orders, group:packers or cluster. The type may be left out if the"
            " API needs only one.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The user's IP address. Default: any.")
    ] = WILDCARD,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the rule that decides, such as: shoal explain ann Produce topic:orders."""
    key = find_api(api)
    if key is None or key not in REQUIREMENTS:
        raise Failed(f"this client does not know what the API {api!r} needs.", USAGE)
    who = principal(user)
    given = [_resource(text, key) for text in resource or ()]
    decide = await _decider(client, who, canonical_host(host), given)
    found = [one for r in REQUIREMENTS[key] for one in _decisions(r, given, decide)]
    output.rows(
        format,
        [_row(one) for one in found],
        ["operation", "resource", "condition", "allowed", "rule"],
    )
    if format is Format.TABLE:
        say(_verdict(who, key, given, found))


def _types(key: ApiKey) -> list[ResourceType]:
    """Return the types of resources that an API needs."""
    return list(dict.fromkeys(n.resource_type for r in REQUIREMENTS[key] for n in r.alternatives))


def _resource(text: str, key: ApiKey) -> Resource:
    """Parse a resource. Raises `Failed` if the API does not need its type."""
    types = _types(key)
    named = [kind for kind in types if kind is not ResourceType.CLUSTER]
    found = parse(text)
    if isinstance(found, str):
        if len(named) == 1:
            return Resource(named[0], found)
        words = " or ".join(f"{word(kind)}:{found}" for kind in named) or "cluster"
        raise Failed(f"the type of {found!r} is not clear. Write {words}.", USAGE)
    if found.type not in types:
        known = ", ".join(map(word, types)) or "nothing"
        raise Failed(f"{api_name(key)} needs no permission on {found}, but on: {known}.", USAGE)
    return found


async def _decider(client: Client, who: str, host: str, given: list[Resource]) -> Decide:
    """Return the function that decides about `who` at `host`."""
    try:
        acls = await client.admin.acls.describe(AclFilter())
    except KafkaError as error:
        if error.code != ErrorCode.security_disabled:
            raise
        everything = Rule(True, None, "the cluster has no authorizer: everyone may do everything")
        return lambda _need, _resource: everything
    configs = await _configs(client)
    if SUPER_USERS not in configs:
        warn(f"the brokers do not show {SUPER_USERS}. Super users may do everything.")
    super_users = {text.strip() for text in configs.get(SUPER_USERS, "").split(";")}
    allow = configs.get(ALLOW_IF_NO_ACL, "").lower() == "true"
    authorizer = Authorizer(super_users, allow_if_no_acl=allow)
    authorizer.change(acls)
    _warn_about_hosts(acls, who, host, given)

    def decide(need: Need, resource: Resource) -> Rule:
        return authorizer.explain(who, host, need.operation, *resource)

    return decide


async def _configs(client: Client) -> dict[str, str]:
    """Return the configs of the authorizer that a broker shows. Kafka hides them as secrets."""
    try:
        description = await client.admin.describe_cluster()
        broker = ConfigResource(ConfigType.BROKER, str(description.brokers[0].node_id))
        found = (await client.admin.configs.describe([broker]))[broker]
    except KafkaError:
        return {}
    if isinstance(found, KafkaError):
        return {}
    shown = {name: found[name].value for name in (SUPER_USERS, ALLOW_IF_NO_ACL) if name in found}
    return {name: value for name, value in shown.items() if value is not None}


def _warn_about_hosts(acls: list[Acl], who: str, host: str, given: list[Resource]) -> None:
    if host != WILDCARD:
        return
    bound = [
        acl
        for acl in acls
        if acl.principal in (who, ALL_USERS)
        and acl.host != WILDCARD
        and any(_matches(acl, one) for one in [*given, _CLUSTER])
    ]
    if bound:
        hosts = ", ".join(sorted({acl.host for acl in bound}))
        warn(f"entries for single hosts are ignored ({hosts}). Name one with --host.")


def _matches(acl: Acl, resource: Resource) -> bool:
    if acl.resource_type != resource.type:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return resource.name.startswith(acl.resource_name)
    return acl.resource_name in (resource.name, WILDCARD)


def _decisions(
    requirement: Requirement, given: list[Resource], decide: Decide
) -> Iterator[Decision]:
    """Yield a decision for each given resource of the requirement, or one without a resource."""
    need, condition = requirement.alternatives[0], requirement.condition
    others = requirement.alternatives[1:]  # These are on the cluster.
    resources: list[Resource | None] = [r for r in given if r.type == need.resource_type]
    if need.resource_type == ResourceType.CLUSTER:
        resources = [_CLUSTER]
    for resource in resources or [None]:
        rule = None if resource is None else decide(need, resource)
        if rule is None or not rule.allowed:
            for other in others:
                instead = decide(other, _CLUSTER)
                if instead.allowed:
                    need, resource, rule = other, _CLUSTER, instead
        yield Decision(need, resource, condition, rule)


def _row(one: Decision) -> dict[str, Any]:
    kind = word(one.need.resource_type)
    rule = one.rule
    if rule is None:
        text = f"name a resource: {kind}:NAME"
    else:
        text = sentence(rule.acl) if rule.acl else rule.reason
    return {
        "operation": word(one.need.operation),
        "resource": str(one.resource) if one.resource else f"each {kind.replace('-', ' ')}",
        "condition": one.condition or None,
        "allowed": rule.allowed if rule else None,
        "rule": text,
        "entry": row(rule.acl) if rule and rule.acl else None,
    }


def _verdict(who: str, key: ApiKey, given: list[Resource], found: list[Decision]) -> str:
    """Return whether the user may send the request. Conditions count if nothing else does."""
    name = api_name(key)
    if not found:
        return f"{name} needs no permission."
    always = [one for one in found if not one.condition]
    counted = always or [one for one in found if one.resource in given]
    if any(one.rule is not None and not one.rule.allowed for one in counted):
        return f"{who} may not send {name}."
    if not counted or any(one.rule is None for one in counted):
        return f"Whether {who} may send {name} depends on the resources."
    return f"{who} may send {name}."
