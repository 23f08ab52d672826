"""Dialogues between members of a classic group and their coordinator.

A transcript in `group_transcripts/` is a list of commands, each followed by its results: the
responses in the order in which they were sent, and the group afterwards if it has changed. Members
are named by a letter. Like a client, each keeps its own member id and generation.

After an intended change, run this file with `SHOAL_REWRITE=1` in the environment: it rewrites the
transcripts. Read the difference before you commit it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.classic.requests import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

TRANSCRIPTS = sorted((Path(__file__).parent / "group_transcripts").glob("*.txt"))
GROUP = "g"


class Client:
    """What a client remembers of its membership."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id: str | None = None


class Dialogue:
    """Runs the commands of one transcript."""

    def __init__(self) -> None:
        self.settings = GroupSettings()
        self.sim = self._simulation()
        self.clients: dict[str, Client] = {}
        self.asked: dict[str, Client] = {}
        self.count = 0
        self.shown = ""

    def _simulation(self) -> Simulation[GroupShard]:
        return Simulation(lambda: GroupShard(self.settings))

    def run(self, command: str) -> Iterator[str]:
        verb, *words = command.split()
        seen = len(self.sim.events)
        getattr(self, verb)(*words)
        for token, answer in self.sim.events[seen:]:
            yield f"  {self._answer(token, answer)}"
        group = self._group()
        if group != self.shown:
            self.shown = group
            yield f"  {group}"

    # Commands.

    def settings_are(self, *words: str) -> None:
        named = dict(word.split("=") for word in words)
        given: dict[str, Any] = {name: int(value) for name, value in named.items()}
        self.settings = GroupSettings(**given)
        self.sim = self._simulation()

    def join(self, name: str, *words: str) -> None:
        options = dict(word.split("=") for word in words)
        client = self.clients.setdefault(name, Client(name))
        client.instance_id = options.get("instance", client.instance_id)
        client.member_id = options.get("member", client.member_id)
        token = self._token(client, "join")
        protocols = options.get("protocols", "range").split(",")
        topics = options.get("topics", "t").split(",")
        request = JoinGroupRequest(
            GROUP,
            client.member_id,
            client.instance_id,
            f"client-{name}",
            "/127.0.0.1",
            options.get("type", "consumer"),
            {p: subscription(topics) for p in protocols},
            int(options.get("session", "10000")),
            int(options.get("rebalance", "60000")),
            f"{name}{self.count}",
            int(options.get("v", "9")),
        )
        self.sim.submit(token, lambda shard, now_ms, t: shard.classic.join(request, now_ms, t))

    def restarted(self, name: str) -> None:
        """The client's process is a new one and has only its instance id."""
        self.clients[name].member_id, self.clients[name].generation = "", -1

    def knows_generation(self, name: str, generation: str) -> None:
        """The client has missed a rebalance."""
        self.clients[name].generation = int(generation)

    def sync(self, name: str, *words: str) -> None:
        client = self.clients[name]
        parts = dict(word.split("=") for word in words)
        assignments = {self.clients[n].member_id: part.encode() for n, part in parts.items()}
        request = SyncGroupRequest(
            GROUP,
            client.generation,
            client.member_id,
            client.instance_id,
            assignments=assignments,
        )
        token = self._token(client, "sync")
        self.sim.submit(token, lambda shard, now_ms, t: shard.classic.sync(request, now_ms, t))

    def heartbeat(self, name: str) -> None:
        client = self.clients[name]
        request = HeartbeatRequest(GROUP, client.generation, client.member_id, client.instance_id)
        token = self._token(client, "heartbeat")
        self.sim.submit(token, lambda shard, now_ms, t: shard.classic.heartbeat(request, now_ms, t))

    def leave(self, *names: str) -> None:
        first = self.clients[names[0]]
        leavers = [
            LeavingMember(self.clients[n].member_id, self.clients[n].instance_id) for n in names
        ]
        token = self._token(first, "leave")
        request = LeaveGroupRequest(GROUP, leavers)
        self.sim.submit(token, lambda shard, now_ms, t: shard.classic.leave(request, now_ms, t))

    def remove(self, *instance_ids: str) -> None:
        """An admin removes static members."""
        token = self._token(Client("admin"), "remove")
        request = LeaveGroupRequest(
            GROUP, [LeavingMember("", instance_id) for instance_id in instance_ids]
        )
        self.sim.submit(token, lambda shard, now_ms, t: shard.classic.leave(request, now_ms, t))

    def commit(self, name: str, where: str, offset: str) -> None:
        client = self.clients.get(name, Client(name))
        topic, _, partition = where.rpartition("-")
        request = CommitRequest(
            GROUP,
            client.member_id,
            client.instance_id,
            client.generation,
            [TopicCommit(topic, None, [PartitionCommit(int(partition), int(offset), -1, "")])],
            9,
        )
        token = self._token(client, "commit")
        self.sim.submit(token, lambda shard, now_ms, t: shard.offsets.commit(request, now_ms, t))

    def delete(self) -> None:
        token = self._token(Client("admin"), "delete")
        self.sim.submit(token, lambda shard, now_ms, t: shard.delete_group(GROUP, t))

    def wait(self, duration: str) -> None:
        unit = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        digits = duration.rstrip("msdh")
        self.sim.advance(int(digits) * unit[duration[len(digits) :]])

    def restart(self) -> None:
        self.sim.restart()

    def write_fails(self) -> None:
        self.sim.refuse_append = ErrorCode.kafka_storage_error

    def replicas_lag(self) -> None:
        self.sim.commits = False

    def replicas_catch_up(self) -> None:
        self.sim.commits = True
        self.sim.commit()

    # Output.

    def _token(self, client: Client, verb: str) -> str:
        self.count += 1
        token = f"{client.name} {verb} {self.count}"
        self.asked[token] = client
        return token

    def _answer(self, token: Any, answer: Any) -> str:
        client = self.asked[token]
        who, verb, _ = token.split()
        said = f"{who} {verb}:"
        if isinstance(answer, ErrorCode):
            return f"{said} {answer.name.upper()}"
        if verb == "leave" or verb == "remove":
            codes = " ".join(m["error_code"].name.upper() for m in answer["members"])
            return f"{said} {codes}"
        if verb == "commit":
            return f"{said} {answer['topics'][0]['partitions'][0]['error_code'].name.upper()}"
        error = answer["error_code"]
        if verb == "join" and error in (ErrorCode.none, ErrorCode.member_id_required):
            client.member_id = answer["member_id"]
        if error is not ErrorCode.none:
            extra = f" {answer['member_id']}" if error is ErrorCode.member_id_required else ""
            return f"{said} {error.name.upper()}{extra}"
        if verb == "join":
            client.generation = answer["generation_id"]
            members = " ".join(m["member_id"] for m in answer["members"])
            leads = f" leads [{members}]" if answer["leader"] == client.member_id else ""
            skips = ", skips the assignment" if answer["skip_assignment"] else ""
            return (
                f"{said} {answer['member_id']}, generation {client.generation},"
                f" {answer['protocol_name']}{leads}{skips}"
            )
        if verb == "sync":
            return f"{said} [{answer['assignment'].decode()}]"
        return f"{said} NONE"

    def _group(self) -> str:
        group = self.sim.shard.context.groups.get(GROUP)
        if not isinstance(group, ClassicGroup):
            return "-- no group"
        members = " ".join(
            m.member_id + ("*" if m.member_id == group.leader else "")
            for m in group.members.values()
        )
        pending = " ".join(group.pending_joins)
        return f"-- {group.state.value}, generation {group.generation_id}, [{members}]" + (
            f", pending [{pending}]" if pending else ""
        )


def subscription(topics: list[str]) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    out = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    return out + struct.pack(">i", -1)


def replayed(text: str) -> str:
    """Return the present transcript; comments and empty lines stay."""
    dialogue = Dialogue()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += dialogue.run(line[2:])
        elif not line.startswith("  "):
            lines.append(line)
        live, again = dialogue.sim.shard.get_hard_state(), dialogue.sim.rebuilt().get_hard_state()
        assert live == again, f"after {line!r}, what a restart would find differs"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    now = replayed(text)
    if os.environ.get("SHOAL_REWRITE"):
        path.write_text(now)
    assert now == text
