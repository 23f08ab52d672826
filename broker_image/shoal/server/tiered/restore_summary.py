"""The result of a restore as JSON for programs, small enough for a container's termination message.

Kubernetes keeps 4,096 bytes of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.server.tiered.restore import RestoreReport

SIZE_BYTES_MAX = 4_000


def encode_success(report: RestoreReport) -> bytes:
    """Return the numbers of a restore, and the end offsets of tiered topics, in the order of names
    as far as they fit. `leftOut` counts the other ones."""
    ends: dict[str, list[int]] = {}
    for row in report.partitions:
        if row.tiered:
            ends.setdefault(row.topic, []).append(row.end)
    summary: dict[str, Any] = {
        "clusterId": report.cluster_id,
        "writtenMs": report.written_ms,
        "topics": len({row.topic for row in report.partitions}),
        "partitions": len(report.partitions),
        "missing": sum(row.missing for row in report.partitions),
        "aborted": sum(row.aborted for row in report.partitions),
        "ends": {},
        "leftOut": len(ends),
    }
    size = len(_encode(summary))
    for topic, offsets in sorted(ends.items()):
        size += len(_encode({topic: offsets}))
        if size > SIZE_BYTES_MAX:
            break
        summary["ends"][topic] = offsets
        summary["leftOut"] -= 1
    return _encode(summary)


def encode_failure(kind: str, message: str) -> bytes:
    """Return the error: a word for programs, and the message as far as it fits."""
    # A character takes at most 6 bytes.
    return _encode({"error": kind, "message": message[: SIZE_BYTES_MAX // 8]})


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
