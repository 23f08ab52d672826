"""Static members of consumer and streams groups (KIP-345): they keep what they have while they
restart.

A static member has an instance id beside its member id. It leaves with epoch -2, and rejoins with a
new member id within its session timeout. The new member takes over the target and the assignment of
the one that it replaces, so the group does not rebalance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from shoal.protocol.errors import ApiError, ErrorCode

#: The epoch of a static member that has left and may rejoin.
LEFT_STATIC_MEMBER_EPOCH = -2


class InstanceMember(Protocol):
    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


M = TypeVar("M", bound=InstanceMember)


class StaticMembers(Generic[M]):
    """A part of a `ModernGroup`. It has no state; `static_members` maps an instance id to a member
    id."""

    __slots__ = ()

    members: dict[str, M]
    static_members: dict[str, str]

    if TYPE_CHECKING:

        def get_member(self, member_id: str) -> M: ...

    def find_static_member(self, instance_id: str | None) -> M | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def get_instance_owner(self, instance_id: str, member_id: str) -> M:
        """The static member of that instance id. Raises unless it is `member_id`."""
        member = self.find_static_member(instance_id)
        if member is None:
            raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            raise ApiError(
                ErrorCode.fenced_instance_id,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def get_named_member(self, member_id: str, instance_id: str | None) -> M:
        """The member that a request names, by its instance id as well if it has one. Raises
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        if instance_id is None:
            return self.get_member(member_id)
        return self.get_instance_owner(instance_id, member_id)

    def with_member(self, member: M) -> dict[str, M]:
        """The members with `member`, without the one whose instance id it takes over."""
        members = {**self.members, member.member_id: member}
        replaced = self.resolve_member_id(member)
        if replaced != member.member_id:
            del members[replaced]
        return members

    def resolve_member_id(self, member: M) -> str:
        """The id of the member that `member` replaces; its own if there is none."""
        if member.instance_id is None:
            return member.member_id
        return self.static_members.get(member.instance_id, member.member_id)

    def _replay_instance(self, old: M | None, new: M | None) -> None:
        """Note a member's instance id, or forget that of one which was removed."""
        if new is not None:
            if new.instance_id is not None:
                self.static_members[new.instance_id] = new.member_id
        elif old is not None and self.static_members.get(old.instance_id or "") == old.member_id:
            del self.static_members[old.instance_id or ""]


def make_unreleased_error(owner: InstanceMember, member_id: str) -> ApiError:
    """The refusal of a member that joins with the instance id of one that has not left."""
    return ApiError(
        ErrorCode.unreleased_instance_id,
        f"Static member {member_id} with instance id {owner.instance_id} cannot join the group "
        f"because the instance id is owned by {owner.member_id} member.",
    )
