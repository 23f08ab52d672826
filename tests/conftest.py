"""Fixtures that start real brokers, and the seed that tests draw from (`seeding`).

Each run draws new inputs, in CI too, to find new bugs. Each bug found gets a test. pytest's header
shows the seed, and each failure shows the command that repeats it.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import hypothesis
import pytest
from seeding import SEED
from servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The time of an example depends more on the machine than on the code.
_PATIENT = hypothesis.settings(
    deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("ci", _PATIENT, database=None)
hypothesis.settings.register_profile("home", _PATIENT)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make Hypothesis draw from the run's seed, unless `--hypothesis-seed` is given."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


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
        process.kill9()


@pytest.fixture
def broker(start_broker: Callable[..., ShoalProcess]) -> ShoalProcess:
    """A broker process for one test."""
    return start_broker()


@pytest.fixture(scope="module")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShoalProcess]:
    """A broker process for all tests of a file, with the file's `BROKER_CONFIG` if it has one. Each
    test creates its own topics and groups."""
    configs = getattr(request.module, "BROKER_CONFIG", None)
    process = ShoalProcess(tmp_path_factory.mktemp("shared") / "data", configs=configs).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])
