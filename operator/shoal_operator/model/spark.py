"""A ShareConsumer's SparkApplication, as Kubeflow's Spark operator takes it (v1beta2).

Kubeflow starts an application anew when anything but `suspend` changes in its spec, so nothing
here depends on the number of executors that are wanted: the driver starts with few, asks the
operator for the number over HTTP, and requests it of Spark itself (ADR 0026). What a pod needs
stands in pod templates, which Spark itself applies, and not in the fields that need Kubeflow's
admission webhook.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest

#: The user of the project's Spark image, and of Spark's own.
USER_ID = 185
CHECKPOINT_DIR = "/var/lib/shoal/checkpoint"
CHECKPOINT_SIZE = "1Gi"
#: Spark's names of its containers.
DRIVER, EXECUTOR = "spark-kubernetes-driver", "spark-kubernetes-executor"
UI_PORT = 4040
PULL_POLICY = "IfNotPresent"
#: Seconds before Kubeflow tries again, after a failure of the application or of its submission.
RETRY_SECONDS = 5
#: Laid under `spec.spark.sparkConf`, which may say otherwise.
DEFAULTS = {
    # Spark 4.2 and later make a NetworkPolicy, which the role in Kubeflow's chart does not allow.
    "spark.kubernetes.driver.pod.excludedFeatureSteps": (
        "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
    ),
    # An executor that is taken away ends its tasks first, so that no record loses an attempt.
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    # Spark's own allocation counts waiting tasks and takes executors away between two batches.
    "spark.dynamicAllocation.enabled": "false",
    # The context waits for executors by default, 30 s at most; the job's own start, and its asking
    # for the number that is wanted, come after it. Tasks wait for their executors anyway.
    "spark.scheduler.minRegisteredResourcesRatio": "0",
    # Beside the JVM a driver has the job and the source in Python, and the daemons that ran them:
    # 350 MB, where Spark's 384m leave the JVM's own needs nothing.
    "spark.driver.minMemoryOverhead": "512m",
    "spark.ui.prometheus.enabled": "true",
    "spark.metrics.conf.*.sink.prometheusServlet.class": (
        "org.apache.spark.metrics.sink.PrometheusServlet"
    ),
    "spark.metrics.conf.*.sink.prometheusServlet.path": "/metrics/prometheus",
}
#: The same for the image of this operator's version alone: others may lack the module. Python
#: workers are forked with what they need already imported.
OF_OWN_IMAGE = {"spark.python.daemon.module": "shoal_spark.daemon"}


@dataclass(frozen=True, slots=True)
class Place:
    """What an application has to know of its surroundings."""

    cluster: str
    bootstrap_servers: str
    group_id: str
    topics: Sequence[str]
    image: str
    scale_url: str
    driver_role: str
    pull_policy: str = PULL_POLICY


def manifests(consumer: Mapping[str, Any], place: Place) -> list[Manifest]:
    """What has to be there before the application: the checkpoint, and the driver's rights."""
    spark = consumer["spec"]["spark"]
    made = []
    if _claim(consumer) == checkpoint_name(consumer):
        made.append(_checkpoint(consumer, place))
    if not spark.get("serviceAccountName"):
        made += [_account(consumer, place), _binding(consumer, place)]
    return made


def application(consumer: Mapping[str, Any], place: Place, *, suspend: bool) -> Manifest:
    """The SparkApplication; `suspend` is all in it that changes while it runs."""
    meta, spark = consumer["metadata"], consumer["spec"]["spark"]
    words = {
        "$(BOOTSTRAP_SERVERS)": place.bootstrap_servers,
        "$(GROUP_ID)": place.group_id,
        "$(TOPICS)": ",".join(place.topics),
        "$(CHECKPOINT)": checkpoint_uri(consumer),
        "$(MAX_RECORDS_PER_TRIGGER)": str(spark["maxRecordsPerTrigger"]),
    }
    return {
        **_object(consumer, place, names.SPARK_API, "SparkApplication", meta["name"]),
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "image": spark.get("image") or place.image,
            "imagePullPolicy": spark.get("imagePullPolicy")
            or (PULL_POLICY if spark.get("image") else place.pull_policy),
            "mainApplicationFile": spark["mainApplicationFile"],
            "arguments": [_filled(a, words) for a in spark.get("arguments", [])],
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
            "driver": _role(consumer, place, "driver", cores=1)
            | {"serviceAccount": spark.get("serviceAccountName") or driver_account(consumer)},
            "executor": _role(consumer, place, "executor", cores=spark["coresPerExecutor"])
            | {"instances": max(1, spark["minExecutors"])},
        },
    }


def checkpoint_name(consumer: Mapping[str, Any]) -> str:
    """The claim that the operator makes, which outlives the ShareConsumer."""
    return f"{consumer['metadata']['name']}-checkpoint"


def driver_account(consumer: Mapping[str, Any]) -> str:
    return f"{consumer['metadata']['name']}-driver"


def checkpoint_uri(consumer: Mapping[str, Any]) -> str:
    """Where the query keeps its checkpoint."""
    given = consumer["spec"]["spark"].get("checkpoint", {})
    return str(given.get("uri") or f"file://{CHECKPOINT_DIR}")


def executor_selector(consumer: str) -> dict[str, str]:
    """The labels of a ShareConsumer's executors; `spark-role` is Spark's own."""
    return {names.CONSUMER_LABEL: consumer, "spark-role": "executor"}


def _claim(consumer: Mapping[str, Any]) -> str:
    """The volume claim that holds the checkpoint, or nothing where it is kept elsewhere."""
    given = consumer["spec"]["spark"].get("checkpoint", {})
    if given.get("uri"):
        return ""
    return str(given.get("persistentVolumeClaim") or checkpoint_name(consumer))


def _filled(argument: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        argument = argument.replace(word, value)
    return argument


def _object(consumer: Mapping[str, Any], place: Place, api: str, kind: str, name: str) -> Manifest:
    meta = consumer["metadata"]
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": names.consumer_labels(meta["name"], place.cluster),
            "ownerReferences": [names.owner(consumer)],
        },
    }


def _checkpoint(consumer: Mapping[str, Any], place: Place) -> Manifest:
    size = consumer["spec"]["spark"].get("checkpoint", {}).get("size", CHECKPOINT_SIZE)
    made = _object(consumer, place, "v1", "PersistentVolumeClaim", checkpoint_name(consumer))
    # Without an owner: a query that began anew would number its batches from zero, and a sink
    # that knows batches by number would pass over them.
    del made["metadata"]["ownerReferences"]
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {**made, "spec": spec}


def _account(consumer: Mapping[str, Any], place: Place) -> Manifest:
    return _object(consumer, place, "v1", "ServiceAccount", driver_account(consumer))


def _binding(consumer: Mapping[str, Any], place: Place) -> Manifest:
    """The driver may run executors, by a ClusterRole of the chart that is bound here only."""
    group, name = "rbac.authorization.k8s.io", driver_account(consumer)
    namespace = consumer["metadata"]["namespace"]
    return {
        **_object(consumer, place, f"{group}/v1", "RoleBinding", name),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": place.driver_role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _role(consumer: Mapping[str, Any], place: Place, role: str, *, cores: int) -> Manifest:
    """A driver's or an executor's part of the spec."""
    over = consumer["spec"]["spark"].get(role, {})
    made: Manifest = {"cores": cores}
    for key in ("coreRequest", "coreLimit", "memory", "memoryOverhead"):
        if over.get(key):
            made[key] = over[key]
    return {**made, "template": _template(consumer, place, role, over)}


def _template(
    consumer: Mapping[str, Any], place: Place, role: str, over: Mapping[str, Any]
) -> Manifest:
    spark = consumer["spec"]["spark"]
    volumes = list(spark.get("volumes", []))
    mounts = list(over.get("volumeMounts", []))
    env = list(over.get("env", []))
    annotations = dict(over.get("annotations", {}))
    if role == "driver":
        env = names.environment(_environment(consumer, place), env)
        annotations = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(UI_PORT),
            "prometheus.io/path": "/metrics/prometheus",
            **annotations,
        }
        if claim := _claim(consumer):
            volumes.append({"name": "checkpoint", "persistentVolumeClaim": {"claimName": claim}})
            mounts.append({"name": "checkpoint", "mountPath": CHECKPOINT_DIR})
    container: Manifest = {
        "name": DRIVER if role == "driver" else EXECUTOR,
        # What a query crashed of stands in the pod's status, and from there in our condition.
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
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
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
        **names.consumer_labels(consumer["metadata"]["name"], place.cluster),
    }
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _environment(consumer: Mapping[str, Any], place: Place) -> list[Manifest]:
    """What the source and the job find in the driver's environment."""
    meta, spark = consumer["metadata"], consumer["spec"]["spark"]
    values = {
        "SHOAL_BOOTSTRAP_SERVERS": place.bootstrap_servers,
        "SHOAL_GROUP_ID": place.group_id,
        "SHOAL_TOPICS": ",".join(place.topics),
        "SHOAL_CHECKPOINT": checkpoint_uri(consumer),
        "SHOAL_MAX_RECORDS_PER_TRIGGER": str(spark["maxRecordsPerTrigger"]),
        "SHOAL_CORES_PER_EXECUTOR": str(spark["coresPerExecutor"]),
        "SHOAL_MAX_EXECUTORS": str(spark["maxExecutors"]),
        "SHOAL_SCALE_URL": f"{place.scale_url}/scale/{meta['namespace']}/{meta['name']}",
    }
    return [{"name": name, "value": value} for name, value in values.items()]
