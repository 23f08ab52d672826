"""A resource at which the operator fails leaves its neighbours alone.

For each kind and each way to fail, the bad resource gets a condition and an event, and good ones
that are older and younger are Ready after the same pass. A real broker, and an API server in
memory.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import NAME_LENGTH_MAX, STAMP, ApiServer, CrashPoint, resource
from kube.users.test_revoked_users import World as UserWorld
from kube.users.test_revoked_users import user
from shoal.client.admin.configs import ConfigResource, ConfigResourceType, ConfigSource
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode
from shoal.schedules import specs as schedule_specs
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster import decision
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.consumers import reconciler as consumers_module
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.kube.conditions import get_ready_reason
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import names as model_names
from shoal_operator.model import security
from shoal_operator.model import users as user_model
from shoal_operator.queues import groups as groups_module
from shoal_operator.queues import redrive_status as redrive_model
from shoal_operator.queues import topics as topics_module
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler
from shoal_operator.queues.queue_schedules import QueueScheduleReconciler
from shoal_operator.queues.redrives import RedriveReconciler
from shoal_operator.queues.topics import QueueTopicReconciler
from shoal_operator.rebalance import status as rebalance_model
from shoal_operator.rebalance.reconciler import QueueRebalanceReconciler
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

Manifest = dict[str, Any]
GROUP = {
    "startOffset": "Earliest",
    "maxRecordLocks": 2000,
    "renewal": True,
    "lockDuration": "30s",
    "deliveryLimit": 5,
    "isolation": "ReadUncommitted",
}
POD = {"template": {"spec": {"containers": [{"name": "one"}]}}}
META = {"name": "locked", "namespace": "n"}
TOPIC = {"type": "topic", "name": "t", "patternType": "literal"}
DENIED = KubeError(403, "admission webhook denied the request")
# An admission policy for all subresources, or a rule that a later definition has and an older
# resource does not keep. Nothing can be said in the resource then.
OF_STATUS = KubeError(422, "metadata.name: Too long")
#: Errors by the way to fail, and the reason of the condition that follows.
WAYS: dict[str, tuple[Exception, str]] = {
    "denied": (DENIED, "ApplyFailed"),
    "quota": (KubeError(403, "exceeded quota: sq"), "ApplyFailed"),
    "invalid": (KubeError(422, "metadata.labels: Invalid value"), "ApplyFailed"),
    "exception": (ValueError("int too large to convert"), "Defect"),
    "brokers": (KafkaError(ErrorCode.invalid_request, "no"), "RequestRefused"),
    "status": (OF_STATUS, ""),
}
#: The object that the API server refuses, and the function that fails, for a resource `b-bad`. A
#: Redrive and a QueueSchedule have no objects.
REFUSED = {
    "QueueTopic": "QueueTopic",
    "ShareGroup": "ShareGroup",
    "QueueUser": "Secret",
    "ShareConsumer": "Deployment",
    "QueueRebalance": "QueueRebalance",
}
FAILING: dict[str, tuple[Any, str]] = {
    "QueueTopic": (topics_module, "decide"),
    "ShareGroup": (groups_module, "decide_config"),
    "QueueUser": (user_model, "build_acls"),
    "ShareConsumer": (consumers_module, "is_scaled"),
    "QueueRebalance": (rebalance_model, "is_complete"),
    "Redrive": (redrive_model, "is_complete"),
    "QueueSchedule": (schedule_specs, "parse_schedule"),
}
CANARIES = [
    (kind, way)
    for kind in FAILING
    for way, (error, _) in WAYS.items()
    if kind in REFUSED or way == "status" or not isinstance(error, KubeError)
]
NAMES = ("a-good", "b-bad", "c-good")
#: When the QueueSchedules were created.
BEGIN_MS = int(datetime.datetime.fromisoformat(STAMP).timestamp() * 1000)


class World:
    """Resources of one kind, and what the operator does with them."""

    def __init__(self, broker: ShoalProcess) -> None:
        self.kube, self._broker = ApiServer(CrashPoint()), broker
        self.kube.add(resource("QueueCluster", "main", listeners=[{"name": "p", "port": 9092}]))

    def add(self, kind: str, name: str, prefix: str) -> None:
        """Add a resource that a pass makes Ready, if nothing fails."""
        spec: Manifest = {"cluster": "main"}
        if kind == "QueueTopic":
            spec |= {"topicName": f"{prefix}-{name}", "partitions": 1, "deletionPolicy": "Delete"}
        elif kind == "ShareGroup":
            spec |= GROUP | {"groupId": f"{prefix}-{name}", "deletionPolicy": "Delete"}
        elif kind == "ShareConsumer":
            self.kube.add(resource("ShareGroup", name, **spec, **GROUP, groupId=f"{prefix}-{name}"))
            spec = {"shareGroup": name, "replicas": 0, "deployment": POD}
        made: Any = resource(kind, name, **spec)
        if kind == "QueueRebalance":
            made["spec"]["mode"] = "Full"
            made["metadata"]["finalizers"] = ["shoal.dev/delete"]
            nothing = dict.fromkeys(("partitions", "replicas", "bytes", "leaders"), 0)
            asked = {
                "request": rebalance_model.compute_request_digest(made),
                "proposal": nothing | {"id": "p"},
            }
            made["status"] = {"completionTime": STAMP, **asked}
        elif kind == "Redrive":
            made["spec"] |= {"topic": "dlq.none", "id": "1"}
            ended = {"startTime": STAMP, "completionTime": STAMP}
            none: Any = {}
            made["status"] = redrive_model.build_fields(made, STAMP, 0, none) | ended
        elif kind == "QueueSchedule":
            self.add("QueueTopic", name, prefix)
            topic = f"{prefix}-{name}"
            made["spec"] |= {"topic": topic, "schedule": "0 3 * * *", "payload": {"inline": "a"}}
        self.kube.add(made)

    async def reconcile(self, kind: str) -> None:
        """Run one pass of a new operator over all resources of a kind."""
        brokers, store = Brokers(self._broker.bootstrap), self.kube.store()
        place = (self.kube, store, brokers, "n", "main")
        monitor = GroupMonitor(*place)
        groups = ShareGroupReconciler(*place, monitor=monitor)
        settings = ChartSettings("b:1", "s:1", "role", "http")
        every: dict[str, Any] = {
            "QueueTopic": QueueTopicReconciler(*place),
            "ShareGroup": groups,
            "ShareConsumer": ShareConsumerReconciler(*place[:2], monitor, "n", "main", settings),
            "QueueRebalance": QueueRebalanceReconciler(*place),
            "Redrive": RedriveReconciler(*place),
            "QueueSchedule": QueueScheduleReconciler(*place, epoch_ms=lambda: BEGIN_MS),
        }
        try:
            if kind == "ShareConsumer":
                await groups.reconcile(groups.list_names())
            elif kind == "QueueSchedule":
                await every["QueueTopic"].reconcile(every["QueueTopic"].list_names())
            await every[kind].reconcile(every[kind].list_names())
        finally:
            await brokers.close()

    def ready(self, kind: str, name: str) -> tuple[str, str]:
        return ready(self.kube, kind, name)

    def message(self, kind: str, name: str) -> str:
        conditions = self.kube.find(kind, name)["status"]["conditions"]
        return next(str(c["message"]) for c in conditions if c["type"] == "Ready")

    def configs(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        """Return the configs of a topic or group itself, by name."""
        wanted = ConfigResource(kind, name)
        own = {ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.GROUP_CONFIG}
        with SyncClient(self._broker.bootstrap) as client:
            found = client.run(client.admin.configs.describe([wanted]))[wanted]
        assert not isinstance(found, KafkaError)
        return {entry.name: entry.value for entry in found.values() if entry.source in own}


def ready(kube: ApiServer, kind: str, name: str) -> tuple[str, str]:
    """Return status and reason of Ready; the status must be of the present generation."""
    found = kube.find(kind, name)
    (said,) = (c for c in found["status"]["conditions"] if c["type"] == "Ready")
    assert said["observedGeneration"] == found["metadata"]["generation"], (kind, name, said)
    return said["status"], said["reason"]


def warnings(kube: ApiServer, name: str) -> list[str]:
    """Return the reasons of the warning events on a resource."""
    events = kube.all("Event")
    return [
        e["reason"]
        for e in events
        if e["involvedObject"]["name"] == name and e["type"] == "Warning"
    ]


def fail_at(monkeypatch: pytest.MonkeyPatch, kube: ApiServer, kind: str, way: str) -> None:
    """Let the operator fail at `b-bad` in this way."""
    error, _ = WAYS[way]
    if isinstance(error, KubeError):
        kube.refused[f"{kind}/status" if way == "status" else REFUSED[kind], "b-bad"] = error
        return
    module, name = FAILING[kind]
    function: Callable[..., Any] = getattr(module, name)

    def failing(one: Manifest, *arguments: Any) -> Any:
        # `is_scaled` has only the spec.
        if one.get("metadata", {}).get("name") == "b-bad" or one.get("shareGroup") == "b-bad":
            raise error
        return function(one, *arguments)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize(("kind", "way"), [c for c in CANARIES if c[0] != "QueueUser"])
def test_neighbours_of_a_bad_resource_are_ready(
    shared_broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    world, (_, reason) = World(shared_broker), WAYS[way]
    for name in NAMES:
        world.add(kind, name, f"{kind}-{way}")
    fail_at(monkeypatch, world.kube, kind, way)
    if way == "status":
        with pytest.raises(KubeError, match="Too long"):
            asyncio.run(world.reconcile(kind))
        assert [world.ready(kind, name)[0] for name in NAMES[::2]] == ["True", "True"]
        assert "StatusRefused" in warnings(world.kube, "b-bad")
        return
    asyncio.run(world.reconcile(kind))
    assert [world.ready(kind, name)[0] for name in NAMES] == ["True", "False", "True"]
    # Requests of a rebalance may succeed later.
    of_brokers = kind == "QueueRebalance" and way == "brokers"
    assert world.ready(kind, "b-bad")[1] == ("RebalanceFailed" if of_brokers else reason)
    assert warnings(world.kube, "b-bad")


@pytest.mark.parametrize("way", [way for kind, way in CANARIES if kind == "QueueUser"])
def test_neighbours_of_a_bad_user_are_ready(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    world, (_, reason) = UserWorld(), WAYS[way]
    world.add(*map(user, NAMES))
    fail_at(monkeypatch, world.api, "QueueUser", way)
    if way == "status":
        with pytest.raises(KubeError, match="Too long"):
            world.reconcile()
        assert [ready(world.api, "QueueUser", n)[0] for n in NAMES[::2]] == ["True", "True"]
        assert warnings(world.api, "b-bad") == ["StatusRefused"]
        return
    world.reconcile()
    assert [ready(world.api, "QueueUser", name)[0] for name in NAMES] == ["True", "False", "True"]
    assert ready(world.api, "QueueUser", "b-bad")[1] == reason
    assert warnings(world.api, "b-bad") == [reason]


@pytest.mark.parametrize("cluster_is", ["there", "away", "hibernated"])
def test_neighbours_of_a_resource_that_is_not_deleted_hear_of_their_state(
    shared_broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch, cluster_is: str
) -> None:
    """Neither its topic can be deleted, nor can its status be written."""
    world = World(shared_broker)
    for name in NAMES:
        world.add("QueueTopic", name, f"stays-{cluster_is}")
    asyncio.run(world.reconcile("QueueTopic"))
    world.kube.find("QueueTopic", "b-bad")["metadata"]["deletionTimestamp"] = STAMP
    for name in NAMES[::2]:
        world.kube.find("QueueTopic", name)["status"]["conditions"] = []

    async def delete(_: Any, topics: list[str]) -> dict[str, KafkaError]:
        return {topic: KafkaError(ErrorCode.policy_violation, "no") for topic in topics}

    monkeypatch.setattr(QueueTopicReconciler, "delete", delete)
    fail_at(monkeypatch, world.kube, "QueueTopic", "status")
    if cluster_is == "away":
        # The finalizer goes then, if the API server lets it.
        world.kube.refused["QueueTopic", "b-bad"] = DENIED
        del world.kube.objects["QueueCluster", "main"]
    elif cluster_is == "hibernated":
        world.kube.find("QueueCluster", "main")["spec"]["hibernated"] = True
    with pytest.raises(KubeError, match="Too long"):
        asyncio.run(world.reconcile("QueueTopic"))
    reason = {"away": "ClusterNotFound", "hibernated": "ClusterHibernated"}
    wanted = reason.get(cluster_is, "Reconciled")
    assert [world.ready("QueueTopic", name)[1] for name in NAMES[::2]] == [wanted, wanted]


def test_a_resource_with_the_longest_name_says_what_is_wrong(shared_broker: ShoalProcess) -> None:
    """An event has the name of its resource with an addition; without it, the status would not be
    written either."""
    world, name = World(shared_broker), f"{'a' * 235}-{'b' * 17}"
    assert len(name) == NAME_LENGTH_MAX
    world.add("QueueTopic", name, "long")
    world.kube.find("QueueTopic", name)["spec"] |= {
        "topicName": "long-name",
        "config": {"retention.ms": "soon"},
    }
    asyncio.run(world.reconcile("QueueTopic"))
    assert world.ready("QueueTopic", name) == ("False", "InvalidConfig")
    assert warnings(world.kube, name) == ["InvalidConfig"]


def test_consumers_hear_of_a_group_beside_one_whose_status_is_refused(
    shared_broker: ShoalProcess,
) -> None:
    """Those that wait for their group would wait for the next pass through all of them."""
    world, heard = World(shared_broker), set[str]()
    for name in NAMES:
        world.add("ShareGroup", name, "heard")
    world.kube.refused["ShareGroup/status", "b-bad"] = OF_STATUS

    async def reconcile() -> None:
        brokers = Brokers(shared_broker.bootstrap)
        place = (world.kube, world.kube.store(), brokers, "n", "main")
        monitor = GroupMonitor(*place)
        monitor.subscribe(heard.update)
        try:
            await ShareGroupReconciler(*place, monitor=monitor).reconcile(list(NAMES))
        finally:
            await brokers.close()

    with pytest.raises(KubeError, match="Too long"):
        asyncio.run(reconcile())
    assert heard.issuperset(NAMES[::2])


def test_a_status_that_is_refused_hides_no_lag_of_another_group(
    shared_broker: ShoalProcess,
) -> None:
    world = World(shared_broker)
    for name in NAMES:
        world.add("ShareGroup", name, "lag")
    asyncio.run(world.reconcile("ShareGroup"))
    for name in NAMES:
        world.kube.find("ShareGroup", name)["status"].pop("state", None)
    world.kube.refused["ShareGroup/status", "b-bad"] = OF_STATUS

    async def watch() -> None:
        brokers = Brokers(shared_broker.bootstrap)
        try:
            await GroupMonitor(world.kube, world.kube.store(), brokers, "n", "main").watch([])
        finally:
            await brokers.close()

    with pytest.raises(KubeError, match="Too long"):
        asyncio.run(watch())
    states = ["state" in world.kube.find("ShareGroup", name)["status"] for name in NAMES]
    assert states == [True, False, True]


def test_a_permission_that_is_taken_away_ends_although_the_secret_is_refused() -> None:
    world = UserWorld()
    world.add(user("b-bad"))
    world.api.refused["Secret", "b-bad"] = KubeError(403, "exceeded quota: sq")
    wanted: list[Any] = []

    async def change_acls(*, add: Any, remove: Any) -> dict[str, Any]:
        wanted.append((set(add), set(remove)))
        return {}

    async def acls() -> list[Any]:
        return [entry]

    (entry,) = user_model.build_acls(
        user("b-bad")
        | {"spec": user("b-bad")["spec"] | {"acls": [{"resource": TOPIC, "operations": ["read"]}]}}
    )
    users: Any = world.users
    users.list_acls, users.change_acls = acls, change_acls
    world.reconcile()
    assert wanted == [(set(), {entry})]


@pytest.mark.parametrize(
    ("code", "stalled"), [(ErrorCode.invalid_request, True), (ErrorCode.request_timed_out, False)]
)
def test_a_user_that_the_brokers_refuse_is_stalled_unless_waiting_helps(
    code: ErrorCode, stalled: bool
) -> None:
    world = UserWorld()
    world.add(user("b-bad"))

    async def change_acls(**_: Any) -> dict[str, KafkaError]:
        return {"User:CN=b-bad": KafkaError(code, "no")}

    async def acls() -> list[Any]:
        return []

    users: Any = world.users
    users.list_acls, users.change_acls = acls, change_acls
    world.reconcile()
    assert ready(world.api, "QueueUser", "b-bad") == ("False", "UserRefused")
    found = world.api.find("QueueUser", "b-bad")["status"]["conditions"]
    assert ("Stalled" in [one["type"] for one in found]) is stalled
    assert warnings(world.api, "b-bad") == ["UserRefused"] * stalled


def test_a_far_start_is_the_first_record(shared_broker: ShoalProcess) -> None:
    """A duration that Kafka's protocol cannot carry, which the API server refuses today, stopped
    all groups."""
    world = World(shared_broker)
    for name in NAMES:
        world.add("QueueTopic", name, "far")
        world.add("ShareGroup", name, "far")
        world.kube.find("ShareGroup", name)["spec"]["topics"] = [f"far-{name}"]
    bad = world.kube.find("ShareGroup", "b-bad")["spec"]
    bad |= {"startOffset": "ByDuration", "startOffsetDuration": "99999999999999999h"}
    asyncio.run(world.reconcile("QueueTopic"))
    asyncio.run(world.reconcile("ShareGroup"))
    assert [world.ready("ShareGroup", n)[0] for n in NAMES] == ["True", "True", "True"]


def test_a_refused_field_of_a_group_keeps_no_other_from_taking_effect(
    shared_broker: ShoalProcess,
) -> None:
    """Without its dead letters, records would be lost, so no consumer starts either."""
    world = World(shared_broker)
    world.add("ShareConsumer", "locked", "refused")
    world.kube.find("ShareConsumer", "locked")["spec"]["replicas"] = 3
    group = world.kube.find("ShareGroup", "locked")
    letters = {"topic": "dlq.refused", "copyRecords": True}
    group["spec"] |= {"lockDuration": "3s", "deliveryLimit": 3, "deadLetters": letters}
    asyncio.run(world.reconcile("ShareConsumer"))
    assert world.ready("ShareGroup", "locked") == ("False", "ConfigRefused")
    said = world.message("ShareGroup", "locked")
    assert "spec.lockDuration: " in said
    assert "(15000)" in said
    assert "deliveryLimit" not in said
    # Nobody has made the topic of its dead letters.
    assert sorted(warnings(world.kube, "locked")) == ["ConfigRefused", "DeadLetterTopicMissing"]
    configs = world.configs(ConfigResourceType.GROUP, "refused-locked")
    assert configs["errors.deadletterqueue.topic.name"] == "dlq.refused"
    assert configs["share.delivery.count.limit"] == "3"
    assert "share.record.lock.duration.ms" not in configs

    def replicas() -> int:
        return int(world.kube.find("Deployment", "locked")["spec"]["replicas"])

    assert world.ready("ShareConsumer", "locked") == ("False", "ShareGroupNotReady")
    assert "spec.lockDuration" in world.message("ShareConsumer", "locked")
    assert replicas() == 0

    def change(lock: str, wanted: int) -> None:
        world.kube.add({**group, "spec": group["spec"] | {"lockDuration": lock}, "metadata": META})
        consumer = world.kube.find("ShareConsumer", "locked")
        world.kube.add({**consumer, "spec": consumer["spec"] | {"replicas": wanted}})
        asyncio.run(world.reconcile("ShareConsumer"))

    change("30s", 3)
    assert world.ready("ShareGroup", "locked")[0] == "True"
    assert replicas() == 3
    # A later mistake: those that run continue, and no more start.
    change("2s", 5)
    assert world.ready("ShareConsumer", "locked") == ("False", "ShareGroupNotReady")
    assert replicas() == 3
    assert world.configs(ConfigResourceType.GROUP, "refused-locked")[
        "share.record.lock.duration.ms"
    ]


def test_a_refused_field_of_a_topic_keeps_no_other_from_taking_effect(
    shared_broker: ShoalProcess,
) -> None:
    world = World(shared_broker)
    world.add("QueueTopic", "shrinks", "fields")
    world.kube.find("QueueTopic", "shrinks")["spec"]["partitions"] = 2
    asyncio.run(world.reconcile("QueueTopic"))

    def change(partitions: int, **config: str) -> dict[str, str | None]:
        spec = world.kube.find("QueueTopic", "shrinks")["spec"]
        named = {name.replace("_", "."): value for name, value in config.items()}
        world.kube.add(
            resource("QueueTopic", "shrinks", **spec | {"partitions": partitions, "config": named})
        )
        asyncio.run(world.reconcile("QueueTopic"))
        return world.configs(ConfigResourceType.TOPIC, "fields-shrinks")

    assert change(1, retention_ms="5000")["retention.ms"] == "5000"
    assert world.ready("QueueTopic", "shrinks") == ("False", "PartitionsNeverShrink")
    # Drift is repaired, and what the spec no longer has is taken away.
    assert change(1, segment_ms="60000") == {"segment.ms": "60000"}
    found = change(2, retention_ms="7000", cleanup_policy="shred", segment_ms="60000")
    assert found == {"retention.ms": "7000", "segment.ms": "60000"}
    assert world.ready("QueueTopic", "shrinks") == ("False", "InvalidConfig")
    said = world.message("QueueTopic", "shrinks")
    assert "cleanup.policy: " in said
    assert "retention.ms" not in said
    assert "InvalidConfig" in warnings(world.kube, "shrinks")
    change(2, retention_ms="7000", clean_policy="delete")
    said = world.message("QueueTopic", "shrinks")
    assert "Unknown topic config name: clean.policy" in said
    assert "Did you mean cleanup.policy? " in said
    assert change(2, retention_ms="7000") == {"retention.ms": "7000"}
    assert world.ready("QueueTopic", "shrinks")[0] == "True"


def make_damaged() -> Manifest:
    """Return the StatefulSet of the QueueCluster `b-bad`, with a note of another release."""
    labels = model_names.build_labels("b-bad")
    notes = {security.INTERNAL_TLS: "later"}
    meta = {"name": "b-bad-broker", "namespace": "n", "labels": labels, "annotations": notes}
    spec = {"replicas": 0, "template": {"metadata": {"labels": {}}}}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec}


def test_a_cluster_that_cannot_be_understood_keeps_no_other_from_its_loops() -> None:
    """An operator that begins to act reads what all clusters have."""
    kube = ApiServer(CrashPoint())
    kube.controllers_paused = True
    kube.add(make_damaged())
    spec = {"replicas": 1, "storage": {"size": "1Gi"}, "metrics": {"port": 9404}}
    for name in NAMES:
        listeners = [{"name": "p", "port": 9092}]
        kube.add(resource("QueueCluster", name, listeners=listeners, **spec))
    # What the definition does not admit, and an API server may have nevertheless.
    kube.add(resource("QueueTopic", "b-bad"))
    kube.add(resource("QueueTopic", "c-good", cluster="c-good"))

    def list_reasons() -> list[str]:
        return [get_ready_reason(kube.find("QueueCluster", name)) for name in NAMES]

    async def lead() -> None:
        operator = Operator(kube, ChartSettings("b:1", "s:1", "role", "u"), ("n",))
        operator.set_leading(True)
        try:
            await eventually_async(lambda: list_reasons() == ["Starting", "Defect", "Starting"])
        finally:
            await operator.close()

    asyncio.run(lead())


def test_a_defect_is_a_condition_of_a_cluster(
    shared_broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters have loops of their own, so a failing one has no neighbours."""
    world = World(shared_broker)
    place = (world.kube, world.kube.store(), Brokers(shared_broker.bootstrap), "n", "main")
    clusters = QueueClusterReconciler(*place, "i:1", on_reachable=lambda: None)

    def failing(*_: Any, **__: Any) -> None:
        raise ValueError("int too large to convert")

    monkeypatch.setattr(decision, "find_refusal", failing)
    with pytest.raises(ValueError, match="int too large"):
        asyncio.run(clusters.reconcile(["main"]))
    assert world.ready("QueueCluster", "main") == ("False", "Defect")
    assert warnings(world.kube, "main") == ["Defect"]
