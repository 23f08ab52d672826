"""The SparkApplication of a ShareConsumer, for Kubeflow's Spark operator (v1beta2).

Kubeflow restarts an application when its spec changes, except for `suspend`. The manifest therefore
does not depend on the wanted number of executors: the driver asks the operator for the number over
HTTP and requests the executors from Spark (ADR 26). Pods are customized in pod templates, which
Spark applies; other fields would need Kubeflow's admission webhook.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shoal_operator.model import names, rack, users
from shoal_operator.model.consumers import kueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.kubernetes import EnvVar, SecretVolume, Volume, VolumeMount
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import (
        ShareConsumer,
        ShareConsumerSpecSparkDriver,
        ShareConsumerSpecSparkExecutor,
    )

#: User id in the project's Spark image and in Spark's image.
USER_ID = 185
#: What pods get on Kubernetes, and what OpenShift assigns.
IDS = {"fsGroup": USER_ID, "seccompProfile": {"type": "RuntimeDefault"}}
CHECKPOINT_DIR = "/var/lib/shoal/checkpoint"
CHECKPOINT_SIZE = "1Gi"
#: Where the driver finds what it needs to read the scale signal.
SCALE_DIR = "/etc/shoal/scale"
#: The role of drivers, which the chart creates. The reference of a binding cannot change, so the
#: name is the same in every release (ADR 171).
DRIVER_ROLE = "shoal-spark-driver"
#: The variable by which executors find the annotations of their pod.
POD_ANNOTATIONS = "SHOAL_POD_ANNOTATIONS"
#: The role of a pod, as the spec names it.
Role = Literal["driver", "executor"]
#: Spark's container names, by the role of the pod.
CONTAINERS: dict[Role, str] = {
    "driver": "spark-kubernetes-driver",
    "executor": "spark-kubernetes-executor",
}
CHECKPOINT_VOLUME, SCALE_VOLUME = "checkpoint", "shoal-scale"
UI_PORT = 4040
#: Annotations of the driver, by which Prometheus finds Spark's metrics.
SCRAPING = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(UI_PORT),
    "prometheus.io/path": "/metrics/prometheus",
}
PULL_POLICY = "IfNotPresent"
#: The fields of a role that its SparkApplication has under the same names.
_AMOUNTS: tuple[Literal["coreRequest", "coreLimit", "memory", "memoryOverhead"], ...] = (
    "coreRequest",
    "coreLimit",
    "memory",
    "memoryOverhead",
)
#: Spark's default of `spark.driver.memory` and `spark.executor.memory`.
MEMORY = "1g"
#: Seconds until Kubeflow retries a failed application or submission.
RETRY_SECONDS = 5
#: Default Spark properties, which `spec.spark.sparkConf` overrides.
DEFAULTS = {
    # Spark 4.2 and later create a NetworkPolicy, which the role in Kubeflow's chart does not allow.
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    ),
    # A decommissioned executor finishes its tasks first, so that no record loses an attempt.
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    # Spark's dynamic allocation would remove executors between two batches.
    "spark.dynamicAllocation.enabled": "false",
    # By default, the context waits up to 30 s for executors before the job starts, and the job
    # requests executors only then. Tasks wait for their executors anyway.
    "spark.scheduler.minRegisteredResourcesRatio": "0",
    # Job, source and daemons of the driver take about 350 MB of Python memory. Spark's default of
    # 384m would leave too little for the JVM's overhead.
    "spark.driver.minMemoryOverhead": "512m",
    "spark.ui.prometheus.enabled": "true",
    "spark.metrics.conf.*.sink.prometheusServlet.class": (
        "org.apache.spark.metrics.sink.PrometheusServlet"
    ),
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}
#: The same for the default image only, since other images may lack the module. It forks Python
#: workers with their imports already loaded.
OF_OWN_IMAGE = {"spark.python.daemon.module": "shoal_spark.daemon"}


@dataclass(frozen=True, slots=True)
class WorkloadContext:
    """The cluster, group, user, image and operator that an application uses."""

    cluster: str
    bootstrap_servers: str
    group_id: str
    topics: Sequence[str]
    image: str
    driver_role_kind: str
    pull_policy: str = PULL_POLICY
    #: The Secret of the user that driver and executors log in as, empty without one.
    user_secret: str = ""
    #: The Secret with which the driver reads the scale signal, empty if it cannot read one.
    scale_secret: str = ""
    #: Whether the operator serves the signal by TLS, with a token.
    scale_login: bool = False
    #: Whether the platform assigns user, group and seccomp profile.
    openshift: bool = False
    #: The node label that has the racks of the cluster, empty without racks.
    rack: str = ""


def build_manifests(consumer: ShareConsumer, context: WorkloadContext) -> list[Manifest]:
    """Return the objects that the application needs: checkpoint claim, account, role binding."""
    spark = consumer["spec"]["spark"]
    manifests = []
    if _get_claim(consumer) == format_checkpoint_name(consumer):
        manifests.append(_build_checkpoint_claim(consumer, context))
    if not spark.get("serviceAccountName"):
        manifests += [_build_account(consumer, context), _build_role_binding(consumer, context)]
    return manifests


def build_application(
    consumer: ShareConsumer, context: WorkloadContext, *, suspend: bool
) -> Manifest:
    """Return the SparkApplication; only `suspend` changes while it runs.

    In a queue of Kueue, that field is Kueue's, and Kueue admits the driver with all executors that
    it may ever have: it would not know of more.
    """
    meta, spark = consumer["metadata"], consumer["spec"]["spark"]
    queued = bool(kueue.get_queue(consumer))
    values = {
        "$(BOOTSTRAP_SERVERS)": context.bootstrap_servers,
        "$(GROUP_ID)": context.group_id,
        "$(TOPICS)": ",".join(context.topics),
        "$(CHECKPOINT)": get_checkpoint_uri(consumer),
        "$(MAX_RECORDS_PER_TRIGGER)": str(spark["maxRecordsPerTrigger"]),
    }
    application = _build_object(
        consumer, context, names.SPARK_API, "SparkApplication", meta["name"]
    )
    application["metadata"]["labels"] |= kueue.select_labels(consumer)
    executors = spark["maxExecutors"] if queued else max(1, spark["minExecutors"])
    return {
        **application,
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": spark.get("image") or context.image,
            "imagePullPolicy": spark.get("imagePullPolicy")
            or (PULL_POLICY if spark.get("image") else context.pull_policy),
            "mainApplicationFile": spark["mainApplicationFile"],
            "arguments": [_fill(a, values) for a in spark.get("arguments", [])],
            "sparkVersion": spark["sparkVersion"],
            "sparkConf": {
                **DEFAULTS,
                **({} if spark.get("image") else OF_OWN_IMAGE),
                **spark.get("sparkConf", {}),
            },
            "restartPolicy": {
                "type": "Always",
                "onFailureRetryInterval": RETRY_SECONDS,
                "onSubmissionFailureRetryInterval": RETRY_SECONDS,
            },
            **({} if queued else {"suspend": suspend}),
            "driver": _build_role(consumer, context, "driver", cores=1)
            | {
                "serviceAccount": spark.get("serviceAccountName") or format_driver_account(consumer)
            },
            "executor": _build_role(consumer, context, "executor", cores=spark["coresPerExecutor"])
            | {"instances": executors},
        },
    }


def format_checkpoint_name(consumer: ShareConsumer) -> str:
    """Return the name of the claim that the operator creates; it outlives the ShareConsumer."""
    return f"{consumer['metadata']['name']}-checkpoint"


def format_driver_account(consumer: ShareConsumer) -> str:
    return f"{consumer['metadata']['name']}-driver"


def get_checkpoint_uri(consumer: ShareConsumer) -> str:
    """Return the URI of the query's checkpoint."""
    checkpoint = consumer["spec"]["spark"].get("checkpoint", {})
    return str(checkpoint.get("uri") or f"file://{CHECKPOINT_DIR}")


def build_executor_selector(consumer: str) -> dict[str, str]:
    """Return the labels of a ShareConsumer's executors; Spark sets `spark-role`."""
    return {names.CONSUMER_LABEL: consumer, "spark-role": "executor"}


def _get_claim(consumer: ShareConsumer) -> str:
    """Return the volume claim of the checkpoint, empty with `checkpoint.uri`."""
    checkpoint = consumer["spec"]["spark"].get("checkpoint", {})
    if checkpoint.get("uri"):
        return ""
    return str(checkpoint.get("persistentVolumeClaim") or format_checkpoint_name(consumer))


def _fill(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


def _build_object(
    consumer: ShareConsumer, context: WorkloadContext, api: str, kind: str, name: str
) -> Manifest:
    labels = names.build_consumer_labels(consumer["metadata"]["name"], context.cluster)
    metadata = names.build_metadata(consumer, name, labels)
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def _build_checkpoint_claim(consumer: ShareConsumer, context: WorkloadContext) -> Manifest:
    size = consumer["spec"]["spark"].get("checkpoint", {}).get("size", CHECKPOINT_SIZE)
    claim = _build_object(
        consumer, context, "v1", "PersistentVolumeClaim", format_checkpoint_name(consumer)
    )
    # Without an owner: a new query would number its batches from zero, and a sink that identifies
    # batches by number would skip them.
    del claim["metadata"]["ownerReferences"]
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {**claim, "spec": spec}


def _build_account(consumer: ShareConsumer, context: WorkloadContext) -> Manifest:
    return _build_object(consumer, context, "v1", "ServiceAccount", format_driver_account(consumer))


def _build_role_binding(consumer: ShareConsumer, context: WorkloadContext) -> Manifest:
    """Return the RoleBinding that lets the driver run executors in its namespace."""
    group, name = "rbac.authorization.k8s.io", format_driver_account(consumer)
    namespace = consumer["metadata"]["namespace"]
    return {
        **_build_object(consumer, context, f"{group}/v1", "RoleBinding", name),
        "roleRef": {"apiGroup": group, "kind": context.driver_role_kind, "name": DRIVER_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _build_role(
    consumer: ShareConsumer, context: WorkloadContext, role: Role, *, cores: int
) -> Manifest:
    """Return the part of the spec for the driver or the executors."""
    over = consumer["spec"]["spark"].get(role, {})
    role_spec: Manifest = {"cores": cores}
    for key in _AMOUNTS:
        if over.get(key):
            role_spec[key] = over[key]
    template = _build_template(consumer, context, role, over)
    if kueue.get_queue(consumer):
        properties = consumer["spec"]["spark"].get("sparkConf", {})
        role_spec = _build_counted_amounts(role, template, properties, cores=cores) | role_spec
    return {**role_spec, "template": template}


def _build_counted_amounts(
    role: Role, template: Mapping[str, Any], properties: Mapping[str, str], *, cores: int
) -> Manifest:
    """Return what a pod requests if the user says nothing, as the fields that Kueue counts.

    Kueue reads these fields alone. So without them, a pod with Spark's defaults, or with a GPU in
    its template, would take nothing of a quota.
    """
    amounts: Manifest = {
        "coreRequest": properties.get(f"spark.kubernetes.{role}.request.cores", str(cores)),
        "memory": properties.get(f"spark.{role}.memory", MEMORY),
    }
    containers = template["spec"]["containers"]
    container = next(entry for entry in containers if entry["name"] == CONTAINERS[role])
    limits = container.get("resources", {}).get("limits", {})
    # Extended resources are whole numbers. A SparkApplication has room for one kind of them.
    for name, quantity in limits.items():
        if "/" in name and str(quantity).isdecimal():
            return amounts | {"gpu": {"name": name, "quantity": int(quantity)}}
    return amounts


def _build_template(
    consumer: ShareConsumer,
    context: WorkloadContext,
    role: Role,
    over: ShareConsumerSpecSparkDriver | ShareConsumerSpecSparkExecutor,
) -> Manifest:
    """Return the pod template of the driver or the executors: the user's, with ours over it."""
    spark, own = consumer["spec"]["spark"], _list_additions(consumer, context, role)
    template: Manifest = copy.deepcopy(dict(over.get("template", {})))
    meta, pod = template.get("metadata", {}), template.get("spec", {})
    name = CONTAINERS[role]
    containers = pod.get("containers", [])
    container: Manifest = next(
        (entry for entry in containers if entry["name"] == name), {"name": name}
    )
    # The cause of a failure goes into the pod's status and from there into our condition.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **container.get("securityContext", {}),
    }
    env = [*container.get("env", []), *over.get("env", [])]
    container["env"] = names.merge_environment(own.env, env)
    mounts = [*container.get("volumeMounts", []), *over.get("volumeMounts", [])]
    if context.user_secret:
        mounts = users.with_mount(mounts, users.make_mounted_secret(context.user_secret))
    container["volumeMounts"] = [*mounts, *own.mounts]
    pod |= {
        "securityContext": {
            "runAsNonRoot": True,
            **({} if context.openshift else IDS),
            **pod.get("securityContext", {}),
        },
        "enableServiceLinks": pod.get("enableServiceLinks", False),
        # Spark takes the first container for its own.
        "containers": [container, *(entry for entry in containers if entry["name"] != name)],
        "volumes": [*pod.get("volumes", []), *spark.get("volumes", []), *own.volumes],
        "nodeSelector": {**pod.get("nodeSelector", {}), **over.get("nodeSelector", {})},
        "tolerations": [*pod.get("tolerations", []), *over.get("tolerations", [])],
    }
    _drop_empty(container, "env", "volumeMounts")
    _drop_empty(pod, "volumes", "nodeSelector", "tolerations")
    labels = {
        **meta.get("labels", {}),
        **over.get("labels", {}),
        **names.build_consumer_labels(consumer["metadata"]["name"], context.cluster),
    }
    annotations = {
        **(SCRAPING if role == "driver" else {}),
        **meta.get("annotations", {}),
        **over.get("annotations", {}),
        **own.annotations,
    }
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _drop_empty(manifest: Manifest, *fields: str) -> None:
    for field in fields:
        if not manifest[field]:
            del manifest[field]


class _Additions(NamedTuple):
    """What the operator adds to a pod."""

    env: list[EnvVar]
    volumes: list[Volume]
    mounts: list[VolumeMount]
    annotations: dict[str, str]


def _list_additions(consumer: ShareConsumer, context: WorkloadContext, role: Role) -> _Additions:
    own, user = _Additions([], [], [], {}), users.make_mounted_secret(context.user_secret)
    if context.user_secret:
        own.volumes.append(user.volume)
    if role == "driver":
        own.env.extend(_build_environment(consumer, context))
        if context.scale_secret:
            source: SecretVolume = {"secretName": context.scale_secret}
            own.volumes.append({"name": SCALE_VOLUME, "secret": source})
            own.mounts.append({"name": SCALE_VOLUME, "mountPath": SCALE_DIR, "readOnly": True})
        if claim := _get_claim(consumer):
            own.volumes.append(
                {"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": {"claimName": claim}}
            )
            own.mounts.append({"name": CHECKPOINT_VOLUME, "mountPath": CHECKPOINT_DIR})
    elif context.rack:
        # An executor reads from the closest replicas as soon as its pod has the answer.
        own.annotations[names.RACK_KEY] = context.rack
        own.volumes.append(rack.build_volume())
        own.mounts.append(rack.build_mount())
        own.env.append({"name": POD_ANNOTATIONS, "value": names.POD_ANNOTATIONS})
    if context.user_secret:
        own.env.append(user.variable)
    return own


def _build_environment(consumer: ShareConsumer, context: WorkloadContext) -> list[EnvVar]:
    """Return the driver's environment, which the source and the job read."""
    spark = consumer["spec"]["spark"]
    values = {
        "SHOAL_BOOTSTRAP_SERVERS": context.bootstrap_servers,
        "SHOAL_GROUP_ID": context.group_id,
        "SHOAL_TOPICS": ",".join(context.topics),
        "SHOAL_CHECKPOINT": get_checkpoint_uri(consumer),
        "SHOAL_MAX_RECORDS_PER_TRIGGER": str(spark["maxRecordsPerTrigger"]),
        "SHOAL_CORES_PER_EXECUTOR": str(spark["coresPerExecutor"]),
        "SHOAL_MAX_EXECUTORS": str(spark["maxExecutors"]),
    }
    if context.scale_secret:
        values["SHOAL_SCALE_URL_FILE"] = f"{SCALE_DIR}/url"
    if context.scale_secret and context.scale_login:
        values |= {
            "SHOAL_SCALE_CA_FILE": f"{SCALE_DIR}/ca.crt",
            "SHOAL_SCALE_TOKEN_FILE": f"{SCALE_DIR}/token",
        }
    return [{"name": name, "value": value} for name, value in values.items()]
