"""The QueueUser of a ShareConsumer: the listener, the Secret in the pods, and what is missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kube.consumers.test_spark_consumers import CONTEXT, consumer
from kube.model.test_security import MTLS, PLAIN, SCRAM, TLS, queue_cluster
from shoal_operator.kube.store import Store
from shoal_operator.model.consumers import deployment, spark
from shoal_operator.model.consumers.consumer_pod import PodContext
from shoal_operator.users.consumer_users import PodLogin, resolve_login

SECURE = [MTLS, SCRAM]
MOUNT = "/etc/shoal/user"


def queue_user(kind: str = "scram-sha-512", cluster: str = "main", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "shoal.dev/v1beta1",
        "kind": "QueueUser",
        "metadata": {"name": "ann", "namespace": "n", "uid": "u1", "resourceVersion": "1"},
        "spec": {"cluster": cluster, "authentication": {"type": kind}},
        "status": status,
    }


def ready(status: str = "True", message: str = "") -> dict[str, Any]:
    condition = {"type": "Ready", "status": status, "reason": "R", "message": message}
    return {"conditions": [condition], "secret": "ann"}


def found(*listeners: Any, user: dict[str, Any] | None = None, name: str = "ann") -> PodLogin:
    store = Store()
    if user is not None:
        store.put(user)
    cluster = queue_cluster(*listeners, stateful_set={"metadata": {}})
    return resolve_login(store, cluster, name)


def port(one: PodLogin) -> int:
    return int(one.servers.rpartition(":")[2])


@pytest.mark.parametrize(
    ("kind", "listener"), [("tls", MTLS), ("tls-external", MTLS), ("scram-sha-512", SCRAM)]
)
def test_consumers_use_the_listener_of_their_user(kind: str, listener: dict[str, Any]) -> None:
    one = found(PLAIN, *SECURE, user=queue_user(kind, **ready()))
    assert (port(one), one.secret, one.problem, one.warning) == (
        listener["port"],
        "ann",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("user", "reason", "words"),
    [
        (None, "UserNotFound", "does not exist in this namespace"),
        (queue_user(cluster="other", **ready()), "UserOfOtherCluster", "'other'"),
        (queue_user(), "UserNotReady", "has not made its Secret yet"),
        (
            queue_user(**{**ready("False", "No listener."), "secret": ""}),
            "UserNotReady",
            "No listener.",
        ),
    ],
)
def test_pods_wait_for_a_user_without_a_secret(
    user: dict[str, Any] | None, reason: str, words: str
) -> None:
    one = found(*SECURE, user=user)
    assert one.problem is not None
    assert (one.problem.reason, one.problem.ready, one.secret) == (reason, False, "")
    assert words in one.problem.message


def test_pods_run_on_while_a_user_with_a_secret_is_not_ready() -> None:
    one = found(*SECURE, user=queue_user(**ready("False", "The brokers refused the user.")))
    assert one.secret == "ann"
    assert one.problem is not None
    assert "refused the user" in one.problem.message


@pytest.mark.parametrize("listener", [PLAIN, TLS])
def test_without_a_user_consumers_use_a_listener_without_logins(listener: dict[str, Any]) -> None:
    one = found(*SECURE, listener, name="")
    assert (port(one), one.secret, one.problem) == (listener["port"], "", None)
    # Others log in, so requests need permissions.
    assert one.warning is not None
    assert one.warning[0] == "NoUser"
    assert "User:ANONYMOUS" in one.warning[1]
    assert found(listener, name="").warning is None


def test_a_missing_user_is_a_warning_because_pods_may_have_credentials_of_their_own() -> None:
    one = found(*SECURE, name="")
    assert (port(one), one.problem) == (MTLS["port"], None)
    assert one.warning is not None
    assert one.warning[0] == "NoUser"


def mounts(container: dict[str, Any]) -> list[tuple[str, str]]:
    return [(m["mountPath"], m["name"]) for m in container.get("volumeMounts", [])]


def test_each_container_of_a_deployment_has_the_secret() -> None:
    own = {"name": "mine", "mountPath": MOUNT}
    file = {"name": "SHOAL_COMMAND_CONFIG", "value": "/mine"}
    pod: dict[str, Any] = {
        "volumes": [{"name": "mine"}],
        "containers": [{"name": "a"}, {"name": "b", "volumeMounts": [own], "env": [file]}],
    }
    given: Any = {
        "kind": "ShareConsumer",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"deployment": {"template": {"spec": pod}}},
    }
    made = deployment.build_manifest(
        given,
        PodContext("main", "b:1", "g", ["t"], "r/broker:1", "Always", user_secret="ann"),
        1,
    )
    spec = made["spec"]["template"]["spec"]
    assert spec["volumes"] == [
        {"name": "mine"},
        {"name": "shoal-user", "secret": {"secretName": "ann"}},
    ]
    first, second = spec["containers"]
    variable = {"name": "SHOAL_COMMAND_CONFIG", "value": f"{MOUNT}/client.properties"}
    assert mounts(first) == [(MOUNT, "shoal-user")]
    assert first["volumeMounts"][0]["readOnly"]
    assert variable in first["env"]
    # What the template says itself is kept.
    assert mounts(second) == [(MOUNT, "mine")]
    assert file in second["env"]
    assert variable not in second["env"]
    assert "env" not in pod["containers"][0], "the resource itself is not changed"


def test_driver_and_executors_have_the_secret() -> None:
    context = dataclasses.replace(CONTEXT, user_secret="ann")
    spec = spark.build_application(consumer(), context, suspend=False)["spec"]
    for role in ("driver", "executor"):
        pod = spec[role]["template"]["spec"]
        assert {"name": "shoal-user", "secret": {"secretName": "ann"}} in pod["volumes"]
        (container,) = pod["containers"]
        assert (MOUNT, "shoal-user") in mounts(container)
        env = {e["name"]: e["value"] for e in container["env"]}
        assert env["SHOAL_COMMAND_CONFIG"] == f"{MOUNT}/client.properties"
