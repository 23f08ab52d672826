"""The type of a QueueUser: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class QueueUserSpecAuthenticationPasswordSecretKeyRef(TypedDict):
    name: str
    key: str


class QueueUserSpecAuthenticationPassword(TypedDict):
    secretKeyRef: QueueUserSpecAuthenticationPasswordSecretKeyRef


class QueueUserSpecAuthentication(TypedDict):
    type: str
    password: NotRequired[QueueUserSpecAuthenticationPassword]


class QueueUserSpecAclsResource(TypedDict):
    type: str
    name: NotRequired[str]
    patternType: NotRequired[str]


class QueueUserSpecAclsProducer(TypedDict):
    topics: NotRequired[list[str]]
    transactionalIds: NotRequired[list[str]]


class QueueUserSpecAclsConsumer(TypedDict):
    topics: NotRequired[list[str]]
    groups: NotRequired[list[str]]


class QueueUserSpecAclsShareConsumer(TypedDict):
    topics: NotRequired[list[str]]
    groups: NotRequired[list[str]]


class QueueUserSpecAclsRedrive(TypedDict):
    deadLetterTopics: NotRequired[list[str]]
    topics: NotRequired[list[str]]
    groups: NotRequired[list[str]]


class QueueUserSpecAclsSparkJob(TypedDict):
    topics: NotRequired[list[str]]
    groups: NotRequired[list[str]]


class QueueUserSpecAcls(TypedDict):
    resource: NotRequired[QueueUserSpecAclsResource]
    operations: NotRequired[list[str]]
    permission: NotRequired[str]
    host: NotRequired[str]
    producer: NotRequired[QueueUserSpecAclsProducer]
    consumer: NotRequired[QueueUserSpecAclsConsumer]
    shareConsumer: NotRequired[QueueUserSpecAclsShareConsumer]
    redrive: NotRequired[QueueUserSpecAclsRedrive]
    sparkJob: NotRequired[QueueUserSpecAclsSparkJob]


class QueueUserSpecQuotas(TypedDict):
    producerByteRate: NotRequired[int]
    consumerByteRate: NotRequired[int]
    requestPercentage: NotRequired[float]
    controllerMutationRate: NotRequired[float]


class QueueUserSpecSecretTemplate(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueUserSpec(TypedDict):
    cluster: str
    username: NotRequired[str]
    authentication: QueueUserSpecAuthentication
    acls: NotRequired[list[QueueUserSpecAcls]]
    quotas: NotRequired[QueueUserSpecQuotas]
    secretTemplate: NotRequired[QueueUserSpecSecretTemplate]


class QueueUserStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class QueueUserStatus(TypedDict):
    observedGeneration: NotRequired[int]
    principal: NotRequired[str]
    secret: NotRequired[str]
    certificateNotAfter: NotRequired[str]
    conditions: NotRequired[list[QueueUserStatusConditions]]


class QueueUserStatusPatch(TypedDict, total=False):
    principal: str | None
    secret: str | None
    certificateNotAfter: str | None


class QueueUser(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: QueueUserSpec
    status: NotRequired[QueueUserStatus]
