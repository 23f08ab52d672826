"""The classic consumer group of a simulated cluster. Its members send JoinGroup, SyncGroup,
Heartbeat, OffsetCommit and LeaveGroup, and compute the assignment.

All members give up everything they own when a rebalance begins (the eager protocol). Some are
static members, which come back under their instance ids. The leader writes into each assignment for
which members it was made, so that `ClassicHistory` can check that a generation has one set of
members.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from typing import TYPE_CHECKING, Any

from shoal.client.admin.groups import CommittedOffset, make_commit_body
from shoal.client.errors import ClientError, KafkaError, expect, is_transient
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from sim.cluster_clients import GROUP, PARTITIONS, RETRIED_S, TOPIC, Workload, wait
from sim.cluster_histories import ClassicHistory, GroupOffsets
from sim.cluster_kernel import Violation
from sim.cluster_requests import ask_coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from sim.cluster_owners import Owners

CLASSICS = "classics"
SESSION_MS, REBALANCE_MS, HEARTBEAT_S = 3_000, 3_000, 0.5
_PARTITIONS = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
#: After these errors a member joins again, under a new id or its own.
_FORGOTTEN = (ErrorCode.unknown_member_id,)
_REJOINS = (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, *_FORGOTTEN)


def _subscription() -> bytes:
    """ConsumerProtocolSubscription, version 0."""
    name = TOPIC.encode()
    return struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, -1)


def _assignment(owned: list[int], made_for: bytes) -> bytes:
    """ConsumerProtocolAssignment, version 0."""
    name = TOPIC.encode()
    data = struct.pack(f">hih{len(name)}si", 0, 1, len(name), name, len(owned))
    return data + struct.pack(f">{len(owned)}ii", *owned, len(made_for)) + made_for


def _owned(assignment: bytes) -> tuple[tuple[int, ...], bytes]:
    """Decode what `_assignment` or the broker has written."""
    if not assignment or not struct.unpack_from(">i", assignment, 2)[0]:
        return (), b""
    at = struct.calcsize(f">hih{len(TOPIC)}s")
    (count,) = struct.unpack_from(">i", assignment, at)
    owned = struct.unpack_from(f">{count}i", assignment, at + 4)
    return owned, assignment[at + 8 + 4 * count :]


class ClassicMember:
    """One member. It alternates between `join` and `leave`."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        history: GroupOffsets,
        instance: str | None,
        owners: Owners | None = None,
    ) -> None:
        """`owners` receives what the member owns, if other members may speak for the group too."""
        self.cluster = cluster
        self.group = group
        self.history = history
        self.owners = owners
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: tuple[int, ...] = ()
        #: The member must join again.
        self.rejoins = True
        self.fenced: ClientError | None = None

    @property
    def _who(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }

    async def _ask(self, key: ApiKey, fields: dict[str, Any], **options: Any) -> Any:
        return await ask_coordinator(
            self.cluster, self.group, key, {**self._who, **fields}, **options
        )

    def _confirm(self, sent: float) -> None:
        """Record that a response confirmed what the member owned when it sent the request."""
        if self.owners is not None:
            self.owners.confirmed(
                self._name, self.generation, self.owned, sent=sent, answered=self.cluster.now()
            )

    @property
    def _name(self) -> str:
        return self.instance or self.member_id

    async def join(self) -> None:
        """Join until the member is in a generation."""
        if self.owners is not None:
            self.owners.out(self._name)
        while True:
            try:
                joined = await self._join()
                await self._sync(joined)
                self.rejoins = False
                return
            except KafkaError as error:
                self._out_of_step(error)
                if error.code not in _REJOINS and not error.retriable:
                    raise
            except ClientError as error:
                if not is_transient(error):
                    raise
            await wait(0.1)

    async def _join(self) -> Any:
        fields = {
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "own", "metadata": _subscription()}],
        }
        while True:
            answer = await self._ask(
                ApiKey.JOIN_GROUP,
                fields,
                lane="join",
                timeout_ms=3 * REBALANCE_MS,
                code=lambda answer: 0 if _wants_id(answer) else answer.error_code,
            )
            self.member_id = answer.member_id
            if not _wants_id(answer):
                self.generation = answer.generation_id
                return answer

    async def _sync(self, joined: Any) -> None:
        given: dict[str, bytes] = {}
        if joined.leader == self.member_id and not joined.skip_assignment:
            names = {m.member_id: m.group_instance_id or m.member_id for m in joined.members}
            made_for = b" ".join(sorted(name.encode() for name in names.values()))
            for at, member_id in enumerate(names):
                owned = [p for p in range(PARTITIONS) if p % len(names) == at]
                given[member_id] = _assignment(owned, made_for)
        fields = {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": "own",
            "assignments": [{"member_id": i, "assignment": data} for i, data in given.items()],
        }
        sent = self.cluster.now()
        answer = await self._ask(
            ApiKey.SYNC_GROUP, fields, lane="join", timeout_ms=3 * REBALANCE_MS
        )
        self.owned, made_for = _owned(bytes(answer.assignment))
        if isinstance(self.history, ClassicHistory):
            self.history.synced(self._name, self.generation, made_for, self.owned)
        self._confirm(sent)

    def _out_of_step(self, error: KafkaError) -> None:
        if error.code in _REJOINS:
            self.rejoins = True
        if error.code in _FORGOTTEN:
            self.member_id = ""
        if error.code is ErrorCode.fenced_instance_id:
            self.fenced = error
            raise error

    async def beat(self) -> None:
        """Send heartbeats as long as the member lives."""
        while True:
            await wait(HEARTBEAT_S)
            if self.rejoins:
                continue
            generation, sent = self.generation, self.cluster.now()
            try:
                await self._ask(ApiKey.HEARTBEAT, {"generation_id": generation})
                if generation == self.generation and not self.rejoins:
                    self._confirm(sent)
            except KafkaError as error:
                if error.code is ErrorCode.rebalance_in_progress and self.owners is not None:
                    self.owners.still(self._name, sent)
                with contextlib.suppress(KafkaError):
                    self._out_of_step(error)
            except ClientError:
                pass

    async def positions(self) -> dict[TopicPartition, int]:
        return await positions_of(self.cluster, self.group, self.owned, self.history)

    async def commit(self, positions: dict[TopicPartition, int]) -> bool:
        """Return whether the group accepted the commit; if not, the member has to join again."""
        history, generation = self.history, self.generation
        before = dict(history.committed)
        newest = history.newest if isinstance(history, ClassicHistory) else -1
        moved = {(p.topic, p.partition): offset for p, offset in positions.items()}
        moved = {p: offset for p, offset in moved.items() if history.committed.get(p) != offset}
        new = moved.items() - history.loose
        history.loose |= new
        offsets = {p: CommittedOffset(offset) for p, offset in positions.items()}
        body = make_commit_body(self.group, self.member_id, generation, offsets)
        body["group_instance_id"] = self.instance
        sent = self.cluster.now()
        try:
            await self.cluster.retry(
                lambda: ask_coordinator(
                    self.cluster, self.group, ApiKey.OFFSET_COMMIT, body, 9, code=first_error
                )
            )
        except KafkaError as error:
            self._out_of_step(error)
            if error.code not in _REJOINS:
                raise
            return False
        if newest > generation:
            raise Violation("classic-old-generation", f"{generation} committed after {newest}")
        if self.cluster.now() - sent < RETRIED_S:
            history.loose -= new
        history.offsets(self.member_id, before, moved)
        return True

    async def leave(self) -> None:
        if self.member_id and self.instance is None:
            member = {"member_id": self.member_id, "group_instance_id": None}
            with contextlib.suppress(ClientError):
                await self._ask(ApiKey.LEAVE_GROUP, {"members": [member]})
        self.member_id = ""
        self.rejoins = True


async def positions_of(
    cluster: Cluster, group: str, owned: Iterable[int], history: GroupOffsets
) -> dict[TopicPartition, int]:
    """Return the positions to read from. Raises `Violation` for an offset that went back."""
    topic = {"name": TOPIC, "partition_indexes": list(owned)}
    body = {"groups": [{"group_id": group, "topics": [topic]}], "require_stable": True}
    before = {
        where: history.committed[where]
        for where in ((TOPIC, p) for p in topic["partition_indexes"])
        if where in history.committed
    }

    async def attempt() -> dict[TopicPartition, int]:
        answer = await ask_coordinator(
            cluster,
            group,
            ApiKey.OFFSET_FETCH,
            body,
            8,
            code=lambda answer: answer.groups[0].error_code,
        )
        rows = answer.groups[0].topics[0].partitions
        return {TopicPartition(TOPIC, row.partition_index): row.committed_offset for row in rows}

    found = await cluster.retry(attempt)
    known = {(p.topic, p.partition): offset for p, offset in found.items() if offset >= 0}
    history.offsets("observer", before, known)
    history.committed |= known  # Violations for smaller offsets were excused above.
    return {where: max(0, offset) for where, offset in found.items()}


def _wants_id(answer: Any) -> bool:
    return bool(answer.error_code == ErrorCode.member_id_required)


def first_error(answer: Any) -> int:
    return next((p.error_code for t in answer.topics for p in t.partitions if p.error_code), 0)


async def read_in_classic_group(load: Workload, client: Client, name: str) -> None:
    await _read(load, client, name, CLASSICS, load.classic)


async def read_in_mixed_group(load: Workload, client: Client, name: str) -> None:
    """Run a classic member in the KIP-848 group, as during a migration. The broker assigns the
    partitions, unless all members are classic at some time."""
    await _read(load, client, name, GROUP, load.histories, load.owners)


async def _read(
    load: Workload,
    client: Client,
    name: str,
    group: str,
    history: GroupOffsets,
    owners: Owners | None = None,
) -> None:
    """Run a member that reads and commits, leaves for a while, and starts again."""
    static = random.Random(f"{load.kernel.seed} {name}").random() < 0.4
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    member = ClassicMember(client.cluster, group, history, name if static else None, owners)
    beats = asyncio.get_running_loop().create_task(member.beat())
    try:
        while True:
            await member.join()
            await _read_a_generation(load, client, rng, name, member)
            if rng.random() < 0.2 and not load.draining:
                await member.leave()
                await wait(rng.choice((0.0, 0.5, 2.0)))
    finally:
        beats.cancel()
        await member.leave()


async def _read_a_generation(
    load: Workload, client: Client, rng: random.Random, name: str, member: ClassicMember
) -> None:
    positions = await member.positions() if member.owned else {}
    until = load.now + rng.uniform(1.0, 6.0)
    while not member.rejoins and (load.now < until or load.draining):
        if member.fenced is not None:
            raise member.fenced
        if not positions:
            await wait(0.2)
            continue
        found = expect(await client.fetcher.poll(positions, max_wait_ms=300))
        for where, fetched in found.items():
            positions[where] = fetched.next_offset
            for record in fetched.records():
                place = (where.topic, where.partition, record.offset)
                load.histories.saw(place, record.value, name)
                member.history.consumed.add(place)
        if rng.random() < 0.5 or load.draining:
            await member.commit(positions)
    if positions and not member.rejoins:
        await member.commit(positions)


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until the classic group has committed the ends of all partitions."""
    while True:
        found = expect(await client.admin.groups.offsets([CLASSICS]))[CLASSICS]
        ends = expect(await client.admin.topics.offsets(dict.fromkeys(_PARTITIONS, -1)))
        committed = {p: o.offset for p, o in found.items()}
        behind = [
            p
            for p in _PARTITIONS
            if max(committed.get(p, 0), load.classic.committed.get(p, 0)) < ends[p].offset
        ]
        if not behind:
            break
        load.kernel.trace(f"{name} waits for {behind}")
        await wait(0.3)
    load.classic.is_through = True
