"""Replicas with one rule broken, each by name. They measure what the simulation finds.

A mutant is a function that breaks the core through pytest's `monkeypatch` for one test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from shoal.quorum import elections, following, leading, membership, raft
from shoal.quorum.leader_state import LeaderState
from shoal.quorum.log_index import FetchValidation, LogIndex, OffsetAndEpoch
from shoal.quorum.messages import Response, VoteRequest
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.raft import Raft
from shoal.quorum.states import Role
from shoal.quorum.store import QuorumStore
from shoal.quorum.voters import Voter, VoterSet

Mutant = Callable[[pytest.MonkeyPatch], None]


def commits_earlier_epochs(patch: pytest.MonkeyPatch) -> None:
    """Counts copies of records of earlier epochs, against Raft section 5.4.2."""
    real = leading.open_epoch

    def open_epoch(replica: Raft, leader: LeaderState, granting: Any) -> None:
        real(replica, leader, granting)
        leader.start_offset = -1

    patch.setattr(leading, "open_epoch", open_epoch)


def forgets_its_vote(patch: pytest.MonkeyPatch) -> None:
    """The vote is not written to the quorum-state file."""
    real = QuorumState.encode
    patch.setattr(QuorumState, "encode", lambda self: real(self._replace(voted=None)))


def forgets_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """The quorum-state file is not written at all."""
    real = QuorumStore.apply

    def apply(self: QuorumStore, effects: Any, *, now_ms: int) -> None:
        real(self, replace(effects, state=None), now_ms=now_ms)

    patch.setattr(QuorumStore, "apply", apply)


def votes_twice(patch: pytest.MonkeyPatch) -> None:
    """A voter gives its vote of an epoch to the last candidate that asks."""
    real = elections.on_vote

    def on_vote(replica: Raft, message: Any, request: Any) -> None:
        if not request.pre_vote and replica.epoch == request.replica_epoch:
            if replica.role is Role.UNATTACHED:
                replica.voted = None
        real(replica, message, request)

    patch.setitem(raft._REQUESTS, VoteRequest, on_vote)


def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """A voter does not compare logs."""
    real = elections.on_vote

    def on_vote(replica: Raft, message: Any, request: Any) -> None:
        real(replica, message, replace(request, last_offset=1 << 40, last_offset_epoch=1 << 30))

    patch.setitem(raft._REQUESTS, VoteRequest, on_vote)


def fetches_before_it_has_synced(patch: pytest.MonkeyPatch) -> None:
    """A follower's fetch offset covers data that a power loss would take."""
    real = following.drive

    def drive(replica: Raft) -> None:
        synced, replica.synced_offset = replica.synced_offset, replica.index.end_offset
        real(replica)
        replica.synced_offset = synced

    patch.setattr(following, "drive", drive)


def leader_counts_itself_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A leader treats its own log as durable once it is written."""
    real = leading.advance

    def advance(replica: Raft, leader: LeaderState) -> None:
        synced, replica.synced_offset = replica.synced_offset, replica.index.end_offset
        real(replica, leader)
        replica.synced_offset = synced

    patch.setattr(leading, "advance", advance)


def knows_voters_by_their_id(patch: pytest.MonkeyPatch) -> None:
    """A replica with an empty disk counts as the voter that it was."""
    patch.setattr(Voter, "is_of", lambda self, key: self.key.id == key.id)
    patch.setattr(elections, "is_for", lambda replica, voter: voter.id == replica.local.id)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Two of four voters are enough."""
    patch.setattr(VoterSet, "majority", property(lambda self: (len(self.voters) + 1) // 2))


def keeps_a_divergent_tail(patch: pytest.MonkeyPatch) -> None:
    """A follower appends after records that its leader does not have."""
    real = LogIndex.check

    def check(self: LogIndex, fetch_offset: int, last_fetched_epoch: int) -> Any:
        if self.start_offset <= fetch_offset <= self.end_offset:
            return FetchValidation.VALID, OffsetAndEpoch(fetch_offset, last_fetched_epoch)
        return real(self, fetch_offset, last_fetched_epoch)

    patch.setattr(LogIndex, "check", check)


def changes_voters_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A leader changes the voters again before the last change is committed, or before a record of
    its own epoch is."""

    patch.setattr(membership, "_may_change", lambda *_: True)


def leads_on_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A leader continues to lead its epoch after a restart."""
    real = Raft._start

    def start(self: Raft) -> None:
        if self.leader_id == self.local.id:
            self.role = Role.LEADER
            self.leader_state = LeaderState(self.epoch, self.index.end_offset - 1, self.now_ms)
            for voter in self.voters.latest.find_others(self.local):
                self.leader_state.begin_due_ms[voter.key.id] = self.now_ms
        else:
            real(self)

    patch.setattr(Raft, "_start", start)


def takes_any_response(patch: pytest.MonkeyPatch) -> None:
    """A late response counts for the request in flight."""
    real = Raft._receive

    def receive(self: Raft, message: Any) -> None:
        flight = self.in_flight.get(message.source)
        if isinstance(message.body, Response) and flight is not None:
            message = message._replace(correlation=flight.correlation)
        real(self, message)

    patch.setattr(Raft, "_receive", receive)


def fetches_before_its_cut_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A follower appends after a truncation that a power loss may undo."""
    patch.setattr(Raft, "sync_pending", property(lambda self: self._sync_due))


def stands_only_as_a_voter(patch: pytest.MonkeyPatch) -> None:
    """A leader that has removed itself does not stand again, although the removal is
    uncommitted."""
    patch.setattr(Raft, "may_stand", property(lambda self: self.is_voter))


def stands_by_the_set_at_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """After a restart, the high watermark is too old to determine the committed voters."""

    def may_stand(self: Raft) -> bool:
        return self.is_voter or self.voters.find_set_at(self.high_watermark).has_voter(self.local)

    patch.setattr(Raft, "may_stand", property(may_stand))


MUTANTS: dict[str, Mutant] = {
    m.__name__: m
    for m in (
        commits_earlier_epochs,
        forgets_its_vote,
        forgets_its_epoch,
        votes_twice,
        votes_for_shorter_logs,
        fetches_before_it_has_synced,
        leader_counts_itself_unsynced,
        half_is_a_majority,
        keeps_a_divergent_tail,
        changes_voters_before_commit,
        leads_on_after_a_restart,
        takes_any_response,
        stands_only_as_a_voter,
        stands_by_the_set_at_its_high_watermark,
        fetches_before_its_cut_is_durable,
    )
}
