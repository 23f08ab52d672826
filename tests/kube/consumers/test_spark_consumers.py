"""A ShareConsumer as a SparkApplication: rendered objects, and the meaning of its states."""

import copy
import dataclasses
from typing import Any

import pytest
from shoal_operator.consumers import reconciler
from shoal_operator.consumers.scaling import GroupLoad, ScalingHistory, compute_ceiling, decide
from shoal_operator.consumers.workloads import (
    WorkloadManager,
    decide_application_verdict,
    find_termination_message,
)
from shoal_operator.kube.store import Store
from shoal_operator.model.consumers import spark
from shoal_operator.settings import ChartSettings

CONTEXT = spark.WorkloadContext(
    cluster="main",
    bootstrap_servers="main-bootstrap.n.svc:9092",
    group_id="g",
    topics=("t", "u"),
    image="spark:1",
    driver_role_kind="Role",
)
SETTINGS = ChartSettings("broker:1", "spark:1", "Role", "http://operator:8080")
CONSUMER: Any = {
    "kind": "ShareConsumer",
    "metadata": {"name": "c", "namespace": "n", "uid": "u"},
    "spec": {
        "shareGroup": "g",
        "scaling": {"targetLagPerReplica": 10, "cooldown": "20s"},
        "spark": {
            "mainApplicationFile": "local:///job.py",
            "sparkVersion": "4.3.0",
            "imagePullPolicy": "IfNotPresent",
            "minExecutors": 0,
            "maxExecutors": 6,
            "coresPerExecutor": 2,
            "maxRecordsPerTrigger": 1000,
            "arguments": ["--to=$(BOOTSTRAP_SERVERS)", "$(GROUP_ID) $(TOPICS)", "$(CHECKPOINT)"],
        },
    },
}


def consumer(**more):
    made = copy.deepcopy(CONSUMER)
    made["spec"]["spark"] |= more
    return made


def env(pod):
    return {e["name"]: e["value"] for e in pod["template"]["spec"]["containers"][0]["env"]}


def test_only_suspend_depends_on_the_number_of_executors() -> None:
    """Kubeflow restarts an application when any other part of its spec changes."""
    runs = spark.build_application(CONSUMER, CONTEXT, suspend=False)
    rests = spark.build_application(CONSUMER, CONTEXT, suspend=True)
    assert rests["spec"].pop("suspend")
    assert not runs["spec"].pop("suspend")
    assert runs == rests
    assert runs["spec"]["executor"]["instances"] == 1
    assert "dynamicAllocation" not in runs["spec"]
    assert runs["spec"]["restartPolicy"]["type"] == "Always"


def test_the_driver_gets_the_connection_settings() -> None:
    spec = spark.build_application(CONSUMER, CONTEXT, suspend=False)["spec"]
    where = "file:///var/lib/shoal/checkpoint"
    assert spec["arguments"] == ["--to=main-bootstrap.n.svc:9092", "g t,u", where]
    driver_env = env(spec["driver"])
    assert driver_env["SHOAL_TOPICS"] == "t,u"
    assert driver_env["SHOAL_CHECKPOINT"] == where
    assert "env" not in spec["executor"]["template"]["spec"]["containers"][0]


def test_the_driver_gets_what_opens_its_scale_signal() -> None:
    """Executors do not."""
    context = dataclasses.replace(CONTEXT, scale_secret="c-scale", scale_login=True)
    spec = spark.build_application(CONSUMER, context, suspend=False)["spec"]
    pod = spec["driver"]["template"]["spec"]
    assert {"name": "shoal-scale", "secret": {"secretName": "c-scale"}} in pod["volumes"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounts["shoal-scale"] == "/etc/shoal/scale"
    assert env(spec["driver"])["SHOAL_SCALE_URL_FILE"] == "/etc/shoal/scale/url"
    assert env(spec["driver"])["SHOAL_SCALE_TOKEN_FILE"] == "/etc/shoal/scale/token"
    assert env(spec["driver"])["SHOAL_SCALE_CA_FILE"] == "/etc/shoal/scale/ca.crt"
    assert "c-scale" not in str(spec["executor"])


def test_settings_of_the_user_lie_over_ours() -> None:
    conf = spark.build_application(
        consumer(sparkConf={"spark.decommission.enabled": "false", "a": "b"}),
        CONTEXT,
        suspend=False,
    )["spec"]["sparkConf"]
    assert conf["spark.decommission.enabled"] == "false"
    assert conf["a"] == "b"
    assert conf["spark.dynamicAllocation.enabled"] == "false"
    assert "NetworkPolicyFeatureStep" in conf["spark.kubernetes.driver.pod.excludedFeatureSteps"]


def test_the_job_runs_while_its_executors_start() -> None:
    """By default the driver's start waits for executors, and requests the rest only after it."""
    conf = spark.build_application(CONSUMER, CONTEXT, suspend=False)["spec"]["sparkConf"]
    assert conf["spark.scheduler.minRegisteredResourcesRatio"] == "0"


def test_an_image_of_the_user_may_lack_our_modules() -> None:
    for image, module in (("", "shoal_spark.daemon"), ("mine:1", None)):
        of = consumer(image=image) if image else consumer()
        conf = spark.build_application(of, CONTEXT, suspend=False)["spec"]["sparkConf"]
        assert conf.get("spark.python.daemon.module") == module


def test_the_checkpoint_outlives_the_consumer() -> None:
    claim, account, binding = spark.build_manifests(CONSUMER, CONTEXT)
    assert claim["kind"] == "PersistentVolumeClaim"
    assert "ownerReferences" not in claim["metadata"]
    assert account["metadata"]["ownerReferences"] == binding["metadata"]["ownerReferences"]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "shoal-spark-driver",
    }


@pytest.mark.parametrize(
    ("given", "uri", "claim"),
    [
        ({}, "file:///var/lib/shoal/checkpoint", "c-checkpoint"),
        ({"persistentVolumeClaim": "mine"}, "file:///var/lib/shoal/checkpoint", "mine"),
        ({"uri": "s3a://bucket/x"}, "s3a://bucket/x", None),
    ],
)
def test_where_the_checkpoint_is(given, uri, claim) -> None:
    made = consumer(checkpoint=given, serviceAccountName="own")
    assert spark.get_checkpoint_uri(made) == uri
    pod = spark.build_application(made, CONTEXT, suspend=False)["spec"]["driver"]["template"][
        "spec"
    ]
    volumes = {v["persistentVolumeClaim"]["claimName"] for v in pod.get("volumes", [])}
    assert volumes == ({claim} if claim else set())
    assert len(spark.build_manifests(made, CONTEXT)) == (claim == "c-checkpoint")


def test_executors_share_a_batch() -> None:
    """1000 records, at least ten for each of two cores: fifty executors have work."""
    policy = reconciler.build_policy(CONSUMER["spec"])
    assert (policy.replicas_min, policy.replicas_max) == (0, 6)
    assert compute_ceiling(policy, GroupLoad(10**6, 2, 2000)) == 50
    assert compute_ceiling(policy, GroupLoad(10**6, 1, 200)) == 10


def test_parallelism_out_of_reach_is_reported_with_the_numbers() -> None:
    wide = consumer(maxExecutors=60)["spec"]
    group: Any = {"maxRecordLocks": 2000}
    found = reconciler.find_limit_warning(wide, group, 50)
    assert found is not None
    reason, text = found
    assert reason == "ParallelismUnreachable"
    assert "maxExecutors is 60" in text
    assert "is enough for 50" in text
    assert reconciler.find_limit_warning(CONSUMER["spec"], group, 50) is None
    group = {"renewal": False, "lockDuration": "30s", "maxRecordLocks": 1}
    found = reconciler.find_limit_warning(CONSUMER["spec"], group, 0)
    assert found is not None
    assert found[0] == "RenewalOff"


def test_without_scaling_and_replicas_spark_scales_by_defaults() -> None:
    specs: list[Any] = [{"spark": {}}, {"spark": {}, "replicas": 2}, {"deployment": {}}]
    assert [reconciler.is_scaled(spec) for spec in specs] == [True, False, False]


@pytest.mark.parametrize(
    ("state", "wanted", "running", "words", "age", "ready", "reason"),
    [
        ("RUNNING", 3, 3, "", 9, True, "Reconciled"),
        ("RUNNING", 3, 1, "", 9, True, "Scaling"),
        ("RUNNING", 3, 3, "ValueError: x", 9, False, "ApplicationFailed"),
        ("PENDING_RERUN", 3, 0, "ValueError: x", 9, False, "ApplicationFailed"),
        ("FAILED", 3, 0, "", 9, False, "ApplicationFailed"),
        ("SUBMITTED", 3, 0, "", 9, False, "ApplicationStarting"),
        ("", 3, 0, "", 9, False, "ApplicationStarting"),
        ("", 3, 0, "", 99, False, "SparkOperatorSilent"),
        ("SUSPENDED", 0, 0, "", 9, True, "ScaledToZero"),
        ("SUSPENDING", 0, 2, "", 9, True, "Suspending"),
    ],
)
def test_states(state, wanted, running, words, age, ready, reason) -> None:
    application = {"status": {"applicationState": {"state": state, "errorMessage": "exit 1"}}}
    verdict = decide_application_verdict(application, wanted, running, words, age)
    assert (verdict.ready, verdict.reason) == (ready, reason)
    if reason == "ApplicationFailed":
        assert (words or "exit 1") in verdict.message


def test_a_failed_submission_is_reported_in_a_line() -> None:
    """Kubeflow's message contains everything that spark-submit has logged, stack traces
    included."""
    message = (
        "failed to submit spark application: failed to run spark-submit: WARNING: incubator\n"
        "26/11/22 15:08:09 INFO SparkKubernetesClientFactory: Auto-configuring K8S client\n"
        '26/11/22 15:08:45 ERROR Client: Please check "kubectl auth can-i create pod" first.\n'
        'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: it\n'
        "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)\n"
        "Caused by: io.vertx.core.impl.NoStackTraceTimeoutException: too late\n\n"
    )
    reported = {"state": "SUBMISSION_FAILED", "errorMessage": message}
    verdict = decide_application_verdict({"status": {"applicationState": reported}}, 1, 0, "", 9)
    assert verdict.message == (
        "The SparkApplication failed and restarts: failed to submit spark application: "
        "Caused by: io.vertx.core.impl.NoStackTraceTimeoutException: too late"
    )


def ended_driver(exit_code):
    ended = {"exitCode": exit_code, "message": "INFO x\nValueError: y"}
    return {
        "kind": "Pod",
        "metadata": {"name": "c-driver", "namespace": "n", "uid": "p", "resourceVersion": "1"},
        "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
    }


@pytest.mark.parametrize(("exit_code", "reason"), [(1, "ApplicationFailed"), (143, "Suspending")])
def test_a_stopped_driver_did_not_fail(exit_code, reason) -> None:
    store = Store()
    store.put(ended_driver(exit_code))
    no_kube: Any = None
    workloads = WorkloadManager(no_kube, store, SETTINGS)

    def said(state):
        application = {"status": {"applicationState": {"state": state}}}
        words = workloads.find_failure(CONSUMER, state)
        return decide_application_verdict(application, 0, 0, words, 9).reason

    assert said("SUSPENDING") == reason
    assert said("SUSPENDED") == "ScaledToZero"


def test_a_driver_without_memory_is_reported() -> None:
    """Its log ends in unrelated lines."""
    store, killed = Store(), ended_driver(137)
    killed["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    store.put(killed)
    no_kube: Any = None
    words = WorkloadManager(no_kube, store, SETTINGS).find_failure(CONSUMER, "FAILING")
    assert "spark.driver.memoryOverhead" in words
    assert "ValueError" not in words


def test_termination_messages() -> None:
    python = 'Traceback:\n  File "x"\nshoal_spark.options.InvalidOption: unknown option\n'
    assert find_termination_message(python) == "shoal_spark.options.InvalidOption: unknown option"
    java = "INFO x\na.B: c\nCaused by: java.lang.IllegalException: too far\n\tat a.b(C.java:1)\n"
    assert find_termination_message(java) == "Caused by: java.lang.IllegalException: too far"
    assert find_termination_message("just\nended\n") == "ended"
    assert find_termination_message("") == ""


def test_a_restart_of_the_operator_removes_no_executor() -> None:
    policy = reconciler.build_policy(CONSUMER["spec"])
    history = ScalingHistory.from_restart(5, None, 1_000)
    load = GroupLoad(10, 2, 2000)
    assert decide(policy, load, 5, history, 1_001).replicas == 5
    assert decide(policy, load, 5, history, 21_001).replicas == 1
    idle = ScalingHistory.from_restart(1, 299_999, 1_000_000)
    assert decide(policy, GroupLoad(0, 2, 2000), 1, idle, 1_000_000).replicas == 1
    assert decide(policy, GroupLoad(0, 2, 2000), 1, idle, 1_030_000).replicas == 0
