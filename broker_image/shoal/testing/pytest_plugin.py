"""The fixtures of pytest: a broker for the run, a client of it, a topic for each test, and folders
of manifests.

With pytest-xdist, each worker has a broker of its own. Nothing starts, and no other module of Shoal
is imported, before a test asks for one of these.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from shoal.client.client import SyncClient
    from shoal.testing.broker import Broker
    from shoal.testing.local_folder import RunningFolder

#: The longest name of a topic is 249 characters.
_NAME_MAX = 200


@pytest.fixture(scope="session")
def shoal_broker_configs() -> Mapping[str, str | int | bool]:
    """Return the configs of `shoal_broker`. Override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def shoal_broker(shoal_broker_configs: Mapping[str, str | int | bool]) -> Iterator[Broker]:
    """A broker for all tests of the run, or of one xdist worker; `bootstrap` is its address."""
    from shoal.testing.broker import Broker

    with Broker(shoal_broker_configs) as broker:
        yield broker


@pytest.fixture(scope="session")
def shoal_client(shoal_broker: Broker) -> Iterator[SyncClient]:
    """A Shoal client of `shoal_broker` without an event loop."""
    from shoal.client.client import SyncClient

    with SyncClient(shoal_broker.bootstrap) as client:
        yield client


@pytest.fixture
def shoal_topic(request: pytest.FixtureRequest, shoal_client: SyncClient) -> str:
    """Create a topic for one test, and return its name, which no other test has."""
    from shoal.client.admin.topics import NewTopic
    from shoal.client.errors import KafkaError

    name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_NAME_MAX]
    topic = f"{name}-{uuid4().hex[:8]}"
    created = shoal_client.run(shoal_client.admin.topics.create([NewTopic(topic)]))[topic]
    if isinstance(created, KafkaError):
        raise created
    return topic


@pytest.fixture
def shoal_up() -> Iterator[Callable[..., RunningFolder]]:
    """Run folders of manifests until the test ends: `queue = shoal_up("queue")`. Arguments and
    errors are those of `shoal.testing.shoal_up`."""
    from shoal.testing.local_folder import shoal_up as run_folder

    with ExitStack() as running:

        def start(folder: str | Path, *, brokers: int | None = None) -> RunningFolder:
            return running.enter_context(run_folder(folder, brokers=brokers))

        yield start
