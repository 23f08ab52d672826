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

#: Applications of this process for which `register` was called.
_applications: set[str] = set()


def register(spark: SparkSession) -> None:
    """Register `sharegroup`, `consumergroup` and their companion formats with a session.

    Options with secrets are redacted in what Spark shows of this session (`redaction`).

    Once for each application it also publishes the queries' counts as Spark metrics (`metrics`) and
    writes a fatal error into the pod's termination message (`termination_message`). If a number of
    executors is published, the application follows it (`allocation`).
    """
    # A session of Spark Connect has no driver in this process.
    context = getattr(spark, "_sc", None)
    if context is not None and context.applicationId not in _applications:
        from shoal_spark import allocation, metrics, termination_message

        _applications.add(context.applicationId)
        # Start early: executors take seconds to start, while the driver does other work.
        allocation.follow(spark)
        metrics.publish(spark)
        termination_message.install()
    from shoal_spark import redaction
    from shoal_spark.groups import DeadLetterDataSource, LagSource
    from shoal_spark.outcomes import OutcomeSink
    from shoal_spark.source import ConsumerGroupSource, ShareGroupSource
    from shoal_spark.topics import TopicSink

    redaction.extend(spark)
    for source in (
        ShareGroupSource,
        ConsumerGroupSource,
        OutcomeSink,
        LagSource,
        DeadLetterDataSource,
        TopicSink,
    ):
        spark.dataSource.register(source)
