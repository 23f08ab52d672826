"""`ShareConsumer`: poll records of a share group, and say for each what has become of it (KIP-932).

An outcome is only noted. The next `poll` sends it along, and `commit` or `close` at once. A record
without an outcome stays locked for this member until its lock ends, and is delivered again.
`ShareSession` is below, with ranges of offsets instead of records.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shoal.client.net.batches import CorruptRecords
from shoal.client.share.acquired import (
    Acknowledgement,
    AcknowledgeType,
    AcquiredRecords,
    AcquireMode,
    RejectedAcknowledgement,
    SharedRecord,
)
from shoal.client.share.member import ShareSession
from shoal.record.batch import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.client.net.cluster import Cluster
    from shoal.protocol.reasons import FailureReason

_log = logging.getLogger("shoal.client")


class ShareConsumer:
    """One member of a share group. Created by `Client.share_consumer`; `await close()` leaves.

    One task at a time may poll it, while others settle records.
    """

    def __init__(self, session: ShareSession) -> None:
        self.session = session
        self._outcomes: list[Acknowledgement] = []
        self._refused: list[RejectedAcknowledgement] = []

    @classmethod
    async def join(
        cls, cluster: Cluster, group: str, topics: Sequence[str], *, rack: str | None = None
    ) -> ShareConsumer:
        """Become a member of `group`. Logs and raises what `ShareSession.join` does."""
        return cls(await ShareSession.join(cluster, group, topics, rack=rack))

    async def __aenter__(self) -> ShareConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def lock_timeout_ms(self) -> int:
        """How long the locks of polled records last, in milliseconds; 0 before the first record."""
        return self.session.lock_timeout_ms

    async def poll(self, max_records: int = 500, max_wait_ms: int = 500) -> list[SharedRecord]:
        """Send the noted outcomes, lock available records, and return them.

        Waits up to `max_wait_ms` for the first record, and returns at most `max_records`. Raises
        `KafkaError` if the group or the topic refuses this member.
        """
        outcomes, self._outcomes = self._outcomes, []
        try:
            acquisition = await self.session.acquire(
                max_records=max_records,
                max_wait_ms=max_wait_ms,
                mode=AcquireMode.RECORD_LIMIT,
                acknowledgements=_merge(outcomes),
            )
        except BaseException:
            # The broker may have them. Then it refuses the repetition, which changes nothing.
            self._outcomes = outcomes + self._outcomes
            raise
        self._note_refusals(acquisition.refusals)
        return [record for acquired in acquisition for record in self._decode(acquired)]

    def accept(self, *records: SharedRecord) -> None:
        """Note that these records are done: nobody gets them again."""
        self._note(records, AcknowledgeType.ACCEPT)

    def release(
        self, *records: SharedRecord, delay_ms: int = -1, reason: FailureReason | None = None
    ) -> None:
        """Note that these records are to be delivered again, to any member.

        They wait `delay_ms` milliseconds, at most the group's `share.redelivery.backoff.max.ms`;
        -1 is the group's back-off. Apache Kafka's brokers refuse a delay. The last `reason` is in
        the dead letter of a record that reaches its delivery limit; Apache Kafka's do not get it.
        """
        self._note(records, AcknowledgeType.RELEASE, delay_ms, reason)

    def reject(self, *records: SharedRecord, reason: FailureReason | None = None) -> None:
        """Note that these records can never succeed. They become dead letters, which have the
        `reason`, if the group has a topic for them; otherwise they are dropped."""
        self._note(records, AcknowledgeType.REJECT, reason=reason)

    async def renew(self, *records: SharedRecord) -> tuple[RejectedAcknowledgement, ...]:
        """Start the locks of these records again now, each for `lock_timeout_ms` (KIP-1222).

        Returns the refused renewals. A lock that has ended, for example, is another member's.
        """
        renewals = [_acknowledge(record, AcknowledgeType.RENEW) for record in records]
        return await self.session.acknowledge(_merge(renewals))

    async def commit(self) -> tuple[RejectedAcknowledgement, ...]:
        """Send the noted outcomes, and return those that the brokers refused since the last call.

        A record with a refused outcome is delivered again, because its lock had ended before.
        """
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            try:
                self._note_refusals(await self.session.acknowledge(_merge(outcomes)))
            except BaseException:
                self._outcomes = outcomes + self._outcomes
                raise
        refused, self._refused = self._refused, []
        return tuple(refused)

    async def close(self, *, undelivered: bool = False) -> None:
        """Send the noted outcomes, release all other records, and leave the group.

        With `undelivered`, the deliveries of the released records do not count.
        """
        try:
            await self.commit()
        finally:
            await self.session.close(undelivered=undelivered)

    def _note(
        self,
        records: Iterable[SharedRecord],
        type: AcknowledgeType,
        delay_ms: int = -1,
        reason: FailureReason | None = None,
    ) -> None:
        fitted = None if reason is None else reason.fit()
        self._outcomes += [
            _acknowledge(record, type, delay_ms)._replace(reason=fitted) for record in records
        ]

    def _note_refusals(self, refusals: Sequence[RejectedAcknowledgement]) -> None:
        for refusal in refusals:
            ack = refusal.acknowledgement
            _log.warning(
                "%s of records %s to %s of %s-%s was refused: %s. They are delivered again.",
                ack.type.name.capitalize(),
                ack.first_offset,
                ack.last_offset,
                ack.topic,
                ack.partition,
                refusal.error,
            )
        self._refused += refusals

    def _decode(self, acquired: AcquiredRecords) -> list[SharedRecord]:
        """Return the records. Reject a corrupt batch, and note the offsets without a record."""
        try:
            records = list(acquired.records())
        except (CorruptRecords, CorruptBatch) as error:
            partition = f"{acquired.topic}-{acquired.partition}"
            _log.warning("%s: %s. The records are rejected.", partition, error)
            self._outcomes += acquired.acknowledge(AcknowledgeType.REJECT)
            return []
        self._outcomes += acquired.find_gaps({record.offset for record in records})
        return records


def _acknowledge(
    record: SharedRecord, type: AcknowledgeType, delay_ms: int = -1
) -> Acknowledgement:
    return Acknowledgement(
        record.topic, record.partition, record.offset, record.offset, type, delay_ms
    )


def _merge(acks: Sequence[Acknowledgement]) -> list[Acknowledgement]:
    """Join what follows each other with the same outcome, in the order of the offsets."""
    merged: list[Acknowledgement] = []
    for ack in sorted(acks, key=lambda ack: ack[:6]):
        last = merged[-1] if merged else None
        if last is not None and ack == last._replace(
            first_offset=last.last_offset + 1, last_offset=ack.last_offset
        ):
            merged[-1] = last._replace(last_offset=ack.last_offset)
        else:
            merged.append(ack)
    return merged
