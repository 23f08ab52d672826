"""`spark.readStream.format("sharegroup")`: rows of a share group (KIP-932) as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

from shoal_spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ShareGroupSource(DataSource):  # type: ignore[misc]
    """The source. Options are checked when the query is defined."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup"

    def schema(self) -> str:
        from shoal_spark.columns import ddl

        return ddl(SourceOptions.of(self.options).include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from shoal_spark.reader import ShareGroupReader

        return ShareGroupReader(SourceOptions.of(self.options), schema.fieldNames())
