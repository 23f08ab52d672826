"""Kubeflow's Spark operator in the test cluster: its chart and CRDs, and an image built here.

The chart and the program come from one Go module, so their versions agree. The operator submits
with its own Spark, so its image is the project's Spark image with one more program.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import images
from .layout import SPARK_OPERATOR_VERSION
from .programs import module_directory

if TYPE_CHECKING:
    from pathlib import Path

    from .backend import Cluster

NAMESPACE = "spark-operator"
MODULE = "github.com/kubeflow/spark-operator/v2"
#: The ServiceAccount that the chart makes for drivers in each job namespace.
DRIVER_SERVICE_ACCOUNT = "spark-operator-spark"


def chart() -> Path:
    """Return the operator's Helm chart in Go's module cache."""
    return module_directory("spark-operator", MODULE) / "charts" / "spark-operator-chart"


def install(cluster: Cluster, job_namespaces: list[str]) -> None:
    """Install the operator, or make an installed one watch `job_namespaces`; none means all.

    Missing namespaces are created, and each gets a ServiceAccount for drivers. If all are watched,
    applications bring their own. The admission webhook stays off: it would only mutate pods for
    settings that Spark's own pod templates cover.
    """
    cluster.load(images.spark_operator_archive())
    for namespace in job_namespaces:
        manifest = f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}"
        cluster.kubectl("apply", "--filename=-", stdin_text=manifest)
    registry, _, rest = images.SPARK_OPERATOR_IMAGE.partition("/")
    repository, _, tag = rest.partition(":")
    values = {
        "image.registry": registry,
        "image.repository": repository,
        "image.tag": tag,
        "webhook.enable": "false",
        "spark.serviceAccount.name": DRIVER_SERVICE_ACCOUNT,
        # Without a request, pods that have one leave it no time on a busy machine: it fails its
        # probes, loses its lease, and submits nothing.
        "controller.resources.requests.cpu": "100m",
    }
    settings = [f"--set={name}={value}" for name, value in values.items()]
    settings.append(f"--set-json=spark.jobNamespaces={json.dumps(job_namespaces or [''])}")
    where = (f"--namespace={NAMESPACE}", "--create-namespace")
    release = ("upgrade", "--install", NAMESPACE, chart(), "--wait", "--timeout=3m")
    cluster.helm(*release, *where, *settings)
    cluster.laps(f"Spark operator {SPARK_OPERATOR_VERSION} is installed")


def uninstall(cluster: Cluster) -> None:
    """Remove the operator and its definitions, with all applications."""
    where = (f"--namespace={NAMESPACE}", "--ignore-not-found", "--wait")
    cluster.helm("uninstall", NAMESPACE, *where)
    listed = cluster.kubectl("get", "crd", "--output=name").stdout.split()
    definitions = [name for name in listed if name.endswith(".sparkoperator.k8s.io")]
    if definitions:
        cluster.kubectl("delete", *definitions, "--timeout=60s")
