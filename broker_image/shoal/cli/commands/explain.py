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
from shoal.cli.resources import (
    AclResource,
    format_acl,
    format_word,
    make_acl_row,
    parse_principal,
    parse_resource,
)
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.admin.configs import ConfigResource as ConfigResource
from shoal.client.admin.configs import ConfigResourceType as ConfigType
from shoal.client.admin.security_admin import AclFilter
from shoal.client.client import Client
from shoal.client.errors import KafkaError
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
from shoal.security.authorizer import Authorizer, MatchingRule, canonicalize_host
from shoal.security.requirements import Need, Requirement, find_api, format_api_name

app = make_app("Show the rule that decides what a user may do.")
SUPER_USERS, ALLOW_IF_NO_ACL = "super.users", "allow.everyone.if.no.acl.found"
_CLUSTER = AclResource(ResourceType.CLUSTER, CLUSTER_NAME)
Decide = Callable[[Need, AclResource], MatchingRule]


class AccessDecision(NamedTuple):
    """A requirement on a resource, and the rule that decides; None if the resource is not known."""

    need: Need
    resource: AclResource | None
    condition: str
    rule: MatchingRule | None


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
    requirements = None if key is None else _list_requirements(key)
    if key is None or requirements is None:
        raise CommandError(f"this client does not know what the API {api!r} needs.", USAGE)
    user_principal = parse_principal(user)
    resources = [_parse_resource(text, key, requirements) for text in resource or ()]
    decide = await _make_decider(client, user_principal, canonicalize_host(host), resources)
    decisions = [
        decision for r in requirements for decision in _make_decisions(r, resources, decide)
    ]
    output.print_rows(
        format,
        [_make_row(decision) for decision in decisions],
        ["operation", "resource", "condition", "allowed", "rule"],
    )
    if format is Format.TABLE:
        say(_format_verdict(user_principal, key, resources, decisions))


def _list_requirements(key: ApiKey) -> list[Requirement] | None:
    """Return what brokers require for an API, or None if they do not serve it."""
    # The table imports all handlers, which takes as long as all else that a command imports.
    from shoal.server.handlers import HANDLERS

    api = HANDLERS.get(key)
    return None if api is None else api.permissions.list_requirements()


def _parse_resource(text: str, key: ApiKey, requirements: list[Requirement]) -> AclResource:
    """Parse a resource. Raises `CommandError` if the API does not need its type."""
    types = list(dict.fromkeys(n.resource_type for r in requirements for n in r.alternatives))
    nameable = [kind for kind in types if kind is not ResourceType.CLUSTER]
    parsed = parse_resource(text)
    if isinstance(parsed, str):
        if len(nameable) == 1:
            return AclResource(nameable[0], parsed)
        words = " or ".join(f"{format_word(kind)}:{parsed}" for kind in nameable) or "cluster"
        raise CommandError(f"the type of {parsed!r} is not clear. Write {words}.", USAGE)
    if parsed.type not in types:
        known_types = ", ".join(map(format_word, types)) or "nothing"
        raise CommandError(
            f"{format_api_name(key)} needs no permission on {parsed}, but on: {known_types}.", USAGE
        )
    return parsed


async def _make_decider(
    client: Client, user_principal: str, host: str, resources: list[AclResource]
) -> Decide:
    """Return the function that decides about `user_principal` at `host`."""
    try:
        acls = await client.admin.acls.describe(AclFilter())
    except KafkaError as error:
        if error.code != ErrorCode.security_disabled:
            raise
        everything = MatchingRule(
            True, None, "the cluster has no authorizer: everyone may do everything"
        )
        return lambda _need, _resource: everything
    configs = await _read_configs(client)
    if SUPER_USERS not in configs:
        warn(f"the brokers do not show {SUPER_USERS}. Super users may do everything.")
    super_users = {text.strip() for text in configs.get(SUPER_USERS, "").split(";")}
    allow = configs.get(ALLOW_IF_NO_ACL, "").lower() == "true"
    authorizer = Authorizer(super_users, allow_if_no_acl=allow)
    authorizer.change(acls)
    _warn_about_hosts(acls, user_principal, host, resources)

    def decide(need: Need, resource: AclResource) -> MatchingRule:
        return authorizer.explain(user_principal, host, need.operation, *resource)

    return decide


async def _read_configs(client: Client) -> dict[str, str]:
    """Return the configs of the authorizer that a broker shows. Kafka hides them as secrets."""
    try:
        description = await client.admin.describe_cluster()
        broker = ConfigResource(ConfigType.BROKER, str(description.brokers[0].node_id))
        entries = (await client.admin.configs.describe([broker]))[broker]
    except KafkaError:
        return {}
    if isinstance(entries, KafkaError):
        return {}
    shown = {
        name: entries[name].value for name in (SUPER_USERS, ALLOW_IF_NO_ACL) if name in entries
    }
    return {name: value for name, value in shown.items() if value is not None}


def _warn_about_hosts(
    acls: list[Acl], user_principal: str, host: str, resources: list[AclResource]
) -> None:
    if host != WILDCARD:
        return
    bound = [
        acl
        for acl in acls
        if acl.principal in (user_principal, ALL_USERS)
        and acl.host != WILDCARD
        and any(_matches(acl, resource) for resource in [*resources, _CLUSTER])
    ]
    if bound:
        hosts = ", ".join(sorted({acl.host for acl in bound}))
        warn(f"entries for single hosts are ignored ({hosts}). Name one with --host.")


def _matches(acl: Acl, resource: AclResource) -> bool:
    if acl.resource_type != resource.type:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return resource.name.startswith(acl.resource_name)
    return acl.resource_name in (resource.name, WILDCARD)


def _make_decisions(
    requirement: Requirement, requested: list[AclResource], decide: Decide
) -> Iterator[AccessDecision]:
    """Yield a decision for each given resource of the requirement, or one without a resource."""
    need, condition = requirement.alternatives[0], requirement.condition
    cluster_alternatives = requirement.alternatives[1:]  # These are on the cluster.
    resources: list[AclResource | None] = [r for r in requested if r.type == need.resource_type]
    if need.resource_type == ResourceType.CLUSTER:
        resources = [_CLUSTER]
    for resource in resources or [None]:
        rule = None if resource is None else decide(need, resource)
        if rule is None or not rule.allowed:
            for alternative in cluster_alternatives:
                instead = decide(alternative, _CLUSTER)
                if instead.allowed:
                    need, resource, rule = alternative, _CLUSTER, instead
        yield AccessDecision(need, resource, condition, rule)


def _make_row(decision: AccessDecision) -> dict[str, Any]:
    kind = format_word(decision.need.resource_type)
    rule = decision.rule
    if rule is None:
        text = f"name a resource: {kind}:NAME"
    else:
        text = format_acl(rule.acl) if rule.acl else rule.reason
    return {
        "operation": format_word(decision.need.operation),
        "resource": str(decision.resource)
        if decision.resource
        else f"each {kind.replace('-', ' ')}",
        "condition": decision.condition or None,
        "allowed": rule.allowed if rule else None,
        "rule": text,
        "entry": make_acl_row(rule.acl) if rule and rule.acl else None,
    }


def _format_verdict(
    user_principal: str, key: ApiKey, resources: list[AclResource], decisions: list[AccessDecision]
) -> str:
    """Return whether the user may send the request. Conditions count if nothing else does."""
    name = format_api_name(key)
    if not decisions:
        return f"{name} needs no permission."
    always = [decision for decision in decisions if not decision.condition]
    counted = always or [decision for decision in decisions if decision.resource in resources]
    if any(decision.rule is not None and not decision.rule.allowed for decision in counted):
        return f"{user_principal} may not send {name}."
    if not counted or any(decision.rule is None for decision in counted):
        return f"Whether {user_principal} may send {name} depends on the resources."
    return f"{user_principal} may send {name}."
