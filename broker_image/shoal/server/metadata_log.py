"""The metadata log `__cluster_metadata-0`: loaded at start, appended to by decisions, synced.

One broker's own controller: a decision is taken on the newest image, its records are appended as
one batch and replayed at once, so that the next decision sees them. The image that the broker
serves follows when the batch is durable; then the delta is published and the answer leaves. What is
decided while a sync runs goes with the next one.

An append that fails refuses its decision and changes nothing. A sync that fails leaves it unknown
what is on disk: the image stays, and no decision is taken until the broker starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid4

from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, CorruptLog, LogOffline
from shoal.log.log import Log, Origin
from shoal.log.uuids import uuid_text
from shoal.metadata import controller
from shoal.metadata.controller import Decision
from shoal.metadata.delta import Draft, MetadataDelta, apply
from shoal.metadata.image import BrokerImage, MetadataImage, Scope
from shoal.metadata.names import METADATA_TOPIC
from shoal.metadata.records import MetadataRecord, decode, encode
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.record.batch import CorruptBatch, headers
from shoal.record.records import build_batch, read_records

if TYPE_CHECKING:
    from shoal.log.directory import LogDirectory
    from shoal.server.disk import Disk
    from shoal.server.timers import Clock

Decide = Callable[[MetadataImage], Decision]

#: The topic id that every Kafka cluster gives its metadata topic.
METADATA_TOPIC_ID = UUID(int=1)
#: Nothing is ever dropped from the log, and a decision's records go in as one batch.
_CONFIG = LogConfig(
    cleanup_policy=(), retention_ms=-1, retention_bytes=-1, max_message_bytes=128 << 20
)
_READ_BYTES = 4 << 20


def random_id() -> UUID:
    """A new id; like Kafka's, its text never starts with a dash, which tools take for an option."""
    while True:
        found = uuid4()
        if not uuid_text(found).startswith("-"):
            return found


class _Pending(NamedTuple):
    """A decision that waits for its sync."""

    image: MetadataImage
    delta: MetadataDelta | None
    answer: asyncio.Future[Any]
    respond: Callable[[], Any]


class Metadata:
    """The controller of one broker. Owns the log and the images; `image` is the committed one."""

    def __init__(self, directory: LogDirectory, disk: Disk, clock: Clock, scope: Scope) -> None:
        self._disk = disk
        self._clock = clock
        self._log = _open(directory, clock.now_ms())
        self.image = self._head = _load(self._log, MetadataImage(scope=scope))
        self.epoch = self.image.epoch + 1
        self._clean = directory.clean
        self._pending: list[_Pending] = []
        self._syncing = False
        self._fault: str | None = None
        #: Called with the new image and the delta to it, once it is durable.
        self.on_change: list[Callable[[MetadataImage, MetadataDelta], None]] = []

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def register(self, broker: BrokerImage) -> None:
        """Write what a starting broker owes, durably: a new cluster's features, its registration.

        Called once, before the broker serves. Raises `ApiError`, `OSError`.
        """
        if not self._head.features:
            self._append(controller.bootstrap().records)
        decision = controller.register_broker(self._head, broker, clean=self._clean)
        self._append(decision.records)
        self._log.sync()
        self.image = self._head

    def submit(
        self, decide: Decide, respond: Callable[[Any], Any] = lambda response: response
    ) -> asyncio.Future[Any]:
        """Decide and, once that is durable, answer with `respond` of the decision's response.

        `respond` runs when the broker's image has the records. The future fails with `ApiError`
        when the decision refuses, or when its records cannot be written.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if self._fault is not None:
                raise ApiError(ErrorCode.kafka_storage_error, self._fault)
            decision = decide(self._head)
            delta = self._append(decision.records) if decision.records else None
        except ApiError as error:
            answer.set_exception(error)
            return answer
        one = _Pending(self._head, delta, answer, lambda: respond(decision.response))
        if delta is None and not self._syncing:
            self._answer(one)
            return answer
        self._pending.append(one)
        if not self._syncing:
            self._syncing = True
            asyncio.get_running_loop().call_soon(self._sync)
        return answer

    def _append(self, records: Any) -> MetadataDelta:
        """Append and replay. Raises `ApiError`."""
        now_ms = self._clock.now_ms()
        batch = build_batch([(now_ms, None, encode(record), ()) for record in records])
        try:
            appended = self._log.append(
                batch, now_ms=now_ms, leader_epoch=self.epoch, origin=Origin.COORDINATOR
            )
        except (AppendRefused, LogOffline, OSError) as error:
            raise ApiError(
                ErrorCode.kafka_storage_error, f"The metadata log cannot be written: {error}"
            ) from None
        self._head, delta = apply(
            self._head, records, offset=appended.last_offset, epoch=self.epoch
        )
        return delta

    def _sync(self) -> None:
        """Make what is pending durable, in the disk's worker."""
        pending, self._pending = self._pending, []
        try:
            sync = self._log.begin_sync()
        except (OSError, LogOffline) as error:
            self._failed(pending, error)
            return
        if sync is None:
            self._synced(pending)
            return

        def done(work: asyncio.Future[None]) -> None:
            error = work.exception()
            assert error is None or isinstance(error, OSError), error
            self._log.finish_sync(sync, error)
            if error is None:
                self._synced(pending)
            else:
                self._failed(pending, error)

        self._disk.run(sync.run).add_done_callback(done)

    def _synced(self, pending: list[_Pending]) -> None:
        for one in pending:
            if one.delta is not None:
                self.image = one.image
            self._answer(one)
        self._syncing = bool(self._pending)
        if self._pending:
            asyncio.get_running_loop().call_soon(self._sync)

    def _answer(self, one: _Pending) -> None:
        """Publish what was decided and give the answer, or why that failed."""
        try:
            if one.delta is not None:
                for call in self.on_change:
                    call(one.image, one.delta)
            response = one.respond()
        except OSError as error:
            what = f"What was decided is durable, and the disk refused to follow: {error}"
            _refuse(one, ApiError(ErrorCode.kafka_storage_error, what))
        except Exception as error:
            _refuse(one, error)
        else:
            if not one.answer.done():
                one.answer.set_result(response)

    def _failed(self, pending: list[_Pending], error: Exception) -> None:
        """The disk failed under a sync: nobody is answered, and nothing is decided any more."""
        self._fault = f"The metadata log failed, and the broker has to be restarted: {error}"
        for one in pending + self._pending:
            _refuse(one, ApiError(ErrorCode.kafka_storage_error, self._fault))
        self._pending.clear()
        self._syncing = False


def _refuse(one: _Pending, error: Exception) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)


def _open(directory: LogDirectory, now_ms: int) -> Log:
    return directory.open_log(METADATA_TOPIC, 0, _CONFIG, now_ms=now_ms, topic_id=METADATA_TOPIC_ID)


def _load(log: Log, image: MetadataImage) -> MetadataImage:
    """The image after all records of the log. Raises `CorruptLog`, also for a newer format."""
    draft = Draft(image)
    epoch = 0
    try:
        for leader_epoch, record in _records(log):
            draft.replay(record)
            epoch = leader_epoch
    except (CorruptBatch, WireError) as error:
        raise CorruptLog(
            f"The cluster's metadata in {log.directory} cannot be read: {error}. Was it written by"
            " a newer release?"
        ) from None
    return draft.finish(offset=log.log_end_offset - 1, epoch=epoch)[0]


def _records(log: Log) -> Iterator[tuple[int, MetadataRecord]]:
    """(leader epoch, record) of all that is in the log but control records."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, _READ_BYTES, max_offset=log.log_end_offset)
        for position, header in headers(found.data):
            if header.is_control:
                continue
            for record in read_records(found.data, position):
                if record.value is not None:
                    yield header.leader_epoch, decode(record.value)
        offset = found.next_offset
