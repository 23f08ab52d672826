"""The steps of `shoal_spark.register` in an application, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import shoal_spark
from shoal_spark import allocation, metrics

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


class DataSources:
    """The registry of a Spark session: notes the names of what is registered."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def register(self, source: type[DataSource]) -> None:
        self._calls.append(source.name())


class Conf:
    """The configuration of a session."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def set(self, name: str, value: str) -> None:
        self._values[name] = value


class ConnectSession:
    """A session of Spark Connect, which has no context."""

    def __init__(self, calls: list[str]) -> None:
        self.dataSource = DataSources(calls)
        self.conf = Conf()


class Context(NamedTuple):
    """A Spark context."""

    applicationId: str = "a"


class ClassicSession(ConnectSession):
    """A session in the driver's process."""

    _sc = Context()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(shoal_spark, "_applications", set())
    monkeypatch.setattr(allocation, "follow", lambda spark: made.append("executors"))
    monkeypatch.setattr(metrics, "publish", lambda spark: made.append("metrics"))
    return made


def test_executors_are_asked_for_before_anything_else(calls: list[str]) -> None:
    """They take seconds to start, while the driver continues."""
    spark = ClassicSession(calls)
    shoal_spark.register(spark)
    assert calls[0] == "executors"
    assert {"metrics", "sharegroup", "kafka-topic"} <= set(calls)
    shoal_spark.register(spark)
    assert calls.count("executors") == calls.count("metrics") == 1
    assert calls.count("sharegroup") == 2, "another session of the application needs them too"


def test_a_session_of_spark_connect_has_no_executors_of_its_own(calls: list[str]) -> None:
    shoal_spark.register(ConnectSession(calls))
    assert "executors" not in calls
    assert "sharegroup" in calls
