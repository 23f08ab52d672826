"""Replication on this broker: fetch loops for each broker that leads what is followed here, and
the changes of ISRs that this broker asks the controller for.

A leader has up to `num.replica.fetchers` loops, and each partition belongs to one of them. When the
setting is altered, partitions move between loops without being fetched by two.

The rules are in `replication`; here are the sockets, the clock and the disk. `registered` is called
for each partition whose registration has moved.

A follower's fetch waits at its leader for records. One that came before a partition was to be
fetched would keep that waiting, so a leader answers soon who has replicas here that it has not
heard of in their leader epoch (`awaits`), and at once when it takes the lead.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zlib import crc32

from shoal.client.errors import ClientError
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.replication.follower import Answered, Fetcher, FetchRequest, FetchResponse, Key
from shoal.replication.leadership import NOT_ELIGIBLE, UNKNOWN_OFFSET, AlterPartition
from shoal.replication.partition import Divergence, Partition, ReplicaFetched
from shoal.server.replication.quotas import FOLLOWER

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.links import Link

#: How long a fetch waits at most at a leader that awaits the fetcher for another partition, and how
#: long it is awaited so: it may be gone.
AWAITED_WAIT_MS = 20
AWAITED_MS = 5_000
#: Before AlterPartition is tried again that was refused for now, or not answered.
ALTER_RETRY_MS = 100
ALTER_TIMEOUT_MS = 3_000
#: Pauses of a loop whose leader cannot be reached.
_RECONNECT_MS, _RECONNECT_MAX_MS = 20, 500
EARLIEST, LATEST = -2, -1
_Way = tuple[int, int]


class Replicas:
    """Owns the fetch loops, and what is asked of the controller."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By leader, and the number of the loop among those to it.
        self._loops: dict[_Way, _FetchLoop] = {}
        self._followed: dict[Key, _Way] = {}
        self._altering: dict[Partition, AlterPartition] = {}
        self._alter: asyncio.Task[None] | None = None
        #: By broker: partitions led here that it has not fetched in their epoch, and until when
        #: that is waited for.
        self._awaited: dict[int, dict[Key, int]] = {}
        #: By broker: when it last fetched anything, on the loop's clock.
        self._heard: dict[int, float] = {}

    def start(self) -> None:
        """Begin to look for followers that lag."""
        broker = self._broker
        broker.timers.every(
            lambda: max(100, broker.config["replica.lag.time.max.ms"] // 2), self._tick
        )

    def stop(self) -> None:
        for loop in self._loops.values():
            loop.stop()
        if self._alter is not None:
            self._alter.cancel()

    @property
    def broker_epoch(self) -> int:
        """This broker's, as its fetches name it."""
        found = self._broker.image.brokers.get(self._broker.node_id)
        return NOT_ELIGIBLE if found is None else found.broker_epoch

    def broker_epoch_of(self, broker_id: int) -> int:
        """The epoch of a broker that may be in sync, or `NOT_ELIGIBLE`."""
        image = self._broker.image
        return image.brokers[broker_id].broker_epoch if broker_id in image.active else NOT_ELIGIBLE

    # Roles

    def registered(self, partition: Partition) -> None:
        """Follow the leader that the partition has now, or lead."""
        before = self._followed.get(partition.key)
        leader_id = partition.leader_id if not partition.is_leader else -1
        if before is not None and before[0] != leader_id:
            self._forget(partition)
        if leader_id >= 0:
            way = self._way_to(leader_id, partition)
            self._followed[partition.key] = way
            self._loop_of(way).follow(partition)
        elif partition.leadership is not None:
            self._await_followers(partition)

    def removed(self, partition: Partition) -> None:
        """The partition is not here any more."""
        self._forget(partition)
        self._altering.pop(partition, None)

    def _forget(self, partition: Partition) -> None:
        way = self._followed.pop(partition.key, None)
        if way is not None:
            self._loops[way].fetcher.forget(partition)

    def _way_to(self, leader_id: int, partition: Partition) -> _Way:
        """The loop that a partition belongs to while nothing is altered."""
        count: int = self._broker.image.broker_config["num.replica.fetchers"]
        topic_id, index = partition.key
        return leader_id, (crc32(topic_id.bytes) + index) % count

    def _loop_of(self, way: _Way) -> _FetchLoop:
        loop = self._loops.get(way)
        if loop is None:
            loop = self._loops[way] = _FetchLoop(self._broker, way[0])
        return loop

    def configured(self) -> None:
        """num.replica.fetchers may have changed: move partitions to the loops they belong to now,
        and end the loops that have none left."""
        for partition in list(self._broker.partitions):
            before = self._followed.get(partition.key)
            if before is None:
                continue
            way = self._way_to(before[0], partition)
            if way != before:
                loop = self._loop_of(way)
                self._loops[before].fetcher.hand_over(partition, loop.fetcher)
                self._followed[partition.key] = way
                loop.nudge()
        for way in self._loops.keys() - set(self._followed.values()):
            if way[1]:
                self._loops.pop(way).stop()

    # Followers that come no more

    def heard(self, replica_id: int) -> None:
        """A broker fetches."""
        self._heard[replica_id] = self._broker.loop.time()

    def is_cut_off(self, partition: Partition) -> bool:
        """Whether nothing that is written to a partition led here can be committed as things are:
        neither a controller nor some in-sync follower was heard of for broker.session.timeout.ms.
        So the follower cannot be put out of the ISR; another broker may lead by now. Where a
        controller says that this broker is fenced, another one does."""
        broker = self._broker
        if partition.leadership is None or not broker.lifecycle.is_lost:
            return False
        if broker.lifecycle.is_put_out:
            return True
        since = broker.loop.time() - broker.config["broker.session.timeout.ms"] / 1000
        return any(
            replica != broker.node_id and self._heard.get(replica, 0.0) < since
            for replica in partition.isr
        )

    @property
    def some_cut_off(self) -> bool:
        """Whether this broker is cut off from a partition, so that others may know better who leads
        what, and who coordinates."""
        return self._broker.lifecycle.is_lost and any(map(self.is_cut_off, self._broker.partitions))

    def wake_cut_off(self) -> None:
        """Who waits for what is not committed as things are is told so."""
        for partition in self._broker.partitions:
            if self.is_cut_off(partition):
                self._broker.purgatory.wake(partition.key)

    def _await_followers(self, partition: Partition) -> None:
        assert partition.leadership is not None
        until_ms = self._broker.clock.now_ms() + AWAITED_MS
        for replica, follower in partition.leadership.followers.items():
            if follower.log_end_offset == UNKNOWN_OFFSET:
                self._awaited.setdefault(replica, {})[partition.key] = until_ms
                self._broker.purgatory.wake(("replica", replica))

    def awaits(self, replica_id: int, now_ms: int) -> bool:
        """Whether that broker is about to fetch more partitions than it does."""
        awaited = self._awaited.get(replica_id)
        if not awaited:
            return False
        for key, until_ms in list(awaited.items()):
            partition = self._broker.partitions.get(*key)
            leadership = None if partition is None else partition.leadership
            follower = None if leadership is None else leadership.followers.get(replica_id)
            unheard = follower is not None and follower.log_end_offset == UNKNOWN_OFFSET
            if until_ms <= now_ms or not unheard:
                del awaited[key]
        return bool(awaited)

    # The ISR

    def _tick(self) -> None:
        now_ms = self._broker.clock.now_ms()
        for partition in self._broker.partitions:
            if partition.leadership is not None:
                partition.tick(now_ms)

    def alter(self, partition: Partition, asked: AlterPartition) -> None:
        """Ask the controller for another ISR, with all others of this turn of the loop."""
        self._altering[partition] = asked
        if self._alter is None:
            self._alter = asyncio.ensure_future(self._alter_all())

    async def _alter_all(self) -> None:
        try:
            while self._altering:
                asked, self._altering = self._altering, {}
                await self._alter_some(asked)
        finally:
            self._alter = None

    async def _alter_some(self, asked: dict[Partition, AlterPartition]) -> None:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for one in asked.values():
            row = {
                "partition_index": one.partition_index,
                "leader_epoch": one.leader_epoch,
                "new_isr_with_epochs": [
                    {"broker_id": id, "broker_epoch": epoch} for id, epoch in one.isr
                ],
                "leader_recovery_state": one.leader_recovery_state,
                "partition_epoch": one.partition_epoch,
            }
            topics.setdefault(one.topic_id, []).append(row)
        fields = {
            "broker_id": self._broker.node_id,
            "broker_epoch": self.broker_epoch,
            "topics": [{"topic_id": t, "partitions": rows} for t, rows in topics.items()],
        }
        found: dict[Key, Any] = {}
        whole = ErrorCode.none
        try:
            answer = await self._broker.channel.request(
                ApiKey.ALTER_PARTITION, fields, timeout_ms=ALTER_TIMEOUT_MS
            )
            whole = ErrorCode(answer.error_code)
            found = {
                (t.topic_id, p.partition_index): p for t in answer.topics for p in t.partitions
            }
        except (ApiError, KeyError):
            whole = ErrorCode.request_timed_out
        for partition, one in asked.items():
            answered = found.get(partition.key)
            code = whole if answered is None else ErrorCode(answered.error_code)
            if code is ErrorCode.none and answered is not None:
                partition.altered(tuple(answered.isr), answered.partition_epoch)
            else:
                self._refused(partition, one, code or ErrorCode.unknown_server_error)

    def _refused(self, partition: Partition, asked: AlterPartition, code: ErrorCode) -> None:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        broker.log.info(
            "the controller did not take an ISR",
            topic=partition.topic,
            partition=partition.index,
            isr=asked.members,
            error=code.name,
        )
        partition.alter_refused(asked, code, now_ms, ALTER_RETRY_MS)
        again_ms = now_ms + ALTER_RETRY_MS
        broker.timers.at(again_ms, lambda: partition.tick(broker.clock.now_ms()))


class _FetchLoop:
    """Fetches some partitions from their leader, one request at a time."""

    def __init__(self, broker: Broker, leader_id: int) -> None:
        self._broker = broker
        self._leader_id = leader_id
        self.fetcher = Fetcher(
            leader_id,
            backoff_max_ms=broker.config["replica.fetch.backoff.ms"],
            throttle=broker.throttles[FOLLOWER],
        )
        self._moved = asyncio.Event()
        self.fetcher.on_synced = self._moved.set
        self._link: Link | None = None
        #: The leader's broker epoch when the link was made.
        self._link_epoch = NOT_ELIGIBLE
        self._asking: set[asyncio.Task[None]] = set()
        self._task = asyncio.ensure_future(self._run())

    def follow(self, partition: Partition) -> None:
        self.fetcher.follow(partition)
        if self._link is not None and self._link_epoch != self._leader_epoch():
            # It began anew. A machine that had lost its power knows nothing of the connection, and
            # a fetch that waits on it would do so until replica.socket.timeout.ms.
            self._drop_link()
        self._moved.set()

    def nudge(self) -> None:
        """Look again at what is to be fetched."""
        self._moved.set()

    def _leader_epoch(self) -> int:
        found = self._broker.image.brokers.get(self._leader_id)
        return NOT_ELIGIBLE if found is None else found.broker_epoch

    def stop(self) -> None:
        self._task.cancel()
        for task in self._asking:
            task.cancel()
        if self._link is not None:
            self._link.close()

    async def _run(self) -> None:
        pause_ms = _RECONNECT_MS
        while True:
            now_ms = self._broker.clock.now_ms()
            request = self.fetcher.next_fetch(now_ms)
            if request is None:
                await self._wait(now_ms)
                continue
            try:
                response = await self._fetch(request)
            except ClientError:
                self.fetcher.unanswered(self._broker.clock.now_ms())
                self._drop_link()
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, _RECONNECT_MAX_MS)
                continue
            except Exception:
                # A fault of ours, or bytes that are no answer: told, and no end of replication.
                self._broker.log.exception("a replica's fetch failed", leader=self._leader_id)
                self.fetcher.unanswered(self._broker.clock.now_ms())
                self._drop_link()
                await asyncio.sleep(_RECONNECT_MAX_MS / 1000)
                continue
            pause_ms = _RECONNECT_MS
            if self._broker.suspects:
                self._broker.suspects.reached(self._leader_id)
            self._do(self.fetcher.answered(response, self._broker.clock.now_ms()))

    async def _wait(self, now_ms: int) -> None:
        """Until a partition is followed or synced, or one that was refused is due."""
        due_ms = self.fetcher.next_due_ms()
        timeout_s = None if due_ms is None else max(0.001, (due_ms - now_ms) / 1000)
        if due_ms is not None and due_ms <= now_ms:
            timeout_s = 0.5  # It waits for its disk.
        self._moved.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        except TimeoutError:
            pass

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _request(self, api_key: ApiKey, fields: dict[str, Any]) -> Any:
        peers, config = self._broker.peers, self._broker.config
        address = peers.address_of(self._leader_id)
        if self._link is None or self._link.address != address:
            self._drop_link()
            if address is None:
                raise ClientError(f"broker {self._leader_id} is not registered")
            self._link = peers.link(
                address,
                config["replica.socket.timeout.ms"],
                on_lost=lambda: self._broker.suspects.lost(self._leader_id),
            )
            self._link_epoch = self._leader_epoch()
        return await self._link.request(api_key, fields)

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        broker, config = self._broker, self._broker.config
        partition_max_bytes = config["replica.fetch.max.bytes"]
        rooms = self._rooms(request)
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic_id, index), asked in request.partitions:
            row = {
                "partition": index,
                "current_leader_epoch": asked.current_leader_epoch,
                "fetch_offset": asked.fetch_offset,
                "last_fetched_epoch": asked.last_fetched_epoch,
                "log_start_offset": asked.log_start_offset,
                "partition_max_bytes": min(
                    partition_max_bytes, rooms.get((topic_id, index), partition_max_bytes)
                ),
            }
            topics.setdefault(topic_id, []).append(row)
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        fields = {
            "replica_state": {
                "replica_id": broker.node_id,
                "replica_epoch": broker.replicas.broker_epoch,
            },
            "max_wait_ms": config["replica.fetch.wait.max.ms"],
            "min_bytes": config["replica.fetch.min.bytes"],
            "max_bytes": config["replica.fetch.response.max.bytes"],
            "session_id": request.session_id,
            "session_epoch": request.session_epoch,
            "topics": [{"topic_id": t, "partitions": rows} for t, rows in topics.items()],
            "forgotten_topics_data": [
                {"topic_id": t, "partitions": indexes} for t, indexes in forgotten.items()
            ],
        }
        return _response(await self._request(ApiKey.FETCH, fields))

    def _rooms(self, request: FetchRequest) -> dict[Key, int]:
        """Bytes that throttled partitions out of sync may have at once, which is one batch at
        least: together what the throttle has room for."""
        broker, throttle = self._broker, self._broker.throttles[FOLLOWER]
        if not throttle.active:
            return {}
        found = [broker.partitions.get(*key) for key, _ in request.partitions]
        keys = [p.key for p in found if p and broker.node_id not in p.isr and throttle.throttles(p)]
        return dict.fromkeys(keys, throttle.room(broker.clock.now_ms()) // max(1, len(keys)))

    def _do(self, what: Answered) -> None:
        broker = self._broker
        for partition in what.sync:
            broker.disk.sync_soon(partition)
        if any(not partition.group_commit for partition in what.sync):
            # The recovery point on disk must not vouch for what will stand where the cut was.
            broker.background.checkpoint()
        for partition, error in what.failed:
            broker.log.error(
                "a follower cannot write",
                topic=partition.topic,
                partition=partition.index,
                error=str(error),
            )
        for partition in what.ask:
            task = asyncio.ensure_future(self._ask(partition))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, partition: Partition) -> None:
        """Ask where the leader's log begins and ends."""
        epoch = partition.leader_epoch
        found = {EARLIEST: -1, LATEST: -1}
        code = ErrorCode.none
        try:
            for timestamp in found:
                fields = {
                    "replica_id": self._broker.node_id,
                    "topics": [
                        {
                            "name": partition.topic,
                            "partitions": [
                                {
                                    "partition_index": partition.index,
                                    "current_leader_epoch": epoch,
                                    "timestamp": timestamp,
                                }
                            ],
                        }
                    ],
                }
                answer = await self._broker.peers.request(
                    self._leader_id, ApiKey.LIST_OFFSETS, fields
                )
                row = answer.topics[0].partitions[0]
                code = code or ErrorCode(row.error_code)
                found[timestamp] = row.offset
        except ClientError:
            code = ErrorCode.request_timed_out
        now_ms = self._broker.clock.now_ms()
        self._do(
            self.fetcher.offsets(partition, epoch, code, found[EARLIEST], found[LATEST], now_ms)
        )
        self._moved.set()


def _response(answer: Any) -> FetchResponse:
    found: dict[Key, ReplicaFetched] = {}
    for topic in answer.responses:
        for row in topic.partitions:
            diverging = row.diverging_epoch
            found[(topic.topic_id, row.partition_index)] = ReplicaFetched(
                ErrorCode(row.error_code),
                row.high_watermark,
                row.log_start_offset,
                Divergence(diverging.epoch, diverging.end_offset)
                if diverging is not None and diverging.end_offset >= 0
                else None,
                row.records or b"",
            )
    return FetchResponse(ErrorCode(answer.error_code), answer.session_id, found)
