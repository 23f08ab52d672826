"""The types of the parts that manifests repeat: metadata, containers, volumes, ports. Pure.

They exist for mypy alone, which refuses a field that is not here, and have the fields that the
operator writes. A part that a user adds keeps the type of its definition (`model/resources`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from shoal_operator.model.resources import queue_cluster as definition


class OwnerReference(TypedDict):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool
    blockOwnerDeletion: bool


class ObjectMeta(TypedDict):
    name: str
    namespace: str
    labels: dict[str, str]
    annotations: NotRequired[dict[str, str]]
    ownerReferences: NotRequired[list[OwnerReference]]


class AddedMetadata(TypedDict):
    """The labels and annotations that a user adds to an object."""

    labels: dict[str, str]
    annotations: dict[str, str]


class FieldRef(TypedDict):
    fieldPath: str


class FieldSource(TypedDict):
    fieldRef: FieldRef


class SecretKeyRef(TypedDict):
    name: str
    key: str
    optional: NotRequired[bool]


class SecretSource(TypedDict):
    secretKeyRef: SecretKeyRef


class EnvVar(TypedDict):
    name: str
    value: NotRequired[str]
    valueFrom: NotRequired[FieldSource | SecretSource]


class ConfigMapVolume(TypedDict):
    name: str


class EmptyDirVolume(TypedDict):
    sizeLimit: str


class ClaimVolume(TypedDict):
    claimName: str


class SecretVolume(TypedDict):
    secretName: str
    defaultMode: NotRequired[int]
    optional: NotRequired[bool]


class DownwardFile(TypedDict):
    path: str
    fieldRef: FieldRef


class DownwardVolume(TypedDict):
    items: list[DownwardFile]


class Volume(TypedDict):
    name: str
    configMap: NotRequired[ConfigMapVolume]
    emptyDir: NotRequired[EmptyDirVolume]
    secret: NotRequired[SecretVolume]
    downwardAPI: NotRequired[DownwardVolume]
    persistentVolumeClaim: NotRequired[ClaimVolume]


class VolumeMount(TypedDict):
    name: str
    mountPath: str
    readOnly: NotRequired[bool]


class ContainerPort(TypedDict):
    name: str
    containerPort: int


class HttpGet(TypedDict):
    path: str
    port: str


class Probe(TypedDict):
    httpGet: HttpGet
    timeoutSeconds: int
    periodSeconds: int
    failureThreshold: int


class Container(TypedDict):
    """A broker's container; `env` and `volumeMounts` have what the user adds as well."""

    name: str
    image: str
    imagePullPolicy: str
    args: list[str]
    env: list[definition.QueueClusterSpecTemplatePodEnv]
    ports: list[ContainerPort]
    volumeMounts: list[definition.QueueClusterSpecTemplatePodVolumeMounts]
    terminationMessagePolicy: str
    resources: definition.QueueClusterSpecResources
    securityContext: dict[str, Any]
    startupProbe: Probe
    readinessProbe: Probe
    livenessProbe: Probe
    lifecycle: NotRequired[dict[str, Any]]


class ServicePort(TypedDict):
    name: str
    port: int
    targetPort: str
    protocol: str
    nodePort: NotRequired[int]


class ServiceSpec(TypedDict):
    selector: dict[str, str]
    ports: list[ServicePort]
    type: NotRequired[str]
    clusterIP: NotRequired[str]
    publishNotReadyAddresses: NotRequired[bool]
    externalTrafficPolicy: NotRequired[str]
    loadBalancerSourceRanges: NotRequired[list[str]]


class PolicyPort(TypedDict):
    """A port of a rule of a NetworkPolicy."""

    port: int
    protocol: str
