"""The tenants of a share group in the console: their records, and delivery to each of them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.client import SyncClient
from shoal.client.share.acquired import AcquireMode
from shoal.console.access.security import ConsoleAccess
from shoal.console.reading.masks import MaskRule, Masks
from support.brokers.queues import Queue
from support.console.consoles import Console, console

if TYPE_CHECKING:
    import pytest
    from support.brokers.servers import ShoalProcess

PAUSED = "share.tenant.paused"
NOBODY = "records without a tenant"


def make_queue(client: SyncClient, broker: ShoalProcess, **configs: str) -> Queue:
    """Return a queue with three records of acme, one of "b, c" and one of nobody."""
    queue = Queue(client, broker.bootstrap)
    queue.configure(**configs)
    queue.produce(range(3), headers=(("customer", b"acme"),))
    queue.produce([3], headers=(("customer", b"b, c"),))
    queue.produce([4])
    return queue


async def hold_one(page: Console, queue: Queue) -> None:
    """Join the group, and hold a record until the console ends."""
    session = await page.client.share(queue.group, [queue.topic])
    async with asyncio.timeout(60):
        while not (
            await session.acquire(max_records=1, max_wait_ms=1_000, mode=AcquireMode.RECORD_LIMIT)
        ).count:
            pass


async def read_paused(page: Console, queue: Queue) -> str | None:
    resource = ConfigResource(ConfigResourceType.GROUP, queue.group)
    found = (await page.client.admin.configs.describe([resource]))[resource]
    assert isinstance(found, dict)
    return found[PAUSED].value


def test_a_tenant_is_paused_and_resumed_and_others_stay_as_they_are(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")

    async def call(queue: Queue) -> None:
        access, metrics = ConsoleAccess(allow_actions=True), [shared_broker.metrics_url]
        async with console(queue.bootstrap, access, metrics=metrics) as page:
            await hold_one(page, queue)
            await page.sample()
            found = await page.get("/group", id=queue.group)
            columns = "Tenant In flight Available Delivery Action"
            acme, of_two = "acme 1 2 running Pause", "b, c 0 1 running"
            # A config cannot name the others, so they have no button.
            assert f"{columns} {acme} {NOBODY} 0 1 running {of_two} idle – – paused" in found.words
            plan = await page.preview("pause-tenant", group=queue.group, tenant="acme")
            assert "Records of tenant acme are not delivered" in plan.words
            assert await read_paused(page, queue) == "idle"
            done = await page.confirm(plan)
            assert f"Done Paused a tenant of group {queue.group}." in done.words
            assert await read_paused(page, queue) == "idle,acme"
            await page.sample()
            found = await page.get("/group", id=queue.group)
            assert "acme 1 2 paused Resume" in found.words
            chosen = {"group": queue.group, "tenant": "acme"}
            again = await page.get("/act-pause-tenant", **chosen, status=409)
            assert "is paused already" in again.words
            done = await page.act("resume-tenant", **chosen)
            assert f"Resumed a tenant of group {queue.group}." in done.words
            assert await read_paused(page, queue) == "idle"
            again = await page.get("/act-resume-tenant", **chosen, status=409)
            assert "is not paused" in again.words
            await page.act("resume-tenant", group=queue.group, tenant="idle")
            assert await read_paused(page, queue) == ""
            chosen["tenant"] = "b, c"
            again = await page.get("/act-pause-tenant", **chosen, status=409)
            assert f"The config {PAUSED} cannot name tenant 'b, c'" in again.words

    with SyncClient(shared_broker.bootstrap) as client:
        configs = {"share_fairness_by": "header:customer", "share_tenant_paused": "idle"}
        queue = make_queue(client, shared_broker, **configs)
        asyncio.run(call(queue))
    lines = [json.loads(r.message) for r in caplog.records if r.name == "shoal.console.audit"]
    target = {"group": queue.group, "tenant": "acme"}
    assert [(one["action"], one["result"], one["target"]) for one in lines] == [
        ("pause-tenant", "done", target),
        ("resume-tenant", "done", target),
        ("resume-tenant", "done", {**target, "tenant": "idle"}),
    ]


def test_a_group_that_tells_no_tenants_apart_has_none(shared_broker: ShoalProcess) -> None:
    async def call(queue: Queue) -> None:
        access = ConsoleAccess(allow_actions=True)
        async with console(queue.bootstrap, access) as page:
            await page.sample()
            assert "Tenants" not in (await page.get("/group", id=queue.group)).words
            chosen = {"group": queue.group, "tenant": "acme"}
            refused = await page.get("/act-pause-tenant", **chosen, status=409)
            assert "does not tell tenants apart. Set share.fairness.by" in refused.words

    with SyncClient(shared_broker.bootstrap) as client:
        queue = make_queue(client, shared_broker)
        client.run(join_once(client, queue))
        asyncio.run(call(queue))


async def join_once(client: SyncClient, queue: Queue) -> None:
    """Make the group known."""
    session = await client.client.share(queue.group, [queue.topic])
    await session.acquire(max_wait_ms=1)
    await session.close()


def test_a_rule_that_masks_what_names_the_tenant_masks_the_table(
    shared_broker: ShoalProcess,
) -> None:
    async def call(queue: Queue, rule: MaskRule) -> str:
        access, metrics = ConsoleAccess(masks=Masks((rule,))), [shared_broker.metrics_url]
        async with console(queue.bootstrap, access, metrics=metrics) as page:
            await hold_one(page, queue)
            await page.sample()
            return (await page.get("/group", id=queue.group)).words

    with SyncClient(shared_broker.bootstrap) as client:
        queue = make_queue(client, shared_broker, share_fairness_by="header:Customer")
        by_key = make_queue(client, shared_broker, share_fairness_by="key")
        queue.produce([5], headers=(("Customer", b"secret"),))
        by_key.produce([5], key=b"secret")
        topics = (queue.topic, by_key.topic)
        of_header, of_key = MaskRule(topics, headers=("cust*",)), MaskRule(topics, key=True)
        of_field = MaskRule(topics, fields=("card",))
        for one, rule, is_masked in (
            (queue, of_header, True),
            (queue, of_key, False),
            (by_key, of_header, False),
            (by_key, of_key, True),
            (by_key, of_field, True),
            (queue, of_field, False),
        ):
            words = asyncio.run(call(one, rule))
            assert ("A rule of this console masks the names of tenants." in words) is is_masked
            assert ("secret" in words) is not is_masked
