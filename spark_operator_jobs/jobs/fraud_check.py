"""Fraud check: scores orders outside the checkout path by the history of each account.

    spark-submit fraud_check.py --topics orders --group fraud-check --alerts-topic alerts

A stateful operator keeps the usual amount and countries of each account, and its recent order ids,
so that a redelivered record is scored once. An order far above the usual amount, or from elsewhere,
makes an alert. With `share.ordering=key` on the group, one account's orders arrive in order.
`feed_orders.py` fills the queue.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import shoal_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from shoal_spark import arguments, outcomes, topics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

ORDER = (
    "order string, account string, country string, "
    "lines array<struct<wine:string,price_cents:long,quantity:int>>"
)
OUTPUT = (
    "topic string, partition int, offset long, outcome string, reason string, "
    "account string, order string, amount_cents long, score int"
)
STATE = "orders int, mean_cents double, country string, seen string"
#: Order ids in an account's state, more than the distance of a redelivery.
SEEN_MAX = 50
#: Minimum number of orders before an account has a usual amount.
ORDERS_MIN = 3
FAR_ABOVE = 5.0


class Account(NamedTuple):
    """The state of one account."""

    orders: int = 0
    mean_cents: float = 0.0
    country: str = ""
    seen: tuple[str, ...] = ()

    def score(self, amount_cents: int, country: str) -> int:
        """Return how unusual an order is for this account, from 0 to 100."""
        if self.orders < ORDERS_MIN:
            return 0
        above = amount_cents > FAR_ABOVE * self.mean_cents
        return 70 * above + 30 * (country != self.country)

    def after(self, order: str, amount_cents: int, country: str, suspicious: bool) -> Account:
        """Return the state after an order. A suspicious order does not change the usual values."""
        seen = (*self.seen, order)[-SEEN_MAX:]
        if suspicious:
            return self._replace(seen=seen)
        count = self.orders + 1
        mean = self.mean_cents + (amount_cents - self.mean_cents) / min(count, 20)
        return Account(count, mean, country, seen)


def make_scorer(threshold: int) -> Callable[[tuple, Iterator[Any], Any], Iterator[Any]]:
    """Return the function of the stateful operator: one account, its new orders, its state."""

    def run(key: tuple, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas as pd

        account = Account()
        if state.exists:
            orders, mean, country, seen = state.get
            account = Account(orders, mean, country, tuple(seen.split()))
        for frame in frames:
            rows: list[tuple] = []
            for row in frame.sort_values(["partition", "offset"]).itertuples(index=False):
                place = (row.topic, row.partition, row.offset)
                if not isinstance(row.account, str) or not isinstance(row.order, str):
                    rows.append((*place, "reject", "no order", None, None, None, None))
                    continue
                if row.order in account.seen:
                    continue
                amount = int(row.amount_cents)
                score = account.score(amount, row.country)
                account = account.after(row.order, amount, row.country, score >= threshold)
                rows.append((*place, "accept", None, row.account, row.order, amount, score))
            names = [column.split()[0] for column in OUTPUT.split(", ")]
            yield pd.DataFrame(rows, columns=names)
        if key[0] is not None:
            state.update(
                (account.orders, account.mean_cents, account.country, " ".join(account.seen))
            )

    return run


def parse_amounts(rows: DataFrame) -> DataFrame:
    """Return orders with their amount; the account is null for a record that is not an order."""
    parsed = rows.selectExpr(
        "topic", "partition", "offset", f"from_json(cast(value as string), '{ORDER}') as o"
    )
    total = "aggregate(o.lines, 0L, (sum, l) -> sum + l.price_cents * l.quantity)"
    return parsed.selectExpr(
        "topic",
        "partition",
        "offset",
        f"if({total} is null, null, o.account) as account",
        "o.order as order",
        "o.country as country",
        f"coalesce({total}, 0) as amount_cents",
    )


def make_sink(args: argparse.Namespace) -> Callable[[DataFrame, int], None]:
    """Return the function that sends alerts to their topic and log, and rejects invalid orders."""
    options = arguments.build_options(args)
    alert_options = {**arguments.select_connection_options(args), "topic": args.alerts_topic}

    def write(batch: DataFrame, number: int) -> None:
        batch = batch.persist()
        try:
            alerts = batch.filter(f"score >= {args.threshold}").selectExpr(
                "account as key",
                "to_json(struct(account, order, amount_cents, score)) as value",
            )
            count = topics.produce(alerts, alert_options) if args.alerts_topic else alerts.count()
            rejected = outcomes.report(batch, options)
        finally:
            batch.unpersist()
        print(json.dumps({"batch": number, "alerts": count, "rejected": rejected}), flush=True)

    return write


def main() -> None:
    parser = arguments.build_parser(__doc__ or "", topics="orders", group="fraud-check")
    parser.add_argument("--alerts-topic", default="", help="topic for alerts as JSON")
    parser.add_argument("--threshold", type=int, default=70, help="score of an alert, 1 to 100")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("fraud-check").getOrCreate()
    shoal_spark.register(spark)
    rows = parse_amounts(arguments.load(spark, args)).groupBy("account")
    judged = rows.applyInPandasWithState(
        make_scorer(args.threshold), OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout
    )
    writer = judged.writeStream.outputMode("append").foreachBatch(make_sink(args))
    arguments.configure_writer(writer, args).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
