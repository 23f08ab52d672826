"""A QueueRebalance: its proposal and progress as fields of the status, and its conditions. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shoal_operator.brokers.diagnostics import FULL, FULL_BYTES
from shoal_operator.brokers.replica_moves import RebalanceMove
from shoal_operator.kube.conditions import ExtraCondition, Verdict
from shoal_operator.model import names, pod_layout
from shoal_operator.model.quantities import format_size, parse_size_bytes
from shoal_operator.rebalance import planner
from shoal_operator.rebalance.planner import PlacedPartition, RebalanceMode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.brokers.diagnostics import BrokerDisk
    from shoal_operator.brokers.rebalance_calls import Placement
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.model.resources import queue_rebalance as resources
    from shoal_operator.rebalance.steps import RebalanceStep

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


def get_mode(resource: resources.QueueRebalance) -> RebalanceMode:
    return RebalanceMode(resource["spec"]["mode"])


def get_brokers(resource: resources.QueueRebalance) -> list[int]:
    """Return the brokers that the spec names."""
    return sorted(resource["spec"].get("brokers", []))


def get_excluded_topics(resource: resources.QueueRebalance) -> list[str]:
    """Return the topics whose replicas stay."""
    return sorted(resource["spec"].get("excludedTopics", []))


def compute_request_digest(resource: resources.QueueRebalance) -> str:
    """Return a digest of the part of the spec whose change asks for another proposal."""
    id = str(resource["spec"].get("id", ""))
    return _compute_digest(
        [get_mode(resource), get_brokers(resource), get_excluded_topics(resource), id]
    )


def has_proposal(resource: resources.QueueRebalance) -> bool:
    """Return whether the status has the proposal that the spec asks for."""
    status = resource.get("status", {})
    return bool(status.get("proposal")) and status.get("request") == compute_request_digest(
        resource
    )


def is_complete(resource: resources.QueueRebalance) -> bool:
    return has_proposal(resource) and bool(resource["status"].get("completionTime"))


def is_approved(resource: resources.QueueRebalance) -> bool:
    """Return whether a proposal has been approved, also that of an earlier spec."""
    status = resource.get("status", {})
    return bool(status.get("approved")) and status["approved"] == get_proposal_id(resource)


def is_running(resource: resources.QueueRebalance) -> bool:
    """Return whether replicas may be moving for this resource."""
    return is_approved(resource) and not resource["status"].get("completionTime")


def get_proposal_id(resource: resources.QueueRebalance) -> str:
    """Return the id of the proposal in the status, empty without one."""
    return str((resource.get("status", {}).get("proposal") or {}).get("id", ""))


def get_approval(resource: resources.QueueRebalance) -> str:
    """Return the id of the proposal that a user approves, empty without an approval."""
    if resource["spec"].get("approval") == "Automatic":
        return get_proposal_id(resource)
    return str(resource["metadata"].get("annotations", {}).get(APPROVE, ""))


def parse_moves(resource: resources.QueueRebalance) -> list[RebalanceMove]:
    """Return the moves of the proposal in the status."""
    proposal = resource.get("status", {}).get("proposal") or {}
    return [
        RebalanceMove(row["partition"], tuple(row["from"]), tuple(row["to"]), row["bytes"])
        for row in proposal.get("moves", [])
    ]


def get_copies_max(resource: resources.QueueRebalance) -> int:
    return int(resource["spec"].get("concurrentPartitionMovements", 10))


def get_throttle_bytes(resource: resources.QueueRebalance) -> int | None:
    """Return the bytes per second that each broker may copy, None without a limit."""
    text = resource["spec"].get("throttle")
    return parse_size_bytes(text) if text else None


# The proposal.


def choose_targets(
    resource: resources.QueueRebalance, cluster: QueueCluster, placement: Placement
) -> tuple[Verdict | None, list[int]]:
    """Return the verdict on a rebalance that cannot be planned, and the brokers that get replicas
    otherwise."""
    brokers, named_brokers = pod_layout.list_brokers(cluster), get_brokers(resource)
    have = {broker for partition in placement.partitions.values() for broker in partition.replicas}
    known_brokers = (
        set(brokers) if get_mode(resource) is RebalanceMode.ADD_BROKERS else {*brokers, *have}
    )
    cluster_name = cluster["metadata"]["name"]
    if unknown := [broker for broker in named_brokers if broker not in known_brokers]:
        text = (
            f"spec.brokers has {_format_some(unknown)}, and the brokers of QueueCluster "
            f"{cluster_name!r} "
            f"are {_format_some(brokers, len(brokers))}. Correct spec.brokers, or raise "
            "spec.replicas of the "
            "QueueCluster first."
        )
        return Verdict.make_refused("BrokersNotOfCluster", text), []
    removed = named_brokers if get_mode(resource) is RebalanceMode.REMOVE_BROKERS else []
    targets = [broker for broker in brokers if broker not in removed]
    if absent := [broker for broker in targets if broker not in placement.running]:
        text = f"The proposal is made as soon as these brokers run: {_format_some(absent)}."
        return Verdict.make_waiting("BrokersMissing", text), []
    return None, targets


def build_partitions(placement: Placement, sizes: Mapping[str, int]) -> list[PlacedPartition]:
    """Return the partitions for the planner. Those that are being reassigned count with the
    replicas to come."""
    return [
        PlacedPartition(
            name,
            tuple(
                broker
                for broker in partition.replicas
                if broker in placement.targets.get(name, partition.replicas)
            ),
            sizes.get(name, 0),
        )
        for name, partition in placement.partitions.items()
    ]


def list_movable(plan: planner.RebalancePlan, placement: Placement) -> list[RebalanceMove]:
    """Return the moves of partitions that are not being reassigned."""
    return [move for move in plan.moves if move.partition not in placement.targets]


def find_plan_refusal(plan: planner.RebalancePlan, disks: Sequence[BrokerDisk]) -> Verdict | None:
    """Return the verdict on a plan that cannot be carried out, else None."""
    if plan.unplaceable:
        text = (
            f"{_format_some(plan.unplaceable)} have more replicas than brokers are left. Remove "
            "fewer brokers, or lower the number of replicas of these topics first."
        )
        return Verdict.make_refused("ReplicasNotPlaceable", text)
    for disk in disks:
        if disk.total_bytes < 0:
            continue
        comes = sum(move.size_bytes for move in plan.moves if disk.broker_id in move.added_brokers)
        reserve = min(FULL * disk.total_bytes, FULL_BYTES)
        if comes and comes > disk.usable_bytes - reserve:
            text = (
                f"Broker {disk.broker_id} would get {format_size(comes)}, and its volume has "
                f"{format_size(disk.usable_bytes)} left. Raise spec.storage.size of the "
                "QueueCluster, or delete records first."
            )
            return Verdict.make_refused("VolumeTooSmall", text)
    return None


def build_proposal(
    resource: resources.QueueRebalance,
    partitions: Sequence[PlacedPartition],
    every_move: Sequence[RebalanceMove],
    brokers: Collection[int],
    now: str,
) -> dict[str, Any]:
    """Return the fields of the status of a new proposal."""
    moves = every_move[:MOVES_MAX]
    before = planner.compute_loads(partitions, (), brokers)
    after = planner.compute_loads(partitions, moves, before)
    rows = [
        {"partition": m.partition, "from": [*m.before], "to": [*m.after], "bytes": m.size_bytes}
        for m in moves
    ]
    proposal = {
        "id": _compute_digest([compute_request_digest(resource), [[*m[:3]] for m in moves]])[:10],
        "time": now,
        "partitions": len(moves),
        "replicas": sum(len(move.added_brokers) for move in moves),
        "leaders": sum(move.before[0] != move.after[0] for move in moves),
        "bytes": sum(move.bytes_copied for move in moves),
        "remaining": len(every_move) - len(moves),
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
    return {**NO_PROPOSAL, "proposal": proposal, "request": compute_request_digest(resource)}


def is_stale(resource: resources.QueueRebalance, placement: Placement) -> bool:
    """Return whether a partition of the proposal no longer has the replicas that it begins with."""
    return any(
        move.partition in placement.targets
        or (partition := placement.partitions.get(move.partition)) is None
        or partition.replicas != move.before
        for move in parse_moves(resource)
    )


# Conditions.


def make_proposed_verdict(resource: resources.QueueRebalance) -> Verdict:
    """Return the verdict on a proposal that waits for its approval."""
    proposal = resource["status"]["proposal"]
    name = resource["metadata"]["name"]
    text = (
        f"{_format_summary(proposal)} Look at status.proposal. Approve it by: kubectl annotate "
        f"--overwrite queuerebalance/{name} {APPROVE}={proposal['id']}"
    )
    verdict = Verdict(False, "ProposalReady", text, paused=True)
    approval = get_approval(resource)
    if approval and approval != proposal["id"]:
        warning = (
            f"{APPROVE} is {approval!r}, and the proposal is {proposal['id']}: partitions have "
            "changed since, or the spec. Look at the new proposal before you approve it."
        )
        return verdict.with_warning(("ApprovalOutdated", warning))
    return verdict


def build_extra_conditions(resource: resources.QueueRebalance) -> list[ExtraCondition]:
    """Return the condition ProposalReady, if there is a proposal."""
    if not has_proposal(resource):
        return []
    text = _format_summary(resource["status"]["proposal"])
    return [ExtraCondition("ProposalReady", True, "ProposalReady", text)]


def build_progress(
    resource: resources.QueueRebalance, step: RebalanceStep, copied: int
) -> dict[str, Any]:
    """Return `status.progress`; `copied` bytes belong to moves that are not done."""
    total = resource["status"]["proposal"]["bytes"]
    done_bytes = sum(move.bytes_copied for move in step.done) + copied
    return {
        "partitions": len(parse_moves(resource)),
        "done": len(step.done),
        "moving": len(step.moving) + len(step.begin),
        "leftOut": len(step.left_out),
        "bytesCopied": total if step.is_last and not step.left_out else min(done_bytes, total),
    }


def make_running_verdict(
    resource: resources.QueueRebalance, progress: Mapping[str, Any], waits: str
) -> Verdict:
    """Return the verdict on a rebalance that is under way."""
    total = resource["status"]["proposal"]["bytes"]
    text = (
        f"{progress['done']} of {progress['partitions']} partitions are done, {progress['moving']} "
        "are being"
        f" moved. {format_size(progress['bytesCopied'])} of {format_size(total)} are copied."
    )
    if waits:
        text += f" The next ones wait: {waits}."
    return Verdict.make_waiting("Rebalancing", text)


def make_complete_verdict(resource: resources.QueueRebalance) -> Verdict:
    """Return the verdict on a rebalance that has ended."""
    status = resource["status"]
    proposal, went = status["proposal"], status.get("progress") or {}
    if not proposal.get("partitions"):
        return Verdict.make_reconciled("The replicas are where this mode puts them. Nothing moves.")
    fine = Verdict.make_reconciled(
        f"{went.get('done', 0)} of {proposal['partitions']} partitions have the replicas of the "
        f"proposal {proposal['id']}."
    )
    remarks = []
    if went.get("leftOut"):
        remarks.append(f"{went['leftOut']} partitions changed meanwhile and were left out")
    if proposal.get("remaining"):
        remarks.append(f"{proposal['remaining']} more partitions would move in another proposal")
    if remarks:
        text = f"{', and '.join(remarks)}. Set another spec.id for the next proposal."
        return fine.with_warning(("MovesLeftOut", text))
    return fine


def _format_summary(proposal: Mapping[str, Any]) -> str:
    return (
        f"{proposal['partitions']} partitions would change: {proposal['replicas']} replicas are "
        "copied "
        f"({format_size(proposal['bytes'])}), and {proposal['leaders']} preferred leaders change."
    )


def _format_some(things: Collection[Any], most: int = NAMED_MAX) -> str:
    items = sorted(things)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def _compute_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
