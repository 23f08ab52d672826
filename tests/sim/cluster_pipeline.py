"""An idempotent producer with several batches under way, as librdkafka has them.

It sends up to five batches to a partition's leader without waiting for their responses. After an
error it waits for the rest, and then sends all that are not acknowledged again, in their order and
with their sequences. Two rules of librdkafka make a broker's wrong answer visible:

* OUT_OF_ORDER_SEQUENCE_NUMBER for any but the first batch is taken for the result of an earlier
  refusal. The producer gets a new id and sends all again: a written batch is then a `duplicate`.
  For the first batch it is fatal (`fatal-sequence`).
* A response to a batch acknowledges those before it, whatever was the response to them. If one is
  not in the log, it is a `lost-write`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from sim import cluster_clients as clients
from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from shoal.client.client import Client
    from sim.cluster_clients import Workload

#: Batches under way (max.in.flight.requests.per.connection).
IN_FLIGHT = 5
NEW_PRODUCER = {
    "transactional_id": None,
    "transaction_timeout_ms": 0,
    "producer_id": -1,
    "producer_epoch": -1,
}


class Lane:
    """The batches of one partition, of one record each."""

    def __init__(self, load: Workload, client: Client, name: str, index: int) -> None:
        self._load, self._client, self._name = load, client, name
        self._where = TopicPartition(clients.TOPIC, index)
        self._random = random.Random(f"{load.kernel.seed} {name} {index}")
        self._producer_id = -1
        #: The sequence of the first batch that is not acknowledged.
        self._sequence = 0
        #: Those that are not acknowledged, in their order.
        self._unacknowledged: deque[bytes] = deque()

    async def run(self) -> None:
        """Write until the load ends and all is acknowledged."""
        load, rng = self._load, self._random
        while load.producing or self._unacknowledged:
            while load.producing and len(self._unacknowledged) < IN_FLIGHT:
                load.sent += 1
                value = b"%s-%d" % (self._name.encode(), load.sent)
                load.histories.sent.add(value)
                self._unacknowledged.append(value)
            load.under_way[self._name] = len(self._unacknowledged)
            try:
                await self._send_all()
            except ClientError:
                await clients.wait(0.05)
            load.under_way[self._name] = len(self._unacknowledged)
            await clients.wait(rng.uniform(0.005, 0.1))

    async def _send_all(self) -> None:
        """Send the batches, one a moment after the other, and handle all results. Raises
        `ClientError` without having sent one."""
        cluster = self._client.cluster
        if self._producer_id < 0:
            answer = await cluster.ask(ApiKey.INIT_PRODUCER_ID, NEW_PRODUCER)
            if answer.error_code:
                raise KafkaError(answer.error_code, "requesting a producer id")
            self._producer_id = answer.producer_id
        topic = await cluster.get_topic(self._where.topic)
        leader = await cluster.find_leader(*self._where)
        if self._random.random() < 0.1:
            leader = self._random.choice(sorted(self._load.cluster.brokers))  # By old metadata.
        link = await cluster.get_connection(leader, self._name)
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = []
        sent = list(self._unacknowledged)
        for n, value in enumerate(sent):
            tasks.append(
                loop.create_task(self._send(link, topic.topic_id, self._sequence + n, value))
            )
            await clients.wait(self._random.choice((0.0, 0.0, 0.002, 0.02)))
            if any(task.done() and task.result()[0] for task in tasks):
                break
        self._take([await task for task in tasks], sent)

    async def _send(self, link: Any, topic_id: Any, sequence: int, value: bytes) -> tuple[int, int]:
        """Send one batch. Return the error, and the offset if there is none."""
        now_ms = self._client.cluster.environment.now_ms()
        data = build_batch(
            [(now_ms, None, value, ())],
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        rows = [{"index": self._where.partition, "records": bytes(data)}]
        topic = {"name": self._where.topic, "topic_id": topic_id, "partition_data": rows}
        body = {"transactional_id": None, "acks": -1, "timeout_ms": 2_000, "topic_data": [topic]}
        try:
            answer = await link.request(ApiKey.PRODUCE, body)
        except ClientError:
            return ErrorCode.request_timed_out, -1
        row = answer.responses[0].partition_responses[0]
        return row.error_code, row.base_offset

    def _take(self, results: list[tuple[int, int]], sent: list[bytes]) -> None:
        """Handle the results of a round."""
        load, where = self._load, self._where
        acknowledged = 0
        for n, (code, offset) in enumerate(results):
            if not code:
                load.histories.stored(sent[n], (*where, offset))
            if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                load.histories.implied |= set(sent[acknowledged : n + 1])
                acknowledged = n + 1
            elif code == ErrorCode.out_of_order_sequence_number and n == acknowledged:
                raise Violation("fatal-sequence", f"{sent[n]!r} of {self._name} to {where}")
            elif code == ErrorCode.out_of_order_sequence_number:
                # Another producer, with the same batches.
                self._producer_id = -1
        if any(code for code, _ in results):
            self._client.cluster.forget_topic(where.topic)
        for _ in range(acknowledged):
            self._unacknowledged.popleft()
        self._sequence = 0 if self._producer_id < 0 else self._sequence + acknowledged


async def produce(load: Workload, client: Client, name: str) -> None:
    """Write to all partitions at once."""
    lanes = [Lane(load, client, f"{name}-{index}", index) for index in range(clients.PARTITIONS)]
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(lane.run())
