"""Fixtures that start or share real brokers, the seed that tests draw from (`seeding`), and what a
failure shows: the logs of its brokers, and the command that repeats it.

Each run draws new inputs, in CI too, to find new bugs. Each bug found gets a test. pytest's header
shows the seed, and each failure shows the command that repeats it.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from support.brokers import servers
from support.brokers.servers import ShoalProcess
from support.brokers.shared_servers import (
    Brokers,
    SharedKafka,
    controller_pid,
    delete_topics,
    list_topics,
    shared_kafka,
)
from support.runs import coverage_contexts, leaks, scheduling
from support.runs.example_counts import AT_NIGHT, BY_DAY
from support.runs.seeding import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

#: The time of an example depends more on the machine than on the code.
_PATIENT = hypothesis.settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=BY_DAY,
)
hypothesis.settings.register_profile("ci", _PATIENT, database=None)
hypothesis.settings.register_profile("home", _PATIENT)
hypothesis.settings.register_profile("nightly", _PATIENT, database=None, max_examples=AT_NIGHT)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "home")
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make Hypothesis draw from the run's seed, unless `--hypothesis-seed` is given, and tests use
    the images of one month."""
    # Workers of pytest-xdist inherit these, so that they draw and collect the same tests, and use
    # the same images when a month ends.
    os.environ["SEED"] = str(SEED)
    os.environ.setdefault("IMAGE_MONTH", time.strftime("%Y-%m", time.gmtime()))
    leaks.mark()
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what the collection imports out of each garbage collection: it is a million objects,
    which take half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    scheduling.put_longest_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.FileScheduling:
    """Let `pytest -n` share the tests file by file."""
    config.option.loadscopereorder = False
    return scheduling.FileScheduling(config, log)


def pytest_report_header() -> str:
    return f"SEED={SEED} (set it in the environment to draw the same inputs again)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats each failure with the inputs that were drawn."""
    failed = [
        report.nodeid
        for outcome in ("failed", "error")
        for report in terminalreporter.getreports(outcome)
    ]
    if failed:
        terminalreporter.section("to repeat with the same drawn inputs")
        for nodeid in dict.fromkeys(failed):
            command = f"{os.path.relpath(sys.executable)} -m pytest {shlex.quote(nodeid)}"
            terminalreporter.line(f"SEED={SEED} {command}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    scheduling.give_way(item.nodeid)
    coverage_contexts.enter(item.nodeid.partition("::")[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the brokers that a failed test used to its report."""
    report = yield
    if report.failed:
        for broker in servers.used():
            title = f"log of the broker at {broker.bootstrap}"
            report.sections.append((title, "\n".join(broker.log[-60:])))
    if report.when == "teardown":
        servers.forget_ended()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Fail the last test of a file if processes of the file still run."""
    yield
    if nextitem is None or nextitem.path != item.path:
        left = leaks.end()
        assert not left, "these processes were left running:\n" + "\n".join(map(str, left))


@pytest.fixture
def seed() -> int:
    """Return the seed of this run; `SEED=n` in the environment sets it."""
    return SEED


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., ShoalProcess]]:
    """Start brokers for one test: `start_broker(name, configs=…)`. All stop when the test ends."""
    started: list[ShoalProcess] = []

    def start(name: str = "data", **options: object) -> ShoalProcess:
        process = ShoalProcess(tmp_path / name, **options)  # type: ignore[arg-type]
        started.append(process)
        return process.start()

    yield start
    for process in started:
        # A killed process leaves no coverage.
        process.stop() if coverage_contexts.is_measuring() else process.kill9()


@pytest.fixture
def broker(start_broker: Callable[..., ShoalProcess]) -> ShoalProcess:
    """A broker process for one test."""
    return start_broker()


@pytest.fixture(scope="session")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """The brokers that tests of all files share: `shared_brokers.get(configs)`."""
    brokers = Brokers(tmp_path_factory.mktemp("shared"))
    yield brokers
    brokers.stop()


@pytest.fixture(scope="module")
def shared_broker(
    request: pytest.FixtureRequest, shared_brokers: Brokers
) -> Iterator[ShoalProcess]:
    """The shared broker with the file's `BROKER_CONFIG`, or a plain one. Each test creates topics
    and groups with names of its own, and changes nothing else. The file's topics go with it, since
    another file may use their names."""
    broker = shared_brokers.get(getattr(request.module, "BROKER_CONFIG", None))
    before = list_topics(broker.bootstrap)
    yield broker
    if broker.is_running:
        delete_topics(broker.bootstrap, list_topics(broker.bootstrap) - before)


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all test processes of the run share."""
    directory = tmp_path_factory.getbasetemp()
    return directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory


@pytest.fixture(scope="session")
def get_kafka(run_directory: Path) -> Callable[..., SharedKafka]:
    """Return a function that returns the run's Apache Kafka with the given configs."""

    def get(configs: Mapping[str, str] | None = None) -> SharedKafka:
        return shared_kafka(run_directory, controller_pid(), configs)

    return get
