"""A member of a share group: acquire records, settle them, release the rest (KIP-932).

To acquire, the session sends one ShareFetch to each broker that leads an assigned partition
(`share_node`). It never fetches ahead, so the caller knows every lock that this member holds. The
exception is a broker that is late: the records of the others do not wait for its answer, and a
later call returns what it has locked. To settle, the session sends ShareAcknowledge (accept,
release, reject, renew) or adds the acknowledgements to the next fetch.

One task at a time may call a session. Heartbeats run in the background.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.client.errors import ClientError, ConnectionLost, KafkaError, is_transient
from shoal.client.net.membership import Assignment, Membership
from shoal.client.share.acquired import Acknowledgement as Acknowledgement
from shoal.client.share.acquired import AcknowledgeType as AcknowledgeType
from shoal.client.share.acquired import AcquiredRange as AcquiredRange
from shoal.client.share.acquired import AcquiredRecords as AcquiredRecords
from shoal.client.share.acquired import AcquireMode as AcquireMode
from shoal.client.share.acquired import Acquisition as Acquisition
from shoal.client.share.acquired import RejectedAcknowledgement as RejectedAcknowledgement
from shoal.client.share.acquired import SharedRecord as SharedRecord
from shoal.client.share.node import AcquireLimits, NodeSession, Partitions, refuse_lost_locks
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from shoal.client.net.cluster import Cluster
    from shoal.client.net.connection import Connection

#: Longest wait of one poll if several brokers are asked. A round ends with its slowest answer, so
#: this bounds the delay of a busy broker's records by an idle broker.
LONG_POLL_MS_MAX = 250
#: How long a round waits for one of a cluster's brokers beyond its long poll, in seconds. Then the
#: broker is late.
LATE_S = 1.0
#: How long one of several brokers may take to settle or renew: a part of the lock timeout, and at
#: least this number of milliseconds. The locks of the others cannot be renewed meanwhile.
SETTLED_AT, SETTLED_MS_MIN = 1 / 3, 5_000
#: How much of the lock timeout a late answer may wait for the next call that acquires.
WAITED_MAX = 0.25
#: A round without records that ends sooner than this was no long poll: pause before the next.
QUICK_ROUND_S = 0.02
#: The same for a round in which no broker was reachable.
UNREACHED_S = 0.1


class ShareMembership(Membership):
    """The heartbeat of a share-group member."""

    api_key: ClassVar[ApiKey] = ApiKey.SHARE_GROUP_HEARTBEAT

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], rack: str | None
    ) -> None:
        super().__init__(cluster, group)
        self._topics = sorted(topics)
        self._rack = rack

    def _make_body(self, *, is_full: bool) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch,
            "rack_id": self._rack if is_full else None,
            "subscribed_topic_names": self._topics if is_full else None,
        }


class _LateFetch:
    """A fetch whose broker is late, and the partitions that it is from."""

    __slots__ = ("answered_s", "looked_s", "partitions", "task")

    def __init__(self, task: asyncio.Task[list[AcquiredRecords]], partitions: Partitions) -> None:
        self.task, self.partitions = task, partitions
        #: When the leaders of the partitions were last looked up, and when the answer arrived.
        self.looked_s = self.answered_s = float("-inf")
        task.add_done_callback(self._on_answered)

    def _on_answered(self, task: asyncio.Task[list[AcquiredRecords]]) -> None:
        self.answered_s = task.get_loop().time()
        if not task.cancelled():
            task.exception()  # The session may have ended: without this call, asyncio logs it.


class ShareSession:
    """One member and its locks. Created by `ShareSession.join`; `await close()` releases all."""

    def __init__(self, cluster: Cluster, membership: ShareMembership) -> None:
        self.cluster = cluster
        self.membership = membership
        self.lock_timeout_ms = 0
        self._nodes: dict[int, NodeSession] = {}
        self._late: dict[int, _LateFetch] = {}
        self._lane = f"share {membership.member_id}"
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def join(
        cls, cluster: Cluster, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareSession:
        """Become a member of `group` that subscribes to `topics`.

        Logs a warning for a topic that does not exist. Raises `KafkaError`: GROUP_MAX_SIZE_REACHED,
        INVALID_GROUP_ID or GROUP_ID_NOT_FOUND for a group of another type, UNSUPPORTED_VERSION if
        share groups are disabled.
        """
        member_rack = rack or cluster.settings.client_rack or None
        membership = ShareMembership(cluster, group, topics, member_rack)
        await cluster.warn_of_missing_topics(topics, group)
        await membership.join()
        return cls(cluster, membership)

    async def __aenter__(self) -> ShareSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def group(self) -> str:
        return self.membership.group

    @property
    def member_id(self) -> str:
        return self.membership.member_id

    @property
    def assignment(self) -> Assignment:
        """The topic ids and partitions that this member may acquire from now."""
        return self.membership.assignment

    @property
    def links(self) -> dict[int, Connection]:
        """The connections to the brokers that this session has fetched from, by node id."""
        return {id: node.link for id, node in self._nodes.items()}

    @property
    def late(self) -> frozenset[int]:
        """The node ids of brokers that have not answered the fetch of an earlier call yet, or whose
        answer the next call returns."""
        return frozenset(self._late)

    def hold_of(self, node_id: int) -> object | None:
        """Return what stands for the locks that this member has from a broker. It is another object
        once the broker may have released them, and None without a session."""
        node = self._nodes.get(node_id)
        return None if node is None or node.link.closed else node.hold

    async def acquire(
        self,
        *,
        max_records: int = 500,
        max_bytes: int = 50 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
        acknowledgements: Iterable[Acknowledgement] = (),
        payload: bool = True,
    ) -> Acquisition:
        """Lock available records; wait up to `max_wait_ms` for the first.

        `acknowledgements` are sent with the fetch and need no request of their own. Renewals need
        `acknowledge`. Without `payload` the result has only ranges and batch sizes, and brokers
        that support it send no records. Returns an empty acquisition after `max_wait_ms`, or
        `LATE_S` later if a broker does not answer. Waits longer for a broker that
        `acknowledgements` go to, and for the only broker of a cluster. Raises the error that ended
        the membership, or a broker's refusal that lasts, such as SHARE_SESSION_LIMIT_REACHED.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait_ms / 1000
        limits = AcquireLimits(max_records, max_bytes, min_bytes, mode, payload)
        async with self._one_at_a_time:
            acks = list(acknowledgements)
            refusals: list[RejectedAcknowledgement] = []
            while True:
                self.membership.check()
                left_ms = max(0, int((deadline - loop.time()) * 1000))
                began = loop.time()
                try:
                    acquired, waited_ms = await self._fetch(acks, refusals, left_ms, limits)
                except KafkaError as error:
                    if left_ms == 0 or not error.retriable:
                        raise
                    acquired, waited_ms = [], 0
                acks = []
                if acquired or left_ms == 0:
                    lock_ms = max(1, self.lock_timeout_ms - waited_ms) if acquired else 0
                    return Acquisition(tuple(acquired), tuple(refusals), lock_ms)
                if not self.assignment:
                    await self.membership.wait_for_change(min(left_ms, 1_000) / 1000)
                elif loop.time() - began < QUICK_ROUND_S:
                    await asyncio.sleep(QUICK_ROUND_S if self._nodes else UNREACHED_S)

    async def acknowledge(
        self, acknowledgements: Iterable[Acknowledgement]
    ) -> tuple[RejectedAcknowledgement, ...]:
        """Settle or renew locked offsets; return the acknowledgements that the broker rejected.

        Acknowledgements of one partition succeed or fail together. A renewal restarts the lock
        timeout (`lock_timeout_ms`) and keeps the records with this member. A member that has locks
        of several brokers gives up one that does not answer within `SETTLED_AT` of the lock
        timeout, because it cannot renew the others' locks meanwhile.
        """
        async with self._one_at_a_time:
            refusals: list[RejectedAcknowledgement] = []
            by_node = await self._group_by_node(list(acknowledgements), refusals)
            await asyncio.gather(
                *(self._acknowledge(node, acks, refusals) for node, acks in by_node.items())
            )
            return tuple(refusals)

    async def renew(
        self, acquired: Iterable[AcquiredRecords]
    ) -> tuple[RejectedAcknowledgement, ...]:
        """Renew these locks (KIP-1222); needs `share.renew.acknowledge.enable`."""
        return await self.acknowledge(
            ack for batch in acquired for ack in batch.acknowledge(AcknowledgeType.RENEW)
        )

    async def close(self, *, undelivered: bool = False) -> None:
        """Release every lock and leave the group. Errors are ignored: locks expire.

        With `undelivered` the released deliveries do not count. Apache Kafka counts them anyway.
        """
        try:
            async with self._one_at_a_time:
                await self._give_up(late.task for late in self._late.values())
                await asyncio.gather(
                    *(node.close(undelivered) for node in self._nodes.values()),
                    return_exceptions=True,
                )
        finally:
            for node in self._nodes.values():
                node.link.close()
            self._nodes.clear()
            await self.membership.leave()

    # Fetching

    async def _fetch(
        self,
        acks: list[Acknowledgement],
        refusals: list[RejectedAcknowledgement],
        wait_ms: int,
        limits: AcquireLimits,
    ) -> tuple[list[AcquiredRecords], int]:
        """Fetch once from every broker that leads an assigned partition, except from one whose last
        answer is late. Keep other sessions open: closing one would release records that the member
        still processes.

        Return also for how long answers have waited for this call, in milliseconds. Raises a
        broker's refusal if nothing was acquired. Network errors are ignored.
        """
        carried = await self._group_by_node(acks, refusals)
        try:
            self._look_again()
            by_leader = await self._group_by_leader()
        except ClientError as unknown:
            refusals += [
                RejectedAcknowledgement(ack, unknown)
                for node_acks in carried.values()
                for ack in node_acks
            ]
            raise
        results, waited_ms = await self._collect_late_answers(by_leader)
        nodes = sorted({n for n in by_leader if n not in self._late} | set(carried))
        if any(results):
            wait_ms = 0
        patience_s = None
        if len(nodes) + len(self._late) > 1:
            wait_ms = min(wait_ms, LONG_POLL_MS_MAX)
            patience_s = LONG_POLL_MS_MAX / 1000
        node_limits = limits._replace(max_records=max(1, limits.max_records // max(1, len(nodes))))
        loop = asyncio.get_running_loop()
        rounds = {
            n: loop.create_task(
                self._fetch_node(
                    n,
                    by_leader.get(n, frozenset()),
                    carried.get(n, []),
                    refusals,
                    wait_ms,
                    node_limits,
                    patience_s,
                )
            )
            for n in nodes
        }
        await self._wait(rounds, carried, wait_ms / 1000)
        for n, task in rounds.items():
            partitions = by_leader.get(n, frozenset())
            if task.done():
                results.append(self._read_result(task, partitions))
            else:
                self._late[n] = _LateFetch(task, partitions)
                self.cluster.mark_silent(n)
        acquired = [entry for result in results if isinstance(result, list) for entry in result]
        for result in results:
            if isinstance(result, KafkaError) and not acquired:
                raise result
        return acquired, waited_ms

    async def _wait(
        self,
        rounds: Mapping[int, asyncio.Task[list[AcquiredRecords]]],
        carried: Iterable[int],
        wait_s: float,
    ) -> None:
        """Wait for the answers, and without limit for those to acknowledgements: their results
        belong to this round. A cluster's only broker is never late: nobody else's records wait
        for it."""
        limit_s = wait_s + LATE_S if len(self.cluster.brokers) > 1 else None
        tasks, late = {*rounds.values()}, {late.task for late in self._late.values()}
        try:
            if settling := {rounds[n] for n in carried}:
                await asyncio.wait(settling)
            if tasks:
                await asyncio.wait(tasks, timeout=limit_s)
            elif late:
                await asyncio.wait(late, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._give_up(tasks | late)
            raise

    async def _collect_late_answers(
        self, by_leader: Mapping[int, Partitions]
    ) -> tuple[list[list[AcquiredRecords] | KafkaError], int]:
        """Return the late answers that have arrived, and for how long they have waited at most, in
        milliseconds. Release records whose locks are no longer fresh."""
        now, most_ms = asyncio.get_running_loop().time(), 0
        answers: list[list[AcquiredRecords] | KafkaError] = []
        for n, late in list(self._late.items()):
            if not late.task.done():
                continue
            del self._late[n]
            result = self._read_result(late.task, late.partitions)
            if isinstance(result, list):
                # A new leader does not know the locks of the former one.
                elsewhere = {
                    partition
                    for leader, partitions in by_leader.items()
                    if leader != n
                    for partition in partitions
                }
                result = [r for r in result if (r.topic_id, r.partition) not in elsewhere]
                waited_ms = int((now - late.answered_s) * 1000)
                if result and waited_ms > self.lock_timeout_ms * WAITED_MAX:
                    acks = [a for r in result for a in r.acknowledge(AcknowledgeType.RELEASE)]
                    await self._acknowledge(n, acks, [])
                    continue
                most_ms = max(most_ms, waited_ms) if result else most_ms
            answers.append(result)
        return answers, most_ms

    def _read_result(
        self, task: asyncio.Task[list[AcquiredRecords]], partitions: Partitions
    ) -> list[AcquiredRecords] | KafkaError:
        """Return what a broker has answered: nothing if it was lost. Raises unexpected errors."""
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, KafkaError):
            return error
        if not isinstance(error, ClientError) or not is_transient(error):
            raise error
        # Read metadata again: the partitions of a lost broker may have new leaders.
        for topic_id, _ in partitions:
            self.cluster.forget_topic_id(topic_id)
        return []

    def _look_again(self) -> None:
        """Read the leaders again of the partitions whose leader is late, once per `LATE_S`."""
        now = asyncio.get_running_loop().time()
        for late in self._late.values():
            if now - late.looked_s >= LATE_S:
                late.looked_s = now
                for topic_id, _ in late.partitions:
                    self.cluster.forget_topic_id(topic_id)

    async def _give_up(self, fetches: Iterable[asyncio.Task[list[AcquiredRecords]]]) -> None:
        """Cancel fetches; their connections close, which releases what they acquire."""
        tasks = list(fetches)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._late = {n: late for n, late in self._late.items() if late.task not in tasks}

    async def _group_by_leader(self) -> dict[int, Partitions]:
        """Return the assigned partitions by leader, without those that have no leader."""
        by_leader: dict[int, set[tuple[UUID, int]]] = {}
        for topic_id, partitions in self.assignment.items():
            name = await self.cluster.get_topic_name(topic_id)
            if name is None:
                continue
            for partition in partitions:
                try:
                    leader = await self.cluster.find_leader(name, partition)
                except KafkaError:
                    continue
                by_leader.setdefault(leader, set()).add((topic_id, partition))
        return {node: frozenset(leader_partitions) for node, leader_partitions in by_leader.items()}

    async def _fetch_node(
        self,
        node_id: int,
        partitions: Partitions,
        acks: list[Acknowledgement],
        refusals: list[RejectedAcknowledgement],
        wait_ms: int,
        limits: AcquireLimits,
        patience_s: float | None,
    ) -> list[AcquiredRecords]:
        await self._wait_for_late(node_id)
        try:
            node = await self._get_node_session(node_id, patience_s)
        except ClientError as unreachable:
            refusals += [RejectedAcknowledgement(ack, unreachable) for ack in acks]
            raise
        try:
            patience_ms = self._compute_patience_ms() if acks else None
            return await node.fetch(partitions, acks, refusals, wait_ms, limits, patience_ms)
        finally:
            self._on_response(node_id, node)

    # Acknowledging

    async def _group_by_node(
        self, acks: list[Acknowledgement], refusals: list[RejectedAcknowledgement]
    ) -> dict[int, list[Acknowledgement]]:
        """Group acknowledgements by the broker whose session holds the lock."""
        acks_by_node: dict[int, list[Acknowledgement]] = {}
        for ack in acks:
            try:
                leader = await self.cluster.find_leader(ack.topic, ack.partition)
            except ClientError as error:
                refusals.append(RejectedAcknowledgement(ack, error))
            else:
                acks_by_node.setdefault(leader, []).append(ack)
        return acks_by_node

    async def _acknowledge(
        self, node_id: int, acks: list[Acknowledgement], refusals: list[RejectedAcknowledgement]
    ) -> None:
        await self._wait_for_late(node_id)
        node = self._nodes.get(node_id)
        if node is None:
            refusals += refuse_lost_locks(acks)
            return
        await node.acknowledge(acks, refusals, self._compute_patience_ms())
        self._on_response(node_id, node)

    # Sessions

    async def _get_node_session(self, node_id: int, patience_s: float | None) -> NodeSession:
        """Return the session with a broker. A connection attempt that takes longer than
        `patience_s` continues in the background for a later round, so that other brokers' records
        do not wait.
        """
        node = self._nodes.get(node_id)
        if node is None or node.link.closed:
            try:
                async with asyncio.timeout(patience_s):
                    link = await self.cluster.get_connection(node_id, self._lane)
            except TimeoutError:
                raise ConnectionLost(f"broker {node_id} has not answered yet") from None
            node = NodeSession(self.cluster, self.membership, link, node_id)
            self._nodes[node_id] = node
        return node

    def _compute_patience_ms(self) -> int:
        """Return how long a broker may take to settle, in milliseconds."""
        request_ms = self.cluster.settings.request_timeout_ms
        if len(self._nodes) < 2:
            return request_ms
        return min(request_ms, max(SETTLED_MS_MIN, int(self.lock_timeout_ms * SETTLED_AT)))

    async def _wait_for_late(self, node_id: int) -> None:
        """Wait for a late answer of a broker before its next request: those of one session are sent
        one at a time. Give its session up if no answer comes."""
        if node_id in self._late:
            task = self._late[node_id].task
            await asyncio.wait((task,), timeout=self._compute_patience_ms() / 1000)
            if not task.done():
                await self._give_up((task,))

    def _on_response(self, node_id: int, node: NodeSession) -> None:
        """Handle a broker's answer or loss. A later round reconnects to a lost broker."""
        self.lock_timeout_ms = node.lock_timeout_ms or self.lock_timeout_ms
        if node.link.closed:
            self._nodes.pop(node_id, None)
