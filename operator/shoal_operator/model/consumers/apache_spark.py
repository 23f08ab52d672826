"""The SparkApplication of a ShareConsumer for Apache's own Spark operator (spark.apache.org/v1).

It has the same content as the one for Kubeflow's operator, from which it is translated: there is
one field for most of Spark's properties in Kubeflow's kind, and `sparkConf` for all in Apache's. An
application cannot be suspended, and does not follow its spec while it runs. So the operator deletes
it at zero executors, and creates another one if it changes. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model.consumers import spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer

API = "spark.apache.org/v1"
#: Values of `spec.spark.operator`.
KUBEFLOW, APACHE = "kubeflow", "apache"
#: An application is restarted as long as there is work for it.
RESTARTS_MAX = 2**31 - 1
#: Properties for the fields of Kubeflow's kind, with the role.
_OF_ROLE = {
    "cores": "spark.{}.cores",
    "coreRequest": "spark.kubernetes.{}.request.cores",
    "coreLimit": "spark.kubernetes.{}.limit.cores",
    "memory": "spark.{}.memory",
    "memoryOverhead": "spark.{}.memoryOverhead",
    "instances": "spark.{}.instances",
    "serviceAccount": "spark.kubernetes.authenticate.{}.serviceAccountName",
}
#: Kubeflow's states for Apache's, which have more: all others mean that the application starts.
_STATES = {
    **dict.fromkeys(
        (
            "RunningHealthy",
            "RunningWithPartialCapacity",
            "RunningWithBelowThresholdExecutors",
            "InitializedBelowThresholdExecutors",
        ),
        "RUNNING",
    ),
    **dict.fromkeys(
        (
            "DriverEvicted",
            "DriverReadyTimedOut",
            "DriverStartTimedOut",
            "ExecutorsStartTimedOut",
            "Failed",
            "SchedulingFailure",
        ),
        "FAILED",
    ),
}


def is_chosen(consumer: ShareConsumer) -> bool:
    """Return whether a ShareConsumer's application is for Apache's operator."""
    return consumer["spec"].get("spark", {}).get("operator") == APACHE


def build_application(consumer: ShareConsumer, context: spark.WorkloadContext) -> Manifest:
    """Return the SparkApplication."""
    application = spark.build_application(consumer, context, suspend=False)
    spec = application["spec"]
    properties = {
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.container.image.pullPolicy": spec["imagePullPolicy"],
    }
    for role, container in spark.CONTAINERS.items():
        properties[f"spark.kubernetes.{role}.podTemplateContainerName"] = container
        for field, value in spec[role].items():
            if field in _OF_ROLE:
                properties[_OF_ROLE[field].format(role)] = str(value)
    return {
        **application,
        "apiVersion": API,
        "spec": {
            "pyFiles": spec["mainApplicationFile"],
            "driverArgs": spec["arguments"],
            "runtimeVersions": {"sparkVersion": spec["sparkVersion"]},
            # What the user sets beside the fields counts, as with Kubeflow's operator.
            "sparkConf": {**properties, **spec["sparkConf"]},
            "driverSpec": {"podTemplateSpec": spec["driver"]["template"]},
            "executorSpec": {"podTemplateSpec": spec["executor"]["template"]},
            "applicationTolerations": {
                "restartConfig": {
                    "restartPolicy": "Always",
                    "maxRestartAttempts": RESTARTS_MAX,
                    "restartBackoffMillis": spark.RETRY_SECONDS * 1000,
                },
                # The driver runs without executors until it requests some.
                "instanceConfig": {"minExecutors": 0, "initExecutors": 0},
            },
        },
    }


def get_state(application: Mapping[str, Any]) -> str:
    """Return the state as Apache's operator reports it, empty before it has."""
    current = application.get("status", {}).get("currentState", {})
    return str(current.get("currentStateSummary", ""))


def translate_status(application: Mapping[str, Any]) -> Manifest:
    """Return the application with the status that Kubeflow's operator would write."""
    state = get_state(application)
    message = application.get("status", {}).get("currentState", {}).get("message", "")
    reported = {"state": _STATES.get(state, state), "errorMessage": message}
    return {**application, "status": {"applicationState": reported}}
