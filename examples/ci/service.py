"""A service that writes an invoice for each order. The operator sets its variables."""

from __future__ import annotations

import os

from shoal.client import SyncClient


def main() -> None:
    with (
        SyncClient(os.environ["SHOAL_BOOTSTRAP_SERVERS"]) as client,
        client.share_consumer(os.environ["SHOAL_GROUP_ID"], ["orders"]) as consumer,
    ):
        while True:
            for record in consumer.poll():
                client.put("invoices", f"invoice for {record.value.decode()}")
                consumer.accept(record)


if __name__ == "__main__":
    main()
