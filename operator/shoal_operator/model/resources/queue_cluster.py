"""The type of a QueueCluster: `tools/resource_types.py` generates it from the definition."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class QueueClusterSpecExternalCredentials(TypedDict):
    secretName: str


class QueueClusterSpecExternalTrust(TypedDict):
    secretName: str
    key: str


class QueueClusterSpecExternal(TypedDict):
    bootstrapServers: str
    credentials: NotRequired[QueueClusterSpecExternalCredentials]
    trust: NotRequired[QueueClusterSpecExternalTrust]


class QueueClusterSpecImagePullSecrets(TypedDict):
    name: str


class QueueClusterSpecStorage(TypedDict):
    type: str
    size: str
    storageClassName: str
    volumeAttributesClassName: str
    deletionPolicy: str


class QueueClusterSpecResources(TypedDict):
    requests: NotRequired[dict[str, int | str]]
    limits: NotRequired[dict[str, int | str]]


class QueueClusterSpecLogging(TypedDict):
    loggers: NotRequired[dict[str, str]]


class QueueClusterSpecListenersParentRefs(TypedDict):
    group: NotRequired[str]
    kind: NotRequired[str]
    namespace: NotRequired[str]
    name: str
    sectionName: NotRequired[str]
    port: NotRequired[int]


class QueueClusterSpecListenersBootstrap(TypedDict):
    host: NotRequired[str]
    nodePort: NotRequired[int]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecListenersBrokers(TypedDict):
    broker: int
    host: NotRequired[str]
    nodePort: NotRequired[int]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecListenersTls(TypedDict):
    enabled: NotRequired[bool]
    secretName: NotRequired[str]


class QueueClusterSpecListenersAuthentication(TypedDict):
    type: str
    jwksEndpointUrl: NotRequired[str]
    validIssuer: NotRequired[str]
    audience: NotRequired[str]
    userNameClaim: NotRequired[str]


QueueClusterSpecListeners = TypedDict(
    "QueueClusterSpecListeners",
    {
        "name": str,
        "port": int,
        "host": NotRequired[str],
        "type": NotRequired[str],
        "class": NotRequired[str],
        "parentRefs": NotRequired[list[QueueClusterSpecListenersParentRefs]],
        "hostTemplate": NotRequired[str],
        "advertisedPort": NotRequired[int],
        "labels": NotRequired[dict[str, str]],
        "annotations": NotRequired[dict[str, str]],
        "externalTrafficPolicy": NotRequired[str],
        "loadBalancerSourceRanges": NotRequired[list[str]],
        "bootstrap": NotRequired[QueueClusterSpecListenersBootstrap],
        "brokers": NotRequired[list[QueueClusterSpecListenersBrokers]],
        "tls": NotRequired[QueueClusterSpecListenersTls],
        "authentication": NotRequired[QueueClusterSpecListenersAuthentication],
    },
)


class QueueClusterSpecAuthorization(TypedDict):
    type: str


class QueueClusterSpecClusterCaIssuerRef(TypedDict):
    name: str
    kind: str
    group: str


class QueueClusterSpecClusterCa(TypedDict):
    type: NotRequired[str]
    issuerRef: NotRequired[QueueClusterSpecClusterCaIssuerRef]
    generate: NotRequired[bool]
    validityDays: NotRequired[int]
    renewalDays: NotRequired[int]
    overlap: NotRequired[str]


class QueueClusterSpecClientsCaIssuerRef(TypedDict):
    name: str
    kind: str
    group: str


class QueueClusterSpecClientsCa(TypedDict):
    type: NotRequired[str]
    issuerRef: NotRequired[QueueClusterSpecClientsCaIssuerRef]
    generate: NotRequired[bool]
    validityDays: NotRequired[int]
    renewalDays: NotRequired[int]
    overlap: NotRequired[str]


class QueueClusterSpecTieredStorageCredentials(TypedDict):
    secretName: str


class QueueClusterSpecTieredStorageEncryption(TypedDict):
    secretName: str
    keyId: NotRequired[str]


class QueueClusterSpecTieredStorage(TypedDict):
    type: str
    bucket: str
    account: NotRequired[str]
    prefix: str
    endpoint: NotRequired[str]
    region: NotRequired[str]
    credentials: NotRequired[QueueClusterSpecTieredStorageCredentials]
    cacheSize: NotRequired[str]
    copyInterval: str
    compression: str
    encryption: NotRequired[QueueClusterSpecTieredStorageEncryption]


class QueueClusterSpecRestoreFrom(TypedDict):
    clusterId: NotRequired[str]
    topics: NotRequired[list[str]]


class QueueClusterSpecRack(TypedDict):
    topologyKey: str


class QueueClusterSpecMetricsTokenSecretKeyRef(TypedDict):
    name: str
    key: str


class QueueClusterSpecMetricsToken(TypedDict):
    secretKeyRef: QueueClusterSpecMetricsTokenSecretKeyRef


class QueueClusterSpecMetrics(TypedDict):
    enabled: bool
    port: int
    tls: NotRequired[dict[str, Any]]
    token: NotRequired[QueueClusterSpecMetricsToken]


QueueClusterSpecNetworkPolicy = TypedDict(
    "QueueClusterSpecNetworkPolicy",
    {
        "enabled": bool,
        "from": NotRequired[list[dict[str, Any]]],
        "metricsFrom": NotRequired[list[dict[str, Any]]],
    },
)


class QueueClusterSpecTemplatePodVolumes(TypedDict):
    name: str


class QueueClusterSpecTemplatePodVolumeMounts(TypedDict):
    name: str
    mountPath: str


class QueueClusterSpecTemplatePodContainers(TypedDict):
    name: str


class QueueClusterSpecTemplatePodInitContainers(TypedDict):
    name: str


class QueueClusterSpecTemplatePodEnv(TypedDict):
    name: str


class QueueClusterSpecTemplatePod(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    nodeSelector: NotRequired[dict[str, str]]
    priorityClassName: NotRequired[str]
    affinity: NotRequired[dict[str, Any]]
    schedulerName: NotRequired[str]
    runtimeClassName: NotRequired[str]
    hostAliases: NotRequired[list[dict[str, Any]]]
    dnsPolicy: NotRequired[str]
    dnsConfig: NotRequired[dict[str, Any]]
    securityContext: NotRequired[dict[str, Any]]
    containerSecurityContext: NotRequired[dict[str, Any]]
    volumes: NotRequired[list[QueueClusterSpecTemplatePodVolumes]]
    volumeMounts: NotRequired[list[QueueClusterSpecTemplatePodVolumeMounts]]
    containers: NotRequired[list[QueueClusterSpecTemplatePodContainers]]
    initContainers: NotRequired[list[QueueClusterSpecTemplatePodInitContainers]]
    env: NotRequired[list[QueueClusterSpecTemplatePodEnv]]
    tolerations: NotRequired[list[dict[str, Any]]]
    topologySpreadConstraints: NotRequired[list[dict[str, Any]]]
    terminationGracePeriodSeconds: NotRequired[int]


class QueueClusterSpecTemplateService(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecTemplateServiceAccount(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecTemplatePersistentVolumeClaim(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecTemplate(TypedDict):
    pod: NotRequired[QueueClusterSpecTemplatePod]
    service: NotRequired[QueueClusterSpecTemplateService]
    serviceAccount: NotRequired[QueueClusterSpecTemplateServiceAccount]
    persistentVolumeClaim: NotRequired[QueueClusterSpecTemplatePersistentVolumeClaim]


class QueueClusterSpecNodePoolsResources(TypedDict):
    requests: NotRequired[dict[str, int | str]]
    limits: NotRequired[dict[str, int | str]]


class QueueClusterSpecNodePoolsStorage(TypedDict):
    size: str
    storageClassName: NotRequired[str]
    volumeAttributesClassName: NotRequired[str]


class QueueClusterSpecNodePoolsTemplatePodVolumes(TypedDict):
    name: str


class QueueClusterSpecNodePoolsTemplatePodVolumeMounts(TypedDict):
    name: str
    mountPath: str


class QueueClusterSpecNodePoolsTemplatePodContainers(TypedDict):
    name: str


class QueueClusterSpecNodePoolsTemplatePodInitContainers(TypedDict):
    name: str


class QueueClusterSpecNodePoolsTemplatePodEnv(TypedDict):
    name: str


class QueueClusterSpecNodePoolsTemplatePod(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    nodeSelector: NotRequired[dict[str, str]]
    priorityClassName: NotRequired[str]
    affinity: NotRequired[dict[str, Any]]
    schedulerName: NotRequired[str]
    runtimeClassName: NotRequired[str]
    hostAliases: NotRequired[list[dict[str, Any]]]
    dnsPolicy: NotRequired[str]
    dnsConfig: NotRequired[dict[str, Any]]
    securityContext: NotRequired[dict[str, Any]]
    containerSecurityContext: NotRequired[dict[str, Any]]
    volumes: NotRequired[list[QueueClusterSpecNodePoolsTemplatePodVolumes]]
    volumeMounts: NotRequired[list[QueueClusterSpecNodePoolsTemplatePodVolumeMounts]]
    containers: NotRequired[list[QueueClusterSpecNodePoolsTemplatePodContainers]]
    initContainers: NotRequired[list[QueueClusterSpecNodePoolsTemplatePodInitContainers]]
    env: NotRequired[list[QueueClusterSpecNodePoolsTemplatePodEnv]]
    tolerations: NotRequired[list[dict[str, Any]]]
    topologySpreadConstraints: NotRequired[list[dict[str, Any]]]
    terminationGracePeriodSeconds: NotRequired[int]


class QueueClusterSpecNodePoolsTemplatePersistentVolumeClaim(TypedDict):
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]


class QueueClusterSpecNodePoolsTemplate(TypedDict):
    pod: NotRequired[QueueClusterSpecNodePoolsTemplatePod]
    persistentVolumeClaim: NotRequired[QueueClusterSpecNodePoolsTemplatePersistentVolumeClaim]


class QueueClusterSpecNodePools(TypedDict):
    name: str
    firstNodeId: int
    replicas: NotRequired[int]
    roles: NotRequired[list[str]]
    resources: NotRequired[QueueClusterSpecNodePoolsResources]
    storage: NotRequired[QueueClusterSpecNodePoolsStorage]
    template: NotRequired[QueueClusterSpecNodePoolsTemplate]


class QueueClusterSpecMaintenanceWindows(TypedDict):
    schedule: str
    duration: str


class QueueClusterSpec(TypedDict):
    type: str
    external: NotRequired[QueueClusterSpecExternal]
    replicas: int
    brokersPerPod: int
    image: str
    version: str
    metadataVersion: str
    imagePullPolicy: NotRequired[str]
    imagePullSecrets: NotRequired[list[QueueClusterSpecImagePullSecrets]]
    storage: NotRequired[QueueClusterSpecStorage]
    resources: NotRequired[QueueClusterSpecResources]
    config: NotRequired[dict[str, str]]
    logging: NotRequired[QueueClusterSpecLogging]
    listeners: list[QueueClusterSpecListeners]
    authorization: NotRequired[QueueClusterSpecAuthorization]
    superUsers: NotRequired[list[str]]
    clusterCa: NotRequired[QueueClusterSpecClusterCa]
    clientsCa: NotRequired[QueueClusterSpecClientsCa]
    tieredStorage: NotRequired[QueueClusterSpecTieredStorage]
    restoreFrom: NotRequired[QueueClusterSpecRestoreFrom]
    rack: NotRequired[QueueClusterSpecRack]
    metrics: QueueClusterSpecMetrics
    networkPolicy: QueueClusterSpecNetworkPolicy
    template: NotRequired[QueueClusterSpecTemplate]
    nodePools: NotRequired[list[QueueClusterSpecNodePools]]
    maintenanceWindows: NotRequired[list[QueueClusterSpecMaintenanceWindows]]
    hibernated: bool
    paused: bool


class QueueClusterStatusListeners(TypedDict):
    name: NotRequired[str]
    type: NotRequired[str]
    bootstrapServers: NotRequired[str]
    caCertificateSecret: NotRequired[str]


class QueueClusterStatusCertificates(TypedDict):
    name: NotRequired[str]
    fingerprint: NotRequired[str]
    notAfter: NotRequired[str]
    phase: NotRequired[str]


class QueueClusterStatusTieredStorage(TypedDict):
    segments: NotRequired[int]
    bytes: NotRequired[int]
    notCopiedBytes: NotRequired[int]
    failingPartitions: NotRequired[int]
    missingObjects: NotRequired[int]
    orphans: NotRequired[int]


class QueueClusterStatusRestoreEndOffsets(TypedDict):
    topic: NotRequired[str]
    partitions: NotRequired[list[int]]


class QueueClusterStatusRestore(TypedDict):
    phase: NotRequired[str]
    brokersRestored: NotRequired[str]
    clusterId: NotRequired[str]
    completionTime: NotRequired[str]
    backupTime: NotRequired[str]
    topics: NotRequired[int]
    partitions: NotRequired[int]
    missingSegments: NotRequired[int]
    abortedTransactions: NotRequired[int]
    endOffsets: NotRequired[list[QueueClusterStatusRestoreEndOffsets]]
    topicsLeftOut: NotRequired[int]


class QueueClusterStatusBrokers(TypedDict):
    id: NotRequired[int]
    pod: NotRequired[str]
    ready: NotRequired[bool]
    node: NotRequired[str]
    version: NotRequired[str]
    configHash: NotRequired[str]


class QueueClusterStatusControllers(TypedDict):
    id: NotRequired[int]
    pod: NotRequired[str]
    ready: NotRequired[bool]
    node: NotRequired[str]
    version: NotRequired[str]
    configHash: NotRequired[str]


class QueueClusterStatusNodePools(TypedDict):
    name: NotRequired[str]
    roles: NotRequired[list[str]]
    firstNodeId: NotRequired[int]
    replicas: NotRequired[int]
    readyReplicas: NotRequired[int]


class QueueClusterStatusConditions(TypedDict):
    type: str
    status: str
    observedGeneration: NotRequired[int]
    lastTransitionTime: str
    reason: str
    message: str


class QueueClusterStatus(TypedDict):
    observedGeneration: NotRequired[int]
    replicas: NotRequired[int]
    readyReplicas: NotRequired[int]
    volumeSize: NotRequired[str]
    brokersReady: NotRequired[str]
    selector: NotRequired[str]
    version: NotRequired[str]
    metadataVersion: NotRequired[str]
    image: NotRequired[str]
    clusterId: NotRequired[str]
    features: NotRequired[dict[str, int]]
    controllerId: NotRequired[int]
    quorumVoters: NotRequired[list[int]]
    appliedConfig: NotRequired[list[str]]
    appliedLoggers: NotRequired[list[str]]
    cordonedBrokers: NotRequired[list[int]]
    bootstrapServers: NotRequired[str]
    listeners: NotRequired[list[QueueClusterStatusListeners]]
    certificates: NotRequired[list[QueueClusterStatusCertificates]]
    delegationTokenKey: NotRequired[str]
    tieredStorage: NotRequired[QueueClusterStatusTieredStorage]
    restore: NotRequired[QueueClusterStatusRestore]
    brokers: NotRequired[list[QueueClusterStatusBrokers]]
    controllers: NotRequired[list[QueueClusterStatusControllers]]
    nodePools: NotRequired[list[QueueClusterStatusNodePools]]
    conditions: NotRequired[list[QueueClusterStatusConditions]]


class QueueClusterStatusPatch(TypedDict, total=False):
    replicas: int | None
    readyReplicas: int | None
    volumeSize: str | None
    brokersReady: str | None
    selector: str | None
    version: str | None
    metadataVersion: str | None
    image: str | None
    clusterId: str | None
    features: dict[str, int] | None
    controllerId: int | None
    quorumVoters: list[int] | None
    appliedConfig: list[str] | None
    appliedLoggers: list[str] | None
    cordonedBrokers: list[int] | None
    bootstrapServers: str | None
    listeners: list[QueueClusterStatusListeners] | None
    certificates: list[QueueClusterStatusCertificates] | None
    delegationTokenKey: str | None
    tieredStorage: QueueClusterStatusTieredStorage | None
    restore: QueueClusterStatusRestore | None
    brokers: list[QueueClusterStatusBrokers] | None
    controllers: list[QueueClusterStatusControllers] | None
    nodePools: list[QueueClusterStatusNodePools] | None


class QueueCluster(TypedDict):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: QueueClusterSpec
    status: NotRequired[QueueClusterStatus]
