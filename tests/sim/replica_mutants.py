"""Replication with one rule broken, each by name. They measure what the simulation finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shoal.log import resent
from shoal.protocol.errors import ErrorCode
from shoal.replication import leadership
from shoal.replication.leadership import Leadership
from shoal.replication.partition import Partition, ReplicaFetchResult
from shoal.replication.replica_fetcher import FetchOutcome, FetchStep, ReplicaFetcher

Mutant = Callable[[pytest.MonkeyPatch], None]


def commits_by_itself(patch: pytest.MonkeyPatch) -> None:
    """A leader treats its own log as committed."""
    patch.setattr(Leadership, "compute_high_watermark", lambda self, own_end_offset: own_end_offset)


def forgets_who_joins(patch: pytest.MonkeyPatch) -> None:
    """A replica that the controller may have added already does not hold back the high
    watermark."""
    real = Leadership.compute_high_watermark

    def high_watermark(self: Leadership, own_end_offset: int) -> int:
        proposed, self.proposed = self.proposed, None
        lag_ms, self._partition.lag_time_max_ms = self._partition.lag_time_max_ms, -1
        try:
            return real(self, own_end_offset)
        finally:
            self.proposed, self._partition.lag_time_max_ms = proposed, lag_ms

    patch.setattr(Leadership, "compute_high_watermark", high_watermark)


def takes_silence_for_refusal(patch: pytest.MonkeyPatch) -> None:
    """An AlterPartition request without a response counts as refused."""
    refused = {*leadership._REFUSED, ErrorCode.request_timed_out}
    patch.setattr(leadership, "_REFUSED", refused)


def shrinks_before_the_controller_does(patch: pytest.MonkeyPatch) -> None:
    """A member stops holding back the high watermark when the leader proposes to remove it."""
    real = Leadership._propose

    def propose(self: Leadership, isr: tuple[int, ...]) -> None:
        real(self, isr)
        if len(isr) < len(self._partition.isr):
            self._partition.isr = isr

    patch.setattr(Leadership, "_propose", propose)


def joins_before_it_has_caught_up(patch: pytest.MonkeyPatch) -> None:
    """A follower joins the ISR at any offset."""

    def expand(self: Leadership, replica_id: int, follower: Any) -> None:
        if self.proposed is None and self._may_join(replica_id, follower):
            self._propose((*self._partition.isr, replica_id))

    patch.setattr(Leadership, "_expand", expand)


def joins_as_its_earlier_self(patch: pytest.MonkeyPatch) -> None:
    """A fetch of a broker's earlier incarnation counts for the next one (KIP-903)."""

    def may_join(self: Leadership, replica_id: int, _follower: Any) -> bool:
        return self._partition.broker_epoch_of(replica_id) >= 0

    patch.setattr(Leadership, "_may_join", may_join)
    patch.setattr(
        Leadership, "_find_epoch", lambda self, member: self._partition.broker_epoch_of(member)
    )


def commits_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    """The high watermark moves while too few replicas are in sync."""
    patch.setattr(Partition, "effective_min_isr", property(lambda self: 1))


def keeps_a_divergent_tail(patch: pytest.MonkeyPatch) -> None:
    """A leader does not report divergence to a follower."""
    patch.setattr(Partition, "find_divergence", lambda self, **asked: None)


def cuts_to_its_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A follower cuts its log to its high watermark, as Kafka did before KIP-101."""
    patch.setattr(Partition, "find_truncation_offset", lambda self, divergence: self.high_watermark)


def notes_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new leader's epoch begins with its first record, not with its election."""
    from shoal.log.log import Log

    patch.setattr(Log, "begin_epoch", lambda self, epoch: None)


def takes_answers_of_another_epoch(patch: pytest.MonkeyPatch) -> None:
    """A follower applies a response whatever has happened in between."""

    def answered(self: ReplicaFetcher, response: Any, now_ms: int) -> Any:
        out, self._under_way = FetchOutcome(), False
        if response.error_code:
            self._end_session()
            return out
        for key, answer in response.partitions.items():
            followed = self._followed.get(key)
            if followed is not None and followed.step is FetchStep.FETCHING:
                self._apply(followed, answer, now_ms, out)
                self.notify_changed(followed.partition)
        self._step_session(response.session_id)
        return out

    patch.setattr(ReplicaFetcher, "complete_fetch", answered)


def answers_any_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader ignores the leader epoch of requests."""

    def epoch_error(self: Partition, _current_leader_epoch: int) -> ErrorCode | None:
        return None if self.is_leader else ErrorCode.not_leader_or_follower

    patch.setattr(Partition, "find_epoch_error", epoch_error)


def tells_an_old_end(patch: pytest.MonkeyPatch) -> None:
    """A new leader returns the end offset before the committed end is certain."""
    patch.setattr(Partition, "is_behind", property(lambda self: False))


def believes_the_leader_beyond_its_log(patch: pytest.MonkeyPatch) -> None:
    """A follower's high watermark equals its leader's, even past its own log's end."""
    real = Partition.append_fetched

    def append_fetched(self: Partition, answer: ReplicaFetchResult, now_ms: int) -> None:
        real(self, answer, now_ms)
        if answer.high_watermark > self.high_watermark:
            self._commit(answer.high_watermark)

    patch.setattr(Partition, "append_fetched", append_fetched)


def acknowledges_in_a_later_epoch(patch: pytest.MonkeyPatch) -> None:
    """A produce request succeeds when records of another epoch reach its offset."""
    patch.setattr(Partition, "has_lost_leadership_since", lambda self, leader_epoch: False)


def fetches_on_before_its_cut_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A follower appends after a truncation that a power loss may undo, and reports data that is
    not on its disk yet."""
    patch.setattr(ReplicaFetcher, "_sync", lambda self, followed, out: None)


def forgets_what_a_snapshot_left_out(patch: pytest.MonkeyPatch) -> None:
    """A log compares sequences only with the last batch, which its snapshot has, as Kafka does."""
    patch.setattr(resent, "check", lambda log, header: log.producers.check(header, client=True))


MUTANTS: dict[str, Mutant] = {
    m.__name__: m
    for m in (
        commits_by_itself,
        forgets_who_joins,
        takes_silence_for_refusal,
        shrinks_before_the_controller_does,
        joins_before_it_has_caught_up,
        joins_as_its_earlier_self,
        commits_below_min_isr,
        keeps_a_divergent_tail,
        cuts_to_its_high_watermark,
        notes_no_epoch,
        takes_answers_of_another_epoch,
        answers_any_epoch,
        tells_an_old_end,
        believes_the_leader_beyond_its_log,
        acknowledges_in_a_later_epoch,
        fetches_on_before_its_cut_is_durable,
        forgets_what_a_snapshot_left_out,
    )
}
