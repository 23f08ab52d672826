"""The types of the manifests' bodies and of their parts, from a StatefulSet to a port. Pure.

They exist for mypy alone, which refuses a field that is not here, and have the fields that the
operator writes. A part that a user adds keeps the type of its definition (`model/resources`), and a
part without one is a plain dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class LabelSelector(TypedDict):
    """Selects by labels; all objects without any."""

    matchLabels: NotRequired[dict[str, str]]


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


class PodSecurityContext(TypedDict):
    """The platform assigns the ids and the profile where they are absent."""

    runAsNonRoot: bool
    fsGroupChangePolicy: str
    runAsUser: NotRequired[int]
    runAsGroup: NotRequired[int]
    fsGroup: NotRequired[int]
    seccompProfile: NotRequired[SeccompProfile]


class SeccompProfile(TypedDict):
    type: str


class TopologySpreadConstraint(TypedDict):
    maxSkew: int
    topologyKey: str
    whenUnsatisfiable: str
    labelSelector: LabelSelector


class ReadinessGate(TypedDict):
    conditionType: str


class PodSpec(TypedDict):
    """The spec of the pods of a StatefulSet, with what the user adds."""

    serviceAccountName: str
    automountServiceAccountToken: bool
    enableServiceLinks: bool
    terminationGracePeriodSeconds: int
    securityContext: PodSecurityContext | dict[str, Any]
    topologySpreadConstraints: Sequence[TopologySpreadConstraint | dict[str, Any]]
    containers: Sequence[
        Container | definition.QueueClusterSpecTemplatePodContainers | dict[str, Any]
    ]
    volumes: list[Volume | definition.QueueClusterSpecTemplatePodVolumes]
    initContainers: NotRequired[
        Sequence[dict[str, Any] | definition.QueueClusterSpecTemplatePodInitContainers]
    ]
    imagePullSecrets: NotRequired[Sequence[definition.QueueClusterSpecImagePullSecrets]]
    readinessGates: NotRequired[Sequence[ReadinessGate]]
    nodeSelector: NotRequired[dict[str, str]]
    affinity: NotRequired[dict[str, Any]]
    tolerations: NotRequired[list[dict[str, Any]]]
    priorityClassName: NotRequired[str]
    schedulerName: NotRequired[str]
    runtimeClassName: NotRequired[str]
    hostAliases: NotRequired[list[dict[str, Any]]]
    dnsPolicy: NotRequired[str]
    dnsConfig: NotRequired[dict[str, Any]]


class PodTemplateMetadata(TypedDict):
    labels: dict[str, str]
    annotations: dict[str, str]


class PodTemplateSpec(TypedDict):
    metadata: PodTemplateMetadata
    spec: PodSpec


class UpdateStrategy(TypedDict):
    type: str


class ClaimRetentionPolicy(TypedDict):
    whenDeleted: str
    whenScaled: str


class ClaimRequests(TypedDict):
    storage: str


class ClaimResources(TypedDict):
    requests: ClaimRequests


class ClaimSpec(TypedDict):
    """The spec of a PersistentVolumeClaim."""

    accessModes: list[str]
    resources: ClaimResources
    storageClassName: NotRequired[str]
    volumeAttributesClassName: NotRequired[str]


class ClaimMetadata(TypedDict):
    labels: dict[str, str]
    annotations: NotRequired[dict[str, str]]


class NamedClaimMetadata(ClaimMetadata):
    name: str


class ClaimTemplate(TypedDict):
    """An entry of the `volumeClaimTemplates` of a StatefulSet."""

    metadata: NamedClaimMetadata
    spec: ClaimSpec


class Ordinals(TypedDict):
    start: int


class StatefulSetSpec(TypedDict):
    replicas: int
    serviceName: str
    podManagementPolicy: str
    updateStrategy: UpdateStrategy
    selector: LabelSelector
    persistentVolumeClaimRetentionPolicy: ClaimRetentionPolicy
    template: PodTemplateSpec
    volumeClaimTemplates: NotRequired[list[ClaimTemplate]]
    ordinals: NotRequired[Ordinals]


class DeploymentSpec(TypedDict):
    """Its template is the user's, with what the operator adds."""

    replicas: int
    selector: LabelSelector
    template: dict[str, Any]


class JobSpec(TypedDict):
    """Its template is the user's, with what the operator adds."""

    backoffLimit: int
    template: dict[str, Any]
    activeDeadlineSeconds: NotRequired[int]


class DisruptionBudgetSpec(TypedDict):
    maxUnavailable: int
    selector: LabelSelector


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


class PolicyPeer(TypedDict):
    """Who may connect by a rule of a NetworkPolicy."""

    podSelector: LabelSelector
    namespaceSelector: NotRequired[LabelSelector]


#: A rule of a NetworkPolicy. Without `from`, everybody may connect.
IngressRule = TypedDict(
    "IngressRule",
    {"ports": "list[PolicyPort]", "from": "NotRequired[Sequence[PolicyPeer | dict[str, Any]]]"},
)


class NetworkPolicySpec(TypedDict):
    podSelector: LabelSelector
    policyTypes: list[str]
    ingress: list[IngressRule]


class BackendPort(TypedDict):
    number: int


class BackendService(TypedDict):
    name: str
    port: BackendPort


class IngressBackend(TypedDict):
    service: BackendService


class IngressPath(TypedDict):
    path: str
    pathType: str
    backend: IngressBackend


class IngressPaths(TypedDict):
    paths: list[IngressPath]


class HostRule(TypedDict):
    """A rule of an Ingress."""

    host: str
    http: IngressPaths


class IngressTls(TypedDict):
    hosts: list[str]


class IngressSpec(TypedDict):
    tls: list[IngressTls]
    rules: list[HostRule]
    ingressClassName: NotRequired[str]


class BackendRef(TypedDict):
    name: str
    port: int


class RouteRule(TypedDict):
    backendRefs: list[BackendRef]


class TlsRouteSpec(TypedDict):
    """The spec of a TLSRoute of the Gateway API."""

    parentRefs: list[definition.QueueClusterSpecListenersParentRefs]
    hostnames: list[str]
    rules: list[RouteRule]


class SecretTemplate(TypedDict):
    labels: dict[str, str]


class CertificateSubject(TypedDict):
    organizations: list[str]


class PrivateKey(TypedDict):
    algorithm: str
    size: int
    encoding: str
    rotationPolicy: str


class CertificateSpec(TypedDict):
    """The spec of a Certificate of cert-manager."""

    secretName: str
    secretTemplate: SecretTemplate
    commonName: str
    subject: CertificateSubject
    isCA: bool
    usages: list[str]
    duration: str
    privateKey: PrivateKey
    issuerRef: dict[str, str]
    renewBefore: NotRequired[str]
