"""The tests that other clients have of themselves, against three brokers."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from e2e.cluster.programs import program
from support.brokers.clusters import CALM, ShoalCluster, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Tests of franz-go with the records that each sends through its topics: several transactions of
#: each producer.
OF_FRANZ_GO = {
    "TestTxnEtl": 50_000,
    "TestGroupSimple": 20_000,
    "TestGroupETL": 20_000,
    "TestShareGroup": 20_000,
    "TestShareGroupETL": 20_000,
    "TestShareGroupAckOnClose": 20_000,
    "TestShareGroupOffsetsAdmin": 20_000,
}
TIMEOUT_S = 1500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("foreign"), configs=CALM)) as cluster:
        yield cluster


@pytest.mark.nightly
@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("name", OF_FRANZ_GO)
def test_franz_go(cluster: ShoalCluster, tmp_path: Path, name: str) -> None:
    """Records go from topic to topic by consumers that come and go, in groups of each kind, some by
    transactions. With three brokers, a producer often begins a transaction while the markers of its
    last one are still being written."""
    settings = {"KGO_SEEDS": cluster.bootstrap, "KGO_TEST_RECORDS": f"{OF_FRANZ_GO[name]}"}
    words = ("-test.v", f"-test.run=^{name}$", f"-test.timeout={TIMEOUT_S}s")
    done = subprocess.run(
        (program("franz-go"), *words),
        cwd=tmp_path,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert f"--- PASS: {name} " in done.stdout, "it did not run"
