"""Share sessions: the partitions that a member fetches, sent once (KIP-932, after KIP-227).

A session belongs to a member of a group on one broker. Epoch 0 opens it with all partitions. Each
further request carries the next epoch and the changes only; epoch -1 closes it. A request with
another epoch is refused: it is a duplicate, or one was lost. Sessions are soft state; a member
opens a new one if the broker has none.

A session belongs to the principal that opened it, since member ids are no secret to readers of the
group. To another principal, the broker has no such session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1

#: Topic id and partition index.
TopicPartition = tuple[UUID, int]


class ShareSession:
    """One member's session. `partitions` keep their order; True marks one whose next result is
    always sent: it is new, or failed last time."""

    __slots__ = (
        "connection_id",
        "epoch",
        "group_id",
        "member_id",
        "partitions",
        "principal",
        "reassigned",
    )

    def __init__(
        self, group_id: str, member_id: str, connection_id: str, principal: str = ""
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection_id = connection_id
        self.principal = principal
        #: The epoch of the next request.
        self.epoch = 1
        self.partitions: dict[TopicPartition, bool] = {}
        #: Whether the member has other partitions now, so that its waiting fetch is to be answered.
        self.reassigned = False


class ShareSessions:
    """The sessions of one broker, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._members: dict[str, int] = {}
        #: The client.id of members, also after their sessions, the newest last.
        self._client_ids: dict[tuple[str, str], str] = {}
        #: Sessions that ended with a lost connection.
        self.evictions_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    @property
    def partition_count(self) -> int:
        """Partitions in all sessions."""
        return sum(len(session.partitions) for session in self._sessions.values())

    def count_members(self, group_id: str) -> int:
        """Return the number of sessions of a group."""
        return self._members.get(group_id, 0)

    def get(self, group_id: str, member_id: str) -> ShareSession | None:
        """Return a member's session."""
        return self._sessions.get((group_id, member_id))

    def open(
        self,
        group_id: str,
        member_id: str,
        connection_id: str,
        partitions: Iterable[TopicPartition],
        client_id: str = "",
        principal: str = "",
    ) -> ShareSession:
        """Open a member's session, in place of an earlier one of the same principal.

        Raises SHARE_SESSION_NOT_FOUND, SHARE_SESSION_LIMIT_REACHED.
        """
        before = self.get(group_id, member_id)
        if before is not None and before.principal != principal:
            raise _make_not_found_error(group_id, member_id)
        self.close(group_id, member_id)
        if len(self._sessions) >= self.limit:
            raise ApiError(
                ErrorCode.share_session_limit_reached,
                f"this broker keeps at most {self.limit} share sessions "
                "(group.share.max.share.sessions)",
            )
        session = ShareSession(group_id, member_id, connection_id, principal)
        session.partitions = dict.fromkeys(partitions, True)
        self._sessions[(group_id, member_id)] = session
        self._members[group_id] = self._members.get(group_id, 0) + 1
        self._client_ids.pop((group_id, member_id), None)
        self._client_ids[(group_id, member_id)] = client_id
        if len(self._client_ids) > 2 * self.limit:
            del self._client_ids[next(iter(self._client_ids))]
        return session

    def get_client_id(self, group_id: str, member_id: str) -> str:
        """Return a member's client.id, also for a while after its session; "" if unknown."""
        return self._client_ids.get((group_id, member_id), "")

    def advance(
        self, group_id: str, member_id: str, epoch: int, principal: str = ""
    ) -> ShareSession:
        """Return the session of a principal's request with `epoch`, not 0, and advance it unless
        the epoch is final.

        Raises SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None or session.principal != principal:
            raise _make_not_found_error(group_id, member_id)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise ApiError(
                ErrorCode.invalid_share_session_epoch,
                f"the share session is at epoch {session.epoch}, the request at {epoch}",
            )
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        return session

    def close(self, group_id: str, member_id: str) -> ShareSession | None:
        """End a member's session, if there is one."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            remaining = self._members[group_id] - 1
            if remaining:
                self._members[group_id] = remaining
            else:
                del self._members[group_id]
        return session


def _make_not_found_error(group_id: str, member_id: str) -> ApiError:
    return ApiError(
        ErrorCode.share_session_not_found,
        f"member {member_id} of group {group_id} has no share session here",
    )
