"""StreamsGroupHeartbeat and StreamsGroupDescribe 1: Shoal answers as Kafka 4.4.0 does (KIP-1071).

Each test is a dialogue that is held with both servers. All responses must be equal, except for the
heartbeat interval: Shoal's is shorter while a member waits. Rebalance delays are 0 unless a
dialogue sets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.security.acls import Operation, ResourceType
from support.runs.conditions import eventually
from support.security import permissions
from support.security.permissions import ADMIN, entry, everything, grant
from support.streams.streams_dialogues import (
    CONFIGS,
    NOTHING,
    Compare,
    Dialogue,
    both_servers,
    compare_dialogues,
    internal,
    subtopology,
    together,
    topology,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.java, pytest.mark.nightly]


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


@pytest.fixture
def compare(servers: dict[str, str], request: pytest.FixtureRequest) -> Compare:
    """Hold a dialogue with both servers, compare the transcripts, and return one."""
    return lambda talk: compare_dialogues(servers, f"group-{request.node.name}", talk)


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


def test_version_0_of_heartbeats_and_descriptions(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.version = 0
        d.topic("version-0", 2)
        d.join("a", topology(subtopology("0", ["version-0"])))
        d.settle("a")
        d.describe()

    compare(talk)


def test_descriptions_of_topologies_need_a_plugin(compare: Compare) -> None:
    """KIP-1331: neither broker has one."""

    def talk(d: Dialogue) -> None:
        d.topic("described", 1)
        d.join("a", topology(subtopology("0", ["described"])))
        source = {"name": "s", "node_type": 1, "source_topics": ["described"], "successors": ["p"]}
        processor = {"name": "p", "node_type": 2, "stores": ["store"]}
        described = {
            "subtopologies": [{"subtopology_id": "0", "nodes": [source, processor]}],
            "global_stores": [{"source": source, "processor": processor}],
        }
        update = {"group_id": d.group, "member_id": "a", "topology_description": described}
        key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
        for change in ({}, {"member_id": "stranger"}, {"group_id": "nothing"}, {"group_id": ""}):
            d.call(key, 0, update | change)
        d.describe()

    compare(talk)


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


def test_static_members_keep_their_tasks_while_they_restart(compare: Compare) -> None:
    """A static member leaves with epoch -2, and rejoins with another member id (KIP-345)."""

    def talk(d: Dialogue) -> None:
        d.topic("static", 4)
        sent = topology(subtopology("0", ["static"]))
        here = {"process_id": "one", "user_endpoint": {"host": "here", "port": 1}}
        d.join("a", sent, instance_id="i", **here)
        d.join("b", sent)
        d.settle("a", "b")
        d.join("c", sent, instance_id="i", **here)
        d.heartbeat("a", member_epoch=-2)
        d.heartbeat("b", member_epoch=-2, instance_id="i")
        d.heartbeat("b", member_epoch=-2, instance_id="j")
        d.heartbeat("a", member_epoch=-2, instance_id="i")
        d.describe()
        d.settle("b")
        d.commit("a", "static", 0, epoch=1)
        d.join("c", sent, instance_id="i", **here)
        d.describe()
        d.heartbeat("a", member_epoch=d.epochs["b"], instance_id="i")
        d.heartbeat("c", member_epoch=d.epochs["c"], instance_id="j")
        d.heartbeat("c", member_epoch=d.epochs["c"], instance_id="i")
        d.settle("b", "c")
        d.describe()
        d.heartbeat("c", member_epoch=-2, instance_id="i")
        d.join("e", sent, instance_id="i", process_id="two")
        d.settle("b", "e")
        d.describe()
        d.heartbeat("b", member_epoch=-1, instance_id="i")
        d.heartbeat("e", member_epoch=-1, instance_id="i")
        d.settle("b")
        d.join("f", sent, instance_id="i")
        d.describe()

    transcript = compare(talk)
    (back,) = (
        entry for entry in transcript if entry[:2] == ("c", 0) and not entry[2]["error_code"]
    )
    assert len(back[2]["active_tasks"][0]["partitions"]) == 2


def test_a_static_member_of_a_full_group_is_replaced(compare: Compare) -> None:
    def talk(d: Dialogue) -> None:
        d.topic("full-static", 2)
        sent = topology(subtopology("0", ["full-static"]))
        for member in "abcd":
            d.join(member, sent, instance_id=f"i-{member}")
        d.join("e", sent, instance_id="i-e")
        d.heartbeat("a", member_epoch=-2, instance_id="i-a")
        d.join("e", sent, instance_id="i-a")
        d.join("a", sent, instance_id="")

    compare(talk)


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
