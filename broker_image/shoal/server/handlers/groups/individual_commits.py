"""The key ranges of OffsetCommit and TxnOffsetCommit.

`coordinator.group.offsets.individual_commit` decides about them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.coordinator.group.offsets import individual_commit
from shoal.protocol.errors import ErrorCode
from shoal.server.handlers.records.log_ends import fetch_high_watermarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.coordinator.group.offsets.requests import PartitionCommit, TopicCommit
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture

    #: The partitions that are refused, by topic name.
    Refused = dict[str, list[responses.OffsetCommitResponsePartition]]

B = TypeVar("B")


def has_key_ranges(commits: Iterable[TopicCommit]) -> bool:
    """Whether a partition has key ranges."""
    return any(p.key_ranges for topic in commits for p in topic.partitions)


async def filter_within_log(
    broker: Broker, commits: Sequence[TopicCommit]
) -> tuple[list[TopicCommit], Refused]:
    """Return the commits without offsets past the log end, and results for refused partitions.

    Such an offset would skip records that are not written yet. The leaders have the log ends.
    Raises `ApiError` if the request has too many ranges.
    """
    key_ranges = (p.key_ranges for topic in commits for p in topic.partitions)
    individual_commit.check_size(key_ranges, broker.groups.settings)
    accepted_commits: list[TopicCommit] = []
    refused: Refused = {}
    ends = await asyncio.gather(*(_fetch_ends(broker, topic) for topic in commits))
    for topic, by_partition in zip(commits, ends, strict=True):
        accepted = []
        for p in topic.partitions:
            result = _refuse_past_end(topic.name, p, by_partition.get(p.partition))
            if result is None:
                accepted.append(p)
            else:
                refused.setdefault(topic.name, []).append(result)
        if accepted:
            accepted_commits.append(topic._replace(partitions=accepted))
    return accepted_commits, refused


async def _fetch_ends(broker: Broker, commit: TopicCommit) -> dict[int, int]:
    topic = broker.image.topics.get(commit.name)
    individual = [p.partition for p in commit.partitions if p.key_ranges]
    if topic is None or not individual:
        return {}
    return await fetch_high_watermarks(broker, topic, individual)


def _refuse_past_end(
    topic: str, p: PartitionCommit, log_end: int | None
) -> responses.OffsetCommitResponsePartition | None:
    """Return the result of a partition whose commit is refused; None if it may be committed."""
    end = individual_commit.find_end(p.key_ranges)
    if not p.key_ranges or (log_end is not None and end <= log_end):
        return None
    if log_end is None:
        code = ErrorCode.leader_not_available
        message = f"The leader of {topic}-{p.partition} does not report its end. Repeat the commit."
    else:
        code = ErrorCode.offset_out_of_range
        message = (
            f"Offset {end - 1} of {topic}-{p.partition} cannot be finished: the log ends at "
            f"offset {log_end}. Commit only offsets of delivered records."
        )
    return {
        "partition_index": p.partition,
        "error_code": code,
        "individual_commit": {"stable_offset": -1, "error_message": message},
    }


async def await_body(answer: BodyOrFuture[B]) -> B:
    """Return the body of an answer once it is complete."""
    return cast("B", await answer if isinstance(answer, asyncio.Future) else answer)


def build_refused_result(
    partition: Any, error: ErrorCode, message: str | None
) -> responses.OffsetCommitResponsePartition:
    """Return the result of a partition in a request that is refused as a whole."""
    result: responses.OffsetCommitResponsePartition = {
        "partition_index": partition.partition_index,
        "error_code": error,
    }
    if individual_commit.parse_key_ranges(partition):
        result["individual_commit"] = {"stable_offset": -1, "error_message": message}
    return result
