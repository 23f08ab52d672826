"""Individual commit: members of consumer groups commit finished offsets above their position.

Every offset below the *stable offset* of a partition is finished. It is the committed offset of the
partition for all other clients. Finished offsets above it are in the same record of
`__consumer_offsets`, in a tagged field that other readers ignore. So one write or one tombstone
covers both, and a commit of another client or an older broker, which lacks the field, removes the
finished offsets above it (ADR 77).

A commit adds to the finished offsets. The client names holes in the log, such as control records
and what compaction removed, as finished, because it sees them between the records that it fetched.

A key range is a range of key hashes, 0 to `KEY_HASH_MAX`. Only the range of a whole partition is
accepted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.protocol.codec import KEY_HASH_MAX
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.record.finished_offsets import EMPTY, FinishedOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.group.settings import GroupSettings

ENABLE = "shoal.group.consumer.individual.commit.enable"
MAX_RANGES = "shoal.group.consumer.individual.commit.max.ranges"


class KeyRange(NamedTuple):
    """A key range of a commit. `finished` has the encoding of `FinishedOffsets`."""

    first_hash: int
    last_hash: int
    position: int
    finished: bytes


class Progress(NamedTuple):
    """What is finished in a partition: all offsets below `stable_offset`, and `finished` above it.

    `gap_timestamp_ms` is when the stable offset reached the lowest unfinished offset below
    `finished`; -1 without such a gap.
    """

    stable_offset: int
    finished: FinishedOffsets = EMPTY
    gap_timestamp_ms: int = -1


class Commit(NamedTuple):
    """A valid commit of a whole partition."""

    position: int
    finished: FinishedOffsets


def ranges_of(asked: Any) -> tuple[KeyRange, ...]:
    """Return the key ranges of a partition in a request; () for a plain commit."""
    return tuple(
        KeyRange(r.first_hash, r.last_hash, r.position, r.finished)
        for r in getattr(asked, "key_ranges", ())
    )


def end_of(key_ranges: Sequence[KeyRange]) -> int:
    """Return the offset after the highest one that a commit names as finished; what `checked`
    refuses is left out."""
    end = 0
    for key_range in key_ranges:
        end = max(end, key_range.position)
        with suppress(ValueError):
            end = max(end, FinishedOffsets.decode(key_range.finished).last + 1)
    return end


def checked(key_ranges: Sequence[KeyRange], settings: GroupSettings) -> Commit:
    """Return the commit of these key ranges. Raises `ApiError` with a message for the client."""
    if not settings.shoal_group_consumer_individual_commit_enable:
        raise ApiError(
            ErrorCode.policy_violation,
            f"Individual commit is off. Set {ENABLE}=true on the brokers.",
        )
    first, last, position, encoded = key_ranges[0]
    if len(key_ranges) > 1 or (first, last) != (0, KEY_HASH_MAX):
        named = ", ".join(f"{r.first_hash}-{r.last_hash}" for r in key_ranges[:3])
        raise ApiError(
            ErrorCode.invalid_request,
            f"The key ranges {named} are not a whole partition. "
            f"Commit the one range 0-{KEY_HASH_MAX}.",
        )
    if position < 0:
        raise ApiError(
            ErrorCode.invalid_request,
            f"The position {position} is below 0. Commit the next offset to read.",
        )
    try:
        finished = FinishedOffsets.decode_checked(encoded)
    except ValueError as error:
        raise ApiError(
            ErrorCode.invalid_request,
            f"{error}. Commit ascending ranges that do not touch.",
        ) from None
    return Commit(position, finished)


def check_size(commits: Sequence[Sequence[KeyRange]], settings: GroupSettings) -> None:
    """Check the ranges of a request together. Raises `ApiError`."""
    limit = settings.shoal_group_consumer_individual_commit_max_ranges
    # A range with the gap before it has at least two bytes.
    if sum(len(r.finished) for key_ranges in commits for r in key_ranges) <= limit:
        return
    count = 0
    for key_ranges in commits:
        for key_range in key_ranges:
            with suppress(ValueError):  # `checked` refuses its partition.
                count += FinishedOffsets.decode(key_range.finished).count
    if count > limit:
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The request has {count} ranges of finished offsets; {MAX_RANGES} is {limit}. "
            "Divide it into several requests.",
        )


def advanced(
    current: Progress | None, commit: Commit, now_ms: int, settings: GroupSettings
) -> Progress:
    """Return the progress after a commit, which equals `current` if all of it was finished before.

    Raises `ApiError` if too many ranges would be left above the stable offset. A commit that leaves
    no more than before is accepted, in case the limit was lowered.
    """
    if current is None:
        current = Progress(commit.position)
    at_least = max(current.stable_offset, commit.position)
    finished = current.finished.merged(list(commit.finished.ranges()))
    stable_offset = finished.first_missing(at_least)
    finished = finished.above(stable_offset)
    limit = settings.shoal_group_consumer_individual_commit_max_ranges
    if finished.count > max(limit, current.finished.count):
        raise ApiError(
            ErrorCode.invalid_commit_offset_size,
            f"The partition would have {finished.count} ranges of finished offsets above its "
            f"stable offset {stable_offset}; {MAX_RANGES} is {limit}. Finish the record at that "
            "offset first.",
        )
    gap_timestamp_ms = -1
    if finished.count:
        same = stable_offset == current.stable_offset and current.finished.count
        gap_timestamp_ms = current.gap_timestamp_ms if same else now_ms
    return Progress(stable_offset, finished, gap_timestamp_ms)


def on_wire(progress: Progress) -> tuple[Mapping[str, Any], ...]:
    """Return the key ranges of a record or of OffsetFetch; () if nothing is finished above the
    stable offset, so that the bytes equal Kafka's."""
    if not progress.finished.count:
        return ()
    return (
        {
            "first_hash": 0,
            "last_hash": KEY_HASH_MAX,
            "position": progress.stable_offset,
            "finished": progress.finished.encode(),
            "gap_timestamp": progress.gap_timestamp_ms,
        },
    )


def from_record(offset: int, key_ranges: Sequence[Mapping[str, Any]]) -> Progress:
    """Return the progress in a record with this offset.

    Key ranges of a newer broker that are not one whole partition are ignored: what they have above
    the offset is delivered again.
    """
    if len(key_ranges) == 1:
        (stored,) = key_ranges
        whole = (stored["first_hash"], stored["last_hash"]) == (0, KEY_HASH_MAX)
        if whole and stored["position"] == offset:
            finished = FinishedOffsets.decode(stored["finished"])
            return Progress(offset, finished, stored["gap_timestamp"])
    return Progress(offset)
