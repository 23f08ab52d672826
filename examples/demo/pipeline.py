"""Set up, feed and observe the demo's pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from e2e.cluster import images, provision, spark_operator
from e2e.cluster.layout import REPOSITORY, ClusterError
from e2e.release import Release
from shoal.monitoring.exposition import parse_samples
from shoal_spark.demo.watch import PipelineSample, PipelineWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from rich.console import Console

HERE = Path(__file__).resolve().parent
NAMESPACE = "shoal-demo"
TASKS, RESULTS, DEAD_LETTERS = "images", "thumbnails", "dlq.images"
GROUP, CONSUMER, FEEDER = "thumbnailers", "thumbnailer", "feeder"
#: The QueueUser of the console, and the port in its pod.
CONSOLE, CONSOLE_PORT = "console", 9080
#: Where a user's Secret is mounted.
LOGIN = "/etc/shoal/user"
#: The images that the pipeline runs.
IMAGES = ("broker", "operator", "spark", spark_operator.NAMESPACE)
PARTITIONS = 2
BROKEN_EVERY = 100
#: Default metrics port of the brokers' pods.
METRICS_PORT = 9404
END_OFFSET = "kafka_log_Log_LogEndOffset"


class Pipeline:
    """The demo's namespace; `proxy` is the address of a `kubectl proxy`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.proxy = ""
        #: Key prefix of this run's tasks; the topics may contain results of earlier runs.
        self.run = f"run-{uuid.uuid4().hex[:6]}"
        self._before: Counter[str] = Counter()

    def kubectl(self, *words: str, check: bool = True, **options: Any) -> str:
        where = f"--namespace={NAMESPACE}"
        return self.cluster.kubectl(words[0], where, *words[1:], check=check, **options).stdout

    def set_up(self, console: Console) -> None:
        """Create cluster, images, operators and resources, unless they exist."""
        provision.provide(self.cluster, IMAGES)
        console.print("Starting the cluster, and loading the images into it.")
        self.cluster.up()
        for image in ("broker", "operator", "spark"):
            self.cluster.load(images.archive(image))
        console.print("Installing Kubeflow's Spark operator and the chart of Shoal.")
        manifest = f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}"
        self.cluster.kubectl("apply", "--filename=-", stdin_text=manifest)
        if self.cluster.kind != "context" or not self._has_spark_operator():
            spark_operator.install(self.cluster, [])
        # Helm does not update the definitions that an earlier run has installed.
        force = ("--server-side", "--force-conflicts")
        self.cluster.kubectl("apply", *force, f"--filename={REPOSITORY / 'crds'}")
        Release(self.cluster).install()
        self.kubectl("apply", f"--filename={HERE / 'pipeline.yaml'}")
        self.kubectl("wait", "--for=condition=Ready", "queuecluster/demo", "--timeout=120s")
        topics = (f"queuetopic/{TASKS}", f"queuetopic/{RESULTS}")
        users = (f"queueuser/{FEEDER}", f"queueuser/{CONSOLE}")
        for name in (*topics, f"sharegroup/{GROUP}", *users):
            self.kubectl("wait", "--for=condition=Ready", name, "--timeout=60s")
        console.print("Starting the console.")
        # Only now the Secret of its user exists.
        Release(self.cluster).install(
            console__enabled=True,
            console__userSecret=CONSOLE,
            console__namespace=NAMESPACE,
            console__allowActions=True,
        )

    def _has_spark_operator(self) -> bool:
        """Return whether the cluster knows SparkApplications: its own operator is left alone."""
        crd = ("get", "crd", "sparkapplications.sparkoperator.k8s.io")
        return self.cluster.kubectl(*crd, check=False).returncode == 0

    @contextlib.contextmanager
    def console_page(self) -> Iterator[str]:
        """Forward a port of this machine to the console; yield its address."""
        where = ("--namespace", NAMESPACE, "deployment/shoal-console", f":{CONSOLE_PORT}")
        command = (str(self.cluster.tool("kubectl")), "port-forward", *where)
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                found = re.search(r"127\.0\.0\.1:\d+", line)
                if found is None:
                    raise ClusterError(f"the console cannot be reached: {line.strip()}")
                yield f"http://{found[0]}/"
            finally:
                process.terminate()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Run `kubectl proxy` for `sample`: a kubectl process per request is too slow."""
        command = (str(self.cluster.tool("kubectl")), "proxy", "--port=0")
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if "127.0.0.1:" not in line:
                    raise ClusterError(f"kubectl proxy does not start: {line.strip()}")
                self.proxy = f"http://127.0.0.1:{line.strip().rpartition(':')[2]}"
                self._before = self.counts()
                yield
            finally:
                process.terminate()

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.proxy}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def counts(self) -> Counter[str]:
        """Return the log end offset of each topic, summed over partitions."""
        place = f"/api/v1/namespaces/{NAMESPACE}/pods/demo-broker-0:{METRICS_PORT}/proxy/metrics"
        found: Counter[str] = Counter()
        for sample in parse_samples(self._get(place), [END_OFFSET]):
            found[sample.labels["topic"]] += int(sample.value)
        return found

    def sample(self, watch: PipelineWatch, began: float) -> PipelineSample:
        """Return a sample; a value that cannot be read keeps its last value."""
        last = watch.last
        try:
            consumers = f"/apis/shoal.dev/v1beta1/namespaces/{NAMESPACE}/shareconsumers"
            status = json.loads(self._get(f"{consumers}/{CONSUMER}")).get("status", {})
            label = "labelSelector=spark-role%3Dexecutor"
            pods = json.loads(self._get(f"/api/v1/namespaces/{NAMESPACE}/pods?{label}"))["items"]
            counts = self.counts() - self._before
        except (OSError, ValueError, urllib.error.HTTPError):
            return PipelineSample(time.monotonic() - began, *tuple(_fields(last))[1:])
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        state = status.get("applicationState") or "not there yet"
        watch.state = f"The SparkApplication is {state}. {ready.get('message', '')}"
        running = sum(_runs(pod) for pod in pods)
        return PipelineSample(
            time.monotonic() - began,
            max(0, counts[TASKS] - counts[RESULTS] - counts[DEAD_LETTERS]),
            int(status.get("desiredReplicas", 0)),
            running,
            counts[RESULTS],
            counts[DEAD_LETTERS],
        )

    def lag(self) -> int:
        """Return the lag that the operator reports; -1 while it is unknown."""
        found = self.kubectl("get", f"sharegroup/{GROUP}", "--output=json", check=False)
        return int(json.loads(found).get("status", {}).get("lag", -1)) if found else -1

    def feed(self, count: int) -> None:
        """Start a pod that produces `count` image tasks."""
        self.kubectl("delete", "pod/feeder", "--ignore-not-found", "--wait=true")
        words = (
            "python3",
            "/opt/spark/jobs/feed_images.py",
            "--bootstrap-servers",
            "demo-bootstrap.shoal-demo.svc:9092",
            "--topic",
            TASKS,
            "--partitions",
            str(PARTITIONS),
            "--count",
            str(count),
            "--size",
            "128",
            "--broken-every",
            str(BROKEN_EVERY),
            "--name",
            self.run,
            "--spread",
        )
        container = {
            "name": "feeder",
            "image": images.tag("spark"),
            "imagePullPolicy": "Never",
            "command": list(words),
            "env": [{"name": "SHOAL_COMMAND_CONFIG", "value": f"{LOGIN}/client.properties"}],
            "volumeMounts": [{"name": "user", "mountPath": LOGIN, "readOnly": True}],
        }
        volume = {"name": "user", "secret": {"secretName": FEEDER}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "feeder"},
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "volumes": [volume],
            },
        }
        self.kubectl("apply", "--filename=-", stdin_text=json.dumps(pod))

    def feeder_failed(self) -> str:
        """Return the last log line of a failed feeder pod, else an empty string."""
        phase = self.kubectl("get", "pod/feeder", "--output=jsonpath={.status.phase}", check=False)
        return self.kubectl("logs", "pod/feeder", "--tail=5") if phase == "Failed" else ""

    def distinct(self, topic: str) -> int:
        """Return the distinct tasks of this run in a topic."""
        words = ("consume", topic, "--from-beginning", "--exit-at-end", "--format", "{key}")
        keys = self.kubectl("exec", "demo-broker-0", "--", "shoal", *words).split()
        return len({key for key in keys if key.startswith(self.run)})


def _fields(sample: PipelineSample) -> Iterator[float]:
    return (getattr(sample, name) for name in PipelineSample.__slots__)


def _runs(pod: dict[str, Any]) -> bool:
    ending = "deletionTimestamp" in pod["metadata"]
    return not ending and pod["status"].get("phase") == "Running"
