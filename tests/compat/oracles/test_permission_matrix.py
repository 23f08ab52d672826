"""The permission matrix: the same entries and requests to Apache Kafka and to Shoal.

`permission_probes` has the clients, each with an address and permissions of its own, and the
requests. The answers must have equal error codes and show the same names. docs/compat.md has the
exceptions, with the reason of each.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import compat_page
import pytest
from compat.oracles import permission_probes as material
from compat.oracles.permission_probes import Client, Ids, Probe
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, get_error_name
from shoal.server.handlers import HANDLERS
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually
from support.security.permissions import ADMIN, count, everything, grant
from support.security.permissions import CONFIGS as PERMISSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from shoal.security.acls import Acl

pytestmark = pytest.mark.java

#: The listener of clients that log in.
LOGIN = "LOGIN"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_USERS = " ".join(f'user_{user}="{word}"' for user, word in material.PASSWORDS.items())
CONFIGS = {
    **PERMISSIONS,
    "super.users": f"User:{material.SUPER}",
    "sasl.enabled.mechanisms": "PLAIN",
    f"listener.name.{LOGIN.lower()}.plain.sasl.jaas.config": f"{_PLAIN} {_USERS};",
    "group.consumer.session.timeout.ms": "60000",
    "group.share.session.timeout.ms": "60000",
    "transaction.max.timeout.ms": "86400000",
    "log.retention.ms": "-1",
}
#: What `KafkaProcess` sets for Kafka.
AS_KAFKA = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
#: No transaction ends during a run.
TRANSACTION_MS = 86_400_000
#: Fields of responses that show names; `topic_id` is compared by the topic.
NAMES = {
    "group_id",
    "key",
    "name",
    "resource_name",
    "source_topics",
    "topic",
    "topic_authorized_operations",
    "cluster_authorized_operations",
    "authorized_operations",
    "topic_config_error_code",
    "topic_id",
    "topic_name",
    "transactional_id",
}
#: Fields of which only the presence is compared: Kafka has topic configs that Shoal has not.
PRESENT = {"configs"}
#: Fields that do not depend on permissions.
IGNORED = {"supported_features", "finalized_features", "nodes", "brokers"}
CLOSED = "the connection is closed"
#: Clients of each probe that a run in CI draws; the whole matrix has 246.
DRAWN_CLIENTS = 2


class Case(NamedTuple):
    """One probe in one version by one client."""

    probe: Probe
    version: int
    client: Client

    def __str__(self) -> str:
        return f"{self.probe.name} v{self.version} by {self.client.name}"


class Difference(NamedTuple):
    """An API whose answers differ: a part of each answer, and the reason."""

    api: ApiKey
    kafka: str
    shoal: str
    reason: str


DIFFERENCES = [Difference(*row) for row in compat_page.ANSWERS]


class Side:
    """One of the two brokers, with the same topics, groups and entries as the other."""

    def __init__(self, bootstrap: str, logins: str) -> None:
        """`logins` is the address of clients that log in."""
        self.bootstrap, self._logins = bootstrap, logins
        self.admin = WireClient(bootstrap)
        self.ids = Ids({}, "")
        self._cases = 0
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    # Set-up

    def prepare(self, acls: list[Acl]) -> None:
        for at in range(0, len(acls), 100):
            grant(self.admin, acls[at : at + 100])
        eventually(lambda: count(self.admin) == len(acls), what="all entries")
        for topic in (material.TOPICS[0], material.TOPICS[2], material.DOOMED_TOPIC):
            self._create_topic(topic)
        self._learn_ids()
        for topic in (material.TOPICS[0], material.TOPICS[2]):
            self.admin.produce(topic, b"value")
        self._find_coordinators()
        for group in (material.GROUPS[0], material.GROUPS[2], material.DOOMED_GROUP):
            self._commit(group)
        for name in (material.TRANSACTIONS[0], material.TRANSACTIONS[2]):
            self._begin_transaction(name)
        read = material.TOPICS[0]
        names = {"subscribed_topic_names": [read]}
        consumer = {**names, "rebalance_timeout_ms": 60_000, "topic_partitions": []}
        streams = material.streams_fields(read) | {name: [] for name in material.STREAMS_TASKS}
        streams |= {"rebalance_timeout_ms": 60_000, "process_id": "process"}
        self._join(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, material.CONSUMERS, consumer)
        self._join(ApiKey.SHARE_GROUP_HEARTBEAT, 1, material.SHARERS, names)
        self._join(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, material.STREAMERS, streams)

    def _create_topic(self, name: str) -> None:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        answer = self.admin.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 30_000})
        codes = {row.error_code for row in answer.topics}
        assert codes <= {ErrorCode.none, ErrorCode.topic_already_exists}, answer
        eventually(lambda: self._id_of(name), what=f"the topic {name}")

    def _id_of(self, name: str) -> UUID | None:
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        (row,) = self.admin.call(ApiKey.METADATA, 12, body).topics
        return None if row.error_code else row.topic_id

    def _learn_ids(self) -> None:
        answer = self.admin.call(ApiKey.METADATA, 12, {"topics": None})
        cluster = self.admin.call(ApiKey.DESCRIBE_CLUSTER, 0, {})
        self.ids = Ids({row.name: row.topic_id for row in answer.topics}, cluster.cluster_id)

    def _begin_transaction(self, name: str) -> None:
        body = {"transactional_id": name, "transaction_timeout_ms": TRANSACTION_MS}
        producer = self._settled(ApiKey.INIT_PRODUCER_ID, 4, body)
        begin = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.producer_epoch,
            "v3_and_below_topics": [{"name": material.TOPICS[0], "partitions": [0]}],
        }

        def begun() -> bool:
            answer = self.admin.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, begin)
            (topic,) = answer.results_by_topic_v3_and_below
            return not topic.results_by_partition[0].partition_error_code

        eventually(begun, what=f"a transaction of {name}")

    def _settled(self, api: ApiKey, version: int, body: dict[str, Any]) -> Any:
        """Return the answer of a coordinator, which may be loading."""

        def probe() -> Any:
            answer = self.admin.call(api, version, body)
            return None if answer.error_code else answer

        return eventually(probe, what=api.name)

    def _commit(self, group: str) -> None:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
                ],
            }
            for topic in (material.TOPICS[0], material.TOPICS[2])
        ]
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": topics,
        }

        def committed() -> bool:
            rows = self.admin.call(ApiKey.OFFSET_COMMIT, 8, body).topics
            return not any(p.error_code for row in rows for p in row.partitions)

        eventually(committed, what=f"offsets of {group}")

    def _join(self, api: ApiKey, version: int, group: str, fields: dict[str, Any]) -> None:
        """Have a member of the group, whose session is extended until the end. `fields` are those
        of its first heartbeat; later ones report no change."""
        client = WireClient(self.bootstrap)
        body: dict[str, Any] = {
            "group_id": group,
            "member_id": "the-only-member-of-grp",
            "member_epoch": 0,
            **fields,
        }

        def joined() -> bool:
            answer = client.call(api, version, body)
            if answer.error_code != ErrorCode.none:
                return False
            body.update(dict.fromkeys(fields), member_epoch=answer.member_epoch)
            body["rebalance_timeout_ms"] = -1
            if api is ApiKey.STREAMS_GROUP_HEARTBEAT:
                return bool(answer.active_tasks)
            return answer.assignment is not None and bool(answer.assignment.topic_partitions)

        eventually(joined, what=f"an assignment in {group}")

        def remain() -> None:
            with client:
                while not self._over.wait(3):
                    answer = client.call(api, version, body)
                    body["member_epoch"] = answer.member_epoch or body["member_epoch"]

        thread = threading.Thread(target=remain, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _find_coordinators(self) -> None:
        """Create the internal topics, and wait until the coordinators are known."""
        share_key = f"{material.SHARERS}:{format_uuid(self.ids.of(material.TOPICS[0]))}:0"
        for key_type, key in enumerate((material.GROUPS[0], material.TRANSACTIONS[0], share_key)):
            self._find_coordinator({"key_type": key_type, "coordinator_keys": [key]})

    def _find_coordinator(self, body: dict[str, Any]) -> None:
        def found() -> bool:
            answer = self.admin.call(ApiKey.FIND_COORDINATOR, 6, body)
            return not any(row.error_code for row in answer.coordinators)

        eventually(found, what="a coordinator")

    def _delete_topic(self, name: str) -> None:
        """Delete a topic that exists now or will in a moment."""
        eventually(lambda: self._id_of(name), what=f"the topic {name}")
        body = {"topics": [{"name": name, "topic_id": None}], "timeout_ms": 30_000}
        (row,) = self.admin.call(ApiKey.DELETE_TOPICS, 6, body).responses
        assert not row.error_code, row
        eventually(lambda: self._id_of(name) is None, what=f"the end of {name}")

    def restore(self, probe: Probe, answer: Any) -> None:
        """Repair what the request of a probe has deleted or created."""
        if probe.creates and "authorization_failed" not in str(answer):
            self._delete_topic(material.AUTO_TOPIC)
        if probe.api is ApiKey.DELETE_TOPICS and "'none'" in str(answer):
            eventually(lambda: self._id_of(material.DOOMED_TOPIC) is None, what="the deletion")
            self._create_topic(material.DOOMED_TOPIC)
            self._learn_ids()
        if probe.api in (ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE):
            self._commit(material.DOOMED_GROUP)

    # Requests

    def ask(self, case: Case) -> Any:
        """Return what is visible in the answers to a case."""
        self._cases += 1
        # Kafka reads it as an id of 16 bytes in base 64.
        ids = self.ids._replace(member=f"member-of-the-{self._cases:08}")
        user = case.client.user
        client = WireClient(self._logins if user else self.bootstrap, source=case.client.host)
        with client:
            if user:
                client.log_in(user, material.PASSWORDS[user])
            answers: list[Any] = []
            for api, body in case.probe.steps:
                version = case.version
                if api is not case.probe.api:
                    version = HANDLERS[api].versions[-1]
                try:
                    answer = client.call(api, version, body(ids))
                except (ConnectionResetError, BrokenPipeError):
                    return [*answers, CLOSED]
                answers.append(self._visible(answer, ""))
            return answers

    def _visible(self, value: Any, name: str) -> Any:
        """Return error codes and names in an answer. Lists are sorted."""
        if name in PRESENT:
            return bool(value)
        if name in IGNORED:
            return None
        if dataclasses.is_dataclass(value):
            found = {}
            for field in dataclasses.fields(value):
                part = self._visible(getattr(value, field.name), field.name)
                if part is not None:
                    found[field.name] = part
            return found or None
        if isinstance(value, tuple | list):
            rows = [self._visible(item, name) for item in value]
            rows = [row for row in rows if row is not None]
            return sorted(rows, key=str) or None
        if name == "topic_id":
            return self._topic_of(value)
        if name.endswith("error_code"):
            return get_error_name(value).lower()
        return value if name in NAMES else None

    def _topic_of(self, topic_id: UUID | None) -> str | None:
        if topic_id is None or topic_id.int == 0:
            return None
        known = {id: name for name, id in self.ids.topics.items()}
        return "unknown" if topic_id == material.UNKNOWN_ID else known.get(topic_id, "new")

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.admin.close()


class Pair(NamedTuple):
    kafka: Side
    shoal: Side

    def differs(self, case: Case) -> tuple[Any, Any] | None:
        """Ask both, and return their answers if they differ without a reason."""
        kafka, shoal = self.kafka.ask(case), self.shoal.ask(case)
        self.kafka.restore(case.probe, kafka)
        self.shoal.restore(case.probe, shoal)
        if kafka == shoal or excused(case, kafka, shoal):
            return None
        return kafka, shoal


def excused(case: Case, kafka: Any, shoal: Any) -> bool:
    """Return whether `DIFFERENCES` has the difference between two answers."""
    return any(
        case.probe.api is difference.api
        and difference.kafka in str(kafka)
        and difference.shoal in str(shoal)
        and (difference.kafka not in str(shoal) or difference.shoal not in str(kafka))
        for difference in DIFFERENCES
    )


@contextmanager
def ended(side: Side) -> Iterator[Side]:
    try:
        yield side
    finally:
        side.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("matrix")
    acls = everything(ADMIN)
    for client in material.clients():
        acls += client.acls
    protocols = {LOGIN: "SASL_PLAINTEXT"}
    kafka = KafkaProcess(
        folder / "kafka",
        listeners=protocols,
        configs=CONFIGS,
    ).start()
    try:
        (port,) = free_ports(1)
        logins = f"127.0.0.1:{port}"
        protocol_map = f"PLAINTEXT:PLAINTEXT,{LOGIN}:{protocols[LOGIN]}"
        shoal = ShoalProcess(
            folder / "shoal",
            configs={**CONFIGS, **AS_KAFKA, "listener.security.protocol.map": protocol_map},
            flags=[f"--listener={LOGIN}://{logins}"],
        ).start()
        with (
            ended(Side(kafka.bootstrap, kafka.addresses[LOGIN])) as ours,
            ended(Side(shoal.bootstrap, logins)) as theirs,
        ):
            for side in (ours, theirs):
                side.prepare(acls)
            yield Pair(ours, theirs)
        assert shoal.stop() == 0, "\n".join(shoal.log[-40:])
    finally:
        kafka.kill9()


def versions_of(probe: Probe, *, every: bool) -> tuple[int, ...]:
    """Return the versions of the sample, or `every` one."""
    served = HANDLERS[probe.api].versions
    chosen = probe.versions or tuple(dict.fromkeys((served[0], served[-1])))
    return tuple(v for v in served if chosen[0] <= v <= chosen[-1]) if every else chosen


def all_cases(*, every: bool) -> list[Case]:
    return [
        Case(probe, version, client)
        for probe in material.probes()
        for version in versions_of(probe, every=every)
        for client in material.clients()
    ]


def check(pair: Pair, cases: list[Case]) -> None:
    different: dict[str, list[Case]] = {}
    for case in cases:
        found = pair.differs(case)
        if found is not None:
            answers = f"\n  Kafka {found[0]}\n  Shoal {found[1]}"
            different.setdefault(case.probe.api.name + answers, []).append(case)
    apis = Counter(case.probe.api.name for found in different.values() for case in found)
    rows = [f"{found[0]} and {len(found) - 1} more: {text}" for text, found in different.items()]
    assert not different, f"{dict(apis)} differ:\n" + "\n".join(rows[:100])


def test_a_sample_of_the_matrix(pair: Pair, seed: int) -> None:
    """Each probe in a drawn version, by a client with nothing, one with everything, and others."""
    drawn = random.Random(seed)
    cases = []
    for _, of_probe in itertools.groupby(all_cases(every=False), lambda case: case.probe):
        of_version = list(of_probe)
        version = drawn.choice(sorted({case.version for case in of_version}))
        by_kind: dict[bool, list[Case]] = {True: [], False: []}
        for case in of_version:
            if case.version == version:
                by_kind[case.client.name in ("nothing", "everything")].append(case)
        cases += by_kind[True] + drawn.sample(by_kind[False], DRAWN_CLIENTS)
    check(pair, cases)


@pytest.mark.nightly
@pytest.mark.timeout(6 * 3600)
def test_the_whole_matrix(pair: Pair) -> None:
    """All versions, too. SHOAL_MATRIX_PART=2/8 runs the second eighth of it, and
    SHOAL_MATRIX_APIS=FETCH,PRODUCE these APIs."""
    part, of = map(int, os.environ.get("SHOAL_MATRIX_PART", "1/1").split("/"))
    apis = os.environ.get("SHOAL_MATRIX_APIS", "").split(",")
    cases = [c for c in all_cases(every=True) if not apis[0] or c.probe.api.name in apis]
    check(pair, cases[part - 1 :: of])
