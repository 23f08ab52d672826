"""The `range` assignor of consumer groups (KIP-848): contiguous ranges of each topic.

The partitions of a topic, in order, are assigned to its subscribers, in order, in ranges whose
sizes differ by at most one, the longer ones first. Topics with the same subscribers and the same
number of partitions get the same ranges, so that partitions with the same index are assigned to one
member. Static members come first, ordered by instance id, so that a restart keeps their place. Only
this order makes the assignor sticky.
"""

from __future__ import annotations

from shoal.coordinator.group.assignment import (
    Assignment,
    GroupSpec,
    MemberSpec,
    TopicIdPartition,
    find_subscribers,
    group_by_topic,
)

NAME = "range"


def assign(spec: GroupSpec) -> dict[str, Assignment]:
    """The target assignment of every member."""
    assigned: dict[str, list[TopicIdPartition]] = {m: [] for m in spec.members}
    for topic in sorted(spec.partitions):
        partitions = sorted(spec.partitions[topic])
        takers = sorted(
            find_subscribers(spec, topic), key=lambda m: _get_sort_key(m, spec.members[m])
        )
        if not takers:
            continue
        run, longer = divmod(len(partitions), len(takers))
        begin = 0
        for index, member in enumerate(takers):
            end = begin + run + (index < longer)
            assigned[member] += ((topic, p) for p in partitions[begin:end])
            begin = end
    return {m: group_by_topic(assigned[m]) for m in sorted(assigned)}


def _get_sort_key(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    static = member.instance_id is not None
    return (not static, member.instance_id if member.instance_id is not None else member_id)
