"""One write of a share partition's state, on its way to the share coordinator and back.

It is the token of its own decision, in place of a future: its answers leave in the turn of the loop
in which it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import Reply, Result, Token
from shoal.coordinator.share.backoff import Delay
from shoal.coordinator.share.delivery_failure import DeadLetterRange
from shoal.coordinator.share.share_partition import StateBatch
from shoal.coordinator.share.state_store import ShareStateShard
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.server.share.leader import ShareLeader

#: Called when a write is committed, with None, or with why it failed.
Waiter = Callable[["Failure | None"], None]

#: A state write is refused with these when this leader is no longer the right one, which a client
#: is told as such; everything about the coordinator is told as it being unavailable.
_NOT_LEADER = {ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch}
_NO_COORDINATOR = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}
_PASSED_ON = {ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition}
#: The reply to a write that was taken.
_TAKEN: Mapping[str, Any] = {"refusal": None}


class Failure(NamedTuple):
    """Why a share partition refuses."""

    code: ErrorCode
    message: str | None = None


class StateWrite:
    """What changed of one share partition since its last write, and who waits for it."""

    __slots__ = (
        "_dead_letters",
        "_leader",
        "_waiters",
        "begun_ms",
        "changes",
        "delays",
        "delivery_complete_count",
        "start_offset",
    )

    def __init__(
        self, leader: ShareLeader, changes: Sequence[StateBatch], waiters: Sequence[Waiter]
    ) -> None:
        """Takes over the waits and the dead letters of the leader's window.

        The start offset and the complete count belong to `changes`. A write that is carried
        elsewhere may be decided later, when the window has moved on.
        """
        share = leader.share
        self.start_offset = share.start_offset
        self.delivery_complete_count = share.complete
        self._leader = leader
        self._waiters = waiters
        self.changes = changes
        self.delays: Sequence[Delay] = ()
        self._dead_letters: Sequence[DeadLetterRange] = ()
        if share.delays:
            self.delays, share.delays = share.delays, []
        if share.dead_letters:
            self._dead_letters, share.dead_letters = share.dead_letters, []
        self.begun_ms = leader.service.now_ms()

    def decide(self, shard: ShareStateShard, now_ms: int, token: Token) -> Result:
        """Have the shard note it."""
        leader = self._leader
        share = leader.share
        change = shard.write(
            now_ms,
            leader.key,
            state_epoch=share.state_epoch,
            leader_epoch=share.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.delivery_complete_count,
            batches=self.changes,
            delays=self.delays,
        )
        if change.record is None:
            return Result((), (Reply(token, {"refusal": change.refusal}),))
        return Result((change.record,), (Reply(token, _TAKEN),))

    def decide_late(self, shard: ShareStateShard, now_ms: int) -> tuple[dict[str, Any], Result]:
        """`decide` on a coordinator that was elsewhere when the write began."""
        result = self.decide(shard, now_ms, None)
        refusal = result.replies[0].response["refusal"]
        code, message = refusal or (ErrorCode.none, None)
        return {"error_code": code, "error_message": message}, Result(result.records)

    # What the runtime asks of a token.

    def done(self) -> bool:
        return False

    def set_result(self, response: Mapping[str, Any]) -> None:
        refusal = response["refusal"]
        service = self._leader.service
        service.write_times.note("", service.now_ms() - self.begun_ms)
        failure = None if refusal is None else client_failure(*refusal)
        self._leader.written(failure, self._waiters, self._dead_letters)

    def set_exception(self, error: ApiError) -> None:
        self._leader.written(
            client_failure(error.code, error.message), self._waiters, self._dead_letters
        )


def client_failure(code: ErrorCode, message: str | None) -> Failure:
    """What a client is told of a failure at the share coordinator. Kafka's mapping."""
    if code in _NOT_LEADER:
        return Failure(ErrorCode.not_leader_or_follower, message)
    if code in _NO_COORDINATOR:
        return Failure(ErrorCode.coordinator_not_available, message)
    return Failure(code if code in _PASSED_ON else ErrorCode.unknown_server_error, message)
