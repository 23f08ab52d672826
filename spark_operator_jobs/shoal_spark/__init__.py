"""Share groups (KIP-932) in Spark: a streaming source, its sinks, and scaling by share lag.

    import shoal_spark
    shoal_spark.register(spark)
    spark.readStream.format("sharegroup").option("group.id", "images")…

Works with PySpark 4.2 or newer, against Shoal and against Apache Kafka 4.2 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Applications of this process that `register` has been called for.
_applications: set[str] = set()


def register(spark: SparkSession) -> None:
    """Make the formats known to a session: `sharegroup` and its companions.

    Of an application it also publishes the counts of its queries as Spark metrics (`metrics`),
    leaves in its pod what it dies of (`last_words`), and, where somebody publishes how many
    executors are wanted, follows that (`allocation`).
    """
    # A session of Spark Connect has no driver of its own to steer or to ask.
    context = getattr(spark, "_sc", None)
    if context is not None and context.applicationId not in _applications:
        from shoal_spark import allocation, last_words, metrics

        _applications.add(context.applicationId)
        # Executors take seconds to start, in which the driver does everything else.
        allocation.follow(spark)
        metrics.publish(spark)
        last_words.keep()
    from shoal_spark.groups import DeadLetterSource, LagSource
    from shoal_spark.outcomes import OutcomeSink
    from shoal_spark.source import ShareGroupSource
    from shoal_spark.topics import TopicSink

    for source in (ShareGroupSource, OutcomeSink, LagSource, DeadLetterSource, TopicSink):
        spark.dataSource.register(source)
