"""A QueueRebalance: its proposal and progress as fields of the status, and its conditions. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shoal_operator import rebalance_plan
from shoal_operator.conditions import Further, Verdict
from shoal_operator.diagnostics import FULL, FULL_BYTES
from shoal_operator.model import names, pod_layout
from shoal_operator.quantities import size_bytes, size_text
from shoal_operator.rebalance_plan import Mode, Move, Placed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.diagnostics import Disk
    from shoal_operator.model.names import Manifest
    from shoal_operator.rebalance_calls import Placement
    from shoal_operator.rebalance_steps import Step

#: The annotation that approves a proposal by its id.
APPROVE = f"{names.GROUP}/approve"
#: Moves of one proposal; more would not fit into an object of Kubernetes.
MOVES_MAX = 1000
#: Partitions or brokers that a message names.
NAMED_MAX = 3
#: The status of a QueueRebalance without a proposal.
NO_PROPOSAL: Mapping[str, Any] = {
    "proposal": None,
    "approved": None,
    "progress": None,
    "startTime": None,
    "completionTime": None,
}


def mode(resource: Manifest) -> Mode:
    return Mode(resource["spec"]["mode"])


def chosen(resource: Manifest) -> list[int]:
    """Return the brokers that the spec names."""
    return sorted(resource["spec"].get("brokers", []))


def excluded(resource: Manifest) -> list[str]:
    """Return the topics whose replicas stay."""
    return sorted(resource["spec"].get("excludedTopics", []))


def request(resource: Manifest) -> str:
    """Return a digest of the part of the spec whose change asks for another proposal."""
    id = str(resource["spec"].get("id", ""))
    return _digest([mode(resource), chosen(resource), excluded(resource), id])


def has_proposal(resource: Manifest) -> bool:
    """Return whether the status has the proposal that the spec asks for."""
    status = resource.get("status", {})
    return bool(status.get("proposal")) and status.get("request") == request(resource)


def is_complete(resource: Manifest) -> bool:
    return has_proposal(resource) and bool(resource["status"].get("completionTime"))


def is_approved(resource: Manifest) -> bool:
    """Return whether a proposal has been approved, also that of an earlier spec."""
    status = resource.get("status", {})
    return bool(status.get("approved")) and status["approved"] == proposal_id(resource)


def runs(resource: Manifest) -> bool:
    """Return whether replicas may be moving for this resource."""
    return is_approved(resource) and not resource["status"].get("completionTime")


def proposal_id(resource: Manifest) -> str:
    """Return the id of the proposal in the status, empty without one."""
    return str((resource.get("status", {}).get("proposal") or {}).get("id", ""))


def approval(resource: Manifest) -> str:
    """Return the id of the proposal that a user approves, empty without an approval."""
    if resource["spec"].get("approval") == "Automatic":
        return proposal_id(resource)
    return str(resource["metadata"].get("annotations", {}).get(APPROVE, ""))


def moves(resource: Manifest) -> list[Move]:
    """Return the moves of the proposal in the status."""
    proposal = resource.get("status", {}).get("proposal") or {}
    return [
        Move(row["partition"], tuple(row["from"]), tuple(row["to"]), row["bytes"])
        for row in proposal.get("moves", [])
    ]


def copies_max(resource: Manifest) -> int:
    return int(resource["spec"].get("concurrentPartitionMovements", 10))


def throttle_bytes(resource: Manifest) -> int | None:
    """Return the bytes per second that each broker may copy, None without a limit."""
    text = resource["spec"].get("throttle")
    return size_bytes(text) if text else None


# The proposal.


def not_possible(
    resource: Manifest, cluster: Manifest, placement: Placement
) -> tuple[Verdict | None, list[int]]:
    """Return the verdict on a rebalance that cannot be planned, and the brokers that get replicas
    otherwise."""
    every, named = pod_layout.brokers(cluster), chosen(resource)
    have = {broker for one in placement.partitions.values() for broker in one.replicas}
    known = set(every) if mode(resource) is Mode.ADD_BROKERS else {*every, *have}
    cluster_name = cluster["metadata"]["name"]
    if unknown := [broker for broker in named if broker not in known]:
        text = (
            f"spec.brokers has {_some(unknown)}, and the brokers of QueueCluster {cluster_name!r} "
            f"are {_some(every, len(every))}. Correct spec.brokers, or raise spec.replicas of the "
            "QueueCluster first."
        )
        return Verdict.refused("BrokersNotOfCluster", text), []
    gone = named if mode(resource) is Mode.REMOVE_BROKERS else []
    targets = [broker for broker in every if broker not in gone]
    if absent := [broker for broker in targets if broker not in placement.running]:
        text = f"The proposal is made as soon as these brokers run: {_some(absent)}."
        return Verdict.waiting("BrokersMissing", text), []
    return None, targets


def placed(placement: Placement, sizes: Mapping[str, int]) -> list[Placed]:
    """Return the partitions for the planner. Those that are being reassigned count with the
    replicas to come."""
    return [
        Placed(
            name,
            tuple(
                broker
                for broker in one.replicas
                if broker in placement.targets.get(name, one.replicas)
            ),
            sizes.get(name, 0),
        )
        for name, one in placement.partitions.items()
    ]


def movable(plan: rebalance_plan.Plan, placement: Placement) -> list[Move]:
    """Return the moves of partitions that are not being reassigned."""
    return [move for move in plan.moves if move.partition not in placement.targets]


def too_large(plan: rebalance_plan.Plan, disks: Sequence[Disk]) -> Verdict | None:
    """Return the verdict on a plan that cannot be carried out, else None."""
    if plan.unplaceable:
        text = (
            f"{_some(plan.unplaceable)} have more replicas than brokers are left. Remove fewer "
            "brokers, or lower the number of replicas of these topics first."
        )
        return Verdict.refused("ReplicasNotPlaceable", text)
    for disk in disks:
        if disk.total_bytes < 0:
            continue
        comes = sum(move.size_bytes for move in plan.moves if disk.broker_id in move.added)
        reserve = min(FULL * disk.total_bytes, FULL_BYTES)
        if comes and comes > disk.usable_bytes - reserve:
            text = (
                f"Broker {disk.broker_id} would get {size_text(comes)}, and its volume has "
                f"{size_text(disk.usable_bytes)} left. Raise spec.storage.size of the "
                "QueueCluster, or delete records first."
            )
            return Verdict.refused("VolumeTooSmall", text)
    return None


def proposal(
    resource: Manifest,
    partitions: Sequence[Placed],
    every_move: Sequence[Move],
    brokers: Collection[int],
    now: str,
) -> dict[str, Any]:
    """Return the fields of the status of a new proposal."""
    some = every_move[:MOVES_MAX]
    before = rebalance_plan.loads(partitions, (), brokers)
    after = rebalance_plan.loads(partitions, some, before)
    rows = [
        {"partition": m.partition, "from": [*m.before], "to": [*m.after], "bytes": m.size_bytes}
        for m in some
    ]
    found = {
        "id": _digest([request(resource), [[*m[:3]] for m in some]])[:10],
        "time": now,
        "partitions": len(some),
        "replicas": sum(len(move.added) for move in some),
        "leaders": sum(move.before[0] != move.after[0] for move in some),
        "bytes": sum(move.bytes_copied for move in some),
        "remaining": len(every_move) - len(some),
        "brokers": [
            {
                "id": broker,
                "replicas": before[broker].replicas,
                "replicasAfter": after[broker].replicas,
                "leaders": before[broker].leaders,
                "leadersAfter": after[broker].leaders,
                "bytes": before[broker].size_bytes,
                "bytesAfter": after[broker].size_bytes,
            }
            for broker in before
        ],
        "moves": rows,
    }
    return {**NO_PROPOSAL, "proposal": found, "request": request(resource)}


def is_stale(resource: Manifest, placement: Placement) -> bool:
    """Return whether a partition of the proposal no longer has the replicas that it begins with."""
    return any(
        move.partition in placement.targets
        or (found := placement.partitions.get(move.partition)) is None
        or found.replicas != move.before
        for move in moves(resource)
    )


# Conditions.


def proposed(resource: Manifest) -> Verdict:
    """Return the verdict on a proposal that waits for its approval."""
    found = resource["status"]["proposal"]
    name = resource["metadata"]["name"]
    text = (
        f"{_summary(found)} Look at status.proposal. Approve it by: kubectl annotate --overwrite "
        f"queuerebalance/{name} {APPROVE}={found['id']}"
    )
    verdict = Verdict(False, "ProposalReady", text, paused=True)
    given = approval(resource)
    if given and given != found["id"]:
        other = (
            f"{APPROVE} is {given!r}, and the proposal is {found['id']}: partitions have changed "
            "since, or the spec. Look at the new proposal before you approve it."
        )
        return verdict.warned(("ApprovalOutdated", other))
    return verdict


def further(resource: Manifest) -> list[Further]:
    """Return the condition ProposalReady, if there is a proposal."""
    if not has_proposal(resource):
        return []
    text = _summary(resource["status"]["proposal"])
    return [Further("ProposalReady", True, "ProposalReady", text)]


def progress(resource: Manifest, step: Step, copied: int) -> dict[str, Any]:
    """Return `status.progress`; `copied` bytes belong to moves that are not done."""
    total = resource["status"]["proposal"]["bytes"]
    done = sum(move.bytes_copied for move in step.done) + copied
    return {
        "partitions": len(moves(resource)),
        "done": len(step.done),
        "moving": len(step.moving) + len(step.begin),
        "leftOut": len(step.left_out),
        "bytesCopied": total if step.is_last and not step.left_out else min(done, total),
    }


def running(resource: Manifest, found: Mapping[str, Any], waits: str) -> Verdict:
    """Return the verdict on a rebalance that is under way."""
    total = resource["status"]["proposal"]["bytes"]
    text = (
        f"{found['done']} of {found['partitions']} partitions are done, {found['moving']} are being"
        f" moved. {size_text(found['bytesCopied'])} of {size_text(total)} are copied."
    )
    if waits:
        text += f" The next ones wait: {waits}."
    return Verdict.waiting("Rebalancing", text)


def complete(resource: Manifest) -> Verdict:
    """Return the verdict on a rebalance that has ended."""
    status = resource["status"]
    found, went = status["proposal"], status.get("progress") or {}
    if not found.get("partitions"):
        return Verdict.fine("The replicas are where this mode puts them. Nothing moves.")
    fine = Verdict.fine(
        f"{went.get('done', 0)} of {found['partitions']} partitions have the replicas of the "
        f"proposal {found['id']}."
    )
    left = []
    if went.get("leftOut"):
        left.append(f"{went['leftOut']} partitions changed meanwhile and were left out")
    if found.get("remaining"):
        left.append(f"{found['remaining']} more partitions would move in another proposal")
    if left:
        text = f"{', and '.join(left)}. Set another spec.id for the next proposal."
        return fine.warned(("MovesLeftOut", text))
    return fine


def _summary(found: Mapping[str, Any]) -> str:
    return (
        f"{found['partitions']} partitions would change: {found['replicas']} replicas are copied "
        f"({size_text(found['bytes'])}), and {found['leaders']} preferred leaders change."
    )


def _some(things: Collection[Any], most: int = NAMED_MAX) -> str:
    every = sorted(things)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(str, every[:most])) + more


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
