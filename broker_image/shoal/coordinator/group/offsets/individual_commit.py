"""Individual commit: members of consumer groups commit finished offsets above their position.

Every offset below the *stable offset* of a partition is finished. It is the committed offset of the
partition for all other clients. Finished offsets above it are in the same record of
`__consumer_offsets`, in a tagged field that other readers ignore. So one write or one tombstone
covers both, and a commit of another client or an older broker, which lacks the field, removes the
finished offsets above it (ADR 77).

A commit adds to the finished offsets. The client names holes in the log, such as control records
and what compaction removed, as finished, because it sees them between the records that it fetched.

A key range is a range of key hashes, 0 to `KEY_HASH_MAX`. Members that share a partition commit a
position for each of their key ranges (ADR 101). The stored pieces always tile the hashes, and the
stable offset is the lowest of their positions. A piece that no member has committed yet has the
position -1. Then the partition has no committed offset, so that nothing of that piece is skipped.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_MAX, KEY_RANGES_MAX
from shoal.record import key_range_map
from shoal.record.finished_offsets import EMPTY, FinishedOffsets, count_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.coordinator.group.settings import GroupSettings
    from shoal.protocol.responses import groups as responses

ENABLE = "shoal.group.consumer.individual.commit.enable"
KEY_RANGES_ENABLE = "shoal.group.consumer.key.ranges.enable"
MAX_RANGES = "shoal.group.consumer.individual.commit.max.ranges"


class KeyRangeRequest(NamedTuple):
    """A key range of a commit. `finished` has the encoding of `FinishedOffsets`."""

    first_hash: int
    last_hash: int
    position: int
    finished: bytes


class KeyRangeProgress(NamedTuple):
    """What is finished in a piece: all offsets below `get_stable_offset`, and `finished` above it.

    `gap_timestamp_ms` is when the stable offset reached the lowest unfinished offset below
    `finished`; -1 without such a gap.
    """

    stable_offset: int
    finished: FinishedOffsets = EMPTY
    gap_timestamp_ms: int = -1


#: The pieces of a partition, which tile the hashes.
KeyRangePositions = tuple[tuple[int, int, KeyRangeProgress], ...]


class RangeCommit(NamedTuple):
    """A valid commit of a key range."""

    position: int
    finished: FinishedOffsets


def make_single_range(progress: KeyRangeProgress) -> KeyRangePositions:
    """Return the one piece of a partition that is not shared."""
    return ((0, KEY_HASH_MAX, progress),)


#: The pieces of a partition without a committed offset.
NONE_COMMITTED: KeyRangePositions = make_single_range(KeyRangeProgress(-1))


def get_stable_offset(range_positions: KeyRangePositions) -> int:
    """The committed offset of the partition for other clients; -1 for none."""
    return min(progress.stable_offset for _, _, progress in range_positions)


def parse_key_ranges(partition: Any) -> tuple[KeyRangeRequest, ...]:
    """Return the key ranges of a partition in a request; () for a plain commit."""
    return tuple(
        KeyRangeRequest(r.first_hash, r.last_hash, r.position, r.finished)
        for r in getattr(partition, "key_ranges", ())
    )


def find_end(key_ranges: Sequence[KeyRangeRequest]) -> int:
    """Return the offset after the highest one that a commit names as finished; what
    `validate_commits` refuses is left out."""
    end = 0
    for key_range in key_ranges:
        end = max(end, key_range.position)
        if key_range.finished:
            with suppress(ValueError):
                end = max(end, FinishedOffsets.decode(key_range.finished).last + 1)
    return end


def is_whole(key_ranges: Sequence[KeyRangeRequest]) -> bool:
    """Whether a commit is of a whole partition at once."""
    return len(key_ranges) == 1 and key_ranges[0][:2] == (0, KEY_HASH_MAX)


def validate_commits(
    key_ranges: Sequence[KeyRangeRequest], settings: GroupSettings
) -> list[tuple[int, int, RangeCommit]]:
    """Return the commits of these key ranges. Raises `ApiError` with a message for the client."""
    if not is_whole(key_ranges):
        _check_ranges(key_ranges, settings)
    commits = [(r.first_hash, r.last_hash, _parse_commit(r)) for r in key_ranges]
    individual = is_whole(key_ranges) or any(r.finished for r in key_ranges)
    if individual and not settings.shoal_group_consumer_individual_commit_enable:
        raise ApiError(
            ErrorCode.policy_violation,
            f"Individual commit is off. Set {ENABLE}=true on the brokers.",
        )
    return commits


def _check_ranges(key_ranges: Sequence[KeyRangeRequest], settings: GroupSettings) -> None:
    if not settings.shoal_group_consumer_key_ranges_enable:
        raise ApiError(
            ErrorCode.policy_violation,
            f"Key ranges of consumer groups are off. Set {KEY_RANGES_ENABLE}=true on the brokers.",
        )
    if len(key_ranges) > KEY_RANGES_MAX:
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The commit has {len(key_ranges)} key ranges of a partition, at most {KEY_RANGES_MAX} "
            "are allowed. Join ranges that touch.",
        )
    before = -1
    for key_range in sorted(key_ranges):
        label = f"The key range {key_range.first_hash}-{key_range.last_hash}"
        if key_range.first_hash < 0:
            reason = f"{label} is outside of 0-{KEY_HASH_MAX}. Commit assigned ranges"
        elif key_range.last_hash < key_range.first_hash:
            reason = f"{label} ends before it begins. Write the lower hash first"
        elif key_range.first_hash <= before:
            reason = f"{label} overlaps the one before it. Name each hash once"
        else:
            before = key_range.last_hash
            continue
        raise ApiError(ErrorCode.invalid_request, f"{reason}.")


def _parse_commit(key_range: KeyRangeRequest) -> RangeCommit:
    if key_range.position < 0:
        raise ApiError(
            ErrorCode.invalid_request,
            f"The position {key_range.position} is below 0. Commit the next offset to read.",
        )
    try:
        finished = FinishedOffsets.decode_checked(key_range.finished)
    except ValueError as error:
        raise ApiError(
            ErrorCode.invalid_request,
            f"{error}. Commit ascending ranges that do not touch.",
        ) from None
    return RangeCommit(key_range.position, finished)


def check_size(commits: Iterable[Sequence[KeyRangeRequest]], settings: GroupSettings) -> None:
    """Check the ranges of a request together, before they are decoded. Raises `ApiError`."""
    limit = settings.shoal_group_consumer_individual_commit_max_ranges
    count = 0
    for key_range in chain.from_iterable(commits):
        count += count_ranges(key_range.finished, limit - count)
        if count > limit:
            raise ApiError(
                ErrorCode.invalid_commit_offset_size,
                f"The request has more than {limit} ranges of finished offsets, which is "
                f"{MAX_RANGES}. Divide it into several requests.",
            )


def advance_progress(
    current: KeyRangeProgress | None, commit: RangeCommit, now_ms: int, settings: GroupSettings
) -> KeyRangeProgress:
    """Return the progress after a commit, which equals `current` if all of it was finished before.

    Raises `ApiError` if too many ranges would be left above the stable offset. A commit that leaves
    no more than before is accepted, in case the limit was lowered.
    """
    after = _merge_commit(current, commit, now_ms)
    count = after.finished.count
    limit = settings.shoal_group_consumer_individual_commit_max_ranges
    if count > max(limit, 0 if current is None else current.finished.count):
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The partition would have {count} ranges of finished offsets above its "
            f"stable offset {after.stable_offset}; {MAX_RANGES} is {limit}. Finish the record at "
            "that offset first.",
        )
    return after


def _merge_commit(
    current: KeyRangeProgress | None, commit: RangeCommit, now_ms: int
) -> KeyRangeProgress:
    if current is None:
        current = KeyRangeProgress(commit.position)
    at_least = max(current.stable_offset, commit.position)
    finished = current.finished.merge(list(commit.finished.iter_ranges()))
    stable_offset = finished.find_first_missing(at_least)
    finished = finished.without_below(stable_offset)
    gap_timestamp_ms = -1
    if finished.count:
        same = stable_offset == current.stable_offset and current.finished.count
        gap_timestamp_ms = current.gap_timestamp_ms if same else now_ms
    return KeyRangeProgress(stable_offset, finished, gap_timestamp_ms)


def apply_commits(
    current: KeyRangePositions | None,
    commits: Sequence[tuple[int, int, RangeCommit]],
    now_ms: int,
    settings: GroupSettings,
) -> KeyRangePositions:
    """Return the pieces after commits of key ranges, which equal `current` if all of it was
    finished before. Raises `ApiError` if there would be too many ranges, of keys or of finished
    offsets."""
    before = range_positions = NONE_COMMITTED if current is None else current
    for first, last, commit in commits:
        change = partial(_advance_range, commit=commit, now_ms=now_ms, settings=settings)
        range_positions = key_range_map.change_range(range_positions, first, last, change)
    if len(range_positions) > max(KEY_RANGES_MAX, len(before)):
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The partition would have positions of {len(range_positions)} key ranges, at most "
            f"{KEY_RANGES_MAX} are allowed. Commit the ranges with the lowest positions first.",
        )
    limit = settings.shoal_group_consumer_individual_commit_max_ranges
    count = count_finished_ranges(range_positions)
    if len(range_positions) > 1 and count > max(limit, count_finished_ranges(before)):
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The key ranges of the partition would have {count} ranges of finished offsets; "
            f"{MAX_RANGES} is {limit}. Finish the records at the stable offset first.",
        )
    return range_positions


def _advance_range(
    old: KeyRangeProgress, commit: RangeCommit, now_ms: int, settings: GroupSettings
) -> KeyRangeProgress:
    return advance_progress(None if old.stable_offset < 0 else old, commit, now_ms, settings)


def add_commits(
    current: KeyRangePositions | None, commits: Iterable[tuple[int, int, RangeCommit]], now_ms: int
) -> KeyRangePositions:
    """Return the pieces after commits that were checked before, so no limit applies."""
    range_positions = NONE_COMMITTED if current is None else current
    for first, last, commit in commits:
        range_positions = key_range_map.change_range(
            range_positions, first, last, partial(_add_commit, commit=commit, now_ms=now_ms)
        )
    return range_positions


def _add_commit(old: KeyRangeProgress, commit: RangeCommit, now_ms: int) -> KeyRangeProgress:
    return _merge_commit(None if old.stable_offset < 0 else old, commit, now_ms)


def as_commits(range_positions: KeyRangePositions) -> list[tuple[int, int, RangeCommit]]:
    """Return the commits of the pieces that have a position."""
    return [
        (first, last, RangeCommit(progress.stable_offset, progress.finished))
        for first, last, progress in range_positions
        if progress.stable_offset >= 0
    ]


def count_records_ahead(before: KeyRangePositions, after: KeyRangePositions) -> int:
    """About the number of records between two states, if the keys are even over the hashes."""
    weighted_count = 0
    for first, last, new_progress in after:
        for low, high, old_progress in key_range_map.clip_to_range(before, first, last):
            if 0 <= old_progress.stable_offset < new_progress.stable_offset:
                weighted_count += (new_progress.stable_offset - old_progress.stable_offset) * (
                    high - low + 1
                )
    return weighted_count // (KEY_HASH_MAX + 1)


def count_finished_above_stable(range_positions: KeyRangePositions) -> int:
    """About the number of records above the stable offset that are below the positions of their key
    ranges, if the keys are even over the hashes."""
    stable = get_stable_offset(range_positions)
    weighted_count = sum(
        (p.stable_offset - stable) * (last - first + 1) for first, last, p in range_positions
    )
    return weighted_count // (KEY_HASH_MAX + 1) if stable >= 0 else 0


def count_finished_ranges(range_positions: KeyRangePositions) -> int:
    """Number of ranges of finished offsets of a partition."""
    return sum(progress.finished.count for _, _, progress in range_positions)


def to_wire(range_positions: KeyRangePositions) -> tuple[responses.OffsetFetchKeyRange, ...]:
    """Return the key ranges of a record or of OffsetFetch; () if the partition has one position and
    nothing is finished above it, so that the bytes equal Kafka's."""
    return () if is_plain(range_positions) else tuple(starmap(_encode_range, range_positions))


def is_plain(range_positions: KeyRangePositions) -> bool:
    """Whether the pieces have one position, and nothing above it is finished."""
    return len(range_positions) == 1 and not range_positions[0][2].finished.count


def to_transaction_wire(range_positions: KeyRangePositions) -> tuple[Mapping[str, Any], ...]:
    """Return the key ranges in the record of a transaction: pieces that have a position."""
    return tuple(_encode_range(*piece) for piece in range_positions if piece[2].stable_offset >= 0)


def from_transaction_record(key_ranges: Sequence[Mapping[str, Any]]) -> KeyRangePositions:
    """Return the pieces in the record of a transaction, which tile the hashes."""
    range_positions = NONE_COMMITTED
    for first, last, progress in map(_decode_range, key_ranges):
        range_positions = key_range_map.change_range(
            range_positions, first, last, partial(_replace_progress, progress)
        )
    return range_positions


def _replace_progress(progress: KeyRangeProgress, _old: KeyRangeProgress) -> KeyRangeProgress:
    return progress


def _encode_range(
    first: int, last: int, progress: KeyRangeProgress
) -> responses.OffsetFetchKeyRange:
    return {
        "first_hash": first,
        "last_hash": last,
        "position": progress.stable_offset,
        "finished": progress.finished.encode(),
        "gap_timestamp": progress.gap_timestamp_ms,
    }


def _decode_range(stored: Mapping[str, Any]) -> tuple[int, int, KeyRangeProgress]:
    finished = FinishedOffsets.decode(stored["finished"])
    progress = KeyRangeProgress(stored["position"], finished, stored["gap_timestamp"])
    return stored["first_hash"], stored["last_hash"], progress


def from_record(offset: int, key_ranges: Sequence[Mapping[str, Any]]) -> KeyRangePositions:
    """Return the pieces in a record with this offset.

    Key ranges that do not fit the offset, as another version may write them, are ignored: what they
    have above the offset is delivered again.
    """
    range_positions = tuple(map(_decode_range, key_ranges))
    if key_range_map.is_tiling(range_positions) and get_stable_offset(range_positions) == offset:
        return range_positions
    return make_single_range(KeyRangeProgress(offset))
