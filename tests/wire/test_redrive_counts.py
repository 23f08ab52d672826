"""The counts of redriven letters, from a topic to which others may write, too."""

from __future__ import annotations

import contextlib
import json
import uuid
from typing import TYPE_CHECKING

from shoal.record.records import build_batch
from shoal.server.share import redrives
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess


def counted(broker: ShoalProcess, group: str) -> list[float]:
    """Return the count of a group; none if it has none."""
    return [s.value for s in broker.samples("shoal_share_group_redriven_total", group=group)]


def create_ledger(client: WireClient) -> None:
    with contextlib.suppress(AssertionError):  # It exists.
        client.create_topic(redrives.LEDGER, cleanup_policy="compact")


def value(**redriven: int) -> bytes:
    """Return a record of the ledger as `client.redrive_ledger` writes it."""
    fields = {"topic": "t", "partition": 0, "done": "0-9,12", "redriven": redriven}
    sending = {"first": 1, "last": 2, "ends": {"t": {"0": 1}}}
    return json.dumps(fields | {"sending": sending}, separators=(",", ":")).encode()


def test_the_last_record_of_each_partition_counts(shared_broker: ShoalProcess) -> None:
    group, key = f"g{uuid.uuid4()}", str(uuid.uuid4()).encode()
    with WireClient(shared_broker.bootstrap) as client:
        create_ledger(client)

        def write(partition: int, content: bytes | None) -> None:
            record = (1, key + b":%d" % partition, content, ())
            batch = bytes(build_batch([record], compression="gzip"))
            assert client.produce(redrives.LEDGER, records=batch).error_code == 0

        write(0, value(**{group: 1}))
        write(0, value(**{group: 3}))
        write(1, value(**{group: 4}))
        eventually(lambda: counted(shared_broker, group) == [7])
        write(1, None)
        eventually(lambda: counted(shared_broker, group) == [3])


def test_what_no_client_writes_is_left_out(shared_broker: ShoalProcess) -> None:
    """None of it ends the exposition, or what the records behind it count."""
    group = f"g{uuid.uuid4()}"
    with WireClient(shared_broker.bootstrap) as client:
        create_ledger(client)
        deep = b'{"done":"","redriven":' + b'{"a":' * 10_000
        for content in (deep, b"junk", b'{,"redriven":[1]', b'{,"redriven":{"g":1e999}', b""):
            client.produce(redrives.LEDGER, records=bytes(build_batch([(1, b"k", content, ())])))
        known = (1, b"k" * redrives.KEY_BYTES_MAX, value(**{group: 1}), ())
        long_key = (1, b"k" * (redrives.KEY_BYTES_MAX + 1), value(**{group: 10}), ())
        many = [(1, b"%d" % n, value(**{group: 100}), ()) for n in range(1001)]
        huge = (1, b"k", value(**{group: 1000}) + bytes(redrives.BATCH_BYTES_MAX), ())
        for records in ([long_key], many, [huge], [known]):
            batch = bytes(build_batch(records, compression="zstd"))
            assert client.produce(redrives.LEDGER, records=batch).error_code == 0
    eventually(lambda: counted(shared_broker, group) == [1])
