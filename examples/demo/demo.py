"""The whole pipeline on a real Kubernetes, watched: `make demo`.

Brings up the test cluster (kind where Docker is, a local one else), installs Kubeflow's Spark
operator and the chart, applies `pipeline.yaml`, feeds image tasks, and shows backlog, executors
and results as they move. Ends with a report and a picture of it, and with status 1 if a task was
lost or executors never outnumbered partitions. The cluster is that of the end-to-end tests, so
`tests` has to be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster import images, spark_operator
from e2e.cluster.backend import Cluster, choose
from e2e.cluster.layout import ClusterError, layout_from_environment
from e2e.release import Release
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
NAMESPACE = "shoal-demo"
PARTITIONS = 2
BROKEN_EVERY = 100
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Sample:
    """One look: seconds since the feed began, and counts."""

    at_s: float
    lag: int
    wanted: int
    executors: int
    results: int


@dataclass(slots=True)
class Watch:
    """What has been seen so far."""

    fed: int
    began: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    state: str = ""

    @property
    def most_executors(self) -> int:
        return max((s.executors for s in self.samples), default=0)


class Demo:
    """The namespace of the demo, through kubectl."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def kubectl(self, *words: str, check: bool = True, **options: Any) -> str:
        where = f"--namespace={NAMESPACE}"
        return self._cluster.kubectl(words[0], where, *words[1:], check=check, **options).stdout

    def get(self, what: str) -> dict[str, Any]:
        found = self.kubectl("get", what, "--output=json", check=False)
        return json.loads(found) if found.strip() else {}

    def results(self) -> int:
        """Records in the results topic."""
        offsets = self.shoal("topics", "describe", "thumbnails", "--format", "json")
        try:
            told = json.loads(offsets)
        except ValueError:
            return 0
        topics = told if isinstance(told, list) else [told]
        partitions = [p for t in topics for p in t["partitions"]]
        return sum(p["log_end_offset"] - p["log_start_offset"] for p in partitions)

    def distinct_results(self) -> int:
        """Image tasks that have a result, however often they have one."""
        words = ("consume", "thumbnails", "--from-beginning", "--timeout", "5s")
        return len(set(self.shoal(*words, "--format", "{key}").split()))

    def shoal(self, *words: str) -> str:
        """A command of the `shoal` tool in the broker's pod."""
        try:
            return self.kubectl("exec", "demo-broker-0", "--", "shoal", *words, check=False)
        except subprocess.SubprocessError:
            return ""

    def sample(self, watch: Watch) -> Sample:
        status = self.get("shareconsumer/thumbnailer").get("status", {})
        ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
        watch.state = f"{ready.get('reason', '')}: {ready.get('message', '')}"
        label = "--selector=spark-role=executor"
        pods = json.loads(self.kubectl("get", "pods", label, "--output=json"))["items"]
        running = sum(p["status"].get("phase") == "Running" for p in pods)
        return Sample(
            time.monotonic() - watch.began, int(status.get("lag", 0)),
            int(status.get("desiredReplicas", 0)), running, self.results(),
        )  # fmt: skip


def bars(values: list[int], width: int = 60) -> str:
    """The last values as a line of bars."""
    top = max([1, *values])
    return "".join(BARS[min(8, round(8 * v / top))] for v in values[-width:])


def view(watch: Watch) -> Group:
    table = Table(box=None, padding=(0, 2))
    for name in ("", "now", "most", ""):
        table.add_column(name, justify="right" if name in ("now", "most") else "left")
    rows = {
        "backlog": [s.lag for s in watch.samples],
        "executors wanted": [s.wanted for s in watch.samples],
        "executors running": [s.executors for s in watch.samples],
        "partitions": [PARTITIONS for _ in watch.samples],
        "results": [s.results for s in watch.samples],
    }
    for name, values in rows.items():
        table.add_row(name, str(values[-1] if values else 0), str(max([0, *values])), bars(values))
    return Group(Text(f"{watch.fed} image tasks, {PARTITIONS} partitions"), table,
                 Text(watch.state, style="dim", overflow="ellipsis", no_wrap=True))  # fmt: skip


def set_up(cluster: Cluster, console: Console) -> Demo:
    """Cluster, images, operators and the pipeline; everything that is there already stays."""
    console.print("Bringing up a Kubernetes cluster; the first time it is compiled (minutes).")
    cluster.up()
    for image in ("broker", "operator", "spark"):
        console.print(f"Building and loading the image of {image}.")
        cluster.load(images.archive(image))
    console.print("Installing Kubeflow's Spark operator and the chart of Shoal.")
    manifest = f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}"
    cluster.kubectl("apply", "--filename=-", input=manifest)
    spark_operator.install(cluster, [])
    Release(cluster).install()
    demo = Demo(cluster)
    demo.kubectl("apply", f"--filename={HERE / 'pipeline.yaml'}")
    demo.kubectl("wait", "--for=condition=Ready", "queuecluster/demo", "--timeout=120s")
    for name in ("queuetopic/images", "queuetopic/thumbnails", "sharegroup/thumbnailers"):
        demo.kubectl("wait", "--for=condition=Ready", name, "--timeout=60s")
    return demo


def feed(demo: Demo, count: int) -> None:
    """Put `count` image tasks into the queue, from a pod."""
    demo.kubectl("delete", "pod/feeder", "--ignore-not-found", "--wait=true")
    command = [
        "python3", "/opt/spark/jobs/feed_images.py", "--bootstrap-servers", "demo-bootstrap:9092",
        "--topic", "images", "--partitions", str(PARTITIONS), "--count", str(count),
        "--size", "128", "--broken-every", str(BROKEN_EVERY), "--spread",
    ]  # fmt: skip
    container = {
        "name": "feeder", "image": images.tag("spark"), "imagePullPolicy": "Never",
        "command": command,
    }  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "feeder"},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }  # fmt: skip
    demo.kubectl("apply", "--filename=-", input=json.dumps(pod))
    demo.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/feeder", "--timeout=180s")


def run(demo: Demo, given: argparse.Namespace, console: Console) -> Watch:
    """Feed, then watch until the backlog is gone and the executors too."""
    before = demo.results()
    watch = Watch(given.images)
    feed(demo, given.images)
    watch.began = time.monotonic()
    drained = False
    with Live(console=console, refresh_per_second=4) as live:
        while time.monotonic() - watch.began < given.timeout:
            sample = demo.sample(watch)
            sample.results -= before
            watch.samples.append(sample)
            live.update(view(watch))
            drained = drained or (len(watch.samples) > 3 and sample.lag == 0 and sample.results > 0)
            if drained and sample.executors == 0:
                break
            time.sleep(0.5)
    return watch


def picture(watch: Watch, path: Path) -> None:
    """Backlog and results over time, executors against partitions below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at = [s.at_s for s in watch.samples]
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True)
    upper.plot(at, [s.lag for s in watch.samples], label="backlog", color="#c0392b")
    upper.plot(at, [s.results for s in watch.samples], label="results", color="#2a9d3a")
    upper.set_ylabel("records")
    upper.legend()
    lower.step(at, [s.executors for s in watch.samples], where="post", label="executors running")
    lower.step(at, [s.wanted for s in watch.samples], where="post", linestyle=":", label="wanted")
    lower.axhline(PARTITIONS, color="grey", linewidth=1, linestyle="--", label="partitions")
    lower.set_ylabel("executors")
    lower.set_xlabel("seconds since the queue was filled")
    lower.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(watch: Watch, demo: Demo, given: argparse.Namespace, console: Console) -> int:
    """The counts, where to look next, and the exit status."""
    broken = given.images // BROKEN_EVERY
    expected = given.images - broken
    last = watch.samples[-1]
    picture(watch, given.picture)
    console.rule("report")
    console.print(f"image tasks fed      {given.images}, {broken} of them broken on purpose")
    distinct = demo.distinct_results()
    console.print(f"results              {distinct} of {expected}, {last.results} records")
    console.print(f"backlog left         {last.lag}")
    console.print(f"executors at most    {watch.most_executors} on {PARTITIONS} partitions")
    console.print(f"seconds              {last.at_s:.0f}")
    console.print(f"picture              {given.picture}")
    console.print('\nLook around: eval "$(python tests/e2e/cluster/cli.py env)", then')
    console.print(f"  kubectl -n {NAMESPACE} get shoal,sparkapp,pods")
    console.print(
        f"  kubectl -n {NAMESPACE} exec demo-broker-0 -- shoal groups describe thumbnailers"
    )
    console.print("Take it away: python tests/e2e/cluster/cli.py down")
    failures = []
    if last.lag or distinct < expected:
        failures.append(f"{expected - distinct} results are missing, {last.lag} tasks are left")
    if watch.most_executors <= PARTITIONS:
        failures.append(f"executors never outnumbered the {PARTITIONS} partitions")
    for failure in failures:
        console.print(f"[red]{failure}")
    if failures:
        console.print(demo.kubectl("get", "shoal,sparkapp,pods", check=False))
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=3000, help="how many image tasks")
    parser.add_argument("--timeout", type=float, default=420, help="seconds until it gives up")
    parser.add_argument("--picture", type=Path, default=Path("shoal-demo.png"))
    given = parser.parse_args()
    console = Console()
    try:
        demo = set_up(choose(layout_from_environment()), console)
        watch = run(demo, given, console)
    except (ClusterError, subprocess.CalledProcessError) as error:
        console.print(f"[red]The demo stopped: {error}")
        console.print(getattr(error, "stderr", "") or "")
        return 1
    return report(watch, demo, given, console)


if __name__ == "__main__":
    sys.exit(main())
