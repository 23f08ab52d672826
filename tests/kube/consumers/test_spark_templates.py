"""Templates of the pods of Spark (`spec.spark.driver.template`, `spec.spark.executor.template`)."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from typing import Any

import pytest
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import module_directory
from e2e.cluster.spark_operator import MODULE
from kube.consumers.test_kueue import SPARK
from kube.consumers.test_scale_targets import Shop, ready
from kube.consumers.test_spark_consumers import CONTEXT, consumer, env
from kube.structural import errors
from shoal_operator.model import names
from shoal_operator.model.consumers import spark, spark_templates
from support.runs.machine import lacking

Manifest = dict[str, Any]
WHOLE = dataclasses.replace(CONTEXT, user_secret="painter", scale_secret="c-scale", rack="zone")
SPOT = {"key": "cloud/spot", "operator": "Exists"}
GPU: Manifest = {
    "metadata": {"labels": {"team": "a", names.CONSUMER_LABEL: "x"}, "annotations": {"n": "1"}},
    "spec": {
        "priorityClassName": "batch",
        "nodeSelector": {"pool": "spot"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [SPOT],
        "terminationGracePeriodSeconds": 110,
        "securityContext": {"fsGroup": 7},
        "initContainers": [{"name": "models", "image": "models:1"}],
        "volumes": [{"name": "models", "emptyDir": {}}],
        "containers": [
            {"name": "proxy", "image": "proxy:1"},
            {
                "name": "spark-kubernetes-executor",
                "resources": {"limits": {"nvidia.com/gpu": 1}},
                "env": [{"name": "MODEL", "value": "large"}],
                "volumeMounts": [{"name": "models", "mountPath": "/models"}],
            },
        ],
    },
}


def build(role: str, **over: Any) -> Manifest:
    made = spark.build_application(consumer(**{role: over}), WHOLE, suspend=False)
    template: Manifest = made["spec"][role]["template"]
    return template


def test_a_template_comes_under_what_the_operator_sets() -> None:
    made = build(
        "executor",
        template=GPU,
        nodeSelector={"disk": "fast"},
        tolerations=[{"key": "dedicated"}],
        env=[{"name": "BESIDE", "value": "1"}],
        labels={"team": "b"},
    )
    labels, pod = made["metadata"]["labels"], made["spec"]
    assert (labels["team"], labels[names.CONSUMER_LABEL]) == ("b", "c")
    assert made["metadata"]["annotations"] == {"n": "1", names.RACK_KEY: "zone"}
    given: Manifest = GPU["spec"]
    for field in ("priorityClassName", "affinity", "initContainers"):
        assert pod[field] == given[field]
    assert pod["terminationGracePeriodSeconds"] == 110
    assert pod["nodeSelector"] == {"pool": "spot", "disk": "fast"}
    assert pod["tolerations"] == [SPOT, {"key": "dedicated"}]
    assert pod["securityContext"] == {"runAsNonRoot": True, **spark.IDS, "fsGroup": 7}
    assert [v["name"] for v in pod["volumes"]] == ["models", "shoal-user", "shoal-pod"]
    own, proxy = pod["containers"]
    assert own["name"] == "spark-kubernetes-executor", "Spark takes the first one"
    assert proxy == {"name": "proxy", "image": "proxy:1"}
    assert own["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert [m["mountPath"] for m in own["volumeMounts"]] == [
        "/models",
        "/etc/shoal/user",
        "/etc/shoal-pod",
    ]
    variables = {one["name"] for one in own["env"]}
    assert variables == {"MODEL", "BESIDE", "SHOAL_COMMAND_CONFIG", "SHOAL_POD_ANNOTATIONS"}
    assert own["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_template_of_the_driver_is_another_one() -> None:
    template = {"spec": {"priorityClassName": "drivers"}}
    made = spark.build_application(
        consumer(driver={"template": template}, executor={"template": GPU}), WHOLE, suspend=False
    )["spec"]
    driver = made["driver"]["template"]["spec"]
    assert driver["priorityClassName"] == "drivers"
    assert "tolerations" not in driver, "the driver runs on nodes that stay"
    assert env(made["driver"])["SHOAL_GROUP_ID"] == "g"
    assert "spark-kubernetes-driver" in [one["name"] for one in driver["containers"]]


def test_the_spec_of_the_share_consumer_does_not_change() -> None:
    given = consumer(executor={"template": GPU})
    before = copy.deepcopy(given)
    spark.build_application(given, WHOLE, suspend=False)
    assert given == before


@pytest.mark.parametrize(
    ("pod", "path", "remedy"),
    [
        ({"restartPolicy": "Never"}, "spec.restartPolicy", "Remove it"),
        ({"serviceAccountName": "a"}, "spec.serviceAccountName", "spec.spark.serviceAccountName"),
        ({"volumes": [{"name": "shoal-user"}]}, "spec.volumes shoal-user", "Rename it"),
        ({"image": "other:1"}, "image", "spec.spark.image"),
        ({"args": ["driver"]}, "args", "Remove it"),
        ({"resources": {"limits": {"memory": "1Gi"}}}, "resources.limits.memory", "memoryOverhead"),
        ({"resources": {"requests": {"cpu": 1}}}, "resources.requests.cpu", "coreRequest"),
        ({"resources": {"limits": {"amd.com/gpu": 1}, "claims": [{"name": "cpu"}]}}, "", ""),
        ({"priorityClassName": "a"}, "", ""),
    ],
)
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_what_spark_or_the_operator_sets_is_refused(
    role: spark.Role, pod: Manifest, path: str, remedy: str
) -> None:
    of_container = not pod.keys() & {"restartPolicy", "serviceAccountName", "volumes"}
    if of_container:
        pod = {"containers": [{"name": spark.CONTAINERS[role], **pod}, {"name": "a", **pod}]}
    problem = spark_templates.find_problem(consumer(**{role: {"template": {"spec": pod}}}))
    assert bool(problem) == bool(path)
    assert f"{path} is not allowed" in problem or not path
    assert f"spec.spark.{role}.template" in problem or not path
    assert remedy in problem


def test_a_refused_template_is_a_condition_and_nothing_starts() -> None:
    async def scenario() -> None:
        wrong = {"executor": {"template": {"spec": {"hostname": "here"}}}}
        shop = Shop(scaleTargetRef=None, spark=SPARK | wrong)
        assert ready(await shop.look(35)) == (False, "TemplateNotAllowed")
        assert shop.kube.all("SparkApplication") == []

    asyncio.run(scenario())


def test_the_schemas_accept_the_templates() -> None:
    """Ours, and that of Kubeflow's operator, which has every field of a pod: to read it takes some
    seconds."""
    own = consumer(executor={"template": GPU}, driver={"template": {"spec": {}}})
    own["apiVersion"] = names.API_VERSION
    assert errors(own) == []
    try:
        folder = module_directory("spark-operator", MODULE) / "config" / "crd" / "bases"
    except ClusterError as error:
        lacking(f"Kubeflow's definitions cannot be had: {error}")
    given = copy.deepcopy(GPU)
    given["spec"]["affinity"] = {"nodeAffinity": {}}
    made = spark.build_application(consumer(executor={"template": given}), WHOLE, suspend=False)
    assert errors(made, folder) == []
