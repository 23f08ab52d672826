"""The type of a ShareConsumer: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class ShareConsumerSpecScalingSchedules(TypedDict):
    name: str
    start: str
    end: NotRequired[str]
    duration: NotRequired[str]
    timeZone: NotRequired[str]
    minReplicas: NotRequired[int]
    maxReplicas: NotRequired[int]


class ShareConsumerSpecScaling(TypedDict):
    minReplicas: NotRequired[int]
    maxReplicas: NotRequired[int]
    targetLagPerReplica: NotRequired[int]
    targetRecordAge: NotRequired[str]
    schedules: NotRequired[list[ShareConsumerSpecScalingSchedules]]
    recordsPerReplica: NotRequired[int]
    cooldown: NotRequired[str]
    scaleToZeroAfter: NotRequired[str]
    startupTime: NotRequired[str]


class ShareConsumerSpecScaleTargetRef(TypedDict):
    apiVersion: str
    kind: str
    name: str


class ShareConsumerSpecDeploymentTemplateMetadata(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class ShareConsumerSpecDeploymentTemplateSpecContainers(TypedDict):
    name: str


class ShareConsumerSpecDeploymentTemplateSpec(TypedDict):
    containers: list[ShareConsumerSpecDeploymentTemplateSpecContainers]


class ShareConsumerSpecDeploymentTemplate(TypedDict):
    metadata: NotRequired[ShareConsumerSpecDeploymentTemplateMetadata]
    spec: ShareConsumerSpecDeploymentTemplateSpec


class ShareConsumerSpecDeployment(TypedDict):
    template: ShareConsumerSpecDeploymentTemplate


class ShareConsumerSpecJobTemplateMetadata(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class ShareConsumerSpecJobTemplateSpecContainers(TypedDict):
    name: str


class ShareConsumerSpecJobTemplateSpec(TypedDict):
    containers: list[ShareConsumerSpecJobTemplateSpecContainers]


class ShareConsumerSpecJobTemplate(TypedDict):
    metadata: NotRequired[ShareConsumerSpecJobTemplateMetadata]
    spec: ShareConsumerSpecJobTemplateSpec


class ShareConsumerSpecJob(TypedDict):
    backoffLimit: int
    activeDeadlineSeconds: NotRequired[int]
    successfulJobsHistoryLimit: int
    failedJobsHistoryLimit: int
    template: ShareConsumerSpecJobTemplate


class ShareConsumerSpecSparkDriverTemplateMetadata(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class ShareConsumerSpecSparkDriverTemplateSpecContainers(TypedDict):
    name: str


class ShareConsumerSpecSparkDriverTemplateSpec(TypedDict):
    containers: NotRequired[list[ShareConsumerSpecSparkDriverTemplateSpecContainers]]


class ShareConsumerSpecSparkDriverTemplate(TypedDict):
    metadata: NotRequired[ShareConsumerSpecSparkDriverTemplateMetadata]
    spec: NotRequired[ShareConsumerSpecSparkDriverTemplateSpec]


class ShareConsumerSpecSparkDriver(TypedDict):
    coreRequest: NotRequired[str]
    coreLimit: NotRequired[str]
    memory: NotRequired[str]
    memoryOverhead: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    env: NotRequired[list[dict[str, Any]]]
    volumeMounts: NotRequired[list[dict[str, Any]]]
    nodeSelector: NotRequired[dict[str, str]]
    tolerations: NotRequired[list[dict[str, Any]]]
    template: NotRequired[ShareConsumerSpecSparkDriverTemplate]


class ShareConsumerSpecSparkExecutorTemplateMetadata(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class ShareConsumerSpecSparkExecutorTemplateSpecContainers(TypedDict):
    name: str


class ShareConsumerSpecSparkExecutorTemplateSpec(TypedDict):
    containers: NotRequired[list[ShareConsumerSpecSparkExecutorTemplateSpecContainers]]


class ShareConsumerSpecSparkExecutorTemplate(TypedDict):
    metadata: NotRequired[ShareConsumerSpecSparkExecutorTemplateMetadata]
    spec: NotRequired[ShareConsumerSpecSparkExecutorTemplateSpec]


class ShareConsumerSpecSparkExecutor(TypedDict):
    coreRequest: NotRequired[str]
    coreLimit: NotRequired[str]
    memory: NotRequired[str]
    memoryOverhead: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    env: NotRequired[list[dict[str, Any]]]
    volumeMounts: NotRequired[list[dict[str, Any]]]
    nodeSelector: NotRequired[dict[str, str]]
    tolerations: NotRequired[list[dict[str, Any]]]
    template: NotRequired[ShareConsumerSpecSparkExecutorTemplate]


class ShareConsumerSpecSparkCheckpoint(TypedDict):
    uri: NotRequired[str]
    persistentVolumeClaim: NotRequired[str]
    size: NotRequired[str]


class ShareConsumerSpecSpark(TypedDict):
    operator: str
    image: str
    imagePullPolicy: NotRequired[str]
    mainApplicationFile: str
    arguments: NotRequired[list[str]]
    sparkVersion: str
    sparkConf: NotRequired[dict[str, str]]
    serviceAccountName: str
    minExecutors: int
    maxExecutors: int
    coresPerExecutor: int
    maxRecordsPerTrigger: int
    driver: NotRequired[ShareConsumerSpecSparkDriver]
    executor: NotRequired[ShareConsumerSpecSparkExecutor]
    volumes: NotRequired[list[dict[str, Any]]]
    checkpoint: NotRequired[ShareConsumerSpecSparkCheckpoint]


class ShareConsumerSpec(TypedDict):
    shareGroup: str
    user: NotRequired[str]
    userSecret: NotRequired[str]
    replicas: NotRequired[int]
    scaling: NotRequired[ShareConsumerSpecScaling]
    scaleTargetRef: NotRequired[ShareConsumerSpecScaleTargetRef]
    deployment: NotRequired[ShareConsumerSpecDeployment]
    job: NotRequired[ShareConsumerSpecJob]
    spark: NotRequired[ShareConsumerSpecSpark]
    paused: bool


class ShareConsumerStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class ShareConsumerStatus(TypedDict):
    observedGeneration: NotRequired[int]
    replicas: NotRequired[int]
    readyReplicas: NotRequired[int]
    desiredReplicas: NotRequired[int]
    ceiling: NotRequired[int]
    selector: NotRequired[str]
    lag: NotRequired[int]
    workable: NotRequired[int]
    due: NotRequired[int]
    nextDueTime: NotRequired[str]
    inFlight: NotRequired[int]
    partitions: NotRequired[int]
    oldestRecordSeconds: NotRequired[int]
    lastScaleTime: NotRequired[str]
    idleSince: NotRequired[str]
    decision: NotRequired[str]
    applicationState: NotRequired[str]
    conditions: NotRequired[list[ShareConsumerStatusConditions]]


class ShareConsumerStatusPatch(TypedDict, total=False):
    replicas: int | None
    readyReplicas: int | None
    desiredReplicas: int | None
    ceiling: int | None
    selector: str | None
    lag: int | None
    workable: int | None
    due: int | None
    nextDueTime: str | None
    inFlight: int | None
    partitions: int | None
    oldestRecordSeconds: int | None
    lastScaleTime: str | None
    idleSince: str | None
    decision: str | None
    applicationState: str | None


class ShareConsumer(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: ShareConsumerSpec
    status: NotRequired[ShareConsumerStatus]
