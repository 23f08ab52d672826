"""Fills a queue with orders of wine: scikit-learn's table of 178 wines is the shop's stock.

    python feed_orders.py --bootstrap-servers localhost:9092 --topic orders --count 5000

One account in fifty is compromised and orders large amounts from abroad. A few records are not
orders. Creates the topic if it does not exist.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from feeding import Task, break_every_nth, build_parser, run

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTRIES = ("DE", "FR", "IT", "ES", "PT", "AT")
#: One account in this number is compromised.
TAKEN_OVER = 50


class Wine(NamedTuple):
    name: str
    price_cents: int


def make_stock() -> list[Wine]:
    """Return the wines, named by cultivar and row; more proline means a higher price."""
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


def make_orders(count: int, accounts: int, seed: int) -> Iterator[Task]:
    """Yield orders as JSON by account; the same ones for the same seed."""
    wines, choose = make_stock(), random.Random(seed)
    for number in range(count):
        account = choose.randrange(accounts)
        stolen = account % TAKEN_OVER == TAKEN_OVER - 1 and number > count // 4
        home = COUNTRIES[account % len(COUNTRIES)]
        lines = [
            {
                "wine": wine.name,
                "price_cents": wine.price_cents,
                "quantity": choose.randint(24, 60) if stolen else choose.randint(1, 6),
            }
            for wine in choose.sample(wines, choose.randint(1, 4))
        ]
        order: dict[str, Any] = {
            "order": f"order-{number:07d}",
            "account": f"account-{account:05d}",
            "country": choose.choice(COUNTRIES) if stolen else home,
            "lines": lines,
        }
        yield Task(order["account"], json.dumps(order).encode())


def main() -> None:
    parser = build_parser(__doc__, topic="orders", count=5000, broken_every=200)
    parser.add_argument("--accounts", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    made = make_orders(args.count, args.accounts, args.seed)
    run(args, break_every_nth(made, args.broken_every, part=2), "orders")


if __name__ == "__main__":
    main()
