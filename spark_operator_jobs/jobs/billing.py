"""Billing: makes an invoice as a PDF for each order and registers it exactly once.

    spark-submit billing.py --topics orders --group billing --registry /data/invoices.db

The registry, an SQLite file on the driver's volume, accepts each order once. So a repeated batch, a
redelivered record and a redriven dead letter never bill twice. The number of an invoice is the
order's position in the log. An order that cannot be billed is rejected and goes to the group's
dead-letter topic. Once the cause is fixed, `shoal dlq redrive` sends it back. `feed_orders.py`
fills the queue.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import shoal_spark
from pyspark.sql import DataFrame, SparkSession
from shoal_spark import arguments, outcomes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

SCHEMA = "order_id string, number string, account string, total_cents long, pdf binary"
TABLE = """
    CREATE TABLE IF NOT EXISTS invoices (
        order_id TEXT PRIMARY KEY, number TEXT NOT NULL, account TEXT NOT NULL,
        total_cents INTEGER NOT NULL, pdf BLOB NOT NULL, batch INTEGER NOT NULL
    )
"""
#: An A4 page in points, and the position of its text.
PAGE, LEFT, TOP, LEADING = (595, 842), 72, 770, 16
#: Lines of an order that fit on its page.
LINES_MAX = 40
#: Characters that need a backslash in a PDF string.
ESCAPED, ESCAPE = re.compile(r"([()\\])"), r"\\\1"


def make_invoice(row: dict[str, Any], lines_max: int = LINES_MAX) -> dict[str, Any]:
    """Return the invoice for one record. Raises an error if it is not a valid order."""
    order = json.loads(row["value"] or b"")
    lines = order["lines"]
    if not 0 < len(lines) <= lines_max:
        raise ValueError(f"an invoice has 1 to {lines_max} lines, not {len(lines)}")
    if bad := [line for line in lines if line["quantity"] <= 0 or line["price_cents"] < 0]:
        raise ValueError(f"these cannot be billed: {bad[0]}")
    total = sum(line["price_cents"] * line["quantity"] for line in lines)
    number = f"{row['topic']}-{row['partition']}-{row['offset']}"
    text = [
        f"Invoice {number}",
        f"for {order['account']}, {order['order']}",
        "",
        *(
            f"{line['quantity']:>3} x {line['wine']:<40} {format_euros(line['price_cents'])}"
            for line in lines
        ),
        "",
        f"Total {format_euros(total)}",
    ]
    return {
        "order_id": order["order"],
        "number": number,
        "account": order["account"],
        "total_cents": total,
        "pdf": write_pdf(text),
    }


def format_euros(cents: int) -> str:
    return f"{cents // 100:>8,}.{cents % 100:02d} EUR"


def write_pdf(lines: Sequence[str]) -> bytes:
    """Return a page of text in a fixed font (PDF 1.4, ISO 32000-1); only Latin-1 can be shown."""
    shown = "".join(f"({ESCAPED.sub(ESCAPE, line)}) Tj T*\n" for line in lines)
    text = f"BT /F1 11 Tf {LEADING} TL {LEFT} {TOP} Td\n{shown}ET".encode("latin-1", "replace")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %d %d] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>" % PAGE,
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(text), text),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
    ]
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % table)


def register(path: str, batch: int, invoices: Iterable[Any]) -> int:
    """Write new invoices, all or none; return how many were new."""
    rows = [
        (i["order_id"], i["number"], i["account"], i["total_cents"], bytes(i["pdf"]), batch)
        for i in invoices
    ]
    with closing(sqlite3.connect(path)) as registry, registry:
        registry.execute(TABLE)
        before = registry.total_changes
        registry.executemany("INSERT OR IGNORE INTO invoices VALUES (?, ?, ?, ?, ?, ?)", rows)
        return registry.total_changes - before


def make_sink(args: argparse.Namespace) -> Callable[[DataFrame, int], None]:
    """Return the function that handles each micro-batch."""
    options, bill = arguments.build_options(args), partial(make_invoice, lines_max=args.lines_max)

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.select("topic", "partition", "offset", "value")
        judged = outcomes.apply(rows, bill, SCHEMA).persist()
        try:
            new = register(
                args.registry, number, outcomes.select_accepted(judged).toLocalIterator()
            )
            rejected = outcomes.report(judged, options)
        finally:
            judged.unpersist()
        print(json.dumps({"batch": number, "invoices": new, "rejected": rejected}), flush=True)

    return write


def main() -> None:
    parser = arguments.build_parser(__doc__ or "", topics="orders", group="billing")
    parser.add_argument("--registry", default="invoices.db", help="the SQLite file of invoices")
    parser.add_argument(
        "--lines-max", type=int, default=LINES_MAX, help="longer orders are not billed"
    )
    args = parser.parse_args()
    if not 0 < args.lines_max <= LINES_MAX:
        parser.error(f"--lines-max is {args.lines_max}; a page has room for 1 to {LINES_MAX}")
    spark = SparkSession.builder.appName("billing").getOrCreate()
    shoal_spark.register(spark)
    writer = arguments.load(spark, args).writeStream.foreachBatch(make_sink(args))
    arguments.configure_writer(writer, args).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
