"""Topics and share groups match their resources, and nothing else is changed."""

from __future__ import annotations

import json

import pytest
from e2e.resources import (
    Resources,
    queue_cluster,
    queue_topic,
    share_consumer,
    share_group,
)
from support.runs.conditions import eventually

#: So that the tests need not wait half a minute until a lock expires.
BROKER_CONFIG = {"group.share.min.record.lock.duration.ms": "1000"}

#: Locks one record without settling it, and prints after how many seconds another member gets it.
HOLD = """
import asyncio, sys, time
from shoal.client.client import Client
from shoal.client.settings import Settings

async def main():
    async with Client(Settings.from_environment()) as client:
        group, topic = sys.argv[1:]
        async with await client.share(group, [topic]) as one, \\
                   await client.share(group, [topic]) as other:
            held = await one.acquire(max_wait_ms=10_000)
            began = time.monotonic()
            again = await other.acquire(max_wait_ms=10_000)
            print(held.count, again.count, time.monotonic() - began, one.lock_timeout_ms)

asyncio.run(main())
"""


def configs_of(queue: Resources, kind: str, name: str) -> dict[str, str]:
    """Return the configs set on a topic or group itself, through a client."""
    rows = json.loads(queue.shoal("configs", "describe", kind, name, "--format=json"))
    own = ("dynamic topic", "group")
    return {row["config"]: row["value"] for row in rows if row["source"] in own}


@pytest.fixture(scope="module", autouse=True)
def drifting(queue: Resources) -> str:
    """Changes by others before the first test, also of the Service. The operator checks the brokers
    for changes once a minute, and this way the other tests do not wait for that."""
    queue.apply(queue_topic("drifting", config={"retention.ms": "500000"}))
    queue.apply(share_group("drifters", topics=["drifting"], deliveryLimit=7))
    queue.wait("queuetopic/drifting", "sharegroup/drifters")
    change = ("configs", "set")
    queue.shoal(*change, "topic", "drifting", "retention.ms=1000", "segment.ms=3600000")
    queue.shoal(*change, "group", "drifters", "share.delivery.count.limit=9")
    service = "service/main-bootstrap"
    queue.kubectl("annotate", service, "theirs=stays")
    queue.patch(service, {"metadata": {"labels": {"shoal.dev/cluster": "wrong"}}})
    return service


def test_applied_and_visible_to_clients(queue: Resources) -> None:
    queue.apply(
        queue_topic("seen", config={"retention.ms": "600000"}),
        share_group("seers", topics=["seen"], deliveryLimit=3),
    )
    queue.wait("queuetopic/seen", "sharegroup/seers")
    assert queue.status("queuetopic/seen")["partitions"] == 2
    assert configs_of(queue, "topic", "seen") == {"retention.ms": "600000"}
    assert configs_of(queue, "group", "seers")["share.delivery.count.limit"] == "3"
    queue.produce("seen", 10)
    queue.wait_status("sharegroup/seers", lag=10, available=10)
    assert len(queue.share_consume("seen", "seers", "-n", "10")) == 10
    queue.wait_status("sharegroup/seers", lag=0, inFlight=0, members=0)


def test_the_lock_duration_is_in_force(queue: Resources) -> None:
    group = share_group("lockers", topics=["locked"], lockDuration="2s")
    queue.apply(queue_topic("locked", partitions=1), group)
    queue.wait("queuetopic/locked", "sharegroup/lockers")
    queue.produce("locked", 1)
    servers = f"SHOAL_BOOTSTRAP_SERVERS=main-bootstrap.{queue.namespace}.svc:9092"
    run = ("exec", "client", "--", "env", servers, "python3", "-c", HOLD, "lockers", "locked")
    held, again, seconds, lock_ms = map(float, queue.kubectl(*run).stdout.split())
    assert (held, again, lock_ms) == (1, 1, 2000)
    assert 1.5 < seconds < 10, "the default lock lasts 30 s"


def test_the_delivery_limit_is_in_force(queue: Resources) -> None:
    group = share_group("limited", topics=["limits"], deliveryLimit=2)
    queue.apply(queue_topic("limits", partitions=1), group)
    queue.wait("queuetopic/limits", "sharegroup/limited")
    queue.produce("limits", 1)
    release = ("--ack", "release", "-n", "1")
    assert queue.share_consume("limits", "limited", *release) == ["0"]
    assert queue.share_consume("limits", "limited", *release) == ["0"]
    assert queue.share_consume("limits", "limited") == []
    queue.wait_status("sharegroup/limited", lag=0)


def test_a_group_begins_when_it_is_applied(queue: Resources) -> None:
    queue.apply(queue_topic("early"))
    queue.wait("queuetopic/early")
    queue.produce("early", 7)
    queue.apply(share_group("latecomers", topics=["early"], startOffset="Latest"))
    queue.wait("sharegroup/latecomers")
    queue.produce("early", 5, first=100)
    queue.wait_status("sharegroup/latecomers", lag=5, members=0)
    found = queue.share_consume("early", "latecomers", "-n", "5")
    assert sorted(found) == ["100", "101", "102", "103", "104"]


def test_partitions_grow_and_never_shrink(queue: Resources) -> None:
    queue.apply(queue_topic("growing"))
    queue.wait("queuetopic/growing")
    refused = queue.refusal(queue_topic("growing", partitions=1))
    assert "partitions can be added but never removed" in refused
    queue.apply(queue_topic("growing", partitions=5))
    queue.wait("queuetopic/growing")
    assert queue.status("queuetopic/growing")["partitions"] == 5


def test_of_two_claims_the_older_wins(queue: Resources) -> None:
    queue.apply(queue_topic("first", topicName="claimed"))
    queue.wait("queuetopic/first")
    queue.apply(queue_topic("second", topicName="claimed", partitions=4))
    said = queue.wait_reason("queuetopic/second", "TopicClaimed")
    assert "'first'" in said
    queue.kubectl("delete", "queuetopic/first")
    queue.wait("queuetopic/second")
    assert queue.status("queuetopic/second")["partitions"] == 4


def test_deletion_policies(queue: Resources) -> None:
    for policy in ("Retain", "Delete"):
        name = policy.lower()
        queue.apply(
            queue_topic(f"{name}-topic", deletionPolicy=policy),
            share_group(f"{name}-group", topics=[f"{name}-topic"], deletionPolicy=policy),
        )
    names = [
        f"{kind}/{name}-{kind[5:]}"
        for kind in ("queuetopic", "sharegroup")
        for name in ("retain", "delete")
    ]
    queue.wait(*names)
    queue.kubectl("delete", *names, "--timeout=30s")
    listed = "list", "--format=json"
    topics = {row["topic"] for row in json.loads(queue.shoal("topics", *listed))}
    groups = {row["group"] for row in json.loads(queue.shoal("groups", *listed))}
    assert ("retain-topic" in topics, "delete-topic" in topics) == (True, False)
    assert ("retain-group" in groups, "delete-group" in groups) == (True, False)


def test_a_group_with_members_is_deleted_when_they_are_gone(queue: Resources) -> None:
    group = share_group("leaving", topics=["left"], deletionPolicy="Delete")
    queue.apply(queue_topic("left"), group, share_consumer("stays", "leaving", replicas=1))
    queue.wait("queuetopic/left", "sharegroup/leaving")
    queue.wait_status("sharegroup/leaving", members=1)
    queue.kubectl("delete", "sharegroup/leaving", "--wait=false")
    said = queue.wait_reason("sharegroup/leaving", "DeletionWaits")
    assert "NON_EMPTY_GROUP" in said
    queue.kubectl("delete", "shareconsumer/stays")
    queue.kubectl("wait", "--for=delete", "sharegroup/leaving", "--timeout=60s")


def test_an_unmanaged_topic_is_reported_and_left_alone(queue: Resources) -> None:
    queue.shoal("topics", "create", "theirs", "--partitions=3")
    queue.apply(queue_topic("theirs", managed=False, partitions=1, deletionPolicy="Delete"))
    queue.wait("queuetopic/theirs")
    assert queue.status("queuetopic/theirs")["partitions"] == 3
    queue.kubectl("delete", "queuetopic/theirs", "--timeout=30s")
    assert "theirs" in queue.shoal("topics", "list")


def test_a_reset_is_applied_once(queue: Resources) -> None:
    queue.apply(queue_topic("again"), share_group("resetters", topics=["again"]))
    queue.wait("queuetopic/again", "sharegroup/resetters")
    queue.produce("again", 6)
    assert len(queue.share_consume("again", "resetters", "-n", "6")) == 6
    queue.patch("sharegroup/resetters", {"spec": {"reset": {"id": "one", "to": "Earliest"}}})

    def is_reset() -> bool:
        return queue.status("sharegroup/resetters").get("lastReset", {}).get("id") == "one"

    eventually(is_reset)
    queue.wait_status("sharegroup/resetters", lag=6)
    assert len(queue.share_consume("again", "resetters", "-n", "6")) == 6
    # Another change does not repeat the old reset.
    queue.patch("sharegroup/resetters", {"spec": {"deliveryLimit": 4}})
    queue.wait("sharegroup/resetters")
    queue.wait_status("sharegroup/resetters", lag=0)
    assert len(queue.events("ShareGroup", "resetters", "OffsetsReset")) == 1


def test_drift_is_put_back_and_only_that(queue: Resources, drifting: str) -> None:
    def back() -> bool:
        topic = configs_of(queue, "topic", "drifting")
        assert topic == {"retention.ms": "500000", "segment.ms": "3600000"}
        group = configs_of(queue, "group", "drifters")
        assert group["share.delivery.count.limit"] == "7"
        meta = queue.get(drifting)["metadata"]
        assert meta["labels"]["shoal.dev/cluster"] == "main"
        assert meta["annotations"]["theirs"] == "stays"
        return True

    eventually(back, timeout_s=75)


LOGIN_OFF = {"authentication": {"type": "none"}}
LISTENER = {"name": "plain", "port": 9092, "tls": {"enabled": False}, **LOGIN_OFF}
BAD = {
    "no cluster": ({**queue_topic(), "spec": {"partitions": 1}}, "spec.cluster: Required value"),
    "internal name": (queue_topic(topicName="__x"), "names that begin with `__` are reserved"),
    "lock too long": (share_group(lockDuration="2h"), "lockDuration must lie between 1s and 1h"),
    "no duration": (
        share_group(startOffset="ByDuration"),
        "startOffsetDuration goes with startOffset ByDuration",
    ),
    "heartbeat": (
        share_group(heartbeatInterval="60s", sessionTimeout="45s"),
        "heartbeatInterval must be shorter than sessionTimeout",
    ),
    "key order without order": (
        share_group(keyOrder={"deadLetter": "Hold"}),
        "keyOrder goes with ordering key",
    ),
    "delay too long": (
        share_group(delay={"max": "200h"}),
        "delay.max must lie between 1ms and 168h",
    ),
    "deliveries": (share_group(deliveryLimit=1), "should be greater than or equal to 2"),
    "latest": (queue_cluster(image="x/y:latest"), "image must name a version or a digest"),
    "owned config": (
        queue_cluster(config={"node.id": "3"}),
        "are set by the operator; use replicas, brokersPerPod, storage, listeners, rack",
    ),
    "tls left out": (
        queue_cluster(listeners=[{"name": "plain", "port": 9092, **LOGIN_OFF}]),
        "use `tls: {}`, or `tls: {enabled: false}` for plaintext",
    ),
    "login left out": (
        queue_cluster(listeners=[{"name": "tls", "port": 9092, "tls": {}}]),
        "or `authentication: {type: none}` if clients are not to log in",
    ),
    "login without tls": (
        queue_cluster(listeners=[{**LISTENER, "authentication": {"type": "tls"}}]),
        "authentication requires tls",
    ),
    "own port": (
        queue_cluster(listeners=[{**LISTENER, "port": 9091, "tls": {}}]),
        "port 9091 is the port of the brokers' own listener",
    ),
    "renewal": (
        queue_cluster(clusterCa={"validityDays": 20}),
        "renewalDays must be less than validityDays",
    ),
    "type without issuer": (
        queue_cluster(clusterCa={"type": "certManager"}),
        "issuerRef names the issuer of an authority with type certManager",
    ),
    "issuer without type": (
        queue_cluster(clientsCa={"issuerRef": {"name": "company"}}),
        "issuerRef names the issuer of an authority with type certManager",
    ),
    "own authority and issuer": (
        queue_cluster(
            clusterCa={"type": "certManager", "issuerRef": {"name": "a"}, "generate": False}
        ),
        "generate cannot be false with type certManager",
    ),
    "tokens without keys": (
        queue_cluster(
            listeners=[{**LISTENER, "tls": {}, "authentication": {"type": "oauthbearer"}}]
        ),
        "oauthbearer requires jwksEndpointUrl and validIssuer",
    ),
    "metrics over tls": (
        queue_cluster(listeners=[LISTENER], metrics={"tls": {}}),
        "metrics.tls requires a listener with tls",
    ),
    "token in the clear": (
        queue_cluster(metrics={"token": {"secretKeyRef": {"name": "scrape"}}}),
        "metrics.token requires metrics.tls",
    ),
    "two": (queue_cluster(replicas=2), "neither broker has a majority alone"),
    "typo": (queue_topic(partitons=3), 'unknown field "spec.partitons"'),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_spec_is_refused_with_a_reason(queue: Resources, case: str) -> None:
    manifest, reason = BAD[case]
    assert reason in queue.refusal(manifest)


def test_a_certificate_that_is_missing_is_a_condition(resources: Resources) -> None:
    encrypted = {"name": "own", "port": 9092, "tls": {"secretName": "mine"}, **LOGIN_OFF}
    resources.apply(queue_cluster(listeners=[encrypted]))
    said = resources.wait_reason("queuecluster/main", "ListenerCertificateInvalid")
    assert "Secret 'mine' does not exist" in said
    assert resources.find_all("pods") == []


def test_an_authority_of_cert_manager_waits_for_it(resources: Resources) -> None:
    issued = {"type": "certManager", "issuerRef": {"name": "company"}}
    resources.apply(queue_cluster(clusterCa=issued))
    said = resources.wait_reason("queuecluster/main", "CertManagerMissing")
    assert "The cluster CA: The operator may not use cert-manager" in said
    assert "certManager.enabled" in said
    assert resources.find_all("pods") == []
