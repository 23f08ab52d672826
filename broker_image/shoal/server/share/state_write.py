"""One write of a share partition's state, on its way to the share coordinator and back.

A write takes changes until it is closed: it has been sent, or its leader has dropped it. It is the
token of its own decision, so its waiters are called in the turn of the loop that commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.share.state_store import StateUpdate
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.share.delivery_failure import DeadLetterRange
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.states import StateBatch

#: Called when a write is committed (None), or with the reason why it failed.
Waiter = Callable[["Failure | None"], None]

#: The state was written by a newer leader, or reset: clients look for the leader.
_NOT_LEADER = {ErrorCode.fenced_leader_epoch, ErrorCode.fenced_state_epoch}
#: Clients retry all failures of the coordinator itself.
_NO_COORDINATOR = {
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
}
_PASSED_ON = {ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition}


class Failure(NamedTuple):
    """Why a share partition refuses a request.

    `cancelled` are ranges of offsets whose renewal is left out. If the rest of the request is
    done, the code is NONE.
    """

    code: ErrorCode
    message: str | None = None
    cancelled: Sequence[tuple[int, int]] = ()


class StateWrite(StateUpdate):
    """What changed in one share partition since its last write, and the waiters for the commit."""

    __slots__ = (
        "_on_done",
        "begun_ms",
        "dead_letters",
        "failed",
        "is_closed",
        "partition",
        "waiters",
    )

    def __init__(
        self,
        key: ShareKey,
        on_done: Callable[[StateWrite, Failure | None], None],
        *,
        partition: int | None,
        state_epoch: int,
        leader_epoch: int,
        begun_ms: int,
    ) -> None:
        """`partition` of `__share_group_state` keeps the state; None if the topic was unknown."""
        super().__init__(key, state_epoch=state_epoch, leader_epoch=leader_epoch)
        self._on_done = on_done
        self.partition = partition
        self.begun_ms = begun_ms
        #: Ranges that this write makes ARCHIVING.
        self.dead_letters: list[DeadLetterRange] = []
        #: Records whose delivery it ends without an accept.
        self.failed: list[StateBatch] = []
        self.waiters: list[Waiter] = []
        self.is_closed = False

    # What the runtime needs from a token.

    def done(self) -> bool:
        return False

    def set_result(self, response: Mapping[str, Any]) -> None:
        refusal = response["refusal"]
        self._on_done(self, None if refusal is None else to_client_failure(*refusal))

    def set_exception(self, error: ApiError) -> None:
        self._on_done(self, to_client_failure(error.code, error.message))


def to_client_failure(code: ErrorCode, message: str | None) -> Failure:
    """Return what a client gets for a failure at the share coordinator. Kafka's mapping."""
    if code in _NOT_LEADER:
        return Failure(ErrorCode.not_leader_or_follower, message)
    if code in _NO_COORDINATOR:
        return Failure(ErrorCode.coordinator_not_available, message)
    return Failure(code if code in _PASSED_ON else ErrorCode.unknown_server_error, message)
