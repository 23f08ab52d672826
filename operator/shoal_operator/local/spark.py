"""What Kubeflow's Spark operator does, on one machine: a driver in Spark's local mode.

The driver is a pod of one process, and the tasks of all executors are threads of it. It has
`maxExecutors` × `coresPerExecutor` of them, because Spark cannot change their number while it runs.
So the wanted executors are pods without a process: one of them is a share of the driver, and with
the last one the driver ends.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal_operator.kube.kube import format_now
from shoal_operator.local.addresses import HOST
from shoal_operator.local.pods import Pods, is_ready
from shoal_operator.model import names
from shoal_operator.model.consumers.spark import CONTAINERS
from shoal_operator.model.resources.share_consumer import ShareConsumer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.local.api import LocalApi
    from shoal_operator.model.names import Manifest

ROLE = "spark-role"
#: The label of a driver with the digest of its application's spec: another spec restarts it.
SPEC_HASH = "spec-hash"
#: Where the jobs are in the project's Spark image.
IMAGE_JOBS = "/opt/spark/jobs"
#: Failures of a task until its job fails, Spark's default in a cluster. It is 1 in local mode.
TASK_FAILURES = 4
#: Properties that `spec.spark.sparkConf` overrides: nothing listens beyond this machine, and no
#: pages are served.
SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A busy machine starts a Python worker slowly.
    "spark.python.authenticate.socketTimeout": "120s",
}
_RUNNING = {
    "phase": "Running",
    "hostIP": HOST,
    "conditions": [{"type": "Ready", "status": "True"}],
}


class SparkController:
    """Runs the SparkApplications in a folder."""

    def __init__(self, api: LocalApi, pods: Pods) -> None:
        self._api, self._pods = api, pods

    def sync(self, application: Manifest, digest: str) -> None:
        """Bring the pods of an application to its spec, and its status to the pods. `digest` is
        that of the spec without `suspend`."""
        meta = application["metadata"]
        driver = self._api.find("Pod", meta["namespace"], format_driver(meta["name"]))
        state, message = self._sync_driver(application, driver, digest)
        self._sync_executors(application, is_running=state == "RUNNING")
        reported = {"state": state, **({"errorMessage": message} if message else {})}
        status = {
            "applicationState": reported,
            "driverInfo": {"podName": format_driver(meta["name"])},
        }
        key = ("SparkApplication", meta["namespace"], meta["name"])
        self._api.write(key, {**application, "status": status})

    def _sync_driver(
        self, application: Manifest, driver: Manifest | None, digest: str
    ) -> tuple[str, str]:
        """Start, keep or end the driver; return Kubeflow's state, and what failed."""
        if application["spec"].get("suspend"):
            if driver is None:
                return "SUSPENDED", ""
            self._pods.delete(driver)
            return "SUSPENDING", ""
        if driver is None:
            name = application["metadata"]["name"]
            labels = {ROLE: "driver", SPEC_HASH: digest}
            self._pods.create(
                application, format_driver(name), build_driver_template(application), labels
            )
            return "SUBMITTED", ""
        if driver["metadata"].get("deletionTimestamp"):
            return "INVALIDATING", ""
        if driver["metadata"]["labels"].get(SPEC_HASH) != digest:
            self._pods.delete(driver)
            return "INVALIDATING", ""
        return _describe_driver(driver)

    def _sync_executors(self, application: Manifest, *, is_running: bool) -> None:
        """Have a pod for each wanted executor while the driver runs."""
        meta = application["metadata"]
        consumer = self._api.find(
            ShareConsumer, meta["namespace"], meta["labels"][names.CONSUMER_LABEL]
        )
        number = 0
        if consumer is not None and is_running:
            number = consumer.get("status", {}).get("desiredReplicas", 0)
        pod_names = {f"{meta['name']}-exec-{n}" for n in range(1, number + 1)}
        have = {
            pod["metadata"]["name"]: pod
            for pod in self._pods.list_owned(application)
            if is_executor(pod)
        }
        for name in have.keys() - pod_names:
            self._pods.delete(have[name])
        template = application["spec"]["executor"]["template"]
        shown = {"metadata": template["metadata"], "spec": {"containers": []}}
        for name in pod_names - have.keys():
            status = {**_RUNNING, "startTime": format_now()}
            self._pods.create(application, name, shown, {ROLE: "executor"}, status)


def format_driver(application: str) -> str:
    """Return the name of the driver's pod."""
    return f"{application}-driver"


def is_executor(pod: Manifest) -> bool:
    """Return whether a pod is an executor, which has no process of its own."""
    return bool(pod["metadata"].get("labels", {}).get(ROLE) == "executor")


def _describe_driver(driver: Manifest) -> tuple[str, str]:
    if is_ready(driver):
        return "RUNNING", ""
    for container in driver["status"].get("containerStatuses", []):
        waiting = container["state"].get("waiting", {})
        ended = container["state"].get("terminated") or container.get("lastState", {}).get(
            "terminated"
        )
        if ended and ended["exitCode"]:
            text = f"driver container failed with ExitCode {ended['exitCode']}"
            return "FAILING", f"{text}: {ended.get('message', '')}\n"
        if waiting.get("message"):
            return "SUBMISSION_FAILED", waiting["message"]
    return "SUBMITTED", ""


def build_driver_template(application: Manifest) -> Manifest:
    """Return the pod template of a driver whose one container runs the application."""
    spec = application["spec"]
    template = spec["driver"]["template"]
    driver = template["spec"]["containers"][0]
    executor = spec["executor"]["template"]["spec"]["containers"][0]
    # What executors get, the driver needs: it runs their tasks.
    env = {
        variable["name"]: variable
        for variable in chain(executor.get("env", []), driver.get("env", []))
    }
    mounts = {
        mount["mountPath"]: mount
        for mount in chain(executor.get("volumeMounts", []), driver.get("volumeMounts", []))
    }
    tasks = int(env["SHOAL_MAX_EXECUTORS"]["value"]) * spec["executor"]["cores"]
    variables = {
        # Before it reads its properties, Spark looks up the host name, unless this is set.
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": format_submit(spec["sparkConf"], tasks),
    }
    for name, value in variables.items():
        env.setdefault(name, {"name": name, "value": value})
    container = {
        **driver,
        "name": CONTAINERS["driver"],
        "image": spec["image"],
        # As spark-submit chooses the Python of a driver.
        "command": [
            os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
            resolve_main(spec["mainApplicationFile"]),
            *spec.get("arguments", []),
        ],
        "env": [*env.values()],
        "volumeMounts": list(mounts.values()),
    }
    volumes = {
        volume["name"]: volume
        for volume in chain(
            spec["executor"]["template"]["spec"].get("volumes", []),
            template["spec"].get("volumes", []),
        )
    }
    pod = {**template["spec"], "containers": [container], "volumes": list(volumes.values())}
    return {"metadata": template["metadata"], "spec": pod}


def format_submit(conf: Mapping[str, str], tasks: int) -> str:
    """Return the words for PySpark's own call of spark-submit, with `tasks` threads."""
    used = {**SETTINGS, **conf}
    pairs: Sequence[str] = [
        f"{name}={value}"
        for name, value in used.items()
        if not name.startswith("spark.kubernetes.")
    ]
    words = ["--master", f"local[{tasks},{TASK_FAILURES}]"]
    words += chain.from_iterable(("--conf", pair) for pair in pairs)
    return shlex.join([*words, "pyspark-shell"])


def resolve_main(file: str) -> str:
    """Return the path of `mainApplicationFile` on this machine. A job of the project's image is the
    one that is installed here; other paths stay."""
    path = file.removeprefix("local://").removeprefix("file://")
    folder = find_jobs() if path.startswith(f"{IMAGE_JOBS}/") else None
    return path if folder is None else str(folder / path.removeprefix(f"{IMAGE_JOBS}/"))


def find_jobs() -> Path | None:
    """Return the folder of the example jobs in a wheel or a checkout, None without it."""
    spec: Any = importlib.util.find_spec("shoal_spark")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folders = (package / "jobs", package.parent / "jobs")
    return next((folder for folder in folders if folder.is_dir()), None)
