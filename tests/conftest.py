"""Fixtures that start real brokers, and how Hypothesis draws.

CI draws the same examples every time, so that a red run tells of the change and not of luck; at
home each run draws new ones, which is how bugs are found. A found one becomes a test.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from servers import ShoalProcess

#: How long an example takes says more of the machine than of the code.
_PATIENT = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("ci", derandomize=True, **_PATIENT)
hypothesis.settings.register_profile("home", **_PATIENT)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture
def seed() -> int:
    """What a random test draws from, printed so that `SEED=n` repeats it; one number in CI."""
    drawn = "1" if os.environ.get("CI") else str(random.randrange(1 << 32))
    found = int(os.environ.get("SEED", drawn))
    print(f"SEED={found}")
    return found


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., ShoalProcess]]:
    """Starts brokers of the test's own; `start_broker(name, configs=…)`. All end with the test."""
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
    """A broker process of the test's own."""
    return start_broker()


@pytest.fixture(scope="module")
def shared_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShoalProcess]:
    """A broker process that the tests of a file share, with the file's `BROKER_CONFIG` if it has
    one; each uses topics and groups of its own."""
    configs = getattr(request.module, "BROKER_CONFIG", None)
    process = ShoalProcess(tmp_path_factory.mktemp("shared") / "data", configs=configs).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])
