"""The operator's decisions on topics, groups, statuses and manifests, without a cluster."""

import asyncio
import copy
import datetime
import re
from typing import Any

import crd_reference
import pytest
import yaml
from kube import structural
from kube.structural import CRDS
from shoal.client.errors import KafkaError
from shoal.metadata.config_keys import ConfigScope
from shoal.metadata.configs import BROKER
from shoal.metadata.configs import GROUP as GROUP_KEYS
from shoal.protocol.errors import ErrorCode
from shoal.server.config import from_environment
from shoal_operator.brokers.batch_reconciler import find_owners
from shoal_operator.brokers.broker_states import (
    EARLIEST,
    LATEST,
    GroupState,
    SharePartitionState,
    StartSpec,
    TopicState,
)
from shoal_operator.brokers.group_metrics import parse_group_metrics
from shoal_operator.cluster.decision import find_refusal
from shoal_operator.cluster.maintenance_windows import find_next_begin, is_open
from shoal_operator.kube import conditions
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.drift import has_drifted
from shoal_operator.kube.store import Store
from shoal_operator.model import broker_config, cluster, quantities
from shoal_operator.model.consumers import deployment
from shoal_operator.model.consumers.consumer_pod import PodContext
from shoal_operator.model.groups import build_config as group_config
from shoal_operator.model.groups import build_dead_letter_topic
from shoal_operator.queues.group_offsets import choose_first_offsets, find_pending_reset, resume
from shoal_operator.queues.groups import alter_configs, decide_config
from shoal_operator.queues.topics import TopicActions, decide, get_topic_name


def topic(name="jobs", created="2026-01-01T00:00:00Z", status=None, **spec):
    return {
        "kind": "QueueTopic",
        "metadata": {"name": name, "namespace": "n", "creationTimestamp": created},
        "spec": {"cluster": "main", "partitions": 2, "config": {}, **spec},
        "status": status or {},
    }


def have(partitions=2, replicas=1, **config):
    return TopicState("id", partitions, replicas, config)


def test_a_topic_is_created_grown_and_configured() -> None:
    assert decide(topic(), None) == TopicActions(create=True)
    assert decide(topic(partitions=4), have()).partitions == 4
    wanted = topic(config={"retention.ms": "5"})
    assert decide(wanted, have(**{"retention.ms": "7"})).config == {"retention.ms": "5"}
    assert not decide(wanted, have(**{"retention.ms": "5"}))


def test_only_settings_that_the_resource_put_there_are_taken_away() -> None:
    resource = topic(status={"appliedConfig": ["retention.ms"]})
    state = have(**{"retention.ms": "5", "segment.ms": "9"})
    assert decide(resource, state).config == {"retention.ms": None}


def test_partitions_are_never_taken_away() -> None:
    refused = decide(topic(partitions=1), have(partitions=3)).refusal
    assert refused is not None
    assert refused.reason == "PartitionsNeverShrink"
    assert "3 or more" in refused.message


def test_an_unmanaged_topic_is_left_alone() -> None:
    resource = topic(managed=False, config={"retention.ms": "5"}, partitions=9)
    assert not decide(resource, have())
    refused = decide(resource, None).refusal
    assert refused is not None
    assert refused.reason == "TopicNotFound"


def test_the_older_claim_wins_and_a_leaving_one_counts_for_nothing() -> None:
    old = topic("a", topicName="t")
    new = topic("b", "2026-01-02T00:00:00Z", topicName="t")
    assert find_owners([new, old], get_topic_name)["t"] is old
    old["metadata"]["deletionTimestamp"] = "2026-01-03T00:00:00Z"
    assert find_owners([new, old], get_topic_name)["t"] is new


GROUP: Any = {
    "cluster": "main",
    "lockDuration": "1m30s",
    "deliveryLimit": 3,
    "maxRecordLocks": 500,
    "startOffset": "ByDuration",
    "startOffsetDuration": "1h",
    "isolation": "ReadCommitted",
    "renewal": False,
    "sessionTimeout": "",
    "heartbeatInterval": "5s",
}


def test_a_share_group_in_kafkas_words() -> None:
    resource: Any = {"metadata": {"name": "g"}, "spec": GROUP, "status": {"appliedConfig": ["x.y"]}}
    assert decide_config(resource, {"share.delivery.count.limit": "3", "x.y": "1"}) == {
        "share.record.lock.duration.ms": "90000",
        "share.partition.max.record.locks": "500",
        "share.auto.offset.reset": "by_duration:PT3600S",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
        "share.heartbeat.interval.ms": "5000",
        "x.y": None,
    }


def test_own_group_configs_are_set_only_if_the_spec_has_them() -> None:
    plain = set(group_config(GROUP))
    letters = {"topic": "dlq.t", "copyRecords": True, "dropAfter": "1h", "floodPerMinute": 9}
    spec = GROUP | {
        "ordering": "key",
        "pauseDelivery": True,
        "deadLetters": letters,
        "keyOrder": {"batch": 5, "deadLetter": "Hold", "maxHeld": 7},
        "delay": {"max": "2h", "maxRecords": 9},
        "priority": {"header": "p", "ageing": "5s"},
        "redeliveryBackoff": {
            "initial": "1s",
            "max": "1m",
            "multiplier": "1.5",
            "jitterPercent": 10,
        },
    }
    made = {k: v for k, v in group_config(spec).items() if k not in plain}
    assert made == {
        "share.ordering": "key",
        "share.ordering.key.batch": "5",
        "share.ordering.key.dead.letter": "hold",
        "share.ordering.key.dead.letter.max.held": "7",
        "share.delay.max.ms": "7200000",
        "share.delay.max.records": "9",
        "share.priority.header": "p",
        "share.priority.ageing.ms": "5000",
        "share.delivery.paused": "true",
        "share.redelivery.backoff.ms": "1000",
        "share.redelivery.backoff.max.ms": "60000",
        "share.redelivery.backoff.multiplier": "1.5",
        "share.redelivery.backoff.jitter": "0.1",
        "errors.deadletterqueue.topic.name": "dlq.t",
        "errors.deadletterqueue.copy.record.enable": "true",
        "shoal.errors.deadletterqueue.drop.after.ms": "3600000",
        "shoal.errors.deadletterqueue.flood.per.minute": "9",
    }
    for name, value in made.items():
        if name != "share.ordering":
            GROUP_KEYS[name].parse(value)
    assert build_dead_letter_topic(spec) is None
    letters["create"] = {"partitions": 3, "retention": "24h"}
    assert build_dead_letter_topic(spec) == (
        "dlq.t",
        3,
        0,
        {"errors.deadletterqueue.group.enable": "true", "retention.ms": "86400000"},
    )


def test_numbers_of_a_queue_in_metrics() -> None:
    page = """
shoal_share_group_dead_letters_total{group="a"} 3
shoal_share_group_redriven_total{group="a"} 2
shoal_share_partition_archiving_records{group="a",topic="t",partition="0"} 1
shoal_share_partition_backing_off_records{group="a",topic="t",partition="0"} 4
shoal_share_partition_delayed_records{group="a",topic="t",partition="0"} 5
shoal_share_partition_held_by_key_records{group="a",topic="t",partition="0"} 6
shoal_share_partition_keys_held_by_dead_letters{group="a",topic="t",partition="0"} 7
shoal_share_partition_behind_dead_letters_records{group="a",topic="t",partition="0"} 9
shoal_share_partition_oldest_lock_age_seconds{group="a",topic="t",partition="0"} 8.6
shoal_share_partition_oldest_lock_age_seconds{group="a",topic="t",partition="1"} 1.0
shoal_share_group_held{group="a",why="topic-missing"} 1
shoal_share_group_held{group="b",why="flood"} 2
shoal_share_group_held{group="c",why="paused"} 1
shoal_share_group_held{group="d",why="held-keys"} 1
shoal_share_group_held{group="e",why="look-ahead"} 1
shoal_share_group_held{group="f",why="window-full"} 1
"""
    found = parse_group_metrics([page, page])
    assert found["a"].build_status() == {
        "delivery": "DeadLettersFail",
        "deadLettered": 6,
        "redriven": 4,
        "archiving": 2,
        "backingOff": 8,
        "delayed": 10,
        "heldByKey": 12,
        "keysHeldByDeadLetters": 14,
        "oldestLockSeconds": 8,
    }
    assert found["a"].behind_dead_letters == 18
    assert "topic-missing" in (found["a"].find_warning() or ("", ""))[1]
    assert (found["b"].delivery, (found["b"].find_warning() or ("",))[0]) == (
        "DeadLetterLimitReached",
        "DeadLetterLimitReached",
    )
    assert (found["c"].delivery, found["c"].find_warning()) == ("Paused", None)
    assert (found["d"].delivery, (found["d"].find_warning() or ("",))[0]) == (
        "KeysHeld",
        "KeysHeld",
    )
    assert (found["e"].delivery, found["e"].find_warning()) == ("LookAheadFull", None)
    assert (found["f"].delivery, found["f"].find_warning()) == ("Running", None)


def test_a_broker_without_key_order_gets_the_other_configs_and_a_condition() -> None:
    class Older:
        """Brokers without `share.ordering`."""

        def __init__(self) -> None:
            self.set: dict[str, dict[str, str]] = {}

        async def alter_group_configs(self, changes):
            text = "Unknown group config name: share.ordering"
            refused = {
                g: KafkaError(ErrorCode.invalid_config, text)
                for g, c in changes.items()
                if "share.ordering" in c
            }
            self.set |= {g: c for g, c in changes.items() if g not in refused}
            return refused

    brokers: Any = Older()
    changes = {"g": {"share.ordering": "key", "share.delivery.count.limit": "3"}}
    failures, warnings = asyncio.run(alter_configs(brokers, changes))
    assert not failures
    assert warnings["g"][0] == "OrderingUnsupported"
    assert brokers.set == {"g": {"share.delivery.count.limit": "3"}}


def test_a_reset_is_due_once() -> None:
    resource: Any = {"spec": {"reset": {"id": "r1", "to": "Earliest"}}, "status": {}}
    assert find_pending_reset(resource)
    resource["status"]["lastReset"] = {"id": "r1"}
    assert find_pending_reset(resource) is None
    resource["spec"]["reset"]["id"] = "r2"
    assert find_pending_reset(resource)


def test_a_reset_that_was_interrupted_is_made_unless_it_was_seen() -> None:
    reset: Any = {"id": "r1", "to": "Earliest"}
    other: Any = {"id": "r2", "to": "Earliest"}
    rows = [{"topic": "t", "partition": 0, "from": 6, "to": 0}]
    idle: Any = {"status": {}}
    pending: Any = {"status": {"pendingReset": {"id": "r1", "offsets": rows}}}
    assert resume(idle, reset, {("t", 0): 6}) is None
    assert resume(pending, other, {("t", 0): 6}) is None
    assert resume(pending, reset, {("t", 0): 6}) == rows
    assert resume(pending, reset, {("t", 0): 0}) == []
    # The group has progressed since: moving it back would repeat finished work.
    assert resume(pending, reset, {("t", 0): 4}) == []


def test_a_group_begins_at_the_offset_of_its_spec() -> None:
    sizes, empty = {"t": 2}, GroupState("g")
    latest: Any = {"startOffset": "Latest"}
    assert choose_first_offsets(latest, empty, sizes, 0) == {("t", 0): LATEST, ("t", 1): LATEST}
    back: Any = {"startOffset": "ByDuration", "startOffsetDuration": "1m"}
    assert choose_first_offsets(back, empty, {"t": 1}, 100_000) == {("t", 0): StartSpec(40_000)}


def test_a_group_without_a_start_begins_at_the_earliest_record() -> None:
    """What the API server fills in: the schema's default."""
    schema = structural.schemas()["shoal.dev/v1beta1", "ShareGroup"]
    default = schema["properties"]["spec"]["properties"]["startOffset"]["default"]
    spec: Any = {"startOffset": default}
    assert choose_first_offsets(spec, GroupState("g"), {"t": 1}, 0) == {("t", 0): EARLIEST}


def test_positions_are_kept_and_new_partitions_are_read_from_their_start() -> None:
    state = GroupState("g", "share", partitions=(SharePartitionState("t", 0, 7, 1),))
    latest: Any = {"startOffset": "Latest"}
    assert choose_first_offsets(latest, state, {"t": 2, "u": 1}, 0) == {
        ("t", 1): EARLIEST,
        ("u", 0): LATEST,
    }
    assert choose_first_offsets(latest, state, {"t": 1}, 0) == {}


def test_positions_are_left_to_members_and_to_other_kinds_of_groups() -> None:
    latest: Any = {"startOffset": "Latest"}
    assert choose_first_offsets(latest, GroupState("g", "share", members=1), {"t": 1}, 0) == {}
    assert choose_first_offsets(latest, GroupState("g", "consumer"), {"t": 1}, 0) == {}


def test_counts_from_the_brokers_metrics() -> None:
    page = """
# HELP shoal_share_partition_locked_records Records that those locks hold.
shoal_share_partition_locked_records{group="a",topic="t",partition="0"} 3
shoal_share_partition_locked_records{group="a",topic="t",partition="1"} 4.0
shoal_share_partition_redelivered_records_total{group="a",topic="t",partition="0"} 9
shoal_share_partition_locks{group="a",topic="t",partition="0"} 100
shoal_share_partition_locked_records{group="q\\"\\\\",topic="t",partition="0"} 1
"""
    found = parse_group_metrics([page, page])
    assert {g: (m.in_flight, m.redelivered) for g, m in found.items()} == {
        "a": (14, 18),
        'q"\\': (2, 0),
    }


CLUSTER: Any = {
    "kind": "QueueCluster",
    "metadata": {"name": "main", "namespace": "n", "uid": "u"},
    "spec": {
        "replicas": 1,
        "storage": {"size": "1Gi"},
        "listeners": [{"name": "plain", "port": 9092}],
        "metrics": {"port": 9404},
        "config": {"log.retention.ms": "5", "num.partitions": "3"},
    },
}

TWO_PER_POD = {**CLUSTER["spec"], "replicas": 3, "brokersPerPod": 2}


def test_a_dynamic_setting_changes_no_pod_and_a_static_one_does() -> None:
    def template(**config):
        resource = copy.deepcopy(CLUSTER)
        resource["spec"]["config"] = config
        return cluster.build_manifests(resource, "i:1")[-1]["spec"]["template"]

    base = template(**{"num.partitions": "3"})
    assert template(**{"num.partitions": "3", "log.retention.ms": "9"}) == base
    assert template(**{"num.partitions": "4"}) != base


def test_the_dynamic_settings_are_those_of_the_broker() -> None:
    """Besides those that only the operator sets."""
    of_broker = {
        k
        for k, c in BROKER.items()
        if c.scope is ConfigScope.CLUSTER_WIDE and not broker_config.find_replacement(k)
    }
    assert of_broker == broker_config.DYNAMIC


def test_pods_are_restricted() -> None:
    pod = cluster.build_manifests(CLUSTER, "i:1")[-1]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    only = pod["containers"][0]["securityContext"]
    assert only["readOnlyRootFilesystem"]
    assert only["capabilities"] == {"drop": ["ALL"]}
    assert not only["allowPrivilegeEscalation"]
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("replicas", 2, "NoMajority"),
        ("listeners", [{"name": "a", "port": 1, "tls": {}}], "SecurityNotSupported"),
    ],
)
def test_unsupported_fields_are_refused_by_path(path, value, reason) -> None:
    resource = copy.deepcopy(CLUSTER)
    resource["spec"][path] = value
    verdict = find_refusal(resource)
    assert verdict is not None
    assert verdict.reason == reason
    assert f"spec.{path}" in verdict.message
    assert find_refusal(CLUSTER) is None


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("listeners", "spec.listeners"),
        ("advertised.listeners", "spec.listeners"),
        ("listener.security.protocol.map", "spec.listeners"),
        ("listener.name.controller.max.connections", "spec.listeners"),
        ("inter.broker.listener.name", "spec.listeners"),
        ("controller.listener.names", "The operator sets it."),
        ("controller.quorum.voters", "The operator sets it."),
        ("controller.quorum.bootstrap.servers", "The operator sets it."),
        ("controller.quorum.auto.join.enable", "The operator sets it."),
        ("node.id", "The operator sets it."),
        ("broker.id", "The operator sets it."),
        ("process.roles", "The operator sets it."),
        ("shoal.cluster.id", "The operator sets it."),
        ("log.dir", "spec.storage"),
        ("log.dirs", "spec.storage"),
        ("broker.rack", "spec.rack"),
        ("shoal.metrics.listener", "spec.metrics.port"),
        ("shoal.brokers.per.host", "spec.brokersPerPod"),
    ],
)
def test_config_cannot_override_the_operators_settings(name: str, instead: str) -> None:
    resource = copy.deepcopy(CLUSTER)
    resource["spec"]["config"][name] = "x"
    verdict = find_refusal(resource)
    assert verdict is not None
    assert verdict.reason == "ConfigNotAllowed"
    assert f"spec.config.{name}" in verdict.message
    assert instead in verdict.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a\nsuper.users", "User:eve"),
        ("a\rsuper.users", "User:eve"),
        ("super.users=User:eve #", "x"),
        ("super.users:User", "eve"),
        (" super.users", "User:eve"),
        ("super\\u002eusers", "User:eve"),
        ("", "x"),
        ("log.retention.ms", "1\nsuper.users=User:eve"),
        ("log.retention.ms", "1\rsuper.users=User:eve"),
        ("log.retention.ms", "1\u2028super.users=User:eve"),
    ],
)
def test_a_config_is_one_setting(name: str, value: str) -> None:
    resource = copy.deepcopy(CLUSTER)
    resource["spec"]["config"][name] = value
    for verdict in (find_refusal(resource), decide(topic(config={name: value}), None).refusal):
        assert verdict is not None
        assert verdict.reason == "ConfigNotAllowed"
        assert "\n" not in verdict.message


@pytest.mark.parametrize("kind", ["queueclusters", "queuetopics"])
def test_the_api_server_admits_the_same_names_and_values(kind: str) -> None:
    crd = yaml.safe_load((CRDS / f"{kind}.shoal.dev.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    config = schema["properties"]["config"]
    rules = [one["rule"] for one in config["x-kubernetes-validations"]]
    assert f"self.all(k, k.matches('^{broker_config.NAME.pattern}$'))" in rules
    pattern = re.compile(config["additionalProperties"]["pattern"])
    for code in range(0x3000):
        is_admitted = pattern.search(f"a{chr(code)}b") is not None
        assert is_admitted == (not broker_config.find_malformed({"a": f"a{chr(code)}b"})), code


def test_every_setting_in_a_brokers_file_is_reserved_or_may_be_overridden() -> None:
    """A setting that the operator writes for a single broker cannot come from spec.config."""
    own = broker_config.format_broker_properties(CLUSTER, 0, "PLAIN://x:1").splitlines()
    own += broker_config.format_broker_properties(
        CLUSTER | {"spec": TWO_PER_POD}, 1000, "PLAIN://x:1"
    ).splitlines()
    assert all(broker_config.find_replacement(line.partition("=")[0]) for line in own)
    for name in ("controller.quorum.election.timeout.ms", "controller.quorum.fetch.timeout.ms"):
        assert broker_config.find_replacement(name) is None


def test_the_api_server_refuses_the_same_settings() -> None:
    """The rules of the definition name each reserved setting and its variable."""
    crd = yaml.safe_load((CRDS / "queueclusters.shoal.dev.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    config = schema["properties"]["config"]["x-kubernetes-validations"][0]["rule"]
    pod = schema["properties"]["template"]["properties"]["pod"]["properties"]
    env = pod["env"]["items"]["properties"]["name"]["x-kubernetes-validations"][0]["rule"]
    assert [n for n in broker_config.RESERVED if f"'{n}'" not in config] == []
    variables = [broker_config.format_variable(name) for name in broker_config.RESERVED]
    prefix = "SHOAL_CONTROLLER_QUORUM_"
    assert f"startsWith('{prefix}')" in env
    assert [v for v in variables if f"'{v}'" not in env and not v.startswith(prefix)] == []


def test_fields_that_others_add_are_no_drift() -> None:
    want = {"spec": {"ports": [{"port": 1}], "replicas": 2}}
    seen = {"spec": {"ports": [{"port": 1, "nodePort": 3}], "replicas": 2}, "status": {}}
    assert not has_drifted(want, seen)
    assert has_drifted(want, {"spec": {"ports": [], "replicas": 2}})
    assert has_drifted(want, {"spec": {"ports": [{"port": 1}], "replicas": 3}})


def test_consumers_get_the_connection_settings() -> None:
    consumer: Any = {
        "kind": "ShareConsumer",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {
            "deployment": {
                "template": {
                    "spec": {
                        "containers": [
                            {"name": "a", "env": [{"name": "X", "value": "1"}]},
                            {
                                "name": "b",
                                "env": [
                                    {"name": "SHOAL_TOPICS", "value": "mine"},
                                    {"name": "SHOAL_LOG_LEVEL", "value": "debug"},
                                ],
                            },
                        ]
                    }
                }
            }
        },
    }
    made = deployment.build_manifest(
        consumer,
        PodContext("main", "b:1", "g", ["t", "u"], "r/broker:1", "Always"),
        4,
    )
    pod_env = [
        [(e["name"], e["value"]) for e in c["env"]]
        for c in made["spec"]["template"]["spec"]["containers"]
    ]
    where = [("SHOAL_BOOTSTRAP_SERVERS", "b:1"), ("SHOAL_GROUP_ID", "g")]
    assert pod_env == [
        [*where, ("SHOAL_TOPICS", "t,u"), ("X", "1")],
        # The user's values are kept, also under the operator's names.
        [*where, ("SHOAL_TOPICS", "mine"), ("SHOAL_LOG_LEVEL", "debug")],
    ]
    assert made["spec"]["replicas"] == 4
    assert "env" in consumer["spec"]["deployment"]["template"]["spec"]["containers"][0]


def test_a_container_without_an_image_gets_the_brokers() -> None:
    pods = {
        "containers": [
            {"name": "a"},
            {"name": "b", "imagePullPolicy": "Never"},
            {"name": "c", "image": "mine:1"},
        ]
    }
    consumer: Any = {
        "kind": "ShareConsumer",
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {"deployment": {"template": {"spec": pods}}},
    }
    made = deployment.build_manifest(
        consumer,
        PodContext("main", "b:1", "g", ["t"], "r/broker:1", "Always"),
        1,
    )
    images = [
        (one["image"], one.get("imagePullPolicy"))
        for one in made["spec"]["template"]["spec"]["containers"]
    ]
    assert images == [("r/broker:1", "Always"), ("r/broker:1", "Never"), ("mine:1", None)]


def _brokers(pull_policy: str = "Always", **spec: object) -> dict:
    meta = {"name": "main", "namespace": "n", "uid": "u"}
    least = {
        "replicas": 1,
        "storage": {"size": "1Gi"},
        "metrics": {"port": 9404},
        "listeners": [{"name": "plain", "port": 9092}],
    }
    resource: Any = {"kind": "QueueCluster", "metadata": meta, "spec": {**least, **spec}}
    stateful = cluster.build_manifests(resource, "chart:1", {}, pull_policy)[-1]
    return stateful["spec"]["template"]["spec"]["containers"][0]


def test_the_charts_pull_policy_is_that_of_its_own_image() -> None:
    assert _brokers()["imagePullPolicy"] == "Always"
    assert _brokers(image="mine:1")["imagePullPolicy"] == "IfNotPresent"
    assert _brokers(imagePullPolicy="Never")["imagePullPolicy"] == "Never"


def test_variables_of_a_brokers_pod_are_kept_and_no_setting_has_two_sources() -> None:
    own = [{"name": "SHOAL_LOG_RETENTION_MS", "value": "5"}, {"name": "PASSWORD", "value": "x"}]
    template = {"pod": {"env": own}}
    assert _brokers(template=template)["env"][-2:] == own
    spec = {
        "listeners": [],
        "metrics": {"port": 9404},
        "template": template,
        "config": {"log.retention.ms": "7"},
    }
    resource: Any = {"metadata": {"name": "main"}, "spec": {"replicas": 1, **spec}}
    refused = find_refusal(resource)
    assert refused is not None
    assert refused.reason == "ConfigTwice"
    assert "SHOAL_LOG_RETENTION_MS" in refused.message
    resource["spec"]["config"] = {"log.segment.bytes": "7"}
    assert find_refusal(resource) is None
    # The broker uses the same names.
    for name in BROKER:
        parsed = from_environment({broker_config.format_variable(name): "1"})
        assert list(parsed) in ([name], []), name


def test_conditions_keep_their_transition_time() -> None:
    first = conditions.build_conditions(Verdict.make_waiting("Starting", "x"), 1, "t1", None)
    again = conditions.build_conditions(Verdict.make_waiting("Creating", "y"), 2, "t2", first)
    ready = conditions.build_conditions(Verdict.make_reconciled("z"), 2, "t3", again)
    assert [c["type"] for c in first] == [*conditions.TYPES, "Reconciling"]
    assert {c["lastTransitionTime"] for c in again} == {"t1"}
    by_type = {c["type"]: c for c in ready}
    assert by_type["Ready"]["lastTransitionTime"] == "t3"
    assert by_type["Progressing"]["status"] == "False"
    assert by_type["Paused"]["lastTransitionTime"] == "t1"


def test_words_for_time_and_size() -> None:
    assert quantities.parse_duration_ms("1h30m") == 5_400_000
    assert quantities.parse_duration_ms("250ms") == 250
    assert quantities.format_duration(5_400_250) == "1h30m250ms"
    assert quantities.format_iso_duration(1500) == "PT1.500S"
    assert quantities.parse_size_bytes("10Gi") == 10 << 30
    with pytest.raises(ValueError, match="use a form like 30s"):
        quantities.parse_duration_ms("30")


def test_maintenance_windows() -> None:
    saturday = datetime.datetime(2026, 11, 21, 3, 0, tzinfo=datetime.UTC)
    window: Any = {"schedule": "0 2 * * 6", "duration": "2h"}
    assert is_open([], saturday)
    assert is_open([window], saturday)
    assert not is_open([window], saturday + datetime.timedelta(hours=2))
    sunday: Any = {"schedule": "30 2 * * 0", "duration": "1h"}
    assert find_next_begin([], saturday) == find_next_begin([window, sunday], saturday) == ""
    after = saturday + datetime.timedelta(hours=2)
    assert find_next_begin([window], after) == "2026-11-28T02:00:00Z"
    assert find_next_begin([window, sunday], after) == "2026-11-22T02:30:00Z"


def test_the_store_finds_by_cluster() -> None:
    store = Store()
    store.put(topic("b"))
    store.put(topic("a"))
    store.put(topic("c", cluster="other"))
    names = [o["metadata"]["name"] for o in store.list_of_cluster("QueueTopic", "n", "main")]
    assert names == ["a", "b"]
    store.drop(topic("a"))
    assert len(store.list_of_cluster("QueueTopic", "n", "main")) == 1


def test_the_store_keeps_the_newest_version_of_the_same_object() -> None:
    store = Store()

    def version(number, uid="one"):
        made = topic("a")
        made["metadata"] |= {"uid": uid, "resourceVersion": str(number), "managedFields": []}
        return made

    store.put(version(10))
    store.put(version(9))
    found = store.get("QueueTopic", "n", "a")
    assert found is not None
    kept = found["metadata"]
    assert kept["resourceVersion"] == "10"
    assert "managedFields" not in kept
    # Another object under the same name is independent: the end of the first does not end it.
    store.put(version(8, "two"))
    store.drop(version(10))
    found = store.get("QueueTopic", "n", "a")
    assert found is not None
    assert found["metadata"]["uid"] == "two"


def test_the_reference_is_made_of_the_definitions(request) -> None:
    root = request.config.rootpath
    made = crd_reference.build_pages(root / "crds")
    shown = {name: (root / "docs/reference" / name).read_text() for name in made}
    assert shown == made, "python tools/crd_reference.py crds docs/reference"


def test_every_field_has_an_example_that_its_schema_takes(request) -> None:
    """The page shows it."""
    further = yaml.safe_load(crd_reference.FURTHER.read_text())
    unused = {(kind, end) for kind, examples in further.items() for end in examples}
    manifests = crd_reference.read_manifests()
    for file in sorted((request.config.rootpath / "crds").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        kind = definition["spec"]["names"]["kind"]
        examples = crd_reference.find_examples(definition, manifests.get(kind, []))
        spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for path, field in crd_reference.iterate_fields(spec, "spec"):
            shown = crd_reference.format_example(path, field, examples)
            assert shown, f"{kind}: {path} has no example in {crd_reference.FURTHER}"
            assert structural.check(examples[path], dict(field), path) == []
            unused -= {(k, end) for k, end in unused if k in (kind, "any") and path.endswith(end)}
    assert not unused


def test_the_chart_ships_the_same_crds(request) -> None:
    root = request.config.rootpath
    ours = {p.name: p.read_text() for p in (root / "crds").glob("*.yaml")}
    charts = {p.name: p.read_text() for p in (root / "helm/shoal/crds").glob("*.yaml")}
    assert ours == charts


def test_every_field_is_explained(request) -> None:
    """`kubectl explain` and the reference show only these sentences."""
    for file in sorted((request.config.rootpath / "crds").glob("*.yaml")):
        schema = yaml.safe_load(file.read_text())["spec"]["versions"][0]["schema"]
        whole = schema["openAPIV3Schema"]
        assert whole["description"]
        for part in ("spec", "status"):
            for path, field in _fields({part: whole["properties"][part]}, file.stem):
                assert field.get("type") or field.get("x-kubernetes-int-or-string"), path
                said = field.get("description", "")
                assert said[:1].isupper() or said[:1] in '`"', path
                assert said.endswith((".", ".`")), path


def _fields(properties, path):
    for name, field in properties.items():
        here = f"{path}.{name}"
        yield here, field
        inner = field.get("items", field)
        yield from _fields(inner.get("properties", {}), here)
