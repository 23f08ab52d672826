"""What a kubelet does with the pods that restore a cluster, for an API server in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names
from shoal_operator.model.restore import CONTAINER, RESTORED
from support.brokers.commands import SHOAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kube.api_server import ApiServer, Manifest

    #: Returns the exit code and the termination message of a container.
    Run = Callable[[Manifest, Manifest], tuple[int, str]]

SUMMARY = {
    "clusterId": "the-lost-one",
    "writtenMs": 1_700_000_000_000,
    "topics": 2,
    "partitions": 3,
    "missing": 1,
    "aborted": 0,
    "ends": {"orders": [7, 9]},
    "leftOut": 0,
}


def succeed(_: Manifest, __: Manifest) -> tuple[int, str]:
    return 0, json.dumps(SUMMARY)


def failing(kind: str, message: str = "The text of the command.") -> Run:
    """Return a container that fails with this error."""
    return lambda *_: (1, json.dumps({"error": kind, "message": message}))


def is_restoring(pod: Manifest) -> bool:
    return names.RESTORE in pod["metadata"]["annotations"]


def run_pods(kube: ApiServer, run: Run = succeed) -> list[str]:
    """Run the init containers of all pods that restore and have not run; return the pods' names."""
    ran = []
    for pod in kube.all("Pod"):
        if not is_restoring(pod) or "initContainerStatuses" in pod["status"]:
            continue
        status = kube.find("QueueCluster", "main")["status"].get("restore", {})
        assert status.get("phase") != RESTORED, "it was restored before"
        ran.append(pod["metadata"]["name"])
        kube.probe(ran[-1], succeeds=False)
        set_result(pod, run)
    return ran


def set_result(pod: Manifest, run: Run) -> None:
    statuses = []
    for container in pod["spec"]["initContainers"]:
        if container["name"].startswith(CONTAINER):
            code, message = run(pod, container)
            ended = {"exitCode": code, "message": message}
            statuses.append({"name": container["name"], "state": {"terminated": ended}})
    pod["status"]["initContainerStatuses"] = statuses


def command(kube: ApiServer, folder: Path, configs: Mapping[str, str]) -> Run:
    """Return a container that runs the command as a process, with volumes in a folder.

    `configs` replace some of the broker's file.
    """

    def run(pod: Manifest, container: Manifest) -> tuple[int, str]:
        number = pod["metadata"]["name"].rpartition("-")[2]
        data: dict[str, Any] = kube.find("ConfigMap", "main-broker")["data"]
        file, summary = folder / f"broker-{number}.properties", folder / f"summary-{number}"
        own = {**configs, "log.dirs": str(folder / f"data-{number}")}
        kept = [line for line in data[file.name].splitlines() if line.partition("=")[0] not in own]
        file.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in own.items())]))
        args = [
            re.sub(r"^--summary=.*", f"--summary={summary}", a).replace(
                f"{names.CONFIG_DIR}/broker-$(SHOAL_NODE_ID).properties", str(file)
            )
            for a in container["args"]
        ]
        own_variables = {"SHOAL_NODE_ID": number, "POD_NAME": pod["metadata"]["name"]}
        environment = os.environ | own_variables
        done = subprocess.run(
            [*SHOAL, *args], env=environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, summary.read_text() if summary.exists() else done.stderr

    return run
