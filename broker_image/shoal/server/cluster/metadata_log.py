"""The metadata of the cluster on this node: the committed image, and decisions of the controller.

The image follows the committed records of `__cluster_metadata-0`, which the quorum replicates. The
leader of the quorum is the active controller. It decides on the newest image, appends the records
of a decision as one batch, and replays them at once, so that the next decision sees them. Once the
batch is committed, the broker's image follows, the delta is published, and the response is sent.

A node that stops leading refuses what waits (NOT_CONTROLLER). The next leader may or may not commit
a batch that it has written. A failed disk ends the node's part in the quorum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from shoal.log.errors import CorruptLog
from shoal.metadata import controller
from shoal.metadata.controller import ControllerResult
from shoal.metadata.delta import ImageDraft, MetadataDelta, apply, diff_images
from shoal.metadata.image import BrokerImage, MetadataImage
from shoal.metadata.records import MetadataRecord, decode, encode
from shoal.metadata.snapshot import build_records
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.quorum.events import Propose
from shoal.record.batch import CorruptBatch
from shoal.record.records import build_batch

if TYPE_CHECKING:
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: Records in one batch of a snapshot: 2 to 3 ms of work.
_SNAPSHOT_BATCH = 250
_DURABLE = (
    "The change is durable, but this broker could not apply it to its disk yet, and repeats it:"
    " {reason}"
)
Decide = Callable[[MetadataImage], ControllerResult]
T = TypeVar("T")


class _PendingBatch(NamedTuple):
    """An uncommitted batch: the image after it, its delta, and the response that waits for it."""

    offset: int
    image: MetadataImage
    delta: MetadataDelta | None
    answer: asyncio.Future[Any] | None = None
    respond: Callable[[], Any] = lambda: None


class MetadataLog:
    """The state machine on the quorum's log. Publishes committed images to `cache`."""

    def __init__(self, node: Node, quorum: MetadataQuorum, cache: MetadataCache) -> None:
        self._clock = node.clock
        self.quorum = quorum
        self._cache = cache
        #: What a new cluster begins with, beside its features.
        self.first_records: Sequence[MetadataRecord] = ()
        #: The image has all records of the log below this offset.
        self.applied = 0
        #: Uncommitted batches while this node leads in `_epoch`; None while it does not.
        self._pending: deque[_PendingBatch] | None = None
        self._epoch = -1
        self._unreadable_calls: list[Callable[[str], None]] = []
        #: Bytes of records that are not in the newest snapshot.
        self._unsaved_bytes = 0
        self._saved_ms = node.clock.now_ms()
        self._saving = False
        self._save_task: asyncio.Task[None] | None = None
        self._following = self._again = False

    def on_unreadable(self, call: Callable[[str], None]) -> None:
        """Call `call` with a sentence when this release cannot read the log. Without any such
        call, `CorruptLog` is raised."""
        self._unreadable_calls.append(call)

    def open(self) -> None:
        """Load the newest snapshot and follow the quorum, which is open. Raises `CorruptLog`."""
        self._saved_ms = self._clock.now_ms()
        self._load_snapshot(first=True)
        self.quorum.on_step(self._on_quorum_step)

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self._cache.image

    @property
    def log_end_offset(self) -> int:
        return self.quorum.end_offset

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._pending is not None and self.quorum.is_leader

    @property
    def newest(self) -> MetadataImage:
        """The image of the active controller, after all records of the log, committed or not."""
        return self._pending[-1].image if self._pending else self.image

    def register(self, broker: BrokerImage, *, clean: bool) -> None:
        """Register the broker of a quorum of one at its start, durably. Raises `ApiError`."""
        quorum = self.quorum
        for decide in (
            self.begin,
            lambda image: controller.register_broker(image, broker, clean=clean),
        ):
            with quorum.in_place():
                answer = self.submit(decide)
            answer.result()

    def begin(self, image: MetadataImage) -> ControllerResult:
        """Return the first records of a new cluster, or those that an earlier release did not
        write."""
        if image.features:
            return controller.complete(image)
        return controller.bootstrap(self.first_records, static=image.scope.static)

    @overload
    def submit(self, decide: Decide) -> asyncio.Future[Any]: ...

    @overload
    def submit(self, decide: Decide, respond: Callable[[Any], T]) -> asyncio.Future[T]: ...

    def submit(
        self, decide: Decide, respond: Callable[[Any], Any] = lambda response: response
    ) -> asyncio.Future[Any]:
        """Decide as the active controller. The future is `respond` of the decision's response.

        `respond` runs when the image of the broker has the records. The future fails with
        `ApiError` when the decision is refused or its records cannot be written. It fails with
        NOT_CONTROLLER when this node does not lead, or stops before the records are committed.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.quorum.recover()
            failure = self.quorum.failure
            if failure is not None:
                raise ApiError(ErrorCode.kafka_storage_error, failure)
            pending = self._pending
            if pending is None or not self.quorum.is_leader:
                raise ApiError(ErrorCode.not_controller, "This node is not the active controller.")
            decision = decide(self.newest)
            if decision.records:
                self._propose(pending, decision, answer, respond)
                return answer
        except ApiError as error:
            answer.set_exception(error)
            return answer
        last = pending[-1].offset if pending else -1
        entry = _PendingBatch(last, self.newest, None, answer, lambda: respond(decision.response))
        if pending:
            pending.append(entry)
        else:
            self._answer(entry)
        return answer

    def _propose(
        self,
        pending: deque[_PendingBatch],
        decision: ControllerResult,
        answer: asyncio.Future[Any],
        respond: Callable[[Any], Any],
    ) -> None:
        """Append and replay the records. Raises `ApiError`."""
        now_ms = self._clock.now_ms()
        records: Sequence[MetadataRecord] = decision.records
        offset = self.quorum.end_offset + len(records) - 1
        image, delta = apply(self.newest, records, offset=offset, epoch=self.quorum.epoch)
        # Before the step: a sole voter commits within it.
        pending.append(
            _PendingBatch(offset, image, delta, answer, lambda: respond(decision.response))
        )
        batch = build_batch([(now_ms, None, encode(record), ()) for record in records])
        self._unsaved_bytes += len(batch)
        self.quorum.step(Propose(batch))

    # Following the log.

    def _on_quorum_step(self) -> None:
        """Follow a step of the quorum. A subscriber of the image may cause the next step."""
        self._again = True
        if self._following:
            return
        self._following = True
        try:
            while self._again:
                self._again = False
                self._follow()
        except CorruptLog as error:
            if not self._unreadable_calls:
                raise
            self.quorum.fail(str(error))
            for call in self._unreadable_calls:
                call(str(error))
        finally:
            self._following = False

    def _follow(self) -> None:
        quorum = self.quorum
        failure = quorum.failure
        if failure is not None:
            self._refuse_all(ApiError(ErrorCode.kafka_storage_error, failure))
            return
        if self._pending is not None and (not quorum.is_leader or quorum.epoch != self._epoch):
            self._refuse_all(
                ApiError(ErrorCode.not_controller, "Another node became the active controller.")
            )
        if self._pending is None and quorum.is_leader:
            self._catch_up(quorum.high_watermark)
            self._lead()
        if self._pending is not None:
            self._commit(self._pending, quorum.high_watermark)
        else:
            self._catch_up(quorum.high_watermark)

    def _load_snapshot(self, *, first: bool = False) -> None:
        """Load the newest snapshot if it is ahead of the image.

        The `first` one is not published: its delta would take long to compute.
        """
        snapshot_id = self.quorum.snapshot_id
        if snapshot_id is None or snapshot_id.offset <= self.applied:
            return
        draft = ImageDraft(MetadataImage(scope=self.image.scope))
        try:
            for value in self.quorum.read_snapshot_values(snapshot_id):
                draft.replay(decode(value))
        except (CorruptBatch, WireError) as error:
            raise self._make_unreadable_error(error) from None
        before = self.image
        image, _ = draft.finish(offset=snapshot_id.offset - 1, epoch=snapshot_id.epoch)
        self.applied = snapshot_id.offset
        self._unsaved_bytes = 0
        if first:
            self._cache.serve(image)
        else:
            self._cache.publish(image, diff_images(before, image))

    def _make_unreadable_error(self, error: Exception) -> CorruptLog:
        return CorruptLog(
            f"The cluster's metadata in {self.quorum.store.log.directory} cannot be read:"
            f" {error}. If a newer release wrote it, run that release or a later one."
        )

    def save_if_due(self, *, bytes_max: int, interval_ms: int) -> asyncio.Future[None] | None:
        """Write a snapshot if it is due, else return None.

        It is due after `bytes_max` bytes of records since the last one, or after `interval_ms`
        if there are any records.
        """
        now_ms = self._clock.now_ms()
        late = interval_ms and now_ms - self._saved_ms >= interval_ms
        if self._saving or not self._unsaved_bytes:
            return None
        if self._unsaved_bytes < bytes_max and not late:
            return None
        self._saving = True
        # Uncommitted records are not in this snapshot: they make the next one due.
        self._unsaved_bytes = int(self.applied < self.quorum.end_offset)
        self._saved_ms = now_ms
        self._save_task = asyncio.ensure_future(self._save(self.image, self.applied, now_ms))
        self._save_task.add_done_callback(self._on_saved)
        return self._save_task

    async def _save(self, image: MetadataImage, end: int, now_ms: int) -> None:
        """Write the state below offset `end`, one batch per turn of the event loop. A million
        partitions take seconds."""
        records = (encode(record) for record in build_records(image))
        batches = []
        while chunk := list(islice(records, _SNAPSHOT_BATCH)):
            batches.append(bytes(build_batch([(now_ms, None, value, ()) for value in chunk])))
            await asyncio.sleep(0)
        if self.quorum.start_offset <= end:  # else the leader has sent a newer one
            await self.quorum.take_snapshot(end, batches)

    def _on_saved(self, _work: asyncio.Future[None]) -> None:
        self._saving = False

    def stop(self) -> None:
        """Give up a snapshot that is being written."""
        if self._save_task is not None:
            self._save_task.cancel()

    def _catch_up(self, high_watermark: int) -> None:
        """Apply the committed records of the log."""
        if self.quorum.start_offset > self.applied:
            self._load_snapshot()
        if self.applied >= high_watermark:
            return
        draft, any_record, epoch = ImageDraft(self.image), False, self.image.epoch
        for records, _, batch_epoch in self._decode_batches(self.applied, high_watermark):
            for record in records:
                draft.replay(record)
                any_record = True
            epoch = batch_epoch
        self.applied = high_watermark
        image, delta = draft.finish(offset=high_watermark - 1, epoch=epoch)
        if any_record:
            self._cache.publish(image, delta)
        else:
            self._cache.serve(image)

    def _lead(self) -> None:
        """Become the active controller: replay the uncommitted records of the log."""
        self._epoch = self.quorum.epoch
        self._pending = deque()
        for records, offset, epoch in self._decode_batches(self.applied, self.quorum.end_offset):
            image, delta = apply(self.newest, records, offset=offset, epoch=epoch)
            self._pending.append(_PendingBatch(offset, image, delta if records else None))

    def _decode_batches(self, start: int, end: int) -> Any:
        """Yield (records, last offset, epoch) of each batch. Raises `CorruptLog`."""
        try:
            for batch in self.quorum.read_batches(start, end):
                self._unsaved_bytes += batch.size
                yield [decode(value) for value in batch.values], batch.last_offset, batch.epoch
        except (CorruptBatch, WireError) as error:
            raise self._make_unreadable_error(error) from None

    def _commit(self, pending: deque[_PendingBatch], high_watermark: int) -> None:
        """Publish the batches below the high watermark, and complete their futures."""
        while pending and pending[0].offset < high_watermark:
            entry = pending.popleft()
            self._cache.serve(entry.image)
            self.applied = max(self.applied, entry.offset + 1)
            self._answer(entry)

    def _answer(self, entry: _PendingBatch) -> None:
        """Publish a decision, and complete its future once the listeners have applied it."""
        try:
            reason = None if entry.delta is None else self._cache.publish(entry.image, entry.delta)
        except Exception as error:
            if entry.answer is None and not isinstance(error, OSError):
                raise
            _refuse(entry.answer, _describe(error))
            return
        if reason == "":
            self._cache.call_when_finished(partial(_respond, entry))
        else:
            _respond(entry, reason)

    def _refuse_all(self, error: ApiError) -> None:
        pending, self._pending = self._pending, None
        for entry in pending or ():
            _refuse(entry.answer, error)


def _respond(entry: _PendingBatch, reason: str | None) -> None:
    """Complete a decision's future with the response, or with an error if there is a reason."""
    answer = entry.answer
    if answer is None:
        return
    try:
        if reason is not None:
            raise ApiError(ErrorCode.kafka_storage_error, _DURABLE.format(reason=reason))
        response = entry.respond()
    except Exception as error:
        _refuse(answer, _describe(error))
    else:
        if not answer.done():
            answer.set_result(response)


def _describe(error: Exception) -> Exception:
    if isinstance(error, OSError):
        return ApiError(ErrorCode.kafka_storage_error, _DURABLE.format(reason=error))
    return error


def _refuse(answer: asyncio.Future[Any] | None, error: Exception) -> None:
    if answer is not None and not answer.done():
        answer.set_exception(error)
