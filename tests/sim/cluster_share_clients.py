"""Members of share groups in a simulated cluster, which acquire and settle records in all ways, and
a client that reads a group's lag periodically."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    AcquireMode,
    Acquisition,
    RejectedAcknowledgement,
    ShareSession,
)
from shoal.protocol.errors import ErrorCode
from sim.cluster_clients import PARTITIONS, Workload, wait
from sim.cluster_shares import Delivery, Record, ShareHistory, Where

if TYPE_CHECKING:
    from shoal.client.client import Client

#: After these errors the acknowledgement was certainly not applied; after others it may have been.
_NOT_TAKEN = (
    ErrorCode.invalid_record_state,
    ErrorCode.share_session_not_found,
    ErrorCode.invalid_share_session_epoch,
)


class Ways(NamedTuple):
    """How the members of a group work: the fractions of records that are ignored, released and
    rejected; the records requested at a time; the maximum wait of a fetch."""

    left: float = 0.04
    released: float = 0.12
    rejected: float = 0.04
    batches: tuple[int, ...] = (1, 5, 20)
    max_wait_ms: int = 300


class _Choice:
    """What a member does with one record."""

    def __init__(self, record: Record, delivery: Delivery, kind: AcknowledgeType) -> None:
        self.record = record
        self.delivery = delivery
        topic, partition, offset = record
        self.acknowledgement = Acknowledgement(topic, partition, offset, offset, kind)
        #: The kind of an accept or a reject; None for a release.
        self.accepted = None if kind is AcknowledgeType.RELEASE else kind is AcknowledgeType.ACCEPT
        self.sent = 0.0


class _Call(NamedTuple):
    """The start of a call to acquire, and the leaders at that time."""

    began: float
    leaders: dict[Where, object]


class Worker:
    """One member of a share group."""

    def __init__(
        self,
        load: Workload,
        history: ShareHistory,
        topic: str,
        rng: random.Random,
        ways: Ways | None = None,
    ) -> None:
        self.load = load
        self.history = history
        self.topic = topic
        self.rng = rng
        self.ways = ways or Ways()

    async def work(self, client: Client) -> None:
        load, rng, ways = self.load, self.rng, self.ways
        async with await client.share(self.history.group, [self.topic]) as session:
            due: list[_Choice] = []
            late: dict[int, _Call] = {}
            while True:
                carried = due if rng.random() < 0.5 or not due else []
                if due and not carried:
                    await self._acknowledge(session, due)
                call = _Call(load.now, self.history.leaders(self.topic, PARTITIONS))
                found = await session.acquire(
                    max_records=rng.choice(ways.batches),
                    max_wait_ms=ways.max_wait_ms,
                    mode=rng.choice((AcquireMode.RECORD_LIMIT, AcquireMode.BATCH_OPTIMIZED)),
                    acknowledgements=self._sending(carried),
                )
                self._answered(carried, found.refusals)
                got, due = self._choices(found, session.member_id, call, late)
                late = {id: late.get(id, call) for id in session.late}
                if due and rng.random() < 0.3 and not load.draining:
                    await wait(rng.choice((0.05, 0.3, 1.0, 2.5)))
                    if rng.random() < 0.3:  # Renew the locks, if they have not expired.
                        sent = load.now
                        self.history.renewing(got)
                        if not await session.renew(found):
                            self.history.renewed(got, sent, load.now)

    def _choices(
        self, found: Acquisition, member: str, call: _Call, late: dict[int, _Call]
    ) -> tuple[list[Delivery], list[_Choice]]:
        """Record what was acquired, and choose what to do with each record; some are ignored.

        `late` has the earlier calls that brokers had not answered, whose records may have come now.
        """
        rng, ways, now = self.rng, self.ways, self.load.now
        got: list[Delivery] = []
        chosen: list[_Choice] = []
        for acquired in found:
            began, leaders = late.get(acquired.leader_id, call)
            for record in acquired.records():
                place = (record.topic, record.partition, record.offset)
                mine = Delivery(member, began, now, record.delivery_count, leaders)
                self.history.acquired(place, record.value, mine)
                got.append(mine)
                kind = AcknowledgeType.ACCEPT
                if not self.load.draining:
                    draw = rng.random()
                    if draw < ways.left:
                        continue
                    if draw < ways.left + ways.released:
                        kind = AcknowledgeType.RELEASE
                    elif draw < ways.left + ways.released + ways.rejected:
                        kind = AcknowledgeType.REJECT
                chosen.append(_Choice(place, mine, kind))
        return got, chosen

    async def _acknowledge(self, session: ShareSession, due: list[_Choice]) -> None:
        acknowledgements = self._sending(due)
        try:
            refusals = await session.acknowledge(acknowledgements)
        except ClientError as error:
            self._answered(due, tuple(RejectedAcknowledgement(a, error) for a in acknowledgements))
            raise
        self._answered(due, refusals)

    def _sending(self, due: list[_Choice]) -> list[Acknowledgement]:
        for choice in due:
            choice.sent = self.load.now
            self.history.sending(choice.record, choice.delivery, choice.sent, choice.accepted)
        return [choice.acknowledgement for choice in due]

    def _answered(self, due: list[_Choice], refusals: tuple[RejectedAcknowledgement, ...]) -> None:
        """Record the response to acknowledgements."""
        history, answered = self.history, self.load.now
        refused = {refusal.acknowledgement: refusal.error for refusal in refusals}
        for choice in due:
            record, delivery, sent = choice.record, choice.delivery, choice.sent
            error = refused.get(choice.acknowledgement)
            if error is not None:
                if isinstance(error, KafkaError) and error.code in _NOT_TAKEN:
                    history.refused(record, sent, choice.accepted)
            elif choice.accepted is None:
                history.released(record, delivery, sent, answered)
            else:
                history.settled(record, delivery, sent, answered, accepted=choice.accepted)


async def work_in_share_group(load: Workload, client: Client, _name: str) -> None:
    """Run a member of the share group on the main topic."""
    await Worker(load, load.share, load.topics[0], load.random).work(client)


async def watch_lags(load: Workload, client: Client, name: str) -> None:
    """Read the share group's lag periodically, as a scaler does."""
    rng = random.Random(f"{load.kernel.seed} {name} {load.now}")
    history, checker = load.share, load.shares
    while True:
        await wait(rng.uniform(0.1, 0.5))
        settled = dict(history.settled_counts)
        before = {where: checker.ends(where) for where in load.partitions}
        found = expect(await client.admin.share_groups.offsets([history.group]))[history.group]
        for where, offset in found.items():
            place = (where.topic, where.partition)
            if isinstance(offset, KafkaError) or offset.lag < 0:
                continue
            (least, alone), (end, still) = before[place], checker.ends(place, newest=True)
            history.lag_seen(
                place,
                offset.lag,
                settled=settled.get(place, 0),
                end=end,
                least_end=least if alone and still else 0,
            )
