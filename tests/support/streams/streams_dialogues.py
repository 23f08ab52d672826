"""Dialogues of members of streams groups, held with Apache Kafka and with Shoal (KIP-1071)."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.protocol.api import ApiKey
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

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


class Dialogue:
    """The requests of one test to one server, and the responses as plain values."""

    #: The version of StreamsGroupHeartbeat and StreamsGroupDescribe.
    version = 1

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
        answer = plain(self.wire.call(ApiKey.STREAMS_GROUP_HEARTBEAT, self.version, body))
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
        body = {
            "group_ids": list(groups or [self.group]),
            "include_authorized_operations": False,
            "include_topology_description": True,
        }
        answer = plain(self.wire.call(ApiKey.STREAMS_GROUP_DESCRIBE, self.version, body))
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


Compare = Callable[[Callable[[Dialogue], object]], list[Any]]


def compare_dialogues(
    servers: dict[str, str], group: str, talk: Callable[[Dialogue], object]
) -> list[Any]:
    """Hold a dialogue with both servers, compare the transcripts, and return one."""
    transcripts = {}
    for name, bootstrap in servers.items():
        dialogue = Dialogue(bootstrap, group)
        with dialogue.wire:
            talk(dialogue)
        transcripts[name] = dialogue.transcript
    ours, theirs = transcripts["shoal"], transcripts["kafka"]
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        assert our == their, f"entry {number} of the transcript"
    assert len(ours) == len(theirs)
    return ours
