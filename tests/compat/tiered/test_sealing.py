"""Objects that are compressed and encrypted, on a real broker whose store is a directory."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from shoal.tiered.segment_object import find_footer_bytes_needed, read_footer
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.tiered_topics import (
    MB,
    TIMEOUT_S,
    Tiered,
    alter,
    consume,
    create,
    produce,
    settings,
)

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("obstore")

KEY_ID = "shoal.remote.encryption.key.id"
COMPRESSION = "shoal.remote.compression.type"


def add_key(directory: Path, name: str) -> None:
    (directory / name).write_bytes(base64.b64encode(os.urandom(32)))


def key_ids(tiered: Tiered) -> list[str]:
    """Return the key of each object, in order of their offsets; "" if it is not encrypted."""
    ends = [path.read_bytes() for path in tiered.objects()]
    footers = [read_footer(data[-find_footer_bytes_needed(data) :]) for data in ends]
    return ["" if f.envelope is None else f.envelope.key_id for f in footers]


def is_readable(bootstrap: str) -> bool:
    """Whether the first record arrives. librdkafka repeats a fetch that ends with an error."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    client.assign([TopicPartition("t", 0, 0)])
    try:
        return bool(client.consume(1, 2))
    finally:
        client.close()


def test_keys_rotate_on_a_running_broker(tmp_path: Path) -> None:
    keys, store = tmp_path / "keys", tmp_path / "store"
    keys.mkdir()
    add_key(keys, "first")
    configs = settings(store) | {
        "shoal.remote.encryption.key.directory": str(keys),
        KEY_ID: "first",
        "shoal.remote.chunk.cache.bytes": "1",
    }
    broker = ShoalProcess(tmp_path / "data", configs=configs).start()
    tiered = Tiered(broker, store, AdminClient({"bootstrap.servers": broker.bootstrap}))
    try:
        create(tiered.admin)
        produce(broker.bootstrap, 3000)
        eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
        assert set(key_ids(tiered)) == {"first"}
        assert all(path.stat().st_size > MB / 2 for path in tiered.objects())
        add_key(keys, "second")
        alter(tiered.admin, {KEY_ID: "second", COMPRESSION: "zstd"}, kind="broker", name="1")
        before = tiered.objects()
        produce(broker.bootstrap, 3000, start=3000)
        eventually(lambda: len(tiered.local_logs()) == 1, timeout_s=TIMEOUT_S)
        eventually(lambda: tiered.local_logs()[0] > 4500, timeout_s=TIMEOUT_S)
        assert list(dict.fromkeys(key_ids(tiered))) == ["first", "second"]
        packed = [path for path in tiered.objects() if path not in before]
        assert all(path.stat().st_size < MB / 10 for path in packed[1:])
        consume(broker.bootstrap, 6000)
        broker.kill9()
        broker.start()
        consume(broker.bootstrap, 6000)
        # Without its key a record is an error that can pass, and the log names the key.
        saved = (keys / "first").read_bytes()
        (keys / "first").unlink()
        assert not is_readable(broker.bootstrap)
        named = "the key 'first' is missing in shoal.remote.encryption.key.directory"
        eventually(lambda: any(named in line for line in broker.log), timeout_s=TIMEOUT_S)
        consume(broker.bootstrap, 500, start=tiered.bases()[-1])
        (keys / "first").write_bytes(saved)
        consume(broker.bootstrap, 6000)
    finally:
        broker.kill9()


def test_a_broker_names_a_key_that_it_does_not_have(tmp_path: Path) -> None:
    configs = settings(tmp_path / "store") | {KEY_ID: "a"}
    said = ShoalProcess(tmp_path / "data", configs=configs).refusal()
    assert f"{KEY_ID} needs a key ring: set shoal.remote.encryption.key.directory" in said
    configs["shoal.remote.encryption.key.directory"] = str(tmp_path)
    said = ShoalProcess(tmp_path / "data", configs=configs).refusal()
    assert f"{KEY_ID}=a: the key 'a' is missing" in said
    (tmp_path / "a").write_text("not a key")
    said = ShoalProcess(tmp_path / "data", configs=configs).refusal()
    assert "openssl rand -base64 32" in said
