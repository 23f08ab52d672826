"""A Kafka Streams application on a simulated cluster: the members of a streams group (KIP-1071).

Its topology has two subtopologies. Tasks of the first read the topic `orders` and commit offsets.
Tasks of the second read a repartition topic and have a changelog. Each member is a stream thread:
it heartbeats, takes the tasks that it is assigned, commits and closes a task before it reports that
the task is revoked, and leaves now and then. Two members may belong to one process.

`Application` has what the members saw, and the rules:

* `streams-two-owners`: an active task was given to a member while another one owned it.
* `streams-copies-two-owners`: two members of one process had copies of one task, active or standby.
* `streams-epoch`: the epoch of a member or of the group went back.
* `streams-revoked-first`: a member got new tasks before it had revoked others. A member whose last
  response was lost may have been given tasks by it, so its next one proves nothing.
* `streams-coverage`: in a stable group a task has no owner, or two.
* `streams-internal-topics`: an internal topic has the wrong number of partitions, or was replaced.
* `offset-regression`: a committed offset was lost, or a member without the task committed.
* `unseen`: a committed record was never read by a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.admin.groups import CommittedOffset, GroupDescription, make_commit_body
from shoal.client.errors import ClientError, KafkaError, expect, is_transient
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.metadata import Topic
from shoal.coordinator.group.streams import target_assignment
from shoal.coordinator.group.streams.streams_group import StreamsGroupState
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from sim.cluster_classic import first_error, positions_of
from sim.cluster_clients import PARTITIONS, RETRIED_S, TOPIC, Workload, wait
from sim.cluster_histories import GroupOffsets
from sim.cluster_kernel import Violation
from sim.cluster_owners import Owners
from sim.cluster_requests import ask_coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from shoal.client.client import Client
    from shoal.coordinator.group.streams.tasks import TaskId
    from sim.cluster_shares import Record

APPLICATION = "counter"
REPARTITION, CHANGELOG = f"{APPLICATION}-counts-repartition", f"{APPLICATION}-counts-changelog"
READS, COUNTS = "0", "1"
TASKS = [(s, p) for s in (READS, COUNTS) for p in range(PARTITIONS)]
#: After these errors a member has lost its tasks and joins again.
_LOST = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
_PARTITIONS = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]


def configs(seed: int) -> dict[str, str]:
    """The configs of brokers whose cluster runs the application."""
    replicas = random.Random(f"{seed} standby").choice((0, 1))
    return {
        "group.streams.min.heartbeat.interval.ms": "500",
        "group.streams.heartbeat.interval.ms": "500",
        "group.streams.min.session.timeout.ms": "3000",
        "group.streams.session.timeout.ms": "4000",
        "group.streams.initial.rebalance.delay.ms": "300",
        "group.streams.assignment.interval.ms": "300",
        "group.streams.num.standby.replicas": str(replicas),
    }


@contextlib.contextmanager
def slices(seed: int) -> Iterator[None]:
    """In some runs, compute all assignments in slices, as those of large groups."""
    limits = target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE
    if random.Random(f"{seed} slices").random() < 0.4:
        target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE = 0, 1
    try:
        yield
    finally:
        target_assignment.STEPS_AT_ONCE, target_assignment.RECORDS_A_SLICE = limits


def _topology() -> dict[str, Any]:
    def internal(name: str, **configs: str) -> dict[str, Any]:
        pairs = [{"key": k.replace("_", "."), "value": v} for k, v in configs.items()]
        return {"name": name, "partitions": 0, "replication_factor": 0, "topic_configs": pairs}

    empty = {"source_topic_regex": (), "copartition_groups": ()}
    reads = {
        "subtopology_id": READS,
        "source_topics": [TOPIC],
        "state_changelog_topics": (),
        "repartition_sink_topics": [REPARTITION],
        "repartition_source_topics": (),
    }
    counts = {
        "subtopology_id": COUNTS,
        "source_topics": (),
        "state_changelog_topics": [internal(CHANGELOG, cleanup_policy="compact")],
        "repartition_sink_topics": (),
        "repartition_source_topics": [internal(REPARTITION)],
    }
    return {"epoch": 0, "subtopologies": [reads | empty, counts | empty]}


class Tasks(NamedTuple):
    """Active and standby tasks of a member."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()

    def __or__(self, other: Any) -> Tasks:
        return Tasks(self.active | other.active, self.standby | other.standby)

    def __sub__(self, other: Tasks) -> Tasks:
        return Tasks(self.active - other.active, self.standby - other.standby)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby)

    @classmethod
    def of(cls, answer: Any) -> Tasks:
        """Read a heartbeat response."""
        return cls(_read(answer.active_tasks), _read(answer.standby_tasks))


def _read(listed: Iterable[Any]) -> frozenset[TaskId]:
    return frozenset((t.subtopology_id, p) for t in listed for p in t.partitions)


def _wire(tasks: Iterable[TaskId]) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for s, p in sorted(tasks):
        found.setdefault(s, []).append(p)
    return [{"subtopology_id": s, "partitions": partitions} for s, partitions in found.items()]


class Application:
    """What all members saw, and the rules that it must satisfy."""

    def __init__(self, load: Workload) -> None:
        self.history = GroupOffsets()
        self.owners = Owners(load.kernel.fail, "streams")
        self.copies = Owners(load.kernel.fail, "streams-copies")
        #: By member id. Members of killed processes remain.
        self.members: dict[str, Member] = {}
        #: The group epoch and the assignment epoch, as tools have seen them.
        self.epochs = (-1, -1)
        self.topic_ids: dict[str, UUID | None] = {}
        #: Whether everything is read and committed, and all tasks run, at the end.
        self.is_through = False

    def saw_epochs(self, before: tuple[int, int], group: GroupDescription) -> None:
        """Check the epochs of a description. `before` is the value of `epochs` at its request."""
        now = (group.group_epoch, group.assignment_epoch)
        if now[0] < before[0] or now[1] < before[1]:
            raise Violation("streams-epoch", f"the group is in {now} after {before}")
        self.epochs = (max(now[0], self.epochs[0]), max(now[1], self.epochs[1]))

    def saw_group(self, group: GroupDescription) -> None:
        """Check that the members of one description own each task at most once, and in a stable
        group exactly once."""
        tasks = sorted(task for member in group.members for task in member.tasks)
        twice = len(set(tasks)) < len(tasks)
        missing = [f"{s}_{p}" for s, p in TASKS if f"{s}_{p}" not in tasks]
        if twice or (group.state == StreamsGroupState.STABLE and missing):
            raise Violation("streams-coverage", f"{group.state} with {tasks}")

    def saw_topic(self, name: str, topic: Topic) -> None:
        count = len(topic.partitions)
        known = self.topic_ids.setdefault(name, topic.topic_id)
        if count != PARTITIONS or known != topic.topic_id:
            raise Violation(
                "streams-internal-topics",
                f"{name} with {count} partitions: {topic.topic_id}, and {known} before",
            )

    def runs_all(self, group: GroupDescription) -> bool:
        """Whether each member runs the tasks that the group lists for it."""
        return all(
            member.member_id in self.members
            and {f"{s}_{p}" for s, p in self.members[member.member_id].owned.active}
            == set(member.tasks)
            for member in group.members
        )

    def finish(self, final: Iterable[Record]) -> None:
        if set(self.topic_ids) != {REPARTITION, CHANGELOG}:
            raise Violation("streams-internal-topics", f"only {sorted(self.topic_ids)} exist")
        for record in final:
            if record not in self.history.consumed:
                raise Violation("unseen", f"{record} by the application")


class Member:
    """A stream thread. `beat` talks to the coordinator, and `work` runs the tasks."""

    def __init__(
        self, load: Workload, client: Client, name: str, process_id: str, rng: random.Random
    ) -> None:
        self._load, self._client, self._random = load, client, rng
        self._app = load.application
        self._process_id = process_id
        self.member_id = f"{name}-{load.now:.6f}"
        self.epoch = 0
        #: What the group has assigned, and what the thread runs: tasks that it has to revoke too.
        self.assigned = self.owned = Tasks()
        #: Increments when the member loses everything.
        self.incarnation = 0
        self._reported: Tasks | None = None
        #: A response was lost: the next heartbeat has all fields.
        self._doubt = False
        self._hurries = False
        self._interval_s = 0.5
        self._app.members[self.member_id] = self

    # The background thread.

    async def beat(self) -> None:
        while True:
            self._hurries = False
            try:
                await self._heartbeat()
            except KafkaError as error:
                if error.code in _LOST:
                    self.lose()
                    self._hurries = True
                self._doubt = True
            except ClientError:
                self._doubt = True
            due = self._load.now + (0.1 if self._hurries else self._interval_s)
            while self._load.now < due and not self._hurries:
                await wait(0.1)

    async def _heartbeat(self) -> None:
        joins, reported, epoch, doubted = self.epoch == 0, self.owned, self.epoch, self._doubt
        incarnation, sent = self.incarnation, self._load.now
        if joins:
            self._out()
        body = self._body(reported, full=joins or doubted)
        try:
            answer = await self._ask(ApiKey.STREAMS_GROUP_HEARTBEAT, body)
        except ClientError:
            self._confirm(reported | self.assigned, None, sent)
            raise
        if (incarnation, epoch) != (self.incarnation, self.epoch):
            return  # A commit has found that the member was fenced.
        self._doubt, self._reported = False, reported
        self._interval_s = codec.to_ms(answer.heartbeat_interval) / 1000
        if answer.active_tasks is not None:
            self.assigned = Tasks.of(answer)
        given = self.assigned.active - reported.active
        if given and not doubted and reported.active - self.assigned.active:
            self._load.kernel.fail(
                Violation(
                    "streams-revoked-first",
                    f"{self.member_id} owned {sorted(reported.active)}, and got {sorted(given)}",
                )
            )
        self.epoch = answer.member_epoch
        self._confirm(reported | self.assigned, self.epoch, sent)
        self.owned |= self.assigned

    def _body(self, reported: Tasks, *, full: bool) -> dict[str, Any]:
        lists = full or reported != self._reported
        return {
            "group_id": APPLICATION,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": 3_000 if full else -1,
            "topology": _topology() if self.epoch == 0 else None,
            "process_id": self._process_id if full else None,
            "active_tasks": _wire(reported.active) if lists else None,
            "standby_tasks": _wire(reported.standby) if lists else None,
            "warmup_tasks": () if lists else None,
            **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets")),
        }

    async def _ask(self, key: ApiKey, body: dict[str, Any], **options: Any) -> Any:
        return await ask_coordinator(self._client.cluster, APPLICATION, key, body, **options)

    def _confirm(self, owned: Tasks, epoch: int | None, sent: float) -> None:
        """Report to the rules what a response has confirmed; without an epoch there was none."""
        answered = self._load.now
        places = {(self._process_id, *task) for task in owned.active | owned.standby}
        for owners, held in ((self._app.owners, owned.active), (self._app.copies, places)):
            if epoch is None:
                owners.reported(self.member_id, held)
            else:
                owners.confirmed(self.member_id, epoch, held, sent=sent, answered=answered)

    def _out(self) -> None:
        self._app.owners.out(self.member_id)
        self._app.copies.out(self.member_id)

    def lose(self) -> None:
        """The member is not in the group any more: it abandons its tasks."""
        self._out()
        self.incarnation += 1
        self.epoch = 0
        self.assigned = self.owned = Tasks()
        self._reported = None

    async def leave(self) -> None:
        body = self._body(self.owned, full=False) | {"member_epoch": -1, "topology": None}
        joined = self.epoch > 0
        self.lose()
        if joined:
            with contextlib.suppress(ClientError):
                await self._ask(ApiKey.STREAMS_GROUP_HEARTBEAT, body)

    # The stream thread.

    async def work(self, until: float) -> None:
        """Run tasks up to that time, or to the end of the run."""
        load, rng = self._load, self._random
        positions: dict[TopicPartition, int] = {}
        incarnation = self.incarnation
        while load.now < until or load.draining:
            if incarnation != self.incarnation:
                incarnation, positions = self.incarnation, {}
            revoked = self.owned - self.assigned
            new = [w.partition for w in _PARTITIONS if self._runs(w) and w not in positions]
            if revoked:
                await self._commit(positions)
                await wait(rng.choice((0.0, 0.05, 0.4)))
                if incarnation == self.incarnation:
                    self.owned -= revoked
                    positions = {w: at for w, at in positions.items() if self._runs(w)}
                    self._hurries = True
            elif new:
                cluster, history = self._client.cluster, self._app.history
                found = await positions_of(cluster, APPLICATION, new, history)
                if incarnation == self.incarnation:
                    positions |= found
            elif not positions:
                await wait(0.1)
            else:
                await self._poll(positions)
        if incarnation == self.incarnation:
            await self._commit(positions)

    def _runs(self, where: TopicPartition) -> bool:
        return (READS, where.partition) in self.owned.active

    async def _poll(self, positions: dict[TopicPartition, int]) -> None:
        """Read records, and commit now and then."""
        incarnation = self.incarnation
        found = await self._client.fetcher.poll(positions, max_wait_ms=400)
        if incarnation != self.incarnation:
            return
        for where, fetched in expect(found).items():
            positions[where] = fetched.next_offset
            for record in fetched.records():
                place = (where.topic, where.partition, record.offset)
                self._load.histories.saw(place, record.value, self.member_id)
                self._app.history.consumed.add(place)
        if self._random.random() < 0.3 or self._load.draining:
            await self._commit(positions)

    async def _commit(self, positions: dict[TopicPartition, int]) -> None:
        """Commit once. A refused commit is repeated by a later one, or by the next owner."""
        history, load = self._app.history, self._load
        if not positions:
            return
        before = dict(history.committed)
        moved = {(w.topic, w.partition): offset for w, offset in positions.items()}
        moved = {w: offset for w, offset in moved.items() if history.committed.get(w) != offset}
        new = moved.items() - history.loose
        history.loose |= new
        offsets = {w: CommittedOffset(offset) for w, offset in positions.items()}
        body = make_commit_body(APPLICATION, self.member_id, self.epoch, offsets)
        incarnation, sent = self.incarnation, load.now
        try:
            await self._ask(ApiKey.OFFSET_COMMIT, body, version=9, code=first_error)
        except KafkaError as error:
            if error.code in _LOST and incarnation == self.incarnation:
                self.lose()
                self._hurries = True
            elif error.code not in (*_LOST, ErrorCode.stale_member_epoch) and not error.retriable:
                raise
            return
        except ClientError as error:
            if not is_transient(error):
                raise
            return
        if load.now - sent < RETRIED_S:
            history.loose -= new
        history.offsets(self.member_id, before, moved)


async def run(load: Workload, client: Client, name: str) -> None:
    """Run one stream thread after the other. Two machines share a process id."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    process_id = f"process-{int(name.rpartition('-')[2]) // 2}"
    while True:
        member = Member(load, client, name, process_id, rng)
        beats = asyncio.get_running_loop().create_task(member.beat())
        try:
            await member.work(load.now + rng.choice((1.5, 4.0, 15.0)))
        finally:
            beats.cancel()
        await member.leave()
        await wait(rng.choice((0.0, 0.5, 2.0)))


async def watch(load: Workload, client: Client, _name: str) -> None:
    """Describe the group and its internal topics now and then, as a tool does."""
    while not load.application.is_through:
        await wait(random.Random(f"{load.kernel.seed} {load.now}").uniform(0.5, 1.5))
        await _look(load, client)


async def _look(load: Workload, client: Client) -> GroupDescription | None:
    app = load.application
    before = app.epochs
    group = (await client.admin.groups.describe_streams([APPLICATION]))[APPLICATION]
    for name, topic in (await client.admin.topics.describe([REPARTITION, CHANGELOG])).items():
        if isinstance(topic, Topic):
            app.saw_topic(name, topic)
    if not isinstance(group, GroupDescription):
        return None
    app.saw_epochs(before, group)
    app.saw_group(group)
    return group


async def read_to_the_end(load: Workload, client: Client, name: str) -> None:
    """Wait until the application has committed the ends of all partitions and runs all tasks."""
    app = load.application
    while True:
        group = await _look(load, client)
        found = expect(await client.admin.groups.offsets([APPLICATION]))[APPLICATION]
        ends = expect(await client.admin.topics.offsets(dict.fromkeys(_PARTITIONS, -1)))
        committed = {p: o.offset for p, o in found.items()}
        behind = [
            p
            for p in _PARTITIONS
            if max(committed.get(p, 0), app.history.committed.get(p, 0)) < ends[p].offset
        ]
        stable = (
            group is not None and group.state == StreamsGroupState.STABLE and app.runs_all(group)
        )
        if stable and not behind and set(app.topic_ids) == {REPARTITION, CHANGELOG}:
            break
        load.kernel.trace(f"{name} waits for {behind}, {group}")
        await wait(0.3)
    app.is_through = True
