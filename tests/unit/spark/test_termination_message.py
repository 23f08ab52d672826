"""The line that summarizes a driver's error, and where it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from shoal_spark import termination_message

if TYPE_CHECKING:
    from pathlib import Path


class StreamingQueryException(Exception):
    """An error with the name of PySpark's."""


#: PySpark 4.3's text without its frames; tests/spark has the real ones.
FAILED = """[STREAM_FAILED] Query [id = 2, runId = 5] terminated with exception: [FOREACH] Reason:
py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "foreach_batch_dispatch.py", line 61, in call
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "rows.py", line 120, in undecodable
shoal_spark.range_reader.DataLoss: rows of topic 't' partition 0, offsets 0 to 9, cannot be decoded

 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 2, runId = 5]
Current Committed Offsets: {org.apache.spark.SomeStream@27f8c3d: {"seq": 1}}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            StreamingQueryException(FAILED),
            "shoal_spark.range_reader.DataLoss: rows of topic 't' partition 0, offsets 0 to 9,"
            " cannot be decoded",
        ),
        (ValueError("no such thing\nas this"), "ValueError: no such thing"),
        (KeyError("x"), "KeyError: 'x'"),
        (AssertionError(), "AssertionError:"),
        (
            RuntimeError(
                "a.B: c\nCaused by: java.lang.IllegalStateException: too far\n\tat a.b(C)"
            ),
            "Caused by: java.lang.IllegalStateException: too far",
        ),
        (ValueError("x" * 9999), ("ValueError: " + "x" * 9999)[: termination_message.LENGTH_MAX]),
    ],
)
def test_the_line_that_an_error_began_with(error: Exception, line: str) -> None:
    assert termination_message.summarize(error) == line


def test_messages_are_written_and_python_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(error))
    termination_message.install(tmp_path / "away")
    place = tmp_path / "termination-log"
    place.touch()
    termination_message.install(place)
    error = ValueError("no such thing")
    sys.excepthook(ValueError, error, None)
    assert seen == [error]
    assert place.read_text() == "ValueError: no such thing"
    assert not (tmp_path / "away").exists()
