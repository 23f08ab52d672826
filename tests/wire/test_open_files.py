"""Descriptors: a broker that runs can start again, and says in time when they become few."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest
from shoal.server import open_files
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

#: Connections, libraries and the files of a broker without topics need fewer.
SPARE = 40


def with_limit(count: int) -> list[str]:
    """Return a command that runs another one with at most `count` open files."""
    return ["/bin/sh", "-c", f'ulimit -n {count}; exec "$0" "$@"']


def restart_with_many(
    start_broker: Callable[..., ShoalProcess], partitions: int, written: int
) -> None:
    """Write to some of many partitions, and restart within the limit that running needs."""
    broker = start_broker()
    before = broker.metric("process_open_fds")
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t", partitions)
        for index in range(written):
            # Large enough for entries in the indexes.
            values = [b"%d" % index * 3000] * 3
            for value in values:
                assert client.produce("t", value, partition=index).error_code == 0
    running = broker.metric("process_open_fds")
    # One descriptor for each partition, in any case.
    assert running - before < partitions + SPARE
    broker.stop()
    broker.command = tuple(with_limit(int(running) + SPARE))
    for _ in range(2):
        broker.start()
        with WireClient(broker.bootstrap) as client:
            for index in range(0, written, 7):
                assert client.fetch("t", 0, partition=index).high_watermark == 3
            assert client.produce("t", b"v", partition=partitions - 1).error_code == 0
        assert broker.metric("process_open_fds") < running + SPARE
        assert broker.metric("process_max_fds") == int(running) + SPARE
        broker.kill9()


def test_a_broker_that_runs_can_start_again(start_broker: Callable[..., ShoalProcess]) -> None:
    restart_with_many(start_broker, 100, 100)


@pytest.mark.nightly
def test_a_broker_with_ten_thousand_partitions_can_start_again(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """Found from outside: it ran on 10,020 descriptors, and did not start with 20,000.

    It takes a minute: creating the partitions, and two recoveries of their logs.
    """
    restart_with_many(start_broker, 10_000, 500)


def test_a_limit_that_is_too_low_is_named_with_the_need(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t", 120)
    broker.stop()
    broker.command = tuple(with_limit(100))
    said = broker.refusal()
    assert "Too many open files: the limit is 100, and the logs have 121 segments" in said
    assert "LimitNOFILE" in said
    broker.command = tuple(with_limit(200))
    broker.start()
    with WireClient(broker.bootstrap) as client:
        assert client.produce("t", b"v", partition=119).error_code == 0
    (line,) = [line for line in broker.log if "files are open" in line]
    assert " of at most 200 files are open." in line


def test_few_descriptors_left_are_logged_once() -> None:
    lines: list[dict[str, int]] = []

    class Log:
        def warning(self, _event: str, **facts: int) -> None:
            lines.append(facts)

    checks = open_files.OpenFiles(Log())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = open_files.count_open_files() + 2
    try:
        checks.check()
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        checks.check()
        checks.check()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    checks.check()
    assert [facts["limit"] for facts in lines] == [few]
