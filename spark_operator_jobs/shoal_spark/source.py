"""`spark.readStream.format("sharegroup")`: rows of a share group (KIP-932) as a stream."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from shoal_spark.options import InvalidOption, SourceOptions


class ShareGroupSource(DataSource):  # type: ignore[misc]
    """The source. Options are checked when the query is defined."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup"

    def schema(self) -> str:
        from shoal_spark.columns import ddl

        return ddl(SourceOptions.of(self.options).include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from shoal_spark import columns
        from shoal_spark.reader import ShareGroupReader

        options = SourceOptions.of(self.options)
        own = columns.names(options.include_headers)
        if schema.fieldNames() != own:
            raise InvalidOption(
                f"a schema of {', '.join(schema.fieldNames())} was given, and rows of this source "
                f"have {', '.join(own)}; leave the schema out and select from them"
            )
        return ShareGroupReader(options)
