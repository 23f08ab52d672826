"""Outcomes by row: a job accepts, releases or rejects each row, and the batch continues.

A job reports outcomes in three ways. All write the same files (`outcome_files`), which the source
of the same group reads when the batch has completed. A row without an outcome is accepted.

* `apply` runs a plain function on every row. An exception rejects or releases its row.
* `report` writes the outcomes of a frame in `foreachBatch`.
* `writeStream.format("sharegroup-outcome")` does the same for a query that writes nothing else.

A frame of outcomes has `topic`, `partition`, `offset` and `parse_outcome` (accept, release or
reject). It may have `delayMs`, the time for which a released row stays locked, and `reason`, for
the log and for the dead letter. A reason such as `ValueError: no amount` names the exception.
Rows with a `decodeError`, which the source could not decode, are rejected with it as their reason.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from shoal_spark import outcome_files
from shoal_spark.options import GroupOptions, InvalidOption
from shoal_spark.outcome_files import DECODE_ERROR, DELAY_MS_MAX, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import Row, StructType

log = logging.getLogger("shoal_spark")
#: Columns that identify a row; they come first in the result of `apply`.
PLACE = ("topic", "partition", "offset")
NEEDED = (*PLACE, "outcome")
#: Maximum length of a reason in characters.
REASON_CHARACTERS_MAX = 500
#: Maximum number of rejected rows of a batch that are logged.
LOGGED_MAX = 20


class Rejected(Exception):
    """Raised by a function under `apply`: reject this row without a retry."""


class Released(Exception):
    """Raised by a function under `apply`: release this row for a later retry, maybe elsewhere."""

    def __init__(self, reason: str, delay_ms: int = 0) -> None:
        super().__init__(reason)
        self.delay_ms = delay_ms


def apply(
    frame: DataFrame,
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    schema: str,
    *,
    release: tuple[type[Exception], ...] = (),
    delay_ms: int = 0,
) -> DataFrame:
    """Run `function` on every row of the source: a row as a dict in, a dict of `schema` out.

    `schema` is DDL. The result has `topic`, `partition`, `offset`, the columns of `schema` (null if
    the function failed), and `parse_outcome`, `delayMs` and `reason`. `Rejected` rejects and
    `Released` releases the row. Exceptions in `release` release it for `delay_ms`. All others
    reject it, because a retry would fail again. Drop unneeded columns before with `frame.select`.
    """
    from pyspark.sql.types import StructType

    place = "topic string, partition int, offset long"
    full = StructType.fromDDL(f"{place}, {schema}, outcome string, delayMs int, reason string")

    def judge_row(row: dict[str, Any]) -> dict[str, Any]:
        result: Mapping[str, Any] = {}
        kind, wait_ms, reason = OutcomeKind.ACCEPT, 0, None
        if row.get(DECODE_ERROR) is not None:
            return {**pick_place(row), "outcome": "reject", "reason": row[DECODE_ERROR]}
        try:
            result = function(row)
        except Exception as error:  # on purpose: the failure of a row affects this row only
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX]
            kind = (
                OutcomeKind.RELEASE
                if isinstance(error, (Released, *release))
                else OutcomeKind.REJECT
            )
            wait_ms = getattr(error, "delay_ms", delay_ms) if kind == OutcomeKind.RELEASE else 0
        outcome = {"outcome": str(kind), "delayMs": wait_ms, "reason": reason}
        return {**result, **pick_place(row), **outcome}

    def map_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        shape = to_arrow_schema(full, timezone="UTC")
        for batch in batches:
            yield pa.RecordBatch.from_pylist([judge_row(row) for row in batch.to_pylist()], shape)

    return frame.mapInArrow(map_batches, full)


def pick_place(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that identify a row."""
    return {name: row[name] for name in PLACE}


def select_accepted(judged: DataFrame) -> DataFrame:
    """Return the rows that `apply` accepted, without the columns of outcomes."""
    return judged.filter("outcome = 'accept'").drop("outcome", "delayMs", "reason")


def report(judged: DataFrame, options: Mapping[str, str]) -> int:
    """Write the outcomes of a frame in `foreachBatch`; return the number of rows not accepted.

    `options` are those of the source (its connection, `group.id` and `outcomes.dir` are used).
    Persist a frame that is used twice. Call it last: the batch counts as accepted from then on.
    """
    names = {n.lower(): v for n, v in options.items()}
    option_names = ("kafka.bootstrap.servers", "group.id", "outcomes.dir")
    place = GroupOptions.from_outcome_options(
        {n: names[n] for n in option_names if n in names}
    ).outcomes_dir
    columns = _check_columns(judged.columns)
    undecodable = f" or {DECODE_ERROR} is not null" if DECODE_ERROR in columns else ""
    rows = judged.filter(f"outcome <> 'accept'{undecodable}").select(*columns).collect()
    outcomes = [parse_outcome(row) for row in rows]
    _log_outcomes(outcomes)
    outcome_files.write(place, outcomes)
    return len(outcomes)


def parse_outcome(row: Row) -> Outcome:
    """Parse a row of a frame of outcomes. Raises `ValueError` with the reason."""
    values = row.asDict()
    if values.get(DECODE_ERROR) is not None:
        values |= {"outcome": OutcomeKind.REJECT, "reason": values[DECODE_ERROR]}
    try:
        kind = OutcomeKind(values["outcome"])
    except ValueError:
        raise ValueError(
            f"column 'outcome' is {values['outcome']!r}; it must be accept, release or reject"
        ) from None
    delay_ms = int(values.get("delayMs") or 0)
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise ValueError(f"column 'delayMs' is {delay_ms}; it must be between 0 and {DELAY_MS_MAX}")
    topic, partition, offset = (values[name] for name in PLACE)
    return Outcome(
        topic,
        partition,
        offset,
        offset,
        kind,
        delay_ms if kind == OutcomeKind.RELEASE else 0,
        str(values.get("reason") or ""),
    )


def _check_columns(columns: Iterable[str]) -> list[str]:
    names = list(columns)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise InvalidOption(f"a frame of outcomes lacks {', '.join(missing)}; it has {names}")
    return [name for name in (*NEEDED, "delayMs", "reason", DECODE_ERROR) if name in names]


def _log_outcomes(outcomes: Iterable[Outcome]) -> None:
    for outcome in list(outcomes)[:LOGGED_MAX]:
        log.warning(
            "%s-%d offset %d: %s: %s",
            outcome.topic,
            outcome.partition,
            outcome.first,
            outcome.kind,
            outcome.reason,
        )


@dataclass(frozen=True)
class OutcomeMessage(WriterCommitMessage):  # type: ignore[misc]
    """Outcomes of one task, without accepted rows."""

    outcomes: tuple[Outcome, ...]


class _OutcomeWriterBase:
    """The sink: tasks collect outcomes, and the driver writes the files."""

    def __init__(self, options: GroupOptions, schema: StructType) -> None:
        self.options = options
        _check_columns(schema.fieldNames())

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        outcomes = (parse_outcome(row) for row in iterator)
        return OutcomeMessage(
            tuple(outcome_files.join(o for o in outcomes if o.kind != OutcomeKind.ACCEPT))
        )

    def commit(self, messages: list[WriterCommitMessage | None], _batchId: int = 0) -> None:
        outcomes = [
            o
            for message in messages
            if isinstance(message, OutcomeMessage)
            for o in message.outcomes
        ]
        _log_outcomes(outcomes)
        outcome_files.write(self.options.outcomes_dir, outcomes)


class OutcomeStreamWriter(_OutcomeWriterBase, DataSourceStreamWriter):  # type: ignore[misc]
    """For `writeStream`."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: no outcome has left the tasks."""


class OutcomeWriter(_OutcomeWriterBase, DataSourceWriter):  # type: ignore[misc]
    """For `write` in `foreachBatch`."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: no outcome has left the tasks."""


class OutcomeSink(DataSource):  # type: ignore[misc]
    """`format("sharegroup-outcome")`."""

    @classmethod
    def name(cls) -> str:
        return "sharegroup-outcome"

    # PySpark passes `overwrite` by name.
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        return OutcomeStreamWriter(GroupOptions.from_outcome_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return OutcomeWriter(GroupOptions.from_outcome_options(self.options), schema)
