"""The state of groups and transactions of a restored cluster, from the backups. Pure.

A log may come back shorter than it was: what was not in the store is lost, and later records get
its offsets. So nothing may refer to offsets above the restored end: positions move back to it, and
share groups forget what they finished above it. Members are gone, and open transactions with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import CoordinatorRecord, RecordOrigin
from shoal.coordinator.group import records as group_records
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.share import records as share_records
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import ShareStateShard, StateStoreConfig
from shoal.record.finished_offsets import FinishedOffsets
from shoal.transaction import records as transaction_records
from shoal.transaction.states import TransactionState
from shoal.transaction.transactions import LAST_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Set
    from uuid import UUID

    from shoal.coordinator.share.backoff import Delay
    from shoal.coordinator.share.state_store import ShareState
    from shoal.transaction.transactions import TransactionMetadata

Pair = tuple[bytes, bytes | None]
#: Records of groups that stay. Those of members and their assignments do not.
_KEPT = (
    RecordType.CONSUMER_GROUP_METADATA,
    RecordType.SHARE_GROUP_METADATA,
)
_OFFSETS = (RecordType.OFFSET_COMMIT, RecordType.LEGACY_OFFSET_COMMIT)
_UNKNOWN = -1
#: States whose transaction was open. Its records are aborted.
_OPEN = (
    TransactionState.ONGOING,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)


class EndOffsets(NamedTuple):
    """The end offsets of the restored partitions, by name and by topic id."""

    by_name: Mapping[tuple[str, int], int]
    by_id: Mapping[tuple[UUID, int], int]


def restore_groups(
    pairs: Iterable[Pair], ends: EndOffsets, *, states: Set[ShareKey]
) -> Iterator[Pair]:
    """Yield the records of `__consumer_offsets`. `states` are the share partitions that have a
    state. Raises `WireError`."""
    for key, value in pairs:
        decoded = group_records.decode(CoordinatorRecord(key, value))
        if decoded is None or decoded.value is None or value is None:
            continue
        version = int.from_bytes(value[:2], "big")
        if decoded.type in _OFFSETS:
            end = ends.by_name.get((decoded.key["topic"], decoded.key["partition"]))
            if end is not None:
                fields = _restore_position(decoded.value, end)
                yield _to_pair(
                    group_records.encode_record(decoded.type, decoded.key, fields, version)
                )
        elif decoded.type is RecordType.GROUP_METADATA:
            fields = decoded.value | {"members": [], "leader": None, "protocol": None}
            yield _to_pair(group_records.encode_record(decoded.type, decoded.key, fields, version))
        elif decoded.type is RecordType.SHARE_GROUP_STATE_PARTITION_METADATA:
            fields = _restore_initialization(decoded.key["group_id"], decoded.value, states)
            yield _to_pair(group_records.encode_record(decoded.type, decoded.key, fields, version))
        elif decoded.type in _KEPT:
            yield key, value


def _restore_initialization(
    group_id: str, fields: Mapping[str, Any], states: Set[ShareKey]
) -> dict[str, Any]:
    """Return which share partitions have a state. The others are initialized again when a member
    comes: the backup of the group may be newer than that of the states."""
    initialized, again = [], list(fields["initializing_topics"])
    for topic in fields["initialized_topics"]:
        topic_id, partitions = topic["topic_id"], set(topic["partitions"])
        kept = {p for p in partitions if ShareKey(group_id, topic_id, p) in states}
        if kept:
            initialized.append(topic | {"partitions": sorted(kept)})
        if lost := partitions - kept:
            lost |= {
                p for entry in again if entry["topic_id"] == topic_id for p in entry["partitions"]
            }
            again = [entry for entry in again if entry["topic_id"] != topic_id]
            again.append(topic | {"partitions": sorted(lost)})
    return {**fields, "initialized_topics": initialized, "initializing_topics": again}


def _to_pair(record: CoordinatorRecord) -> Pair:
    return record.key, record.value


def _restore_position(fields: Mapping[str, Any], end: int) -> dict[str, Any]:
    """Return an offset that is at most `end`. Its epoch is unknown then, and finished offsets above
    it are delivered again."""
    out = dict(fields)
    # Offsets of the restored group's own log are others. No transaction is open.
    if "replaced_at" in out:
        out["replaced_at"] = group_records.THIS_RECORD
    if out["offset"] > end:
        out["offset"] = end
        if "leader_epoch" in out:
            out["leader_epoch"] = _UNKNOWN
    ranges = out.get("key_ranges") or ()
    if any(_is_past_end(key_range, end) for key_range in ranges):
        out["key_ranges"] = []
    return out


def _is_past_end(key_range: Mapping[str, Any], end: int) -> bool:
    chunks = FinishedOffsets.decode(bytes(key_range["finished"])).chunks
    return key_range["position"] > end or bool(chunks and chunks[-1].last >= end)


def list_share_keys(pairs: Iterable[Pair]) -> frozenset[ShareKey]:
    """Return the share partitions that have a state in `__share_group_state`."""
    return frozenset(state.key for state in _replay_states(pairs))


def _replay_states(pairs: Iterable[Pair]) -> Iterable[ShareState]:
    shard = ShareStateShard(StateStoreConfig(), lambda _topic_id: None)
    for offset, (key, value) in enumerate(pairs):
        shard.replay(CoordinatorRecord(key, value), RecordOrigin(offset, 0))
    return shard.list_states()


def restore_share_groups(pairs: Iterable[Pair], ends: EndOffsets) -> Iterator[Pair]:
    """Yield the records of `__share_group_state`: a snapshot of each share partition."""
    for state in _replay_states(pairs):
        end = ends.by_id.get((state.key.topic_id, state.key.partition))
        if end is not None:
            yield _to_pair(_make_share_snapshot(state, end))


def _make_share_snapshot(state: ShareState, end: int) -> CoordinatorRecord:
    batches = [
        batch._replace(last_offset=min(batch.last_offset, end - 1))
        for batch in map(_Batch._make, state.batches)
        if batch.first_offset < end
    ]
    cut = state.start_offset > end or any(batch[1] >= end for batch in state.batches)
    return share_records.encode_snapshot(
        state.key,
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        # The partition has a leader of a later epoch, by whatever number.
        leader_epoch=0,
        start_offset=min(state.start_offset, end),
        delivery_complete_count=_UNKNOWN if cut else state.delivery_complete_count,
        create_timestamp=state.create_timestamp,
        write_timestamp=state.write_timestamp,
        state_batches=batches,
        delays=[
            restored_delay for delay in state.delays if (restored_delay := _cut_delay(delay, end))
        ],
    )


class _Batch(NamedTuple):
    """A `StateBatch` with names."""

    first_offset: int
    last_offset: int
    state: int
    delivery_count: int


def _cut_delay(delay: Delay, end: int) -> Delay | None:
    first, last = delay[0], min(delay[1], end - 1)
    return type(delay)._make((first, last, *delay[2:])) if first <= last else None


class RestoredTransactions(NamedTuple):
    """The records of `__transaction_state`, and what is committed as soon as the cluster runs: the
    partitions of each producer id whose transaction was decided."""

    pairs: list[Pair]
    committing: dict[int, frozenset[tuple[str, int]]]


def restore_transactions(pairs: Iterable[Pair]) -> RestoredTransactions:
    """Abort open transactions and fence their producers. Raises `WireError`."""
    out = RestoredTransactions([], {})
    for key, value in pairs:
        decoded = transaction_records.decode(CoordinatorRecord(key, value))
        transactional_id, transaction = decoded or ("", None)
        if transaction is None:
            continue
        if transaction.state is TransactionState.PREPARE_COMMIT:
            out.committing[transaction.producer_id] = frozenset(transaction.partitions)
        elif transaction.state in _OPEN:
            aborted = _abort(transaction)
            out.pairs.append(_to_pair(transaction_records.build_record(transactional_id, aborted)))
            continue
        out.pairs.append((key, value))
    return out


def _abort(transaction: TransactionMetadata) -> TransactionMetadata:
    epoch = min(transaction.producer_epoch + 1, LAST_EPOCH)
    return transaction._replace(
        state=TransactionState.COMPLETE_ABORT,
        producer_epoch=epoch,
        partitions={},
        start_timestamp_ms=-1,
    )
