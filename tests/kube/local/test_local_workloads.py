"""Jobs and SparkApplications of `shoal up`: which pods they get, and what their statuses say."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local import spark as local_spark
from shoal_operator.local.api import LocalApi
from shoal_operator.local.containers import replace_paths
from shoal_operator.local.jobs import JobController
from shoal_operator.local.machine import Machine
from shoal_operator.local.one_machine import adapt
from shoal_operator.local.pods import Pods, build_owner
from shoal_operator.local.spark import SparkController, find_jobs, is_executor
from shoal_operator.local.state_folder import StateFolder
from shoal_operator.model import names
from shoal_operator.model.consumers import spark
from shoal_operator.model.consumers.job import get_end_condition
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from pathlib import Path

Manifest = dict[str, Any]
LONG_AGO = "2026-01-01T00:00:00Z"


class Workloads:
    """A folder of objects with the controllers of its Jobs and SparkApplications."""

    def __init__(self, folder: Path) -> None:
        self.api = LocalApi(folder)
        self.pauses: list[float] = []
        self._pods = Pods(self.api)
        self._jobs = JobController(self.api, self._pods, self.pauses.append)
        self._spark = SparkController(self.api, self._pods)

    def put(self, kind: str, name: str, spec: Manifest, **more: Any) -> None:
        body = {"apiVersion": "v1", "metadata": {"labels": {}}, "spec": spec, **more}
        self.api.write((kind, "n", name), body)

    def sync_job(self) -> Manifest:
        """Look at the Job once; return its status."""
        self._jobs.sync(self.get("Job", "one"))
        status: Manifest = self.get("Job", "one")["status"]
        return status

    def sync_application(self, digest: str = "a") -> str:
        """Look at the SparkApplication once; return its state."""
        self._spark.sync(self.get("SparkApplication", "app"), digest)
        return str(self.get("SparkApplication", "app")["status"]["applicationState"]["state"])

    def get(self, kind: str, name: str) -> Manifest:
        found = self.api.find(kind, "n", name)
        assert found is not None
        return found

    def list_pods(self) -> list[Manifest]:
        return list(self.api.iterate("Pod"))

    def set_pod(self, phase: str, *, code: int = 0, ended: str = LONG_AGO) -> None:
        """Set the status of the pods that have not ended."""
        end = {"terminated": {"exitCode": code, "finishedAt": ended, "message": "x: no paper"}}
        for pod in self.list_pods():
            if pod["status"]["phase"] in ("Pending", "Running") and not is_executor(pod):
                state = {"running": {}} if phase == "Running" else end
                containers = [{"name": "c", "restartCount": 0, "state": state}]
                ready = {"type": "Ready", "status": str(phase == "Running")}
                status = {"phase": phase, "containerStatuses": containers, "conditions": [ready]}
                key = ("Pod", "n", pod["metadata"]["name"])
                self.api.write(key, {**pod, "status": status})

    def put_job(self, **spec: Any) -> None:
        template = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}
        self.put("Job", "one", {"template": template, **spec})


@pytest.fixture
def workloads(tmp_path: Path) -> Workloads:
    return Workloads(tmp_path)


def test_a_job_has_one_pod_until_that_succeeds(workloads: Workloads) -> None:
    workloads.put_job(backoffLimit=0)
    assert workloads.sync_job()["active"] == 0
    assert workloads.sync_job()["active"] == 1, "it has started a pod"
    (pod,) = workloads.list_pods()
    assert pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "one"
    workloads.set_pod("Running")
    assert workloads.sync_job()["ready"] == 1
    workloads.set_pod("Succeeded")
    (condition,) = workloads.sync_job()["conditions"]
    assert (condition["type"], condition["status"]) == ("Complete", "True")
    assert len(workloads.list_pods()) == 1


def test_a_job_that_fails_is_tried_again_after_a_pause_and_given_up(workloads: Workloads) -> None:
    workloads.put_job(backoffLimit=1)
    workloads.sync_job()
    workloads.set_pod("Failed", code=3)
    assert workloads.sync_job()["failed"] == 1, "its pause is over, so there is a second pod"
    assert len(workloads.list_pods()) == 2
    workloads.set_pod("Failed", code=3)
    (condition,) = workloads.sync_job()["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
    assert len(workloads.list_pods()) == 2


def test_the_pause_after_a_failure_is_kubernetes_own(workloads: Workloads) -> None:
    workloads.put_job()
    workloads.sync_job()
    workloads.set_pod("Failed", code=3, ended="2999-01-01T00:00:00Z")
    workloads.sync_job()
    assert len(workloads.list_pods()) == 1
    (pause,) = workloads.pauses
    assert pause == 10


def test_a_job_beyond_its_deadline_ends(workloads: Workloads) -> None:
    workloads.put_job(activeDeadlineSeconds=60)
    workloads.sync_job()
    workloads.set_pod("Running")
    job = workloads.get("Job", "one")
    workloads.put("Job", "one", job["spec"], status={**job["status"], "startTime": LONG_AGO})
    (condition,) = workloads.sync_job()["conditions"]
    assert condition["reason"] == "DeadlineExceeded"
    (pod,) = workloads.list_pods()
    assert "deletionTimestamp" in pod["metadata"]


async def run_job(folder: Path, command: list[str], policy: str) -> tuple[Manifest, Manifest]:
    """Run a Job to its end by processes; return its status and that of its pod."""
    state = StateFolder(folder / ".shoal")
    api = LocalApi(state.objects)
    machine = Machine(api, state, folder)
    pod: Manifest = {"restartPolicy": policy}
    pod["containers"] = [{"name": "c", "command": command}]
    body = {"apiVersion": "batch/v1", "metadata": {}}
    spec = {"template": {"metadata": {}, "spec": pod}, "backoffLimit": 1}
    api.write(("Job", "n", "one"), {**body, "spec": spec})
    ended = asyncio.Event()

    def on_change(changed: Manifest, _: bool) -> None:
        if changed["kind"] == "Job" and get_end_condition(changed):
            ended.set()

    api.subscribe(on_change)
    try:
        async with asyncio.timeout(60):
            await ended.wait()
        job, (made, *_) = api.find("Job", "n", "one"), api.iterate("Pod")
        assert job is not None
        return job["status"], made["status"]
    finally:
        await machine.stop()


def test_the_folder_of_a_deleted_claim_goes_after_its_pods(tmp_path: Path) -> None:
    """A QueueCluster with `storage.deletionPolicy: Delete` owns its claims."""

    async def run() -> None:
        state = StateFolder(tmp_path / ".shoal")
        api = LocalApi(state.objects)
        machine = Machine(api, state, tmp_path)
        folders = {name: state.volumes / "n" / name for name in ("free", "kept", "mounted")}
        made: Manifest = {"apiVersion": "v1", "metadata": {}, "status": {}}
        claim = {**made, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
        for name, folder in folders.items():
            folder.mkdir(parents=True)
            api.write(("PersistentVolumeClaim", "n", name), claim)
        # An executor has no process, so the pod stays.
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "mounted"}}
        pod = {**made, "metadata": {"labels": {"spark-role": "executor"}}}
        api.write(("Pod", "n", "p"), {**pod, "spec": {"containers": [], "volumes": [volume]}})
        for name in ("free", "mounted"):
            api.delete_now(api.objects["PersistentVolumeClaim", "n", name])

        def list_folders() -> list[str]:
            return [name for name, folder in folders.items() if folder.exists()]

        await eventually_async(lambda: "free" not in list_folders())
        assert list_folders() == ["kept", "mounted"]
        api.delete_now(api.objects["Pod", "n", "p"])
        await eventually_async(lambda: list_folders() == ["kept"])
        await machine.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("policy", "command", "end", "phase", "restarts"),
    [
        ("Never", "exit 0", "Complete", "Succeeded", 0),
        ("OnFailure", "exit 0", "Complete", "Succeeded", 0),
        # The first time it fails, and then it succeeds.
        ("OnFailure", "mkdir twice 2>/dev/null && exit 3; exit 0", "Complete", "Succeeded", 1),
    ],
)
def test_the_processes_of_a_job_start_again_as_its_policy_says(
    tmp_path: Path, policy: str, command: str, end: str, phase: str, restarts: int
) -> None:
    status, pod = asyncio.run(run_job(tmp_path, ["sh", "-c", command], policy))
    assert [condition["type"] for condition in status["conditions"]] == [end]
    assert pod["phase"] == phase
    assert pod["containerStatuses"][0]["restartCount"] == restarts
    assert pod["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


async def run_consumer(folder: Path, command: str) -> tuple[list[Manifest], list[int]]:
    """Run a ShareConsumer until there is an event, then stop; return all events, and the numbers of
    consumers that were ready."""
    state = StateFolder(folder / ".shoal")
    api = LocalApi(state.objects)
    machine = Machine(api, state, folder)
    consumer = {"apiVersion": names.API_VERSION, "metadata": {}, "spec": {}}
    owner = build_owner(api.write(("ShareConsumer", "n", "printers"), consumer))
    pod = {"containers": [{"name": "consumer", "command": ["sh", "-c", command]}]}
    spec = {"replicas": 1, "template": {"metadata": {}, "spec": pod}}
    body = {"apiVersion": "apps/v1", "metadata": {"ownerReferences": [owner]}, "spec": spec}
    api.write(("Deployment", "n", "printers"), body)
    warned, ready = asyncio.Event(), []

    def on_change(changed: Manifest, _deleted: bool) -> None:
        if changed["kind"] == "Event":
            warned.set()
        elif changed["kind"] == "Deployment" and "status" in changed:
            ready.append(changed["status"]["readyReplicas"])

    api.subscribe(on_change)
    try:
        async with asyncio.timeout(60):
            await warned.wait()
    finally:
        await machine.stop()
    return list(api.iterate("Event")), ready


def test_a_container_that_ends_unasked_is_an_event_of_its_resource(tmp_path: Path) -> None:
    """It is killed once, and was never ready. The end that `shoal up` asks for is none."""
    command = "mkdir killed 2>/dev/null && kill -KILL $$; exec sleep 1000"
    (event,), ready = asyncio.run(run_consumer(tmp_path, command))
    assert set(ready) == {0}
    about = event["involvedObject"]
    assert (about["kind"], about["name"]) == ("ShareConsumer", "printers")
    assert (event["type"], event["reason"]) == ("Warning", "ContainerEnded")
    assert event["message"].startswith("container consumer of pod printers-")
    assert event["message"].endswith(" ended with exit code 137; it is started again at once")


def make_consumer(**more: Any) -> Manifest:
    settings = {
        "mainApplicationFile": "local:///opt/spark/jobs/image_tasks.py",
        "arguments": ["--checkpoint=$(CHECKPOINT)", "--at", "$(BOOTSTRAP_SERVERS)"],
        "sparkVersion": "4.3.0",
        "minExecutors": 0,
        "maxExecutors": 3,
        "coresPerExecutor": 2,
        "maxRecordsPerTrigger": 10,
        "sparkConf": {"spark.ui.enabled": "true"},
        "executor": {"env": [{"name": "MODEL", "value": "small"}]},
        **more,
    }
    meta = {"name": "app", "namespace": "n", "uid": "1"}
    return {"kind": "ShareConsumer", "metadata": meta, "spec": {"spark": settings}}


def make_application(consumer: Any, *, suspend: bool) -> Manifest:
    context = spark.WorkloadContext("m", "m.n.svc:9092", "g", ["t"], "image", "", "", "")
    application = spark.build_application(consumer, context, suspend=suspend)
    application["metadata"]["ownerReferences"] = []
    return application


def test_a_driver_runs_all_tasks_in_local_mode() -> None:
    application = make_application(make_consumer(), suspend=False)
    pod = local_spark.build_driver_template(application)["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [
        sys.executable,
        f"{find_jobs()}/image_tasks.py",
        "--checkpoint=file:///var/lib/shoal/checkpoint",
        "--at",
        "m.n.svc:9092",
    ]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (env["MODEL"], env["SHOAL_GROUP_ID"]) == ("small", "g")
    words = shlex.split(env["PYSPARK_SUBMIT_ARGS"])
    assert words[:2] == ["--master", "local[6,4]"]
    assert "spark.ui.enabled=true" in words
    assert "spark.driver.bindAddress=127.0.0.1" in words
    assert not [word for word in words if "kubernetes" in word]
    (claim,) = [v for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claim["persistentVolumeClaim"] == {"claimName": "app-checkpoint"}
    local = replace_paths(container["command"][2], {"/var/lib/shoal/checkpoint": "/here"})
    assert local == "--checkpoint=file:///here"


@pytest.mark.parametrize("file", ["local:///opt/job.py", "/opt/job.py", "file:///opt/job.py"])
def test_a_job_outside_of_the_image_is_a_path_of_this_machine(file: str) -> None:
    assert local_spark.resolve_main(file) == "/opt/job.py"


def test_an_application_runs_is_suspended_and_restarts_for_another_spec(
    workloads: Workloads,
) -> None:
    consumer = make_consumer()
    workloads.put("ShareConsumer", "app", consumer["spec"], status={"desiredReplicas": 2})

    def apply(*, suspend: bool) -> None:
        made = make_application(consumer, suspend=suspend)
        workloads.api.write(("SparkApplication", "n", "app"), made)

    apply(suspend=True)
    assert workloads.sync_application() == "SUSPENDED"
    apply(suspend=False)
    assert workloads.sync_application() == "SUBMITTED"
    workloads.set_pod("Running")
    assert workloads.sync_application() == "RUNNING"
    executors = [pod for pod in workloads.list_pods() if is_executor(pod)]
    assert [pod["metadata"]["name"] for pod in executors] == ["app-exec-1", "app-exec-2"]
    assert (
        spark.build_executor_selector("app").items() <= executors[0]["metadata"]["labels"].items()
    )
    assert executors[0]["metadata"]["labels"][names.MANAGED_BY] == names.FIELD_MANAGER
    assert workloads.sync_application("b") == "INVALIDATING"
    driver = workloads.get("Pod", "app-driver")
    assert "deletionTimestamp" in driver["metadata"]
    workloads.sync_application("b")
    ending = [pod for pod in workloads.list_pods() if is_executor(pod)]
    assert all("deletionTimestamp" in pod["metadata"] for pod in ending)


def test_a_driver_that_fails_says_why(workloads: Workloads) -> None:
    application = make_application(make_consumer(), suspend=False)
    workloads.api.write(("SparkApplication", "n", "app"), application)
    workloads.sync_application()
    driver = workloads.get("Pod", "app-driver")
    ended = {"exitCode": 1, "message": "Traceback\nValueError: no paper"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    container = {"name": "c", "state": waiting, "lastState": {"terminated": ended}}
    status = {"phase": "Running", "containerStatuses": [container], "conditions": []}
    workloads.api.write(("Pod", "n", "app-driver"), {**driver, "status": status})
    assert workloads.sync_application() == "FAILING"
    state = workloads.get("SparkApplication", "app")["status"]["applicationState"]
    assert "ValueError: no paper" in state["errorMessage"]


def test_what_spark_needs_kubernetes_for_is_listed() -> None:
    role = {"memory": "1Gi", "env": []}
    consumer = make_consumer(operator="apache", driver=role, checkpoint={"size": "1Gi"})
    adapted, listed = adapt(consumer)
    assert listed == [
        "spec.spark.checkpoint.size",
        "spec.spark.driver.memory",
        "spec.spark.operator",
    ]
    assert adapted["spec"]["spark"]["operator"] == "kubeflow"
    spec = {"scaleTargetRef": {"name": "s"}}
    target = {"kind": "ShareConsumer", "metadata": {"name": "s"}, "spec": spec}
    assert adapt(target)[1] == ["spec.scaleTargetRef"]


def test_kinds_of_one_name_are_listed_by_their_version(workloads: Workloads) -> None:
    """Kubeflow's and Apache's applications have the same kind."""
    application = make_application(make_consumer(), suspend=False)
    workloads.api.write(("SparkApplication", "n", "app"), application)
    for version, number in ((names.SPARK_API, 1), ("spark.apache.org/v1", 0)):
        path = f"/apis/{version}/namespaces/n/sparkapplications"
        coroutine = workloads.api._call("list", path)  # noqa: SLF001
        with pytest.raises(StopIteration) as stopped:
            coroutine.send(None)
        assert len(stopped.value.value["items"]) == number
