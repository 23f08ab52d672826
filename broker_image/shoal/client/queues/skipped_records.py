"""Records before the start of a group, which it does not deliver.

A group that is new to a partition starts at its end (`share.auto.offset.reset=latest`, as in
Kafka). Whatever was queued before is left behind, while the group's lag is 0. Once a group has a
position, records that it has completed and records that it has never seen look the same. Sentences
about them have to say so.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.admin.admin import Admin
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.queues.lag import Position


async def read_log_starts(
    admin: Admin, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the start offsets of logs, without partitions that cannot be read now."""
    specs = dict.fromkeys(sorted(partitions), int(OffsetSpec.EARLIEST))
    listed = await admin.topics.offsets(specs, timeout_ms=2_000) if specs else {}
    return {p: o.offset for p, o in listed.items() if not isinstance(o, KafkaError)}


def count_before(
    starts: Mapping[TopicPartition, int], positions: Iterable[Position]
) -> dict[str, int]:
    """Return the number of records before a group's positions by topic, without zeros."""
    counts: dict[str, int] = {}
    for position in positions:
        if position.offset is not None and position.offset > starts.get(
            position.partition, position.offset
        ):
            before = position.offset - starts[position.partition]
            counts[position.partition.topic] = counts.get(position.partition.topic, 0) + before
    return counts


def say_left_behind(group: str, topic: str, records: int, *, type: str = "") -> str:
    """Return the sentence for a group that is about to start at the end of a topic.

    `type` creates the group where it does not exist, as in `shoal groups reset-offsets`.
    """
    command = f"{_format_reset_command(group, topic)}{f' --type {type}' if type else ''} --execute"
    return (
        f"group {group} is new to {topic}: it starts at the end and leaves"
        f" {_format_records(records)} behind. To get {_format_pronoun(records)}, end the group's "
        "consumers and run"
        f" `{command}`."
    )


def say_perhaps_left_behind(group: str, topic: str, records: int) -> str:
    """Return the sentence for a group with a position in a topic and no sign of work there."""
    them = _format_pronoun(records)
    return (
        f"{_format_records(records)} of {topic} {'is' if records == 1 else 'are'} before the start "
        "of this"
        " group, because a new group starts at the end (share.auto.offset.reset=latest). If it has"
        f" never processed {them}, end its consumers and run "
        f"`{_format_reset_command(group, topic)}`, which shows"
        f" how to get {them}."
    )


def _format_reset_command(group: str, topic: str) -> str:
    return f"shoal groups reset-offsets {shlex.quote(group)} -t {topic} --to-earliest"


def _format_records(number: int) -> str:
    return f"{number:,} record{'s' * (number != 1)}"


def _format_pronoun(number: int) -> str:
    return "it" if number == 1 else "them"
