"""The type of a QueueRebalance: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class QueueRebalanceSpec(TypedDict):
    cluster: str
    mode: str
    brokers: NotRequired[list[int]]
    excludedTopics: NotRequired[list[str]]
    id: NotRequired[str]
    approval: str
    throttle: NotRequired[str]
    concurrentPartitionMovements: int
    paused: bool


class QueueRebalanceStatusProposalBrokers(TypedDict):
    id: NotRequired[int]
    replicas: NotRequired[int]
    replicasAfter: NotRequired[int]
    leaders: NotRequired[int]
    leadersAfter: NotRequired[int]
    bytes: NotRequired[int]
    bytesAfter: NotRequired[int]


QueueRebalanceStatusProposalMoves = TypedDict(
    "QueueRebalanceStatusProposalMoves",
    {
        "partition": NotRequired[str],
        "from": NotRequired[list[int]],
        "to": NotRequired[list[int]],
        "bytes": NotRequired[int],
    },
)


class QueueRebalanceStatusProposal(TypedDict):
    id: NotRequired[str]
    time: NotRequired[str]
    partitions: NotRequired[int]
    replicas: NotRequired[int]
    leaders: NotRequired[int]
    bytes: NotRequired[int]
    remaining: NotRequired[int]
    brokers: NotRequired[list[QueueRebalanceStatusProposalBrokers]]
    moves: NotRequired[list[QueueRebalanceStatusProposalMoves]]


class QueueRebalanceStatusProgress(TypedDict):
    partitions: NotRequired[int]
    done: NotRequired[int]
    moving: NotRequired[int]
    leftOut: NotRequired[int]
    bytesCopied: NotRequired[int]


class QueueRebalanceStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class QueueRebalanceStatus(TypedDict):
    observedGeneration: NotRequired[int]
    request: NotRequired[str]
    proposal: NotRequired[QueueRebalanceStatusProposal]
    approved: NotRequired[str]
    throttle: NotRequired[str]
    cordonedBrokers: NotRequired[list[int]]
    startTime: NotRequired[str]
    completionTime: NotRequired[str]
    progress: NotRequired[QueueRebalanceStatusProgress]
    conditions: NotRequired[list[QueueRebalanceStatusConditions]]


class QueueRebalanceStatusPatch(TypedDict, total=False):
    request: str | None
    proposal: QueueRebalanceStatusProposal | None
    approved: str | None
    throttle: str | None
    cordonedBrokers: list[int] | None
    startTime: str | None
    completionTime: str | None
    progress: QueueRebalanceStatusProgress | None


class QueueRebalance(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: QueueRebalanceSpec
    status: NotRequired[QueueRebalanceStatus]
