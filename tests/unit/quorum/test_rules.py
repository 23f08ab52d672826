"""Rules of the quorum, each with the sentence of its specification."""

from __future__ import annotations

import random
from itertools import product
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.quorum import snapshots
from shoal.quorum.control_records import build_control_batch, read_control_batch
from shoal.quorum.leader_state import LeaderState
from shoal.quorum.log_index import FetchValidation, LogIndex, OffsetAndEpoch
from shoal.quorum.quorum_state import CorruptQuorumState, QuorumState
from shoal.quorum.states import MOVES, EpochStep, Role, check_move, format_current_state
from shoal.quorum.store import QuorumStore
from shoal.quorum.voters import ReplicaKey, Voter, VoterEndpoint, VoterHistory, VoterSet
from shoal.record.batch import CorruptBatch
from shoal.record.control import ControlType
from shoal.record.records import build_batch
from support.storage.log_material import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = UUID(int=0xA), UUID(int=0xB)


def voter_set(*ids: int) -> VoterSet:
    return VoterSet.from_voters(Voter(ReplicaKey(id)) for id in ids)


def test_the_committed_offset_is_the_one_that_a_majority_has(seed: int) -> None:
    """Compared with a rule that tries every offset."""
    rng = random.Random(seed)
    for _ in range(3_000):
        voters = voter_set(*range(rng.randint(1, 7)))
        offsets = {id: rng.randint(0, 9) for id in voters.ids if rng.random() < 0.9}
        plain = max(
            offset
            for offset in range(-1, 10)
            if sum(offsets.get(id, -1) >= offset for id in voters.ids) * 2 > len(voters)
        )
        assert voters.find_committed_offset(offsets) == plain, (voters.ids, offsets)


def test_majorities_of_sets_that_follow_one_another_overlap() -> None:
    """KIP-853: "only one voter is added or removed at a time". This test shows the reason."""
    for size in range(1, 10):
        before, after = voter_set(*range(size)), voter_set(*range(size + 1))
        assert before.majority + after.majority > len(after)


def test_a_voter_with_another_directory_is_another_replica() -> None:
    """KIP-853: replicas are identified by id and directory id, so a lost disk is not a voter."""
    voters = VoterSet.from_voters([Voter(ReplicaKey(1, A))])
    assert voters.has_voter(ReplicaKey(1, A))
    assert not voters.has_voter(ReplicaKey(1, B))
    assert voter_set(1).has_voter(ReplicaKey(1, B)), "a configured voter is known by its id alone"


def test_voters_are_taken_back_with_the_record_that_is_cut_off() -> None:
    history = VoterHistory(voter_set(1))
    history.append(5, voter_set(1, 2))
    history.append(9, voter_set(1, 2, 3))
    assert history.find_set_at(9).ids == (1, 2)
    assert history.find_set_at(10).ids == (1, 2, 3)
    history.truncate(9)
    assert history.latest.ids == (1, 2)
    history.truncate(0)
    assert history.latest.ids == (1,)
    history.append(7, voter_set(2))
    history.trim(8)
    assert history.find_set_at(8).ids == (2,)


def test_control_records_survive_encoding() -> None:
    voter = Voter(ReplicaKey(7, A), (VoterEndpoint("CONTROLLER", "host", 9093),), 0, 1)
    voters = VoterSet.from_voters([voter, Voter(ReplicaKey(8))])
    batch = build_control_batch(
        [
            (ControlType.LEADER_CHANGE, {"leader_id": 7, "voters": [{"voter_id": 7}]}),
            (ControlType.KRAFT_VOTERS, voters.to_fields()),
        ],
        base_offset=40,
        leader_epoch=3,
        timestamp_ms=1,
    )
    first, second = read_control_batch(batch)
    assert (first.offset, first.kind, first.fields["leader_id"]) == (40, 2, 7)
    assert first.fields["voters"] == [{"voter_id": 7}]
    assert VoterSet.from_fields(second.fields) == voters


def test_the_quorum_state_is_kafkas_file() -> None:
    state = QuorumState(5, 2, ReplicaKey(3, A))
    data = state.encode()
    assert data.startswith(b'{"leaderId":2,"leaderEpoch":5,"votedId":3,"votedDirectoryId":"')
    assert data.endswith(b'"data_version":1}')
    assert QuorumState.decode(data) == state
    nobody = (
        b'{"leaderId":-1,"leaderEpoch":1,"votedId":-1,'
        b'"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    )
    assert QuorumState.decode(nobody) == QuorumState(1)
    for bad in (b"", b"{}", b'{"data_version":2}', data[:-9]):
        with pytest.raises(CorruptQuorumState):
            QuorumState.decode(bad)


def test_no_move_lowers_the_epoch_and_only_candidacy_raises_it_by_one() -> None:
    for (before, after), step in MOVES.items():
        assert not step.may_change(5, 4)
        assert (step is EpochStep.NEXT) == ((before, after) == (Role.PROSPECTIVE, Role.CANDIDATE))
    for before, after in product(Role, Role):
        if (before, after) not in MOVES:
            with pytest.raises(AssertionError):
                check_move(before, 1, after, 2)


def test_only_candidates_become_leaders_and_a_leader_does_not_come_back_to_its_epoch() -> None:
    assert [before for before, after in MOVES if after is Role.LEADER] == [Role.CANDIDATE]
    for (before, _), step in MOVES.items():
        if before is Role.RESIGNED:
            assert step is EpochStep.HIGHER


def test_states_have_kafkas_names() -> None:
    assert format_current_state(Role.FOLLOWER, voter=False, voted=False) == "observer"
    assert format_current_state(Role.UNATTACHED, voter=True, voted=True) == "unattached-voted"
    assert format_current_state(Role.LEADER, voter=True, voted=True) == "leader"


# The log index compared with lists of epochs, and two logs compared with each other.


def index_of(epochs: list[int]) -> LogIndex:
    index = LogIndex()
    for offset, epoch in enumerate(epochs):
        index.append(epoch, offset, offset + 1)
    return index


def logs(seed: int) -> Iterator[tuple[list[int], list[int]]]:
    rng = random.Random(seed)
    for _ in range(2_000):
        common = sorted(rng.randint(1, 3) for _ in range(rng.randint(0, 4)))
        base = common[-1] if common else 1
        # Two leaders never share an epoch, so the records after the common part differ in it.
        left = sorted(rng.choice((base + 1, base + 3)) for _ in range(rng.randint(0, 4)))
        right = sorted(rng.choice((base + 2, base + 4)) for _ in range(rng.randint(0, 4)))
        yield common + left, common + right


def test_a_follower_is_cut_to_the_common_prefix_in_a_few_fetches(seed: int) -> None:
    """KIP-595: the follower truncates by the diverging epoch until the leader's check succeeds."""
    for leaders, followers in logs(seed):
        leader, follower = index_of(leaders), index_of(followers)
        common = next(
            (i for i, (a, b) in enumerate(zip(leaders, followers, strict=False)) if a != b),
            min(len(leaders), len(followers)),
        )
        for _ in range(6):
            verdict, where = leader.check(follower.end_offset, follower.last_epoch)
            if verdict is FetchValidation.VALID:
                break
            before = follower.end_offset
            follower.truncate(follower.find_truncation_offset(where))
            assert follower.end_offset < before
        assert follower.end_offset == common, (leaders, followers)


def test_a_replica_behind_the_log_start_gets_the_snapshot() -> None:
    """KIP-630: an offset below the log start, or an epoch below the snapshot's."""
    index = index_of([1, 1, 2, 2, 4])
    index.snapshots.append(OffsetAndEpoch(3, 2))
    index.trim(OffsetAndEpoch(3, 2))
    assert (index.start_offset, index.epochs) == (3, [(2, 3), (4, 4)])
    for offset, epoch in ((0, 0), (2, 1), (3, 1), (5, 1)):
        assert index.check(offset, epoch) == (FetchValidation.SNAPSHOT, OffsetAndEpoch(3, 2))
    assert index.check(3, 2)[0] is FetchValidation.VALID
    assert index.check(5, 3) == (FetchValidation.DIVERGING, OffsetAndEpoch(4, 2))
    index.trim(OffsetAndEpoch(5, 4))
    assert index.end == OffsetAndEpoch(5, 4)


def test_a_leader_needs_a_majority_that_fetches() -> None:
    voters, leader = voter_set(1, 2, 3), LeaderState(1, 0, now_ms=1_000)
    assert leader.find_resign_deadline_ms(voters, ReplicaKey(1), 3_000) == 4_000
    leader.record_fetch(ReplicaKey(2), 2_000)
    assert leader.find_resign_deadline_ms(voters, ReplicaKey(1), 3_000) == 5_000
    # A leader that is no longer a voter needs two of the others.
    assert leader.find_resign_deadline_ms(voter_set(2, 3, 4), ReplicaKey(1), 3_000) == 4_000
    assert leader.find_resign_deadline_ms(voter_set(1), ReplicaKey(1), 3_000) is None


def test_a_snapshot_without_its_footer_is_none() -> None:
    batch = build_batch([(5, None, b"state", ())])
    id = OffsetAndEpoch(9, 2)
    data = bytes(snapshots.build(id, voter_set(1), [batch], last_timestamp_ms=5))
    voters, (found,) = snapshots.read(data)
    assert voters == voter_set(1)
    assert b"state" in bytes(found)
    assert snapshots.parse_file_name(snapshots.format_file_name(id)) == id
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            snapshots.read(data[:size])


def test_a_snapshot_that_the_log_does_not_lead_through_replaces_it() -> None:
    """A crash happened between a fetched snapshot and the truncation of the log that it
    replaces."""
    storage = MemoryStorage()

    def opened() -> QuorumStore:
        log = Log.open(storage, "d/m-0", LogConfig(), now_ms=NOW_MS, clean=False)
        return QuorumStore(storage, log, voter_set(1))

    store = opened()
    assert store.voters.latest == voter_set(1)
    for offset in range(4):
        batch = build_batch([(0, None, b"x", ())], base_offset=offset, leader_epoch=1)
        store.log.append_as_follower(batch)
    store.write_snapshot(OffsetAndEpoch(3, 2), voter_set(1, 2), [], last_timestamp_ms=0)
    store = opened()
    assert store.index.end == OffsetAndEpoch(3, 2)
    assert store.log.log_start_offset == 3
    assert store.voters.latest == voter_set(1, 2)


def test_the_first_voters_may_come_from_a_formatted_directory() -> None:
    """`kafka-storage format --standalone` writes them to a snapshot at offset 0 (KIP-853)."""
    storage = MemoryStorage()
    storage.make_directory("d/m-0")
    data = snapshots.build(OffsetAndEpoch(0, 0), voter_set(4), [], last_timestamp_ms=0)
    name = snapshots.format_file_name(OffsetAndEpoch(0, 0))
    storage.replace_file(f"d/m-0/{name}", data, sync=True)
    log = Log.open(storage, "d/m-0", LogConfig(), now_ms=NOW_MS, clean=False)
    store = QuorumStore(storage, log, voter_set(1))
    assert (store.voters.latest, store.voters.latest_offset) == (voter_set(4), -1)


def test_an_epoch_whose_first_record_was_refused_is_forgotten_at_the_next_start() -> None:
    """The log records the start of an epoch before it writes; then the disk was full (make sim
    SEED=199 with a log that was reopened unchanged)."""
    storage = MemoryStorage()
    log = Log.open(storage, "d/m-0", LogConfig(), now_ms=NOW_MS, clean=False)
    log.append_as_follower(build_batch([(0, None, b"x", ())], leader_epoch=1))
    log.begin_epoch(2)
    store = QuorumStore(storage, log, voter_set(1))
    store.check()
    assert log.latest_epoch == store.index.last_epoch == 1
