"""The driver's member of the share group: acquires, settles and renews ranges.

One member for each reader. Calls come from the reader's thread; renewal goes on beside them in the
client's own, as long as there are locks, so that a batch may run longer than a lock lasts.
Failures that pass (a broker restarts, a coordinator moves) are no failures of the query until they
have lasted as long as the client's `default.api.timeout.ms`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import groupby

from shoal.client.client import SyncClient
from shoal.client.cluster import TopicPartition
from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError, SecurityError, transient
from shoal.client.share import (
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquireMode,
    ShareMembership,
    ShareSession,
)
from shoal.client.topics import OffsetSpec
from shoal.protocol.errors import ErrorCode

from shoal_spark import ranges as sets
from shoal_spark.options import InvalidOption, SourceOptions
from shoal_spark.ranges import Range

log = logging.getLogger("shoal_spark")
#: Locks are renewed at this part of their time: one renewal may fail without harm.
RENEW_AT = 0.4
UNLOCKED_S = 0.2
#: How often lag and start offsets are asked for.
POSITIONS_EVERY_S = 5.0
CLOSE_TIMEOUT_S = 5.0
_RENEWAL = "share.renew.acknowledge.enable"


class Member:
    """One member of one group, from `join` to `close`.

    `held` tells the ranges to renew at the time when it is called.
    """

    def __init__(self, options: SourceOptions, held: Callable[[], Sequence[Range]]) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self.lags: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self._held = held
        self._lost: list[Range] = []
        self._failing_since: float | None = None
        self._positions_at = 0.0
        self._client = SyncClient(options.connection.settings)
        self._joined: ShareSession | None = None
        self._renewal: Future[None] | None = None
        self._check_topics()

    @property
    def _session(self) -> ShareSession:
        assert self._joined is not None, "a member joins before it does anything else"
        return self._joined

    @property
    def id(self) -> str:
        return self._session.member_id

    @property
    def is_assigned(self) -> bool:
        """Whether the group has given this member any partition."""
        return bool(self._session.assignment)

    @property
    def lock_ms(self) -> int:
        """How long a lock lasts; 0 while no answer has told it."""
        return self._session.lock_timeout_ms

    @property
    def timeout_s(self) -> float:
        """How long what may mend itself is waited for (`default.api.timeout.ms`)."""
        return self._client.cluster.settings.retry_timeout_ms / 1000

    def join(self, member_id: str) -> None:
        """Become a member, under the id of an earlier driver if it is not empty; at most once."""
        if self._joined is None:
            renews = self.options.renew is not False and self._may_renew()
            self._joined = self._client.run(self._join(member_id))
            if renews:
                self._renewal = self._client.submit(self._renewing())

    @property
    def renews(self) -> bool:
        """Whether locks are renewed while a batch runs."""
        return self._renewal is not None

    def _may_renew(self) -> bool:
        """Whether the group lets locks be renewed; a refused renewal looks like a lost lock."""
        group = Resource(ResourceType.GROUP, self.options.group_id)
        asked = self._client.admin.configs.describe([group], keys=[_RENEWAL])
        try:
            found = self._client.run(asked)[group]
        except ClientError as error:
            if not transient(error):
                raise
            found = {}
        # Who may read the group need not be allowed to read its settings.
        entry = None if isinstance(found, KafkaError) else found.get(_RENEWAL)
        if entry is None or entry.value != "false":
            return True
        if self.options.renew:
            raise InvalidOption(
                f"option 'share.renew' is true, and group {self.options.group_id!r} has {_RENEWAL} "
                "set to false; set it to true, or leave the option out"
            )
        log.warning(
            "share group %s: %s is false: records of a batch that takes longer than a lock are "
            "delivered again",
            self.options.group_id,
            _RENEWAL,
        )
        return False

    def _check_topics(self) -> None:
        """A member may subscribe to a topic that is not there, and would wait for ever."""
        for topic in self.options.topics:
            try:
                self._client.run(self._client.cluster.topic(topic))
            except KafkaError as error:
                raise _refused("subscribe", error) from None
            except SecurityError as error:
                raise InvalidOption(f"options 'kafka.*': {error}; {_LOGIN}") from None

    async def _join(self, member_id: str) -> ShareSession:
        cluster = self._client.cluster
        membership = ShareMembership(cluster, self.options.group_id, self.options.topics, None)
        membership.member_id = member_id or membership.member_id
        try:
            await membership.join()
        except KafkaError as error:
            if error.code not in _REMEDIES:
                raise
            raise _refused("group.id", error) from None
        return ShareSession(cluster, membership)

    # -- acquiring

    def acquire(self, max_records: int, max_bytes: int, wait_ms: int) -> list[Range]:
        """Lock what is available, waiting up to `wait_ms` for the first; maybe nothing.

        A batch of the producer's is taken whole, past `max_records`, unless the limit is strict.
        """
        mode = (
            AcquireMode.RECORD_LIMIT if self.options.strict_limit else AcquireMode.BATCH_OPTIMIZED
        )
        try:
            found = self._client.run(
                self._session.acquire(
                    max_records=max_records,
                    max_bytes=max_bytes,
                    max_wait_ms=wait_ms,
                    mode=mode,
                    payload=False,
                )
            )
        except ClientError as error:
            self._forgive(error)
            return []
        self._failing_since = None
        if self.options.renew is False and 0 < self.lock_ms <= self.options.target_ms:
            raise InvalidOption(
                f"option 'batch.target.ms' is {self.options.target_ms}, locks of the group last "
                f"{self.lock_ms} ms and 'share.renew' is false: every batch would lose them; lower "
                "'batch.target.ms' or set 'share.renew' to true"
            )
        ranges = sets.normal(r for one in found for r in sized(one))
        self.counts["acquired"] += sets.count(ranges)
        self.counts["redelivered"] += sets.count(r for r in ranges if r.delivery_count > 1)
        return ranges

    def _forgive(self, error: ClientError) -> None:
        """Pass over what may mend itself; raises what does not, or has not for too long."""
        now = time.monotonic()
        since = self._failing_since = self._failing_since or now
        if not transient(error) or now - since > self.timeout_s:
            raise error
        log.warning("share group %s: %s", self.options.group_id, error)

    # -- settling

    def settle(self, ranges: Iterable[Range], kind: AcknowledgeType) -> tuple[list, list]:
        """Acknowledge; gives what the broker took and what it did not, its lock being gone."""
        wanted = list(ranges)
        if not wanted:
            return [], []
        refused = self._client.run(self._settle(wanted, kind))
        taken = [r for r in wanted if r not in refused]
        self.counts[_PAST[kind]] += sets.count(taken)
        self.counts["lost"] += sets.count(refused)
        return taken, refused

    async def _settle(self, ranges: list[Range], kind: AcknowledgeType) -> list[Range]:
        """The ranges that were refused.

        Acknowledgements of one partition stand or fall together, so those of a partition that
        fell are halved until the guilty ones are alone.
        """
        acks = {Acknowledgement(*r[:4], kind): r for r in ranges}
        refusals = await self._session.acknowledge(acks)
        fallen = [acks[refusal.acknowledgement] for refusal in refusals]
        refused: list[Range] = []
        for _, group in groupby(sorted(fallen), key=lambda r: r[:2]):
            some = list(group)
            if len(some) == 1:
                refused += some
                continue
            half = len(some) // 2
            refused += await self._settle(some[:half], kind)
            refused += await self._settle(some[half:], kind)
        return refused

    async def _renewing(self) -> None:
        while True:
            # The first acquisition tells how long locks last; until then there are none.
            lock_ms = self.lock_ms
            await asyncio.sleep(RENEW_AT * lock_ms / 1000 if lock_ms else UNLOCKED_S)
            ranges = list(self._held())
            if not ranges or not lock_ms:
                continue
            try:
                refused = await self._settle(ranges, AcknowledgeType.RENEW)
            except ClientError as error:
                log.warning("share group %s: renewing: %s", self.options.group_id, error)
                continue
            self.counts["renewed"] += sets.count(ranges) - sets.count(refused)
            self._lost = self._lost + refused

    def take_lost(self) -> list[Range]:
        """Locks found to be gone since the last call."""
        found, self._lost = self._lost, []
        return found

    # -- positions

    def positions(self, *, fresh: bool = False) -> Mapping[tuple[str, int], int]:
        """The group's start offsets, at most `POSITIONS_EVERY_S` old; sets `lags` too.

        Empty where they cannot be had at present: nothing depends on them but tidiness.
        """
        if not fresh and time.monotonic() - self._positions_at < POSITIONS_EVERY_S:
            return self.starts
        self._positions_at = time.monotonic()
        group = self.options.group_id
        try:
            found = self._client.run(self._client.admin.share_groups.offsets([group]))[group]
        except ClientError as error:
            log.warning("share group %s: asking for its start offsets: %s", group, error)
            return self.starts
        if isinstance(found, KafkaError):
            return self.starts
        rows = {
            (where.topic, where.partition): offset
            for where, offset in found.items()
            if where.topic in self.options.topics and not isinstance(offset, KafkaError)
        }
        self.starts = {w: o.start_offset for w, o in rows.items() if o.start_offset >= 0}
        self.lags = {where: offset.lag for where, offset in rows.items()}
        return self.starts

    @property
    def lag(self) -> int:
        """Records that the group has yet to settle; -1 while that of any partition is not known."""
        lags = self.lags.values()
        return -1 if not lags or min(lags) < 0 else sum(lags)

    def ends(self) -> dict[tuple[str, int], int]:
        """The log end offsets of all partitions subscribed to."""

        async def ask() -> dict[tuple[str, int], int]:
            wanted = {}
            for name in self.options.topics:
                topic = await self._client.cluster.topic(name)
                for index in range(len(topic.partitions)):
                    wanted[TopicPartition(name, index)] = int(OffsetSpec.LATEST)
            found = {}
            for where, offset in (await self._client.admin.topics.offsets(wanted)).items():
                if isinstance(offset, KafkaError):
                    raise offset
                found[(where.topic, where.partition)] = offset.offset
            return found

        return self._client.run(ask())

    def close(self) -> None:
        """Release every lock and leave the group."""
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            if self._joined is not None:
                self._client.run(self._joined.close(undelivered=True), CLOSE_TIMEOUT_S)
        except (ClientError, TimeoutError) as error:
            log.warning("share group %s: leaving: %s", self.options.group_id, error)
        self._client.close()


_PAST = {
    AcknowledgeType.ACCEPT: "accepted",
    AcknowledgeType.RELEASE: "released",
    AcknowledgeType.REJECT: "rejected",
    AcknowledgeType.RENEW: "renewed",
}

_LOGIN = "check kafka.security.protocol and kafka.sasl.* or kafka.ssl.*"
_OF_ONE_TYPE = "a group id belongs to one type of group: name another"
#: What mends a query that is refused at its start.
_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "create it, or name another",
    ErrorCode.topic_authorization_failed: "the query's user needs READ on the topic",
    ErrorCode.group_authorization_failed: "the query's user needs READ on the group",
    ErrorCode.group_id_not_found: _OF_ONE_TYPE,
    ErrorCode.inconsistent_group_protocol: _OF_ONE_TYPE,
}


def _refused(option: str, error: KafkaError) -> InvalidOption:
    """A broker's refusal of what an option names, with what to do about it if that is known."""
    remedy = _REMEDIES.get(error.code)
    return InvalidOption(f"option {option!r}: {error}{f'; {remedy}' if remedy else ''}")


def sized(acquired: Acquired) -> list[Range]:
    """The acquired ranges, cut at the log's batches, each with its part of the batch's bytes.

    Both come in offset order and are gone through together: there may be thousands of each.
    """
    found: list[Range] = []
    batches = acquired.batches()
    batch = next(batches, None)
    for locked in acquired.ranges:
        at = locked.first_offset
        while at <= locked.last_offset:
            while batch is not None and batch.last_offset < at:
                batch = next(batches, None)
            last, size = locked.last_offset, 0
            if batch is not None and batch.base_offset > at:
                last = min(last, batch.base_offset - 1)
            elif batch is not None:
                last = min(last, batch.last_offset)
                size = batch.size * (last - at + 1) // (batch.last_offset_delta + 1)
            found.append(
                Range(acquired.topic, acquired.partition, at, last, locked.delivery_count, size)
            )
            at = last + 1
    return found
