"""The rooms that a record visits in a broker, and what calls there cost it (`trace_record.py`)."""

from __future__ import annotations

import importlib
import statistics
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

#: The room in which a coordinator is.
STATE = "state is appended"
#: What happens in each room, and its method.
ROOMS = {
    "a request is handled": "server.network.connection:ServerConnection._handle",
    "records are appended": "replication.partition:Partition.append",
    STATE: "replication.partition:Partition.append_records",
    "a follower's fetch is answered": "server.replication.replica_fetch:FollowerFetch._respond",
    "a follower's offset is noted": "replication.leadership:Leadership.update_follower",
    "the high watermark advances": "replication.partition:Partition._commit",
    "waiting requests are attempted": "server.network.purgatory:Purgatory._attempt_woken",
    "responses are sent": "server.network.connection:ServerConnection._flush",
    "the leader's answer is applied": "replication.replica_fetcher:ReplicaFetcher.complete_fetch",
    "fetched records are appended": "replication.partition:Partition.append_fetched",
    "the next fetch is built": "replication.replica_fetcher:ReplicaFetcher.build_next_fetch",
    "acknowledgements are applied": "server.share.acknowledge:PendingAcknowledgements.apply",
    "state leaves for the coordinator": "server.share.persister:Persister._send",
    "the coordinator decides": "server.share.state_coordinator:StateCoordinator.write",
    "state is written": "server.share.state_write:StateWrite.set_result",
}
#: The part of all records that visit a room of the tables, at least.
MOST = 0.5


class Span(NamedTuple):
    """A call of a client, or of a room; `room` is its place in `ROOMS`. Times are in ns."""

    room: int
    began: int
    ended: int


def find_method(place: str) -> tuple[type, str]:
    """Return the class and the name of a room's method."""
    module, _, path = place.partition(":")
    kind, _, name = path.partition(".")
    return getattr(importlib.import_module(f"shoal.{module}"), kind), name


def read_trace(path: Path) -> list[Span]:
    """Return the calls of a broker that has stopped, by their begin."""
    numbers = array("q", path.read_bytes())
    spans = (Span(*numbers[at : at + 3]) for at in range(0, len(numbers), 3))
    return sorted(spans, key=lambda span: span.began)


def medians_of(calls: list[Span], spans: list[Span]) -> dict[str, tuple[float, ...]]:
    """Return the figures of one broker's rooms, each the median of the calls that visit it."""
    begins = [span.began for span in spans]
    visits: dict[int, list[tuple[float, ...]]] = {}
    for call in calls:
        place, end = bisect_left(begins, call.began), bisect_right(begins, call.ended)
        inside: dict[int, list[Span]] = {}
        for span in spans[place:end]:
            inside.setdefault(span.room, []).append(span)
        for room, found in inside.items():
            first, last = found[0].began - call.began, found[-1].ended - call.began
            whole = sum(span.ended - span.began for span in found)
            visit = (first / 1000, last / 1000, whole / 1000, len(found))
            visits.setdefault(room, []).append(visit)
    names = list(ROOMS)
    return {
        names[room]: tuple(map(statistics.median, zip(*found, strict=True)))
        for room, found in visits.items()
        if len(found) >= MOST * len(calls)
    }
