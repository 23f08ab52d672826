"""The service with its own manifests: an order becomes an invoice."""

from __future__ import annotations

from pathlib import Path

from shoal.client import SyncClient

QUEUE = Path(__file__).parent / "queue"


def test_an_order_becomes_an_invoice(shoal_up):
    queue = shoal_up(QUEUE)
    with SyncClient(queue.bootstrap) as client:
        client.put("orders", "three apples")
        with client.share_consumer("accounting", ["invoices"]) as invoices:
            (record,) = invoices.poll(max_wait_ms=30_000)
            assert record.value == b"invoice for three apples"
            invoices.accept(record)
