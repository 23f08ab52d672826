"""Offsets of groups whose members commit with their epochs: consumer groups (KIP-848) and streams
groups (KIP-1071).

A member commits with its current epoch. A commit with an older one succeeds for what the member has
owned since that epoch (KIP-1251). Members of the classic protocol in a consumer group follow the
same rules, with other error codes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from shoal.coordinator.deadlines import Deadlines
    from shoal.coordinator.group.groups import CommitCheck, GroupType

#: The first version of OffsetCommit that has a member epoch.
EPOCH_VERSION = 9


class CurrentEpoch(Protocol):
    """The part of a member's current assignment that its commits depend on."""

    @property
    def member_epoch(self) -> int: ...


class CommittingMember(Protocol):
    @property
    def member_id(self) -> str: ...
    @property
    def current(self) -> CurrentEpoch: ...


M = TypeVar("M", bound=CommittingMember)


class CommitsByEpoch(Generic[M]):
    """A part of a `ModernGroup`. It has no state."""

    __slots__ = ()

    type: ClassVar[GroupType]
    members: dict[str, M]

    if TYPE_CHECKING:

        def get_member(self, member_id: str) -> M: ...

    @abstractmethod
    def _make_ownership_lookup(self, member: M) -> Callable[[str, UUID | None, int], int | None]:
        """Return a function of a partition: topic name, topic id and index. It returns the epoch
        at which the partition was assigned to the member; None if the member does not own it."""

    def _is_classic(self, _member: M) -> bool:
        """Whether the member uses the classic protocol."""
        return False

    @property
    def expires(self) -> bool:
        return True

    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        epoch = generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return None  # An admin client, or a consumer that manages its partitions itself.
        if transactional and epoch == -1 and not member_id and group_instance_id is None:
            return None
        member = self.get_member(member_id)
        has_epoch = transactional or api_version >= EPOCH_VERSION or self._is_classic(member)
        if not has_epoch:
            raise ApiError(
                ErrorCode.unsupported_version,
                f"Members of the {self.type.value} protocol commit with OffsetCommit version "
                f"{EPOCH_VERSION} or above.",
            )
        current_epoch = member.current.member_epoch
        if epoch > current_epoch:
            raise self._make_stale_epoch_error(
                member, f"Member {member_id} is at epoch {current_epoch}, not yet {epoch}."
            )
        return None if epoch == current_epoch else self._make_epoch_check(member, epoch)

    def _make_stale_epoch_error(self, member: M, message: str) -> ApiError:
        classic = self._is_classic(member)
        code = ErrorCode.illegal_generation if classic else ErrorCode.stale_member_epoch
        return ApiError(code, message)

    def _make_epoch_check(self, member: M, epoch: int) -> CommitCheck:
        refusal = self._make_stale_epoch_error(member, "").code
        owned_since = self._make_ownership_lookup(member)

        def check(topic: str, topic_id: UUID | None, partition: int) -> ErrorCode:
            assigned_epoch = owned_since(topic, topic_id, partition)
            return refusal if assigned_epoch is None or epoch < assigned_epoch else ErrorCode.none

        return check

    def on_offsets_committed(self, _member_id: str, _now_ms: int, _deadlines: Deadlines) -> None:
        """Do nothing: only heartbeats extend a session."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.get_member(member_id or "")
        current_epoch = member.current.member_epoch
        if member_epoch != current_epoch:
            raise self._make_stale_epoch_error(
                member, f"Member {member_id} is at epoch {current_epoch}, not {member_epoch}."
            )

    def check_offset_delete(self) -> None:
        """Allow deletion: the offsets of topics that members read are checked one by one."""

    def compute_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms
