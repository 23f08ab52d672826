"""Kubeflow's Spark operator runs an application on the project's Spark image to its end."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster import images, spark_operator
from e2e.cluster.backend import Cluster
from e2e.cluster.commands import wait_for

MANIFEST = Path(__file__).with_name("spark_application.yaml")
ENDED = ("COMPLETED", "FAILED")


def test_spark_application_completes(cluster: Cluster, namespace: str) -> None:
    spark_operator.install(cluster, [namespace])
    cluster.load(images.archive("spark"))
    manifest = MANIFEST.read_text().replace("IMAGE", images.tag("spark"))
    manifest = manifest.replace("ACCOUNT", spark_operator.DRIVER_SERVICE_ACCOUNT)
    where = f"--namespace={namespace}"
    cluster.kubectl("apply", where, "--filename=-", input=manifest)
    get = ("get", where, "sparkapplication/pi", "--output=jsonpath={.status.applicationState}")

    def state() -> dict[str, str]:
        return json.loads(cluster.kubectl(*get).stdout or "{}")

    wait_for("the application to end", lambda: state().get("state") in ENDED, 180)
    assert state() == {"state": "COMPLETED"}
    log = cluster.kubectl("logs", where, "pi-driver").stdout
    assert "Pi is roughly 3.1" in log
