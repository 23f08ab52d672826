"""`shoal transactions` on Shoal and on Apache Kafka: open transactions, and one that hangs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from shoal.client.client import SyncClient
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()
OLD_MS = 1_700_000_000_000


@pytest.fixture(
    scope="module",
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
)
def bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    process: KafkaProcess | ShoalProcess = (
        KafkaProcess(folder / "node") if request.param == "kafka" else ShoalProcess(folder / "node")
    )
    process.start()
    yield process.bootstrap
    process.kill9()


@pytest.fixture
def shoal(bootstrap: str) -> Shoal:
    return Shoal(bootstrap)


@pytest.fixture
def name(shoal: Shoal) -> str:
    """The name of a topic, and of a transactional id."""
    found = f"transacted-{next(_numbers)}"
    shoal.run("topics", "create", found, "-p", "2")
    return found


@pytest.fixture
def producer(bootstrap: str, name: str) -> Producer:
    """A producer with an open transaction in partition 1."""
    found = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    found.init_transactions(60)
    found.begin_transaction()
    found.produce(name, b"open", partition=1)
    assert found.flush(30) == 0
    return found


def state(shoal: Shoal, name: str) -> str:
    (row,) = shoal.json("transactions", "describe", name)
    return str(row["state"])


@pytest.mark.usefixtures("producer")
def test_an_open_transaction_is_shown_and_terminated(shoal: Shoal, name: str) -> None:
    (row,) = [r for r in shoal.json("transactions", "list") if r["transactional_id"] == name]
    assert (row["state"], row["coordinator"]) == ("Ongoing", 1)
    words = ("transactions", "list", "--producer-id", str(row["producer_id"]))
    assert [r["transactional_id"] for r in shoal.json(*words, "--state", "Ongoing")] == [name]
    assert shoal.json(*words, "--state", "PrepareCommit") == []
    assert shoal.json(*words, "--longer-than", "1h") == []
    (about,) = shoal.json("transactions", "describe", name)
    assert about["partitions"] == [f"{name}-1"]
    assert about["producer_id"] == row["producer_id"]
    assert about["timeout_ms"] == 60_000
    assert about["began"].startswith("20")
    (one,) = shoal.json("transactions", "producers", name)
    assert (one["partition"], one["transaction_start_offset"]) == (1, 0)
    assert one["producer_id"] == row["producer_id"]
    search = ("transactions", "find-hanging", "-t", name, "--max-transaction-timeout", "0s")
    assert shoal.says(*search) == "No transaction hangs.\n", "its coordinator will end it"
    assert "--yes is missing" in shoal.refusal("transactions", "terminate", name, status=2)
    said = shoal.says("transactions", "terminate", name, "--yes")
    assert said == f"Fenced the producer of {name}. Its open transaction is aborted.\n"
    assert state(shoal, name) == "Empty"
    (one,) = shoal.json("transactions", "producers", name)
    assert one["transaction_start_offset"] is None


def test_a_hanging_transaction_is_found_and_aborted(
    shoal: Shoal, bootstrap: str, name: str
) -> None:
    """A write of transaction version 1 that no coordinator received, while brokers do not
    verify."""
    setting = "transaction.partition.verification.enable"
    shoal.run("configs", "set", "broker", "default", f"{setting}=false")
    with SyncClient(bootstrap) as client:
        leader = client.run(client.cluster.find_leader(name, 0))
        link = client.run(client.cluster.get_connection(leader))

        def hang() -> bool:
            given = client.run(
                client.cluster.ask(
                    ApiKey.INIT_PRODUCER_ID,
                    {
                        "transactional_id": None,
                        "transaction_timeout_ms": 60_000,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    },
                )
            )
            batch = build_batch(
                [(OLD_MS, None, b"hanging", ())],
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            rows = [{"index": 0, "records": bytes(batch)}]
            body = {
                "transactional_id": f"{name}-unknown",
                "acks": -1,
                "timeout_ms": 5_000,
                "topic_data": [{"name": name, "partition_data": rows}],
            }
            answer = client.run(link.request(ApiKey.PRODUCE, body, version=11))
            return not answer.responses[0].partition_responses[0].error_code

        eventually(hang)
    words = ("transactions", "find-hanging", "-t", name)
    (row,) = shoal.json(*words)
    assert (row["topic"], row["partition"], row["transaction_start_offset"]) == (name, 0, 0)
    assert shoal.json(*words, "--broker", "1") == [row]
    assert shoal.json(*words, "--broker", "7") == []
    assert shoal.json("transactions", "find-hanging", "-t", f"{name}:1") == []
    assert shoal.json(*words, "--max-transaction-timeout", "36500d") == []
    refused = shoal.refusal("transactions", "abort", f"{name}:0", "--start-offset", "5", "--yes")
    assert "no transaction that began at offset 5 is open" in refused
    read = ("consume", name, "--from-beginning", "--read-committed", "-p", "0")
    shoal.run("produce", name, "-p", "0", stdin="later\n")
    assert shoal.says(*read, "--timeout", "1s") == ""
    said = shoal.says("transactions", "abort", f"{name}:0", "--start-offset", "0", "--yes")
    assert said == f"Aborted the transaction of producer {row['producer_id']} in {name}-0.\n"
    assert shoal.says(*read, "-n", "1") == "later\n"
    assert shoal.says("transactions", "find-hanging", "-t", name) == "No transaction hangs.\n"
    shoal.run("configs", "set", "broker", "default", f"{setting}=true")


def test_refusals(shoal: Shoal, name: str) -> None:
    said = shoal.refusal("transactions", "describe", "never-was")
    assert "shoal transactions list" in said
    assert "shoal transactions list" in shoal.refusal("transactions", "terminate", "never-was")
    said = shoal.refusal("transactions", "list", "--longer-than", "soon", status=2)
    assert "--longer-than must be like 90s" in said
    said = shoal.refusal("transactions", "abort", name, "--start-offset", "0", status=2)
    assert "name one partition" in said
