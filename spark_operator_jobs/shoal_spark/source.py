"""The streaming sources: `sharegroup` has the rows of a share group (KIP-932), and `consumergroup`
those of topics from the positions of a consumer group, by key ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from shoal_spark.options import KeyRangeOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ShareGroupSource(DataSource):  # type: ignore[misc]
    """The source. Options are checked when the query is defined."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup"

    def schema(self) -> str:
        from shoal_spark.columns import build_ddl

        options = SourceOptions.from_options(self.options)
        return build_ddl(options.include_headers, options.include_decode_errors)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from shoal_spark.reader import ShareGroupReader

        return ShareGroupReader(SourceOptions.from_options(self.options), schema.fieldNames())


class ConsumerGroupSource(DataSource):  # type: ignore[misc]
    """`format("consumergroup")`. Options are checked when the query is defined."""

    @classmethod
    def name(cls) -> str:
        return "consumergroup"

    def schema(self) -> str:
        from shoal_spark.key_range_tasks import build_ddl

        return build_ddl(KeyRangeOptions.from_options(self.options).include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from shoal_spark.key_range_reader import KeyRangeReader

        return KeyRangeReader(KeyRangeOptions.from_options(self.options), schema.fieldNames())
