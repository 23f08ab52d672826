"""Brokers restart only if needed, once for each reason, whatever happens meanwhile."""

from __future__ import annotations

from e2e.producing import producing
from e2e.release import NAMESPACE, OPERATOR, Release
from e2e.resources import Resources, queue_cluster, queue_topic, share_group
from support.runs.conditions import eventually


def broker(queue: Resources) -> str:
    return queue.uid("pod/main-broker-0")


def restarts(queue: Resources) -> list[str]:
    return queue.events("QueueCluster", "main", "BrokerRestart")


def wait_new_broker(queue: Resources, before: str) -> None:
    queue.wait_replaced("pod/main-broker-0", before)
    queue.wait("queuecluster/main")


def test_a_dynamic_setting_changes_without_a_restart(queue: Resources) -> None:
    before = broker(queue)
    queue.patch("queuecluster/main", {"spec": {"config": {"log.retention.ms": "7200000"}}})
    queue.wait("queuecluster/main")
    shown = queue.shoal("configs", "describe", "broker", "0", "log.retention.ms")
    assert "7200000" in shown
    assert broker(queue) == before
    events = queue.events("QueueCluster", "main", "ConfigChanged")
    assert any("log.retention.ms" in event for event in events)
    queue.patch("queuecluster/main", {"spec": {"config": {"log.retention.ms": None}}})
    queue.wait("queuecluster/main")
    assert "7200000" not in queue.shoal("configs", "describe", "broker", "0", "log.retention.ms")


def test_a_static_setting_rolls_without_a_failed_produce(queue: Resources) -> None:
    queue.apply(queue_topic(), share_group())
    queue.wait("queuetopic/jobs", "sharegroup/workers")
    before = broker(queue)
    with producing(queue) as counts:
        queue.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "3"}}})
        wait_new_broker(queue, before)
    sent, failed = counts
    assert failed == 0
    assert sent > 50
    queue.wait_status("sharegroup/workers", lag=sent)
    assert restarts(queue) == ["main-broker-0: a config that needs a restart has changed."]


def test_a_paused_cluster_is_left_alone(queue: Resources) -> None:
    before, events = broker(queue), len(restarts(queue))
    queue.patch("queuecluster/main", {"spec": {"paused": True, "config": {"num.partitions": "4"}}})
    queue.wait_reason("queuecluster/main", "Paused")
    assert broker(queue) == before
    queue.patch("queuecluster/main", {"spec": {"paused": False}})
    wait_new_broker(queue, before)
    assert len(restarts(queue)) == events + 1


def test_a_bad_setting_is_named_and_mended_without_a_restart(queue: Resources) -> None:
    good = {"num.partitions": "4"}
    queue.patch("queuecluster/main", {"spec": {"config": good}})
    queue.wait("queuecluster/main", timeout_s=90)
    before = broker(queue)
    for bad in ({"num.partitions": "many"}, {"num.partitons": "3"}):
        queue.patch("queuecluster/main", {"spec": {"config": bad}})
        said = queue.wait_reason("queuecluster/main", "ConfigRefused", timeout_s=60)
        assert "num.partitions" in said
        queue.patch("queuecluster/main", {"spec": {"config": {**dict.fromkeys(bad), **good}}})
        queue.wait("queuecluster/main", timeout_s=90)
        assert broker(queue) == before


def test_the_operator_killed_in_a_roll_repeats_nothing(queue: Resources, release: Release) -> None:
    before, events = broker(queue), len(restarts(queue))
    queue.patch("queuecluster/main", {"spec": {"config": {"num.partitions": "5"}}})
    eventually(lambda: len(restarts(queue)) > events, timeout_s=30)
    release.kill(release.leader())
    wait_new_broker(queue, before)
    after = broker(queue)
    release.wait_leader()
    queue.apply(queue_topic("after-the-kill"))
    queue.wait("queuetopic/after-the-kill", "queuecluster/main", timeout_s=90)
    assert broker(queue) == after
    assert len(restarts(queue)) == events + 1


def test_of_two_operators_one_acts(queue: Resources, release: Release) -> None:
    release.install(replicas=2)
    try:
        first = release.wait_leader()
        before = broker(queue)
        release.kill(first)
        second = release.wait_leader(other_than=first)
        assert second != first
        queue.apply(queue_topic("by-the-second"))
        queue.wait("queuetopic/by-the-second")
        assert broker(queue) == before
    finally:
        release.install()


def test_an_upgrade_of_the_chart_leaves_brokers_alone(queue: Resources, release: Release) -> None:
    before, operators = broker(queue), set(release.pods())
    release.install(podAnnotations={"upgraded": "yes"})
    try:
        rollout = ("rollout", "status", OPERATOR, f"--namespace={NAMESPACE}", "--timeout=60s")
        queue.cluster.kubectl(*rollout)
        eventually(lambda: not operators & set(release.pods()), timeout_s=60)
        release.wait_leader()
        queue.apply(queue_topic("after-the-upgrade"))
        queue.wait("queuetopic/after-the-upgrade", "queuecluster/main")
        assert broker(queue) == before
    finally:
        release.install()


def test_variables_of_the_pod_template_are_the_brokers_settings(queue: Resources) -> None:
    def template(name: str, value: str) -> dict[str, object]:
        return {"pod": {"env": [{"name": name, "value": value}]}}

    own = template("SHOAL_LISTENERS", "PLAINTEXT://:1")
    assert "the operator sets this variable" in queue.refusal(queue_cluster(template=own))
    before = broker(queue)
    seven = {"template": template("SHOAL_NUM_PARTITIONS", "7")}
    queue.patch("queuecluster/main", {"spec": {**seven, "config": {"num.partitions": "5"}}})
    said = queue.wait_reason("queuecluster/main", "ConfigTwice")
    assert "SHOAL_NUM_PARTITIONS" in said
    assert "num.partitions" in said
    assert broker(queue) == before
    queue.patch("queuecluster/main", {"spec": {"config": {"num.partitions": None}}})
    wait_new_broker(queue, before)
    assert "7" in queue.shoal("configs", "describe", "broker", "0", "num.partitions")


def test_an_annotation_of_a_service_rolls_nothing(queue: Resources) -> None:
    before = broker(queue)
    over = {"template": {"service": {"annotations": {"a": "b"}}}}
    queue.patch("queuecluster/main", {"spec": over})
    queue.wait("queuecluster/main")
    eventually(lambda: queue.get("service/main-bootstrap")["metadata"]["annotations"], timeout_s=20)
    assert broker(queue) == before


READ_LEVEL = """
import asyncio
from shoal.client.client import Client
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.settings import Settings

async def main():
    own = ConfigResource(ConfigResourceType.BROKER_LOGGER, "0")
    async with Client(Settings.from_environment()) as client:
        found = await client.admin.configs.describe([own], keys=["shoal.server.audit"])
        print(found[own]["shoal.server.audit"].value)

asyncio.run(main())
"""


def test_a_log_level_changes_without_a_restart_and_outlives_one(queue: Resources) -> None:
    def has(level: str) -> bool:
        run = ("exec", "main-broker-0", "--", "python3", "-c", READ_LEVEL)
        found = queue.kubectl(*run, check=False)
        return found.stdout.strip() == level

    queue.apply(queue_cluster())
    queue.wait("queuecluster/main")
    before = queue.uid("pod/main-broker-0")
    queue.apply(queue_cluster(logging={"loggers": {"shoal.server.audit": "DEBUG"}}))
    eventually(lambda: has("DEBUG"), timeout_s=30)
    assert queue.uid("pod/main-broker-0") == before
    queue.kubectl("delete", "pod/main-broker-0", "--wait=false")
    queue.wait_replaced("pod/main-broker-0", before)
    eventually(lambda: has("DEBUG"), timeout_s=60)
    queue.apply(queue_cluster())
    eventually(lambda: has("INFO"), timeout_s=30)
    queue.wait("queuecluster/main")
