"""What an error means to the person at the terminal, and what to do about it: a sentence or two."""

from __future__ import annotations

import difflib
import re

from shoal.client.cluster import Cluster
from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.protocol.errors import ErrorCode

_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "`shoal topics list` shows the topics there are",
    ErrorCode.topic_already_exists: "`shoal topics describe` shows it; to change it, use "
    "`shoal topics alter`",
    ErrorCode.group_id_not_found: "`shoal groups list` shows the groups there are, with their type",
    ErrorCode.non_empty_group: "stop its members first; `shoal groups describe` names them",
    ErrorCode.group_subscribed_to_topic: "stop its members first; `shoal groups describe` names "
    "them",
    ErrorCode.inconsistent_group_protocol: "a group id belongs to one type of group; choose "
    "another id, or see `shoal groups list`",
    ErrorCode.group_max_size_reached: "the group is full; `group.share.max.size` or "
    "`group.consumer.max.size` of the brokers says how many members it may have",
    ErrorCode.offset_out_of_range: "`shoal topics describe` shows where each partition starts and "
    "ends",
    ErrorCode.message_too_large: "raise the topic's max.message.bytes with "
    "`shoal topics alter --set`, or send smaller records",
    ErrorCode.invalid_replication_factor: "ask for at most as many replicas as there are brokers",
    ErrorCode.topic_authorization_failed: "the user of this connection has no right to the topic",
    ErrorCode.group_authorization_failed: "the user of this connection has no right to the group",
    ErrorCode.cluster_authorization_failed: "the user of this connection has no right to do that",
    ErrorCode.unsupported_version: "the broker does not serve this; share groups need "
    "share.version 1 (Kafka 4.2 or later)",
    ErrorCode.not_enough_replicas: "fewer brokers are in sync than min.insync.replicas asks for",
    ErrorCode.unknown_member_id: "stop the group's members first, if it has any",
}


async def sentence(error: ClientError, cluster: Cluster) -> str:
    """The error, and its remedy where one is known; suggests topics of a similar name."""
    text = str(error)
    if isinstance(error, Unreachable):
        return (
            f"{text}. Is a broker running there? `shoal server` starts one, and "
            "--bootstrap-server (or SHOAL_BOOTSTRAP_SERVERS) says where to look."
        )
    if not isinstance(error, KafkaError):
        return _ended(text)
    remedy = _REMEDIES.get(error.code)
    if error.code == ErrorCode.unknown_topic_or_partition:
        remedy = await _similar(text, cluster) or remedy
    return f"{_ended(text)} {remedy[:1].upper()}{remedy[1:]}." if remedy else _ended(text)


def remedy(error: KafkaError) -> str:
    """The error with its remedy, without asking the cluster."""
    known = _REMEDIES.get(error.code)
    return f"{_ended(str(error))} {known[:1].upper()}{known[1:]}." if known else _ended(str(error))


async def _similar(text: str, cluster: Cluster) -> str | None:
    match = re.search(r"no topic '([^']+)'", text)
    if match is None:
        return None
    try:
        names = await cluster.all_topics()
    except ClientError:
        return None
    close = difflib.get_close_matches(match[1], names, n=1)
    return (
        f"did you mean {close[0]!r}? Or `shoal topics create {match[1]}`"
        if close
        else (f"`shoal topics create {match[1]}` makes it")
    )


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."
