"""Error messages for users: an error and its remedy in one or two sentences."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.client.net.cluster import Cluster

_ASK = "ask an administrator for access to"
_SHOW = "`shoal whoami` shows who you are"
_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "list the topics with `shoal topics list`",
    ErrorCode.topic_already_exists: "show it with `shoal topics describe`, or change it "
    "with `shoal topics alter`",
    ErrorCode.group_id_not_found: "list the groups and their types with `shoal groups list`",
    ErrorCode.non_empty_group: "stop its members first. `shoal groups describe` lists them",
    ErrorCode.group_subscribed_to_topic: "stop its members first. `shoal groups describe` "
    "lists them",
    ErrorCode.inconsistent_group_protocol: "a group id belongs to one type of group. Choose "
    "another id; `shoal groups list` shows those in use",
    ErrorCode.group_max_size_reached: "the group is full. Raise the broker config "
    "`group.share.max.size` or `group.consumer.max.size`",
    ErrorCode.transactional_id_not_found: "list them with `shoal transactions list`",
    ErrorCode.offset_out_of_range: "`shoal topics describe` shows each partition's start and end "
    "offsets",
    ErrorCode.invalid_config: "list the configs and their values with `shoal configs describe`",
    ErrorCode.message_too_large: "raise the topic's max.message.bytes with "
    "`shoal topics alter --set`, or send smaller records",
    ErrorCode.invalid_replication_factor: "use at most as many replicas as the cluster has brokers",
    ErrorCode.topic_authorization_failed: f"{_ASK} the topic. {_SHOW}",
    ErrorCode.group_authorization_failed: f"{_ASK} the group. {_SHOW}",
    ErrorCode.cluster_authorization_failed: f"{_ASK} the cluster. {_SHOW}",
    ErrorCode.transactional_id_authorization_failed: f"{_ASK} the transactional id. {_SHOW}",
    ErrorCode.delegation_token_authorization_failed: f"{_ASK} the tokens of that user. {_SHOW}",
    ErrorCode.security_disabled: "set authorizer.class.name of the brokers to"
    " org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ErrorCode.delegation_token_auth_disabled: "set delegation.token.secret.key of the brokers",
    ErrorCode.delegation_token_request_not_allowed: "log in by a password, an access token or a"
    " client certificate; not by another delegation token, nor without a login",
    ErrorCode.delegation_token_owner_mismatch: "ask its owner, or one of its renewers",
    ErrorCode.delegation_token_not_found: "list the tokens with `shoal tokens list`",
    ErrorCode.delegation_token_expired: "create a new one with `shoal tokens create`",
    ErrorCode.resource_not_found: "list the users with `shoal users list`",
    ErrorCode.unsupported_version: "the broker does not support this request. Share groups need "
    "share.version 1 (Kafka 4.2 or later)",
    ErrorCode.not_enough_replicas: "start the missing brokers, or lower min.insync.replicas",
    ErrorCode.unknown_member_id: "stop the group's members first, if it has any",
}


def format_unreachable(error: Unreachable) -> str:
    """Return the error with what to do, for users of the command line."""
    return (
        f"{error}. Start a broker with `shoal server`, or set its address with "
        "--bootstrap-server or SHOAL_BOOTSTRAP_SERVERS."
    )


async def format_sentence(error: ClientError, cluster: Cluster) -> str:
    """Return the error with its remedy if one is known. Suggests topics with a similar name."""
    text = str(error)
    if isinstance(error, Unreachable):
        return format_unreachable(error)
    if not isinstance(error, KafkaError):
        return _end_sentence(text)
    remedy = _REMEDIES.get(error.code)
    if error.code == ErrorCode.unknown_topic_or_partition:
        remedy = await _suggest_similar(text, cluster) or remedy
    return (
        f"{_end_sentence(text)} {remedy[:1].upper()}{remedy[1:]}."
        if remedy
        else _end_sentence(text)
    )


def format_remedy(error: KafkaError) -> str:
    """Return the error with its remedy, without a request to the cluster."""
    advice = _REMEDIES.get(error.code)
    return (
        f"{_end_sentence(str(error))} {advice[:1].upper()}{advice[1:]}."
        if advice
        else _end_sentence(str(error))
    )


async def _suggest_similar(text: str, cluster: Cluster) -> str | None:
    match = re.search(r"no topic '([^']+)'", text)
    if match is None:
        return None
    try:
        names = await cluster.read_all_topics()
    except ClientError:
        return None
    close = difflib.get_close_matches(match[1], names, n=1)
    return (
        f"did you mean {close[0]!r}? To create it, use `shoal topics create {match[1]}`"
        if close
        else (f"create it with `shoal topics create {match[1]}`")
    )


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."
