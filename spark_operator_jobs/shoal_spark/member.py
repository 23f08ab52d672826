"""The driver's member of the share group: acquires, settles and renews ranges.

Each reader has one member. The reader's thread makes the calls. The client's thread renews locks in
the background, so that a batch may run longer than the lock duration. Transient errors (a broker
restarts, a coordinator moves) fail the query only after the client's `default.api.timeout.ms`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import OffsetSpec
from shoal.client.client import SyncClient
from shoal.client.errors import ClientError, KafkaError, SecurityError, is_transient
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    AcquireMode,
    ShareMembership,
    ShareSession,
)
from shoal.protocol.errors import ErrorCode

from shoal_spark import ranges as sets
from shoal_spark.options import InvalidOption, SourceOptions
from shoal_spark.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from shoal.protocol.reasons import FailureReason

log = logging.getLogger("shoal_spark")
#: Fraction of the lock duration after which locks are renewed; one renewal may fail.
RENEW_AT = 0.4
UNLOCKED_S = 0.2
#: Seconds between two reads of lag and start offsets.
POSITIONS_EVERY_S = 5.0
CLOSE_TIMEOUT_S = 5.0
_RENEWAL = "share.renew.acknowledge.enable"


class DriverMember:
    """One member of one group, from `join` to `close`.

    `locked_ranges` returns the ranges to renew.
    """

    def __init__(
        self, options: SourceOptions, locked_ranges: Callable[[], Sequence[OffsetRange]]
    ) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self.lags: dict[tuple[str, int], int] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self._locked_ranges = locked_ranges
        self._lost: list[OffsetRange] = []
        self._failing_since: float | None = None
        self._positions_at = 0.0
        self.client = SyncClient(options.connection.settings)
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
        """Whether the group has assigned a partition to this member."""
        return bool(self._session.assignment)

    @property
    def lock_ms(self) -> int:
        """The lock duration; 0 until a response reports it."""
        return self._session.lock_timeout_ms

    @property
    def timeout_s(self) -> float:
        """Seconds that transient errors may last (`default.api.timeout.ms`)."""
        return self.client.cluster.settings.retry_timeout_ms / 1000

    def join(self, member_id: str) -> None:
        """Join the group once, under the id of an earlier driver unless it is empty."""
        if self._joined is None:
            renews = self.options.renew is not False and self._may_renew()
            self._joined = self.client.run(self._join(member_id))
            if renews:
                self._renewal = self.client.submit(self._keep_renewing())

    @property
    def is_renewing(self) -> bool:
        """Whether locks are renewed during a batch."""
        return self._renewal is not None

    def _may_renew(self) -> bool:
        """Whether the group allows renewals. A refused renewal looks like a lost lock."""
        group = ConfigResource(ConfigResourceType.GROUP, self.options.group_id)
        request = self.client.admin.configs.describe([group], keys=[_RENEWAL])
        try:
            configs = self.client.run(request)[group]
        except ClientError as error:
            if not is_transient(error):
                raise
            configs = {}
        # A user with access to the group may lack access to its configs.
        entry = None if isinstance(configs, KafkaError) else configs.get(_RENEWAL)
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
        """Fail for a missing topic. A member may subscribe to it and would wait for ever."""
        for topic in self.options.topics:
            try:
                self.client.run(self.client.cluster.get_topic(topic))
            except KafkaError as error:
                raise _make_refusal("subscribe", error) from None
            except SecurityError as error:
                raise InvalidOption(f"options 'kafka.*': {error}; {_LOGIN}") from None

    async def _join(self, member_id: str) -> ShareSession:
        cluster = self.client.cluster
        membership = ShareMembership(cluster, self.options.group_id, self.options.topics, None)
        membership.member_id = member_id or membership.member_id
        try:
            await membership.join()
        except KafkaError as error:
            if error.code not in _REMEDIES:
                raise
            raise _make_refusal("group.id", error) from None
        return ShareSession(cluster, membership)

    # Acquiring

    def acquire(self, max_records: int, max_bytes: int, wait_ms: int) -> list[OffsetRange]:
        """Lock available records; wait up to `wait_ms` for the first. May return nothing.

        A producer's batch is taken whole, beyond `max_records`, unless the limit is strict.
        """
        mode = (
            AcquireMode.RECORD_LIMIT if self.options.strict_limit else AcquireMode.BATCH_OPTIMIZED
        )
        try:
            acquired = self.client.run(
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
        ranges = sets.normalize(
            r for acquisition in acquired for r in split_at_batches(acquisition)
        )
        self.counts["acquired"] += sets.count(ranges)
        self.counts["redelivered"] += sets.count(r for r in ranges if r.delivery_count > 1)
        return ranges

    def _forgive(self, error: ClientError) -> None:
        """Ignore a transient error; raise another one, or one that lasts too long."""
        now = time.monotonic()
        failing_since = self._failing_since = self._failing_since or now
        if not is_transient(error) or now - failing_since > self.timeout_s:
            raise error
        log.warning("share group %s: %s", self.options.group_id, error)

    # Settling

    def settle(
        self,
        ranges: Iterable[OffsetRange],
        kind: AcknowledgeType,
        reason: FailureReason | None = None,
    ) -> tuple[list, list]:
        """Acknowledge ranges; return the settled ranges and those whose locks are lost."""
        requested = list(ranges)
        if not requested:
            return [], []
        refused = self.client.run(self._settle(requested, kind, reason))
        settled = [r for r in requested if r not in refused]
        self.counts[_PAST[kind]] += sets.count(settled)
        self.counts["lost"] += sets.count(refused)
        return settled, refused

    async def _settle(
        self,
        ranges: list[OffsetRange],
        kind: AcknowledgeType,
        reason: FailureReason | None = None,
    ) -> list[OffsetRange]:
        """Return the ranges that the broker rejected.

        Acknowledgements of one partition succeed or fail together. So a failed set is halved until
        the rejected ranges are alone.
        """
        acks = {Acknowledgement(*r[:4], kind, reason=reason): r for r in ranges}
        refusals = await self._session.acknowledge(acks)
        fallen = [acks[refusal.acknowledgement] for refusal in refusals]
        refused: list[OffsetRange] = []
        for _, group in groupby(sorted(fallen), key=lambda r: r[:2]):
            batch = list(group)
            if len(batch) == 1:
                refused += batch
                continue
            half = len(batch) // 2
            refused += await self._settle(batch[:half], kind, reason)
            refused += await self._settle(batch[half:], kind, reason)
        return refused

    async def _keep_renewing(self) -> None:
        while True:
            # The first acquisition reports the lock duration. There are no locks before it.
            lock_ms = self.lock_ms
            await asyncio.sleep(RENEW_AT * lock_ms / 1000 if lock_ms else UNLOCKED_S)
            ranges = list(self._locked_ranges())
            if not ranges or not lock_ms:
                continue
            try:
                refused = await self._settle(ranges, AcknowledgeType.RENEW)
            except ClientError as error:
                log.warning("share group %s: renewing: %s", self.options.group_id, error)
                continue
            self.counts["renewed"] += sets.count(ranges) - sets.count(refused)
            self._lost = self._lost + refused

    def take_lost(self) -> list[OffsetRange]:
        """Return the locks that were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    # Positions

    def fetch_positions(self, *, fresh: bool = False) -> Mapping[tuple[str, int], int]:
        """Return the group's start offsets, at most `POSITIONS_EVERY_S` old; also set `lags`.

        Empty if they are unavailable; they are used for cleanup only.
        """
        if not fresh and time.monotonic() - self._positions_at < POSITIONS_EVERY_S:
            return self.starts
        self._positions_at = time.monotonic()
        group = self.options.group_id
        try:
            result = self.client.run(self.client.admin.share_groups.offsets([group]))[group]
        except ClientError as error:
            log.warning("share group %s: asking for its start offsets: %s", group, error)
            return self.starts
        if isinstance(result, KafkaError):
            return self.starts
        rows = {
            (partition.topic, partition.partition): offset
            for partition, offset in result.items()
            if partition.topic in self.options.topics and not isinstance(offset, KafkaError)
        }
        self.starts = {w: o.start_offset for w, o in rows.items() if o.start_offset >= 0}
        self.lags = {partition: offset.lag for partition, offset in rows.items()}
        return self.starts

    @property
    def lag(self) -> int:
        """Return the number of unsettled records; -1 if it is unknown for any partition."""
        lags = self.lags.values()
        return -1 if not lags or min(lags) < 0 else sum(lags)

    def fetch_ends(self) -> dict[tuple[str, int], int]:
        """Return the log end offsets of all subscribed partitions."""

        async def ask() -> dict[tuple[str, int], int]:
            specs = {}
            for name in self.options.topics:
                topic = await self.client.cluster.get_topic(name)
                for index in range(len(topic.partitions)):
                    specs[TopicPartition(name, index)] = int(OffsetSpec.LATEST)
            ends = {}
            for partition, offset in (await self.client.admin.topics.offsets(specs)).items():
                if isinstance(offset, KafkaError):
                    raise offset
                ends[(partition.topic, partition.partition)] = offset.offset
            return ends

        return self.client.run(ask())

    def close(self) -> None:
        """Release every lock and leave the group."""
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            if self._joined is not None:
                self.client.run(self._joined.close(undelivered=True), CLOSE_TIMEOUT_S)
        except (ClientError, TimeoutError) as error:
            log.warning("share group %s: leaving: %s", self.options.group_id, error)
        self.client.close()


_PAST = {
    AcknowledgeType.ACCEPT: "accepted",
    AcknowledgeType.RELEASE: "released",
    AcknowledgeType.REJECT: "rejected",
    AcknowledgeType.RENEW: "renewed",
}

_LOGIN = "check kafka.security.protocol and kafka.sasl.* or kafka.ssl.*"
_OF_ONE_TYPE = "a group id belongs to one type of group: name another"
#: Remedies for a query that is refused at its start.
_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "create it, or name another",
    ErrorCode.topic_authorization_failed: "the query's user needs READ on the topic",
    ErrorCode.group_authorization_failed: "the query's user needs READ on the group",
    ErrorCode.group_id_not_found: _OF_ONE_TYPE,
    ErrorCode.inconsistent_group_protocol: _OF_ONE_TYPE,
}


def _make_refusal(option: str, error: KafkaError) -> InvalidOption:
    """Return the error for an option that a broker refused, with a remedy if one is known."""
    remedy = _REMEDIES.get(error.code)
    return InvalidOption(f"option {option!r}: {error}{f'; {remedy}' if remedy else ''}")


def split_at_batches(acquired: AcquiredRecords) -> list[OffsetRange]:
    """Return the acquired ranges, cut at log batches, each with its share of the batch's bytes.

    Both lists are in offset order and are merged in one pass: there may be thousands of each.
    """
    ranges: list[OffsetRange] = []
    batches = acquired.batches()
    batch = next(batches, None)
    for locked in acquired.ranges:
        offset = locked.first_offset
        while offset <= locked.last_offset:
            while batch is not None and batch.last_offset < offset:
                batch = next(batches, None)
            last, size = locked.last_offset, 0
            if batch is not None and batch.base_offset > offset:
                last = min(last, batch.base_offset - 1)
            elif batch is not None:
                last = min(last, batch.last_offset)
                size = batch.size * (last - offset + 1) // (batch.last_offset_delta + 1)
            ranges.append(
                OffsetRange(
                    acquired.topic, acquired.partition, offset, last, locked.delivery_count, size
                )
            )
            offset = last + 1
    return ranges
