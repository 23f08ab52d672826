"""Transactions when acknowledged writes are on disk: decisions and markers wait for their syncs,
and the writes of the next transaction for the end of the last one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

TRANSACTIONS = 30


def test_one_transaction_right_behind_the_other(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """The producer does not wait between EndTxn's response and its next write, although the markers
    are not written yet; that is not an error."""
    # A producer would send again what the broker refuses after this time.
    patient = {"add.partitions.to.txn.retry.backoff.max.ms": "60000"}
    broker = start_broker(configs={"shoal.log.flush.group.commit": "true", **patient})
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        body = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
        given = client.call(ApiKey.INIT_PRODUCER_ID, 5, body)
        who = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
        for number in range(TRANSACTIONS):
            for sequence in range(2):
                rows = [(int(time.time() * 1000), None, b"%d" % number, ())]
                batch = build_batch(rows, base_sequence=sequence, transactional=True, **who)
                data = [{"index": 0, "records": bytes(batch)}]
                produce = {
                    "transactional_id": "x",
                    "acks": -1,
                    "timeout_ms": 60_000,
                    "topic_data": [{"name": "t", "partition_data": data}],
                }
                client.send(ApiKey.PRODUCE, 12, produce)
            for _ in range(2):
                (topic,) = client.receive(ApiKey.PRODUCE, 12)[1].responses
                assert topic.partition_responses[0].error_code == 0
            end = {"transactional_id": "x", **who, "committed": number % 2 == 0}
            ended = client.call(ApiKey.END_TXN, 5, end)
            assert ended.error_code == 0
            who = {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}

        def settled() -> bool:
            found = client.fetch("t", 0)
            return found.last_stable_offset == found.high_watermark == 3 * TRANSACTIONS

        eventually(settled)
        found = client.fetch("t", 0, isolation_level=1)
        assert len(found.aborted_transactions) == TRANSACTIONS // 2
