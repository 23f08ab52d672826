"""The type of a Redrive: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class RedriveSpecLettersHeaders(TypedDict):
    name: str
    value: NotRequired[str]


class RedriveSpecLetters(TypedDict):
    reasons: NotRequired[list[str]]
    exceptions: NotRequired[list[str]]
    groups: NotRequired[list[str]]
    sourceTopics: NotRequired[list[str]]
    keys: NotRequired[list[str]]
    headers: NotRequired[list[RedriveSpecLettersHeaders]]
    since: NotRequired[str]
    until: NotRequired[str]
    partitions: NotRequired[list[int]]


class RedriveSpec(TypedDict):
    cluster: str
    topic: str
    user: NotRequired[str]
    to: NotRequired[str]
    id: NotRequired[str]
    letters: NotRequired[RedriveSpecLetters]
    lettersPerSecond: NotRequired[float]
    note: NotRequired[str]
    dryRun: bool
    paused: bool


class RedriveStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class RedriveStatus(TypedDict):
    observedGeneration: NotRequired[int]
    id: NotRequired[str]
    dryRun: NotRequired[bool]
    startTime: NotRequired[str]
    completionTime: NotRequired[str]
    total: NotRequired[int]
    lookedAt: NotRequired[int]
    sent: NotRequired[int]
    refused: NotRequired[int]
    doubted: NotRequired[int]
    recordsMissing: NotRequired[int]
    topicsMissing: NotRequired[int]
    keysNotFreed: NotRequired[int]
    conditions: NotRequired[list[RedriveStatusConditions]]


class RedriveStatusPatch(TypedDict, total=False):
    id: str | None
    dryRun: bool | None
    startTime: str | None
    completionTime: str | None
    total: int | None
    lookedAt: int | None
    sent: int | None
    refused: int | None
    doubted: int | None
    recordsMissing: int | None
    topicsMissing: int | None
    keysNotFreed: int | None


class Redrive(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: RedriveSpec
    status: NotRequired[RedriveStatus]
