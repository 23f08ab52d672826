"""The type of a ShareGroup: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ShareGroupSpecKeyOrder(TypedDict):
    batch: NotRequired[int]
    deadLetter: NotRequired[str]
    maxHeld: NotRequired[int]


class ShareGroupSpecDelay(TypedDict):
    max: str
    maxRecords: int


class ShareGroupSpecPriority(TypedDict):
    header: str
    ageing: str


class ShareGroupSpecFairness(TypedDict):
    by: str
    header: NotRequired[str]
    weights: NotRequired[dict[str, int | str]]
    lookaheadRecords: int


class ShareGroupSpecLimits(TypedDict):
    maxInFlight: NotRequired[int]
    maxInFlightOverrides: NotRequired[dict[str, int]]
    maxPerSecond: NotRequired[int | str]
    maxPerSecondOverrides: NotRequired[dict[str, int | str]]
    burst: NotRequired[int]
    pausedTenants: NotRequired[list[str]]


class ShareGroupSpecRedeliveryBackoff(TypedDict):
    initial: str
    max: str
    multiplier: str
    jitterPercent: int


class ShareGroupSpecDeadLettersCreate(TypedDict):
    partitions: NotRequired[int]
    replicas: NotRequired[int]
    retention: NotRequired[str]


class ShareGroupSpecDeadLetters(TypedDict):
    topic: str
    create: NotRequired[ShareGroupSpecDeadLettersCreate]
    copyRecords: bool
    dropAfter: NotRequired[str]
    floodPerMinute: NotRequired[int]


class ShareGroupSpecReset(TypedDict):
    id: str
    to: str
    time: NotRequired[str]
    offset: NotRequired[int]
    topics: NotRequired[list[str]]


class ShareGroupSpec(TypedDict):
    cluster: str
    groupId: NotRequired[str]
    topics: NotRequired[list[str]]
    lockDuration: str
    deliveryLimit: int
    maxRecordLocks: int
    startOffset: str
    startOffsetDuration: NotRequired[str]
    isolation: str
    sessionTimeout: str
    heartbeatInterval: str
    renewal: bool
    ordering: str
    keyOrder: NotRequired[ShareGroupSpecKeyOrder]
    delay: NotRequired[ShareGroupSpecDelay]
    priority: NotRequired[ShareGroupSpecPriority]
    fairness: NotRequired[ShareGroupSpecFairness]
    limits: NotRequired[ShareGroupSpecLimits]
    pauseDelivery: bool
    redeliveryBackoff: NotRequired[ShareGroupSpecRedeliveryBackoff]
    deadLetters: NotRequired[ShareGroupSpecDeadLetters]
    deletionPolicy: str
    reset: NotRequired[ShareGroupSpecReset]


class ShareGroupStatusPartitions(TypedDict):
    topic: NotRequired[str]
    partition: NotRequired[int]
    startOffset: NotRequired[int]
    lag: NotRequired[int]


ShareGroupStatusPendingResetOffsets = TypedDict(
    "ShareGroupStatusPendingResetOffsets",
    {
        "topic": NotRequired[str],
        "partition": NotRequired[int],
        "from": NotRequired[int],
        "to": NotRequired[int],
    },
)


class ShareGroupStatusPendingReset(TypedDict):
    id: NotRequired[str]
    offsets: NotRequired[list[ShareGroupStatusPendingResetOffsets]]


class ShareGroupStatusLastReset(TypedDict):
    id: NotRequired[str]
    time: NotRequired[str]


class ShareGroupStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class ShareGroupStatus(TypedDict):
    observedGeneration: NotRequired[int]
    groupId: NotRequired[str]
    state: NotRequired[str]
    members: NotRequired[int]
    lag: NotRequired[int]
    inFlight: NotRequired[int]
    available: NotRequired[int]
    delivery: NotRequired[str]
    deadLettered: NotRequired[int]
    redriven: NotRequired[int]
    archiving: NotRequired[int]
    backingOff: NotRequired[int]
    nextDueTime: NotRequired[str]
    delayed: NotRequired[int]
    heldByKey: NotRequired[int]
    keysHeldByDeadLetters: NotRequired[int]
    oldestLockSeconds: NotRequired[int]
    redeliveriesPerMinute: NotRequired[int]
    partitions: NotRequired[list[ShareGroupStatusPartitions]]
    pendingReset: NotRequired[ShareGroupStatusPendingReset]
    lastReset: NotRequired[ShareGroupStatusLastReset]
    configuredGeneration: NotRequired[int]
    appliedConfig: NotRequired[list[str]]
    conditions: NotRequired[list[ShareGroupStatusConditions]]


class ShareGroupStatusPatch(TypedDict, total=False):
    groupId: str | None
    state: str | None
    members: int | None
    lag: int | None
    inFlight: int | None
    available: int | None
    delivery: str | None
    deadLettered: int | None
    redriven: int | None
    archiving: int | None
    backingOff: int | None
    nextDueTime: str | None
    delayed: int | None
    heldByKey: int | None
    keysHeldByDeadLetters: int | None
    oldestLockSeconds: int | None
    redeliveriesPerMinute: int | None
    partitions: list[ShareGroupStatusPartitions] | None
    pendingReset: ShareGroupStatusPendingReset | None
    lastReset: ShareGroupStatusLastReset | None
    configuredGeneration: int | None
    appliedConfig: list[str] | None


class ShareGroup(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: ShareGroupSpec
    status: NotRequired[ShareGroupStatus]
