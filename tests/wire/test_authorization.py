"""Authorization of one broker: its configs, changes of entries, and what is cached.

The permission matrix (`compat/oracles/test_permission_matrix.py`) compares each API with Kafka.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.protocol.share import CancelOutcome
from shoal.quorum import wire
from shoal.record.finished_offsets import FinishedOffsets
from shoal.security.acls import Operation, PatternType, ResourceType
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security import permissions
from support.security.permissions import ADMIN, CONFIGS, entry, everything, grant, withdraw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from shoal.security.acls import Acl

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
BROKER_CONFIG = CONFIGS | {
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}
#: The longest wait of a fetch. A withdrawn permission ends it far earlier.
WAIT_MS, SOON_S = 60_000, 20.0
MEMBER = "a-member-of-the-tests-x"


@pytest.fixture(scope="module")
def admin(shared_broker: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shared_broker.bootstrap) as client:
        grant(client, everything(ADMIN))
        yield client


class Guest:
    """A client from an address of its own, and its entries."""

    def __init__(self, admin: WireClient, broker: ShoalProcess, host: str) -> None:
        self._admin = admin
        self._broker = broker
        self.host = host
        self.client = WireClient(broker.bootstrap, source=host)

    def waiting(self) -> float:
        """Return the number of requests that wait in the broker."""
        name = "kafka_server_DelayedOperationPurgatory_PurgatorySize"
        return sum(sample.value for sample in self._broker.samples(name))

    def send_waiting(self, api: ApiKey, version: int, body: dict[str, Any]) -> None:
        """Send a request, and wait until it waits in the broker."""
        self.client.send(api, version, body)
        eventually(lambda: self.waiting() == 1, what="the request waits")

    def may(self, operation: Operation, kind: ResourceType, name: str = "*") -> Acl:
        acl = entry(self.host, operation, kind, name)
        grant(self._admin, [acl])
        return acl

    def may_not(self, acl: Acl) -> None:
        withdraw(self._admin, [acl])


@pytest.fixture
def guest(
    admin: WireClient, shared_broker: ShoalProcess, request: pytest.FixtureRequest
) -> Iterator[Guest]:
    number = sum(map(ord, request.node.name)) % 250 + 1
    found = Guest(admin, shared_broker, f"127.0.1.{number}")
    with found.client:
        yield found


# Configs


def test_super_users_may_do_everything(start_broker: Callable[..., ShoalProcess]) -> None:
    """authorizer.class.name, super.users"""
    name = CONFIGS["authorizer.class.name"]
    refused, allowed = (
        start_broker(user, configs={"authorizer.class.name": name, "super.users": f"User:{user}"})
        for user in ("admin", "ANONYMOUS")
    )
    with WireClient(refused.bootstrap) as client:
        (row,) = client.call(ApiKey.CREATE_TOPICS, 7, new_topic("t")).topics
        assert row.error_code == ErrorCode.topic_authorization_failed
    with WireClient(allowed.bootstrap) as client:
        client.create_topic("t")
        # A DENY entry does not hold for a super user.
        deny = entry("*", Operation.ALL, TOPIC)._replace(permission=2)  # type: ignore[arg-type]
        grant(client, [deny])
        assert client.produce("t", b"v").error_code == ErrorCode.none


def new_topic(name: str) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    return {"topics": [topic], "timeout_ms": 10_000}


def test_resources_without_an_entry(start_broker: Callable[..., ShoalProcess]) -> None:
    """allow.everyone.if.no.acl.found"""
    broker = start_broker(configs=CONFIGS | {"allow.everyone.if.no.acl.found": "true"})
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.create_topic("u")
        grant(client, [entry("10.0.0.1", READ, TOPIC, "t")])
        assert client.produce("t", b"v").error_code == ErrorCode.topic_authorization_failed
        assert client.produce("u", b"v").error_code == ErrorCode.none


def test_entries_outlive_a_restart(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs=CONFIGS)
    with WireClient(broker.bootstrap) as client:
        grant(client, [*everything(ADMIN), entry("127.0.0.9", DESCRIBE, TOPIC)])
        client.create_topic("t")
    broker.kill9()
    broker.start()
    with WireClient(broker.bootstrap, source="127.0.0.9") as client:
        assert names_of(client) == ["t"]
        assert client.produce("t", b"v").error_code == ErrorCode.topic_authorization_failed
    with WireClient(broker.bootstrap) as client:
        assert client.produce("t", b"v").error_code == ErrorCode.none


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"authorizer.class.name": "org.example.Mine"}, "Java authorizers cannot be loaded"),
        ({"super.users": "admin"}, "User:name;User:name"),
    ],
)
def test_refused_configs(
    configs: dict[str, str], said: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = ShoalProcess(tmp_path_factory.mktemp("refused") / "data", configs=configs)
    assert said in broker.refusal()


# Changes of entries


def fetch(topic: str, **fields: Any) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    return {
        "replica_id": -1,
        "max_wait_ms": WAIT_MS,
        "min_bytes": 1,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    } | fields


def code_of(answer: Any) -> ErrorCode:
    """Return the code of the only partition in an answer to a fetch."""
    (topic,) = answer.responses
    return ErrorCode(topic.partitions[0].error_code)


def test_a_waiting_fetch_ends_with_its_permission(admin: WireClient, guest: Guest) -> None:
    admin.create_topic("waits")
    acl = guest.may(READ, TOPIC, "waits")
    guest.send_waiting(ApiKey.FETCH, 12, fetch("waits"))
    began = time.monotonic()
    guest.may_not(acl)
    _, answer = guest.client.receive(ApiKey.FETCH, 12)
    assert time.monotonic() - began < SOON_S
    assert code_of(answer) == ErrorCode.topic_authorization_failed
    # Records that arrive later are not delivered.
    admin.produce("waits", b"secret")
    answer = guest.client.call(ApiKey.FETCH, 12, fetch("waits", max_wait_ms=0))
    assert code_of(answer) == ErrorCode.topic_authorization_failed
    assert not answer.responses[0].partitions[0].records


def test_another_change_leaves_a_fetch_waiting(admin: WireClient, guest: Guest) -> None:
    admin.create_topic("waits-on")
    guest.may(READ, TOPIC, "waits-on")
    guest.send_waiting(ApiKey.FETCH, 12, fetch("waits-on"))
    grant(admin, [entry("10.0.0.1", READ, TOPIC, "another")])
    admin.produce("waits-on", b"v")
    _, answer = guest.client.receive(ApiKey.FETCH, 12)
    assert code_of(answer) == ErrorCode.none
    assert answer.responses[0].partitions[0].records


def test_a_fetch_waits_for_the_partitions_that_it_may_read(admin: WireClient, guest: Guest) -> None:
    """As in Kafka, a refused partition does not end the wait for others."""
    admin.create_topic("mine")
    admin.create_topic("not-mine")
    guest.may(READ, TOPIC, "mine")
    admin.produce("not-mine", b"secret")
    body = fetch("mine")
    body["topics"] += fetch("not-mine")["topics"]
    guest.send_waiting(ApiKey.FETCH, 12, body)
    admin.produce("mine", b"v")
    _, answer = guest.client.receive(ApiKey.FETCH, 12)
    codes = {t.topic: t.partitions[0].error_code for t in answer.responses}
    assert codes == {"mine": 0, "not-mine": ErrorCode.topic_authorization_failed}
    (mine,) = (t for t in answer.responses if t.topic == "mine")
    assert mine.partitions[0].records


def test_a_fetch_session_follows_the_entries(admin: WireClient, guest: Guest) -> None:
    admin.create_topic("session")
    admin.produce("session", b"v")
    acl = guest.may(READ, TOPIC, "session")
    answer = guest.client.call(ApiKey.FETCH, 12, fetch("session", session_epoch=0))
    assert code_of(answer) == ErrorCode.none
    session = {"session_id": answer.session_id, "topics": [], "max_wait_ms": 0}
    assert session["session_id"]
    guest.may_not(acl)
    answer = guest.client.call(ApiKey.FETCH, 12, fetch("", **session, session_epoch=1))
    assert code_of(answer) == ErrorCode.topic_authorization_failed
    guest.may(READ, TOPIC, "session")
    answer = guest.client.call(ApiKey.FETCH, 12, fetch("", **session, session_epoch=2))
    assert code_of(answer) == ErrorCode.none
    assert answer.responses[0].partitions[0].records


def share_fetch(group: str, topic_id: UUID, epoch: int, **fields: Any) -> dict[str, Any]:
    batches = fields.pop("batches", [])
    partition = {"partition_index": 0, "acknowledgement_batches": batches}
    return {
        "group_id": group,
        "member_id": MEMBER,
        "share_session_epoch": epoch,
        "max_wait_ms": WAIT_MS,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
    } | fields


def opened(admin: WireClient, guest: Guest, name: str) -> UUID:
    """Create a topic, let the guest read it in the share group of its name, and acquire the first
    record in a new session."""
    topic_id: UUID = admin.create_topic(name)
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": name, "configs": [config]}
    admin.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    guest.may(READ, GROUP, name)
    heartbeat = {"group_id": name, "member_id": MEMBER, "subscribed_topic_names": [name]}

    def joined() -> bool:
        body = heartbeat | {"member_epoch": 0}
        answer = guest.client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)
        assert answer.error_code in (0, ErrorCode.coordinator_not_available, 14, 16), answer
        assignment = answer.assignment
        return assignment is not None and bool(assignment.topic_partitions)

    eventually(joined, what="an assignment")
    admin.produce(name, b"first")
    answer = guest.client.call(ApiKey.SHARE_FETCH, 2, share_fetch(name, topic_id, 0))
    (topic,) = answer.responses
    assert topic.partitions[0].acquired_records, answer
    return topic_id


def test_a_waiting_share_fetch_ends_with_its_permission(admin: WireClient, guest: Guest) -> None:
    acl = guest.may(READ, TOPIC, "shared")
    topic_id = opened(admin, guest, "shared")
    guest.send_waiting(ApiKey.SHARE_FETCH, 2, share_fetch("shared", topic_id, 1))
    guest.may_not(acl)
    began = time.monotonic()
    _, answer = guest.client.receive(ApiKey.SHARE_FETCH, 2)
    assert time.monotonic() - began < SOON_S
    assert code_of(answer) == ErrorCode.topic_authorization_failed
    admin.produce("shared", b"secret")
    answer = guest.client.call(
        ApiKey.SHARE_FETCH, 2, share_fetch("shared", topic_id, 2, max_wait_ms=0)
    )
    assert code_of(answer) == ErrorCode.topic_authorization_failed
    assert not answer.responses[0].partitions[0].acquired_records
    # It settles nothing either.
    accept = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    answer = guest.client.call(
        ApiKey.SHARE_ACKNOWLEDGE, 2, share_fetch("shared", topic_id, 3, batches=accept)
    )
    assert code_of(answer) == ErrorCode.topic_authorization_failed


def test_a_waiting_share_fetch_ends_with_its_group(admin: WireClient, guest: Guest) -> None:
    guest.may(READ, TOPIC, "of-group")
    topic_id = opened(admin, guest, "of-group")
    guest.send_waiting(ApiKey.SHARE_FETCH, 2, share_fetch("of-group", topic_id, 1))
    began = time.monotonic()
    withdraw(admin, [entry(guest.host, READ, GROUP, "of-group")])
    _, answer = guest.client.receive(ApiKey.SHARE_FETCH, 2)
    assert time.monotonic() - began < SOON_S
    assert answer.error_code == ErrorCode.group_authorization_failed


def test_records_are_cancelled_by_who_may_read_them_in_the_group(
    admin: WireClient, guest: Guest
) -> None:
    acl, name = guest.may(READ, TOPIC, "cancelled"), "cancelled"
    opened(admin, guest, name)
    offsets = [{"first_offset": 0, "last_offset": 0}]
    partition = {"partition_index": 0, "start_offset": -1, "cancelled_offsets": offsets}
    body = {"group_id": name, "topics": [{"topic_name": name, "partitions": [partition]}]}
    (topic,) = guest.client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body).responses
    assert topic.partitions[0].cancelled[0].outcome == CancelOutcome.IN_FLIGHT
    guest.may_not(acl)
    (topic,) = guest.client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body).responses
    assert topic.partitions[0].error_code == ErrorCode.topic_authorization_failed
    assert not getattr(topic.partitions[0], "cancelled", ())
    withdraw(admin, [entry(guest.host, READ, GROUP, name)])
    answer = guest.client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
    assert answer.error_code == ErrorCode.group_authorization_failed


def test_acknowledgements_of_a_share_fetch_whose_group_is_withdrawn(
    admin: WireClient, guest: Guest
) -> None:
    """The request has settled a record before it waits: it is answered all the same."""
    guest.may(READ, TOPIC, "settles")
    topic_id = opened(admin, guest, "settles")
    accept = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    body = share_fetch("settles", topic_id, 1, batches=accept)
    guest.send_waiting(ApiKey.SHARE_FETCH, 2, body)
    withdraw(admin, [entry(guest.host, READ, GROUP, "settles")])
    _, answer = guest.client.receive(ApiKey.SHARE_FETCH, 2)
    assert answer.error_code == ErrorCode.group_authorization_failed


def test_a_share_fetch_waits_for_the_topics_that_it_may_read(
    admin: WireClient, guest: Guest
) -> None:
    guest.may(READ, TOPIC, "shared-mine")
    topic_id = opened(admin, guest, "shared-mine")
    hidden: UUID = admin.create_topic("shared-not-mine")
    body = share_fetch("shared-mine", topic_id, 1)
    body["topics"] += share_fetch("", hidden, 1)["topics"]
    guest.send_waiting(ApiKey.SHARE_FETCH, 2, body)
    admin.produce("shared-not-mine", b"secret")
    admin.produce("shared-mine", b"second")
    _, answer = guest.client.receive(ApiKey.SHARE_FETCH, 2)
    found = {t.topic_id: t.partitions[0] for t in answer.responses}
    assert found[topic_id].acquired_records
    assert found[hidden].error_code == ErrorCode.topic_authorization_failed
    assert not found[hidden].records


def test_regular_expressions_match_what_the_member_may_describe(
    admin: WireClient, guest: Guest
) -> None:
    for name in ("re-1", "re-2", "re-3"):
        admin.create_topic(name)
    guest.may(READ, GROUP, "re-group")
    guest.may(DESCRIBE, TOPIC, "re-1")
    body: dict[str, Any] = {
        "group_id": "re-group",
        "member_id": MEMBER,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_regex": "re-.*",
        "topic_partitions": [],
    }

    def assigned() -> set[str]:
        answer = guest.client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
        if answer.error_code:
            return set()
        body["member_epoch"] = answer.member_epoch
        described = admin.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": ["re-group"]})
        (member,) = described.groups[0].members
        return {t.topic_name for t in member.target_assignment.topic_partitions}

    eventually(lambda: assigned() == {"re-1"}, what="the topic of the member")
    guest.may(DESCRIBE, TOPIC, "re-2")
    eventually(lambda: assigned() == {"re-1", "re-2"}, what="the topic of the new entry")
    withdraw(admin, [entry(guest.host, DESCRIBE, TOPIC, "re-1")])
    eventually(lambda: assigned() == {"re-2"}, what="the end of the entry")


# What the cluster does for a client


def test_the_client_id_of_kafkas_tools_is_no_right(
    guest: Guest, shared_broker: ShoalProcess
) -> None:
    """Kafka lets every client with that id write to internal topics where it has WRITE."""
    for topic in ("__consumer_offsets", "__share_group_state"):
        guest.may(WRITE, TOPIC, topic)
    guest.may(READ, GROUP, "of-tools")
    guest.client.call(ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": ["of-tools"]})
    with WireClient(shared_broker.bootstrap, client_id="__admin_client", source=guest.host) as tool:
        produced = tool.produce("__consumer_offsets", b"v")
        assert produced.error_code == ErrorCode.invalid_topic_exception
        guest.may(Operation.CLUSTER_ACTION, CLUSTER)
        # Allowed: the batch reaches the log, which refuses a record without a key.
        assert tool.produce("__consumer_offsets", b"v").error_code == ErrorCode.invalid_record


@pytest.mark.parametrize("api", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_a_groups_dead_letter_topic_needs_write(guest: Guest, api: ApiKey) -> None:
    """The brokers write there. An administrator of a group filled another team's topic by them."""
    guest.may(Operation.ALTER_CONFIGS, GROUP, "dlq-group")

    def alter(topic: str) -> tuple[int, str | None]:
        name = "errors.deadletterqueue.topic.name"
        config = {"name": name, "value": topic, "config_operation": 0}
        resource = {"resource_type": 32, "resource_name": "dlq-group", "configs": [config]}
        (row,) = guest.client.call(api, 1, {"resources": [resource]}).responses
        return row.error_code, row.error_message

    said = "Setting the dead-letter topic dlq.theirs needs WRITE on it."
    assert alter("dlq.theirs") == (ErrorCode.topic_authorization_failed, said)
    acl = guest.may(WRITE, TOPIC, "dlq.theirs")
    assert alter("dlq.theirs")[0] == ErrorCode.none
    guest.may_not(acl)
    assert alter("")[0] == ErrorCode.none


# Cached answers


def names_of(client: WireClient, topics: list[str] | None = None) -> list[str]:
    asked = None if topics is None else [{"name": name} for name in topics]
    answer = client.call(ApiKey.METADATA, 12, {"topics": asked, "allow_auto_topic_creation": False})
    return sorted(row.name for row in answer.topics if not row.error_code)


def test_cached_metadata_is_that_of_its_reader(
    admin: WireClient, guest: Guest, shared_broker: ShoalProcess
) -> None:
    for name in ("large-1", "large-2"):
        admin.create_topic(name, 120)
    everyone = {"large-1", "large-2"}
    with WireClient(shared_broker.bootstrap, source="127.0.2.1") as another:
        acl = guest.may(DESCRIBE, TOPIC, "large-1")
        for _ in range(3):
            assert set(names_of(admin)) >= everyone
            assert names_of(guest.client) == ["large-1"]
            assert names_of(another) == []
            assert names_of(guest.client, sorted(everyone)) == ["large-1"]
            assert names_of(admin, sorted(everyone)) == sorted(everyone)
        guest.may(DESCRIBE, TOPIC, "large-2")
        assert set(names_of(guest.client)) == everyone
        guest.may_not(acl)
        assert names_of(guest.client) == ["large-2"]


def test_cached_metadata_has_the_operations_of_its_reader(admin: WireClient, guest: Guest) -> None:
    admin.create_topic("operations", 120)
    body = {"topics": [{"name": "operations"}], "include_topic_authorized_operations": True}
    guest.may(READ, TOPIC, "operations")
    for _ in range(2):
        (row,) = guest.client.call(ApiKey.METADATA, 12, body).topics
        assert row.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
        (row,) = admin.call(ApiKey.METADATA, 12, body).topics
        assert row.topic_authorized_operations == 0b110111111000 & ~(1 << Operation.CLUSTER_ACTION)


def test_a_prefix_covers_new_topics(admin: WireClient, guest: Guest) -> None:
    acl = entry(guest.host, DESCRIBE, TOPIC, "team-", PatternType.PREFIXED)
    grant(admin, [acl])
    admin.create_topic("team-a")
    assert names_of(guest.client, ["team-a"]) == ["team-a"]
    assert permissions.count(admin) > 0


# Listeners that serve both clients and the quorum


def test_a_shared_listener_hides_the_metadata_log(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """Clients fetch records there, and only nodes the metadata log."""
    broker = start_broker(configs=CONFIGS | {"controller.listener.names": "PLAINTEXT"})
    log = {"topic_id": wire.TOPIC_ID, "partitions": [{"partition": 0, "fetch_offset": 0}]}
    body = {"max_wait_ms": 0, "session_epoch": -1, "replica_state": {"replica_id": 9}}
    with WireClient(broker.bootstrap) as admin:
        grant(admin, everything(ADMIN))
        topic_id = admin.create_topic("records")
        grant(admin, [entry("127.0.0.2", READ, TOPIC), entry("127.0.0.3", Operation.ALL, TOPIC)])
        answer = admin.call(ApiKey.FETCH, 18, body | {"topics": [log]})
        assert answer.error_code != ErrorCode.cluster_authorization_failed
    with WireClient(broker.bootstrap, source="127.0.0.2") as client:
        answer = client.call(ApiKey.FETCH, 18, body | {"topics": [log]})
        assert answer.error_code == ErrorCode.cluster_authorization_failed
        records = fetch("records", max_wait_ms=0)
        records["topics"][0]["topic_id"] = topic_id
        assert code_of(client.call(ApiKey.FETCH, 18, records)) == ErrorCode.none


def test_individual_commits_need_what_plain_ones_need(guest: Guest, admin: WireClient) -> None:
    """READ on the group and on the topic; DESCRIBE on both to fetch what is committed."""
    admin.create_topic("individual")
    admin.produce("individual", *[b"v"] * 10)
    finished = FinishedOffsets.from_ranges([(5, 8)]).encode()
    key_range = {
        "first_hash": 0,
        "last_hash": KEY_HASH_MAX,
        "position": 3,
        "finished": finished,
    }
    part = {"partition_index": 0, "committed_metadata": None, "key_ranges": [key_range]}
    commit = {
        "group_id": "individual",
        "member_id": "m",
        "topics": [{"name": "individual", "partitions": [part]}],
    }
    beat = {
        "group_id": "individual",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["individual"],
        "topic_partitions": [],
    }
    joined = eventually(
        lambda: (
            (answer := admin.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat)).member_epoch and answer
        )
    )
    commit["generation_id_or_member_epoch"] = joined.member_epoch

    def committed(client: WireClient) -> int:
        answer = client.call(ApiKey.OFFSET_COMMIT, 9, commit)
        return int(answer.topics[0].partitions[0].error_code)

    def fetched(client: WireClient) -> list[Any]:
        asked = {"group_id": "individual", "topics": None, "member_epoch": -1}
        groups = {"groups": [{**asked, "key_ranges_wanted": True}]}
        (group,) = client.call(ApiKey.OFFSET_FETCH, 9, groups).groups
        return [group.error_code, *(p.key_ranges for t in group.topics for p in t.partitions)]

    assert committed(guest.client) == ErrorCode.group_authorization_failed
    assert fetched(guest.client) == [ErrorCode.group_authorization_failed]
    guest.may(READ, GROUP, "individual")
    assert committed(guest.client) == ErrorCode.topic_authorization_failed
    assert fetched(admin) == [0]
    guest.may(READ, TOPIC, "individual")
    assert committed(guest.client) == ErrorCode.none
    (_, (stored,)) = fetched(guest.client)
    assert (stored.position, stored.finished) == (3, finished)


def test_fetches_by_key_ranges_need_what_plain_ones_need(guest: Guest, admin: WireClient) -> None:
    """READ on the topic. Without it, the client does not learn whether the topic has key ranges."""
    admin.create_topic("ranged", shoal_key_ranges_enable="true")
    admin.create_topic("plain")
    for topic in ("ranged", "plain"):
        admin.produce(topic, *[b"v"] * 10)

    def fetched(topic: str) -> Any:
        asked = {"key_ranges": [{"first_hash": 0, "last_hash": KEY_HASH_MAX}]}
        return guest.client.fetch(topic, 0, asked=asked, max_wait_ms=1)

    for topic in ("ranged", "plain"):
        part = fetched(topic)
        assert part.error_code == ErrorCode.topic_authorization_failed
        assert not part.records
        assert not hasattr(part, "error_message")
    guest.may(READ, TOPIC, "ranged")
    guest.may(READ, TOPIC, "plain")
    part = fetched("ranged")
    assert (part.error_code, part.next_offset) == (ErrorCode.none, 10)
    assert fetched("plain").error_code == ErrorCode.policy_violation


def test_entries_in_a_metadata_snapshot_are_in_force_after_a_restart(tmp_path: Path) -> None:
    """The first image comes from the snapshot, without a delta. Without an entry for a resource,
    everyone may use it here: so a broker that loses its entries serves strangers."""
    snapshots = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    broker = ShoalProcess(tmp_path, configs=CONFIGS | snapshots).start()
    guest, stranger = "127.0.1.9", "127.0.1.10"

    def describes(who: str = guest) -> bool:
        with WireClient(broker.bootstrap, source=who) as client:
            found = client.call(ApiKey.METADATA, 12, {"topics": [{"name": "jobs"}]})
            return bool(found.topics[0].error_code == ErrorCode.none)

    def ends() -> list[int]:
        found = tmp_path.glob("__cluster_metadata-0/*.checkpoint")
        return [int(path.name.split("-")[0]) for path in found]

    try:
        with WireClient(broker.bootstrap) as admin:
            grant(admin, [*everything(ADMIN), entry(guest, DESCRIBE, TOPIC, "jobs")])
            admin.create_topic("jobs")
            eventually(describes)
            before = max(ends(), default=0)
            admin.create_topic("later")
        eventually(lambda: max(ends(), default=0) > before, what="a snapshot")
        broker.restart()
        assert describes()
        assert not describes(stranger)
    finally:
        broker.kill9()
