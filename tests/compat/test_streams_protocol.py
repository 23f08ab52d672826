"""StreamsGroupHeartbeat and StreamsGroupDescribe: Shoal answers as Kafka 4.3.1 does (KIP-1071).

Each test is a dialogue that is held with both servers. All responses must be equal, except for the
heartbeat interval: Shoal's is shorter while a member waits. Rebalance delays are 0 unless a
dialogue sets them.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

import permissions
import pytest
from conditions import eventually
from kafkas import KafkaProcess
from permissions import ADMIN, entry, everything, grant
from servers import ShoalProcess
from shoal.protocol.api import ApiKey
from shoal.security.acls import Operation, ResourceType
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.java

CONFIGS = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.max.size": "4",
    # No member's session ends while a slow machine runs the other tests.
    "group.streams.min.session.timeout.ms": "600000",
    "group.streams.session.timeout.ms": "600000",
    "group.streams.max.session.timeout.ms": "600000",
}
NOTHING: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of both servers."""
    with both_servers(tmp_path_factory.mktemp("servers"), CONFIGS) as found:
        yield found


@pytest.fixture
def authorizing_servers(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The addresses of servers that authorize clients by their addresses."""
    with both_servers(tmp_path, CONFIGS | permissions.CONFIGS) as found:
        yield found


@contextmanager
def both_servers(directory: Path, configs: dict[str, str]) -> Iterator[dict[str, str]]:
    one_shard = {"offsets.topic.num.partitions": "1"}
    kafka = KafkaProcess(directory / "kafka", configs=configs | one_shard).start()
    shoal = ShoalProcess(directory / "shoal", configs=configs).start()
    for bootstrap in (kafka.bootstrap, shoal.bootstrap):
        with WireClient(bootstrap) as wire:
            eventually(lambda: has_coordinators(wire), what="coordinators of all groups")
    yield {"kafka": kafka.bootstrap, "shoal": shoal.bootstrap}
    kafka.kill9()
    assert shoal.stop() == 0, "\n".join(shoal.log[-40:])


def has_coordinators(wire: WireClient) -> bool:
    """Create `__consumer_offsets`, and return whether its partitions are loaded."""
    body = {"key_type": 0, "coordinator_keys": ["any"]}
    (found,) = wire.call(ApiKey.FIND_COORDINATOR, 4, body).coordinators
    groups = {"group_ids": [f"group-{n}" for n in range(50)]}
    described = wire.call(ApiKey.STREAMS_GROUP_DESCRIBE, 0, groups).groups
    return found.error_code == 0 and {g.error_code for g in described} == {69}


def subtopology(
    name: str,
    sources: Sequence[str],
    *,
    changelogs: Sequence[Any] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[Any] = (),
    copartition: Sequence[Any] = (),
    **more: Any,
) -> dict[str, Any]:
    return {
        "subtopology_id": name,
        "source_topics": sources,
        "source_topic_regex": [],
        "state_changelog_topics": changelogs,
        "repartition_sink_topics": sinks,
        "repartition_source_topics": repartition,
        "copartition_groups": copartition,
        **more,
    }


def internal(name: str, partitions: int = 0, **configs: str) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": 1,
        "topic_configs": [{"key": k.replace("_", "."), "value": v} for k, v in configs.items()],
    }


def together(sources: Sequence[int], repartition: Sequence[int] = ()) -> dict[str, Any]:
    return {
        "source_topics": sources,
        "source_topic_regex": [],
        "repartition_source_topics": repartition,
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies)}


Compare = Callable[[Callable[["Dialogue"], object]], list[Any]]


class Dialogue:
    """The requests of one test to one server, and the responses as plain values."""

    def __init__(self, bootstrap: str, group: str, source: str = "") -> None:
        self.bootstrap = bootstrap
        self.wire = WireClient(bootstrap, source=source)
        self.group = group
        self.transcript: list[Any] = []
        #: Member epoch, endpoint epoch and owned tasks of each member, by its name.
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[str, Any]] = {}

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, and wait until the coordinator has its metadata."""
        self.wire.create_topic(name, partitions)
        probe = Dialogue(self.bootstrap, f"probe-{name}")
        with probe.wire:
            sent = topology(subtopology("0", [name]))
            eventually(lambda: not probe.join("probe", sent)["status"], what=name)
            probe.leave("probe")

    def join(self, member: str, sent: dict[str, Any], **more: Any) -> dict[str, Any]:
        fields = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "topology": sent,
            "process_id": f"process-{member}",
            "client_tags": [],
            **NOTHING,
            **more,
        }
        return self.heartbeat(member, **fields)

    def heartbeat(self, member: str, **more: Any) -> dict[str, Any]:
        """Send a heartbeat of a member, and remember its epoch and its tasks."""
        body = {
            "group_id": self.group,
            "member_id": member,
            "member_epoch": self.epochs.get(member, 0),
            "endpoint_information_epoch": 0,
            "rebalance_timeout_ms": -1,
            **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets", *NOTHING), None),
            **more,
        }
        answer = plain(self.wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body))
        self.transcript.append((member, more.get("member_epoch"), answer))
        if answer["error_code"] == 0:
            self.epochs[member] = answer["member_epoch"]
            if answer["active_tasks"] is not None:
                self.owned[member] = {name: answer[name] for name in NOTHING}
        return answer

    def settle(self, *members: str) -> None:
        """Heartbeat in turns, with the tasks that were assigned last, until nothing changes."""
        before: object = None
        while before != (before := ({**self.epochs}, {**self.owned})):
            for member in members:
                self.heartbeat(member, **self.owned.get(member, NOTHING))

    def until_ready(self, member: str) -> None:
        """Heartbeat until the internal topics exist. The transcript does not have the responses."""
        length = len(self.transcript)
        eventually(lambda: not self.heartbeat(member, **NOTHING)["status"], timeout_s=30)
        del self.transcript[length:]

    def describe(self, *groups: str) -> Any:
        body = {"group_ids": list(groups or [self.group]), "include_authorized_operations": False}
        answer = plain(self.wire.call(ApiKey.STREAMS_GROUP_DESCRIBE, 0, body))
        self.transcript.append(("describe", answer))
        return answer

    def topics(self, *names: str) -> None:
        """Note the numbers of partitions and the own configs of topics."""
        body = {"topics": [{"name": name} for name in names]}
        answer = self.wire.call(ApiKey.METADATA, 12, body)
        self.transcript.append(sorted((t.name, len(t.partitions)) for t in answer.topics))

    def commit(
        self,
        member: str,
        topic: str,
        partition: int,
        *,
        epoch: int | None = None,
        version: int = 9,
    ) -> None:
        body = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.epochs[member] if epoch is None else epoch,
            "member_id": member,
            "group_instance_id": None,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": 5,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        answer = plain(self.wire.call(ApiKey.OFFSET_COMMIT, version, body))
        self.transcript.append(("commit", answer))

    def fetch_offsets(self, member: str | None, epoch: int, topic: str) -> None:
        group = {
            "group_id": self.group,
            "member_id": member,
            "member_epoch": epoch,
            "topics": [{"name": topic, "partition_indexes": [0, 1]}],
        }
        body = {"groups": [group], "require_stable": False}
        answer = plain(self.wire.call(ApiKey.OFFSET_FETCH, 9, body))
        self.transcript.append(("fetch offsets", answer))

    def list_own(self) -> None:
        """Note this group as ListGroups has it. The state of others depends on their age."""
        body = {"states_filter": [], "types_filter": ["streams"]}
        answer = self.wire.call(ApiKey.LIST_GROUPS, 5, body)
        self.transcript.append([plain(g) for g in answer.groups if g.group_id == self.group])

    def leave(self, member: str, **more: Any) -> dict[str, Any]:
        return self.heartbeat(member, member_epoch=-1, **more)

    def call(self, api: ApiKey, version: int, body: dict[str, Any]) -> Any:
        answer = plain(self.wire.call(api, version, body))
        self.transcript.append((api.name, answer))
        return answer


def plain(value: Any) -> Any:
    """A response as dicts and lists, without times, and with lists of structs in one order."""
    if dataclasses.is_dataclass(value):
        fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        left_out = ("heartbeat_interval", "throttle_time", "authorized_operations", "client_host")
        return {name: plain(one) for name, one in fields if name not in left_out}
    if isinstance(value, tuple):
        return sorted((plain(one) for one in value), key=repr)
    if isinstance(value, UUID):
        return "id"
    if isinstance(value, datetime.timedelta):
        return value / datetime.timedelta(milliseconds=1)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.fixture
def compare(servers: dict[str, str], request: pytest.FixtureRequest) -> Compare:
    """Hold a dialogue with both servers, compare the transcripts, and return one."""

    def both(talk: Callable[[Dialogue], object]) -> list[Any]:
        transcripts = {}
        for name, bootstrap in servers.items():
            dialogue = Dialogue(bootstrap, f"group-{request.node.name}")
            with dialogue.wire:
                talk(dialogue)
            transcripts[name] = dialogue.transcript
        ours, theirs = transcripts["shoal"], transcripts["kafka"]
        for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
            assert our == their, f"entry {number} of the transcript"
        assert len(ours) == len(theirs)
        return ours

    return both


def test_members_join_share_tasks_and_leave(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("shared", 4)
        sent = topology(subtopology("0", ["shared"]))
        d.join("a", sent)
        d.heartbeat("a")
        d.describe()
        d.join("b", sent)
        d.describe()
        d.settle("a", "b")
        d.describe()
        d.join("c", sent, process_id="process-a")
        d.settle("a", "b", "c")
        d.leave("b")
        d.describe()
        d.settle("a", "c")
        d.leave("a")
        d.settle("c")
        d.leave("c")
        d.describe()

    transcript = compare(talk)
    assert any(entry[-1].get("active_tasks") for entry in transcript if entry[0] == "c")


def test_members_keep_their_tasks_until_they_have_revoked_them(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("revoked", 4)
        sent = topology(subtopology("0", ["revoked"]))
        d.join("a", sent)
        everything = d.owned["a"]
        d.join("b", sent)
        d.heartbeat("a")
        d.heartbeat("a", **everything)
        d.heartbeat("b", **NOTHING)
        d.describe()
        d.heartbeat("a", **d.owned["a"])
        d.heartbeat("b", **NOTHING)
        d.describe()

    transcript = compare(talk)
    states = [
        entry[1]["groups"][0]["group_state"] for entry in transcript if entry[0] == "describe"
    ]
    assert states == ["Reconciling", "Stable"]


def test_standby_tasks_follow_the_config(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("stateful", 3)
        sent = topology(subtopology("0", ["stateful"], changelogs=[internal("stateful-log")]))
        d.join("a", sent)
        d.until_ready("a")
        for member in "bc":
            d.join(member, sent)
        d.settle("a", "b", "c")
        resource = {
            "resource_type": 32,
            "resource_name": d.group,
            "configs": [
                {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
            ],
        }
        d.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        eventually(lambda: d.heartbeat("a", **d.owned["a"])["member_epoch"] > 5, timeout_s=30)
        d.settle("a", "b", "c")
        # How often the config was not yet in effect is not compared.
        d.transcript[:] = [d.owned, d.epochs]
        d.describe()

    owned, *_ = compare(talk)
    assert all(tasks["standby_tasks"] for tasks in owned.values())


def test_internal_topics_are_created_with_their_partitions(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("words", 3)
        d.topic("other", 5)
        sent = topology(
            subtopology("0", ["words"], sinks=["counts-repartition", "fixed-repartition"]),
            subtopology(
                "1",
                [],
                repartition=[internal("counts-repartition", cleanup_policy="delete")],
                changelogs=[internal("counts-changelog", cleanup_policy="compact")],
            ),
            subtopology(
                "2",
                ["other"],
                repartition=[internal("fixed-repartition", 7, segment_bytes="52428800")],
                changelogs=[internal("joined-changelog")],
            ),
        )
        answer = d.join("a", sent)
        assert [status["status_code"] for status in answer["status"]] == [3], answer
        d.until_ready("a")
        d.topics("counts-repartition", "counts-changelog", "fixed-repartition", "joined-changelog")
        d.settle("a")
        d.transcript = [d.owned, *d.transcript]
        d.describe()

    transcript = compare(talk)
    assert ("counts-repartition", 3) in transcript[2]
    assert ("joined-changelog", 7) in transcript[2]


def test_topics_that_do_not_fit(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("two", 2)
        d.topic("three", 3)
        for number, sent in enumerate(
            [
                topology(subtopology("0", ["absent", "gone"])),
                topology(subtopology("0", ["two", "three"], copartition=[together([0, 1])])),
                topology(
                    subtopology("0", ["two"], sinks=["r"]),
                    subtopology(
                        "1",
                        ["three"],
                        repartition=[internal("r", 5)],
                        copartition=[together([0], [0])],
                    ),
                ),
                topology(subtopology("0", ["two"], changelogs=[internal("three")])),
            ]
        ):
            d.group = f"{d.group}-{number}"
            d.join("a", sent)
            d.describe()
            d.heartbeat("a", **NOTHING)

    transcript = compare(talk)
    found = [e[2]["status"][0]["status_code"] for e in transcript if e[0] == "a"]
    assert found == [1, 1, 2, 2, 2, 2, 2, 2]


def test_a_source_topic_appears(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.join("a", topology(subtopology("0", ["late"])))
        d.topic("late", 2)
        eventually(lambda: not d.heartbeat("a", **NOTHING)["status"], timeout_s=30)
        d.transcript[:] = [d.transcript[0], d.owned]
        d.describe()

    compare(talk)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            topology(subtopology("0", ["x"], changelogs=[internal("log", 3)])), id="changelog"
        ),
        pytest.param(topology(subtopology("0", [], changelogs=[internal("log")])), id="no-source"),
        pytest.param(
            topology(subtopology("0", [], repartition=[internal("r")])), id="never-written"
        ),
        pytest.param(
            topology(
                subtopology("0", [], repartition=[internal("r0")], sinks=["r1"]),
                subtopology("1", [], repartition=[internal("r1")], sinks=["r0"]),
            ),
            id="loop",
        ),
        pytest.param(topology(subtopology("0", ["__consumer_offsets"])), id="internal"),
        pytest.param(topology(subtopology("0", ["no topic"])), id="name"),
        pytest.param(topology(subtopology("0", [], source_topic_regex=["x.*"])), id="regex"),
    ],
)
def test_invalid_topologies(compare: Compare, sent: dict[str, Any]) -> None:
    transcript = compare(lambda d: d.join("a", sent))
    assert transcript[0][2]["error_code"] != 0


def test_invalid_requests(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("valid", 2)
        sent = topology(subtopology("0", ["valid"]))
        tasks = [{"subtopology_id": "0", "partitions": [0]}]
        d.heartbeat("a", member_epoch=1)
        d.leave("a")
        d.join("", sent)
        d.join(" ", sent)
        d.join("a", sent, rack_id="")
        d.join("a", sent, rebalance_timeout_ms=-1)
        d.join("a", sent, active_tasks=tasks)
        d.join("a", sent, standby_tasks=tasks)
        d.join("a", sent, warmup_tasks=tasks)
        d.join("a", sent, instance_id="static")
        d.join("a", sent, task_offsets=[])
        d.join("a", sent, task_end_offsets=[])
        d.heartbeat("a", member_epoch=0, rebalance_timeout_ms=5_000)
        d.heartbeat("a", member_epoch=-2)
        d.heartbeat("a", member_epoch=-3)
        d.describe()
        d.join("a", sent)
        epoch = d.epochs["a"]
        d.heartbeat("a", active_tasks=[])
        d.heartbeat("a", topology=sent)
        d.heartbeat("a", member_epoch=epoch + 1)
        d.heartbeat("a", member_epoch=epoch - 1, **NOTHING)
        d.heartbeat("b", member_epoch=epoch)
        d.heartbeat("a", **NOTHING | {"active_tasks": [{"subtopology_id": "9", "partitions": [0]}]})
        d.heartbeat("a", **NOTHING | {"active_tasks": [{"subtopology_id": "0", "partitions": [2]}]})
        d.describe("absent", "")
        d.describe()

    compare(talk)


def test_tasks_that_contradict(compare: Compare) -> None:
    """A member lists tasks of another one, a task twice, and tasks that cannot be."""

    def active(*partitions: int) -> dict[str, Any]:
        return {"subtopology_id": "0", "partitions": list(partitions)}

    def talk(d: Dialogue) -> None:
        d.topic("contradicted", 2)
        sent = topology(subtopology("0", ["contradicted"]))
        d.join("a", sent)
        d.join("b", sent)
        for tasks in (
            {"active_tasks": [active(0, 1)]},
            {"active_tasks": [active(0, 0)]},
            {"active_tasks": [active(-1)]},
            {"active_tasks": [active(0)], "standby_tasks": [active(0)]},
            {"standby_tasks": [active(2)]},
            {"warmup_tasks": [active(0)]},
            {"active_tasks": [{"subtopology_id": "", "partitions": [0]}]},
        ):
            d.heartbeat("b", **NOTHING | tasks)
        d.describe()
        d.settle("a", "b")
        d.describe()

    compare(talk)


def test_topologies_that_differ(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("one", 1)
        d.topic("another", 1)
        d.join("a", topology(subtopology("0", ["one"]), epoch=1))
        d.join("b", topology(subtopology("0", ["another"]), epoch=1))
        d.join("b", topology(subtopology("0", ["one"]), epoch=2))
        d.join("b", topology(subtopology("0", ["another"]), epoch=0))
        d.heartbeat("b", **NOTHING)
        d.join("c", topology(subtopology("0", ["another"]), epoch=1), process_id="process-a")
        d.join("d", topology(subtopology("0", ["another"]), epoch=0), process_id="process-a")
        d.heartbeat("d", **NOTHING)
        d.settle("a", "b", "d")
        d.describe()

    transcript = compare(talk)
    assert transcript[3][2]["status"][0]["status_code"] == 0


def test_the_size_is_limited(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("full", 2)
        sent = topology(subtopology("0", ["full"]))
        for member in "abcde":
            d.join(member, sent)
        d.join("a", sent)

    transcript = compare(talk)
    assert transcript[4][2]["error_message"].endswith("4 members.")


def test_the_application_is_shut_down(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("stopped", 2)
        sent = topology(subtopology("0", ["stopped"]))
        d.join("a", sent)
        d.join("b", sent)
        d.heartbeat("a", shutdown_application=True)
        d.heartbeat("b")
        d.leave("a")
        d.heartbeat("b")
        d.leave("b")
        d.join("a", sent)
        d.heartbeat("a")

    compare(talk)


def test_endpoints_of_tasks(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("queried", 3)
        d.topic("narrow", 3)
        sent = topology(subtopology("0", ["queried", "narrow"]))
        d.join("a", sent, user_endpoint={"host": "here", "port": 1})
        d.heartbeat("a")
        d.join("b", sent, user_endpoint={"host": "there", "port": 65_535})
        d.settle("a", "b")
        answer = d.heartbeat("a")
        d.heartbeat("a", endpoint_information_epoch=answer["endpoint_information_epoch"])
        d.describe()

    compare(talk)


def test_offsets_of_members(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("committed", 2)
        d.topic("foreign", 2)
        sent = topology(subtopology("0", ["committed"]))
        d.join("a", sent)
        first = d.epochs["a"]
        d.commit("a", "committed", 0)
        d.join("b", sent)
        d.settle("a", "b")
        for partition in (0, 1):
            d.commit("a", "committed", partition)
            d.commit("a", "committed", partition, epoch=first)
            d.commit("b", "committed", partition, epoch=first)
        d.commit("a", "foreign", 0, epoch=first)
        d.commit("a", "committed", 0, epoch=99)
        d.commit("a", "committed", 0, epoch=-1)
        d.commit("a", "committed", 0, version=8)
        d.fetch_offsets("a", d.epochs["a"], "committed")
        d.fetch_offsets("a", first, "committed")
        d.fetch_offsets("nobody", first, "committed")
        d.fetch_offsets(None, -1, "committed")
        deleted = {"name": "committed", "partitions": [{"partition_index": 0}]}
        d.call(ApiKey.OFFSET_DELETE, 0, {"group_id": d.group, "topics": [deleted]})
        d.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": [d.group]})
        d.leave("a")
        d.leave("b")
        d.fetch_offsets(None, -1, "committed")
        d.call(ApiKey.OFFSET_DELETE, 0, {"group_id": d.group, "topics": [deleted]})
        d.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": [d.group]})
        d.describe()

    compare(talk)


def test_one_namespace_of_group_ids(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("named", 1)
        sent = topology(subtopology("0", ["named"]))
        classic = {
            "group_id": d.group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0"}],
        }
        consumer = {
            "group_id": d.group,
            "member_id": "c",
            "member_epoch": 0,
            "rebalance_timeout_ms": 1_000,
            "subscribed_topic_names": ["named"],
            "topic_partitions": [],
        }
        d.join("a", sent)
        d.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer)
        share = {
            "group_id": d.group,
            "member_id": "s",
            "member_epoch": 0,
            "subscribed_topic_names": ["named"],
        }
        d.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, share)
        d.call(ApiKey.JOIN_GROUP, 5, classic)
        d.call(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [d.group]})
        d.list_own()
        d.leave("a")
        joined = d.wire.call(ApiKey.JOIN_GROUP, 3, classic)
        assert joined.error_code == 0
        d.describe()
        d.join("a", sent)
        d.wire.call(ApiKey.LEAVE_GROUP, 2, {"group_id": d.group, "member_id": joined.member_id})
        d.join("a", sent)
        d.call(ApiKey.DESCRIBE_GROUPS, 5, {"groups": [d.group]})
        d.leave("a")
        d.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": [d.group]})
        d.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consumer)
        d.join("a", sent)
        d.heartbeat("a", member_epoch=1)
        d.group = f"{d.group}-shared"
        d.wire.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, share | {"group_id": d.group})
        d.join("a", sent)
        d.heartbeat("a", member_epoch=1)
        d.describe()

    compare(talk)


def test_a_new_group_waits_for_members(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("awaited", 4)
        resource = {
            "resource_type": 32,
            "resource_name": d.group,
            "configs": [
                {
                    "name": "streams.initial.rebalance.delay.ms",
                    "config_operation": 0,
                    "value": "2000",
                }
            ],
        }
        d.wire.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )

        def configured() -> bool:
            names = [{"name": "streams.initial.rebalance.delay.ms"}]
            resources = [{"resource_type": 32, "resource_name": d.group}]
            (found,) = d.wire.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources}).results
            return {c.name: c.value for c in found.configs}[names[0]["name"]] == "2000"

        eventually(configured, timeout_s=30)
        sent = topology(subtopology("0", ["awaited"]))
        d.join("a", sent)
        d.join("b", sent)
        d.heartbeat("a", **NOTHING)
        d.describe()
        length = len(d.transcript)
        eventually(lambda: d.heartbeat("a", **NOTHING)["active_tasks"], timeout_s=30)
        d.transcript[length:] = d.transcript[-1:]
        d.heartbeat("b", **NOTHING)
        d.describe()

    transcript = compare(talk)
    assert transcript[0][2]["status"][0]["status_code"] == 5


def gain_permissions(bootstrap: str) -> list[Any]:
    """Join with one permission after the other. Return the responses without CREATE, and the topic
    that was created with it."""
    host, topic = "127.0.0.5", ResourceType.TOPIC
    admin, member = Dialogue(bootstrap, "admin"), Dialogue(bootstrap, "permitted", host)
    with admin.wire, member.wire:
        admin.topic("allowed", 2)
        grant(admin.wire, everything(ADMIN))
        sent = topology(subtopology("0", ["allowed"], changelogs=[internal("kept-log")]))
        assert member.join("a", sent)["error_code"] != 0
        grant(admin.wire, [entry(host, Operation.READ, ResourceType.GROUP)])
        eventually(lambda: member.join("a", sent)["error_code"] == 29, what="READ on the group")
        grant(admin.wire, [entry(host, Operation.DESCRIBE, topic)])
        eventually(lambda: member.join("a", sent)["status"], what="DESCRIBE on the topics")
        member.describe()
        refused = member.transcript[-2:]
        grant(admin.wire, [entry(host, Operation.CREATE, topic, "kept-log")])
        eventually(lambda: not member.heartbeat("a", **NOTHING)["status"], what="CREATE")
        admin.topics("kept-log")
    return [*refused, admin.transcript[-1]]


def test_internal_topics_need_the_permission_to_create(
    authorizing_servers: dict[str, str],
) -> None:
    found = {name: gain_permissions(address) for name, address in authorizing_servers.items()}
    assert found["shoal"] == found["kafka"]
    (status,) = found["shoal"][0][2]["status"]
    assert status["status_detail"].endswith("Unauthorized to CREATE on topics kept-log.")
    assert found["shoal"][-1] == [("kept-log", 2)]
