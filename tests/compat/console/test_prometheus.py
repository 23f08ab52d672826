"""The console's history from a real Prometheus, which scrapes two real clusters."""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from typing import TYPE_CHECKING, NamedTuple

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.member import AcknowledgeType
from shoal.console.access.security import ConsoleAccess
from shoal.console.sampling import prometheus
from shoal.console.sampling.history import STEP_S
from shoal.console.sampling.prometheus import parse_prometheus
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.consoles import console
from support.pages.prometheus_server import Prometheus
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shoal.client.share.member import ShareSession
    from support.console.consoles import Opened

#: It takes half a minute until Prometheus has what the charts show. By day, the unit tests have its
#: answers.
pytestmark = pytest.mark.nightly
#: Names that a query must quote: of a topic in a regular expression, of a group in a string.
TOPIC, GROUP = "orders.v1", 'packers "a\\b" ä'
#: Records of the cluster that is shown, and of another one with the same names.
RECORDS, OTHERS = 6, 2
OF_MAIN = 'namespace="shop",shoal_dev_cluster="main"'
FROM_PROMETHEUS = "The last hour of the charts comes from Prometheus."
FROM_MEMORY = "The charts show what this console has kept since it started."


class Scraped(NamedTuple):
    """The cluster that is shown, and Prometheus."""

    bootstrap: str
    url: str


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A cluster whose queue is empty now and was not, and Prometheus, which knows that."""
    folder = tmp_path_factory.mktemp("scraped")
    main, other = (ShoalProcess(folder / name) for name in ("main", "other"))
    server: Prometheus | None = None
    try:
        main.start()
        other.start()
        server = _prometheus(folder, {"main": main, "other": other})
        with SyncClient(other.bootstrap) as client:
            client.run(_fill(client, other.bootstrap, OTHERS, lambda: True)[1].close())
        with SyncClient(main.bootstrap) as client:
            queue, session = _fill(client, main.bootstrap, RECORDS, lambda: _has_topic(server))
            eventually(lambda: _has(server, RECORDS), what="Prometheus has the depth")
            _settle(client, queue, session)
        eventually(lambda: _has(server, 0, 2), what="Prometheus has the depth 0")
        yield Scraped(main.bootstrap, server.url)
    finally:
        if server is not None:
            server.stop()
        for broker in (main, other):
            broker.kill9()


def _prometheus(folder: Path, brokers: dict[str, ShoalProcess]) -> Prometheus:
    targets = [
        {
            "targets": [broker.metrics_url.removeprefix("http://")],
            "labels": {"namespace": "shop", "shoal_dev_cluster": name},
        }
        for name, broker in brokers.items()
    ]
    often = {"scrape_interval": "2s", "scrape_timeout": "2s"}
    scrape = {"job_name": "brokers", "static_configs": targets, **often}
    return Prometheus(folder / "prometheus", [scrape]).start()


def _has(server: Prometheus, depth: float, times: int = 1) -> bool:
    """Whether the group had this depth at these many times of the console's charts."""
    end_s = time.time() // STEP_S * STEP_S
    query = f"sum(shoal_share_partition_lag{{{OF_MAIN}}})"
    return server.values(query, end_s - 300, end_s, STEP_S).count(depth) >= times


def _has_topic(server: Prometheus) -> bool:
    """Whether the topic was scraped. A rate needs a value from before its records."""
    now_s = time.time()
    query = f'kafka_log_Log_LogEndOffset{{topic="{TOPIC}",{OF_MAIN}}}'
    return 0.0 in server.values(query, now_s - 10, now_s, 1)


def _fill(
    client: SyncClient, bootstrap: str, records: int, is_ready: Callable[[], bool]
) -> tuple[Queue, ShareSession]:
    """Create the topic, produce records once `is_ready`, and let a member acquire them."""
    queue = Queue(
        client,
        bootstrap,
        partitions=2,
        topic=TOPIC,
        group=GROUP,
        share_record_lock_duration_ms="60000",
    )
    eventually(is_ready, what="Prometheus has the topic")
    queue.produce(range(records))
    session = client.run(client.share(GROUP, [TOPIC]))
    acquired = 0
    while acquired < records:
        acquired += sum(batch.count for batch in client.run(session.acquire(max_wait_ms=1_000)))
    return queue, session


def _settle(client: SyncClient, queue: Queue, session: ShareSession) -> None:
    """Release the acquired records, and complete them."""
    client.run(session.close())
    other = client.run(client.share(GROUP, [TOPIC]))

    def complete() -> bool:
        acquired = client.run(other.acquire(max_wait_ms=1_000))
        accepted = [a for batch in acquired for a in batch.acknowledge(AcknowledgeType.ACCEPT)]
        client.run(other.acknowledge(accepted))
        return queue.lag == 0

    eventually(complete)
    client.run(other.close())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, Prometheus is slow, too."""
    monkeypatch.setattr(prometheus, "ANSWER_S_MAX", 60.0)


def opened(scraped: Scraped, labels: str | None = OF_MAIN, url: str = "") -> Opened:
    """Return the group's page of a console that starts now."""
    settings = None if labels is None else parse_prometheus(url or scraped.url, labels)

    async def whole() -> Opened:
        async with console(scraped.bootstrap, ConsoleAccess(prometheus=settings)) as page:
            await page.sample()
            return await page.get("/group", id=GROUP)

    return asyncio.run(whole())


def charts(page: Opened) -> list[str]:
    """Return what a screen reader says of the charts of depth and throughput."""
    found = re.findall(r'aria-label="([^"]+), last hour\. ([^"]+)"', page.text)
    assert [title for title, _ in found] == [
        f"Depth of {TOPIC}, records",
        f"Throughput of {TOPIC}, records per second",
    ]
    return [unescape(text) for _, text in found]


def test_a_console_that_starts_later_shows_what_was_before(scraped: Scraped) -> None:
    alone = opened(scraped, labels=None)
    assert "highest 0." in charts(alone)[0]
    assert "Prometheus" not in alone.words
    page = opened(scraped)
    assert FROM_PROMETHEUS in page.words
    depth, throughput = charts(page)
    assert depth == (
        f"Depth: now 0, lowest 0, highest {RECORDS}. In flight: now 0, lowest 0, highest {RECORDS}."
    )
    rates = re.fullmatch(
        r"In: now .*, highest (\S+)/s\. Out: now .*, highest (\S+)/s\.", throughput
    )
    assert rates is not None, throughput
    assert all(0 < float(rate) <= RECORDS for rate in rates.groups()), throughput


def test_several_consoles_show_the_same(scraped: Scraped) -> None:
    def same() -> bool:
        """False if a time of the charts passed in between."""
        one, two = (re.findall(r'data-readout="[^"]+"', opened(scraped).text) for _ in range(2))
        assert len(one) == 2
        return one == two

    eventually(same)


def test_labels_choose_the_cluster(scraped: Scraped) -> None:
    other = OF_MAIN.replace("main", "other")
    found = charts(opened(scraped, other))[0]
    assert re.match(rf"Depth: now {OTHERS}, lowest \d, highest {OTHERS}\.", found), found
    page = opened(scraped, OF_MAIN.replace("main", "none"))
    assert (
        f"Prometheus at {scraped.url} has no values of this group on {TOPIC}. It must scrape the"
        " brokers, and --prometheus-labels must match the labels of their metrics."
        f" {FROM_MEMORY}"
    ) in page.words
    assert FROM_PROMETHEUS not in page.words
    assert "Depth: now 0, lowest 0, highest 0." in charts(page)[0]


def test_an_error_of_prometheus_is_shown(scraped: Scraped) -> None:
    page = opened(scraped, 'namespace=~"("')
    assert f"Prometheus at {scraped.url} answers 400: " in page.words
    assert "missing closing )" in page.words
    assert FROM_MEMORY in page.words
    assert "Depth: now 0, lowest 0, highest 0." in charts(page)[0]


def test_without_prometheus_the_page_shows_what_the_console_has(scraped: Scraped) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    page = opened(scraped, url=url)
    assert f"Prometheus at {url} does not answer. {FROM_MEMORY}" in page.words
    assert "Depth: now 0, lowest 0, highest 0." in charts(page)[0]
