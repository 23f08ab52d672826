"""Start offsets of share groups: the first ones, and resets (`spec.reset`). Pure.

A share partition has no start offset, and so no lag, before its first member joins; a workload at
zero replicas would never start. The operator sets the offsets of `spec.topics` as soon as the
topics exist, at the place that `spec.startOffset` names.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from shoal_operator.broker_states import EARLIEST, LATEST, StartSpec
from shoal_operator.quantities import duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.broker_states import GroupState, Partition
    from shoal_operator.model.names import Manifest


def first_offsets(
    spec: Mapping[str, Any], state: GroupState, topics: Mapping[str, int], now_ms: int
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
        start = StartSpec(max(0, now_ms - duration_ms(spec["startOffsetDuration"])))
    have = {(p.topic, p.partition) for p in state.partitions if p.start_offset >= 0}
    known = {topic for topic, _ in have}
    wanted = [(topic, index) for topic, count in sorted(topics.items()) for index in range(count)]
    return {p: EARLIEST if p[0] in known else start for p in wanted if p not in have}


def pending_reset(resource: Manifest) -> Mapping[str, Any] | None:
    """Return the spec's reset unless it has been applied."""
    reset: Mapping[str, Any] | None = resource["spec"].get("reset")
    last = resource.get("status", {}).get("lastReset", {})
    return None if reset is None or last.get("id") == reset["id"] else reset


def resume(
    resource: Manifest, reset: Mapping[str, Any], offsets: Mapping[Partition, int]
) -> list[dict[str, Any]] | None:
    """Return the moves of a reset that an earlier operator began, None if none did.

    The result is empty if one of the moves took effect: the group may have consumed since then.
    """
    pending = resource.get("status", {}).get("pendingReset") or {}
    if pending.get("id") != reset["id"]:
        return None
    moves: list[dict[str, Any]] = pending.get("offsets", [])
    untouched = all(offsets.get((m["topic"], m["partition"]), -1) == m["from"] for m in moves)
    return moves if untouched else []


def reset_target(reset: Mapping[str, Any]) -> int | StartSpec:
    """Return the offset, time or special value that a reset names."""
    if reset["to"] == "Offset":
        return int(reset["offset"])
    if reset["to"] == "Time":
        return StartSpec(int(datetime.datetime.fromisoformat(reset["time"]).timestamp() * 1000))
    return EARLIEST if reset["to"] == "Earliest" else LATEST
