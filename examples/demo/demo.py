"""Run and observe the whole pipeline on a real Kubernetes cluster: `make demo-kubernetes`.

Start the test cluster (kind with Docker, else a local one), install Kubeflow's Spark operator and
the chart, apply `pipeline.yaml`, and produce image tasks. Show backlog, executors, throughput,
results and dead letters, and write a report with a chart at the end. The exit code is 1 if a task
was lost or if executors never outnumbered partitions. The cluster is that of the end-to-end tests,
so `tests` must be on PYTHONPATH.

`--use-current-context` uses the cluster of kubectl's current context instead. Without it, no
cluster is touched that the demo has not started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from e2e.cluster import provision
from e2e.cluster.backend import Cluster, choose
from e2e.cluster.layout import ClusterError, layout_from_environment
from pipeline import (
    BROKEN_EVERY,
    CONSOLE_PORT,
    CONSUMER,
    DEAD_LETTERS,
    GROUP,
    IMAGES,
    NAMESPACE,
    PARTITIONS,
    RESULTS,
    Pipeline,
)
from rich.console import Console
from rich.live import Live
from shoal_spark.demo.view import build_view, draw_picture
from shoal_spark.demo.watch import PipelineWatch, list_failures

EVERY_S = 0.5
#: Seconds between checks of the feeder pod.
FEEDER_EVERY_S = 5.0
#: What happens once programs and images are there; the cluster's start included.
RUN_MINUTES = 2.5
WHERE = {
    "kind": "a cluster of kind in Docker",
    "local": "a cluster of processes of this machine, because no Docker engine answers",
    "context": "your own cluster, which kubectl's current context names",
}

#: How to remove the demo from a cluster that stays.
AWAY = {
    "context": (
        f"kubectl delete namespace {NAMESPACE}, then helm uninstall shoal -n shoal-system and "
        "helm uninstall spark-operator -n spark-operator"
    )
}


def announce(cluster: Cluster, console: Console) -> None:
    """Print what the demo will do, and how long it will take; raise the reason if it cannot."""
    cluster.require()
    missing = provision.plan(cluster, IMAGES)
    console.print(
        f"The demo runs on {WHERE[cluster.kind]}. {missing} Then the pipeline is installed and "
        f"run: {RUN_MINUTES:g} minutes. In all, expect about {missing.minutes + RUN_MINUTES:.0f} "
        "minutes.",
        highlight=False,
    )


def run(pipeline: Pipeline, args: argparse.Namespace, console: Console) -> PipelineWatch:
    """Produce tasks and observe until all are done and no executor is left."""
    watch = PipelineWatch(args.images, args.images // BROKEN_EVERY, PARTITIONS)
    with pipeline.watched(), Live(console=console, refresh_per_second=4) as live:
        pipeline.feed(args.images)
        began = asked = time.monotonic()
        while time.monotonic() - began < args.timeout:
            watch.samples.append(pipeline.sample(watch, began))
            live.update(build_view(watch))
            if watch.is_settled and not watch.last.workers and not watch.last.wanted:
                break
            if not watch.last.backlog and time.monotonic() - asked > FEEDER_EVERY_S:
                asked = time.monotonic()
                if words := pipeline.feeder_failed():
                    raise ClusterError(f"The queue could not be filled: {words}")
            time.sleep(EVERY_S)
    return watch


def report(
    watch: PipelineWatch, pipeline: Pipeline, args: argparse.Namespace, console: Console
) -> int:
    """Print the counts and further links; return the exit code."""
    draw_picture(watch, args.picture)
    last, good = watch.last, watch.fed - watch.broken
    distinct = pipeline.distinct(RESULTS)
    dead = pipeline.distinct(DEAD_LETTERS)
    lag = pipeline.lag()
    lines = {
        "image tasks": f"{watch.fed}, {watch.broken} of them broken on purpose",
        "with a result": f"{distinct} of {good}; {last.results} results in all",
        "dead letters": f"{dead} of {watch.broken}",
        "not settled": f"{lag}",
        "executors at most": f"{watch.most_workers} on {PARTITIONS} partitions",
        "throughput at most": f"{max(watch.compute_throughput(), default=0):.0f} a second",
        "seconds in all": f"{last.at_s:.0f}",
        "picture": f"{args.picture}",
    }
    console.print()
    console.rule("report")
    for name, text in lines.items():
        console.print(f"{name:20} {text}", highlight=False)
    where = f"kubectl -n {NAMESPACE}"
    console.print(
        '\nLook around: eval "$(python tests/e2e/cluster/cli.py env)", then\n'
        f"  {where} get shoal,sparkapp,pods\n"
        f"  {where} describe shareconsumer {CONSUMER}\n"
        f"  {where} port-forward deployment/shoal-console {CONSOLE_PORT}\n"
        f"  {where} exec demo-broker-0 -- shoal groups describe {GROUP}\n"
        f"  {where} exec demo-broker-0 -- shoal consume {DEAD_LETTERS} --from-beginning -n 1\n"
        f"Take it away: {AWAY.get(pipeline.cluster.kind, 'python tests/e2e/cluster/cli.py down')}",
        highlight=False,
    )
    wrong = list_failures(watch, distinct)
    if lag:
        wrong.append(f"the group has {lag} records that are not settled")
    for sentence in wrong:
        console.print(f"[red]{sentence[0].upper()}{sentence[1:]}.")
    if wrong:
        console.print(pipeline.kubectl("get", "shoal,sparkapp,pods", check=False), highlight=False)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=3000, help="how many image tasks")
    parser.add_argument("--timeout", type=float, default=420, help="seconds until it gives up")
    parser.add_argument("--picture", type=Path, default=Path("shoal-demo.png"))
    own = "use the cluster of kubectl's current context: CRDs, operators and a namespace stay there"
    parser.add_argument("--use-current-context", action="store_true", help=own)
    args = parser.parse_args()
    if args.use_current_context:
        os.environ["SHOAL_CLUSTER"] = "current-context"
    console = Console()
    try:
        pipeline = Pipeline(choose(layout_from_environment()))
        announce(pipeline.cluster, console)
        pipeline.set_up(console)
        with pipeline.console_page() as address:
            console.print(f"The console is at {address} while the demo runs.", highlight=False)
            watch = run(pipeline, args, console)
        return report(watch, pipeline, args, console)
    except (ClusterError, OSError, subprocess.SubprocessError) as error:
        console.print(f"[red]The demo stopped: {error}")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; what runs continues to run.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
