"""Kubeflow's Spark operator runs an application on the project's Spark image to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster import images, spark_operator
from e2e.cluster.commands import wait_for

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

MANIFEST = Path(__file__).with_name("spark_application.yaml")
ENDED = ("COMPLETED", "FAILED")
#: As Spark's launcher starts a driver; `-Xshare:on` ends a JVM that cannot use the archive.
VERSION = (
    '"$JAVA_HOME"/bin/java -Xshare:on -Xlog:class+load '
    '-cp "/opt/spark/conf:$SPARK_HOME/jars/*" org.apache.spark.deploy.SparkSubmit --version'
)


def test_jvms_of_the_image_start_from_its_archive(cluster: Cluster, namespace: str) -> None:
    """The archive fits the image's jars as unpacked on the node, and is used."""
    cluster.load(images.archive("spark"))
    where = f"--namespace={namespace}"
    image = (f"--image={images.tag('spark')}", "--image-pull-policy=Never", "--restart=Never")
    cluster.kubectl("run", where, "java", *image, "--command", "--", "bash", "-c", VERSION)
    get = ("get", where, "pod/java", "--output=jsonpath={.status.phase}")
    ended = ("Succeeded", "Failed")
    wait_for("the JVM to end", lambda: cluster.kubectl(*get).stdout in ended, 60)
    lines = cluster.kubectl("logs", where, "java").stdout.splitlines()
    sources = [line.partition("source: ")[2] for line in lines if "org.apache.spark." in line]
    shared = sources.count("shared objects file")
    read = [source for source in sources if source.startswith("file:")]
    assert shared > 100, f"{shared} shared, read from {read}"
    assert len(read) < shared / 10, f"{shared} shared, read from {read}"


def test_spark_application_completes(cluster: Cluster, namespace: str) -> None:
    spark_operator.install(cluster, [namespace])
    cluster.load(images.archive("spark"))
    manifest = MANIFEST.read_text().replace("IMAGE", images.tag("spark"))
    manifest = manifest.replace("ACCOUNT", spark_operator.DRIVER_SERVICE_ACCOUNT)
    where = f"--namespace={namespace}"
    cluster.kubectl("apply", where, "--filename=-", stdin_text=manifest)
    get = ("get", where, "sparkapplication/pi", "--output=jsonpath={.status.applicationState}")

    def state() -> dict[str, str]:
        return json.loads(cluster.kubectl(*get).stdout or "{}")

    wait_for("the application to end", lambda: state().get("state") in ENDED, 180)
    assert state() == {"state": "COMPLETED"}
    log = cluster.kubectl("logs", where, "pi-driver").stdout
    assert "Pi is roughly 3.1" in log
