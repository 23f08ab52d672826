"""One handler's member of the share group: it acquires records, runs them, and settles them.

Each handler has a session of its own, so a topic with a flood of records takes no room from the
others. Three loops use the session, which serves one at a time: `_pump` acquires and carries
outcomes, `_renew` keeps locks, and `_watch` ends what ran too long or lost its lock.

Rules that the whole file keeps:

* A delivery gets one outcome, while it is RUNNING. What a handler does after that counts no more.
* An outcome is sent only to the session that holds the lock (`settlements`).
* A record without an outcome stays locked until the session closes, which returns it undelivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.client.errors import ClientError, KafkaError, RecordCancelled
from shoal.client.net.batches import CorruptRecords
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType, AcquireMode, merge_places
from shoal.protocol.errors import ErrorCode
from shoal.protocol.reasons import FailureReason
from shoal.record.batch import CorruptBatch
from shoal.worker import lanes
from shoal.worker.ignored_headers import HeaderWatch
from shoal.worker.jobs import ENDED, RUNNING, WAITING, Delivery, Hold, State, describe, name_record
from shoal.worker.key_order import KeyOrder
from shoal.worker.lanes import Feed, Lane
from shoal.worker.outcomes import (
    JobCancelled,
    JobLost,
    Rejected,
    Released,
    TimedOut,
    decide,
    read_reason,
)
from shoal.worker.settlements import Outbox, Settlement, is_held, resend

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from shoal.client.client import Client
    from shoal.client.share.acquired import AcquiredRecords, RejectedAcknowledgement
    from shoal.client.share.member import ShareSession
    from shoal.worker.group_setup import GroupFacts
    from shoal.worker.handlers import Handler
    from shoal.worker.lanes import Call
    from shoal.worker.metrics import HandlerMetrics

T = TypeVar("T")
log = logging.getLogger("shoal.worker")

#: How much work may wait in this process: what the handler does in this time, in seconds, and at
#: most this number of records. So a slow handler takes no records from idle workers, and a fast one
#: does not wait for the network.
PREFETCH_S, PREFETCH_MAX = 0.25, 2_000
#: What waits and runs may have about this number of bytes, by the size of the last records.
BYTES_MAX = 64 << 20
#: From this number of records on, whole batches are acquired: they need not be decoded twice.
WHOLE_BATCHES_FROM = 200
#: Milliseconds that a fetch waits for records: without jobs, beside jobs (whose outcomes wait for
#: the fetch), and beside jobs of a group with key order, in which the next record of a key waits
#: for the outcome.
IDLE_WAIT_MS, BUSY_WAIT_MS, ORDERED_WAIT_MS = 500, 200, 20
#: Seconds that a cancelled handler may take for its clean-up. The lock is held meanwhile.
GRACE_S = 5.0
#: The part of the lock's duration after which it is renewed.
RENEW_AFTER = 0.5
#: Pauses in seconds after a fetch that the cluster refused.
PAUSE_S, PAUSE_MAX_S = 0.5, 15.0


class JobConsumer:
    """A member of the group and its lanes. `run` once; `stop` ends it."""

    def __init__(
        self,
        client: Client,
        group: str,
        facts: GroupFacts,
        handler: Handler,
        metrics: HandlerMetrics,
        middlewares: list[lanes.Middleware],
        *,
        shutdown_timeout_s: float,
    ) -> None:
        self.handler = handler
        self.metrics = metrics
        self.is_joined = False
        self._client = client
        self._group = group
        self._facts = facts
        self._shutdown_timeout_s = shutdown_timeout_s
        self._random = client.cluster.environment.random
        self._producer = client.producer() if handler.results else None
        self._feed = Feed()
        self._order = KeyOrder(self._feed, holds_keys=facts.holds_keys)
        self._outbox = Outbox(facts.delay_max_s, socket.gethostname())
        self._header_watch = HeaderWatch(group, facts)
        #: All deliveries without an outcome.
        self._held: set[Delivery] = set()
        #: Jobs that are done since `_note_done` took them out of `_held`.
        self._done: list[Delivery] = []
        #: Deliveries that run although their records are cancelled for the group.
        self._withdrawn: set[Delivery] = set()
        #: What `ShareSession.hold_of` returned last, by broker.
        self._sessions: dict[int, object | None] = {}
        #: The average size of the last values.
        self._record_bytes = 0.0
        self._stopping = asyncio.Event()
        #: Set when an outcome or room may interest the pump.
        self._news = asyncio.Event()
        #: When the last request took the outcomes.
        self._sent_s = 0.0
        self._lanes = [
            Lane(
                handler,
                self._feed,
                self,
                lambda call: self._wrap(middlewares, call),
                limits_time=not facts.renews,
            )
            for _ in range(handler.concurrency)
        ]
        self._session: ShareSession

    @property
    def is_healthy(self) -> bool:
        """Whether a slot is left: abandoned functions hold theirs until they end."""
        return not all(lane.is_abandoned for lane in self._lanes)

    def snapshot(self) -> dict[str, Any]:
        """Return the counts of this handler; see `HandlerMetrics.snapshot`."""
        self._note_done()
        running = sum(len(lane.deliveries) for lane in self._lanes)
        return self.metrics.snapshot(len(self._held), running)

    def stop(self) -> None:
        """Let the running jobs end, and return all others, also those that arrive from now on."""
        self._stopping.set()
        self._return_waiting(self._held)
        self._news.set()

    async def run(self) -> None:
        """Handle records until `stop` is called. Raises the error that ended the membership."""
        joining = self._client.share(self._group, self.handler.topics)
        session = await run_until(self._stopping, joining)
        if session is None:
            return
        self._session = session
        self.is_joined = True
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            lane.task = loop.create_task(lane.run())
        loops = [loop.create_task(each()) for each in (self._pump, self._watch)]
        if self._facts.renews:
            loops.append(loop.create_task(self._renew()))
        tasks = [*loops, *(lane.task for lane in self._lanes if lane.task)]
        try:
            # Only the pump ends without an error.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._drain(self._shutdown_timeout_s if self._stopping.is_set() else 0.0)
        finally:
            self.is_joined = False
            await self._close(loops)
        for task in done:
            task.result()

    def _wrap(self, middlewares: list[lanes.Middleware], call: Call) -> Call:
        if self.handler.results:
            call = self._store_result_of(call)
        return lanes.wrap_in(middlewares, call)

    def _store_result_of(self, call: Call) -> Call:
        from shoal.worker.queue import make_result

        async def store(job: Any) -> Any:
            result = await call(job)
            assert self._producer is not None
            stored = await self._producer.send(
                self.handler.results, **make_result(job, result, self.handler.codec)
            )
            await stored
            return result

        return store

    # Acquiring

    async def _pump(self) -> None:
        """Acquire as many records as there is room for; requests carry the outcomes."""
        pause_s = PAUSE_S
        while not self._stopping.is_set():
            try:
                needed = self._needs_records()
                count = await self._acquire() if needed else 0
                if not count and (self._feed.ready or not needed):
                    await self._wait_for_news(BUSY_WAIT_MS / 1000)
                    if time.monotonic() - self._sent_s > BUSY_WAIT_MS / 1000:
                        await self._flush()
                pause_s = PAUSE_S
            except ClientError as error:
                self._session.membership.check()
                log.warning("group %s: %s. Trying again in %g s.", self._group, error, pause_s)
                await wait_within(self._stopping, pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _count_room(self) -> int:
        self._note_done()
        slots = self.handler.concurrency * self.handler.batch
        prefetch = self.handler.prefetch
        if prefetch is None:
            prefetch = 0
            if (run_s := self.metrics.average_run_s) >= 0:
                prefetch = int(min(PREFETCH_MAX, PREFETCH_S * slots / max(run_s, 1e-6)))
        fitting = int(BYTES_MAX / max(self._record_bytes, 1.0))
        return min(slots + prefetch, max(slots, fitting)) - len(self._held)

    def _needs_records(self) -> bool:
        """Whether to acquire now: lanes may wait soon, and the room is worth a request."""
        room = self._count_room()
        return room > 0 and (not self._feed.ready or room > 2 * len(self._held))

    async def _acquire(self) -> int:
        """Acquire as many records as there is room for; return their number."""
        sent, room = self._take_outcomes(), self._count_room()
        wait_ms = IDLE_WAIT_MS
        if self._feed.ready:
            # The group may have no lock left for this partition until these have run.
            wait_ms = 0
        elif self._held:
            wait_ms = ORDERED_WAIT_MS if self._facts.is_ordered else BUSY_WAIT_MS
        whole = room >= WHOLE_BATCHES_FROM
        try:
            acquisition = await self._session.acquire(
                max_records=room,
                max_wait_ms=wait_ms,
                mode=AcquireMode.BATCH_OPTIMIZED if whole else AcquireMode.RECORD_LIMIT,
                acknowledgements=[s.acknowledgement for s in sent],
            )
        except ClientError:
            if sent:
                log.warning(
                    "group %s: the outcomes of %d records may not have arrived; such records are"
                    " delivered again.",
                    self._group,
                    sum(_count(s.acknowledgement) for s in sent),
                )
            raise
        expires_s = time.monotonic() + acquisition.lock_timeout_ms / 1000
        for acquired in acquisition:
            self._admit(acquired, expires_s)
        self._feed.wake()
        if acquisition.refusals:
            await self._handle_refusals(sent, acquisition.refusals)
        return acquisition.count

    def _admit(self, acquired: AcquiredRecords, expires_s: float) -> None:
        """Let the records of one partition wait for a lane; settle offsets without a record."""
        leader_id = acquired.leader_id
        session = self._session.hold_of(leader_id)
        if self._sessions.get(leader_id) is not session:
            # The records of the broker's former session may be among these: they end first.
            self._sessions[leader_id] = session
            self._drop_lost(time.monotonic())
        place = (acquired.topic, acquired.partition, leader_id, session)
        hold = Hold(*place)
        try:
            by_range = acquired.list_by_range()
        except (CorruptRecords, CorruptBatch) as error:
            log.error("%s-%d: %s. It is rejected.", acquired.topic, acquired.partition, error)
            reason = FailureReason.from_exception(error, worker=socket.gethostname())
            rejected = acquired.acknowledge(AcknowledgeType.REJECT, reason=reason)
            self._outbox.add_settlements(Settlement(ack, hold) for ack in rejected)
            return
        deliveries: list[Delivery] = []
        for acquired_range, records in by_range:
            locks = Hold(*place, acquired_range.delivery_count, self._group)
            deliveries += [Delivery(record, locks, expires_s) for record in records]
            if acquired_range.delivery_count == 1:
                self._header_watch.check(acquired.topic, acquired.partition, records)
        if len(deliveries) < acquired.count:
            gaps = acquired.find_gaps({d.raw.offset for d in deliveries})
            self._outbox.add_settlements(Settlement(gap, hold) for gap in gaps)
        if deliveries:
            sample = deliveries[:: 1 + len(deliveries) // 32]
            self._record_bytes = sum(len(d.raw.value or b"") for d in sample) / len(sample)
        self._held.update(deliveries)
        if self._stopping.is_set():
            # The request was under way at the stop.
            self._return_waiting(deliveries)
        if self._facts.keeps_order:
            deliveries = [each for each in deliveries if self._order.may_run(each)]
        self._feed.ready.extend(deliveries)

    async def _wait_for_news(self, seconds: float) -> None:
        """Wait for an outcome or for `stop`."""
        if not self._stopping.is_set():
            await self._pause_for_news(seconds)

    async def _pause_for_news(self, seconds: float) -> None:
        self._news.clear()
        await wait_within(self._news, seconds)

    # Outcomes

    def limit_time(self, delivery: Delivery) -> None:
        """Let a job end before its lock, which the group does not allow to renew. Its release must
        arrive before."""
        left_s = delivery.expires_s - delivery.started_s
        latest_s = delivery.expires_s - min(GRACE_S, left_s / 3)
        delivery.deadline_s = min(delivery.deadline_s, latest_s)

    def on_success(self, delivery: Delivery, now_s: float) -> None:
        """Accept the record of a job that is done. Before this consumer looks at what it holds or
        has to send, it calls `_note_done`, which costs less for many jobs than for each."""
        delivery.ended_s = now_s
        if delivery.state is not RUNNING:
            self.metrics.add([delivery])
            self._report_late(delivery, None)
            return
        delivery.state = ENDED
        self._done.append(delivery)
        if self._facts.keeps_order:
            self._order.advance(delivery)
        self._news.set()

    def _note_done(self) -> None:
        """Take the outcomes of jobs that are done."""
        done = self._done
        if not done:
            return
        self._held.difference_update(done)
        self._withdrawn.difference_update(done)
        self._outbox.accept_all(done)
        self.metrics.accepted += len(done)
        self.metrics.add(done)
        done.clear()

    def on_failure(self, delivery: Delivery, error: BaseException, now_s: float) -> None:
        """Release or reject the record of a job that failed."""
        delivery.ended_s = now_s
        self.metrics.add([delivery])
        if delivery.state is RUNNING:
            self._refuse(delivery, error)
        else:
            self._report_late(delivery, error)
        self._news.set()

    def _refuse(self, delivery: Delivery, error: BaseException) -> None:
        """Give a delivery the outcome of its error."""
        if delivery in self._withdrawn:
            self._give_back(delivery)
            return
        outcome = decide(
            error,
            delivery.hold.delivery_count,
            retries=self.handler.retries,
            backoff=self.handler.backoff,
            random=self._random,
        )
        kind = "rejected" if isinstance(outcome, Rejected) else "released"
        self._settle(delivery, outcome, "timed_out" if isinstance(error, TimedOut) else kind)
        if self._facts.keeps_order:
            for later in self._order.end(delivery, outcome):
                failed = name_record(delivery.record)
                reason = FailureReason("KeyOrder", f"an earlier record of its key failed: {failed}")
                self._settle(later, Released(0.0, reason), "released")

    def _settle(self, delivery: Delivery, outcome: Released | Rejected, kind: str) -> None:
        """Release or reject a record. This is the one place where a reason is handed over."""
        delivery.state = ENDED
        self._held.discard(delivery)
        self._outbox.refuse(delivery, outcome)
        self.metrics.outcomes[kind] += 1
        self._report(delivery, outcome)

    def _report(self, delivery: Delivery, outcome: Released | Rejected) -> None:
        """Log a failure with its reason."""
        record = delivery.record
        if isinstance(outcome, Released):
            what = f"released, to be delivered again in {outcome.delay_s:.3g} s"
        else:
            what = "rejected"
        log.warning(
            "%s %s at delivery %d: %s",
            name_record(delivery.record),
            what,
            record.delivery_count,
            outcome.reason,
            extra=describe(delivery.record) | {"reason": outcome.reason._asdict()},
        )

    def _report_late(self, delivery: Delivery, error: BaseException | None) -> None:
        if delivery.state is State.RETURNED:
            return
        how = "returned" if error is None else f"raised {read_reason(error)}"
        log.warning(
            "%s: the handler %s after its time; this has no effect, the record may be delivered"
            " again",
            name_record(delivery.record),
            how,
            extra=describe(delivery.record),
        )

    # Settling

    def _take_outcomes(self) -> list[Settlement]:
        """Return the acknowledgements to send. Outcomes without a lock are reported as lost."""
        self._sent_s = time.monotonic()
        self._note_done()
        if not self._outbox:
            return []
        sent, late = self._outbox.take(self._session)
        if late:
            self._report_lost(
                [s.acknowledgement for s in late], "the broker has ended this member's session"
            )
        return sent

    async def _flush(self) -> None:
        sent = self._take_outcomes()
        if sent:
            refusals = await self._session.acknowledge([s.acknowledgement for s in sent])
            await self._handle_refusals(sent, refusals)

    async def _handle_refusals(
        self, sent: list[Settlement], refusals: Iterable[RejectedAcknowledgement]
    ) -> None:
        result = await resend(self._session, sent, refusals)
        if any(_is_without_delays(refusal) for refusal in refusals):
            log.warning("the brokers do not support releases with a wait; records return at once")
            self._outbox.has_delays = False
        self._outbox.add_settlements(result.later)
        for ack, error in result.lost:
            self._report_lost([ack], str(error))

    def _report_lost(self, acks: Iterable[Acknowledgement], why: str) -> None:
        for ack in acks:
            count = _count(ack)
            self.metrics.outcomes["lost"] += count
            log.error(
                "%s-%d: the outcome of %d records from offset %d on came too late: %s. They are"
                " delivered again.",
                ack.topic,
                ack.partition,
                count,
                ack.first_offset,
                why,
                extra={"topic": ack.topic, "partition": ack.partition, "offset": ack.first_offset},
            )

    # Locks and time

    async def _renew(self) -> None:
        """Renew the locks of records that wait or run."""
        while True:
            lock_s = self._session.lock_timeout_ms / 1000
            await asyncio.sleep(max(0.05, min(lock_s * RENEW_AFTER / 3, 5.0)) if lock_s else 0.5)
            self._note_done()
            now_s = time.monotonic()
            due = {
                _place(delivery): delivery
                for delivery in self._held
                if delivery.expires_s - now_s < lock_s * (1 - RENEW_AFTER)
                and (delivery.state is WAITING or now_s < delivery.deadline_s + GRACE_S)
                and delivery not in self._withdrawn
            }
            if due:
                await self._renew_some(due, now_s + lock_s)

    async def _renew_some(
        self, due: dict[tuple[str, int, int], Delivery], expires_s: float
    ) -> None:
        acks = merge_places(due, AcknowledgeType.RENEW)
        try:
            refusals = await self._session.acknowledge(acks)
        except ClientError as error:
            log.warning("group %s: cannot renew locks: %s", self._group, error)
            return
        refused = {
            (ack.topic, ack.partition, offset)
            for ack, _ in refusals
            for offset in range(ack.first_offset, ack.last_offset + 1)
        }
        errors = [error for _, error in refusals if not isinstance(error, RecordCancelled)]
        for place, delivery in due.items():
            if place not in refused:
                delivery.expires_s = expires_s
        if errors:
            log.warning(
                "group %s: %d locks were not renewed: %s", self._group, len(refused), errors[0]
            )
        self._note_done()
        cancelled = [ack for ack, error in refusals if isinstance(error, RecordCancelled)]
        for ack in cancelled:
            for offset in range(ack.first_offset, ack.last_offset + 1):
                delivery = due[ack.topic, ack.partition, offset]
                if delivery in self._held:
                    self._withdraw(delivery)
        if cancelled:
            self._stop_withdrawn()

    # Cancelled records

    def _withdraw(self, delivery: Delivery) -> None:
        """Tell a job that its record is cancelled. Give the record back if the job has not begun.
        One that runs may still be accepted, while its lock lasts."""
        delivery.cancelled = True
        log.info(
            "%s was cancelled for group %s%s",
            name_record(delivery.record),
            self._group,
            " while its handler runs" if delivery.state is RUNNING else "",
            extra=describe(delivery.record),
        )
        if delivery.state is RUNNING:
            self._withdrawn.add(delivery)
        else:
            self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        """Release a cancelled record, which ends it."""
        delivery.state = ENDED
        self._held.discard(delivery)
        self._withdrawn.discard(delivery)
        self.metrics.outcomes["cancelled"] += 1
        topic, partition, offset = _place(delivery)
        ack = Acknowledgement(topic, partition, offset, offset, AcknowledgeType.RELEASE)
        self._outbox.add_settlements([Settlement(ack, delivery.hold)])
        if self._facts.keeps_order:
            self._order.advance(delivery)
        self._news.set()

    def _stop_withdrawn(self) -> None:
        """Stop what runs only cancelled jobs, if it may be stopped. A thread has to look itself."""
        for lane in self._lanes:
            running = [d for d in lane.deliveries if d.state is RUNNING]
            if running and self._withdrawn.issuperset(running) and lane.stop_error is None:
                if lane.executor.may_stop and not lane.is_abandoned:
                    lane.stop(JobCancelled("the record was cancelled"), GRACE_S)

    async def _watch(self) -> None:
        """End jobs whose time is over, and those whose lock has ended."""
        while True:
            limit_s = self.handler.timeout_s
            if not self._facts.renews:
                # The first fetch returns the duration of locks; the shortest one is a second.
                limit_s = min(limit_s, (self._session.lock_timeout_ms or 1_000) / 1000)
            await asyncio.sleep(max(0.02, min(1.0, limit_s / 20)))
            now_s = time.monotonic()
            self._drop_lost(now_s)
            for lane in self._lanes:
                if not lane.is_running or lane.is_abandoned:
                    continue
                if lane.stop_error is None and now_s > lane.deadline_s:
                    lane.stop(self._make_timeout(lane), GRACE_S)
                if lane.stop_error is not None and now_s >= lane.abandon_at_s:
                    self._abandon(lane, lane.stop_error)

    def _make_timeout(self, lane: Lane) -> TimedOut:
        ran_s = time.monotonic() - lane.deliveries[0].started_s
        return TimedOut(f"handler {lane.handler.name} ran for {ran_s:.3g} s and was ended")

    def _abandon(self, lane: Lane, error: BaseException) -> None:
        """Release the records of a function that does not end. It keeps its slot."""
        lane.is_abandoned = True
        for delivery in lane.deliveries:
            log.error(
                "%s: handler %s does not end. Its record is released, and its slot is taken until"
                " it returns; %d of %d slots are left.",
                name_record(delivery.record),
                lane.handler.name,
                sum(not each.is_abandoned for each in self._lanes),
                len(self._lanes),
                extra=describe(delivery.record),
            )
            if delivery.state is RUNNING:
                self._refuse(delivery, error)
        self._news.set()

    def _drop_lost(self, now_s: float) -> None:
        """Give up deliveries whose lock has ended: other members may have them."""
        self._note_done()
        held = {hold: is_held(self._session, hold) for hold in {d.hold for d in self._held}}
        lost = [d for d in self._held if not held[d.hold] or now_s > d.expires_s]
        for delivery in lost:
            self._held.discard(delivery)
            was_running = delivery.state is RUNNING
            delivery.state, delivery.cancelled = State.LOST, True
            is_cancelled = delivery in self._withdrawn
            self._withdrawn.discard(delivery)
            self.metrics.outcomes["cancelled" if is_cancelled else "lost"] += 1
            log.warning(
                "%s: its lock has ended%s; %s",
                name_record(delivery.record),
                " while its handler ran" if was_running else "",
                "it was cancelled" if is_cancelled else "it is delivered again",
                extra=describe(delivery.record),
            )
            if self._facts.keeps_order:
                self._order.advance(delivery)
        for lane in self._lanes if lost else ():
            running = [d.state is RUNNING for d in lane.deliveries]
            if running and not any(running) and lane.stop_error is None and not lane.is_abandoned:
                lane.stop(JobLost("the lock of the record has ended"), GRACE_S)
        if lost:
            self._news.set()

    # The end

    @staticmethod
    def _return_waiting(deliveries: Iterable[Delivery]) -> None:
        """Let no lane run what waits. It goes back undelivered when the session closes."""
        for delivery in deliveries:
            if delivery.state is WAITING:
                delivery.state = State.RETURNED

    async def _drain(self, timeout_s: float) -> None:
        """Let running jobs end."""
        end_s = time.monotonic() + timeout_s
        self._feed.ready.clear()
        self._return_waiting(self._held)
        while (left_s := end_s - time.monotonic()) > 0:
            if not any(lane.is_running and not lane.is_abandoned for lane in self._lanes):
                break
            await self._pause_for_news(min(left_s, BUSY_WAIT_MS / 1000))
            await self._try_to_flush()

    async def _close(self, loops: list[asyncio.Task[None]]) -> None:
        """Stop what still runs, send the last outcomes, and return the rest undelivered."""
        self._note_done()
        for delivery in self._held:
            delivery.state, delivery.cancelled = State.RETURNED, True
        if count := len(self._held):
            log.info("group %s: %d records go back undelivered", self._group, count)
        self.metrics.outcomes["returned"] += count
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        for task in tasks:
            task.cancel()
        _, left = await asyncio.wait(tasks, timeout=GRACE_S)
        if left:
            log.error("group %s: %d handlers ignore their cancellation", self._group, len(left))
        # A renewal that is cancelled would confuse the session, so the outcomes go first.
        await self._try_to_flush()
        for task in loops:
            task.cancel()
        await asyncio.wait(loops)
        self._held.clear()
        if self._producer is not None:
            await self._producer.close()
        await self._session.close(undelivered=True)

    async def _try_to_flush(self) -> None:
        try:
            await self._flush()
        except ClientError as error:
            log.warning("group %s: cannot send outcomes: %s", self._group, error)


async def run_until(stopping: asyncio.Event, call: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a call. If `stopping` is set before, cancel it and return None."""
    task, waiting = asyncio.create_task(call), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, waiting):
            each.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


async def wait_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than this."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _place(delivery: Delivery) -> tuple[str, int, int]:
    return delivery.hold.topic, delivery.hold.partition, delivery.raw.offset


def _count(ack: Acknowledgement) -> int:
    return ack.last_offset - ack.first_offset + 1


def _is_without_delays(refusal: RejectedAcknowledgement) -> bool:
    ack, error = refusal
    return (
        ack.delay_ms >= 0
        and isinstance(error, KafkaError)
        and error.code is ErrorCode.unsupported_version
    )
