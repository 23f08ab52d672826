"""The SparkApplication of a ShareConsumer, for Kubeflow's Spark operator (v1beta2).

Kubeflow restarts an application when its spec changes, except for `suspend`. The manifest therefore
does not depend on the wanted number of executors: the driver asks the operator for the number over
HTTP and requests the executors from Spark (ADR 26). Pods are customized in pod templates, which
Spark applies; other fields would need Kubeflow's admission webhook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names, rack, users

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest

#: User id in the project's Spark image and in Spark's image.
USER_ID = 185
#: What pods get on Kubernetes, and what OpenShift assigns.
IDS = {"fsGroup": USER_ID, "seccompProfile": {"type": "RuntimeDefault"}}
CHECKPOINT_DIR = "/var/lib/shoal/checkpoint"
CHECKPOINT_SIZE = "1Gi"
#: Where the driver finds what it needs to read the scale signal.
SCALE_DIR = "/etc/shoal/scale"
#: The variable by which executors find the annotations of their pod.
POD_ANNOTATIONS = "SHOAL_POD_ANNOTATIONS"
#: Spark's container names.
DRIVER, EXECUTOR = "spark-kubernetes-driver", "spark-kubernetes-executor"
UI_PORT = 4040
PULL_POLICY = "IfNotPresent"
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
    scale_url: str
    driver_role: str
    pull_policy: str = PULL_POLICY
    #: The Secret of the user that driver and executors log in as, empty without one.
    user_secret: str = ""
    #: The Secret with which the driver reads the scale signal, empty if it needs none.
    scale_secret: str = ""
    #: Whether the platform assigns user, group and seccomp profile.
    openshift: bool = False
    #: The node label that has the racks of the cluster, empty without racks.
    rack: str = ""


def manifests(consumer: Mapping[str, Any], context: WorkloadContext) -> list[Manifest]:
    """Return the objects that the application needs: checkpoint claim, account, role binding."""
    spark = consumer["spec"]["spark"]
    made = []
    if _claim(consumer) == checkpoint_name(consumer):
        made.append(_checkpoint(consumer, context))
    if not spark.get("serviceAccountName"):
        made += [_account(consumer, context), _binding(consumer, context)]
    return made


def application(
    consumer: Mapping[str, Any], context: WorkloadContext, *, suspend: bool
) -> Manifest:
    """Return the SparkApplication; only `suspend` changes while it runs."""
    meta, spark = consumer["metadata"], consumer["spec"]["spark"]
    values = {
        "$(BOOTSTRAP_SERVERS)": context.bootstrap_servers,
        "$(GROUP_ID)": context.group_id,
        "$(TOPICS)": ",".join(context.topics),
        "$(CHECKPOINT)": checkpoint_uri(consumer),
        "$(MAX_RECORDS_PER_TRIGGER)": str(spark["maxRecordsPerTrigger"]),
    }
    return {
        **_object(consumer, context, names.SPARK_API, "SparkApplication", meta["name"]),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": spark.get("image") or context.image,
            "imagePullPolicy": spark.get("imagePullPolicy")
            or (PULL_POLICY if spark.get("image") else context.pull_policy),
            "mainApplicationFile": spark["mainApplicationFile"],
            "arguments": [_filled(a, values) for a in spark.get("arguments", [])],
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
            "suspend": suspend,
            "driver": _role(consumer, context, "driver", cores=1)
            | {"serviceAccount": spark.get("serviceAccountName") or driver_account(consumer)},
            "executor": _role(consumer, context, "executor", cores=spark["coresPerExecutor"])
            | {"instances": max(1, spark["minExecutors"])},
        },
    }


def checkpoint_name(consumer: Mapping[str, Any]) -> str:
    """Return the name of the claim that the operator creates; it outlives the ShareConsumer."""
    return f"{consumer['metadata']['name']}-checkpoint"


def driver_account(consumer: Mapping[str, Any]) -> str:
    return f"{consumer['metadata']['name']}-driver"


def checkpoint_uri(consumer: Mapping[str, Any]) -> str:
    """Return the URI of the query's checkpoint."""
    given = consumer["spec"]["spark"].get("checkpoint", {})
    return str(given.get("uri") or f"file://{CHECKPOINT_DIR}")


def executor_selector(consumer: str) -> dict[str, str]:
    """Return the labels of a ShareConsumer's executors; Spark sets `spark-role`."""
    return {names.CONSUMER_LABEL: consumer, "spark-role": "executor"}


def _claim(consumer: Mapping[str, Any]) -> str:
    """Return the volume claim of the checkpoint, empty with `checkpoint.uri`."""
    given = consumer["spec"]["spark"].get("checkpoint", {})
    if given.get("uri"):
        return ""
    return str(given.get("persistentVolumeClaim") or checkpoint_name(consumer))


def _filled(argument: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        argument = argument.replace(name, value)
    return argument


def _object(
    consumer: Mapping[str, Any], context: WorkloadContext, api: str, kind: str, name: str
) -> Manifest:
    meta = consumer["metadata"]
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": names.consumer_labels(meta["name"], context.cluster),
            "ownerReferences": [names.owner(consumer)],
        },
    }


def _checkpoint(consumer: Mapping[str, Any], context: WorkloadContext) -> Manifest:
    size = consumer["spec"]["spark"].get("checkpoint", {}).get("size", CHECKPOINT_SIZE)
    made = _object(consumer, context, "v1", "PersistentVolumeClaim", checkpoint_name(consumer))
    # Without an owner: a new query would number its batches from zero, and a sink that identifies
    # batches by number would skip them.
    del made["metadata"]["ownerReferences"]
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {**made, "spec": spec}


def _account(consumer: Mapping[str, Any], context: WorkloadContext) -> Manifest:
    return _object(consumer, context, "v1", "ServiceAccount", driver_account(consumer))


def _binding(consumer: Mapping[str, Any], context: WorkloadContext) -> Manifest:
    """Return the RoleBinding that lets the driver run executors in its namespace."""
    group, name = "rbac.authorization.k8s.io", driver_account(consumer)
    namespace = consumer["metadata"]["namespace"]
    return {
        **_object(consumer, context, f"{group}/v1", "RoleBinding", name),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": context.driver_role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _role(
    consumer: Mapping[str, Any], context: WorkloadContext, role: str, *, cores: int
) -> Manifest:
    """Return the part of the spec for the driver or the executors."""
    over = consumer["spec"]["spark"].get(role, {})
    made: Manifest = {"cores": cores}
    for key in ("coreRequest", "coreLimit", "memory", "memoryOverhead"):
        if over.get(key):
            made[key] = over[key]
    return {**made, "template": _template(consumer, context, role, over)}


def _template(
    consumer: Mapping[str, Any], context: WorkloadContext, role: str, over: Mapping[str, Any]
) -> Manifest:
    spark = consumer["spec"]["spark"]
    volumes = list(spark.get("volumes", []))
    mounts = list(over.get("volumeMounts", []))
    env = list(over.get("env", []))
    annotations = dict(over.get("annotations", {}))
    if context.user_secret:
        user = users.mounted(context.user_secret)
        volumes.append(user.volume)
        mounts = users.with_mount(mounts, user)
        env = names.environment([user.variable], env)
    if role == "driver":
        env = names.environment(_environment(consumer, context), env)
        annotations = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(UI_PORT),
            "prometheus.io/path": "/metrics/prometheus",
            **annotations,
        }
        if context.scale_secret:
            volumes.append({"name": "shoal-scale", "secret": {"secretName": context.scale_secret}})
            mounts.append({"name": "shoal-scale", "mountPath": SCALE_DIR, "readOnly": True})
        if claim := _claim(consumer):
            volumes.append({"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim}})
            mounts.append({"name": "checkpoint", "mountPath": CHECKPOINT_DIR})
    if role == "executor" and context.rack:
        # An executor reads from the closest replicas as soon as its pod has the answer.
        annotations[names.RACK_KEY] = context.rack
        volumes.append(rack.volume())
        mounts.append(rack.mount())
        variable = {"name": POD_ANNOTATIONS, "value": names.POD_ANNOTATIONS}
        env = names.environment([variable], env)
    container: Manifest = {
        "name": DRIVER if role == "driver" else EXECUTOR,
        # The cause of a failure goes into the pod's status and from there into our condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if env:
        container["env"] = env
    if mounts:
        container["volumeMounts"] = mounts
    pod: Manifest = {
        "securityContext": {"runAsNonRoot": True, **({} if context.openshift else IDS)},
        "enableServiceLinks": False,
        "containers": [container],
    }
    for key, value in (
        ("volumes", volumes),
        ("nodeSelector", over.get("nodeSelector")),
        ("tolerations", over.get("tolerations")),
    ):
        if value:
            pod[key] = value
    labels = {
        **over.get("labels", {}),
        **names.consumer_labels(consumer["metadata"]["name"], context.cluster),
    }
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _environment(consumer: Mapping[str, Any], context: WorkloadContext) -> list[Manifest]:
    """Return the driver's environment, which the source and the job read."""
    meta, spark = consumer["metadata"], consumer["spec"]["spark"]
    values = {
        "SHOAL_BOOTSTRAP_SERVERS": context.bootstrap_servers,
        "SHOAL_GROUP_ID": context.group_id,
        "SHOAL_TOPICS": ",".join(context.topics),
        "SHOAL_CHECKPOINT": checkpoint_uri(consumer),
        "SHOAL_MAX_RECORDS_PER_TRIGGER": str(spark["maxRecordsPerTrigger"]),
        "SHOAL_CORES_PER_EXECUTOR": str(spark["coresPerExecutor"]),
        "SHOAL_MAX_EXECUTORS": str(spark["maxExecutors"]),
        "SHOAL_SCALE_URL": f"{context.scale_url}/scale/{meta['namespace']}/{meta['name']}",
    }
    if context.scale_secret:
        values |= {
            "SHOAL_SCALE_CA_FILE": f"{SCALE_DIR}/ca.crt",
            "SHOAL_SCALE_TOKEN_FILE": f"{SCALE_DIR}/token",
        }
    return [{"name": name, "value": value} for name, value in values.items()]
