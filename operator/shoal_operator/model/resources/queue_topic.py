"""The type of a QueueTopic: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class QueueTopicSpecLocalRetention(TypedDict):
    time: NotRequired[str]
    size: NotRequired[str]


class QueueTopicSpec(TypedDict):
    cluster: str
    topicName: NotRequired[str]
    partitions: int
    replicas: int
    config: NotRequired[dict[str, str]]
    tiered: NotRequired[bool]
    localRetention: NotRequired[QueueTopicSpecLocalRetention]
    deletionPolicy: str
    managed: bool


class QueueTopicStatusReassignment(TypedDict):
    partitions: NotRequired[int]
    done: NotRequired[int]


class QueueTopicStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class QueueTopicStatus(TypedDict):
    observedGeneration: NotRequired[int]
    topicName: NotRequired[str]
    topicId: NotRequired[str]
    partitions: NotRequired[int]
    replicas: NotRequired[int]
    reassignment: NotRequired[QueueTopicStatusReassignment]
    appliedConfig: NotRequired[list[str]]
    conditions: NotRequired[list[QueueTopicStatusConditions]]


class QueueTopicStatusPatch(TypedDict, total=False):
    topicName: str | None
    topicId: str | None
    partitions: int | None
    replicas: int | None
    reassignment: QueueTopicStatusReassignment | None
    appliedConfig: list[str] | None


class QueueTopic(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: QueueTopicSpec
    status: NotRequired[QueueTopicStatus]
