"""The console's pages over compressed batches that expand to far more than their size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.console.reading import read_budget
from shoal.record.records import build_batch
from support.brokers.wireclient import WireClient
from support.console.consoles import console

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

MIB = 1 << 20


def produce(broker: ShoalProcess, topic: str, *, value_bytes: list[int]) -> None:
    """Create a topic with a compressed batch of one record for each size."""
    with SyncClient(broker.bootstrap) as client:
        expect(client.run(client.admin.topics.create([NewTopic(topic, 1)])))
    with WireClient(broker.bootstrap) as wire:
        for size in value_bytes:
            batch = build_batch([(1, b"k", bytes(size), ())], compression="zstd")
            assert len(batch) < 64 << 10
            assert not wire.produce(topic, records=bytes(batch)).error_code


def test_a_page_ends_by_what_its_batches_expand_to(shared_broker: ShoalProcess) -> None:
    produce(shared_broker, "expanding", value_bytes=[16 * MIB] * 6)

    async def run() -> None:
        async with console(shared_broker.bootstrap) as page:
            found = await page.get("/topic", name="expanding", from_="offset", at=0)
            assert "4 records read" in found.words
            assert "Continue partition 0 at offset 4" in found.words
            assert "the batches expand to more than" in found.words
            rest = await page.get("/topic", name="expanding", from_="offset", at=4, partition=0)
            assert "2 records read" in rest.words
            assert "Continue" not in rest.words

    asyncio.run(run())


def test_a_batch_that_expands_to_too_much_is_named(shared_broker: ShoalProcess) -> None:
    produce(shared_broker, "too-large", value_bytes=[10, 33 * MIB, 20])

    async def run() -> None:
        async with console(shared_broker.bootstrap) as page:
            found = await page.get("/topic", name="too-large")
            assert "2 records read" in found.words
            assert "Not shown: 0@1." in found.words
            refused = await page.get(
                "/record", topic="too-large", partition=0, offset=1, status=413
            )
            assert "shoal consume too-large --partition 0 --offset 1" in refused.words
            await page.get("/record", topic="too-large", partition=0, offset=2)

    asyncio.run(run())


def test_headers_take_no_more_memory_than_a_page_has(shared_broker: ShoalProcess) -> None:
    headers = [("", None)] * (read_budget.HEADERS_BYTES_MAX // 2 + 1)
    with SyncClient(shared_broker.bootstrap) as client:
        expect(client.run(client.admin.topics.create([NewTopic("many-headers", 1)])))
    with WireClient(shared_broker.bootstrap) as wire:
        records = [
            (1, b"k", b"v", headers),
            (1, b"k", b"v", headers[: read_budget.HEADERS_MAX + 1]),
        ]
        batch = build_batch(records, compression="zstd")
        assert not wire.produce("many-headers", records=bytes(batch)).error_code

    async def run() -> None:
        async with console(shared_broker.bootstrap) as page:
            found = await page.get("/record", topic="many-headers", partition=0, offset=0)
            assert "bytes of headers are not shown" in found.words
            found = await page.get("/record", topic="many-headers", partition=0, offset=1)
            assert "1,001 headers are not shown" in found.words

    asyncio.run(run())
