"""A channel's member of the share group of one queue.

It works as a handler's member in a worker does (`shoal.worker.consumer`): outcomes travel with the
next fetch, locks are renewed while the program holds messages, however long a task runs, and an
outcome is sent only to the session that holds the lock. When the channel closes, what has no
outcome goes back undelivered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError
from shoal.client.net.batches import CorruptRecords
from shoal.client.share.acquired import (
    Acknowledgement,
    AcknowledgeType,
    AcquireMode,
    merge_places,
)
from shoal.kombu.intake import ChannelDelivery
from shoal.kombu.messages import decode, is_expired
from shoal.protocol.reasons import FailureReason
from shoal.record.batch import CorruptBatch
from shoal.worker.consumer import wait_within
from shoal.worker.jobs import Hold
from shoal.worker.settlements import Outbox, Settlement, is_held, resend

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from shoal.client.client import Client
    from shoal.client.share.acquired import AcquiredRecords, RejectedAcknowledgement
    from shoal.client.share.member import ShareSession
    from shoal.kombu.intake import Intake

log = logging.getLogger("shoal.kombu")

#: Milliseconds that a fetch waits for records. Outcomes wait for it, too.
WAIT_MS = 200
#: The same if other queues wait for room.
CONTENDED_WAIT_MS = 30
#: Milliseconds that `basic.get` waits for a message: the broker may have just got it.
GET_WAIT_MS = 100
#: Seconds that the first `basic.get` waits for the group's assignment.
JOIN_S = 2.0
#: The part of the lock's duration after which it is renewed.
RENEW_AFTER = 0.5
#: Pauses in seconds after a fetch that the cluster refused.
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
#: The most that one fetch acquires.
RECORDS_MAX = 500


class Member:
    """A member of a queue's group. `open` it; `start` consumes, `get` takes one message."""

    def __init__(
        self,
        client: Client,
        intake: Intake,
        queue: str,
        group: str,
        count_readers: Callable[[], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.queue = queue
        self._client = client
        self._intake = intake
        self._group = group
        self._count_readers = count_readers
        self._on_failure = on_failure
        # The group cuts the delay of a release itself: the outbox need not know its maximum.
        self._outbox = Outbox(delay_max_s=float("inf"))
        #: Set while nothing is to be delivered, and for the end.
        self._stopped, self._closing = asyncio.Event(), asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._session: ShareSession

    async def open(self) -> None:
        """Join the group. Raises the coordinator's refusal."""
        self._session = await self._client.share(self._group, [self._group])
        self._renewing = asyncio.create_task(self._guard(self._renew()))

    def start(self) -> None:
        """Deliver the queue's records to the channel until `stop`."""
        if self._pumping is None:
            self._stopped.clear()
            self._pumping = asyncio.create_task(self._guard(self._pump()))

    async def stop(self) -> bool:
        """Deliver no more. Return whether the member has left, which it does if the program holds
        none of its messages: then the others go back undelivered."""
        if not self._intake.has_held_by_program(self):
            await self.close()
            return True
        await self._end_pump()
        self._intake.take_back(self)
        await self._flush()
        return False

    async def _end_pump(self) -> None:
        """Wait for a fetch that is under way: cancelling it would end the session, and count the
        deliveries of its locks."""
        self._stopped.set()
        if self._pumping is not None:
            await self._pumping
            self._pumping = None

    async def _guard(self, loop: Coroutine[Any, Any, None]) -> None:
        try:
            await loop
        except ClientError as error:
            self._on_failure(error)

    # Acquiring

    async def _pump(self) -> None:
        pause_s = PAUSE_S
        while not self._stopped.is_set():
            room = await self._intake.reserve(self._count_readers())
            try:
                if room:
                    wait_ms = CONTENDED_WAIT_MS if self._intake.is_contended else WAIT_MS
                    await self._acquire(min(room, RECORDS_MAX), wait_ms)
                else:
                    await self._flush()
                pause_s = PAUSE_S
            except ClientError as error:
                self._session.membership.check()
                log.warning("queue %s: %s. Trying again in %g s.", self.queue, error, pause_s)
                await wait_within(self._stopped, pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            finally:
                self._intake.give_back(room)

    async def get(self) -> ChannelDelivery | None:
        """Return one message that waits in the broker, if there is one."""
        if not self._session.assignment:
            await self._session.membership.wait_for_change(JOIN_S)
        delivered = await self._acquire(1, GET_WAIT_MS, keep=True)
        return delivered[0] if delivered else None

    async def _acquire(
        self, records_max: int, wait_ms: int, *, keep: bool = False
    ) -> list[ChannelDelivery]:
        """Acquire up to this number of records; requests carry the outcomes. With `keep` they are
        not put into the inbox."""
        sent = self._take_outcomes()
        acquisition = await self._session.acquire(
            max_records=records_max,
            max_wait_ms=wait_ms,
            mode=AcquireMode.RECORD_LIMIT,
            acknowledgements=[s.acknowledgement for s in sent],
        )
        expires_s = time.monotonic() + acquisition.lock_timeout_ms / 1000
        deliveries = [d for acquired in acquisition for d in self._admit(acquired, expires_s)]
        if acquisition.refusals:
            await self._handle_refusals(sent, acquisition.refusals)
        if self._closing.is_set():
            return []  # The session's end returns them.
        if keep:
            self._intake.held.update((d.tag, d) for d in deliveries)
        else:
            self._intake.deliver(deliveries)
        return deliveries

    def _admit(self, acquired: AcquiredRecords, expires_s: float) -> list[ChannelDelivery]:
        """Return the messages of one partition; settle what is none."""
        leader_id = acquired.leader_id
        hold = Hold(acquired.topic, acquired.partition, leader_id, self._session.hold_of(leader_id))
        try:
            records = list(acquired.iterate_with_counts())
        except (CorruptRecords, CorruptBatch) as error:
            log.error("%s-%d: %s. It is rejected.", acquired.topic, acquired.partition, error)
            reason = FailureReason.from_exception(error, worker=socket.gethostname())
            rejected = acquired.acknowledge(AcknowledgeType.REJECT, reason=reason)
            self._outbox.add_settlements(Settlement(ack, hold) for ack in rejected)
            return []
        if len(records) < acquired.count:
            gaps = acquired.find_gaps({record.offset for record, _ in records})
            self._outbox.add_settlements(Settlement(gap, hold) for gap in gaps)
        deliveries = []
        now_ms = self._client.cluster.environment.now_ms()
        for record, count in records:
            tag = self._intake.make_tag()
            payload = decode(record, self.queue, tag)
            if is_expired(record, payload, now_ms):
                self._outbox.accept(hold, record.offset)
                continue
            payload["properties"]["delivery_info"]["redelivered"] = count > 1
            deliveries.append(
                ChannelDelivery(tag, self.queue, payload, self, record.offset, hold, expires_s)
            )
        return deliveries

    # Outcomes

    def settle(self, delivery: ChannelDelivery, kind: AcknowledgeType) -> None:
        """Take the outcome of a message, for the next request to carry."""
        hold, offset = delivery.hold, delivery.offset
        assert hold is not None
        if kind is AcknowledgeType.ACCEPT:
            self._outbox.accept(hold, offset)
        else:
            ack = Acknowledgement(hold.topic, hold.partition, offset, offset, kind)
            self._outbox.add_settlements([Settlement(ack, hold)])

    def _take_outcomes(self) -> list[Settlement]:
        sent, late = self._outbox.take(self._session)
        if late:
            self._report_lost(
                [s.acknowledgement for s in late], "the broker has ended this member's session"
            )
        return sent

    async def _flush(self) -> None:
        if self._outbox and (sent := self._take_outcomes()):
            refusals = await self._session.acknowledge([s.acknowledgement for s in sent])
            await self._handle_refusals(sent, refusals)

    async def _handle_refusals(
        self, sent: list[Settlement], refusals: Iterable[RejectedAcknowledgement]
    ) -> None:
        result = await resend(self._session, sent, refusals)
        self._outbox.add_settlements(result.later)
        for ack, error in result.lost:
            self._report_lost([ack], str(error))

    def _report_lost(self, acks: Iterable[Acknowledgement], why: str) -> None:
        for ack in acks:
            log.warning(
                "queue %s: the outcome of %s-%d, offsets %d to %d, came too late: %s. They are"
                " delivered again.",
                *(self.queue, ack.topic, ack.partition, ack.first_offset, ack.last_offset, why),
            )

    # Locks

    async def _renew(self) -> None:
        """Renew the locks of all messages that the channel holds, and find lost ones."""
        while not self._closing.is_set():
            lock_s = self._session.lock_timeout_ms / 1000
            pause_s = max(0.05, min(lock_s * RENEW_AFTER / 3, 5.0)) if lock_s else 0.5
            await wait_within(self._closing, pause_s)
            now_s = time.monotonic()
            held = [d for d in self._intake.held.values() if d.reader is self and not d.is_lost]
            for delivery in held:
                assert delivery.hold is not None
                if now_s > delivery.expires_s or not is_held(self._session, delivery.hold):
                    delivery.is_lost = True
                    log.warning(
                        "queue %s: the lock of a message has ended, so it is delivered again",
                        self.queue,
                    )
            due = [
                d
                for d in held
                if not d.is_lost and d.expires_s - now_s < lock_s * (1 - RENEW_AFTER)
            ]
            if due:
                await self._renew_some(due, now_s + lock_s)

    async def _renew_some(self, due: list[ChannelDelivery], expires_s: float) -> None:
        places = [(d.hold.topic, d.hold.partition, d.offset) for d in due if d.hold is not None]
        try:
            refusals = await self._session.acknowledge(merge_places(places, AcknowledgeType.RENEW))
        except ClientError as error:
            log.warning("queue %s: cannot renew locks: %s", self.queue, error)
            return
        refused = {
            (ack.topic, ack.partition, offset)
            for ack, _ in refusals
            for offset in range(ack.first_offset, ack.last_offset + 1)
        }
        for delivery, place in zip(due, places, strict=True):
            if place not in refused:
                delivery.expires_s = expires_s

    # The end

    async def close(self) -> None:
        """Send the outcomes, return everything else undelivered, and leave the group."""
        self._closing.set()
        await self._end_pump()
        if self._renewing is not None:
            await self._renewing
        try:
            await self._flush()
        except ClientError as error:
            log.warning("queue %s: cannot send the last outcomes: %s", self.queue, error)
        self._intake.drop(self)
        await self._session.close(undelivered=True)
