"""KEDA's own stubs and Go's gRPC against the operator's scaler.

`tests/e2e/test_keda.py` has KEDA itself. The client needs Go and its modules, so the tests run at
night.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from kube.scaler.test_keda_scaler import FixedAccess, Scene, scene
from shoal_operator.http_access import HttpAccess
from support.runs.machine import lacking
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    import ssl
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.nightly
#: Of one answer, on a busy machine.
ANSWER_S = 60
METADATA = {"shareConsumer": "eaters"}
REF = {"name": "so", "namespace": "n", "metadata": METADATA}


class GoClient:
    """A process that calls the scaler at an address, a call at a time or a stream."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, method: str, **more: Any) -> dict[str, Any]:
        """Start a call, and return its first answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"method": method, **REF, **more}).encode() + b"\n")
        return await self.next()

    async def next(self) -> dict[str, Any]:
        """Return the next answer of a stream."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), ANSWER_S)
        return dict(json.loads(line))


@asynccontextmanager
async def calling(
    access: Any = None, tls: ssl.SSLContext | None = None, files: tuple[Path, ...] = ()
) -> AsyncIterator[tuple[Scene, GoClient]]:
    """An operator with its scaler, and KEDA's client, which logs in with these files."""
    try:
        path = await asyncio.to_thread(program, "keda-client")
    except ClusterError as error:
        lacking(f"keda-client was not built: {error}")
    async with scene(access, tls) as found:
        pipe = asyncio.subprocess.PIPE
        address = f"127.0.0.1:{found.port}"
        process = await asyncio.create_subprocess_exec(
            path, address, *files, stdin=pipe, stdout=pipe
        )
        try:
            yield found, GoClient(process)
        finally:
            process.kill()
            await process.wait()


def test_keda_reads_the_metric_and_its_target() -> None:
    async def scenario() -> None:
        async with calling() as (found, client):
            unknown = await client.ask("IsActive")
            assert unknown["code"] == "Unavailable"
            assert "lag of the group of ShareConsumer n/eaters is unknown" in unknown["error"]
            found.report(lag=300, due=300)
            assert await client.ask("IsActive") == {"result": True}
            spec = {"metricName": "due", "targetSize": 40, "targetSizeFloat": 40}
            assert await client.ask("GetMetricSpec") == {"metricSpecs": [spec]}
            value = {"metricName": "due", "metricValue": 300, "metricValueFloat": 300}
            answer = await client.ask("GetMetrics", metric="due")
            assert answer == {"metricValues": [value]}
            nobody = await client.ask("IsActive", metadata={})
            assert nobody["code"] == "NotFound"

    asyncio.run(scenario())


def test_keda_hears_of_the_first_record_and_of_the_last() -> None:
    async def scenario() -> None:
        async with calling() as (found, client):
            found.report(lag=0, due=0)
            assert await client.ask("StreamIsActive") == {}
            found.report(lag=1, due=1)
            assert await client.next() == {"result": True}
            found.report(lag=0, due=0)
            assert await client.next() == {}

    asyncio.run(scenario())


def test_keda_finds_no_stream_of_targets() -> None:
    """It asks for the target then, instead of waiting for its changes."""

    async def scenario() -> None:
        async with calling() as (_, client):
            assert (await client.ask("StreamMetricSpec"))["code"] == "Unimplemented"

    asyncio.run(scenario())


def test_keda_shows_a_token_or_a_certificate(tmp_path: Path) -> None:
    of_server, of_readers = Authority("Servers"), Authority("Readers")
    stores, server = Stores(tmp_path), of_server.issue("operator")
    stores.write("tls.key", server.key_pem())
    stores.write("tls.crt", server.chain_pem)
    stores.write("readers.crt", of_readers.pem)
    access = HttpAccess(tmp_path, None, tmp_path / "readers.crt")
    keda = of_readers.issue("keda")
    texts = {"ca": of_server.pem, "certificate": keda.chain_pem, "key": keda.key_pem()}
    for name, text in texts.items():
        stores.write(name, text)
    files = tuple(tmp_path / name for name in texts)

    async def scenario() -> None:
        async with calling(FixedAccess()) as (found, client):
            found.report(lag=1, due=1)
            assert (await client.ask("IsActive"))["code"] == "PermissionDenied"
            token = METADATA | {"tokenFromEnv": "secret"}
            assert await client.ask("IsActive", metadata=token) == {"result": True}
        async with calling(access, access.grpc_context, files) as (found, client):
            found.report(lag=1, due=1)
            assert await client.ask("IsActive") == {"result": True}

    asyncio.run(scenario())
