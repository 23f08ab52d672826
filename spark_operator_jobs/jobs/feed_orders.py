"""Fills a queue with orders of wine: scikit-learn's table of 178 wines is the shop's stock.

    python feed_orders.py --bootstrap-servers localhost:9092 --topic orders --count 5000

One account in fifty has been taken over, and orders a lot from abroad at once. Now and then a
record is no order at all. Makes the topic if it is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.client.client import Client
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.topics import NewTopic
from shoal.protocol.errors import ErrorCode

COUNTRIES = ("DE", "FR", "IT", "ES", "PT", "AT")
#: Every such account has been taken over.
TAKEN_OVER = 50
WINDOW = 1000


class Wine(NamedTuple):
    name: str
    price_cents: int


def stock() -> list[Wine]:
    """The wines: named by cultivar and row, dearer with more proline, as in the trade."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the wines come with scikit-learn: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "wine_data.csv")
    with path.open() as file:
        rows = list(csv.reader(file))[1:]
    return [
        Wine(f"cultivar {row[13]} no. {number} ({float(row[0]):.1f} %)", int(float(row[12])) * 2)
        for number, row in enumerate(rows, 1)
    ]


def orders(count: int, accounts: int, broken_every: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Account and order, as JSON; the same for the same seed."""
    wines, choose = stock(), random.Random(seed)
    for number in range(count):
        account = choose.randrange(accounts)
        stolen = account % TAKEN_OVER == TAKEN_OVER - 1 and number > count // 4
        home = COUNTRIES[account % len(COUNTRIES)]
        lines = [
            {"wine": wine.name, "price_cents": wine.price_cents,
             "quantity": choose.randint(24, 60) if stolen else choose.randint(1, 6)}
            for wine in choose.sample(wines, choose.randint(1, 4))
        ]  # fmt: skip
        order: dict[str, Any] = {
            "order": f"order-{number:07d}",
            "account": f"account-{account:05d}",
            "country": choose.choice(COUNTRIES) if stolen else home,
            "lines": lines,
        }
        value = json.dumps(order).encode()
        if broken_every and number % broken_every == broken_every - 1:
            value = value[: len(value) // 2]
        yield order["account"], value


async def prepare(client: Client, given: argparse.Namespace) -> None:
    """The topics, and what the group needs to know."""
    names: dict[str, dict[str, str]] = {given.topic: {}}
    if given.dead_letters:
        names[given.dead_letters] = {"errors.deadletterqueue.group.enable": "true"}
    for name, configs in names.items():
        topic = NewTopic(name, given.partitions, given.replication_factor, configs=configs)
        made = (await client.admin.topics.create([topic]))[name]
        if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
            raise made
    if given.group:
        configs = {"share.auto.offset.reset": "earliest"}
        configs |= dict(pair.partition("=")[::2] for pair in given.config)
        if given.dead_letters:
            configs["errors.deadletterqueue.topic.name"] = given.dead_letters
            configs["errors.deadletterqueue.copy.record.enable"] = "true"
        changes = [ConfigChange(name, value) for name, value in configs.items()]
        expect(await client.admin.configs.alter({
            Resource(ResourceType.GROUP, given.group): changes
        }))  # fmt: skip


async def feed(given: argparse.Namespace) -> int:
    async with Client(given.bootstrap_servers) as client:
        await prepare(client, given)
        waiting, sent = [], 0
        made_orders = orders(given.count, given.accounts, given.broken_every, given.seed)
        async with client.producer() as producer:
            for account, value in made_orders:
                waiting.append(await producer.send(given.topic, value, key=account.encode()))
                if len(waiting) == WINDOW:
                    await asyncio.gather(*waiting)
                    sent, waiting = sent + len(waiting), []
            await asyncio.gather(*waiting)
        return sent + len(waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    found = os.environ.get
    parser.add_argument(
        "--bootstrap-servers", default=found("SHOAL_BOOTSTRAP_SERVERS", "localhost:9092")
    )
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--accounts", type=int, default=500)
    parser.add_argument(
        "--broken-every", type=int, default=200, help="each so many is broken; 0 for none"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", default="", help="a share group to configure")
    parser.add_argument("--dead-letters", default="", help="the group's dead-letter topic")
    parser.add_argument(
        "--config", action="append", default=[], metavar="NAME=VALUE",
        help="a config of the group, such as share.ordering=key",
    )  # fmt: skip
    given = parser.parse_args()
    try:
        print(f"{asyncio.run(feed(given))} orders are in topic {given.topic}.")
    except (ClientError, ValueError) as error:
        sys.exit(f"feed_orders: {error}")


if __name__ == "__main__":
    main()
