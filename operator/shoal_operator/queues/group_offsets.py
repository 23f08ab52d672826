"""Start offsets of share groups: the first ones, and resets (`spec.reset`). Pure.

A share partition has no start offset, and so no lag, before its first member joins; a workload at
zero replicas would never start. The operator sets the offsets of `spec.topics` as soon as the
topics exist, at the place that `spec.startOffset` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import clock
from shoal_operator.brokers.broker_states import EARLIEST, LATEST, StartSpec
from shoal_operator.model.quantities import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.brokers.broker_states import GroupState, Partition
    from shoal_operator.model.resources.share_group import (
        ShareGroup,
        ShareGroupSpec,
        ShareGroupSpecReset,
        ShareGroupStatusPendingResetOffsets,
    )


def choose_first_offsets(
    spec: ShareGroupSpec, state: GroupState, topics: Mapping[str, int], now_ms: int
) -> dict[Partition, StartSpec]:
    """Return the start of each share partition that has no start offset.

    `topics` has the number of partitions by topic; `now_ms` is milliseconds since the epoch.
    Partitions that were added to a topic start at their first record: all their records are newer
    than the group. Groups with members, and those of another type, are left alone.
    """
    if state.members or state.type not in ("", "share"):
        return {}
    start = {"Latest": LATEST, "Earliest": EARLIEST}.get(spec["startOffset"])
    if start is None:
        # Negative times have special meanings.
        start = StartSpec(max(0, now_ms - parse_duration_ms(spec["startOffsetDuration"])))
    have = {(p.topic, p.partition) for p in state.partitions if p.start_offset >= 0}
    known_topics = {topic for topic, _ in have}
    partitions = [
        (topic, index) for topic, count in sorted(topics.items()) for index in range(count)
    ]
    return {p: EARLIEST if p[0] in known_topics else start for p in partitions if p not in have}


def find_pending_reset(resource: ShareGroup) -> ShareGroupSpecReset | None:
    """Return the spec's reset unless it has been applied."""
    reset = resource["spec"].get("reset")
    last = resource.get("status", {}).get("lastReset", {})
    return None if reset is None or last.get("id") == reset["id"] else reset


def resume(
    resource: ShareGroup, reset: ShareGroupSpecReset, offsets: Mapping[Partition, int]
) -> list[ShareGroupStatusPendingResetOffsets] | None:
    """Return the moves of a reset that an earlier operator began, None if none did.

    The result is empty if one of the moves took effect: the group may have consumed since then.
    """
    pending = resource.get("status", {}).get("pendingReset")
    if not pending or pending.get("id") != reset["id"]:
        return None
    moves = pending.get("offsets", [])
    untouched = all(offsets.get((m["topic"], m["partition"]), -1) == m["from"] for m in moves)
    return moves if untouched else []


def parse_reset_target(reset: ShareGroupSpecReset) -> int | StartSpec:
    """Return the offset, time or special value that a reset names."""
    if reset["to"] == "Offset":
        return int(reset["offset"])
    if reset["to"] == "Time":
        return StartSpec(clock.parse_time_ms(reset["time"]))
    return EARLIEST if reset["to"] == "Earliest" else LATEST
