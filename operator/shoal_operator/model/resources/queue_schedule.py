"""The type of a QueueSchedule: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class QueueScheduleSpecHeaders(TypedDict):
    name: str
    value: str


class QueueScheduleSpecPayloadConfigMapKeyRef(TypedDict):
    name: str
    key: str


class QueueScheduleSpecPayloadSecretKeyRef(TypedDict):
    name: str
    key: str


class QueueScheduleSpecPayload(TypedDict):
    inline: NotRequired[str]
    configMapKeyRef: NotRequired[QueueScheduleSpecPayloadConfigMapKeyRef]
    secretKeyRef: NotRequired[QueueScheduleSpecPayloadSecretKeyRef]


class QueueScheduleSpec(TypedDict):
    cluster: str
    topic: str
    user: NotRequired[str]
    schedule: str
    timeZone: str
    concurrencyPolicy: str
    shareGroup: NotRequired[str]
    startingDeadlineSeconds: NotRequired[int]
    suspend: bool
    jitterSeconds: int
    key: NotRequired[str]
    headers: NotRequired[list[QueueScheduleSpecHeaders]]
    payload: NotRequired[QueueScheduleSpecPayload]


class QueueScheduleStatusLastRecord(TypedDict):
    topic: str
    partition: int
    offset: int


class QueueScheduleStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class QueueScheduleStatus(TypedDict):
    observedGeneration: NotRequired[int]
    lastScheduleTime: NotRequired[str]
    nextScheduleTime: NotRequired[str]
    activeScheduleTime: NotRequired[str]
    lastRecord: NotRequired[QueueScheduleStatusLastRecord]
    conditions: NotRequired[list[QueueScheduleStatusConditions]]


class QueueScheduleStatusPatch(TypedDict, total=False):
    lastScheduleTime: str | None
    nextScheduleTime: str | None
    activeScheduleTime: str | None
    lastRecord: QueueScheduleStatusLastRecord | None


class QueueSchedule(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: QueueScheduleSpec
    status: NotRequired[QueueScheduleStatus]
