"""The file of a snapshot of the metadata: batches between a header and a footer (KIP-630).

`<end offset>-<epoch>.checkpoint` is in the directory of the log. It has control records (header,
kraft.version, voters), the batches of the state, and a control record as footer. A file without
its footer is incomplete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.quorum.control_records import build_control_batch, read_control_batch
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.voters import KRAFT_VERSION, VoterSet
from shoal.record.batch import Buffer, CorruptBatch, assign, check_crc, iter_headers, read_header
from shoal.record.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Iterable

SUFFIX = ".checkpoint"
PART = ".part"


def format_file_name(snapshot_id: OffsetAndEpoch) -> str:
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}{SUFFIX}"


def parse_file_name(name: str) -> OffsetAndEpoch | None:
    """Return the id of the snapshot in a file of that name; None for other files."""
    stem = name.removesuffix(SUFFIX)
    offset, dash, epoch = stem.partition("-")
    if stem == name or not dash or not offset.isdigit() or not epoch.isdigit():
        return None
    return OffsetAndEpoch(int(offset), int(epoch))


def build(
    snapshot_id: OffsetAndEpoch,
    voters: VoterSet | None,
    batches: Iterable[Buffer],
    *,
    last_timestamp_ms: int,
) -> bytearray:
    """Return the whole file. The offsets in `batches`, the state, are replaced. Without `voters`
    the configured ones of each node apply."""
    controls: list[tuple[ControlType, dict[str, Any]]] = [
        (ControlType.SNAPSHOT_HEADER, {"last_contained_log_timestamp": last_timestamp_ms})
    ]
    if voters is not None:
        controls += [
            (ControlType.KRAFT_VERSION, {"kraft_version": KRAFT_VERSION}),
            (ControlType.KRAFT_VOTERS, voters.to_fields()),
        ]
    head = build_control_batch(
        controls,
        base_offset=0,
        leader_epoch=snapshot_id.epoch,
        timestamp_ms=last_timestamp_ms,
    )
    out, next_offset = bytearray(head), len(controls)
    for batch in batches:
        data = bytearray(batch)
        assign(data, 0, next_offset, snapshot_id.epoch)
        out += data
        next_offset = read_header(data).next_offset
    out += build_control_batch(
        [(ControlType.SNAPSHOT_FOOTER, {})],
        base_offset=next_offset,
        leader_epoch=snapshot_id.epoch,
        timestamp_ms=last_timestamp_ms,
    )
    return out


def read(data: Buffer) -> tuple[VoterSet | None, list[memoryview]]:
    """Return the voters in a snapshot, if it has any, and the batches of the state.

    Raises `CorruptBatch` for a file that is incomplete or corrupt.
    """
    voters, batches, complete, end = None, [], False, 0
    for at, header in iter_headers(data):
        if complete or not check_crc(data, at, header):
            raise CorruptBatch(f"the snapshot's batch at byte {at}")
        end = at + header.size
        if not header.is_control:
            batches.append(memoryview(data)[at:end])
            continue
        for record in read_control_batch(data, at):
            if record.kind is ControlType.KRAFT_VOTERS:
                voters = VoterSet.from_fields(record.fields)
            complete = record.kind is ControlType.SNAPSHOT_FOOTER
    if not complete or end != len(data):
        raise CorruptBatch("the snapshot has no footer at its end")
    return voters, batches
