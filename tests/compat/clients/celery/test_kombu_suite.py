"""Kombu's own integration tests of transports, by `shoal://`.

They are in Kombu's source distribution (`t/integration/common.py`), which pip fetches with a pinned
hash. A module of ours names the connection, and overrides the two tests of priorities that expect
one `drain_events` to deliver several messages, as Kombu's own tests of its Redis transport do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

SUITE = '''
import os
import socket

import kombu
import pytest
import shoal.kombu

from common import (
    BaseExchangeTypes, BaseFailover, BaseMessage, BasePriority, BaseTimeToLive, BasicFunctionality
)

URL = os.environ["KOMBU_SUITE_URL"]


@pytest.fixture()
def connection():
    return kombu.Connection(URL)


@pytest.fixture()
def invalid_connection():
    return kombu.Connection("shoal://127.0.0.1:1", connect_timeout=0.5)


@pytest.fixture()
def failover_connection():
    return kombu.Connection(f"shoal://127.0.0.1:1;{URL}", connect_timeout=10)


class Draining(kombu.Connection):
    """A connection whose `drain_events` delivers all messages that come within a while."""

    def drain_events(self, **options):
        super().drain_events(**options)
        try:
            while True:
                super().drain_events(timeout=0.5)
        except socket.timeout:
            pass


class TestBasicFunctionality(BasicFunctionality):
    pass


class TestExchangeTypes(BaseExchangeTypes):
    pass


class TestTimeToLive(BaseTimeToLive):
    pass


class TestMessage(BaseMessage):
    pass


class TestFailover(BaseFailover):
    pass


class TestPriority(BasePriority):
    def test_publish_consume(self):
        super().test_publish_consume(Draining(URL))

    def test_publish_requeue_consume(self):
        super().test_publish_requeue_consume(Draining(URL))
'''
#: The tests of the suite above in Kombu 5.7.
TESTS_COUNT = 46


@pytest.mark.nightly
def test_kombus_own_tests_of_transports(shared_broker: ShoalProcess, tmp_path: Path) -> None:
    requirements = Path(__file__).parents[2] / "requirements" / "kombu.txt"
    words = ("--no-deps", "--no-binary", ":all:", "--require-hashes", "-r", str(requirements))
    fetched = subprocess.run(
        (sys.executable, "-m", "pip", "download", "-q", *words, "-d", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert fetched.returncode == 0, fetched.stdout
    (archive,) = tmp_path.glob("kombu-*.tar.gz")
    with tarfile.open(archive) as source:
        (common,) = (
            member
            for member in source.getmembers()
            if Path(member.name).parts[-2:] == ("integration", "common.py")
        )
        content = source.extractfile(common)
        assert content is not None
        (tmp_path / "common.py").write_bytes(content.read())
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)),
        cwd=tmp_path,
        env={**os.environ, "KOMBU_SUITE_URL": f"shoal://{shared_broker.bootstrap}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert f"{TESTS_COUNT} passed" in done.stdout, "not all of them ran"
