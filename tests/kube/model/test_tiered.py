"""Tiered storage in the resources: brokers' configs, credentials, topics, and the condition."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import rendered
from kube.api_server import ApiServer, CrashPoint, resource
from shoal_operator.brokers import tiered_health
from shoal_operator.brokers.broker_states import TopicState
from shoal_operator.brokers.tiered_health import TieredHealth
from shoal_operator.kube.conditions import Verdict, build_conditions
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model import broker_config, broker_pod, node_pools, tiered
from shoal_operator.queues import topics

CRDS = Path(__file__).parents[3] / "crds"
S3 = {"type": "S3", "bucket": "queues", "copyInterval": "1h"}


def cluster(**given: Any) -> Any:
    least = rendered.clusters()["least"]
    return {**least, "spec": {**least["spec"], "tieredStorage": {**S3, **given}}}


def pod_template(made: Any) -> Any:
    (pool,) = node_pools.list_pools(made)
    return broker_pod.build_template(made, "i:1", "Always", pool=pool, openshift=False)


def lines(made: Any) -> dict[str, str]:
    text = broker_config.format_properties(made).splitlines()
    return dict(line.partition("=")[::2] for line in text)


def test_brokers_get_the_store() -> None:
    given = cluster(
        prefix="a/b",
        endpoint="http://s3:9000",
        region="eu-1",
        cacheSize="64Mi",
        copyInterval="1m30s",
    )
    wanted = {
        "remote.log.storage.system.enable": "true",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "shoal.remote.store.url": "s3://queues/a/b",
        "shoal.remote.store.endpoint": "http://s3:9000",
        "shoal.remote.store.region": "eu-1",
        "shoal.remote.chunk.cache.bytes": str(64 << 20),
        "shoal.remote.copy.interval.ms": "90000",
    }
    plain = lines(rendered.clusters()["least"])
    assert {k: v for k, v in lines(given).items() if k not in plain} == wanted
    assert lines(cluster())["shoal.remote.chunk.cache.bytes"] == str((1 << 30) // 10)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"type": "GCS", "bucket": "b"}, "gs://b"),
        ({"type": "GCS", "bucket": "b", "prefix": "p"}, "gs://b/p"),
        ({"type": "Azure", "account": "acc", "bucket": "c", "prefix": "p"}, "az://acc/c/p"),
    ],
)
def test_urls(given: Any, url: str) -> None:
    assert tiered.build_url(given) == url


def environment(made: Any) -> list[dict[str, Any]]:
    pod = pod_template(made)["spec"]
    return [e for e in pod["containers"][0]["env"] if e["name"].startswith(("AWS", "GOO", "AZU"))]


def test_brokers_read_credentials_from_the_secret() -> None:
    secret = {"credentials": {"secretName": "keys"}}

    def variable(name: str, **more: bool) -> dict[str, Any]:
        reference = {"name": "keys", "key": name, **more}
        return {"name": name, "valueFrom": {"secretKeyRef": reference}}

    assert environment(cluster(**secret)) == [
        variable("AWS_ACCESS_KEY_ID"),
        variable("AWS_SECRET_ACCESS_KEY"),
        variable("AWS_SESSION_TOKEN", optional=True),
    ]
    assert environment(cluster(type="GCS", **secret)) == [variable("GOOGLE_SERVICE_ACCOUNT_KEY")]
    assert environment(cluster(type="Azure", account="a", **secret)) == [
        variable("AZURE_STORAGE_ACCOUNT_KEY")
    ]
    assert environment(cluster()) == []


def test_brokers_compress_and_encrypt() -> None:
    made = cluster(compression="zstd", encryption={"secretName": "keyring", "keyId": "2026-11"})
    sealed = {
        "shoal.remote.compression.type": "zstd",
        "shoal.remote.encryption.key.id": "2026-11",
    }
    assert broker_config.select_dynamic(made) == sealed
    own = broker_config.format_broker_properties(made, 0, "PLAINTEXT://h:1").splitlines()
    assert {f"{name}={value}" for name, value in sealed.items()} <= set(own)
    directory = lines(made)["shoal.remote.encryption.key.directory"]
    pod = pod_template(made)["spec"]
    (volume,) = [v for v in pod["volumes"] if v.get("secret", {}).get("secretName") == "keyring"]
    assert "items" not in volume["secret"], "each entry is a file"
    mount = {"name": volume["name"], "mountPath": directory, "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]


def test_a_rotation_restarts_no_broker() -> None:
    def template(key_id: str) -> Any:
        made = cluster(encryption={"secretName": "keyring", "keyId": key_id})
        return pod_template(made)

    assert template("2026-11") == template("2026-12")
    assert template("2026-11") != pod_template(cluster())


def test_without_a_key_id_new_objects_are_not_encrypted() -> None:
    made = cluster(compression="uncompressed", encryption={"secretName": "keyring"})
    assert broker_config.select_dynamic(made) == {}
    assert "shoal.remote.encryption.key.directory" in lines(made)


def test_a_cluster_without_a_store_is_as_before() -> None:
    plain = rendered.clusters()["least"]
    assert not any("remote" in name for name in lines(plain))
    assert environment(plain) == []


def topic(**spec: Any) -> Any:
    return {"metadata": {"name": "t"}, "spec": {"partitions": 1, **spec}}


def test_a_tiered_topic_is_created_with_its_configs() -> None:
    made = topic(
        tiered=True, localRetention={"time": "12h", "size": "1Gi"}, config={"retention.ms": "-1"}
    )
    actions = topics.decide(made, None)
    assert actions.create
    assert actions.config == {
        "remote.storage.enable": "true",
        "local.retention.ms": "43200000",
        "local.retention.bytes": str(1 << 30),
        "retention.ms": "-1",
    }


def test_a_topic_becomes_tiered_and_its_local_retention_returns_to_the_default() -> None:
    have = TopicState("id", 1, 1, {})
    assert topics.decide(topic(tiered=True), have).config == {"remote.storage.enable": "true"}
    have = TopicState("id", 1, 1, {"remote.storage.enable": "true", "local.retention.ms": "1000"})
    applied = {"appliedConfig": ["local.retention.ms", "remote.storage.enable"]}
    after: Any = {**topic(tiered=True), "status": applied}
    assert topics.decide(after, have).config == {"local.retention.ms": None}
    assert topics.decide(topic(), have).config == {}, "fields that were never set stay"


PAGES = (
    """kafka_server_BrokerTopicMetrics_RemoteLogMetadataCount{topic="a"} 3
kafka_server_BrokerTopicMetrics_RemoteLogMetadataCount{topic="b"} 1
kafka_server_BrokerTopicMetrics_RemoteLogSizeBytes{topic="a"} 3000
kafka_server_BrokerTopicMetrics_RemoteCopyLagBytes{topic="a"} 10
shoal_remote_failing_partitions 0
shoal_remote_missing_objects 0
shoal_remote_orphans 2
""",
    """kafka_server_BrokerTopicMetrics_RemoteLogSizeBytes{topic="a"} 500
shoal_remote_failing_partitions 1
shoal_remote_missing_objects 0
""",
)


def test_the_state_is_summed_over_brokers() -> None:
    found = tiered_health.parse(PAGES)
    assert found.build_status() == {
        "segments": 4,
        "bytes": 3500,
        "notCopiedBytes": 10,
        "failingPartitions": 1,
        "missingObjects": 0,
        "orphans": 2,
    }
    schema = yaml.safe_load((CRDS / "queueclusters.shoal.dev.yaml").read_text())
    status = schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert list(status["properties"]["tieredStorage"]["properties"]) == list(found.build_status())


@pytest.mark.parametrize(
    ("found", "status", "reason", "words"),
    [
        (TieredHealth(segments=3), "True", "Reconciled", "3 segments"),
        (TieredHealth(failing_partitions=2), "False", "StoreFails", "spec.tieredStorage"),
        (TieredHealth(missing_objects=2, failing_partitions=1), "False", "ObjectsMissing", "check"),
        (None, "Unknown", "MetricsUnknown", "metrics"),
    ],
)
def test_the_condition(found: TieredHealth | None, status: str, reason: str, words: str) -> None:
    further = [tiered_health.build_condition(found)]
    rows = build_conditions(Verdict.make_reconciled("x"), 2, "t2", None, further)
    assert (rows[-1]["type"], rows[-1]["status"]) == ("TieredStorageHealthy", status)
    assert rows[-1]["reason"] == reason
    assert words in rows[-1]["message"]
    assert [r["type"] for r in rows].count("TieredStorageHealthy") == 1
    again = build_conditions(Verdict.make_reconciled("x"), 3, "t3", rows, further)
    assert again[-1]["lastTransitionTime"] == "t2"


def test_the_condition_is_written_and_leaves_with_the_field() -> None:
    kube = ApiServer(CrashPoint())
    kube.add(resource("QueueCluster", "main", **cluster()["spec"]))

    async def write(further: list[Any]) -> list[str]:
        found = kube.find("QueueCluster", "main")
        await StatusWriter(kube, kube.store()).write(
            found, Verdict.make_reconciled("x"), {}, further
        )
        rows = kube.find("QueueCluster", "main")["status"]["conditions"]
        return [row["type"] for row in rows]

    condition = tiered_health.build_condition(TieredHealth())
    assert asyncio.run(write([condition]))[-1] == "TieredStorageHealthy"
    assert "TieredStorageHealthy" not in asyncio.run(write([]))
