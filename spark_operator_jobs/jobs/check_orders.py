"""Check orders: rejects those that cannot be shipped, each with the reason, and accepts the others.

    spark-submit check_orders.py --topics orders --group order-checks

The only sink is `sharegroup-outcome`: columns say what becomes of each row, so no Python runs for a
row. A rejected order goes to the group's dead-letter topic with the reason. The word before its
colon is the exception, so `shoal dlq reasons` counts orders by it. `feed_orders.py` fills the
queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import shoal_spark
from pyspark.sql import SparkSession
from shoal_spark import arguments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER = "order string, account string, lines array<struct<wine string, quantity int>>"
#: Values that are not JSON become an order without any field.
PARSED = f"from_json(cast(value as string), '{ORDER}') as found"
REASON = """
    case
        when found.`order` is null then 'InvalidOrder: it is not JSON, or lacks the field "order"'
        when found.lines is null or size(found.lines) = 0
            then concat('EmptyOrder: ', found.`order`, ' has no lines')
        when exists(found.lines, line -> line.quantity <= 0)
            then concat('InvalidQuantity: ', found.`order`, ' orders less than one bottle')
    end as reason
"""
OUTCOME = "if(reason is null, 'accept', 'reject') as outcome"


def judge(rows: DataFrame) -> DataFrame:
    """Return the outcome of each row."""
    place = ("topic", "partition", "offset")
    reasons = rows.selectExpr(*place, "decodeError", PARSED)
    reasons = reasons.selectExpr(*place, "decodeError", REASON)
    return reasons.selectExpr(*place, "decodeError", OUTCOME, "reason")


def main() -> None:
    parser = arguments.build_parser(__doc__ or "", topics="orders", group="order-checks")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("check-orders").getOrCreate()
    shoal_spark.register(spark)
    options = {**arguments.select_connection_options(args), "group.id": args.group}
    rows = arguments.load(spark, args, includeDecodeErrors="true")
    writer = judge(rows).writeStream.format("sharegroup-outcome")
    arguments.configure_writer(writer.options(**options), args).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
