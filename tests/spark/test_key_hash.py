"""Spark computes the hash of keys by its own function, as docs/cooperative.md says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shoal.record.key_hash import hash_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPRESSION = "shiftrightunsigned(xxhash64(key), 1) AS hash"


def test_spark_has_the_same_hash(spark: SparkSession) -> None:
    draw = random.Random(1)
    keys = [draw.randbytes(size) for size in range(100)]
    rows = spark.createDataFrame([(key,) for key in keys], "key binary").selectExpr(
        "key", EXPRESSION
    )
    assert {bytes(row.key): row.hash for row in rows.collect()} == {
        key: hash_key(key) for key in keys
    }
