"""Tiered storage on two real S3 servers: versitygw, on a directory, and moto, in memory.

Both have conditional puts. A broker runs the whole way there, with compression and encryption.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from shoal.server.tiered.object_store import open_store
from shoal.tiered.keys import parse_segment_id
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage import store_contract
from support.storage.tiered_topics import MB, TIMEOUT_S, Tiered, create, produce, settings
from support.storage.tiered_topics import consume as consume_from

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.nightly
pytest.importorskip("obstore")

KEYS = {"AWS_ACCESS_KEY_ID": "test-id", "AWS_SECRET_ACCESS_KEY": "test-secret"}
REGION = "us-east-1"
REQUIREMENTS = "tests/compat/requirements/moto.txt"


def needed(program: str, remedy: str) -> str:
    found = shutil.which(program)
    assert found is not None, f"{program} is missing: {remedy}"
    return found


def versitygw(port: int, folder: Path) -> list[str]:
    (folder / "bucket").mkdir(parents=True)
    module = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    program = needed("versitygw", f"go install {module}")
    return [program, "--port", f"127.0.0.1:{port}", "posix", str(folder)]


def moto(port: int, _folder: Path) -> list[str]:
    program = needed("moto_server", f"pip install --require-hashes -r {REQUIREMENTS}")
    return [program, "-H", "127.0.0.1", "-p", str(port)]


def answers(url: str) -> bool:
    """Whether the server answers, if only with an error."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@pytest.fixture(params=[versitygw, moto], ids=["versitygw", "moto"])
def endpoint(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the URL of a server with a bucket of the name `bucket`."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (port,) = free_ports(1)
    names = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"]}
    names["ROOT_SECRET_KEY"] = KEYS["AWS_SECRET_ACCESS_KEY"]
    server = subprocess.Popen(
        request.param(port, tmp_path / "s3"),
        env=os.environ | names,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answers(url), timeout_s=TIMEOUT_S)
        if request.param is moto:
            create_bucket = urllib.request.Request(f"{url}/bucket", method="PUT")
            urllib.request.urlopen(create_bucket, timeout=TIMEOUT_S).close()
        yield url
    finally:
        server.kill()
        server.wait()


def store_at(endpoint: str, prefix: str, **more: str) -> Any:
    return open_store(f"s3://bucket/{prefix}", endpoint=endpoint, region=REGION, **more)


@pytest.mark.parametrize("signing", ["always", "never"])
@pytest.mark.parametrize("part", store_contract.CONTRACT, ids=lambda part: part.__name__)
def test_contract(endpoint: str, part: Any, signing: str) -> None:
    asyncio.run(part(store_at(endpoint, "contract", payload_signing=signing)))


def test_puts_are_conditional(endpoint: str) -> None:
    """Manifests are fenced by the server, not by a comparison."""
    store = store_at(endpoint, "conditional")
    asyncio.run(store_contract.conditional_puts(store))
    assert store.is_conditional


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_records_are_read_from_an_s3_server(endpoint: str, tmp_path: Path, sealed: bool) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/k").write_bytes(base64.b64encode(os.urandom(32)))
    configs = settings(tmp_path) | {
        "shoal.remote.store.url": "s3://bucket/prefix",
        "shoal.remote.store.endpoint": endpoint,
        "shoal.remote.store.region": REGION,
    }
    if sealed:
        configs |= {
            "shoal.remote.compression.type": "zstd",
            "shoal.remote.encryption.key.directory": str(tmp_path / "keys"),
            "shoal.remote.encryption.key.id": "k",
        }
    store = store_at(endpoint, "prefix")

    async def listed() -> list[str]:
        return [info.key async for info in store.list("")]

    def segments() -> list[int]:
        found = asyncio.run(listed())
        return sorted(int(Path(key).name[:20]) for key in found if parse_segment_id(key))

    broker = ShoalProcess(tmp_path / "data", configs=configs, environment=KEYS).start()
    try:
        tiered = Tiered(broker, tmp_path, AdminClient({"bootstrap.servers": broker.bootstrap}))
        create(tiered.admin, segment_bytes=str(10 * MB))
        produce(broker.bootstrap, 25_000)
        eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
        assert len(segments()) == 2
        consume_from(broker.bootstrap, 25_000)
        broker.kill9()
        broker.start()
        consume_from(broker.bootstrap, 25_000)
        tiered.admin.delete_records([TopicPartition("t", 0, segments()[1])])
        eventually(lambda: len(segments()) == 1, timeout_s=TIMEOUT_S)
        left = tiered.local_logs()[0] - segments()[0]
        consume_from(broker.bootstrap, left, start=segments()[0])
    finally:
        broker.kill9()
